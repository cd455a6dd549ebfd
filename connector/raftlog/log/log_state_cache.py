"""Cached state of one copy of a log: its end, leader epochs, transactions and voters.

Nothing is read before it is requested. By rising cost: the directory listing, the end of the log
(one read in the last segment), and a replay (forward from a snapshot; only new batches afterwards).

Invariants:

1. The main replay follows the end of the log. A second one, the backlog, serves reads below the
   main replay's start.
2. If the node truncated records that a replay has read, the replay starts again.
3. An embedded log ends at the offset that its writers published in this boot or, without one, after
   the batches that follow its recovery point. Bytes after that belong to a running or crashed
   writer and are not read.
"""

from __future__ import annotations

import contextlib
from typing import Final

from raftlog.errors import (
    CorruptFileError,
    CorruptSnapshotError,
    DataLossError,
    SegmentDeletedError,
)
from raftlog.storage.protocol import WritableStorage

from .cursor import LogTail
from .epoch_cache import EpochCache, parse_epoch_checkpoint
from .files import LogFiles
from .leader_epochs import epochs_below
from .log_end import LogEnd, find_durable_log_end, find_log_end
from .names import EPOCH_CHECKPOINT_NAME, Listing
from .offset_checkpoint import (
    LOG_START_CHECKPOINT_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    parse_single_offset,
)
from .published import read_published
from .reads import Isolation, LogKind
from .replay import LogReplay, LogTruncated, log_start, metadata_replay, partition_replay
from .snapshot import SnapshotReader
from .transaction_markers import VoterSet, replica_keys
from .transactions import TransactionSpan

_RESTARTS_MAX: Final = 5
"""Restarts of a replay in one call, after segments were truncated or deleted."""
_SETTLE_STEP: Final = 65_536
"""Offsets per step of the search for the end of a transaction."""
_NO_EPOCHS: Final = EpochCache()


class LogStateCache:
    """Cached state of one copy of a log. Not thread-safe."""

    def __init__(self, files: LogFiles, kind: LogKind) -> None:
        self.files = files
        self._kind = kind
        self._log_end: LogEnd | None = None
        self._replay: LogReplay | None = None
        self._backlog: LogReplay | None = None
        self._is_replayed = False
        self._leader_epochs: tuple[EpochCache, int, EpochCache] | None = None
        self._start: tuple[Listing, int] | None = None

    def refresh(self) -> None:
        """List the directory again; batches that were read are kept."""
        self.files.refresh()
        self._log_end = None
        self._is_replayed = False

    @property
    def epoch_checkpoint(self) -> EpochCache | None:
        """``leader-epoch-checkpoint``, not validated against the batches; None without the file.

        Raises ``CorruptFileError``.
        """
        data = self.files.read_small(EPOCH_CHECKPOINT_NAME)
        path = self.files.storage.join(self.files.directory, EPOCH_CHECKPOINT_NAME)
        return None if data is None else parse_epoch_checkpoint(data, path)

    @property
    def epochs(self) -> EpochCache:
        """Leader epochs of the batches on disk, and earlier ones of the checkpoint."""
        replay = self._replay if self._is_replayed else None
        if replay is None or replay.damage is not None:
            known, below, first = _NO_EPOCHS, self.end_offset, None
        else:
            known, below = replay.epochs, replay.start_offset
            first = known.entries[0].epoch if known.entries else None
        if (
            self._leader_epochs is None
            or self._leader_epochs[0] is not known
            or self._leader_epochs[1] != below
        ):
            cache = self._with_checkpointed_epochs(epochs_below(self.files, below, first))
            cache = cache.assign_all((one.epoch, one.start_offset) for one in known.entries)
            self._leader_epochs = known, below, cache
        return self._leader_epochs[2]

    def log_end(self) -> LogEnd:
        """Return the end of the log.

        Raises ``CorruptBatchError`` if the log is one segment without a valid batch.
        """
        if self._log_end is None:
            self._log_end = self._find_log_end()
        return self._log_end

    def replay(self) -> LogReplay | None:
        """Return the replay up to the end of the log; None for a log without segments."""
        if not self._is_replayed:
            self._replay = self._follow()
            self._is_replayed = True
        return self._replay

    @property
    def start_offset(self) -> int:
        """Start offset of the log; in an embedded log, the checkpointed one if that is greater."""
        listing = self.files.listing
        if self._start is None or self._start[0] is not listing:
            start_offset = log_start(self.files)
            if listing.is_embedded:
                start_offset = max(
                    start_offset, self._checkpointed_offset(LOG_START_CHECKPOINT_NAME)
                )
            self._start = listing, start_offset
        return self._start[1]

    @property
    def end_offset(self) -> int:
        """End offset of the log (exclusive)."""
        return max(self.log_end().end_offset, self.start_offset)

    def last_stable_offset(self, end_offset: int) -> int:
        """Return the last stable offset if the log ended at ``end_offset``, a batch boundary."""
        replay = self.replay()
        start_offset = log_start(self.files)
        if replay is None or end_offset <= start_offset:
            return end_offset
        if end_offset < replay.transactions.complete_from:
            replay = self._begin(before_offset=end_offset)
            replay.follow(end_offset)
        # A transaction that never ended may have begun in a deleted segment.
        return max(replay.transactions.last_stable_offset(end_offset), start_offset)

    def valid_end(self, start_offset: int, end_offset: int) -> int:
        """Return the offset of the first known damage in the range, or ``end_offset``.

        Raises the damage if it is at ``start_offset``.
        """
        replay = self.replay()
        if replay is None or replay.damage is None:
            return end_offset
        if not replay.start_offset <= start_offset <= replay.next_offset < end_offset:
            return end_offset
        if replay.next_offset == start_offset:
            raise replay.damage
        return replay.next_offset

    def spans(
        self, start_offset: int, end_offset: int, isolation: Isolation
    ) -> tuple[TransactionSpan, ...]:
        """Return the transactions that touch the range; in a partition, the uncommitted ones.

        With READ_COMMITTED raises damage and contradictory markers in the range.
        """
        is_metadata = self._kind is LogKind.METADATA
        if not is_metadata and isolation is Isolation.READ_UNCOMMITTED:
            return ()
        replay = self.covering(start_offset, end_offset)
        if replay is None:
            return ()
        if isolation is Isolation.READ_COMMITTED:
            if replay.damage is not None and replay.next_offset < end_offset:
                raise replay.damage  # the range's transactions are unknown after it
            problem = replay.transactions.first_problem(start_offset, end_offset)
            if problem is not None:
                raise problem
        return replay.transactions.spans(start_offset, end_offset, with_committed=is_metadata)

    def covering(self, start_offset: int, end_offset: int) -> LogReplay | None:
        """Return a replay with every transaction that touches the range, up to the first damage.

        None for a log without segments.
        """
        replay = self.replay()
        if replay is None or _covers(replay, start_offset):
            return replay
        for _ in range(_RESTARTS_MAX):
            backlog = self._backlog
            if backlog is None or not _covers(backlog, start_offset):
                backlog = self._backlog = self._begin(before_offset=start_offset)
                backlog.transactions.retain_all(with_committed=self._kind is LogKind.METADATA)
            backlog.transactions.drop_ended_before(start_offset)
            try:
                backlog.follow(end_offset)
                settled = end_offset
                while settled < self.end_offset and backlog.transactions.opened_before(end_offset):
                    settled = min(settled + _SETTLE_STEP, self.end_offset)
                    backlog.follow(settled)
            except (LogTruncated, DataLossError, SegmentDeletedError):
                self._backlog = None
                self.files.refresh()
                continue
            return backlog
        raise SegmentDeletedError(path=self.files.path)

    # --- private ----------------------------------------------------------------------------------

    def _find_log_end(self) -> LogEnd:
        published = self._published()
        if published is None:
            found = self._find_end_in_segments()
            # A writer publishes before its first append: an end published meanwhile is the bound.
            published = self._published()
            if published is None:
                return found
        return published

    def _published(self) -> LogEnd | None:
        """Return the end that an embedded log's writers have published since the last boot."""
        storage = self.files.storage
        if not self.files.listing.is_embedded or not isinstance(storage, WritableStorage):
            return None
        published = read_published(storage, self.files.directory, storage.boot_id())
        if published is None:
            return None
        path = self.files.segment_path(published.segment_base_offset)
        tail = LogTail(path, published.file_position, 0)
        return LogEnd(published.end_offset, published.epoch, tail)

    def _find_end_in_segments(self) -> LogEnd:
        for _ in range(_RESTARTS_MAX):
            if not self.files.listing.segments:
                start_offset = log_start(self.files)
                return LogEnd(start_offset, None, LogTail(self.files.path, 0, 0))
            try:
                log_end = self._durable_log_end() or find_log_end(
                    self.files, contiguous=self._kind is LogKind.METADATA
                )
            except SegmentDeletedError:
                self.files.refresh()
                continue
            is_alone = len(self.files.listing.segments) == 1 and not self.files.listing.snapshots
            if log_end.tail.error is not None and log_end.epoch is None and is_alone:
                raise log_end.tail.error
            return log_end
        raise SegmentDeletedError(path=self.files.path)

    def _durable_log_end(self) -> LogEnd | None:
        """Return the end of an embedded log that no writer has opened since the last boot."""
        if not self.files.listing.is_embedded:
            return None
        return find_durable_log_end(
            self.files, self._checkpointed_offset(RECOVERY_POINT_CHECKPOINT_NAME)
        )

    def _checkpointed_offset(self, name: str) -> int:
        """Return the offset in an embedded log's checkpoint file; 0 if missing or damaged."""
        path = self.files.storage.join(self.files.directory, name)
        with contextlib.suppress(CorruptFileError):
            data = self.files.read_small(name)
            return 0 if data is None else parse_single_offset(data, path)
        return 0

    def _follow(self) -> LogReplay | None:
        is_embedded = self.files.listing.is_embedded
        for _ in range(_RESTARTS_MAX):
            if not self.files.listing.segments:
                return None
            try:
                if self._replay is None:
                    self.log_end()  # raises if the file is not a log
                    self._replay = self._begin()
                replay = self._replay
                replay.follow(self.log_end().end_offset if is_embedded else None)
            except (LogTruncated, DataLossError, SegmentDeletedError):
                self._replay = self._backlog = self._leader_epochs = None
                self.files.refresh()
                continue
            if replay.damage is None and replay.tail is not None:
                latest = replay.epochs.latest_epoch
                self._log_end = LogEnd(replay.next_offset, latest, replay.tail)
            return replay
        raise SegmentDeletedError(path=self.files.path)

    def _begin(self, before_offset: int | None = None) -> LogReplay:
        if self._kind is LogKind.PARTITION:
            return partition_replay(self.files, before_offset)
        replay = metadata_replay(self.files, before_offset)
        replay.voters = self._snapshot_voters(replay.start_offset)
        return replay

    def _snapshot_voters(self, end_offset: int) -> VoterSet | None:
        for snapshot_id in self.files.listing.snapshots:
            if snapshot_id.end_offset == end_offset:
                try:
                    voters = SnapshotReader(self.files, snapshot_id).voters
                except (CorruptSnapshotError, SegmentDeletedError):
                    return None
                return None if voters is None else VoterSet(end_offset - 1, replica_keys(voters))
        return None

    def _with_checkpointed_epochs(self, cache: EpochCache) -> EpochCache:
        """Add epochs that ended before the first batch on disk, from the checkpoint."""
        try:
            checkpoint = self.epoch_checkpoint
        except CorruptFileError:
            return cache
        if checkpoint is None:
            return cache
        if not cache.entries:
            return checkpoint
        first = cache.entries[0]
        older = []
        for entry in checkpoint.entries:
            if entry.start_offset >= first.start_offset or entry.epoch > first.epoch:
                break
            older.append(entry)
        rest = cache.entries[1:] if older and older[-1].epoch == first.epoch else cache.entries
        return EpochCache((*older, *rest))


def _covers(replay: LogReplay, offset: int) -> bool:
    """Return whether a replay has every transaction that ends at or after ``offset``."""
    is_whole = replay.damage is None or replay.next_offset > offset
    return is_whole and replay.transactions.complete_from <= offset
