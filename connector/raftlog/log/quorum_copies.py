"""Reader of one log from the copies of several nodes, up to the end that a majority has.

Replicas of an ordinary partition have no voters: there the end is the one that all copies have.

Records are read from the most up-to-date copy, which has all committed records; records that it has
deleted, from a copy that is equal up to there. The copies are read one after the other while their
nodes may run, so epochs are read before and after, to detect elections. After each refresh all
directories must still be copies of one log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from raftlog.errors import (
    CorruptFileError,
    DataLossError,
    NotALogError,
    WrongClusterError,
)
from raftlog.limits import READ_CHUNK_BYTES
from raftlog.records.batch import RecordBatch
from raftlog.records.batch_columns import Column, Scan
from raftlog.types import ReplicaKey, SnapshotId

from .aborted_transactions import AbortedTransactions
from .cursor import LogTail
from .directory_log import DirectoryLog
from .ends import LogExtent, not_below_previous
from .epoch_cache import EpochCache
from .majority import ReplicaLogState, agreed_end, common_end, majority_end, most_up_to_date
from .names import META_PROPERTIES_NAME
from .reader import LogReader
from .reads import EndBasis, Isolation, LogKind, ReadEnd, ReadPlan, SourceKind, Split
from .small_files import MetaProperties, QuorumState
from .snapshot import SnapshotReader


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
    def quorum_state(self) -> QuorumState | None:
        return self.newest_log().quorum_state

    def refresh(self) -> None:
        for log in self.logs:
            log.refresh()
        self._copies = None

    # --- planning ---------------------------------------------------------------------------------

    def read_end(
        self,
        *,
        isolation: Isolation,
        holdback_ms: int = 0,
        now_ms: int | None = None,
        previous: ReadEnd | None = None,
    ) -> ReadEnd:
        """Return the end by a majority of the voters, or by all copies of a log without voters.

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
        found = ReadEnd(offset, log.epoch_before(offset), basis, reasons)
        newest = self._newest()
        extent = LogExtent(self.path, newest.log_start_offset, newest.log_end_offset, newest.epochs)
        return not_below_previous(found, previous, extent)

    def voters(self) -> tuple[ReplicaKey, ...]:
        """Return the voters by the most up-to-date copy; empty for a partition without voters.

        A change of voters is effective when it is appended, committed or not (KIP-853). Without a
        record of voters, those of ``quorum-state`` are returned. Raises ``CorruptFileError``.
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
        # The copies change at the newest one's start, which may be inside a transaction.
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

    def batches(self, start_offset: int, end_offset: int) -> Iterator[RecordBatch]:
        for log, start, end in self._split_by_copy(start_offset, end_offset):
            yield from log.batches(start, end)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        if self.kind is LogKind.METADATA:
            return AbortedTransactions((), end_offset)
        log, _, _ = next(self._split_by_copy(start_offset, end_offset))
        return log.aborted_transactions(start_offset, end_offset)

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
        """Check that all are copies of one log.

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
                    path=log.path, expected_cluster_id=expected, cluster_id=properties.cluster_id
                )
            expected = properties.cluster_id


def _copy(log: DirectoryLog, ordinal: int) -> ReplicaLogState:
    """Return the state of one copy, without its known epoch.

    A copy of an unknown node is no voter; its node id is negative, by its ordinal.
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
