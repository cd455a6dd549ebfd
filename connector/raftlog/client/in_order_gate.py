"""Order of one client's appends after one of them was refused for lack of room.

A client has several appends in flight, and retries the refused one. Its later appends are refused
too, or a small one would overtake a large one. The retry of a refused append shows that the client
retries all of them in order and has no other in flight, so that it and those after it may pass.
Only appends with an identity are kept in order: the retry of any other cannot be recognized.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from raftlog.errors import RaftlogError

REFUSED_MAX: Final = 16
"""Refusals after which a client that does not retry is accepted again. More than an ordered client
has in flight (Kafka: ``max.in.flight.requests.per.connection``, 5 with idempotence)."""


class InOrderGate:
    """Gate for the appends of one connection to a leader.

    ``identity`` of an append is what its retry is recognized by.
    """

    __slots__ = ("_refusal", "_refused")

    def __init__(self) -> None:
        self._refusal: RaftlogError | None = None
        self._refused: set[Hashable] = set()

    def refusal_of(self, identity: Hashable | None) -> RaftlogError | None:
        """Return why an append must be refused although there may be room, or None."""
        if identity in self._refused:
            self._clear()
        return None if identity is None else self._refusal

    def refuse(self, identity: Hashable | None, refusal: RaftlogError) -> None:
        """Record an append that was refused, for lack of room or after such an append."""
        if identity is None:
            return
        self._refusal = refusal
        self._refused.add(identity)
        if len(self._refused) == REFUSED_MAX:
            self._clear()

    def _clear(self) -> None:
        self._refusal = None
        self._refused.clear()
