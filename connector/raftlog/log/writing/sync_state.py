"""The synced position of a log and its pending syncs.

A sync has two events, start and completion. Bytes that were written before the start are durable at
the completion and not counted as synced before it. In between, batches may be appended, segments
rolled and the log truncated. A truncation or a recovery replaces the ``SyncState``, so that a
pending sync of the old one is ignored; its segment stays open until that sync has ended. There is
no thread here: the caller runs the sync.
"""

from __future__ import annotations

from dataclasses import dataclass

from .active_segment import ActiveSegment


class SyncState:
    """The durable end of one log: ``end_offset``, at byte ``position`` of the active segment."""

    def __init__(self, end_offset: int, position: int) -> None:
        self.end_offset = end_offset
        self.position = position

    def start(self, segment: ActiveSegment, end_offset: int) -> PendingSync:
        """Start a sync of everything that was appended before ``end_offset``."""
        segment.begin_sync()
        return PendingSync(end_offset, segment.byte_count, segment, self)

    def advance(self, end_offset: int, position: int) -> None:
        """Advance the durable end. An older one is ignored: its segment may have been rolled."""
        if end_offset > self.end_offset:
            self.end_offset, self.position = end_offset, position

    def roll(self) -> None:
        """Start a new segment at the log's end, which is synced."""
        self.position = 0


@dataclass(frozen=True, slots=True, eq=False)
class PendingSync:
    """A sync that was started. It covers everything below ``end_offset`` (exclusive).

    Call ``run`` in any thread; then ``complete_sync`` or ``fail_sync`` of the log, once.
    """

    end_offset: int
    position: int
    segment: ActiveSegment
    state: SyncState

    def run(self) -> None:
        """Sync the segment. Raises ``DiskFailedError``: then call ``fail_sync``."""
        self.segment.sync()
