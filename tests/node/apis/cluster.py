"""Nodes that serve clients: real replicas on simulated disks, one process, virtual time.

Invariants:

1. Messages between nodes are delivered and syncs completed immediately, unless they are held. Time
   advances only when a test advances it.
2. Delayed requests are checked after every step of their node, as by the real driver.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from raftlog.append import AppendRequest
from raftlog.log.writing.properties import LogConfig
from raftlog.node.access import Principal, Rights
from raftlog.node.apis import ClientApis
from raftlog.node.memory_pool import MemoryPool
from raftlog.node.pending_appends import PendingAppends
from raftlog.node.purgatory import AppendPurgatory, Complete, FetchPurgatory
from raftlog.node.raft_node import RaftNode
from raftlog.node.replica import Outgoing, Replica, RunSync
from raftlog.node.request import Request, Session
from raftlog.quorum import messages
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    LeaderChanged,
    ReadIndexConfirmed,
    Reply,
    Send,
)
from raftlog.quorum.events import (
    Event,
    RequestReceived,
    Resign,
    ResponseReceived,
    SendFailed,
    TimePassed,
)
from raftlog.quorum.messages import Response
from raftlog.quorum.roles import Leader
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.types import ReplicaKey
from raftlog.wire import ApiKey, Listener, LogIdentity, RequestHeader, decode, encode
from raftlog.wire.errors import WireError
from tests.simulated_disk.simulated_disk import SimulatedDisk

TOPIC: Final = "orders"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAZw"
CLUSTER_ID: Final = "AAAAAAAAAAAAAAAAAAAAxQ"
TIME_MS: Final = 1_700_000_000_000
ALL_RIGHTS: Final = Rights.DESCRIBE | Rights.READ | Rights.APPEND | Rights.ADMIN | Rights.VOTE
_TURNS: Final = 50
T = TypeVar("T")


def caller(
    rights: Rights = ALL_RIGHTS, listener: Listener = Listener.CLIENTS | Listener.VOTERS
) -> Principal:
    return Principal(name="client", node_id=None, listener=listener, rights=rights)


def session(principal: Principal | None = None) -> Session:
    """Return the session of a client connection, with unlimited memory."""
    return Session(
        caller() if principal is None else principal, MemoryPool(2**30).share_of("a test")
    )


class Caller:
    """Connection with one request; ``response`` is the body of its response, or its error."""

    where = "127.0.0.1:50000"

    def __init__(self) -> None:
        self.response: Final[asyncio.Future[bytes | None]] = asyncio.Future()
        self.tasks: Final[set[asyncio.Task[None]]] = set()

    def respond(self, request: Request[Any], body: bytes | Sequence[bytes] | None) -> None:
        if body is not None and not isinstance(body, bytes):
            body = b"".join(body)
        is_last = body is not None and request.closes_connection
        self.response.set_result(LastResponse(body) if is_last and body is not None else body)

    def refuse(self, why: WireError | str) -> None:
        self.response.set_exception(why if isinstance(why, WireError) else AssertionError(why))

    def finish(self) -> None:
        assert isinstance(self.response.result(), LastResponse)


def asked(
    apis: ClientApis,
    key: ApiKey,
    version: int,
    frame: bytes,
    body_start: int = 0,
    of: Session | None = None,
) -> asyncio.Future[bytes | None]:
    """Start a request as a connection of its own does; return its response."""
    header = RequestHeader(api_key=key, api_version=version, correlation_id=1)
    caller = Caller()
    try:
        apis.start(Request(of or session(), header, frame, body_start, caller))
    except WireError as error:
        caller.refuse(error)
    return caller.response


class LastResponse(bytes):
    """Body of a response after which the connection is closed."""


@dataclass(slots=True, eq=False)
class _Timer:
    """Call at a time of a cluster, with the part of ``asyncio.TimerHandle`` that is used."""

    due_ms: float
    call: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass(slots=True, eq=False)
class _Waiter:
    is_due: Callable[[], bool]
    future: asyncio.Future[bool]
    deadline_ms: int


class Node:
    """Node, with the part of ``Driver`` that request handlers use."""

    def __init__(self, cluster: Cluster, voter: Voter, log_config: LogConfig) -> None:
        self.node_id: Final = voter.key.node_id
        self.disk = SimulatedDisk(self.node_id)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.is_sync_held = False
        self.is_cut_off = False
        self._cluster = cluster
        self._held: list[RunSync] = []
        self._replies: dict[int, Callable[[Response], None]] = {}
        self._next_request_id = 1
        self._timers: list[_Timer] = []
        self._waiters: list[_Waiter] = []
        self.replica = Replica.open(
            self.disk,
            f"/data/{TOPIC}-0",
            local_voter=voter,
            voters=cluster.voters,
            kraft_version=1,
            log_config=log_config,
            topic_id=TOPIC_ID,
            config=QuorumConfig(),
            jitter_ms=lambda bound: (self.node_id * 97) % bound,
            now_ms=cluster.now_ms,
            time_ms=self.time_ms(),
        )
        self._purgatory = AppendPurgatory(self.replica.log.path, self.now_ms, self._call_later)
        self.fetches = FetchPurgatory(
            self.replica,
            self.now_ms,
            self._call_later,
            lambda call: asyncio.get_running_loop().call_soon(call),
        )
        self._appends = PendingAppends(self.replica, self._purgatory.complete)
        self.apis = ClientApis(cast("RaftNode", self))

    # --- used by request handlers -----------------------------------------------------------------

    @property
    def identity(self) -> LogIdentity:
        return LogIdentity(topic=TOPIC, topic_id=TOPIC_ID, cluster_id=CLUSTER_ID)

    def now_ms(self) -> int:
        return self._cluster.now_ms

    def time_ms(self) -> int:
        return TIME_MS + self._cluster.now_ms

    def append(
        self, request: AppendRequest, complete: Complete, *, timeout_ms: int | None = None
    ) -> None:
        self._purgatory.add(request, complete, timeout_ms)
        self._do(lambda now, time: self._appends.submit([request], now_ms=now, time_ms=time))

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        timer = _Timer(self.now_ms() + 1000 * delay_s, call)
        self._timers.append(timer)
        return cast("asyncio.TimerHandle", timer)

    async def wait_until(self, is_due: Callable[[], bool], *, timeout_ms: int) -> bool:
        if is_due():
            return True
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        deadline_ms = self.now_ms() + timeout_ms
        self._waiters.append(_Waiter(is_due, future, deadline_ms))
        self._wake()
        return await future

    # --- events -----------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return isinstance(self.replica.core.role, Leader)

    def notify(self, event: Event) -> None:
        self._do(lambda now, time: self.replica.step(event, now_ms=now, time_ms=time))

    def receive(self, request: messages.Request, reply: Callable[[Response], None]) -> None:
        request_id = self._next_request_id
        self._next_request_id += 1
        self._replies[request_id] = reply
        self.notify(RequestReceived(request_id, request))

    def release_syncs(self) -> None:
        self.is_sync_held = False
        held, self._held = self._held, []
        for one in held:
            self._run(one)

    def _do(self, act: Callable[[int, int], list[Outgoing]]) -> None:
        for one in act(self.now_ms(), self.time_ms()):
            self._execute_outputs(one)
        self._wake()
        self._cluster.deliver()

    def _execute_outputs(self, outgoing: Outgoing) -> None:
        match outgoing:
            case Send():
                self._cluster.carry(self, outgoing)
            case Reply(request_id, response):
                reply = self._replies.pop(request_id)
                reply(response)
            case RunSync():
                if self.is_sync_held:
                    self._held.append(outgoing)
                else:
                    self._cluster.later(lambda: self._run(outgoing))
            case ReadIndexConfirmed(ticket):
                self._appends.confirmed(ticket)
            case AdvanceHighWatermark() | LeaderChanged():
                self._appends.poll()
            case _:
                pass

    def _run(self, sync: RunSync) -> None:
        sync.ticket.run()
        ticket = sync.ticket
        self._do(lambda now, time: self.replica.complete_sync(ticket, now_ms=now, time_ms=time))

    def _wake(self) -> None:
        due = [one for one in self._timers if one.due_ms <= self.now_ms()]
        self._timers = [one for one in self._timers if one.due_ms > self.now_ms()]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()
        for waiter in list(self._waiters):
            if waiter.future.done():
                self._waiters.remove(waiter)
            elif waiter.is_due():
                waiter.future.set_result(True)
            elif self.now_ms() >= waiter.deadline_ms:
                waiter.future.set_result(False)
        self.fetches.poll()

    # --- requests ---------------------------------------------------------------------------------

    def start(
        self, key: ApiKey, version: int, request: Any, principal: Principal | Session
    ) -> asyncio.Future[bytes | None]:
        """Start a request as a connection does; return its response. Each caller has a connection
        of its own."""
        frame = b"head" + encode(request, version)
        of = principal if isinstance(principal, Session) else session(principal)
        return asked(self.apis, key, version, frame, 4, of)

    async def ask_client(
        self,
        key: ApiKey,
        version: int,
        request: Any,
        kind: type[T],
        principal: Principal | None = None,
    ) -> T:
        """Return the response to a request that is answered without time advancing."""
        task = self.start(key, version, request, caller() if principal is None else principal)
        await settle()
        assert task.done(), "it is delayed"
        return answer_of(task, kind, version)


class Cluster:
    """Some nodes, and the messages in flight between them."""

    def __init__(
        self, count: int = 1, config: LogConfig | None = None, *, names_clients: bool = True
    ) -> None:
        """``names_clients``: whether voters register their client listeners."""
        self.now_ms = 0
        self._due: deque[Callable[[], None]] = deque()
        self._is_delivering = False
        self.voters = VoterSet.of(
            Voter(
                key=ReplicaKey(at, f"AAAAAAAAAAAAAAAAAAAA{'ABCDEF'[at]}A"),
                endpoints=(
                    Endpoint("CONTROLLER", f"node{at}", 9000 + at),
                    Endpoint("CLIENTS", f"node{at}.public", 9100 + at),
                )[: 1 + names_clients],
            )
            for at in range(1, count + 1)
        )
        self.nodes = [Node(self, voter, config or LogConfig()) for voter in self.voters]

    @property
    def leader(self) -> Node:
        """Return the leader of the latest epoch."""
        found = [node for node in self.nodes if node.is_leader]
        return max(found, key=lambda node: node.replica.core.epoch)

    @property
    def follower(self) -> Node:
        return next(node for node in self.nodes if not node.is_leader)

    def elect(self) -> Node:
        """Advance time until a node leads and all nodes know it."""
        for node in self.nodes:
            node.notify(TimePassed())
        for _ in range(100):
            if any(node.is_leader for node in self.nodes) and self._agree():
                return self.leader
            self.pass_time(100)
        raise AssertionError("no leader was elected")

    def _agree(self) -> bool:
        epochs = {node.replica.core.epoch for node in self.nodes if not node.is_cut_off}
        return len(epochs) == 1 and bool(self.leader.replica.core.high_watermark)

    def pass_time(self, time_ms: int) -> None:
        """Advance time in small steps."""
        until_ms = self.now_ms + time_ms
        while self.now_ms < until_ms:
            self.now_ms = min(self.now_ms + 50, until_ms)
            for node in self.nodes:
                node.notify(TimePassed())

    def change_leader(self) -> Node:
        """Elect another leader."""
        old = self.leader
        epoch = old.replica.core.epoch
        old.notify(Resign(epoch))
        for _ in range(100):
            self.pass_time(100)
            found = [node for node in self.nodes if node.is_leader]
            if found and self.leader.replica.core.epoch > epoch and self._agree():
                return self.leader
        raise AssertionError("no leader was elected")

    # --- messages in flight -----------------------------------------------------------------------

    def later(self, act: Callable[[], None]) -> None:
        self._due.append(act)

    def carry(self, source: Node, sent: Send) -> None:
        target = next(node for node in self.nodes if node.node_id == sent.node_id)
        if source.is_cut_off or target.is_cut_off:
            self._due.append(lambda: source.notify(SendFailed(sent.correlation_id)))
            return

        def reply(response: Response) -> None:
            received = ResponseReceived(sent.correlation_id, response)
            if not (source.is_cut_off or target.is_cut_off):
                self._due.append(lambda: source.notify(received))

        self._due.append(lambda: target.receive(sent.request, reply))

    def deliver(self) -> None:
        if self._is_delivering:
            return
        self._is_delivering = True
        try:
            while self._due:
                self._due.popleft()()
        finally:
            self._is_delivering = False


async def settle() -> None:
    """Deliver all messages and complete all syncs, without advancing time."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def answer_of(task: asyncio.Future[Any], kind: type[T], version: int) -> T:
    """Return the decoded content of a response."""
    body = task.result()
    assert isinstance(body, bytes)
    return decode(kind, version, bytes(body))


def is_last(task: asyncio.Future[Any]) -> bool:
    return isinstance(task.result(), LastResponse)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
