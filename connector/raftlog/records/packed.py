"""Records that a producer has already encoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from .compression import Compression, compress
from .record import NewRecord, StoredRecord, read_record, record_bytes, wrapped_int64


class PackedRecords(Sequence[NewRecord]):
    """Sequence of encoded records, decoded on access.

    ``data`` can be the payload of a batch unchanged if it is at the start of the batch and the base
    timestamps are equal. The caller has validated it: ``record_count`` complete records, offset
    deltas from 0 without gaps, no negative timestamp.

    ``base_timestamp_ms`` None means that no record has a timestamp, so all get the batch's.
    ``max_timestamp_ms`` is the largest timestamp. ``is_named`` means that the first record has the
    header with the commit name. ``compressed`` is ``data`` with a codec, if already computed.
    """

    __slots__ = (
        "_count",
        "base_timestamp_ms",
        "compressed",
        "data",
        "header_count",
        "is_named",
        "max_timestamp_ms",
    )

    def __init__(
        self,
        data: bytes,
        record_count: int,
        *,
        base_timestamp_ms: int | None,
        max_timestamp_ms: int,
        header_count: int = 0,
        is_named: bool = False,
        compressed: tuple[Compression, bytes] | None = None,
    ) -> None:
        self.data: Final = data
        self.base_timestamp_ms: Final = base_timestamp_ms
        self.max_timestamp_ms: Final = max_timestamp_ms
        self.header_count: Final = header_count
        self.is_named: Final = is_named
        self.compressed: Final = compressed
        self._count: Final = record_count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[NewRecord]:
        position = 0
        for _ in range(self._count):
            stored, position = read_record(self.data, position)
            yield self._record(stored)

    @overload
    def __getitem__(self, index: int) -> NewRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NewRecord]: ...
    def __getitem__(self, index: int | slice) -> NewRecord | Sequence[NewRecord]:
        if index == 0 and self._count:
            return self._record(read_record(self.data, 0)[0])
        return tuple(self)[index]

    def byte_count(self) -> int:
        """Return the memory held, in bytes."""
        return len(self.data) + (0 if self.compressed is None else len(self.compressed[1]))

    def with_first(self, first: NewRecord, *, is_named: bool = False) -> PackedRecords:
        """Return these records with key, value and headers of the first one replaced."""
        stored, after = read_record(self.data, 0)
        encoded = record_bytes(
            StoredRecord(stored.timestamp_delta, 0, first.key, first.value, first.headers)
        )
        return PackedRecords(
            encoded + self.data[after:],
            self._count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            header_count=self.header_count + len(first.headers) - len(stored.headers),
            is_named=is_named,
        )

    def with_compressed(self, codec: Compression) -> PackedRecords:
        """Return these records with compressed data, so that a builder need not compress it."""
        return PackedRecords(
            self.data,
            self._count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            header_count=self.header_count,
            is_named=self.is_named,
            compressed=(codec, compress(self.data, codec)),
        )

    def _record(self, stored: StoredRecord) -> NewRecord:
        time_ms = None
        if self.base_timestamp_ms is not None:
            time_ms = wrapped_int64(self.base_timestamp_ms + stored.timestamp_delta)
        return NewRecord(stored.key, stored.value, time_ms, stored.headers)
