"""What one connection holds, by the reason why."""

from __future__ import annotations

from .request_budget import BudgetShare


class HeldBytes:
    """Counts that a connection keeps, and of which a budget knows the sum that it was told last."""

    __slots__ = (
        "_told_byte_count",
        "arrived_byte_count",
        "queued_byte_count",
        "turns_byte_count",
        "unread_byte_count",
    )

    def __init__(self) -> None:
        self.arrived_byte_count = 0
        """Of the frame that is on its way in, what is here."""
        self.queued_byte_count = 0
        """Of frames whose questions are not begun."""
        self.turns_byte_count = 0
        """Of questions under way, and of answers that wait for those to older ones."""
        self.unread_byte_count = 0
        """Of answers that the peer has not taken, as they were counted last."""
        self._told_byte_count = 0

    @property
    def byte_count(self) -> int:
        """All of it."""
        return (
            self.arrived_byte_count
            + self.queued_byte_count
            + self.turns_byte_count
            + self.unread_byte_count
        )

    def tell(self, budget: BudgetShare) -> None:
        """Have the budget know what is held by now: always the same budget."""
        before = self._told_byte_count
        self._told_byte_count = self.byte_count
        more = self._told_byte_count - before
        if more > 0:
            budget.take(more)
        elif more < 0:
            budget.give(-more)

    def clear_frames(self) -> None:
        """What came in and is not begun is forgotten."""
        self.arrived_byte_count = self.queued_byte_count = 0

    def clear(self) -> None:
        """Everything is forgotten: nobody is there any more."""
        self.clear_frames()
        self.turns_byte_count = self.unread_byte_count = 0
