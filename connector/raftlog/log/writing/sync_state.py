"""How far a log is synced, while syncs are on their way.

Rules of this file:

1. A sync is two events with time between them: what was written before the first is durable at the
   second, and nothing counts as synced before. Between them batches may be appended, segments
   rolled and the log cut. Whoever drives the log does the waiting: here is no thread.
2. What is known of syncs is void when the log is cut or recovered: a ticket of before says nothing
   then. Its segment stays open until it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from .active_segment import ActiveSegment


class SyncState:
    """What is durable of one log. ``position`` is that of ``end_offset`` in the active segment."""

    def __init__(self, end_offset: int, position: int) -> None:
        self.end_offset = end_offset
        self.position = position

    def start(self, segment: ActiveSegment, end_offset: int) -> PendingSync:
        """Everything that was appended so far is to become durable."""
        segment.begin_sync()
        return PendingSync(end_offset, segment.byte_count, segment, self)

    def note(self, end_offset: int, position: int) -> None:
        """Everything up to here is durable. What was known already may have been rolled since."""
        if end_offset > self.end_offset:
            self.end_offset, self.position = end_offset, position

    def roll(self) -> None:
        """A new segment begins at the end, which was synced."""
        self.position = 0


@dataclass(frozen=True, slots=True, eq=False)
class PendingSync:
    """A sync that was started: all below ``end_offset`` (exclusive) is to become durable.

    ``run`` does it, in any thread; then ``complete_sync`` or ``fail_sync`` is told, once.
    """

    end_offset: int
    position: int
    segment: ActiveSegment
    state: SyncState

    def run(self) -> None:
        """Return when it is durable. Raises ``DiskFailedError``: then tell ``fail_sync``."""
        self.segment.sync()
