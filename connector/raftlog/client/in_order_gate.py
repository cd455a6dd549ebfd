"""The order of one sender's appends where there is no room for one of them.

Rules of this file:

1. A sender has several appends under way, and sends again what found no room. Whatever of his
   comes behind it is refused too, or a small one would overtake a large one.
2. When one that was refused comes again, its sender knows: he sends all of them again, in order,
   and nothing of his is under way any more. So it may be placed, and those behind it.
3. Only appends with an identity are kept in order. Others are never known to come again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from raftlog.errors import RaftlogError

REFUSED_MAX: Final = 16
"""More than a sender has under way who keeps an order (Kafka: ``max.in.flight.requests.per.
connection``, 5 with idempotence). One who never sends again is refused no oftener."""


class InOrderGate:
    """The appends of one connection to a leader. ``identity``: by what an append is known when it
    comes again."""

    __slots__ = ("_refusal", "_refused")

    def __init__(self) -> None:
        self._refusal: RaftlogError | None = None
        self._refused: set[Hashable] = set()

    def refusal_of(self, identity: Hashable | None) -> RaftlogError | None:
        """Why an append must not be placed now, though there may be room for it."""
        if identity in self._refused:
            self._clear()
        return None if identity is None else self._refusal

    def refuse(self, identity: Hashable | None, refusal: RaftlogError) -> None:
        """An append found no room, or came behind one that found none."""
        if identity is None:
            return
        self._refusal = refusal
        self._refused.add(identity)
        if len(self._refused) == REFUSED_MAX:
            self._clear()

    def _clear(self) -> None:
        self._refusal = None
        self._refused.clear()
