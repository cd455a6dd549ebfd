"""Builder of logs in memory, batch by batch, as a node writes them: segments, indexes, snapshots.

Batches are encoded by raftlog's own writer, which other tests compare with Kafka's. These logs test
how files are read, not how batches are decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c import crc32c

from raftlog.log.format.directory import checkpoint_name, offset_name
from raftlog.records.batch import NewRecord
from raftlog.records.compression import Compression
from raftlog.records.control import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    encode_control,
)
from raftlog.types import ReplicaKey, SnapshotId
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.memory_storage import MemoryStorage

NO_OP = b"\x01\x14\x00\x00"
END = b"\x01\x18\x00\x00"
ABORT = b"\x01\x19\x00\x00"
INDEX_INTERVAL_BYTES = 4096


def begin(name: str = "") -> bytes:
    """Return the value of a BeginTransaction record: its name is a tagged compact string."""
    text = name.encode()
    field = bytes([len(text) + 1]) + text
    tags = b"\x01\x00" + bytes([len(field)]) + field if name else b"\x00"
    return b"\x01\x17\x00" + tags


def data_batch(
    values: Iterable[bytes | None],
    *,
    base_offset: int,
    epoch: int = 1,
    timestamp_ms: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    offset_deltas: tuple[int, ...] | None = None,
) -> bytes:
    batch = NewRecordBatch(
        records=tuple(NewRecord(None, value) for value in values),
        offset_deltas=offset_deltas,
        base_timestamp_ms=timestamp_ms,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        is_transactional=producer_id >= 0,
    )
    return encode_batch(batch, base_offset=base_offset, leader_epoch=epoch)


def control_batch(
    records: Iterable[ControlRecord],
    *,
    base_offset: int,
    epoch: int = 1,
    timestamp_ms: int = 0,
    producer_id: int = -1,
) -> bytes:
    batch = NewRecordBatch(
        records=tuple(NewRecord(*encode_control(record)) for record in records),
        base_timestamp_ms=timestamp_ms,
        is_control=True,
        is_transactional=producer_id >= 0,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
    )
    return encode_batch(batch, base_offset=base_offset, leader_epoch=epoch)


def voters_record(voters: Iterable[ReplicaKey]) -> KRaftVoters:
    return KRaftVoters(
        voters=tuple(
            Voter(
                voter_id=voter.node_id,
                voter_directory_id=voter.directory_id,
                endpoints=(),
                min_supported_version=0,
                max_supported_version=1,
            )
            for voter in voters
        )
    )


def leader_change(leader_id: int, voter_ids: Iterable[int]) -> LeaderChange:
    voters = tuple(LeaderChangeVoter(voter_id) for voter_id in voter_ids)
    return LeaderChange(leader_id=leader_id, voters=voters)


class LogBuilder:
    """Builder of one log in a memory storage. Offsets, times and epochs advance by default."""

    def __init__(
        self,
        storage: MemoryStorage | None = None,
        directory: str = "/node/__cluster_metadata-0",
        *,
        start_offset: int = 0,
        with_indexes: bool = True,
        preallocated_bytes: int = 0,
    ) -> None:
        self.storage = storage if storage is not None else MemoryStorage()
        self.directory = directory
        self.next_offset = start_offset
        self.epoch = 1
        self.time_ms = 1_000
        self.base_offset = start_offset
        self.positions: list[tuple[int, int, int]] = []
        self._with_indexes = with_indexes
        self._preallocated_bytes = preallocated_bytes
        self.storage.write(self.path(), b"")
        self._start_indexes()

    def path(self, suffix: str = ".log", base_offset: int | None = None) -> str:
        base = self.base_offset if base_offset is None else base_offset
        return f"{self.directory}/{offset_name(base, suffix)}"

    def file(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def append(self, data: bytes, *, last_offset: int) -> None:
        """Append one encoded batch to the active segment and to its indexes."""
        position = len(self.storage.files[self.path()])
        self._index(position, last_offset, len(data))
        self.positions.append((self.next_offset, self.base_offset, position))
        self.storage.append(self.path(), data)
        self.next_offset = last_offset + 1

    def truncate_to(self, offset: int) -> None:
        """Truncate the active segment before the batch that begins at ``offset``."""
        position = next(at for base, _, at in self.positions if base == offset)
        self.storage.truncate(self.path(), position)
        self.positions = [one for one in self.positions if one[0] < offset]
        self.next_offset = offset

    def data(
        self,
        *values: bytes | None,
        compression: Compression = Compression.NONE,
        producer_id: int = -1,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a data batch; return its base offset."""
        base_offset = self.next_offset
        batch = data_batch(
            values,
            base_offset=base_offset,
            epoch=self.epoch,
            timestamp_ms=self._now(timestamp_ms),
            compression=compression,
            producer_id=producer_id,
        )
        self.append(batch, last_offset=base_offset + len(values) - 1)
        return base_offset

    def no_ops(self, count: int, *, per_batch: int = 1) -> None:
        for _ in range(count):
            self.data(*[NO_OP] * per_batch)

    def control(self, *records: ControlRecord, producer_id: int = -1) -> int:
        base_offset = self.next_offset
        batch = control_batch(
            records,
            base_offset=base_offset,
            epoch=self.epoch,
            timestamp_ms=self._now(None),
            producer_id=producer_id,
        )
        self.append(batch, last_offset=base_offset + len(records) - 1)
        return base_offset

    def end_producer(self, producer_id: int, *, commit: bool) -> int:
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=0)
        return self.control(marker, producer_id=producer_id)

    def lead(self, epoch: int, leader_id: int = 1, voter_ids: Iterable[int] = (1,)) -> int:
        """Start an epoch with a LeaderChange record."""
        self.epoch = epoch
        return self.control(leader_change(leader_id, voter_ids))

    def roll(self) -> None:
        """Roll the active segment."""
        self._seal_indexes()
        self.base_offset = self.next_offset
        self.storage.write(self.path(), b"")
        self._start_indexes()

    def checkpoint(
        self, *, end_offset: int | None = None, epoch: int | None = None, voters: object = None
    ) -> SnapshotId:
        """Write a complete snapshot of the log up to its end."""
        snapshot_id = SnapshotId(
            epoch=self.epoch if epoch is None else epoch,
            end_offset=self.next_offset if end_offset is None else end_offset,
        )
        self.storage.write(self.file(checkpoint_name(snapshot_id)), checkpoint_bytes(voters=voters))
        return snapshot_id

    def delete_segment(self, base_offset: int, *, keep_renamed: bool = False) -> None:
        for suffix in (".log", ".index", ".timeindex"):
            path = self.path(suffix, base_offset)
            if path in self.storage.files:
                if keep_renamed:
                    self.storage.rename(path, path + ".deleted")
                else:
                    self.storage.delete(path)

    def producer_snapshot(self, open_transactions: dict[int, int]) -> None:
        """Return the content of ``<offset>.snapshot`` at the log's end."""
        body = struct.pack(">i", len(open_transactions)) + b"".join(
            struct.pack(">qhiqiqiq", producer_id, 0, 0, first, 0, 0, 0, first)
            for producer_id, first in open_transactions.items()
        )
        data = struct.pack(">hI", 1, crc32c(body)) + body
        self.storage.write(self.file(offset_name(self.next_offset, ".snapshot")), data)

    def _now(self, timestamp_ms: int | None) -> int:
        self.time_ms += 10
        if timestamp_ms is not None:
            self.time_ms = timestamp_ms
        return self.time_ms

    def _start_indexes(self) -> None:
        self._bytes_since_entry = 0
        self._entries = b""
        self._times = b""
        self._max_time: tuple[int, int] | None = None
        self._last_time_ms = -1
        if self._with_indexes:
            self._write_indexes()

    def _index(self, position: int, last_offset: int, byte_count: int) -> None:
        if not self._with_indexes:
            return
        if self._bytes_since_entry > INDEX_INTERVAL_BYTES:
            self._entries += struct.pack(">ii", last_offset - self.base_offset, position)
            self._add_time()
            self._bytes_since_entry = 0
            self._write_indexes()
        self._bytes_since_entry += byte_count
        if self._max_time is None or self.time_ms > self._max_time[0]:
            self._max_time = self.time_ms, last_offset

    def _add_time(self) -> None:
        if self._max_time is not None and self._max_time[0] > self._last_time_ms:
            time_ms, offset = self._max_time
            self._times += struct.pack(">qi", time_ms, offset - self.base_offset)
            self._last_time_ms = time_ms

    def _seal_indexes(self) -> None:
        if self._with_indexes:
            self._add_time()
            self.storage.write(self.path(".index"), self._entries)
            self.storage.write(self.path(".timeindex"), self._times)

    def _write_indexes(self) -> None:
        padding = self._preallocated_bytes
        for suffix, entries in ((".index", self._entries), (".timeindex", self._times)):
            self.storage.write(self.path(suffix), entries.ljust(padding, b"\0"))


def checkpoint_bytes(*, voters: object = None, footer: bool = True, records: int = 3) -> bytes:
    """Return a snapshot with ``records`` NoOp records."""
    head: list[ControlRecord] = [SnapshotHeader(last_contained_log_timestamp_ms=7)]
    if voters is not None:
        assert isinstance(voters, tuple)
        head += [KRaftVersion(kraft_version=1), voters_record(voters)]
    data = control_batch(head, base_offset=0)
    next_offset = len(head)
    if records:
        data += data_batch([NO_OP] * records, base_offset=next_offset)
        next_offset += records
    if footer:
        data += control_batch([SnapshotFooter()], base_offset=next_offset)
    return data
