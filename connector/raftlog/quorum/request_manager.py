"""In-flight requests of a replica: at most one per node, each with a timeout.

A response is accepted once, and only for an in-flight request; responses to expired or reset
requests are ignored. A role change resets all requests. After a failure, no request is sent to the
node until its backoff has passed.

Kafka: ``RequestManager``.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.fast_dataclass import fast_init

from .messages import Request


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightRequest:
    """A request that was sent and has no response yet."""

    correlation_id: int
    node_id: int
    request: Request
    deadline_ms: int


class RequestManager:
    """In-flight requests and backoffs, by node id."""

    def __init__(self) -> None:
        self._next_id = 1
        self._in_flight: dict[int, InFlightRequest] = {}
        self._not_before_ms: dict[int, int] = {}

    def is_ready(self, node_id: int, now_ms: int) -> bool:
        """Return whether a request may be sent to this node now."""
        return node_id not in self._in_flight and now_ms >= self._not_before_ms.get(node_id, 0)

    def start(self, node_id: int, request: Request, *, deadline_ms: int) -> int:
        """Register a request; return its correlation id."""
        correlation_id = self._next_id
        self._next_id += 1
        self._in_flight[node_id] = InFlightRequest(
            correlation_id=correlation_id, node_id=node_id, request=request, deadline_ms=deadline_ms
        )
        return correlation_id

    def complete(self, correlation_id: int) -> InFlightRequest | None:
        """Remove and return the in-flight request with this id, if any."""
        for node_id, found in self._in_flight.items():
            if found.correlation_id == correlation_id:
                del self._in_flight[node_id]
                return found
        return None

    def back_off(self, node_id: int, until_ms: int) -> None:
        """Send no request to this node before ``until_ms``."""
        self._not_before_ms[node_id] = until_ms

    def expire(self, now_ms: int) -> list[InFlightRequest]:
        """Remove and return the requests that timed out."""
        expired: list[InFlightRequest] = []
        for in_flight in self._in_flight.values():
            if now_ms >= in_flight.deadline_ms:
                expired.append(in_flight)
        for in_flight in expired:
            del self._in_flight[in_flight.node_id]
        return expired

    def reset(self) -> None:
        """Remove all requests and backoffs; later responses are ignored."""
        self._in_flight.clear()
        self._not_before_ms.clear()

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """Return when the next request times out or the next backoff ends."""
        at_ms: int | None = None
        for in_flight in self._in_flight.values():
            if at_ms is None or in_flight.deadline_ms < at_ms:
                at_ms = in_flight.deadline_ms
        for until_ms in self._not_before_ms.values():
            if until_ms > now_ms and (at_ms is None or until_ms < at_ms):
                at_ms = until_ms
        return at_ms
