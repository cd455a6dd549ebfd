"""Conditions on keys: an append that is refused if its keys have changed.

A writer reads a log up to an end offset. With its append it then names keys and the offsets of
their last records, and the append succeeds only if no record of these keys was appended since that
end. To check this, the leader keeps the last offset of each key in a range that ends at the end of
its log. The range begins where the first such condition needs it, and is read from the log when a
condition is checked, so that other appends cost nothing.

    offset     10     11     12     13     14 = end
    record     a=1    b=1    c=1    a=2
    range             [11                  14)       b: 11  c: 12  a: 13

    b at 11, read up to 12    the last record of b is at 11: appended
    a at 10, read up to 12    the last record of a is at 13: refused, by ``KeyChangedError``
    d without a record,
      read up to 12           no record of d since 12: appended
      read up to 10           unknown: refused, as if the log was required to end at 10

If the range is too short to decide, the append is refused by ``UnexpectedEndOffsetError``, with the
end up to which the writer has to read before it tries again. The range may therefore begin
anywhere: it is not part of any snapshot, a new leader begins another one, and its memory is
bounded.

Once a condition is false it stays false: every record of a key, including a tombstone, changes the
key for good. Therefore, if the response to a refused append is lost, its retry is refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgpack

from raftlog.errors import KeyChangedError, LogError, UnexpectedEndOffsetError
from raftlog.limits import INT64_MAX, KEY_OFFSETS_BYTES_MAX, KEY_SCAN_BYTES_MAX, UNCHANGED_KEYS_MAX
from raftlog.records.batch import RecordBatch, iter_batches
from raftlog.records.compression import Compression, decompress
from raftlog.records.record import Header

UNCHANGED_HEADER: Final = "raftlog.unchanged"
"""Header of a produced batch's first record: ``[since, {key: offset or nil}]`` as MessagePack."""
_ENTRY_BYTES: Final = 264
"""Upper bound of the memory per key, without its bytes: slot, key object, tuple, offset."""


@dataclass(frozen=True, slots=True)
class UnchangedKeys:
    """Keys of which no record may have been appended since ``since``, the end that was read.

    ``offsets`` has the offset of each key's last record, or None for a key without a record or
    deleted. If a key has an offset, it must not have a later record below ``since`` either.
    """

    offsets: Mapping[bytes, int | None]
    since: int = 0

    def read_from(self) -> int:
        """Return the lowest end offset that the writer has read for one of the keys."""
        after = [self.since if one is None else one + 1 for one in self.offsets.values()]
        return max(min(after), self.since)

    def byte_count(self) -> int:
        """Return the approximate size of the header."""
        return sum(len(key) + 14 for key in self.offsets)

    def header(self) -> Header:
        """Return the header of the batch's first record."""
        packed = msgpack.packb([self.since, dict(self.offsets)])
        assert isinstance(packed, bytes), "packb returns bytes unless autoreset is off"
        return Header(UNCHANGED_HEADER, packed)


def parse_unchanged_header(value: bytes | None) -> UnchangedKeys | None:
    """Parse the header's value; None if it is invalid."""
    try:
        fields = msgpack.unpackb(
            value or b"",
            max_array_len=2,
            max_map_len=UNCHANGED_KEYS_MAX,
            max_str_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    match fields:
        case [since, dict(offsets)] if offsets and _is_offset(since):
            is_valid = all(
                type(key) is bytes and (offset is None or _is_offset(offset))
                for key, offset in offsets.items()
            )
            return UnchangedKeys(offsets, since) if is_valid else None
        case _:
            return None


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= INT64_MAX


class KeyOffsets:
    """Last offset of each key in a range of one log, which ends at ``end_offset``.

    ``start_offset`` increases when the least recently written key is evicted, when the log start
    advances, and to the end of the log if there is too much to read. ``read`` returns batches from
    a batch boundary on, as ``ReplicatedLog.read_bytes`` does. Not shared between threads.
    """

    def __init__(
        self,
        path: str,
        read: Callable[[int, int], bytes],
        base_offset_at: Callable[[int], int],
        *,
        byte_count_max: int = KEY_OFFSETS_BYTES_MAX,
        scan_bytes_max: int = KEY_SCAN_BYTES_MAX,
    ) -> None:
        self._path = path
        self._read = read
        self._base_offset_at = base_offset_at
        self._byte_count_max = byte_count_max
        self._scan_bytes_max = scan_bytes_max
        self._offsets: dict[bytes, tuple[int, bool]] = {}
        """Offset of each key's last record, and whether that is a tombstone; in offset order."""
        self._byte_count = 0
        self.start_offset = 0
        self.end_offset = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def follow(self, start_offset: int, end_offset: int) -> None:
        """Read the log up to its end.

        Keys whose last record is below ``start_offset`` are evicted, because the log may have
        deleted it. If the range ends before ``start_offset``, it begins again there. It begins
        again at the end of the log if the bytes to read, compressed or not, exceed the bound.
        """
        left = self._scan_bytes_max
        while self._offsets and next(iter(self._offsets.values()))[0] < start_offset:
            self._evict()
        try:
            if self.end_offset < start_offset:
                is_end = start_offset == end_offset
                base_offset = end_offset if is_end else self._base_offset_at(start_offset)
                self._restart(start_offset, base_offset)
            while self.end_offset < end_offset:
                data, before = self._read(self.end_offset, left), self.end_offset
                if len(data) <= left:
                    for batch in iter_batches(data):
                        left = max(left - self._add(batch, left), 0)
                if self.end_offset == before:
                    self._restart(end_offset, end_offset)
        except LogError:  # damaged, or too large when decompressed: treat it as not read
            self._restart(end_offset, end_offset)

    def _restart(self, start_offset: int, base_offset: int) -> None:
        """Begin an empty range; it is then read from the batch that begins at ``base_offset``."""
        self._offsets.clear()
        self._byte_count = 0
        self.start_offset, self.end_offset = start_offset, base_offset

    def _add(self, batch: RecordBatch, decompressed_bytes_max: int) -> int:
        """Add the next batch; return its size, or its decompressed size if that is larger.

        Raises ``CorruptBatchError`` and ``DecompressionLimitError``.
        """
        offsets, byte_count = self._offsets, batch.byte_count
        if not batch.is_control:
            payload = decompress(
                batch.payload, batch.compression, byte_count_max=decompressed_bytes_max
            )
            byte_count = max(byte_count, len(payload))
            plain = replace(batch, payload=payload, compression=Compression.NONE)
            for stored in plain.stored_records():
                key = stored.key
                if key is None:
                    continue
                if offsets.pop(key, None) is None:
                    self._byte_count += _ENTRY_BYTES + len(key)
                offsets[key] = batch.base_offset + stored.offset_delta, stored.value is None
        self.end_offset = batch.next_offset
        while self._byte_count > self._byte_count_max:
            self._evict()
        return byte_count

    def _evict(self) -> None:
        """Evict the least recently written key."""
        oldest = next(iter(self._offsets))
        self._byte_count -= _ENTRY_BYTES + len(oldest)
        self.start_offset = max(self._offsets.pop(oldest)[0] + 1, self.start_offset)

    def check(self, unchanged: UnchangedKeys, record_count: int) -> None:
        """Check the keys of an append at the end of the range.

        Raises ``KeyChangedError``, and ``UnexpectedEndOffsetError`` if the range lacks the records
        that decide.
        """
        for key, offset in unchanged.offsets.items():
            since = unchanged.since if offset is None else max(unchanged.since, offset + 1)
            last, is_deleted = self._offsets.get(key, (None, False))
            if since > self.end_offset or (last is None and since < self.start_offset):
                raise UnexpectedEndOffsetError(
                    required_base_offset=since,
                    record_count=record_count,
                    log_end_offset=self.end_offset,
                )
            is_read = last is not None and last < since
            if last is None:
                is_same = offset is None or offset < self.start_offset
            elif offset is None:
                is_same = is_read and is_deleted
            else:
                is_same = last == offset
            if not is_same:
                shown = None if is_deleted else last
                raise KeyChangedError(path=self._path, expected_offset=offset, offset=shown)
