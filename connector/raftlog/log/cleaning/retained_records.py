"""Which records of a log compaction retains, and batches encoded again with these records.

Pass one maps each key to its last offset (``OffsetMap``). Pass two (``BatchFilter``) drops records
whose key has a later one, and tombstones after their delete horizon:

    offset      10        11        12        13            14       15
    record      a=1       b=1       a=2       b=null        c=1      a=3
    map of 10 to 15       a: 15  b: 13  c: 14
    retained                                  b=null        c=1      a=3
    after the delete horizon of 13                          c=1      a=3

The compaction that drops a tombstone's older values also sets its delete horizon. A batch that the
map does not wholly cover therefore gets none. Kafka sets one there: the next compaction may then
drop the tombstone together with the older values, and a reader of these values misses the
tombstone, no matter how fast it reads.

The batches of a raftlog log are contiguous, and readers rely on this to detect damaged base
offsets. Therefore adjacent dropped batches are replaced by one empty batch with their offsets,
which has at most 61 bytes. A batch with a retained record keeps its offsets, header and codec.

The following are retained in any case: control batches (except superseded offsets of consumer
groups); the header of each producer's last batch; and the first record of each application id's
last commit, which names the commit. If a later record has the key of that first record, its value
is dropped. Otherwise it would become the last record of its key again when a later tombstone is
dropped.

Records of an aborted transaction are dropped and supersede nothing. The nodes of a quorum and the
embedded log reject producers' transactions, so none is expected.

Kafka: ``Cleaner.buildOffsetMap``, ``cleanInto``, ``shouldRetainRecord``, ``MemoryRecords.filterTo``
(KIP-534 for the delete horizon), ``CleanedTransactionMetadata``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Final

from raftlog import compiled
from raftlog.errors import CorruptBatchError
from raftlog.limits import (
    HEADERS_PER_BATCH_MAX,
    HEADERS_PER_RECORD_MAX,
    INT32_MAX,
    INT64_MAX,
    READ_BATCH_BYTES_MAX,
)
from raftlog.log.segment import AbortedTransaction, BatchCursor, control_records
from raftlog.records.batch import RecordBatch
from raftlog.records.builder import empty_batch, finish_batch
from raftlog.records.compression import Compression, compress, decompress
from raftlog.records.control import OffsetCommit
from raftlog.records.fields import Buffer
from raftlog.records.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from raftlog.records.record import StoredRecord, record_bytes

ENTRY_BYTES: Final = 200
"""Upper bound of the memory of a map entry, without its key: the dictionary's slot at its lowest
fill, and the objects of the key and the offset."""


class _KeyOffsets:
    """Map from keys to offsets, with the interface of ``compiled.core.OffsetMap``."""

    def __init__(self, start_offset: int, entry_bytes: int, byte_count_max: int, /) -> None:
        self.end_offset = start_offset
        self._entry_bytes = entry_bytes
        self._left = byte_count_max
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def get(self, key: bytes, /) -> int | None:
        return self._offsets.get(key)

    def put(self, key: bytes, offset: int, /) -> bool:
        if key not in self._offsets:
            byte_count = self._entry_bytes + len(key)
            if self._offsets and byte_count > self._left:
                return False
            self._left -= byte_count
        self._offsets[key] = offset
        self.end_offset = offset + 1
        return True


class OffsetMap:
    """Last offset of each key in a range of the log, bounded in memory (Kafka: ``OffsetMap``).

    Keys are compared as a whole; Kafka compares their hashes. ``native`` is the compiled core's
    map, or None without the core. The bound of both maps is computed for the one in Python, which
    needs more memory, so that both end at the same record. ``aborted``: the aborted transactions of
    the log. The core cannot handle them, so Python compacts a log that has any.
    """

    def __init__(
        self,
        start_offset: int,
        byte_count_max: int,
        aborted: Iterable[AbortedTransaction] = (),
    ) -> None:
        self.start_offset: Final = start_offset
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        """By producer, in the order of offsets: a producer has one transaction at a time."""
        for one in sorted(aborted, key=_first_offset):
            self._aborted.setdefault(one.producer_id, []).append(one)
        self.native: compiled.core.OffsetMap | None = None
        if compiled.is_native and not self._aborted:
            self.native = compiled.core.OffsetMap(start_offset, ENTRY_BYTES, byte_count_max)
        self._keys: compiled.core.OffsetMap | _KeyOffsets = (
            _KeyOffsets(start_offset, ENTRY_BYTES, byte_count_max)
            if self.native is None
            else self.native
        )

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def end_offset(self) -> int:
        """Exclusive end of the range that was added."""
        return self._keys.end_offset

    def add_all(self, cursor: BatchCursor) -> bool:
        """Add the batches of a cursor; return False if the map is full before its end.

        Raises ``CorruptBatchError``.
        """
        while True:
            if self.native is not None and not _add_plain(self.native, cursor):
                return False
            batch = cursor.next_batch()
            if batch is None:
                return True
            if not self.add(batch):
                return False

    def add(self, batch: RecordBatch) -> bool:
        """Add the records of a batch; return False if the map is full before its end.

        Records below the start are ignored. At least one record is added to an empty map.
        """
        keys = self._keys
        if not batch.is_control and not self.is_aborted(batch):
            for offset, stored in stored_records(batch):
                if offset < keys.end_offset or stored.key is None:
                    continue
                is_added = keys.put(stored.key, offset)
                if is_added is None:
                    raise MemoryError("the keys of a compaction do not fit into memory")
                if not is_added:
                    return False
        keys.end_offset = max(keys.end_offset, batch.next_offset)
        return True

    def is_aborted(self, batch: RecordBatch) -> bool:
        """Return whether a batch of records belongs to an aborted transaction."""
        if not batch.is_transactional:
            return False
        found = self._aborted.get(batch.producer_id, [])
        at = bisect_right(found, batch.base_offset, key=_first_offset)
        return at > 0 and batch.base_offset < found[at - 1].last_offset

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Return whether the range has a later record of the key."""
        last_offset = self._keys.get(key)
        return last_offset is not None and offset < last_offset


def _first_offset(one: AbortedTransaction) -> int:
    return one.first_offset


def stored_records(batch: RecordBatch) -> Iterator[tuple[int, StoredRecord]]:
    """Yield the records of a batch with their offsets. Raises ``CorruptBatchError``."""
    for stored in batch.stored_records():
        yield batch.base_offset + stored.offset_delta, stored


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """What pass two retains besides the last record of each key.

    Tombstones are retained for ``delete_retention_ms`` after their older values are dropped, and
    longer with ``keeps_tombstones``. The sets contain the last offset of each producer's last
    batch and of each application id's last commit, and the offset of each consumer group's last
    commit.
    """

    now_ms: int
    delete_retention_ms: int
    last_producer_batches: frozenset[int] = frozenset()
    last_commits: frozenset[int] = frozenset()
    last_group_offsets: frozenset[int] = frozenset()
    keeps_tombstones: bool = False

    @property
    def expired_ms(self) -> int:
        """Tombstones whose delete horizon is at or before this time are dropped."""
        return -1 if self.keeps_tombstones else self.now_ms

    @property
    def horizon_ms(self) -> int:
        """Delete horizon for tombstones that get one now."""
        return min(self.now_ms + self.delete_retention_ms, INT64_MAX)


@dataclass(slots=True)
class CleanedCounts:
    """Records and batches before and after a cleaning. Emptied batches do not count as retained."""

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
    _dropped: _Dropped | None = field(default=None, init=False)
    _retention: compiled.core.Retention | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.offsets.native is not None:
            rules = self.rules
            given_back = sorted(rules.last_producer_batches | rules.last_commits)
            retention = compiled.core.Retention(rules.expired_ms, rules.horizon_ms, given_back)
            self._retention = retention

    def clean(self, cursor: BatchCursor) -> Iterator[Buffer]:
        """Yield the bytes of the batches that replace a cursor's; ``finish`` returns the rest.

        They are contiguous if the cursors are. Raises ``CorruptBatchError``.
        """
        while True:
            if self.offsets.native is not None and self._retention is not None:
                yield self._clean_plain(self.offsets.native, self._retention, cursor)
            start = cursor.at
            batch = cursor.next_batch()
            if batch is None:
                return
            yield self._clean_batch(batch, cursor.data[start : cursor.at])

    def finish(self) -> bytes:
        """Return the bytes for the batches that were dropped last, at the end of a segment."""
        dropped, self._dropped = self._dropped, None
        return b"" if dropped is None else dropped.encoded()

    def _clean_plain(
        self,
        offsets: compiled.core.OffsetMap,
        retention: compiled.core.Retention,
        cursor: BatchCursor,
    ) -> Buffer:
        """Return what replaces the next batches, up to the first one that is not plain."""
        place = _place_of(cursor)
        if place is None:
            return b""
        dropped = None if self._dropped is None else astuple(self._dropped)
        found = offsets.filter(cursor.data, place, retention, dropped, _expand(cursor), _pack)
        if found is None:
            return b""
        data, cursor.at, cursor.next_offset, counts, last = found
        self._dropped = None
        if last is not None:
            self._dropped = _Dropped(
                base_offset=last[0],
                last_offset=last[1],
                leader_epoch=last[2],
                max_timestamp_ms=last[3],
            )
        self.counts.records_read += counts[0]
        self.counts.records_retained += counts[1]
        self.counts.batches_read += counts[2]
        self.counts.batches_retained += counts[3]
        return memoryview(data)

    def _clean_batch(self, batch: RecordBatch, data: bytes) -> bytes:
        """Return what replaces a batch, whose bytes are ``data``."""
        self.counts.batches_read += 1
        self.counts.records_read += batch.record_count
        retained = self._retained(batch, data)
        dropped = self._dropped
        if retained is not None:
            self.counts.batches_retained += 1
            return self.finish() + retained
        if dropped is not None and dropped.takes(batch):
            dropped.last_offset = batch.last_offset
            dropped.max_timestamp_ms = max(dropped.max_timestamp_ms, batch.max_timestamp_ms)
            return b""
        before = self.finish()
        self._dropped = _Dropped(
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            leader_epoch=batch.leader_epoch,
            max_timestamp_ms=batch.max_timestamp_ms,
        )
        return before

    def _retained(self, batch: RecordBatch, data: bytes) -> bytes | None:
        """Return the batch with its retained records; None if it is dropped."""
        if batch.is_control:
            if self._is_superseded_control(batch):
                return None
            self.counts.records_retained += batch.record_count
            return data
        records, is_changed = [], False
        is_aborted = self.offsets.is_aborted(batch)
        for ordinal, (offset, stored) in enumerate(stored_records(batch)):
            if not is_aborted and self._is_retained(batch, offset, stored):
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
            return _with_horizon(batch, records, self.rules.horizon_ms)
        if not is_changed:
            return data
        return _with_records(batch, records)

    def _is_superseded_control(self, batch: RecordBatch) -> bool:
        """Return whether all records are offsets of groups that have committed again since."""
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
        return stored.value is not None or horizon_ms is None or self.rules.expired_ms < horizon_ms


def _with_horizon(batch: RecordBatch, records: list[StoredRecord], horizon_ms: int) -> bytes:
    """Return the batch with a delete horizon, which becomes its base timestamp."""
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

    It keeps the greatest timestamp of all original records, because lookups by time use it.
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


# --- Plain batches, by the compiled core ----------------------------------------------------------
# The core continues from a cursor's position and stops at the first batch that is not plain. Python
# then handles that batch and raises its errors.


def _place_of(cursor: BatchCursor) -> compiled.core.Place | None:
    """Return a cursor's position for the core; None at its end or at an unknown offset."""
    if cursor.next_offset is None or cursor.at >= len(cursor.data):
        return None
    span = (None, None) if cursor.epochs is None else cursor.epochs.span_at(cursor.next_offset)
    return cursor.at, cursor.next_offset, *span, HEADERS_PER_RECORD_MAX, HEADERS_PER_BATCH_MAX


def _expand(cursor: BatchCursor) -> Callable[[int, int, int], bytes | None]:
    view = memoryview(cursor.data)

    def expand(start: int, end: int, codec: int) -> bytes | None:
        try:
            return decompress(view[start:end], Compression(codec))
        except CorruptBatchError:
            return None

    return expand


def _pack(records: bytes, codec: int) -> bytes:
    return compress(records, Compression(codec))


def _add_plain(offsets: compiled.core.OffsetMap, cursor: BatchCursor) -> bool:
    """Add the next batches, up to the first one that is not plain; return False if it is full."""
    place = _place_of(cursor)
    if place is None:
        return True
    found = offsets.add(cursor.data, place, _expand(cursor))
    if found is None:
        return True
    cursor.at, cursor.next_offset, is_full = found
    return not is_full
