"""What is known of one copy of a log, from cheap to dear, and kept until the files change.

Rules of this file:

1. Three kinds of knowledge: the listing; the outline (where the log ends: one look at the last
   segment); histories (transactions, voters, epochs: read forward from a safe place, then only what
   is new). Nothing is learned before it is asked for.
2. The main history follows the end of the log. A second one, the backlog, follows a reader who is
   behind where the main one began.
3. If the node rewrote what a history had read, the history is begun again.
4. An embedded log ends where its writers say, while they can know; what lies behind is a writer's
   that is at work, or died, and is not looked at.
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
"""How often reading is begun again in one look, because the node changed what had been read."""
_SETTLE_STEP: Final = 65_536
"""How many offsets further to look, at a time, for the end of a transaction."""
_NOTHING: Final = EpochCache()


class Knowledge:
    """What is known of one copy of a log. Not shared between threads."""

    def __init__(self, files: LogFiles, kind: LogKind) -> None:
        self.files = files
        self._kind = kind
        self._log_end: LogEnd | None = None
        self._replay: LogReplay | None = None
        self._backlog: LogReplay | None = None
        self._is_followed = False
        self._leader_epochs: tuple[EpochCache, int, EpochCache] | None = None
        self._start: tuple[Listing, int] | None = None

    def refresh(self) -> None:
        """Look at the directory again; what was read is kept."""
        self.files.refresh()
        self._log_end = None
        self._is_followed = False

    @property
    def epoch_checkpoint(self) -> EpochCache | None:
        """What ``leader-epoch-checkpoint`` says, true or not. Raises ``CorruptFileError``."""
        data = self.files.read_small(EPOCH_CHECKPOINT_NAME)
        path = self.files.storage.join(self.files.directory, EPOCH_CHECKPOINT_NAME)
        return None if data is None else parse_epoch_checkpoint(data, path)

    @property
    def epochs(self) -> EpochCache:
        replay = self._replay if self._is_followed else None
        if replay is None or replay.damage is not None:
            known, below, first = _NOTHING, self.end_offset, None
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
        """Where the log ends. Raises ``CorruptBatchError`` if there is nothing but damage."""
        if self._log_end is None:
            self._log_end = self._find_log_end()
        return self._log_end

    def replay(self) -> LogReplay | None:
        """What reading forward taught, up to the end; None for a log without segments."""
        if not self._is_followed:
            self._replay = self._follow()
            self._is_followed = True
        return self._replay

    @property
    def start_offset(self) -> int:
        """Where the log begins: a log of ours says so, and its first segment may begin earlier."""
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
        """Where the log ends (exclusive)."""
        return max(self.log_end().end_offset, self.start_offset)

    def last_stable_offset(self, end_offset: int) -> int:
        """The last stable offset if the log ended at ``end_offset`` (a batch boundary)."""
        replay = self.replay()
        start_offset = log_start(self.files)
        if replay is None or end_offset <= start_offset:
            return end_offset
        if end_offset < replay.transactions.complete_from:
            replay = self._begin(before_offset=end_offset)
            replay.follow(end_offset)
        # A transaction may have begun in a segment that is gone, and never ended.
        return max(replay.transactions.last_stable_offset(end_offset), start_offset)

    def valid_end(self, start_offset: int, end_offset: int) -> int:
        """How far the range is known to be free of damage: ``end_offset`` if none is known in it.

        Raises the damage if the range begins with it.
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
        is_metadata = self._kind is LogKind.METADATA
        if not is_metadata and isolation is Isolation.READ_UNCOMMITTED:
            return ()
        replay = self.covering(start_offset, end_offset)
        if replay is None:
            return ()
        if isolation is Isolation.READ_COMMITTED:
            if replay.damage is not None and replay.next_offset < end_offset:
                raise replay.damage  # it hides which transactions the range belongs to
            problem = replay.transactions.first_problem(start_offset, end_offset)
            if problem is not None:
                raise problem
        return replay.transactions.spans(start_offset, end_offset, with_committed=is_metadata)

    def covering(self, start_offset: int, end_offset: int) -> LogReplay | None:
        """A history that knows every transaction that touches the range, if damage lets it.

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

    # --- inside -----------------------------------------------------------------------------------

    def _find_log_end(self) -> LogEnd:
        published = self._published()
        if published is None:
            found = self._find_end_in_segments()
            # Whoever appends has published before: if it was begun meanwhile, that tells where.
            published = self._published()
            if published is None:
                return found
        return published

    def _published(self) -> LogEnd | None:
        """The end that an embedded log's writers have told since the machine started."""
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
        """The end of a log of ours that no writer has opened since the machine started."""
        if not self.files.listing.is_embedded:
            return None
        return find_durable_log_end(
            self.files, self._checkpointed_offset(RECOVERY_POINT_CHECKPOINT_NAME)
        )

    def _checkpointed_offset(self, name: str) -> int:
        """The offset in a checkpoint of a log of ours; 0 if it is not known, as for its writers."""
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
                    self.log_end()  # raises if it is no log at all
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
        """Add epochs that ended before the first batch on disk, as the checkpoint tells them."""
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
    """Whether a history knows every transaction that ends at ``offset`` or behind it."""
    is_whole = replay.damage is None or replay.next_offset > offset
    return is_whole and replay.transactions.complete_from <= offset
