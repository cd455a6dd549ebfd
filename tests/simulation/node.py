"""Node of a simulated cluster, with crashes, pauses, restarts and a replicated counter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from raftlog.append import AppendRequest, failed
from raftlog.errors import AppendUnknownError, LogError, RaftlogError
from raftlog.log.cleaning.compaction import Compaction
from raftlog.log.remote.tiering import RemoteLogRun
from raftlog.log.writing.active_segment import PendingSync
from raftlog.log.writing.quorum_log import TombstonesMissedError
from raftlog.node.raft_client import RaftClient
from raftlog.node.raft_node import (
    CleaningRefused,
    LogCleaned,
    LogCompacted,
    Notification,
    RaftNode,
)
from raftlog.node.replica import Replica
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    LeaderChanged,
    LogMessage,
    RoleChanged,
    Send,
)
from raftlog.quorum.events import (
    Event,
    Resign,
    ResponseReceived,
    SendFailed,
    TimePassed,
)
from raftlog.quorum.messages import Request, Response, VoterChangeResponse
from raftlog.quorum.voters import Voter, VoterSet
from raftlog.receiving import ReceivingProtocol
from raftlog.types import ReplicaKey, SnapshotId
from raftlog_state.image.image_writer import image_records
from raftlog_state.records import encode
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk

from .client_port import ClientPort
from .codec import (
    SentRequest,
    decode_request_frame,
    decode_response_frame,
    encode_request_frame,
    encode_response_frame,
    offer,
)
from .controllers import WatchedController
from .counters import WatchedCounter
from .driven_node import DIRECTORY, TIME_MS, DrivenNode, new_disk
from .event_loop import SimulatedLoop, SimulatedTransport
from .world import US_PER_MS

if TYPE_CHECKING:
    from .cluster import Cluster

CHUNK_BYTES_MAX: Final = 2_000
"""Maximum of bytes in one notification of a listener."""
TURN_US: Final = 500
"""Time until a node continues with work that it left for a later turn: state machines and the
checks of delayed fetches take time."""


@dataclass(slots=True)
class Disk:
    """Durations of syncs: most are short, some stall."""

    sync_us: int = 200
    stall_rate: float = 0.0
    stall_us: int = 1_000_000


class Node(DrivenNode):
    """One node of a cluster."""

    chunk_bytes_max = CHUNK_BYTES_MAX

    def __init__(self, cluster: Cluster, voter: Voter) -> None:
        node_id = voter.key.node_id
        disk = new_disk(cluster.world.seed * 1000 + node_id)
        super().__init__(voter, cluster.setting, disk)
        self.speed = Disk()
        self.is_paused = False
        self.known_voters = cluster.setting.voters
        """Its latest voter set at its last check."""
        self._is_damaged = False
        self._wipe_count = 0
        self.seen = (0, 0)
        """Start and end of its log at its last check."""
        self._held: list[Callable[[], None]] = []
        self.counter: WatchedCounter | None = None
        self.controller: WatchedController | None = None
        self._cluster = cluster
        chance = cluster.world.chance(f"versions of {node_id}")
        self.offer: Final = offer(chance if cluster.has_old_versions else None)
        """Versions of requests that it supports."""
        self._timer_ms: int | None = None
        self._is_turn_due = False
        self._port: ClientPort | None = None
        self._loop = SimulatedLoop(cluster.peers, node_id, self.later)

    @property
    def replica(self) -> Replica | None:
        """Return the replica; None while the node is dead."""
        return None if self.raft_node is None else self.raft_node.replica

    @property
    def is_damaged(self) -> bool:
        """Return whether durable data was damaged, and the node has not caught up since."""
        if self._is_damaged and self.replica is not None and not self.replica.core.is_recovering:
            self._is_damaged = False
        return self._is_damaged

    def add_damage(self, words: str) -> None:
        """Note a kind of damage to durable data."""
        self._is_damaged = True
        self._note(f"damage: {words}")

    def flip_durable_bit(self, number: int, *, segment: int = -1) -> bool:
        """Damage a synced part of a segment, by default the newest; return whether there is any."""
        names = [name for name in self.disk.list_names(DIRECTORY) if name.endswith(".log")]
        if not names:
            return False
        path = f"{DIRECTORY}/{names[segment]}"
        durable = self.disk.durable_files().get(path, b"")
        # it may be truncated, without a sync
        byte_count = min(len(durable), len(self.disk.files()[path]))
        if not byte_count:
            return False
        self.disk.flip_bit(path, number % (8 * byte_count))
        self._is_damaged = True
        return True

    # --- starting and stopping --------------------------------------------------------------------

    def start(self) -> None:
        """Open the replica from the disk, and join the cluster."""
        self._timer_ms, self._is_turn_due = None, False
        self._loop = SimulatedLoop(self._cluster.peers, self.node_id, self.later)
        try:
            node = self._open()
        except LogError as error:
            self._note(f"does not start: {error}")
            self._die()
            self._cluster.after_failure(self)
            return
        if self._cluster.has_counters or self._cluster.has_controllers:
            self._register_state_machines(node.raft_client)
        if self._cluster.has_clients:
            self._port = ClientPort(self.node_id, node, self._cluster, self._loop)
        log = node.replica.log
        self.seen = (log.log_start_offset, log.end_offset)
        self._note(f"starts, end offset {log.end_offset}")
        self._cluster.check_survivors(self)
        self.handle(TimePassed())

    def _register_state_machines(self, log: RaftClient) -> None:
        assert self.raft_node is not None
        register = self.raft_node.listeners.register
        if self._cluster.has_counters:
            self.counter = WatchedCounter(log, self._cluster.counted)
            register(self.counter)
        if self._cluster.has_controllers:
            self.controller = WatchedController(log, self, self._cluster)
            register(self.controller)

    def kill(self) -> None:
        """Kill the process; the machine continues."""
        self._note("is killed")
        self._die()
        self.disk.kill()

    def lose_power(self, survival: Survival = Survival.MIXED) -> None:
        """Cut the power of the machine: unsynced data may be lost."""
        self._note("loses power")
        self._close_port(is_silent=True)
        self._die()
        self.disk.crash(survival)

    def wipe(self) -> None:
        """Kill the process and format its disk again: with another directory id, if voters have
        one, and as an observer's.
        """
        self._note("is formatted again")
        self._die()
        self._wipe_count += 1
        world, key = self._cluster.world, self.voter.key
        self.disk = new_disk(world.seed * 1000 + 100 * self._wipe_count + self.node_id)
        self._setting.witness.forget(key)
        if self._setting.kraft_version > 0:
            key = ReplicaKey(self.node_id, f"{self._wipe_count:010d}{self.node_id:011d}A")
            self.voter = replace(self.voter, key=key)
            self.formatted_voters = self.known_voters = VoterSet(())
        self._is_damaged = False

    def crash_into(self, disk: SimulatedDisk, words: str) -> None:
        """Let the process or the machine die in a step of its disk, which leaves ``disk``."""
        self._note(f"dies at a step of its disk: {words}")
        self._close_port(is_silent=True)
        self._die()
        self.disk = disk

    def pause(self) -> None:
        """Pause the process: messages and timers wait."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for act in held:
            act()

    def _die(self, reason: str = "the node died") -> None:
        self._close_port()
        self.is_paused, self._held = False, []
        self.counter = self.controller = None
        self._loop.run_in(partial(super()._die, reason))

    def _close_port(self, *, is_silent: bool = False) -> None:
        port, self._port = self._port, None
        if port is not None:
            port.close(is_silent=is_silent)

    def _ended(self, error: LogError) -> None:
        self._note(f"fails: {error.code}")
        if isinstance(error, TombstonesMissedError):
            self._cluster.count("log fetched again")
        self._cluster.after_failure(self)

    # --- time -------------------------------------------------------------------------------------

    def _times_ms(self) -> tuple[int, int]:
        now_ms = self._cluster.world.now_ms
        return now_ms, TIME_MS + now_ms

    def _draw_ms(self, bound_ms: int) -> int:
        return self._cluster.world.chance(f"jitter {self.node_id}").randrange(bound_ms)

    def _note(self, words: str, data: bytes = b"") -> None:
        self._cluster.world.note(f"{self.node_id} {words}", data)

    def later(self, delay_us: int, act: Callable[[], None]) -> None:
        """Schedule an action of this incarnation; it is delayed while the node is paused."""
        life = self.life

        def due() -> None:
            if self.life == life:
                self._when_awake(act)

        self._cluster.world.after(delay_us, due)

    def _when_awake(self, act: Callable[[], None]) -> None:
        """Run an action now, or when the node resumes in this incarnation."""
        if not self.is_paused:
            self._loop.run_in(act)
            return
        life = self.life
        self._held.append(lambda: self._when_awake(act) if self.life == life else None)

    def _set_timer(self, node: RaftNode) -> None:
        world, deadline_ms = self._cluster.world, node.next_deadline_ms
        if deadline_ms is None or deadline_ms == self._timer_ms:
            return
        if deadline_ms <= world.now_ms:
            if not self._is_turn_due:
                self._is_turn_due = True
                self.later(TURN_US, self._take_turn)
            return
        if self._timer_ms is not None and world.now_ms < self._timer_ms <= deadline_ms:
            return
        self._timer_ms = deadline_ms
        life = self.life

        def fire() -> None:
            if self.life == life and self._timer_ms == deadline_ms:
                self._timer_ms = None
                self._when_awake(self._pass_time)

        world.after(deadline_ms * US_PER_MS - world.now_us, fire)

    def _take_turn(self) -> None:
        self._is_turn_due = False
        self._pass_time()

    def _pass_time(self) -> None:
        if self.raft_node is not None:
            self.raft_node.pass_time()

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Step the replica with an event, now or when the node resumes."""
        self._when_awake(lambda: self.step(event))

    def set_timer(self) -> None:
        node = self.raft_node
        assert node is not None, "a node that has ended sets no timer"
        self._cluster.after_step(self)
        if self.raft_node is node and not self.is_paused:
            self._set_timer(node)

    def _notify(self, news: Notification) -> None:
        cluster = self._cluster
        match news:
            case AdvanceHighWatermark(offset):
                self._note(f"high watermark {offset}")
                cluster.saw_high_watermark(self, offset)
                cluster.hook("high watermark", self)
            case LeaderChanged(epoch=epoch, leader_id=leader_id):
                self._note(f"knows leader {leader_id} of epoch {epoch}")
                if leader_id == self.node_id:
                    cluster.count("election")
                    cluster.check_survivors(self)
                    cluster.hook("elected", self)
            case LogCleaned(start_offset):
                self._note(f"begins at {start_offset}")
            case CleaningRefused(error):
                self._note(f"forgets nothing: {error.code}")
            case RoleChanged(new=new, epoch=epoch):
                self._note(f"{new.__name__.lower()} in epoch {epoch}")
            case LogMessage(text):
                self._note(text)
                if text.startswith("resigning: the disk is full"):
                    cluster.count("resigned without space")
                if text.startswith("stalled until the disk has space"):
                    cluster.count("stood still")

            case LogCompacted(segment_count=count):
                self._note(f"has compacted {count} segments")
                cluster.count("segments compacted", count)
                cluster.check_survivors(self)

    # --- compaction and remote storage ------------------------------------------------------------

    def run_compaction(self, compaction: Compaction) -> None:
        assert self._cluster.cleaning is not None
        self._cluster.cleaning.run(self, compaction)

    def run_remote(self, run: RemoteLogRun) -> None:
        """Run in one moment, and complete the run in a later one; the node may die before both."""
        tier = self._cluster.tier
        assert tier is not None

        def work() -> None:
            error: RaftlogError | None = None
            try:
                run.run()
            except RaftlogError as caught:
                error = caught
            self.later(tier.draw_us(), lambda: complete(error))

        def complete(error: RaftlogError | None) -> None:
            node = self.raft_node
            assert node is not None, "the action is one of this incarnation"
            self._cluster.count(f"remote run {'completed' if error is None else error.code}")
            self._cluster.count("segment copied", run.counts.copied_segments)
            node.complete_remote_run(run, error)
            if self.raft_node is node:
                tier.check(self)

        self.later(tier.draw_us(), work)

    # --- the network ------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        self._cluster.send_request(self, send)

    def _answer(
        self, source: Node | None, life: int, asked: SentRequest, response: Response
    ) -> None:
        """Send a response to the incarnation of a node, None for an operator."""
        data = encode_response_frame(response, asked)
        if source is None:
            response = decode_response_frame(data, asked)
            assert isinstance(response, VoterChangeResponse)
            self._cluster.voters_changed(response)
            return
        self._note(f"-> {source.node_id} {describe_message(response)}", data)
        self._cluster.network.send(
            self.node_id, source.node_id, lambda: source.receive_response(life, asked, data)
        )

    def receive_frame(
        self, source: Node | None, life: int, asked: SentRequest, data: bytes
    ) -> None:
        """Receive a request of an incarnation of a node, or of an operator."""
        if self.is_alive:
            request = decode_request_frame(data)
            reply = partial(self._answer, source, life, asked)
            self._when_awake(lambda: self.receive_request(request, reply))

    def receive_response(self, life: int, asked: SentRequest, data: bytes) -> None:
        if self.life == life:
            response = decode_response_frame(data, asked)
            self.handle(ResponseReceived(asked.correlation_id, response))

    def on_send_failure(self, life: int, failed: SendFailed) -> None:
        """Handle a request that could not be sent."""
        if self.life == life:
            self.handle(failed)

    # --- syncs ------------------------------------------------------------------------------------

    def run_sync(self, ticket: PendingSync) -> None:
        self.later(self._sync_us(), lambda: self._sync(ticket))

    def _sync_us(self) -> int:
        chance, speed = self._cluster.world.chance("disk"), self.speed
        if chance.random() < speed.stall_rate:
            self._cluster.count("stalled sync")
            return int(chance.random() * speed.stall_us)
        return int((0.5 + chance.random()) * speed.sync_us)

    def _sync(self, ticket: PendingSync) -> None:
        cluster, node = self._cluster, self.raft_node
        cluster.hook("between append and sync", self)
        if node is None or self.raft_node is not node:
            return
        try:
            ticket.run()
        except LogError as error:
            node.fail_sync(ticket, error)
            return
        cluster.hook("between sync and answer", self)
        if self.raft_node is node:
            node.complete_sync(ticket)

    # --- users ------------------------------------------------------------------------------------

    def accept(
        self, transport: SimulatedTransport
    ) -> tuple[SimulatedLoop, ReceivingProtocol] | None:
        """Accept a connection of a client; None while the process is dead."""
        return None if self._port is None else self._port.accept(transport)

    def reset_clients(self) -> None:
        """Reset the connections of clients."""
        for transport in self._cluster.peers.ends_at(self.node_id):
            transport.abort()

    def append(self, request: AppendRequest) -> None:
        """Receive a user's append."""
        if not self.is_alive:
            self._cluster.answered(request, failed(_unknown("no answer")))
        else:
            self._when_awake(lambda: self._receive_append(request))

    def _receive_append(self, request: AppendRequest) -> None:
        assert self.raft_node is not None, "the node is running"
        self.raft_node.append(request, lambda result: self._cluster.answered(request, result))

    def submit_soon(self) -> None:
        """Submit later: appends received in one turn of a real node's loop are written together."""
        turn_us = self._cluster.world.chance("turn").choice((0, 0, 300, 3_000))
        self.later(turn_us, self._submit)

    def _submit(self) -> None:
        assert self.raft_node is not None, "the node is running"
        if self.raft_node.unsubmitted_count > 1:
            self._cluster.count("appends submitted together")
        self.raft_node.submit()

    def _snapshot_of_controller(self, controller: WatchedController) -> SnapshotId | None:
        """Write a snapshot of the controller's committed state; return its id, or None."""
        assert self.replica is not None, "it is alive"
        image = controller.image()
        if image.metadata_version is None or image.offset + 1 != controller.end_offset:
            return None
        writer = self.replica.begin_snapshot(image.offset + 1, time_ms=self._times_ms()[1])
        if writer is None:
            return None
        with writer:
            writer.append([encode(record) for record in image_records(image)])
            return writer.freeze()

    def snapshot(self) -> None:
        """Write a snapshot of the committed records, and start the log at its end."""
        replica, cluster = self.replica, self._cluster
        if replica is None:
            return
        log, time_ms = replica.log, self._times_ms()[1]
        high_watermark = replica.core.high_watermark
        if high_watermark is None or high_watermark <= log.log_start_offset:
            return
        try:
            if self.counter is not None:
                snapshot_id = log.snapshot_id_at(self.counter.end_offset)
                if not self.counter.snapshot():
                    return
            elif self.controller is not None:
                written = self._snapshot_of_controller(self.controller)
                if written is None:
                    return
                snapshot_id = written
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
        """Run retention; return whether it deleted anything."""
        return self.raft_node is not None and not self.is_paused and self.raft_node.clean()

    def change_voters(self, request: Request) -> None:
        """Submit an operator's change of voters, without waiting for its result."""
        if not self.is_paused:
            data, asked = encode_request_frame(request, 0, self.offer, self.offer)
            self.receive_frame(None, 0, asked, data)

    def resign(self) -> None:
        if self.replica is not None:
            self.handle(Resign(self.replica.core.epoch))


def _unknown(reason: str) -> AppendUnknownError:
    return AppendUnknownError(path=DIRECTORY, reason=reason)


def describe_message(message: object) -> str:
    """Return the text of a message in the trace."""
    text = repr(message)
    return text if len(text) < 300 else text[:300]
