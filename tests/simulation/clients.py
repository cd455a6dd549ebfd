"""Processes with the product's client, each with a handle that several users share.

Invariants:

1. Everything between a user's append and the replica is the product's: accumulator, sender, search
   of the leader, frames, handlers. Only loop, connections and time are simulated.
2. A refusal is definite: an append that may have been written has an unknown outcome.
3. Appends of a handle without conditions keep their order: of two that succeeded, the first one
   has the lower offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, TypeVar, cast

from raftlog import ValueKind
from raftlog.append import AppendRequest, AppendResult, Done, RequestResult, failed
from raftlog.client.remote.connection import NetworkThread
from raftlog.client.remote.metadata import Metadata
from raftlog.client.remote.nodes import Address
from raftlog.client.remote.producer_batches import LogSettings
from raftlog.client.remote.sender import Sender
from raftlog.clock import Clock
from raftlog.errors import QuorumUnavailableError, RaftlogError
from raftlog.limits import MIB
from raftlog.records.compression import Compression

from .cluster import CLIENTS_FROM, Cluster
from .driven_node import TIME_MS
from .event_loop import SimulatedLoop
from .invariants import InvariantViolationError
from .users import Kind, Operation, Outcome, User

SETTINGS: Final = LogSettings(ValueKind.BYTES, 8 * MIB, Compression.NONE)
TIMEOUTS_MS: Final = (1_000, 5_000, 15_000)

T = TypeVar("T")


class _Network(NetworkThread):
    """Network of a client, without a thread: its loop is simulated."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__("simulated", lambda: None)
        self._simulated = loop

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._simulated)

    def call(self, function: Callable[[], object]) -> None:
        self._simulated.call_soon(function)

    @property
    def is_this_thread(self) -> bool:
        return True


class Client:
    """Process with one handle of the product's client."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster = cluster
        self.id: Final = CLIENTS_FROM + number
        world = cluster.world
        self._loop = SimulatedLoop(cluster.peers, self.id, world.after)
        addresses = tuple(Address("simulated", node_id) for node_id in cluster.nodes)
        draw = world.chance(f"client {number}").random
        self.plain: Final[list[Operation]] = []
        """Appends without conditions, in the order in which they were queued."""
        self._sender = Sender(
            Metadata(addresses, None, draw=draw),
            _Network(self._loop),
            SETTINGS,
            Clock(wall_ms=lambda: TIME_MS + world.now_ms, now_ms=lambda: world.now_ms),
        )

    def append(self, request: AppendRequest) -> None:
        """Queue an append."""
        self._sender.append(request)

    def close(self) -> None:
        """End the process. Appends without a result have an unknown one."""
        self._sender.close()
        self._loop.cancel_tasks()


class ClientUser(User):
    """User of a handle that it shares with others."""

    def __init__(
        self, cluster: Cluster, client: Client, number: int, book: list[Operation], pause_us: int
    ) -> None:
        super().__init__(cluster, client.id + 10 * number, book, pause_us)
        self._client = client

    def _send(self) -> None:
        operation, cluster = self._operation, self._cluster
        assert operation is not None
        self._attempt += 1
        attempt = self._attempt
        deadline_ms = cluster.world.now_ms + self._chance.choice(TIMEOUTS_MS)
        request = replace(self._new_request(operation), deadline_ms=deadline_ms, future=Future())
        request.future.add_done_callback(
            lambda done: cluster.world.after(0, lambda: self._complete(attempt, done))
        )
        if operation.kind is Kind.PLAIN:
            self._client.plain.append(operation)
        self._client.append(request)

    def _complete(self, attempt: int, done: Future[AppendResult]) -> None:
        error = done.exception()
        answer: RequestResult
        answer = Done(done.result()) if error is None else failed(cast("RaftlogError", error))
        outcome = "done" if error is None else type(error).__name__
        self._cluster.count(f"result of a client: {outcome}")
        self._deliver_result(attempt, answer, None)

    def _fault(self, operation: Operation, error: RaftlogError) -> None:
        if isinstance(error, QuorumUnavailableError):
            self._nothing_written(operation, self._attempt)
        else:
            super()._fault(operation, error)


def check_order(client: Client) -> None:
    """Raise ``InvariantViolationError`` if two plain appends of a client changed places."""
    done = [one for one in client.plain if one.outcome is Outcome.DONE]
    for earlier, later in pairwise(done):
        assert earlier.end_offset is not None, "it is done"
        assert later.base_offset is not None, "it is done"
        if later.base_offset < earlier.end_offset:
            raise InvariantViolationError(f"order of a client: {earlier} is after {later}")
