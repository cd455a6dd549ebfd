"""Memory that one connection holds, by purpose."""

from __future__ import annotations

from .request_budget import BudgetShare


class HeldBytes:
    """Byte counts of a connection. ``report`` adds changes of their sum to a memory budget."""

    __slots__ = (
        "_reported_byte_count",
        "arrived_byte_count",
        "queued_byte_count",
        "turns_byte_count",
        "unread_byte_count",
    )

    def __init__(self) -> None:
        self.arrived_byte_count = 0
        """Received part of an incomplete frame."""
        self.queued_byte_count = 0
        """Frames of requests that are not started."""
        self.turns_byte_count = 0
        """Requests in flight, and responses that wait for the responses to older requests."""
        self.unread_byte_count = 0
        """Responses that the peer has not read, at the last count."""
        self._reported_byte_count = 0

    @property
    def byte_count(self) -> int:
        """Return the sum of all counts."""
        return (
            self.arrived_byte_count
            + self.queued_byte_count
            + self.turns_byte_count
            + self.unread_byte_count
        )

    def report(self, budget: BudgetShare) -> None:
        """Add the change since the last report to the budget, which must always be the same."""
        before = self._reported_byte_count
        self._reported_byte_count = self.byte_count
        more = self._reported_byte_count - before
        if more > 0:
            budget.take(more)
        elif more < 0:
            budget.give(-more)

    def clear_frames(self) -> None:
        """Clear the counts of requests that are not started."""
        self.arrived_byte_count = self.queued_byte_count = 0

    def clear(self) -> None:
        """Clear all counts, after the connection is lost."""
        self.clear_frames()
        self.turns_byte_count = self.unread_byte_count = 0
