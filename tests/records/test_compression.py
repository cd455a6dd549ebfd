"""Codecs: output that Kafka reads, and limits of the input."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import CorruptBatchError, DecompressionLimitError
from raftlog.limits import KIB, MIB
from raftlog.records.compression import Compression, compress, decompress, decompress_onto

CODECS = list(Compression)
PACKED = [codec for codec in CODECS if codec is not Compression.NONE]


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=300), repeat=st.sampled_from([0, 1, 1000]))
def test_compressed_bytes_round_trip(codec: Compression, data: bytes, repeat: int) -> None:
    plain = data * repeat
    assert decompress(compress(plain, codec), codec) == plain


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decompressed(codec: Compression, kind: type) -> None:
    assert decompress(kind(compress(b"abc" * 50_000, codec)), codec) == b"abc" * 50_000


def test_lz4_blocks_are_independent_as_kafka_requires() -> None:
    packed = compress(bytes(200 * KIB), Compression.LZ4)
    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] & 0b0010_0000  # "block independence"
    assert packed[5] == 0x40  # 64 KiB per block
    assert packed.endswith(bytes(4))


def test_snappy_is_written_in_xerials_framing_and_read_with_and_without() -> None:
    plain = b"snappy " * 20_000
    packed = compress(plain, Compression.SNAPPY)
    assert packed[:8] == b"\x82SNAPPY\x00"
    assert decompress(packed, Compression.SNAPPY) == plain
    assert decompress(packed + packed, Compression.SNAPPY) == plain * 2
    raw = pa.Codec("snappy").compress(plain, asbytes=True)
    assert decompress(raw, Compression.SNAPPY) == plain
    assert decompress(b"\x00", Compression.SNAPPY) == b""


def bomb(codec: Compression) -> bytes:
    """Return at most a few MiB that expand to 256, without allocating those."""
    if codec is Compression.GZIP:
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        return b"".join(packer.compress(bytes(MIB)) for _ in range(256)) + packer.flush()
    if codec is Compression.SNAPPY:
        packed = compress(bytes(32 * KIB), codec)
        return packed[:16] + packed[16:] * (8 * KIB)
    if codec is Compression.LZ4:
        packed = compress(bytes(64 * KIB), codec)
        return packed[:7] + packed[7:-4] * (4 * KIB) + packed[-4:]
    return compress(bytes(MIB), codec) * 256


@pytest.mark.parametrize("codec", PACKED)
def test_a_decompression_bomb_is_refused_before_it_is_allocated(codec: Compression) -> None:
    packed = bomb(codec)
    assert len(packed) < 16 * MIB
    pool = pa.system_memory_pool()
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionLimitError, match="expands to more than 8388608") as caught:
            decompress(packed, codec, byte_count_max=8 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
    assert caught.value.byte_count_max == 8 * MIB
    assert peak_bytes < 24 * MIB
    assert pool.max_memory() < 24 * MIB


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_inclusive(codec: Compression) -> None:
    packed = compress(bytes(100_000), codec)
    assert len(decompress(packed, codec, byte_count_max=100_000)) == 100_000
    if codec is not Compression.NONE:
        with pytest.raises(DecompressionLimitError):
            decompress(packed, codec, byte_count_max=99_999)


def expanded(packed: bytes, codec: Compression) -> bytes | CorruptBatchError:
    try:
        return decompress(packed, codec, byte_count_max=MIB)
    except CorruptBatchError as error:
        return error


@pytest.mark.parametrize("codec", PACKED)
def test_compressed_bytes_truncated_anywhere_are_damage(codec: Compression) -> None:
    packed = compress(b"some text that repeats, " * 40, codec)
    for byte_count in range(len(packed)):
        caught = expanded(packed[:byte_count], codec)
        if isinstance(caught, CorruptBatchError):
            assert codec.name.lower() in caught.reason
        else:  # an empty stream, or a xerial header without a block
            assert caught == b""


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_expand_or_are_damage(codec: Compression, data: bytes) -> None:
    for start in (b"", compress(b"abcabcabc" * 9, codec)[:20]):
        caught = expanded(start + data, codec)
        if isinstance(caught, CorruptBatchError):
            assert "\n" not in caught.reason
        else:
            assert len(caught) <= MIB


@pytest.mark.parametrize(
    "block",
    [
        b"\xff\xff\xff\xff\x0f" + b"\x00" * 40,  # claims 4 GiB
        b"\x80\x80\x80\x80\x80\x80",  # a length without an end
        b"\x64",  # claims 100 bytes and has none
    ],
)
def test_a_snappy_block_with_a_wrong_size_is_damage(block: bytes) -> None:
    framed = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block
    for packed in (block, framed):
        with pytest.raises(CorruptBatchError, match="snappy"):
            decompress(packed, Compression.SNAPPY)


@pytest.mark.parametrize("byte_count", [-1, 0, 2**31 - 1])
def test_a_xerial_block_of_an_impossible_length_is_damage(byte_count: int) -> None:
    packed = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, byte_count) + b"abc"
    with pytest.raises(CorruptBatchError, match="invalid block length"):
        decompress(packed, Compression.SNAPPY)


@pytest.mark.parametrize("codec", PACKED)
def test_decompressed_bytes_are_allocated_once(codec: Compression) -> None:
    packed = compress(bytes(32 * MIB), codec)
    tracemalloc.start()
    try:
        out = bytearray(b"before")
        decompress_onto(out, packed, codec, byte_count_max=32 * MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert out[:6] == b"before"
    assert len(out) == 32 * MIB + 6
    assert peak_bytes < 52 * MIB


@pytest.mark.parametrize("codec", PACKED)
def test_nothing_is_appended_of_damaged_compressed_bytes(codec: Compression) -> None:
    out = bytearray(b"before")
    with pytest.raises(DecompressionLimitError):
        decompress_onto(out, bomb(codec), codec, byte_count_max=8 * MIB)
    assert out == b"before"
