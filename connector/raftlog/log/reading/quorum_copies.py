"""Reader of one log from the copies of several nodes, up to the end that a majority has.

Replicas of an ordinary partition have no voters. The end is then the one that all copies have.

Records are read from the most up-to-date copy, which has all committed records. Records that it has
deleted are read from another copy that is equal up to there. The copies are read one after another
while their nodes may be running, so epochs are read before and after, to detect elections. After
each refresh all directories must still be copies of one log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    DataLossError,
    LogGapError,
    NotALogError,
    SegmentDeletedError,
    TooFewVotersError,
    WrongClusterError,
)
from raftlog.limits import READ_CHUNK_BYTES
from raftlog.log.format.directory import META_PROPERTIES_NAME, MetaProperties, QuorumState
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import Column, Scan
from raftlog.types import ZERO_UUID, ReplicaKey, SnapshotId

from .aborted_transactions import AbortedTransactions
from .directory_log import DirectoryLog
from .files import LogTail
from .log_reader import LogExtent, LogReader, not_below_previous
from .range_size import RangeSize
from .reads import EndBasis, Isolation, LogKind, ReadEnd, ReadPlan, SourceKind, Split
from .snapshot import SnapshotReader

# --- Committed end of a log, inferred from the copies of several voters ---------------------------
# No file of a voter contains the high watermark, and a voter's log may end in uncommitted records.
# A record that a majority has is in the log of every later leader, because a candidate needs the
# vote of a voter that has it, unless the candidate's last epoch is later. The exception is figure 8
# of the Raft paper: a record of epoch 2 is on a majority, copied there by the leader of epoch 4. It
# is still lost if a voter that led epoch 3 without it wins the next election with its last epoch 3.
#
#     voter 1   | e1 | e2 | e4 |
#     voter 2   | e1 | e2 |
#     voter 3   | e1 | e2 |              the record of e2 is on a majority
#     voter 4   | e1 |
#     voter 5   | e1 | e3 |              wins an election against voters 2, 3 and 4
#
# Therefore a record of epoch e counts as committed only if both conditions are true:
#
# - A majority of the voters has it, and no given log with a later epoch lacks it.
# - Each epoch after e and below the latest known epoch (a voter's ``quorum-state`` has the epoch of
#   its last vote) is in a given log that has the record. Alternatively, the logs of all voters are
#   given, and no epoch changed while they were read.
#
# Why the second condition suffices: let f be the first epoch after e whose leader lacks the record.
# A voter of the given majority voted for that leader. It did not have the record at that time, so
# it got the record in an epoch after f, before its log was read. Hence f is between e and the
# latest known epoch. No log with the record contains f, because f's leader lacks the record.
#
# A snapshot contains only committed records (KIP-630), so all records below its end are committed.
# Two logs with the same epoch at the same offset are equal up to it (Raft's log matching), so only
# leader epochs are compared. This module does no I/O.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLogState:
    """Log of one replica, as it was read.

    ``known_epoch``: the latest epoch in the node's files, read after its log. ``is_quiet``: that
    epoch was the same before the logs were read.
    """

    path: str
    node_id: int
    directory_id: str | None
    log_start_offset: int
    log_end_offset: int
    epochs: EpochCache
    newest_snapshot: SnapshotId | None
    known_epoch: int
    is_quiet: bool

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; without records, that of the newest snapshot."""
        if self.log_end_offset > self.log_start_offset:
            return self.epochs.epoch_at(self.log_end_offset - 1) or 0
        return self.newest_snapshot.epoch if self.newest_snapshot else 0


@dataclass(frozen=True, slots=True)
class MajorityEnd:
    """Committed end (exclusive), the node ids whose logs were counted, and an explanation."""

    offset: int
    counted: tuple[int, ...]
    explanation: str


def is_voter(copy: ReplicaLogState, voters: Iterable[ReplicaKey]) -> bool:
    """Return whether a copy is a voter's, by node id, and by directory id if both are known.

    A node with a replaced disk has another directory id. It is not a voter until it is added again
    (KIP-853).
    """
    return any(
        voter.node_id == copy.node_id
        and (voter.directory_id == ZERO_UUID or copy.directory_id in (None, voter.directory_id))
        for voter in voters
    )


def most_up_to_date(copies: Sequence[ReplicaLogState]) -> ReplicaLogState:
    """Return the copy that would win an election: greatest last epoch, then longest log.

    Among the copies of a majority, it has every committed record.
    """
    return max(copies, key=lambda copy: (copy.last_epoch, copy.log_end_offset))


def agreed_end(one: ReplicaLogState, other: ReplicaLogState) -> int:
    """Return the offset up to which two logs are equal (exclusive); 0 if no epoch is in both."""
    common = {entry.epoch for entry in one.epochs.entries} & {
        entry.epoch for entry in other.epochs.entries
    }
    if not common:
        return 0
    epoch = max(common)
    ends = []
    for copy in (one, other):
        end = copy.epochs.end_offset_for(epoch, copy.log_end_offset)
        assert end is not None, "a common epoch has an end in both logs"
        ends.append(end.offset)
    return min(ends)


def majority_end(copies: Sequence[ReplicaLogState], voters: tuple[ReplicaKey, ...]) -> MajorityEnd:
    """Return the committed end according to the copies of a majority of ``voters``.

    Copies of observers are not counted, but may contradict it. Raises ``TooFewVotersError``.
    """
    counted = _one_per_voter([copy for copy in copies if is_voter(copy, voters)])
    needed = len(voters) // 2 + 1
    if len(counted) < needed:
        raise TooFewVotersError(
            given=tuple(sorted(copy.node_id for copy in counted)),
            voters=tuple(sorted(voter.node_id for voter in voters)),
        )
    newest = most_up_to_date(counted)
    held = sorted((agreed_end(newest, copy) for copy in counted), reverse=True)
    offset = _exclude_contradicted(held[needed - 1], newest, copies)
    explanation = _describe_counted(counted, voters)
    if not _is_certain(offset, newest, counted, copies, voters):
        explanation += (
            f"; they agree up to offset {offset}, but a leader of an epoch that is in none of "
            "these logs may have truncated it: only a snapshot counts"
        )
        offset = 0
    proved = max(
        (copy.newest_snapshot.end_offset for copy in counted if copy.newest_snapshot), default=0
    )
    if proved > offset:
        explanation += f"; a snapshot proves that all records below {proved} are committed"
        offset = proved
    return MajorityEnd(offset, tuple(copy.node_id for copy in counted), explanation)


def common_end(copies: Sequence[ReplicaLogState]) -> MajorityEnd:
    """Return the end up to which all copies are equal, for a partition without voters.

    Records that all in-sync replicas have are committed (Kafka's high watermark).
    """
    newest = most_up_to_date(copies)
    explanation = (
        f"the records that all {len(copies)} copies have: committed if they include all in-sync "
        "replicas"
    )
    offset = newest.log_end_offset
    for copy in copies:
        agreed = agreed_end(newest, copy) if copy.epochs.entries else copy.log_end_offset
        offset = min(offset, agreed)
        if agreed < min(newest.log_end_offset, copy.log_end_offset):
            epochs = [one.epochs.epoch_at(agreed) for one in (newest, copy)]
            explanation += (
                f"; {copy.path} diverges at offset {agreed}: epoch {epochs[1]} where "
                f"{newest.path} has epoch {epochs[0]}"
            )
    return MajorityEnd(offset, tuple(copy.node_id for copy in copies), explanation)


def _one_per_voter(copies: list[ReplicaLogState]) -> list[ReplicaLogState]:
    """Return one copy per voter; if two have the same node id, the less up-to-date one."""
    chosen: dict[int, ReplicaLogState] = {}
    for copy in copies:
        known = chosen.get(copy.node_id)
        chosen[copy.node_id] = (
            copy if known is None or most_up_to_date([known, copy]) is known else known
        )
    return [chosen[node_id] for node_id in sorted(chosen)]


def _exclude_contradicted(
    offset: int, newest: ReplicaLogState, copies: Sequence[ReplicaLogState]
) -> int:
    """Return the greatest end <= ``offset`` that no log with a later last epoch contradicts."""
    while offset > newest.log_start_offset:
        epoch = newest.epochs.epoch_at(offset - 1) or 0
        without = [
            agreed
            for copy in copies
            if copy.last_epoch > epoch and (agreed := agreed_end(newest, copy)) < offset
        ]
        if not without:
            return offset
        offset = min(without)
    return offset


def _is_certain(
    offset: int,
    newest: ReplicaLogState,
    counted: Sequence[ReplicaLogState],
    copies: Sequence[ReplicaLogState],
    voters: tuple[ReplicaKey, ...],
) -> bool:
    """Return whether no leader of an unknown epoch can lack the record before ``offset``."""
    if len(counted) == len(voters) and all(copy.is_quiet for copy in counted):
        return True
    epoch = newest.epochs.epoch_at(offset - 1) or 0
    latest = max(copy.known_epoch for copy in counted)
    seen = {
        entry.epoch
        for copy in copies
        if agreed_end(newest, copy) >= offset
        for entry in copy.epochs.entries
        if epoch < entry.epoch < latest
    }
    return len(seen) == max(latest - epoch - 1, 0)


def _describe_counted(counted: Sequence[ReplicaLogState], voters: tuple[ReplicaKey, ...]) -> str:
    given = ", ".join(str(copy.node_id) for copy in counted)
    all_of_them = ", ".join(str(node_id) for node_id in sorted(voter.node_id for voter in voters))
    return (
        f"the records that a majority of the voters ({all_of_them}) has, by the logs of {given}: "
        "committed"
    )


# --- Comparison of two copies of one log, batch by batch ------------------------------------------
# Replicas hold the same batches, byte for byte; copies may differ within one leader epoch (KIP-101,
# KAFKA-3919). Each replica compacts its log by itself, so batches that a compaction touched, and
# missing batches, are skipped. Damage ends the comparison; ``raftlog check`` of that copy reports
# it.


@dataclass(frozen=True, slots=True)
class Divergence:
    """First offset at which two copies differ, and the batch of each copy that contains it."""

    offset: int
    one: RecordBatch
    other: RecordBatch

    def text(self) -> str:
        """Return text on both batches: path, position, offsets, epoch, size and CRC."""
        return f"{_describe(self.one)}; {_describe(self.other)}"


def first_divergence(one: DirectoryLog, other: DirectoryLog) -> Divergence | None:
    """Return the first divergence in the offsets that both copies have; None if they are equal."""
    start_offset = max(one.log_start_offset, other.log_start_offset)
    end_offset = min(one.log_end_offset, other.log_end_offset)
    one_batches = _whole_batches(one, start_offset, end_offset)
    other_batches = _whole_batches(other, start_offset, end_offset)
    left, right = next(one_batches, None), next(other_batches, None)
    while left is not None and right is not None:
        if left.last_offset < right.base_offset:
            left = next(one_batches, None)
        elif right.last_offset < left.base_offset:
            right = next(other_batches, None)
        elif _identity(left) != _identity(right):
            offset = max(left.base_offset, right.base_offset, start_offset)
            return Divergence(offset, left, right)
        else:
            left, right = next(one_batches, None), next(other_batches, None)
    return None


def _whole_batches(log: DirectoryLog, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
    """Yield the batches of a range that compaction did not touch, up to the first damage."""
    try:
        for batch in log.batches(start_offset, end_offset):
            is_dense = batch.last_offset - batch.base_offset + 1 == batch.record_count
            if is_dense and batch.delete_horizon_ms is None:
                yield batch
    except (CorruptBatchError, DataLossError, LogGapError, SegmentDeletedError):
        return


def _identity(batch: RecordBatch) -> tuple[int, int, int, int, int]:
    return (
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.byte_count,
        batch.crc,
    )


def _describe(batch: RecordBatch) -> str:
    return (
        f"{batch.path} at byte {batch.position} has offsets {batch.base_offset} to "
        f"{batch.last_offset} of epoch {batch.leader_epoch}, {batch.byte_count} bytes with CRC "
        f"{batch.crc:08x}"
    )


# --- Reader ---------------------------------------------------------------------------------------


class QuorumCopies(LogReader):
    """One log, read from the directories of several of its nodes."""

    def __init__(self, path: str, logs: Sequence[DirectoryLog]) -> None:
        self.path = path
        self.kind = logs[0].kind
        self.source = SourceKind.VOTERS
        self.topic, self.partition = logs[0].topic, logs[0].partition
        self.logs = tuple(logs)
        self._copies: tuple[ReplicaLogState, ...] | None = None
        self._check_same_log()

    # --- properties -------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """First offset that any copy still has."""
        newest = self._newest()
        starts = [
            copy.log_start_offset
            for copy in self.copies()
            if agreed_end(newest, copy) >= newest.log_start_offset
        ]
        return min(starts, default=newest.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        """End of the most up-to-date copy: its last records may be uncommitted."""
        return self._newest().log_end_offset

    @property
    def is_raftlog(self) -> bool:
        return self.newest_log().is_raftlog

    @property
    def compacted_offset(self) -> int:
        """The greatest compacted offset of all copies."""
        return max(log.compacted_offset for log in self.logs)

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        return tuple(sorted({one for log in self.logs for one in log.snapshots}))

    @property
    def epochs(self) -> EpochCache:
        return self._newest().epochs

    @property
    def tail(self) -> LogTail | None:
        return self.newest_log().tail

    @property
    def meta_properties(self) -> MetaProperties | None:
        return self.newest_log().meta_properties

    @property
    def topic_id(self) -> str | None:
        return self.newest_log().topic_id

    @property
    def quorum_state(self) -> QuorumState | None:
        return self.newest_log().quorum_state

    def refresh(self) -> None:
        for log in self.logs:
            log.refresh()
        self._copies = None

    def close(self) -> None:
        for log in self.logs:
            log.close()

    # --- planning ---------------------------------------------------------------------------------

    def read_end(
        self,
        *,
        isolation: Isolation,
        holdback_ms: int = 0,
        now_ms: int | None = None,
        previous: ReadEnd | None = None,
    ) -> ReadEnd:
        """Return the end that a majority of the voters has; without voters, that of all copies.

        ``holdback_ms`` is not used.
        """
        log = self.newest_log()
        voters = self.voters()
        if voters:
            basis, majority = EndBasis.MAJORITY, majority_end(self.copies(), voters)
        else:
            basis, majority = EndBasis.REPLICAS, common_end(self.copies())
        offset, reasons = min(majority.offset, self.log_end_offset), majority.explanation
        if isolation is Isolation.READ_COMMITTED:
            stable = log.cached.last_stable_offset(offset)
            if stable < offset:
                reasons += f"; the transaction at offset {stable} is still open"
            offset = stable
        found = ReadEnd(offset=offset, epoch=log.epoch_before(offset), basis=basis, reason=reasons)
        newest = self._newest()
        extent = LogExtent(self.path, newest.log_start_offset, newest.log_end_offset, newest.epochs)
        return not_below_previous(found, previous, extent)

    def voters(self) -> tuple[ReplicaKey, ...]:
        """Return the voters from the most up-to-date copy; empty for a partition without voters.

        A change of voters is effective when it is appended, committed or not (KIP-853). Without a
        record of voters, those in ``quorum-state`` are returned. Raises ``CorruptFileError``.
        """
        newest = most_up_to_date(self.copies())
        log = self._log_of(newest)
        found = log.voters()
        if found is not None:
            return found.voters
        state = log.quorum_state
        if state is not None and state.voters:
            return tuple(ReplicaKey(node_id) for node_id in state.voters)
        if self.kind is LogKind.PARTITION:
            return ()
        raise CorruptFileError(
            path=log.path, reason="neither a record nor a snapshot contains its voters"
        )

    def plan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        isolation: Isolation,
        max_splits: int = 1,
        max_records_per_split: int | None = None,
        with_producers: bool = True,
    ) -> ReadPlan:
        splits: list[Split] = []
        left = max(max_splits, 1)
        for log, start, end in self._split_by_copy(start_offset, end_offset):
            plan = log.plan(
                start,
                end,
                isolation=isolation,
                max_splits=max(1, left * (end - start) // max(end_offset - start, 1)),
                max_records_per_split=max_records_per_split,
                with_producers=with_producers,
            )
            splits += plan.splits
            left = max(left - len(plan.splits), 1)
        end = max(start_offset, end_offset) if splits else start_offset
        return ReadPlan(start_offset, end, tuple(splits))

    def next_boundary(
        self,
        start_offset: int,
        *,
        end_offset: int,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> int:
        if start_offset >= end_offset or (max_records is None and max_bytes is None):
            return end_offset
        log, start, end = next(self._split_by_copy(start_offset, end_offset))
        boundary = log.next_boundary(
            start, end_offset=end, max_records=max_records, max_bytes=max_bytes
        )
        if boundary < end or end == end_offset or self.kind is LogKind.PARTITION:
            return boundary
        # The copy to read from changes at the newest copy's start, maybe inside a transaction.
        replay = log.cached.covering(start, end)
        stable = end if replay is None else replay.transactions.last_stable_offset(end)
        return (
            stable
            if stable > start
            else self.next_boundary(end, end_offset=end_offset, max_records=1)
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        for log, start, _ in self._split_by_copy(self.log_start_offset, self.log_end_offset):
            found = log.offset_for_timestamp(timestamp_ms)
            if found is not None:
                return max(found, start)
        return None

    # --- reading ----------------------------------------------------------------------------------

    def scan(
        self,
        start_offset: int,
        end_offset: int,
        *,
        columns: Column = Column.ALL_BUT_HEADERS,
        chunk_bytes: int = READ_CHUNK_BYTES,
    ) -> Iterator[Scan]:
        for log, start, end in self._split_by_copy(start_offset, end_offset):
            yield from log.scan(start, end, columns=columns, chunk_bytes=chunk_bytes)

    def batches(
        self, start_offset: int, end_offset: int, *, chunk_bytes: int = READ_CHUNK_BYTES
    ) -> Iterator[RecordBatch]:
        for log, start, end in self._split_by_copy(start_offset, end_offset):
            yield from log.batches(start, end, chunk_bytes=chunk_bytes)

    def range_size(self, start_offset: int, end_offset: int) -> RangeSize:
        return RangeSize.of_parts(
            log.range_size(start, end)
            for log, start, end in self._split_by_copy(start_offset, end_offset)
        )

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        if self.kind is LogKind.METADATA:
            return AbortedTransactions((), end_offset)
        first = next(self._split_by_copy(start_offset, end_offset), None)
        if first is None:  # an empty range
            return AbortedTransactions((), end_offset)
        return first[0].aborted_transactions(start_offset, end_offset)

    def read_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        for log in (self.newest_log(), *self.logs):
            if snapshot_id in log.snapshots:
                return log.read_snapshot(snapshot_id)
        return self.newest_log().read_snapshot(snapshot_id)

    # --- the copies -------------------------------------------------------------------------------

    def copies(self) -> tuple[ReplicaLogState, ...]:
        """Return the state of each copy, read once per ``refresh``.

        Raises ``WrongClusterError`` if a directory has the log of another cluster.
        """
        if self._copies is None:
            self._check_same_log()
            before = [_known_epoch(log) for log in self.logs]
            found = [_copy(log, at) for at, log in enumerate(self.logs)]
            after = [_known_epoch(log) for log in self.logs]
            self._copies = tuple(
                replace(
                    copy,
                    known_epoch=max(known_epoch, copy.last_epoch),
                    is_quiet=known_epoch == known_epoch_before,
                )
                for copy, known_epoch_before, known_epoch in zip(found, before, after, strict=True)
            )
        return self._copies

    def _newest(self) -> ReplicaLogState:
        return most_up_to_date(self.copies())

    def newest_log(self) -> DirectoryLog:
        """Return the most up-to-date copy."""
        return self._log_of(self._newest())

    def _log_of(self, copy: ReplicaLogState) -> DirectoryLog:
        return self.logs[self.copies().index(copy)]

    def _split_by_copy(
        self, start_offset: int, end_offset: int
    ) -> Iterator[tuple[DirectoryLog, int, int]]:
        """Yield each part of a range with the copy to read it from; usually one part."""
        newest = self._newest()
        while start_offset < end_offset:
            if newest.log_start_offset <= start_offset:
                yield self._log_of(newest), start_offset, end_offset
                return
            holding = [
                (min(agreed_end(newest, copy), end_offset), copy)
                for copy in self.copies()
                if copy.log_start_offset <= start_offset
            ]
            end, copy = max(holding, key=lambda one: one[0], default=(0, newest))
            end = min(end, newest.log_start_offset)
            if end <= start_offset:
                raise DataLossError(
                    path=self.path,
                    condition="OFFSETS_DELETED",
                    reason=f"offset {start_offset} was deleted from every copy that agrees with "
                    f"the newest, which begins at {newest.log_start_offset}",
                    remedy="start at a snapshot or at the first offset on disk",
                )
            yield self._log_of(copy), start_offset, end
            start_offset = end

    def _check_same_log(self) -> None:
        """Check that all directories are copies of one log.

        Raises ``NotALogError``, ``WrongClusterError``, or ``CorruptFileError`` if the node of a
        copy is unknown.
        """
        expected = None
        for log in self.logs:
            properties = log.meta_properties
            one, first = (log.kind, log.topic, log.partition), self.logs[0]
            if log.source is not SourceKind.DIRECTORY or one != (
                first.kind,
                first.topic,
                first.partition,
            ):
                raise NotALogError(
                    path=log.path,
                    reason="all paths must be directories with copies of one log, and the first "
                    f"is of {first.topic}-{first.partition}",
                )
            is_known = properties is not None and properties.node_id is not None
            if self.kind is LogKind.METADATA and not is_known:
                raise CorruptFileError(
                    path=log.files.storage.join(log.files.directory, META_PROPERTIES_NAME),
                    reason="it is missing or has no node id, so the node of this copy is unknown",
                )
            if properties is None or properties.cluster_id is None:
                continue
            if expected is not None and properties.cluster_id != expected:
                raise WrongClusterError(
                    path=log.path,
                    expected_cluster_id=expected,
                    cluster_id=properties.cluster_id,
                    remedy="name directories of one cluster",
                )
            expected = properties.cluster_id


def _copy(log: DirectoryLog, ordinal: int) -> ReplicaLogState:
    """Return the state of one copy, without its known epoch.

    A copy of an unknown node is not a voter; it gets a negative node id, from its ordinal.
    """
    return ReplicaLogState(
        path=log.path,
        node_id=-1 - ordinal if log.node_id is None else log.node_id,
        directory_id=log.directory_id,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        epochs=log.epochs,
        newest_snapshot=log.newest_snapshot(),
        known_epoch=0,
        is_quiet=False,
    )


def _known_epoch(log: DirectoryLog) -> int:
    """Return the latest epoch in a node's ``quorum-state``; 0 without one."""
    state = log.quorum_state
    return 0 if state is None else state.leader_epoch
