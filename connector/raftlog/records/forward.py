"""Streaming reads of single fields of a batch's records.

Memory is bounded by the requested fields and one decompressed piece, whatever the batch expands to,
so that a log can examine every batch that it has appended. Bytes after the last requested field are
not decompressed. Each length is checked against the record's length; ``CorruptBatchError`` is
raised without path, position and offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from raftlog.errors import CorruptBatchError, MalformedVarintError
from raftlog.limits import VARINT_BYTES_MAX, VARLONG_BYTES_MAX

from .batch import RecordBatch
from .compression import Compression, iter_decompressed
from .header import INT32_MAX
from .varint import read_varint, read_varlong

_BYTES_MAX: Final = INT32_MAX + VARINT_BYTES_MAX
"""Largest size of a record, its length field included."""


class ForwardReader:
    """Sequential reader of the decompressed records of one batch."""

    __slots__ = ("_at", "_base", "_buffer", "_pieces")

    def __init__(self, batch: RecordBatch) -> None:
        self._pieces = _pieces(batch)
        self._buffer = b""
        self._at = 0
        self._base = 0

    @property
    def position(self) -> int:
        """The position of the next field in the decompressed records."""
        return self._base + self._at

    def varint(self) -> int:
        self._load(VARINT_BYTES_MAX)
        try:
            number, self._at = read_varint(self._buffer, self._at)
        except MalformedVarintError as error:
            raise CorruptBatchError(reason=f"a varint is malformed: {error.reason}") from None
        return number

    def varlong(self) -> int:
        self._load(VARLONG_BYTES_MAX)
        try:
            number, self._at = read_varlong(self._buffer, self._at)
        except MalformedVarintError as error:
            raise CorruptBatchError(reason=f"a varint is malformed: {error.reason}") from None
        return number

    def take(self, byte_count: int) -> bytes:
        """Return the next bytes."""
        if not self._load(byte_count):
            raise CorruptBatchError(reason=f"its records end before {byte_count} bytes of a field")
        start, self._at = self._at, self._at + byte_count
        return self._buffer[start : self._at]

    def skip(self, byte_count: int) -> None:
        """Skip the next bytes without buffering them."""
        while byte_count > (left := len(self._buffer) - self._at):
            byte_count -= left
            self._at += left
            if not self._next_piece():
                raise CorruptBatchError(reason=f"its records end {byte_count} bytes too early")
        self._at += byte_count

    def _load(self, byte_count: int) -> bool:
        """Buffer ``byte_count`` bytes; return whether there are that many."""
        while len(self._buffer) - self._at < byte_count:
            if not self._next_piece():
                return False
        return True

    def _next_piece(self) -> bool:
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._base += self._at
        left = self._buffer[self._at :]
        self._buffer = left + piece if left else piece
        self._at = 0
        return True


def _pieces(batch: RecordBatch) -> Iterator[bytes]:
    if batch.compression is Compression.NONE:
        return iter((batch.payload,))
    return iter_decompressed(batch.payload, batch.compression, byte_count_max=_BYTES_MAX)


def _begin_record(reader: ForwardReader) -> tuple[int, int]:
    """Read a record up to its key; return the record's end position and offset delta."""
    byte_count = reader.varint()
    if byte_count < 1:
        raise CorruptBatchError(reason=f"invalid record length {byte_count}")
    end = reader.position + byte_count
    reader.skip(1)
    reader.varlong()
    return end, reader.varint()


def _field_byte_count(reader: ForwardReader, end: int) -> int:
    """Read the length of the next key or value, -1 for null."""
    byte_count = reader.varint()
    if byte_count < -1 or reader.position + byte_count > end:
        raise CorruptBatchError(reason=f"invalid field length {byte_count}")
    return byte_count


def first_record_headers(
    batch: RecordBatch, key: str, *, header_count_max: int, byte_count_max: int
) -> list[bytes | None]:
    """Return the values of the headers ``key`` among the first headers of the first record.

    At most ``header_count_max`` headers are read. A null value, and one of more than
    ``byte_count_max`` bytes, is returned as None. Raises ``CorruptBatchError``.
    """
    reader, wanted = ForwardReader(batch), key.encode()
    end, _ = _begin_record(reader)
    for _ in range(2):
        reader.skip(max(0, _field_byte_count(reader, end)))
    count = reader.varint()
    if not 0 <= 2 * count <= end - reader.position:
        raise CorruptBatchError(reason=f"invalid header count {count}")
    found: list[bytes | None] = []
    for _ in range(min(count, header_count_max)):
        key_bytes = _field_byte_count(reader, end)
        is_wanted = False
        if key_bytes == len(wanted):
            is_wanted = reader.take(key_bytes) == wanted
        else:
            reader.skip(max(0, key_bytes))
        value_bytes = _field_byte_count(reader, end)
        is_short = 0 <= value_bytes <= byte_count_max
        if is_wanted:
            found.append(reader.take(value_bytes) if is_short else None)
        if not (is_wanted and is_short):
            reader.skip(max(0, value_bytes))
    return found


def iter_value_starts(
    batch: RecordBatch, starts: tuple[bytes, ...], *, byte_count_max: int
) -> Iterator[tuple[int, bytes]]:
    """Yield offset delta and value of the records whose values start with one of ``starts``.

    Values are truncated to ``byte_count_max`` bytes. ``starts`` have equal lengths. Raises
    ``CorruptBatchError`` at the first corrupt record.
    """
    reader, start_bytes = ForwardReader(batch), len(starts[0])
    for _ in range(batch.record_count):
        end, delta = _begin_record(reader)
        reader.skip(max(0, _field_byte_count(reader, end)))
        value_bytes = _field_byte_count(reader, end)
        if value_bytes >= start_bytes:
            start = reader.take(start_bytes)
            if start in starts:
                yield delta, start + reader.take(min(value_bytes, byte_count_max) - start_bytes)
        if reader.position > end:
            raise CorruptBatchError(
                reason=f"its fields exceed the record length by {reader.position - end} bytes"
            )
        reader.skip(end - reader.position)


def contains_any(batch: RecordBatch, texts: tuple[bytes, ...]) -> bool:
    """Return whether the decompressed records contain one of ``texts``, of equal lengths."""
    before = b""
    for piece in _pieces(batch):
        joined = before + piece if before else piece
        if any(text in joined for text in texts):
            return True
        before = joined[-(len(texts[0]) - 1) :]
    return False
