"""Which requests of a replica are on their way: one to a node at a time, each with its end.

Rules of this file:

1. An answer is taken once, and only for the request it belongs to: what was forgotten, answered or
   given up is answered in vain. A replica that changes its role forgets everything.
2. After a failure the node is left alone for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Request


@dataclass(frozen=True, slots=True)
class InFlightRequest:
    """A request that was sent and not answered yet."""

    correlation_id: int
    node_id: int
    request: Request
    deadline_ms: int


class RequestManager:
    """What is on its way, by node."""

    def __init__(self) -> None:
        self._next_id = 1
        self._in_flight: dict[int, InFlightRequest] = {}
        self._not_before_ms: dict[int, int] = {}

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Whether this node may be asked something now."""
        return node_id not in self._in_flight and now_ms >= self._not_before_ms.get(node_id, 0)

    def start(self, node_id: int, request: Request, *, deadline_ms: int) -> int:
        """Note a request; its correlation id."""
        correlation_id = self._next_id
        self._next_id += 1
        self._in_flight[node_id] = InFlightRequest(correlation_id, node_id, request, deadline_ms)
        return correlation_id

    def complete(self, correlation_id: int) -> InFlightRequest | None:
        """The request that this answers; None if nobody waits for it."""
        for node_id, found in self._in_flight.items():
            if found.correlation_id == correlation_id:
                del self._in_flight[node_id]
                return found
        return None

    def back_off(self, node_id: int, until_ms: int) -> None:
        """Ask this node nothing before ``until_ms``."""
        self._not_before_ms[node_id] = until_ms

    def expire(self, now_ms: int) -> list[InFlightRequest]:
        """Give up what was not answered in time."""
        expired = [one for one in self._in_flight.values() if now_ms >= one.deadline_ms]
        for one in expired:
            del self._in_flight[one.node_id]
        return expired

    def reset(self) -> None:
        """Whatever comes back now is not for us any more."""
        self._in_flight.clear()
        self._not_before_ms.clear()

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When something is to be given up, or a node may be asked again."""
        times = [one.deadline_ms for one in self._in_flight.values()]
        times += [at for at in self._not_before_ms.values() if at > now_ms]
        return min(times, default=None)
