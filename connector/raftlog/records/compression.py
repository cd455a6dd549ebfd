"""Compression codecs of record batches, through pyarrow, with a limit on the decompressed size.

Decompression needs memory for at most ``byte_count_max`` bytes plus one read of
``_READ_BYTES_MAX``. Its errors have no path, position or offset; the caller adds them.

The formats are those that Kafka reads. snappy uses xerial's framing (Kafka: ``SnappyCompression``).
lz4 is a frame of independent blocks of 64 KiB, since Kafka's ``Lz4BlockInputStream`` rejects linked
blocks, which are the default of the lz4 library. ``decompress`` reads more than Kafka does, see
``is_read_by_kafka``.

pyarrow is imported at the first use, so that logs without compression do not load it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, Final

from raftlog.errors import CorruptBatchError, DecompressionLimitError, RaftlogError
from raftlog.limits import DECOMPRESSED_BYTES_MAX, KIB, MIB

from .fields import Buffer, read_unsigned_varint


class Compression(enum.IntEnum):
    """Bits 0 to 2 of a batch's attributes (Kafka: ``CompressionType``)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_MAGIC: Final = b"\x1f\x8b"
_STREAMED: Final = {Compression.GZIP: "gzip", Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}
_READ_BYTES_MIN: Final = 64 * KIB
_READ_BYTES_MAX: Final = 4 * MIB

_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * KIB
_SNAPPY_GROWTH_MAX: Final = 22
"""Largest expansion of a valid snappy block: an element of 3 bytes yields at most 64 bytes."""

_LZ4_FRAME_HEADER: Final = bytes.fromhex("04224d18604082")
"""Magic; FLG (version 1, independent blocks); BD (blocks of 64 KiB); checksum of FLG and BD."""
_LZ4_BLOCK_BYTES: Final = 64 * KIB
_LZ4_STORED: Final = 0x8000_0000
_LZ4_FORM_BITS: Final = 0b1110_0011
"""Bits of FLG: version, block independence, a reserved bit, and a dictionary."""
_LZ4_FORM: Final = 0b0110_0000
_LZ4_BLOCK_CHECKSUMS: Final = 0b0001_0000
_LZ4_CONTENT_SIZE: Final = 0b0000_1000
_LZ4_CONTENT_CHECKSUM: Final = 0b0000_0100
_LZ4_BLOCKS_MAX: Final = 4096
"""Blocks that are examined: 256 MiB in blocks of 64 KiB."""


def compress(data: bytes, codec: Compression) -> bytes:
    """Return ``data`` compressed as the payload of a batch with this codec."""
    if codec is Compression.NONE:
        return data
    if codec is Compression.SNAPPY:
        return _xerial(data)
    if codec is Compression.LZ4:
        return _lz4_frame(data)
    packed: bytes = _codec(_STREAMED[codec]).compress(data, asbytes=True)
    return packed


def decompress(
    data: Buffer, codec: Compression, *, byte_count_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return ``data`` decompressed, at most ``byte_count_max`` bytes.

    Raises:
        DecompressionLimitError: it expands to more bytes.
        CorruptBatchError: it is not valid data of the codec.
    """
    if codec is Compression.NONE:
        return bytes(data)
    pieces = iter_decompressed(
        data, codec, byte_count_max=byte_count_max, piece_bytes_max=byte_count_max
    )
    held = list(pieces)
    return held[0] if len(held) == 1 else b"".join(held)


def is_read_by_kafka(data: Buffer, codec: Compression) -> bool:
    """Return whether Kafka, too, can decompress ``data``, which ``decompress`` can.

    Kafka reads one lz4 frame, which must have independent blocks and no dictionary, and does not
    read zlib's format under the codec gzip. The result is False for more than 4096 lz4 blocks, too.
    """
    view = memoryview(data)
    if codec is Compression.GZIP:
        return bytes(view[: len(_GZIP_MAGIC)]) == _GZIP_MAGIC
    return codec is not Compression.LZ4 or _is_one_lz4_frame(view)


def _is_one_lz4_frame(view: memoryview) -> bool:
    if bytes(view[:4]) != _LZ4_FRAME_HEADER[:4] or view[4] & _LZ4_FORM_BITS != _LZ4_FORM:
        return False
    flags = view[4]
    position = len(_LZ4_FRAME_HEADER) + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    for _ in range(_LZ4_BLOCKS_MAX):
        word = int.from_bytes(view[position : position + 4], "little")
        position += 4
        if not word:  # the end mark
            return position + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0) == len(view)
        position += word & ~_LZ4_STORED
        position += 4 if flags & _LZ4_BLOCK_CHECKSUMS else 0
    return False


def decompress_onto(
    out: bytearray, data: Buffer, codec: Compression, *, byte_count_max: int
) -> None:
    """Append the decompressed ``data`` to ``out``, without a second copy.

    Raises what ``decompress`` raises; ``out`` is unchanged then.
    """
    start = len(out)
    try:
        for piece in iter_decompressed(
            data, codec, byte_count_max=byte_count_max, piece_bytes_max=byte_count_max
        ):
            out += piece
    except CorruptBatchError:
        del out[start:]
        raise


def iter_decompressed(
    data: Buffer,
    codec: Compression,
    *,
    byte_count_max: int = DECOMPRESSED_BYTES_MAX,
    piece_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[bytes]:
    """Yield ``data`` decompressed, lazily and in pieces of at most a few MiB.

    A raw snappy block is one piece, which must not exceed ``piece_bytes_max`` bytes. Raises what
    ``decompress`` raises.
    """
    if codec is Compression.NONE:
        yield bytes(data)
    elif codec is Compression.SNAPPY:
        yield from _decompress_snappy(data, byte_count_max, piece_bytes_max)
    else:
        yield from _decompress_stream(data, _STREAMED[codec], byte_count_max)


def _codec(name: str) -> Any:
    import pyarrow as pa

    return pa.Codec(name)


def _corrupt(name: str, what: str) -> RaftlogError:
    return CorruptBatchError(reason=f"corrupt {name} data: {what}")


def _too_large(name: str, byte_count_max: int) -> RaftlogError:
    return DecompressionLimitError(
        reason=f"its {name} data expands to more than {byte_count_max} bytes",
        byte_count_max=byte_count_max,
    )


def _decompress_stream(data: Buffer, name: str, byte_count_max: int) -> Iterator[bytes]:
    import pyarrow as pa

    byte_count = 0
    # The first read covers the usual expansion of a batch; later reads double.
    want = min(max(_READ_BYTES_MIN, 4 * len(data)), _READ_BYTES_MAX)
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name) as stream:
            while piece := stream.read(want):
                byte_count += len(piece)
                if byte_count > byte_count_max:
                    raise _too_large(name, byte_count_max)
                yield piece
                want = min(2 * want, _READ_BYTES_MAX)
    except (pa.ArrowException, OSError) as error:
        raise _corrupt(name, _first_line(error)) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _xerial(data: bytes) -> bytes:
    codec = _codec("snappy")
    out = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = codec.compress(data[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        out += (struct.pack(">i", len(block)), block)
    return b"".join(out)


def _decompress_snappy(data: Buffer, byte_count_max: int, piece_bytes_max: int) -> Iterator[bytes]:
    """Yield the blocks of xerial's framing, or one raw block. Kafka reads both."""
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_HEADER[:8]:
        yield _snappy_block(view, 0, min(byte_count_max, piece_bytes_max))
        return
    byte_total = 0
    position = 0
    while position < len(view):
        if bytes(view[position : position + 8]) == _XERIAL_HEADER[:8]:
            position += len(_XERIAL_HEADER)  # streams may be concatenated
            if position > len(view):
                raise _corrupt("snappy", "truncated header")
            continue
        if position + 4 > len(view):
            raise _corrupt("snappy", "truncated block length")
        (byte_count,) = struct.unpack_from(">i", view, position)
        position += 4
        if not 0 < byte_count <= len(view) - position:
            raise _corrupt("snappy", f"invalid block length {byte_count}")
        piece = _snappy_block(view[position : position + byte_count], byte_total, byte_count_max)
        yield piece
        byte_total += len(piece)
        position += byte_count


def _snappy_block(block: memoryview, held: int, byte_count_max: int) -> bytes:
    import pyarrow as pa

    try:
        grown, _ = read_unsigned_varint(block, 0)
    except RaftlogError:
        raise _corrupt("snappy", "a block does not start with its uncompressed length") from None
    if grown > _SNAPPY_GROWTH_MAX * len(block):
        raise _corrupt("snappy", f"invalid length {grown} of a block of {len(block)} bytes")
    if held + grown > byte_count_max:
        raise _too_large("snappy", byte_count_max)
    try:
        # pyarrow cannot return an empty result; an empty block has nothing after its length.
        return _codec("snappy").decompress(block, grown, asbytes=True) if grown else b""
    except (pa.ArrowException, OSError) as error:
        raise _corrupt("snappy", _first_line(error)) from None


def _lz4_frame(data: bytes) -> bytes:
    codec = _codec("lz4_raw")
    out = [_LZ4_FRAME_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            out += (struct.pack("<I", len(block)), block)
        else:  # a block that does not shrink is stored uncompressed
            out += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
    out.append(struct.pack("<I", 0))
    return b"".join(out)
