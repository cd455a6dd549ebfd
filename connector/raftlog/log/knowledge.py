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
    SegmentVanishedError,
)
from raftlog.storage.protocol import WritableStorage

from .cursor import Tail
from .epoch_cache import EpochCache, parse_epoch_checkpoint
from .files import LogFiles
from .history import History, LogRewritten, log_start, metadata_history, producer_history
from .lineage import lineage_below
from .markers import VoterSet, replica_keys
from .names import EPOCH_CHECKPOINT_NAME, Listing
from .offset_checkpoint import (
    LOG_START_CHECKPOINT_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    parse_own_offset,
)
from .outline import Outline, read_durable_outline, read_outline
from .published import read_published
from .reads import Isolation, LogKind
from .snapshot import SnapshotReader
from .transactions import TransactionSpan

_BEGINNINGS_MAX: Final = 5
"""How often reading is begun again in one look, because the node changed what had been read."""
_SETTLE_STEP: Final = 65_536
"""How many offsets further to look, at a time, for the end of a transaction."""
_NOTHING: Final = EpochCache()


class Knowledge:
    """What is known of one copy of a log. Not shared between threads."""

    def __init__(self, files: LogFiles, kind: LogKind) -> None:
        self.files = files
        self._kind = kind
        self._outline: Outline | None = None
        self._history: History | None = None
        self._backlog: History | None = None
        self._is_followed = False
        self._lineage: tuple[EpochCache, int, EpochCache] | None = None
        self._start: tuple[Listing, int] | None = None

    def refresh(self) -> None:
        """Look at the directory again; what was read is kept."""
        self.files.refresh()
        self._outline = None
        self._is_followed = False

    @property
    def epoch_checkpoint(self) -> EpochCache | None:
        """What ``leader-epoch-checkpoint`` says, true or not. Raises ``CorruptFileError``."""
        data = self.files.read_small(EPOCH_CHECKPOINT_NAME)
        path = self.files.storage.join(self.files.directory, EPOCH_CHECKPOINT_NAME)
        return None if data is None else parse_epoch_checkpoint(data, path)

    @property
    def epochs(self) -> EpochCache:
        history = self._history if self._is_followed else None
        if history is None or history.damage is not None:
            known, below, first = _NOTHING, self.end_offset, None
        else:
            known, below = history.epochs, history.start_offset
            first = known.entries[0].epoch if known.entries else None
        if self._lineage is None or self._lineage[0] is not known or self._lineage[1] != below:
            cache = self._with_older_epochs(lineage_below(self.files, below, first))
            cache = cache.assign_all((one.epoch, one.start_offset) for one in known.entries)
            self._lineage = known, below, cache
        return self._lineage[2]

    def outline(self) -> Outline:
        """Where the log ends. Raises ``CorruptBatchError`` if there is nothing but damage."""
        if self._outline is None:
            self._outline = self._look_at_end()
        return self._outline

    def history(self) -> History | None:
        """What reading forward taught, up to the end; None for a log without segments."""
        if not self._is_followed:
            self._history = self._follow()
            self._is_followed = True
        return self._history

    @property
    def start_offset(self) -> int:
        """Where the log begins: a log of ours says so, and its first segment may begin earlier."""
        listing = self.files.listing
        if self._start is None or self._start[0] is not listing:
            start_offset = log_start(self.files)
            if listing.is_embedded:
                start_offset = max(start_offset, self._own_offset(LOG_START_CHECKPOINT_NAME))
            self._start = listing, start_offset
        return self._start[1]

    @property
    def end_offset(self) -> int:
        """Where the log ends (exclusive)."""
        return max(self.outline().end_offset, self.start_offset)

    def stable_end(self, end_offset: int) -> int:
        """The last stable offset if the log ended at ``end_offset`` (a batch boundary)."""
        history = self.history()
        start_offset = log_start(self.files)
        if history is None or end_offset <= start_offset:
            return end_offset
        if end_offset < history.book.complete_from:
            history = self._begin(before_offset=end_offset)
            history.follow(end_offset)
        # A transaction may have begun in a segment that is gone, and never ended.
        return max(history.book.stable_end(end_offset), start_offset)

    def sound_end(self, start_offset: int, end_offset: int) -> int:
        """How far the range is known to be free of damage: ``end_offset`` if none is known in it.

        Raises the damage if the range begins with it.
        """
        history = self.history()
        if history is None or history.damage is None:
            return end_offset
        if not history.start_offset <= start_offset <= history.next_offset < end_offset:
            return end_offset
        if history.next_offset == start_offset:
            raise history.damage
        return history.next_offset

    def spans(
        self, start_offset: int, end_offset: int, isolation: Isolation
    ) -> tuple[TransactionSpan, ...]:
        is_metadata = self._kind is LogKind.METADATA
        if not is_metadata and isolation is Isolation.HIGH_WATERMARK:
            return ()
        history = self.covering(start_offset, end_offset)
        if history is None:
            return ()
        if isolation is Isolation.READ_COMMITTED:
            if history.damage is not None and history.next_offset < end_offset:
                raise history.damage  # it hides which transactions the range belongs to
            problem = history.book.first_problem(start_offset, end_offset)
            if problem is not None:
                raise problem
        return history.book.spans(start_offset, end_offset, with_committed=is_metadata)

    def covering(self, start_offset: int, end_offset: int) -> History | None:
        """A history that knows every transaction that touches the range, if damage lets it.

        None for a log without segments.
        """
        history = self.history()
        if history is None or _knows_from(history, start_offset):
            return history
        for _ in range(_BEGINNINGS_MAX):
            backlog = self._backlog
            if backlog is None or not _knows_from(backlog, start_offset):
                backlog = self._backlog = self._begin(before_offset=start_offset)
                backlog.book.keep_all(with_committed=self._kind is LogKind.METADATA)
            backlog.book.forget_ended_before(start_offset)
            try:
                backlog.follow(end_offset)
                settled = end_offset
                while settled < self.end_offset and backlog.book.opened_before(end_offset):
                    settled = min(settled + _SETTLE_STEP, self.end_offset)
                    backlog.follow(settled)
            except (LogRewritten, DataLossError, SegmentVanishedError):
                self._backlog = None
                self.files.refresh()
                continue
            return backlog
        raise SegmentVanishedError(path=self.files.path)

    # --- inside -----------------------------------------------------------------------------------

    def _look_at_end(self) -> Outline:
        published = self._published()
        if published is None:
            found = self._look_at_segments()
            # Whoever appends has published before: if it was begun meanwhile, that tells where.
            published = self._published()
            if published is None:
                return found
        return published

    def _published(self) -> Outline | None:
        """The end that an embedded log's writers have told since the machine started."""
        storage = self.files.storage
        if not self.files.listing.is_embedded or not isinstance(storage, WritableStorage):
            return None
        published = read_published(storage, self.files.directory, storage.boot_id())
        if published is None:
            return None
        path = self.files.segment_path(published.segment_base_offset)
        tail = Tail(path, published.file_position, 0)
        return Outline(published.end_offset, published.epoch, tail)

    def _look_at_segments(self) -> Outline:
        for _ in range(_BEGINNINGS_MAX):
            if not self.files.listing.segments:
                start_offset = log_start(self.files)
                return Outline(start_offset, None, Tail(self.files.path, 0, 0))
            try:
                outline = self._torn_outline() or read_outline(
                    self.files, contiguous=self._kind is LogKind.METADATA
                )
            except SegmentVanishedError:
                self.files.refresh()
                continue
            is_alone = len(self.files.listing.segments) == 1 and not self.files.listing.snapshots
            if outline.tail.error is not None and outline.epoch is None and is_alone:
                raise outline.tail.error
            return outline
        raise SegmentVanishedError(path=self.files.path)

    def _torn_outline(self) -> Outline | None:
        """The end of a log of ours that no writer has opened since the machine started."""
        if not self.files.listing.is_embedded:
            return None
        return read_durable_outline(self.files, self._own_offset(RECOVERY_POINT_CHECKPOINT_NAME))

    def _own_offset(self, name: str) -> int:
        """The offset in a checkpoint of a log of ours; 0 if it is not known, as for its writers."""
        path = self.files.storage.join(self.files.directory, name)
        with contextlib.suppress(CorruptFileError):
            data = self.files.read_small(name)
            return 0 if data is None else parse_own_offset(data, path)
        return 0

    def _follow(self) -> History | None:
        is_embedded = self.files.listing.is_embedded
        for _ in range(_BEGINNINGS_MAX):
            if not self.files.listing.segments:
                return None
            try:
                if self._history is None:
                    self.outline()  # raises if it is no log at all
                    self._history = self._begin()
                history = self._history
                history.follow(self.outline().end_offset if is_embedded else None)
            except (LogRewritten, DataLossError, SegmentVanishedError):
                self._history = self._backlog = self._lineage = None
                self.files.refresh()
                continue
            if history.damage is None and history.tail is not None:
                latest = history.epochs.latest_epoch
                self._outline = Outline(history.next_offset, latest, history.tail)
            return history
        raise SegmentVanishedError(path=self.files.path)

    def _begin(self, before_offset: int | None = None) -> History:
        if self._kind is LogKind.PARTITION:
            return producer_history(self.files, before_offset)
        history = metadata_history(self.files, before_offset)
        history.voters = self._snapshot_voters(history.start_offset)
        return history

    def _snapshot_voters(self, end_offset: int) -> VoterSet | None:
        for snapshot_id in self.files.listing.snapshots:
            if snapshot_id.end_offset == end_offset:
                try:
                    voters = SnapshotReader(self.files, snapshot_id).voters
                except (CorruptSnapshotError, SegmentVanishedError):
                    return None
                return None if voters is None else VoterSet(end_offset - 1, replica_keys(voters))
        return None

    def _with_older_epochs(self, cache: EpochCache) -> EpochCache:
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


def _knows_from(history: History, offset: int) -> bool:
    """Whether a history knows every transaction that ends at ``offset`` or behind it."""
    is_whole = history.damage is None or history.next_offset > offset
    return is_whole and history.book.complete_from <= offset
