"""How far the active segment is synced, and what must stay open while a sync is on its way.

Rules of this file:

1. A sync is two events with time between them: what was written before the first is durable at the
   second, and nothing counts as synced before. Between them batches may be appended and segments
   rolled. Whoever drives the log does the waiting: here is no thread.
2. A segment that was rolled away stays open until every sync that began before has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

from .segment import ActiveSegment


@dataclass(frozen=True, slots=True, eq=False)
class SyncTicket:
    """A sync that was started: all below ``end_offset`` (exclusive) is to become durable.

    ``run`` does it, in any thread; then ``complete_sync`` or ``fail_sync`` is told.
    """

    end_offset: int
    position: int
    segment: ActiveSegment

    def run(self) -> None:
        """Return when it is durable. Raises ``DiskFailedError``: then tell ``fail_sync``."""
        self.segment.sync()


class SyncState:
    """What is durable of one log. ``position`` is that of ``end_offset`` in the active segment."""

    def __init__(self, end_offset: int, position: int) -> None:
        self.end_offset = end_offset
        self.position = position
        self._started: list[SyncTicket] = []
        self._retired: list[ActiveSegment] = []

    def start(self, segment: ActiveSegment, end_offset: int) -> SyncTicket:
        """Everything that was appended so far is to become durable."""
        ticket = SyncTicket(end_offset, segment.byte_count, segment)
        self._started.append(ticket)
        return ticket

    def complete(self, ticket: SyncTicket) -> None:
        """It is durable."""
        self._end(ticket)
        if ticket.end_offset > self.end_offset:
            self.end_offset, self.position = ticket.end_offset, ticket.position

    def fail(self, ticket: SyncTicket) -> None:
        """Nobody knows what is durable of what was written since the last good sync."""
        self._end(ticket)

    def sealed(self, end_offset: int, position: int) -> None:
        """The active segment was synced whole, to be sealed or closed."""
        self.end_offset, self.position = end_offset, position

    def rolled(self, old: ActiveSegment) -> None:
        """A new segment begins at the end; the old one is closed when no sync needs it."""
        self.position = 0
        self._retired.append(old)
        self._close_retired()

    def close(self) -> None:
        """Give back what is still open of rolled segments."""
        self._started.clear()
        self._close_retired()

    def _end(self, ticket: SyncTicket) -> None:
        assert ticket in self._started, "each sync ends once"
        self._started.remove(ticket)
        self._close_retired()

    def _close_retired(self) -> None:
        if not self._started:
            for segment in self._retired:
                segment.close()
            self._retired.clear()
