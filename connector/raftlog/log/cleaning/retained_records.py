"""Which records of a log compaction retains, and batches encoded again with these records.

Pass one maps each key to its last offset (``OffsetMap``). Pass two (``BatchFilter``) drops the
records whose key has a later one, and tombstones after their delete horizon:

    offset      10        11        12        13            14       15
    record      a=1       b=1       a=2       b=null        c=1      a=3
    map of 10 to 15       a: 15  b: 13  c: 14
    retained                                  b=null        c=1      a=3
    after the delete horizon of 13                          c=1      a=3

A tombstone gets its delete horizon from the compaction that drops its older values, so a batch that
is not wholly mapped gets none. Kafka gives it one: then the next compaction may drop the tombstone
together with these values, and a reader of them does not read it, however fast it is.

The batches of a raftlog log are contiguous, and readers detect damaged base offsets by that. So
dropped batches are replaced by one empty batch with their offsets, of at most 61 bytes for any
number of adjacent ones. A batch with a retained record keeps its offsets, header and codec.

Retained in any case are control batches (without superseded offsets of consumer groups), the header
of each producer's last batch, and the first record of each application id's last commit, which
names the commit. If a later record has the key of that record, its value is dropped: otherwise it
would be the last record of its key again, once a later tombstone is dropped.

Kafka: ``Cleaner.buildOffsetMap``, ``cleanInto``, ``shouldRetainRecord``, ``MemoryRecords.filterTo``
(KIP-534 for the delete horizon).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from raftlog.limits import READ_BATCH_BYTES_MAX
from raftlog.log.segment import control_records
from raftlog.records.batch import RecordBatch
from raftlog.records.builder import empty_batch, finish_batch
from raftlog.records.compression import Compression, compress
from raftlog.records.control import OffsetCommit
from raftlog.records.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    INT32_MAX,
    INT64_MAX,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from raftlog.records.record import StoredRecord, record_bytes

ENTRY_BYTES: Final = 200
"""Upper bound of the memory of an entry of the map, without its key: the dictionary's slot at its
lowest fill, the object of the key and that of the offset."""


class OffsetMap:
    """Last offset of each key in a range of the log, bounded in memory (Kafka: ``OffsetMap``).

    Keys are compared as a whole; Kafka compares their hashes. ``end_offset`` is the exclusive end
    of the range that was added.
    """

    def __init__(self, start_offset: int, byte_count_max: int) -> None:
        self.start_offset: Final = start_offset
        self.end_offset = start_offset
        self._offsets: dict[bytes, int] = {}
        self._left = byte_count_max

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, batch: RecordBatch) -> bool:
        """Add the records of a batch; return False if the map is full before its end.

        Records below the start are ignored. At least one record is added to an empty map.
        """
        if not batch.is_control:
            for offset, stored in stored_records(batch):
                if offset < self.end_offset or stored.key is None:
                    continue
                if stored.key not in self._offsets:
                    byte_count = ENTRY_BYTES + len(stored.key)
                    if self._offsets and byte_count > self._left:
                        return False
                    self._left -= byte_count
                self._offsets[stored.key] = offset
                self.end_offset = offset + 1
        self.end_offset = max(self.end_offset, batch.next_offset)
        return True

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Return whether the range has a later record of the key."""
        return offset < self._offsets.get(key, -1)


def stored_records(batch: RecordBatch) -> Iterator[tuple[int, StoredRecord]]:
    """Yield the records of a batch with their offsets. Raises ``CorruptBatchError``."""
    for stored in batch.stored_records():
        yield batch.base_offset + stored.offset_delta, stored


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """What pass two retains besides the last record of each key.

    Tombstones are retained for ``delete_retention_ms`` after their older values. The sets are the
    last offsets of each producer's last batch, and of each application id's last commit, and the
    offsets of each consumer group's last commit.
    """

    now_ms: int
    delete_retention_ms: int
    last_producer_batches: frozenset[int] = frozenset()
    last_commits: frozenset[int] = frozenset()
    last_group_offsets: frozenset[int] = frozenset()


@dataclass(slots=True)
class CleanedCounts:
    """Records and batches before and after a cleaning; emptied batches are not retained ones."""

    records_read: int = 0
    records_retained: int = 0
    batches_read: int = 0
    batches_retained: int = 0


@dataclass(slots=True, kw_only=True)
class _Dropped:
    """Adjacent batches of one epoch without a retained record."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp_ms: int

    def takes(self, batch: RecordBatch) -> bool:
        return (
            batch.leader_epoch == self.leader_epoch
            and batch.last_offset - self.base_offset <= INT32_MAX
        )

    def encoded(self) -> bytes:
        return empty_batch(
            base_offset=self.base_offset,
            last_offset=self.last_offset,
            leader_epoch=self.leader_epoch,
            max_timestamp_ms=self.max_timestamp_ms,
        )


@dataclass(slots=True)
class BatchFilter:
    """Pass two over the batches of one segment after another."""

    offsets: OffsetMap
    rules: RetentionRules
    counts: CleanedCounts = field(default_factory=CleanedCounts)

    def clean(self, batches: Iterable[RecordBatch]) -> Iterator[bytes]:
        """Yield the bytes of the batches that replace these contiguous ones, contiguous too.

        Raises ``CorruptBatchError``.
        """
        dropped: _Dropped | None = None
        for batch in batches:
            self.counts.batches_read += 1
            self.counts.records_read += batch.record_count
            retained = self._retained(batch)
            if retained is None and dropped is not None and dropped.takes(batch):
                dropped.last_offset = batch.last_offset
                dropped.max_timestamp_ms = max(dropped.max_timestamp_ms, batch.max_timestamp_ms)
                continue
            if dropped is not None:
                yield dropped.encoded()
                dropped = None
            if retained is not None:
                self.counts.batches_retained += 1
                yield retained
            else:
                dropped = _Dropped(
                    base_offset=batch.base_offset,
                    last_offset=batch.last_offset,
                    leader_epoch=batch.leader_epoch,
                    max_timestamp_ms=batch.max_timestamp_ms,
                )
        if dropped is not None:
            yield dropped.encoded()

    def _retained(self, batch: RecordBatch) -> bytes | None:
        """Return the batch with its retained records; None if it is dropped."""
        if batch.is_control:
            if self._is_superseded_control(batch):
                return None
            self.counts.records_retained += batch.record_count
            return _encoded(batch, batch.payload, batch.compression, batch.record_count)
        records, is_changed = [], False
        for ordinal, (offset, stored) in enumerate(stored_records(batch)):
            if self._is_retained(batch, offset, stored):
                records.append(stored)
                continue
            is_changed = True
            if ordinal == 0 and batch.last_offset in self.rules.last_commits:
                value = stored.value if stored.key is None else None
                records.append(replace(stored, value=value))
        self.counts.records_retained += len(records)
        if not records:
            if batch.last_offset in self.rules.last_producer_batches:
                return _encoded(batch, b"", Compression.NONE, 0)
            return None
        has_tombstone = any(stored.value is None for stored in records)
        is_mapped = batch.last_offset < self.offsets.end_offset
        if has_tombstone and is_mapped and batch.delete_horizon_ms is None:
            horizon_ms = min(self.rules.now_ms + self.rules.delete_retention_ms, INT64_MAX)
            return _with_horizon(batch, records, horizon_ms)
        if not is_changed:
            return _encoded(batch, batch.payload, batch.compression, batch.record_count)
        return _with_records(batch, records)

    def _is_superseded_control(self, batch: RecordBatch) -> bool:
        """Return whether all records are offsets of groups that have committed others since."""
        if batch.last_offset >= self.offsets.end_offset:
            return False
        records = control_records(batch)
        return bool(records) and all(
            isinstance(record, OffsetCommit)
            and not record.is_deletion
            and offset not in self.rules.last_group_offsets
            for offset, record in enumerate(records, batch.base_offset)
        )

    def _is_retained(self, batch: RecordBatch, offset: int, stored: StoredRecord) -> bool:
        if offset >= self.offsets.end_offset:
            return True
        if stored.key is None or self.offsets.is_superseded(stored.key, offset):
            return False
        horizon_ms = batch.delete_horizon_ms
        return stored.value is not None or horizon_ms is None or self.rules.now_ms < horizon_ms


def _with_horizon(batch: RecordBatch, records: list[StoredRecord], horizon_ms: int) -> bytes:
    """Return the batch with a delete horizon, which is the base of its records' timestamps."""
    shift = batch.base_timestamp_ms - horizon_ms
    shifted = [replace(one, timestamp_delta=one.timestamp_delta + shift) for one in records]
    return _with_records(batch, shifted, horizon_ms)


def _with_records(
    batch: RecordBatch, records: list[StoredRecord], horizon_ms: int | None = None
) -> bytes:
    payload = b"".join(map(record_bytes, records))
    codec = batch.compression
    packed = payload if codec is Compression.NONE else compress(payload, codec)
    if len(packed) >= len(payload):
        codec, packed = Compression.NONE, payload
    return _encoded(batch, packed, codec, len(records), horizon_ms)


def _encoded(
    batch: RecordBatch,
    payload: bytes,
    compression: Compression,
    record_count: int,
    horizon_ms: int | None = None,
) -> bytes:
    """Return a batch with the header of ``batch`` and these records.

    Its greatest timestamp stays that of all of its records, as offsets by time are looked up by it.
    """
    has_horizon = horizon_ms is not None or batch.delete_horizon_ms is not None
    flags = TIMESTAMP_TYPE_BIT * bool(batch.timestamp_type)
    flags |= TRANSACTIONAL_BIT * batch.is_transactional | CONTROL_BIT * batch.is_control
    flags |= DELETE_HORIZON_BIT * has_horizon
    return finish_batch(
        payload,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        byte_count_max=READ_BATCH_BYTES_MAX,
        compression=compression,
        flags=flags,
        last_offset_delta=batch.last_offset - batch.base_offset,
        base_timestamp_ms=batch.base_timestamp_ms if horizon_ms is None else horizon_ms,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer=(batch.producer_id, batch.producer_epoch, batch.base_sequence),
        record_count=record_count,
    )
