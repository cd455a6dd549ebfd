"""Nodes that serve clients: real replicas on simulated disks, one process, virtual time.

Invariants:

1. Messages between nodes are delivered and syncs completed immediately, unless they are held. Time
   advances only when a test advances it.
2. A node is a real ``RaftNode``. Its appends are submitted and its timers expire in its steps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from raftlog.clock import Clock
from raftlog.errors import RaftlogError
from raftlog.log.cleaning.compaction import Compaction
from raftlog.log.remote.tiering import RemoteLogRun
from raftlog.log.writing.active_segment import PendingSync
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import TombstonesMissedError
from raftlog.node.access import Principal, Rights
from raftlog.node.apis import ClientApis
from raftlog.node.memory_pool import MemoryPool
from raftlog.node.raft_node import CleaningRefused, Notification, RaftNode, RemoteStorage
from raftlog.node.replica import Replica
from raftlog.node.request import Request, Session
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import Send
from raftlog.quorum.events import Event, Resign, ResponseReceived, SendFailed, TimePassed
from raftlog.quorum.messages import FetchRequest, Response
from raftlog.quorum.roles import Leader
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.storage.objects import StorageObjects
from raftlog.types import Operation, ReplicaKey, Resource
from raftlog.wire import ApiKey, Listener, LogIdentity, RequestHeader, decode, encode
from raftlog.wire.errors import WireError
from tests.log.remote.stored_backups import surroundings
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


class Acls:
    """ACLs that allow these operations, and deny all others."""

    is_ready = True

    def __init__(self, *allowed: tuple[Operation, Resource]) -> None:
        self._allowed = allowed

    def authorize(
        self, _principal: str, _host: str, operation: Operation, resource: Resource
    ) -> bool | None:
        return (operation, resource) in self._allowed

    def allowed_operations(self, _principal: str, _host: str) -> Iterable[Operation]:
        return {operation for operation, _ in self._allowed}


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
        self.time_s: Final = asyncio.get_running_loop().time

    def respond(self, request: Request[Any], body: bytes | Sequence[bytes] | None) -> None:
        if body is not None and not isinstance(body, bytes):
            body = b"".join(body)
        is_last = body is not None and request.closes_connection
        self.response.set_result(LastResponse(body) if is_last and body is not None else body)

    def refuse(self, why: WireError | str) -> None:
        self.response.set_exception(why if isinstance(why, WireError) else AssertionError(why))

    def finish(self) -> None:
        assert isinstance(self.response.result(), LastResponse)

    def mute(self) -> bool:
        raise AssertionError("no client has a quota")

    def unmute(self) -> None:
        raise AssertionError("no client has a quota")


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


class Node:
    """Node of a cluster: ``Runner`` of its ``RaftNode``."""

    def __init__(self, cluster: Cluster, voter: Voter, log_config: LogConfig) -> None:
        self.node_id: Final = voter.key.node_id
        self.disk = cluster.create_disk(self.node_id)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.is_sync_held = self.is_remote_held = False
        self.is_cut_off = False
        self.is_stopped = False
        """Whether connections to it are refused, as after its end, if it is cut off."""
        self.refetch_count = 0
        """How often it has deleted its log, to fetch it again."""
        self.refusals: Final[list[RaftlogError]] = []
        """Why segments were not deleted, compacted or copied."""
        self._cluster = cluster
        self._held: list[PendingSync] = []
        self.held_runs: list[RemoteLogRun] = []
        """Runs of remote storage that were begun while those are held."""
        self._is_turn_due = False
        self._voter, self._log_config = voter, log_config
        self._open()

    def restart(self) -> None:
        """Kill the node, and open its log again."""
        self.disk.kill()
        self._open()

    def _open(self) -> None:
        cluster = self._cluster
        replica = Replica.open(
            self.disk,
            f"/data/{TOPIC}-0",
            local_voter=self._voter,
            voters=cluster.voters,
            kraft_version=1,
            log_config=self._log_config,
            topic_id=TOPIC_ID,
            config=QuorumConfig(),
            jitter_ms=lambda bound: (self.node_id * 97) % bound,
            now_ms=cluster.now_ms,
            time_ms=self.time_ms(),
        )
        identity = LogIdentity(
            topic=TOPIC,
            topic_id=TOPIC_ID,
            cluster_id=CLUSTER_ID,
            rack=cluster.racks.get(self.node_id, ""),
        )
        clock = Clock(wall_ms=self.time_ms, now_ms=lambda: cluster.now_ms)
        remote = RemoteStorage(
            cluster.open_store,
            surroundings(self.node_id),
            reader_threads=cluster.reader_threads,
            reader_max_pending_tasks=cluster.reader_max_pending_tasks,
            fetch_max_wait_ms=cluster.fetch_max_wait_ms,
        )
        self.raft_node = RaftNode(
            replica,
            identity,
            self,
            clock,
            clean_interval_ms=cluster.clean_interval_ms,
            remote=remote,
        )
        self.apis = ClientApis(self.raft_node)

    @property
    def replica(self) -> Replica:
        return self.raft_node.replica

    @property
    def is_leader(self) -> bool:
        return isinstance(self.replica.core.role, Leader)

    def time_ms(self) -> int:
        return TIME_MS + self._cluster.now_ms

    def step(self, event: Event) -> None:
        self.raft_node.step(event)

    def release_syncs(self) -> None:
        self.is_sync_held = False
        held, self._held = self._held, []
        for one in held:
            self._sync(one)

    def release_remote(self) -> None:
        self.is_remote_held = False
        held, self.held_runs = self.held_runs, []
        for one in held:
            self.run_remote(one)
        self._cluster.deliver()

    # --- outputs ----------------------------------------------------------------------------------

    def send(self, request: Send) -> None:
        self._cluster.carry(self, request)

    def run_sync(self, ticket: PendingSync) -> None:
        if self.is_sync_held:
            self._held.append(ticket)
        else:
            self._cluster.later(lambda: self._sync(ticket))

    def run_compaction(self, compaction: Compaction) -> None:
        def run() -> None:
            compaction.run()
            self.raft_node.complete_compaction(compaction)

        self._cluster.later(run)

    def run_remote(self, run: RemoteLogRun) -> None:
        def copy() -> None:
            run.run()
            self.raft_node.complete_remote_run(run)

        if self.is_remote_held:
            self.held_runs.append(run)
        else:
            self._cluster.later(copy)

    def _sync(self, ticket: PendingSync) -> None:
        ticket.run()
        self.raft_node.complete_sync(ticket)

    def notify(self, notification: Notification) -> None:
        if isinstance(notification, CleaningRefused):
            self.refusals.append(notification.error)

    def set_timer(self) -> None:
        deadline_ms = self.raft_node.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= self._cluster.now_ms:
            self._take_turn_later()
        self._cluster.deliver()

    def _take_turn_later(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._cluster.later(self._take_turn)

    def _take_turn(self) -> None:
        self._is_turn_due = False
        self.raft_node.pass_time()

    def submit_soon(self) -> None:
        self.raft_node.submit()

    def failed(self, error: Exception) -> None:
        if not isinstance(error, TombstonesMissedError):
            raise error
        self.refetch_count += 1
        self._cluster.later(self.restart)  # as the process does

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

    reader_threads = 1
    reader_max_pending_tasks = 100
    fetch_max_wait_ms = 5_000
    clean_interval_ms: int | None = None

    def __init__(
        self,
        count: int = 1,
        config: LogConfig | None = None,
        *,
        names_clients: bool = True,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        """``names_clients``: whether voters register their client listeners. ``racks``: those of
        the nodes that have one."""
        self.now_ms = 0
        self.racks: Final = racks or {}
        self.remote_disk = SimulatedDisk()
        """Disk of the object store of a log with remote storage."""
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
        self.nodes = [
            Node(self, voter, self.config_of(voter.key.node_id, config or LogConfig()))
            for voter in self.voters
        ]

    def config_of(self, _node_id: int, config: LogConfig) -> LogConfig:
        return config

    def create_disk(self, node_id: int) -> SimulatedDisk:
        return SimulatedDisk(node_id)

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
            node.step(TimePassed())
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
                node.raft_node.pass_time()

    def change_leader(self) -> Node:
        """Elect another leader."""
        old = self.leader
        epoch = old.replica.core.epoch
        old.step(Resign(epoch))
        for _ in range(100):
            self.pass_time(100)
            found = [node for node in self.nodes if node.is_leader]
            if found and self.leader.replica.core.epoch > epoch and self._agree():
                return self.leader
        raise AssertionError("no leader was elected")

    def open_store(self, uri: str) -> StorageObjects:
        return StorageObjects(self.remote_disk, uri)

    # --- messages in flight -----------------------------------------------------------------------

    def later(self, act: Callable[[], None]) -> None:
        self._due.append(act)

    def carry(self, source: Node, sent: Send) -> None:
        target = next(node for node in self.nodes if node.node_id == sent.node_id)
        if source.is_cut_off or target.is_cut_off:
            failed = SendFailed(sent.correlation_id, is_refused=target.is_stopped)
            self._due.append(lambda: source.step(failed))
            return

        def reply(response: Response) -> None:
            received = ResponseReceived(sent.correlation_id, response)
            if not (source.is_cut_off or target.is_cut_off):
                self._due.append(lambda: source.step(received))

        def deliver() -> None:
            if isinstance(sent.request, FetchRequest):
                target.raft_node.note_rack(source.node_id, source.raft_node.identity.rack)
            target.raft_node.receive(sent.request, reply)

        self._due.append(deliver)

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
