"""Nodes of a simulated cluster: the real replica on a simulated disk, with deaths and restarts.

Rules of this file:

1. A node does what the real one does: the same ``Replica``, the same files. Only who carries
   messages and who runs syncs is different.
2. Everything a node does is seen by the witness, before anybody else hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from raftlog.client.requests import Answer, AppendRequest, failed
from raftlog.errors import AppendUnknownError, DiskFullError, LogError, LogLockedError
from raftlog.log.writing.properties import LogConfig
from raftlog.node.leader_appends import LeaderAppends
from raftlog.node.listeners import Listeners
from raftlog.node.replica import Outgoing, Replica, RunSync
from raftlog.node.state_log import ReplicaStateLog
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    LeaderChanged,
    LeadershipConfirmed,
    Reply,
    RoleChanged,
    Send,
    Tell,
)
from raftlog.quorum.events import (
    Event,
    RequestReceived,
    Resign,
    ResponseReceived,
    TimePassed,
)
from raftlog.quorum.messages import (
    FetchRequest,
    Request,
    Response,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.storage.simulated import SimulatedDisk
from raftlog.storage.survival import Survival
from raftlog.types import ReplicaKey

from .counters import Counted, WatchedCounter
from .invariants import Witness
from .world import US_PER_MS, Network, World

DIRECTORY: Final = "/data/orders-0"
PIECE_BYTES: Final = 2_000
"""So much a listener is given at once."""
LISTENER_US: Final = 500
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAZw"
EPOCH_MS: Final = 1_700_000_000_000
"""The time of day when a run begins."""


class Asker(Protocol):
    """Who appends, and is told."""

    def hear(self, target: int, attempt: int, answer: Answer, leader_id: int | None, /) -> None:
        """An answer arrives at the node's end. ``leader_id``: who leads, as far as it knows."""


@dataclass(slots=True)
class Disk:
    """How long a sync takes: most are quick, some stall."""

    sync_us: int = 200
    stall_rate: float = 0.0
    stall_us: int = 1_000_000


class Node:
    """One node: alive or dead, with a disk that outlives it."""

    def __init__(self, cluster: Cluster, voter: Voter) -> None:
        self.voter = voter
        self.node_id: Final = voter.key.node_id
        self.disk = SimulatedDisk(cluster.world.seed * 1000 + self.node_id)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.speed = Disk()
        self.is_paused = False
        self._is_flipped = False
        self.seen = (0, 0)
        """Where its log began and ended when it was last looked at."""
        self._held: list[Callable[[], None]] = []
        self._unplaced: list[AppendRequest] = []
        self.life = 0
        self.replica: Replica | None = None
        self.appends: LeaderAppends | None = None
        self.listeners: Listeners | None = None
        self.counter: WatchedCounter | None = None
        self.last_epoch_led: int | None = None
        self._cluster = cluster
        self._answer_to: dict[int, tuple[int, int, int]] = {}
        self._next_request_id = 1
        self._timer_ms: int | None = None

    @property
    def is_alive(self) -> bool:
        return self.replica is not None

    @property
    def is_hurt(self) -> bool:
        """Whether it was damaged and has not caught up since."""
        if self._is_flipped and self.replica is not None and not self.replica.core.is_withdrawn:
            self._is_flipped = False
        return self._is_flipped

    def flip_durable_bit(self, number: int) -> bool:
        """Damage the newest segment where it was synced; whether there was anything to damage."""
        names = [name for name in self.disk.list_names(DIRECTORY) if name.endswith(".log")]
        if not names:
            return False
        path = f"{DIRECTORY}/{names[-1]}"
        durable = self.disk.durable_files().get(path, b"")
        byte_count = min(len(durable), len(self.disk.files()[path]))  # it may be cut, unsynced
        if not byte_count:
            return False
        self.disk.flip_bit(path, number % (8 * byte_count))
        self._is_flipped = True
        return True

    # --- life and death ---------------------------------------------------------------------------

    def start(self) -> None:
        """Open what is on the disk, and take part."""
        cluster, world = self._cluster, self._cluster.world
        assert self.replica is None, "it is dead"
        self.life += 1
        self._answer_to, self._timer_ms = {}, None
        cluster.witness.restarted(self.node_id)
        try:
            self.replica = Replica.open(
                self.disk,
                DIRECTORY,
                me=self.voter,
                voters=cluster.voters,
                kraft_version=cluster.kraft_version,
                log_config=cluster.log_config,
                topic_id=TOPIC_ID,
                config=cluster.config,
                jitter_ms=world.chance(f"jitter {self.node_id}").randrange,
                bootstrap=cluster.bootstrap,
                now_ms=world.now_ms,
                time_ms=EPOCH_MS + world.now_ms,
            )
        except LogError as error:
            world.note(f"{self.node_id} does not start: {error}")
            self._die()
            cluster.after_failure(self)
            return
        self.appends = LeaderAppends(self.replica, cluster.answered)
        if cluster.has_counters:
            self._begin_counting(self.replica)
        self.seen = (self.replica.log.log_start_offset, self.replica.log.end_offset)
        world.note(f"{self.node_id} starts, end offset {self.replica.log.end_offset}")
        self.tell(TimePassed())

    def _begin_counting(self, replica: Replica) -> None:
        world, life = self._cluster.world, self.life

        def act(do: Callable[[int, int], list[Outgoing]]) -> None:
            if self.life == life:
                self._do(lambda _, now, time: do(now, time))

        log = ReplicaStateLog(replica, act, lambda: EPOCH_MS + world.now_ms)
        self.listeners = Listeners(replica, piece_bytes_max=PIECE_BYTES)
        self.counter = WatchedCounter(log, self._cluster.counted)
        self.listeners.register(self.counter)

    def _tell_listeners(self) -> None:
        """One piece, and the next one a little later: a state machine takes its time."""
        if self.listeners is not None and self.listeners.poll():
            life = self.life
            self._cluster.world.after(
                LISTENER_US, lambda: self._tell_listeners() if self.life == life else None
            )

    def kill(self) -> None:
        """The process ends, and the machine goes on."""
        self._cluster.world.note(f"{self.node_id} is killed")
        self._die()
        self.disk.kill()

    def lose_power(self, survival: Survival = Survival.MIXED) -> None:
        """The machine ends: what was not synced may be gone."""
        self._cluster.world.note(f"{self.node_id} loses power")
        self._die()
        self.disk.crash(survival)

    def pause(self) -> None:
        """The process stands still: what comes waits, and its timers do too."""
        self.is_paused = True

    def wake(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for act in held:
            act()

    def _die(self) -> None:
        self.is_paused, self._held = False, []
        self.replica = self.listeners = self.counter = None
        self.life += 1
        unplaced, self._unplaced = self._unplaced, []
        for request in unplaced:
            self._cluster.answered(request, failed(_unknown("the node died")))
        if self.appends is not None:
            self.appends.give_up("the node died")
            self.appends = None

    # --- what happens -----------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Let the replica take an event, now or when it wakes."""
        if self.is_paused:
            life = self.life
            self._held.append(lambda: self.tell(event) if self.life == life else None)
            return
        self._do(lambda replica, now, time: replica.step(event, now_ms=now, time_ms=time))

    def _do(self, act: Callable[[Replica, int, int], list[Outgoing]]) -> None:
        replica, world = self.replica, self._cluster.world
        if replica is None:
            return
        try:
            outgoing = act(replica, world.now_ms, EPOCH_MS + world.now_ms)
        except LogError as error:
            world.note(f"{self.node_id} fails: {error.code}")
            self._die()
            self.disk.kill()
            self._cluster.after_failure(self)
            return
        life = self.life
        for one in outgoing:
            if self.life != life:
                return
            if self.listeners is not None:
                self.listeners.hear(one)
            self._put_out(one)
        if self.life == life and self.appends is not None:
            self.appends.poll()
            self._tell_listeners()
            self._cluster.looked_at(self)
            if self.is_alive and not self.is_paused:
                self._set_timer()

    def _put_out(self, outgoing: Outgoing) -> None:
        cluster, world = self._cluster, self._cluster.world
        replica = self.replica
        assert replica is not None
        match outgoing:
            case Send(correlation_id, target, _, request):
                self._check_sent(request)
                source, life = self.node_id, self.life
                cluster.send_request(source, life, target, correlation_id, request)
            case Reply(request_id, response):
                self._reply(request_id, response)
            case RunSync(ticket):
                life = self.life
                world.after(self._sync_us(), lambda: self._sync(life, ticket))
            case AdvanceHighWatermark(offset):
                world.note(f"{self.node_id} high watermark {offset}")
                cluster.witness.saw_high_watermark(self.node_id, self.life, offset, replica.log)
                cluster.hook("high watermark", self)
            case LeaderChanged():
                self._leader_changed(outgoing)
            case LeadershipConfirmed(ticket):
                assert self.appends is not None
                self.appends.confirmed(ticket)
            case RoleChanged():
                role = outgoing.new.__name__.lower()
                world.note(f"{self.node_id} {role} in epoch {outgoing.epoch}")
            case Tell(text):
                world.note(f"{self.node_id} {text}")
                if text.startswith("it stands still"):
                    cluster.count("stood still")

    def _check_sent(self, request: Request) -> None:
        witness, replica = self._cluster.witness, self.replica
        assert replica is not None
        if isinstance(request, FetchRequest):
            witness.saw_fetch(self.node_id, request.fetch_offset, replica.log)
            return
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            witness.saw_vote(self.node_id, request.epoch, self.node_id)
        written = replica.log.read_election()
        witness.saw_epoch(self.node_id, 0 if written is None else written.leader_epoch)

    def _reply(self, request_id: int, response: Response) -> None:
        cluster = self._cluster
        found = self._answer_to.pop(request_id, None)
        if found is None:
            return
        source, life, correlation_id = found
        watcher = cluster.watched.pop((self.node_id, request_id), None)
        if watcher is not None:
            watcher(response)
        cluster.world.note(f"{self.node_id} -> {source} {_words(response)}")
        cluster.network.send(
            self.node_id,
            source,
            lambda: cluster.nodes[source].receive_response(life, correlation_id, response),
        )

    def receive_request(
        self, source: int, life: int, correlation_id: int, request: Request
    ) -> None:
        if self.replica is None:
            return
        request_id = self._next_request_id
        self._next_request_id += 1
        self._answer_to[request_id] = (source, life, correlation_id)
        if isinstance(request, VoteRequest) and not request.is_pre_vote:
            self._watch_vote(request_id, request)
        self.tell(RequestReceived(request_id, request))

    def _watch_vote(self, request_id: int, request: VoteRequest) -> None:
        node, cluster = self, self._cluster

        def seen(response: Response) -> None:
            if isinstance(response, VoteResponse) and response.is_granted:
                cluster.witness.saw_vote(node.node_id, request.epoch, request.candidate.node_id)
                replica = node.replica
                assert replica is not None
                written = replica.log.read_election()
                assert written is not None
                if written.leader_epoch > request.epoch:
                    return  # it stood still, and more has happened since: no vote there any more
                assert (written.leader_epoch, written.voted_id) == (
                    request.epoch,
                    request.candidate.node_id,
                ), "a vote is written down before it is given"

        cluster.watched[self.node_id, request_id] = seen

    def receive_response(self, life: int, correlation_id: int, response: Response) -> None:
        if self.life == life:
            self.tell(ResponseReceived(correlation_id, response))

    def _sync_us(self) -> int:
        chance, speed = self._cluster.world.chance("disk"), self.speed
        if chance.random() < speed.stall_rate:
            self._cluster.count("stalled sync")
            return int(chance.random() * speed.stall_us)
        return int((0.5 + chance.random()) * speed.sync_us)

    def _sync(self, life: int, ticket: object) -> None:
        from raftlog.log.writing.sync_state import SyncTicket

        assert isinstance(ticket, SyncTicket)
        if self.life != life or self.replica is None:
            return
        if self.is_paused:
            self._held.append(lambda: self._sync(life, ticket))
            return
        self._cluster.hook("between append and sync", self)
        if self.life != life or self.replica is None:
            return
        try:
            ticket.run()
        except LogError as error:
            self._cluster.world.note(f"{self.node_id} cannot sync: {error.code}")
            self.replica.fail_sync(ticket, error)
            self._die()
            self.disk.kill()
            self._cluster.after_failure(self)
            return
        self._cluster.hook("between sync and answer", self)
        if self.life != life:
            return
        self._do(lambda replica, now, time: replica.complete_sync(ticket, now_ms=now, time_ms=time))

    def _set_timer(self) -> None:
        replica, world = self.replica, self._cluster.world
        assert replica is not None
        deadline_ms = replica.next_deadline_ms
        if deadline_ms is None or deadline_ms == self._timer_ms:
            return
        if self._timer_ms is not None and world.now_ms < self._timer_ms <= deadline_ms:
            return
        self._timer_ms = deadline_ms
        life = self.life

        def fire() -> None:
            if self.life == life and self._timer_ms == deadline_ms:
                self._timer_ms = None
                self.tell(TimePassed())

        world.after(deadline_ms * US_PER_MS - world.now_us, fire)

    def _leader_changed(self, change: LeaderChanged) -> None:
        cluster, replica = self._cluster, self.replica
        assert replica is not None
        cluster.world.note(
            f"{self.node_id} knows leader {change.leader_id} of epoch {change.epoch}"
        )
        if change.leader_id == self.node_id:
            cluster.count("election")
            cluster.witness.saw_leader(self.node_id, self.life, change.epoch, replica.log)
            cluster.hook("elected", self)

    # --- users ------------------------------------------------------------------------------------

    def append(self, request: AppendRequest) -> None:
        """A user's append reaches this node."""
        cluster, appends = self._cluster, self.appends
        if self.replica is None or appends is None:
            cluster.answered(request, failed(_unknown("no answer")))
            return
        if self.is_paused:
            life = self.life
            self._held.append(lambda: self.append(request) if self.life == life else None)
            return
        self._unplaced.append(request)
        if len(self._unplaced) == 1:
            # What comes in one turn of a real node's loop is placed together.
            life, turn_us = self.life, cluster.world.chance("turn").choice((0, 0, 300, 3_000))
            cluster.world.after(turn_us, lambda: self._place(life))

    def _place(self, life: int) -> None:
        appends = self.appends
        if self.life != life or appends is None:
            return
        if self.is_paused:
            self._held.append(lambda: self._place(life))
            return
        requests, self._unplaced = self._unplaced, []
        if len(requests) > 1:
            self._cluster.count("appends placed together")
        self._do(lambda _, now, time: appends.submit(requests, now_ms=now, time_ms=time))

    def snapshot(self) -> None:
        """Write a snapshot of what is committed, and begin the log behind it."""
        replica, cluster = self.replica, self._cluster
        if replica is None:
            return
        log, time_ms = replica.log, EPOCH_MS + cluster.world.now_ms
        high_watermark = replica.core.high_watermark
        if high_watermark is None or high_watermark <= log.log_start_offset:
            return
        try:
            if self.counter is not None:
                snapshot_id = log.snapshot_id_at(self.counter.end_offset)
                if not self.counter.snapshot():
                    return
            else:
                snapshot_id = log.snapshot_id_at(high_watermark)
                writer = replica.begin_snapshot(high_watermark, time_ms=time_ms)
                if writer is None:
                    return
                with writer:
                    writer.freeze()
            log.delete_before(snapshot_id)
        except LogError as error:
            cluster.world.note(f"{self.node_id} writes no snapshot: {error.code}")
            return
        cluster.count("snapshot")
        cluster.world.note(f"{self.node_id} snapshot {snapshot_id}")

    def clean(self) -> bool:
        """Let retention forget what it does not keep; whether there was anything."""
        replica, cluster = self.replica, self._cluster
        if replica is None or self.is_paused:
            return False
        try:
            if not replica.clean(time_ms=EPOCH_MS + cluster.world.now_ms):
                return False
        except (DiskFullError, LogLockedError) as error:
            cluster.world.note(f"{self.node_id} forgets nothing: {error.code}")
            return False
        cluster.world.note(f"{self.node_id} begins at {replica.log.log_start_offset}")
        return True

    def change_voters(self, request: Request) -> None:
        """An operator asks this node to change who votes, and does not wait for the answer."""
        if self.replica is not None and not self.is_paused:
            request_id = self._next_request_id
            self._next_request_id += 1
            self._cluster.watched[self.node_id, request_id] = self._cluster.voters_changed
            self._answer_to[request_id] = (self.node_id, -1, 0)
            self.tell(RequestReceived(request_id, request))

    def resign(self) -> None:
        if self.replica is not None:
            self.tell(Resign(self.replica.core.epoch))


def small_log_config(*, retention_bytes: int | None = None) -> LogConfig:
    """Segments and indexes so small that runs have many."""
    return LogConfig(segment_bytes=4_000, index_interval_bytes=300, retention_bytes=retention_bytes)


def _unknown(reason: str) -> AppendUnknownError:
    return AppendUnknownError(path=DIRECTORY, reason=reason)


def _words(message: object) -> str:
    text = repr(message)
    return text if len(text) < 300 else text[:300]


def _voter(node_id: int, is_dynamic: bool) -> Voter:
    key = ReplicaKey(node_id, f"{node_id:021d}A") if is_dynamic else ReplicaKey(node_id)
    return Voter(key=key, endpoints=(Endpoint("PEERS", "simulated", node_id),))


class Cluster:
    """Voters on one network, a witness who sees all, and users."""

    def __init__(
        self,
        world: World,
        *,
        node_count: int = 3,
        observer_count: int = 0,
        is_dynamic: bool = False,
        config: QuorumConfig | None = None,
        log_config: LogConfig | None = None,
        has_counters: bool = False,
    ) -> None:
        self.world = world
        self.has_counters = has_counters
        self.counted = Counted()
        self.network = Network(world)
        self.witness = Witness()
        self.config = config or QuorumConfig()
        self.log_config = log_config or small_log_config()
        self.kraft_version = int(is_dynamic)
        everybody = [
            _voter(node_id, is_dynamic) for node_id in range(1, node_count + observer_count + 1)
        ]
        self.voters = VoterSet.of(everybody[:node_count])
        self.bootstrap = tuple(voter.endpoints for voter in everybody)
        self.counts: dict[str, int] = {}
        self.watched: dict[tuple[int, int], Callable[[Response], None]] = {}
        self.nodes = {voter.key.node_id: Node(self, voter) for voter in everybody}
        self._asked: dict[int, tuple[AppendRequest, Asker, int, int]] = {}
        self.on_hook: Callable[[str, Node], None] = lambda _hook, _node: None
        self.on_failure: Callable[[Node], None] = lambda _node: None

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def leader(self) -> Node | None:
        """Who leads the latest epoch that anybody leads."""
        leading = [
            node
            for node in self.nodes.values()
            if node.replica is not None and node.replica.core.is_leader
        ]
        return max(leading, key=lambda node: node.replica.core.epoch, default=None)  # type: ignore[union-attr]

    def send_request(
        self, source: int, life: int, target: int, correlation_id: int, request: Request
    ) -> None:
        """Carry a request to a node; one that is known by its place only has a negative id."""
        target = target if target > 0 else -target - 1
        self.world.note(f"{source} -> {target} {_words(request)}")
        self.network.send(
            source,
            target,
            lambda: self.nodes[target].receive_request(source, life, correlation_id, request),
        )

    def voters_changed(self, response: Response) -> None:
        """An operator hears."""
        assert isinstance(response, VoterChangeResponse)
        self.count(f"voter change {response.error.name}")

    def users_append(self, target: int, request: AppendRequest, user: Asker, attempt: int) -> None:
        """A user's request arrives."""
        self._asked[id(request)] = (request, user, target, attempt)
        self.nodes[target].append(request)

    def answered(self, request: AppendRequest, answer: Answer) -> None:
        _, user, target, attempt = self._asked.pop(id(request))
        replica = self.nodes[target].replica
        user.hear(target, attempt, answer, None if replica is None else replica.core.leader_id)

    def is_level(self, without: int | None = None) -> bool:
        """Whether one leads, and everybody has what it has, committed: all but one, if named."""
        leader = self.leader()
        if leader is None or leader.replica is None:
            return False
        end_offset = leader.replica.log.end_offset
        return all(
            node.replica is not None
            and node.replica.log.end_offset == end_offset
            and node.replica.core.high_watermark == end_offset
            and (node.counter is None or node.counter.end_offset == end_offset)
            for node in self.nodes.values()
            if node.node_id != without
        )

    def describe(self) -> str:
        """Where everybody stands, for a message."""
        found = []
        for node in self.nodes.values():
            if node.replica is None:
                found.append(f"{node.node_id} is dead")
            else:
                core, log = node.replica.core, node.replica.log
                found.append(
                    f"{node.node_id} {type(core.role).__name__.lower()} of {core.epoch}, "
                    f"end {log.end_offset}, high watermark {core.high_watermark}"
                )
        return "; ".join(found)

    def hook(self, name: str, node: Node) -> None:
        """A moment at which it hurts."""
        self.on_hook(name, node)

    def after_failure(self, node: Node) -> None:
        """A node has ended itself."""
        self.count("node ended itself")
        self.on_failure(node)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def looked_at(self, node: Node) -> None:
        """A node has done something: what must hold of it now."""
        replica = node.replica
        assert replica is not None
        log = replica.log
        start, end = node.seen
        node.seen = (log.log_start_offset, log.end_offset)
        if log.end_offset < end:
            self.count("truncation")
            self.hook("truncated", node)
        elif start < log.log_start_offset == log.end_offset and end < log.log_start_offset:
            self.count("snapshot installed")
            self.hook("snapshot installed", node)
        if log.log_start_offset > 0 and not any(
            one.end_offset >= log.log_start_offset for one in log.snapshots
        ):
            raise AssertionError(f"node {node.node_id} begins behind no snapshot")
