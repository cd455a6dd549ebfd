"""Writer of a log that records, at each disk operation, what must survive a crash.

The witness reads no file. It records the requests to the log and their results, each with the
number of disk operations done by then. A version of the log is the sequence of batches that a
reader may get; a truncation starts a new version. At any moment one version is valid, during a
truncation two are.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.transactions import CommitName, batch_metadata
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.types import SnapshotId
from tests.simulated_disk.crash_points import Recording
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import append_batches, begin_next_epoch, created_log, created_replica
from tests.support.written_logs import encoded

DIRECTORY = "/data/witnessed-0"
NOW_MS = 1_000_000


@dataclass(slots=True)
class Version:
    """Sequence of batches, each with the number of operations at which its write started."""

    began: int
    batches: list[RecordBatch] = field(default_factory=list)
    written_at: list[int] = field(default_factory=list)
    ended: int | None = None

    def up_to(self, offset: int) -> list[RecordBatch]:
        return [batch for batch in self.batches if batch.next_offset <= offset]


@dataclass(frozen=True, slots=True)
class Promise:
    """From ``operations`` on, everything below ``end_offset`` must survive."""

    operations: int
    end_offset: int


class Witness:
    """Writer of one log that records what was acknowledged, and when."""

    def __init__(self, config: LogConfig, *, is_replica: bool = False) -> None:
        self.config = config
        self.is_replica = is_replica
        self.disk = SimulatedDisk()
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.recording: Recording = self.disk.record()
        self.versions = [Version(0)]
        self.promises: list[Promise] = []
        self.starts: list[Promise] = []
        self.snapshots: dict[SnapshotId, int] = {}
        self._memories: dict[tuple[int, int], ProducerStateManager] = {}
        self.log = self.create(self.disk)
        self.created = self.now
        self._record_log(0)
        self.promise()

    def create(self, disk: SimulatedDisk) -> SingleVoterLog | QuorumLog:
        """Create a log of this kind."""
        if self.is_replica:
            return created_replica(disk, config=self.config, directory=DIRECTORY)
        return created_log(disk, config=self.config, directory=DIRECTORY)

    def open(self, disk: SimulatedDisk) -> SingleVoterLog | QuorumLog:
        """Open the log as a process of this kind does."""
        kind: type[SingleVoterLog | QuorumLog] = QuorumLog if self.is_replica else SingleVoterLog
        return kind.open(disk, DIRECTORY, config=self.config, now_ms=NOW_MS)

    @property
    def now(self) -> int:
        """Return the number of disk operations since the recording started."""
        return len(self.recording.operations)

    # --- operations on the log --------------------------------------------------------------------

    def append(
        self,
        *values: bytes,
        commit: CommitName | None = None,
        producer: tuple[int, int, int] | None = None,
        flush: bool = True,
    ) -> None:
        before = self.now
        batch = encoded(
            *values,
            base_offset=self.log.end_offset,
            epoch=self.log.epoch,
            timestamp_ms=NOW_MS + self.log.end_offset,
            commit=commit,
            producer=producer,
        )
        self._note(before, read_batch(batch))
        append_batches(self.log, batch)
        if flush:
            self.flush()

    def flush(self) -> None:
        self.log.flush()
        self.promise()

    def promise(self) -> None:
        """Record that everything up to the log's synced end is durable."""
        self.promises.append(Promise(self.now, self.log.synced_end_offset))

    def claim(self) -> None:
        before = self.now
        begin_next_epoch(self.log)
        self._record_log(before)
        self.promise()

    def truncate(self, offset: int) -> None:
        """Truncate the log, which revokes the promises above, from the first operation on."""
        before = self.now
        boundary = self.versions[-1].up_to(offset)[-1].next_offset
        self.promises.append(Promise(before, min(boundary, self.promises[-1].end_offset)))
        self.versions[-1].ended = before
        assert isinstance(self.log, QuorumLog)
        self.log.truncate_to(offset)
        old = self.versions[-1]
        old.ended = self.now
        kept = old.up_to(self.log.end_offset)
        self.versions.append(Version(before, kept, old.written_at[: len(kept)]))
        self.promise()

    def snapshot(self, *values: bytes) -> SnapshotId:
        """Write a snapshot of the synced end."""
        if isinstance(self.log, QuorumLog):
            self.log.advance_high_watermark(self.log.synced_end_offset)
        snapshot_id = self.log.snapshot_id_at(self.log.high_watermark)
        writer = self.log.begin_snapshot(snapshot_id, now_ms=NOW_MS)
        assert writer is not None
        if values:
            writer.append(values)
        writer.freeze()
        self.snapshots[snapshot_id] = self.now
        return snapshot_id

    def delete_before(self, snapshot_id: SnapshotId) -> None:
        self.starts.append(Promise(self.now, snapshot_id.end_offset))
        self.log.delete_before(snapshot_id)

    def delete_records(self, offset: int) -> None:
        """Delete the records below a batch, as DeleteRecords does."""
        assert isinstance(self.log, QuorumLog)
        self.log.advance_high_watermark(self.log.synced_end_offset)
        self.starts.append(Promise(self.now, offset))
        assert self.log.delete_records(offset, now_ms=NOW_MS) == offset
        assert self.log.log_start_offset == offset
        self.snapshots[self.log.snapshot_id_at(offset)] = self.now

    def reopen(self, *, in_order: bool = True) -> None:
        """End the process, by close or by kill, and open the log in a new one."""
        if in_order:
            self.log.close()
        self.disk.kill()
        before = self.now
        self.log = self.open(self.disk)
        assert not self.log.is_read_only, self.log.report
        version = self.versions[-1]
        if self.log.end_offset < version.batches[-1].next_offset:  # unsynced batches are lost
            version.ended = self.now
            kept = version.up_to(self.log.end_offset)
            self.versions.append(Version(before, kept, version.written_at[: len(kept)]))
        self.promise()

    # --- allowed states after a crash -------------------------------------------------------------

    def floor(self, cut: int) -> int:
        """Return the offset below which all must survive a crash after ``cut`` operations."""
        ordinal = bisect_right(self.promises, cut, key=lambda one: one.operations)
        return self.promises[ordinal - 1].end_offset if ordinal else 0

    def start_bounds(self, cut: int) -> tuple[int, int]:
        """Return the smallest and the largest allowed log start offset."""
        asked = [one for one in self.starts if one.operations <= cut]
        greatest = max((one.end_offset for one in asked), default=0)
        least = max((one.end_offset for one in asked[:-1]), default=0)
        return least, greatest

    def rows(self, cut: int) -> list[tuple[int, list[RecordBatch]]]:
        """Return each allowed version, by number, with the batches whose write had started."""
        found = []
        for number, version in enumerate(self.versions):
            if version.began <= cut and (version.ended is None or cut < version.ended):
                count = bisect_right(version.written_at, cut)
                found.append((number, version.batches[:count]))
        return found

    def producer_state(self, number: int, end_offset: int) -> ProducerStateManager:
        """Return the producer state of a log that ends there, from all its batches."""
        key = number, end_offset
        if key not in self._memories:
            producer_state = ProducerStateManager(DIRECTORY)
            for batch in self.versions[number].up_to(end_offset):
                producer_state.apply(batch_metadata(batch, self.config.values))
            self._memories[key] = producer_state
        return self._memories[key]

    def epochs(self, number: int, end_offset: int) -> EpochCache:
        """Return the epochs of those batches."""
        batches = self.versions[number].up_to(end_offset)
        return EpochCache.of((batch.leader_epoch, batch.base_offset) for batch in batches)

    # --- implementation ---------------------------------------------------------------------------

    def _note(self, before: int, batch: object) -> None:
        assert isinstance(batch, RecordBatch)
        self.versions[-1].batches.append(batch)
        self.versions[-1].written_at.append(before)

    def _record_log(self, before: int) -> None:
        """Record the batches that the log appended by itself."""
        known = self.versions[-1].batches
        first = known[-1].next_offset if known else 0
        for batch in self.log._segments.batches(first, self.log.end_offset):
            self._note(before, batch)
