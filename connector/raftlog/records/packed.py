"""Records as a producer has encoded them already: appended as they are, unpacked for who looks.

Rules of this file:

1. It is a sequence of records like any other. Whoever knows it takes ``data`` instead: at the
   begin of a batch whose times count from the same base, those are the records' bytes.
2. Whoever makes one has checked the bytes: as many whole records, deltas from 0 without a gap, all
   times at or behind 1970.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

from .record import NewRecord, StoredRecord, read_record, record_bytes, wrapped_int64


class PackedRecords(Sequence[NewRecord]):
    """Encoded records. ``max_timestamp_ms`` is the latest of their times."""

    __slots__ = ("_count", "base_timestamp_ms", "data", "max_timestamp_ms")

    def __init__(
        self, data: bytes, record_count: int, *, base_timestamp_ms: int, max_timestamp_ms: int
    ) -> None:
        self.data: Final = data
        self.base_timestamp_ms: Final = base_timestamp_ms
        self.max_timestamp_ms: Final = max_timestamp_ms
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

    def with_first(self, first: NewRecord) -> PackedRecords:
        """The same with another first record, of the same time."""
        stored, behind = read_record(self.data, 0)
        encoded = record_bytes(
            StoredRecord(stored.timestamp_delta, 0, first.key, first.value, first.headers)
        )
        return PackedRecords(
            encoded + self.data[behind:],
            self._count,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
        )

    def _record(self, stored: StoredRecord) -> NewRecord:
        time_ms = wrapped_int64(self.base_timestamp_ms + stored.timestamp_delta)
        return NewRecord(stored.key, stored.value, time_ms, stored.headers)
