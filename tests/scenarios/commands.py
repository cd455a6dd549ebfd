"""Commands of scenarios, on a cluster in which the script controls every step.

A command is a method ``do_<name>``; ``Handler`` lists them with examples. The nodes write the
output of a command; only ``status``, ``log`` and ``equal`` write their own.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from dataclasses import replace

from raftlog.errors import LogError
from raftlog.log.writing.properties import LogConfig
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.events import Resign, ShutDown, UpgradeKRaftVersion
from raftlog.quorum.messages import (
    FetchResponse,
    FetchSnapshotResponse,
)
from raftlog.quorum.roles import Follower, Leader
from raftlog.quorum.voters import Voter, VoterSet
from raftlog.types import ReplicaKey
from tests.simulation.driven_node import DIRECTORY, TIME_MS, Setting
from tests.simulation.invariants import Witness

from .arguments import Arguments
from .formatting import format_records, format_role, format_snapshot_id, parse_snapshot_id
from .message_queue import Message, MessageFilter, MessageQueue
from .nodes import ScenarioContext, ScriptedNode
from .request_commands import RequestCommands
from .scripted_responses import scripted_response

MESSAGES_MAX = 1_000
"""More messages than this after one command are an endless loop."""
ELECTION_ROUNDS_MAX = 5


class Handler(RequestCommands):
    """Runs commands, and collects their output.

    Cluster, time and network. ``WHICH`` is empty for all messages in flight, ``1 -> 2`` for
    requests of 1 to 2, or ``1 <- 2`` for responses of 2 to 1, both optionally with a kind of
    message: ``1 <- 2 Fetch``:

    ==================  ========================================================================
    cluster             ``cluster voters=1,2,3 observers=4 kraft_version=1 snapshot_bytes=60``;
                        ``directories=1``: static voters have directory ids, as real ones have
    elect               ``elect 1``: the fetch timeouts of its peers expire, and 1 campaigns first
    timeout             ``timeout 2``: advance the clock of node 2 until its role times out
    tick                ``tick 2 ms=500``: advance the clock of a node, or of all nodes
    jitter              ``jitter 2 ms=300``: added to its election timeouts, initially 0
    deliver             ``deliver``: until no message is left; ``deliver once``; ``deliver WHICH``
    drop, delay         ``drop 1 -> 2 Vote``; ``delay`` holds it until ``release``
    duplicate           ``duplicate 1 -> 2``: the oldest message is delivered twice
    release             ``release``: put the delayed messages after all others
    partition           ``partition 1``: cut the network between 1 and the others
    cut                 ``cut 1 2``: cut the network between these two
    heal                ``heal``: connect all nodes
    corrupt             ``corrupt 2 <- 1 Fetch at=70``: flip a bit of the records
    answer              ``answer 2 -> 1 Fetch epoch=1 leader=1 snapshot=5@1``: respond to the
                        newest request by hand, in place of 1
    ==================  ========================================================================

    Nodes:

    ==================  ========================================================================
    crash               ``crash 1``; ``crash 1 power`` loses unsynced data; ``crash 1 wipe`` erases
                        the disk, and formats it if ``directory=`` is given
    start               ``start 1``
    damage              ``damage 1 quorum-state``: flip a bit of a file
    fill, empty         ``fill 1 room=60``: limit the free space of its disk to so many bytes
                        (default 0) until ``empty 1``
    forget              ``forget 1 quorum-state``: delete a file
    hold-sync           ``hold-sync 1``: syncs complete by ``sync 1`` only, until ``free-sync 1``
    sync, free-sync     ``sync 1``: complete the oldest running sync
    resign, shut-down   ``resign 1``
    upgrade             ``upgrade 1 version=1``: raise kraft.version, as its controller does
    snapshot            ``snapshot 1``, of all committed records; ``snapshot 1 at=5@1``;
                        ``snapshot 1 abort`` deletes it before it is frozen
    ==================  ========================================================================

    Users and requests by hand (responses are written and not delivered):

    ==================  ========================================================================
    append              ``append 1 "a" "b" required_base_offset=3 commit=app/query/7 epoch=2``;
                        ``required_end_offset=4``, ``producer=9/0/0`` (id, epoch, sequence)
    vote, pre-vote      ``vote 2 from=1 epoch=3 last_offset=5 last_epoch=2 voter=2``
    begin               ``begin 2 from=1 epoch=3``
    end                 ``end 2 from=1 epoch=3 preferred=2,3``
    fetch               ``fetch 1 from=2 epoch=3 offset=5 last_epoch=2 max_wait=500``
    fetch-snapshot      ``fetch-snapshot 1 from=2 epoch=3 id=5@2 position=0``
    add-voter           ``add-voter 1 node=4 timeout=500``, of its directory or of ``directory=``
    remove-voter        ``remove-voter 1 node=2``
    update-voter        ``update-voter 1 node=2 epoch=3 port=9999 speaks=0``: its new port, and
                        the newest kraft.version that it supports
    ==================  ========================================================================

    Output:

    ==================  ========================================================================
    status              ``status 1 2``; without a node, of all
    log                 ``log 1``: batches, ``offsets content @epoch``
    equal               ``equal 1 2``: compare the bytes of their logs, from the latest log start
    quiet, aloud        ``quiet``: suppress the output until ``aloud``
    ==================  ========================================================================
    """

    def run(self, command: str) -> None:
        """Run one command."""
        name, *words = shlex.split(command)
        method = getattr(self, f"do_{name.replace('-', '_')}", None)
        assert method is not None, f"no such command: {name}"
        arguments = Arguments(words)
        method(arguments)
        arguments.check_all_used()

    def can_run(self, command: str) -> bool:
        """Return whether a command applies: its node is running, or stopped, or has messages."""
        name, *words = shlex.split(command)
        if name in ("deliver", "drop", "delay", "duplicate"):
            which = MessageFilter() if words == ["once"] else MessageFilter.parse(words)
            return words == [] or bool(self._post.of(which))
        if name == "answer":
            return bool(self._post.of(replace(MessageFilter.parse(words[:4]), is_response=False)))
        if name in ("release", "heal", "cut", "tick", "jitter"):
            return True
        node = self._nodes[int(words[0])]
        if name == "sync":
            return bool(node.held)
        if name == "snapshot":
            return node.is_alive and bool(node.replica.core.high_watermark)
        if name in ("hold-sync", "free-sync", "crash"):
            return True
        return node.is_alive != (name == "start")

    def asked(self, asker: int, asked: int) -> str | None:
        """Return the kind of the newest request in flight between two nodes."""
        found = self._post.of(MessageFilter(asker, asked, is_response=False))
        return found[-1].kind if found else None

    # --- the cluster ------------------------------------------------------------------------------

    def do_cluster(self, words: Arguments) -> None:
        self._post = MessageQueue(self._write_line)
        kraft_version = words.number("kraft_version", 0)
        config = QuorumConfig(
            snapshot_max_bytes=words.number("snapshot_bytes", 1 << 20),
            fetch_max_bytes=words.number("fetch_bytes", 1 << 20),
            fetch_hw_delay_ms=words.number("hw_delay", 0),
        )
        keys = {
            node_id: ReplicaKey(node_id, _directory_id(node_id))
            if kraft_version or words.number("directories", 0)
            else ReplicaKey(node_id)
            for node_id in (*words.numbers("voters"), *words.numbers("observers"))
        }
        voters = [
            Voter(key=keys[node_id] if kraft_version else ReplicaKey(node_id))
            for node_id in words.numbers("voters")
        ]
        setting = Setting(
            voters=VoterSet.of(voters),
            kraft_version=kraft_version,
            config=config,
            log_config=LogConfig(
                segment_bytes=words.number("segment_bytes", 4_000),
                batch_bytes_max=words.number("batch_bytes", 1 << 20),
            ),
            witness=Witness() if self._witness is None else self._witness,
        )
        context = ScenarioContext(setting=setting, write_line=self._write_line, post=self._post)
        self._nodes = {
            node_id: ScriptedNode(Voter(key=key), context) for node_id, key in keys.items()
        }
        for node in self._nodes.values():
            node.start()

    def do_elect(self, words: Arguments) -> None:
        chosen = self._node(words)
        for node in self._nodes.values():
            is_near = node.is_alive and not self._post.is_cut(node.node_id, chosen.node_id)
            if node is not chosen and is_near and isinstance(node.role, Follower):
                self._post.muted = node.node_id
                node.pass_time(node.role_ends_in_ms)
                self._post.muted = None
        for _ in range(ELECTION_ROUNDS_MAX):
            if isinstance(chosen.role, Leader):
                return
            chosen.pass_time(chosen.role_ends_in_ms)
            self._deliver_all()
        raise AssertionError(f"{chosen.node_id} is not elected but {format_role(chosen.role)}")

    def do_timeout(self, words: Arguments) -> None:
        node = self._node(words)
        node.pass_time(node.role_ends_in_ms)

    def do_tick(self, words: Arguments) -> None:
        span_ms = words.number("ms", 0)
        for node in self._chosen(words):
            node.pass_time(span_ms)

    def do_jitter(self, words: Arguments) -> None:
        self._node(words).jitter_ms = words.number("ms", 0)

    # --- the network ------------------------------------------------------------------------------

    def do_deliver(self, words: Arguments) -> None:
        if not words.places:
            self._deliver_all()
            return
        which = MessageFilter() if words.places == ["once"] else MessageFilter.parse(words.places)
        found = self._post.of(which)
        assert found, "no such message is in flight"
        self._deliver(found)

    def _deliver_all(self) -> None:
        for _ in range(MESSAGES_MAX):
            found = self._post.of(MessageFilter())
            if not found:
                return
            self._deliver(found[:1])
        raise AssertionError("messages in flight never end")

    def _deliver(self, messages: list[Message]) -> None:
        for message in messages:
            if self._post.take(message):
                target = message.asker if message.is_response else message.asked
                if target in self._nodes:
                    self._nodes[target].receive(message)

    def do_drop(self, words: Arguments) -> None:
        which = MessageFilter.parse(words.places)
        self._post.first(which)
        self._post.drop(which)

    def do_delay(self, words: Arguments) -> None:
        which = MessageFilter.parse(words.places)
        self._post.first(which)
        self._post.delay(which)

    def do_release(self, _words: Arguments) -> None:
        self._post.release()

    def do_duplicate(self, words: Arguments) -> None:
        self._post.duplicate(MessageFilter.parse(words.places))

    def do_partition(self, words: Arguments) -> None:
        inside = {int(word) for word in words.places}
        for one in inside:
            for other in set(self._nodes) - inside:
                self._post.cut(one, other)

    def do_cut(self, words: Arguments) -> None:
        one, other = words.places
        self._post.cut(int(one), int(other))

    def do_heal(self, _words: Arguments) -> None:
        self._post.heal()

    def do_corrupt(self, words: Arguments) -> None:
        message = self._post.first(MessageFilter.parse(words.places))
        body = message.body
        assert isinstance(body, FetchResponse | FetchSnapshotResponse), "nothing to damage in it"
        data = bytearray(body.records if isinstance(body, FetchResponse) else body.data)
        data[words.number("at", len(data) - 1)] ^= 1
        if isinstance(body, FetchResponse):
            message.body = replace(body, records=bytes(data))
        else:
            message.body = replace(body, data=bytes(data))

    def do_answer(self, words: Arguments) -> None:
        which = MessageFilter.parse(words.places)
        self._post.first(replace(which, is_response=False))
        request = self._post.of(replace(which, is_response=False))[-1]
        self._post.take(request)
        answer = scripted_response(request, words)
        self._nodes[answer.asker].receive(answer)

    # --- nodes ------------------------------------------------------------------------------------

    def do_crash(self, words: Arguments) -> None:
        node = self._node(words)
        self._post.drop(MessageFilter(asked=node.node_id))
        match words.places[1:]:
            case []:
                node.kill()
            case ["power"]:
                node.lose_power()
            case ["wipe"]:
                node.wipe(words.text("directory"))
            case other:
                raise AssertionError(f"not a way to die: {other}")

    def do_start(self, words: Arguments) -> None:
        self._node(words).start()

    def do_damage(self, words: Arguments) -> None:
        disk, name = self._node(words).disk, words.places[1]
        disk.flip_bit(f"{DIRECTORY}/{name}", words.number("bit", 0))

    def do_fill(self, words: Arguments) -> None:
        self._node(words).disk.leave_room(words.number("room", 0))

    def do_empty(self, words: Arguments) -> None:
        self._node(words).disk.full_at(None)

    def do_forget(self, words: Arguments) -> None:
        disk, name = self._node(words).disk, words.places[1]
        disk.unlink(f"{DIRECTORY}/{name}")

    def do_hold_sync(self, words: Arguments) -> None:
        self._node(words).is_sync_held = True

    def do_sync(self, words: Arguments) -> None:
        self._node(words).end_held_sync()

    def do_free_sync(self, words: Arguments) -> None:
        node = self._node(words)
        while node.held:
            node.end_held_sync()
        node.is_sync_held = False

    def do_resign(self, words: Arguments) -> None:
        node = self._node(words)
        node.step(Resign(words.number("epoch", node.replica.core.epoch)))

    def do_upgrade(self, words: Arguments) -> None:
        node, version = self._node(words), words.number("version", 1)
        refusal = node.replica.core.upgrade_refusal(version)
        if refusal is None:
            node.step(UpgradeKRaftVersion(version))
        else:
            node.write_line(refusal)

    def do_shut_down(self, words: Arguments) -> None:
        self._node(words).step(ShutDown())

    def do_snapshot(self, words: Arguments) -> None:
        node = self._node(words)
        log = node.replica.log
        named = words.text("at")
        if named is None:
            snapshot_id = log.snapshot_id_at(node.replica.core.high_watermark or 0)
        else:
            snapshot_id = parse_snapshot_id(named)
        try:
            writer = log.begin_snapshot(snapshot_id, now_ms=TIME_MS)
            if writer is None:
                node.write_line(f"snapshot {format_snapshot_id(snapshot_id)} is not needed")
                return
            with writer:
                if "abort" in words.places:
                    node.write_line(f"snapshot {format_snapshot_id(snapshot_id)} is given up")
                    return
                writer.freeze()
            log.delete_before(snapshot_id)
        except LogError as error:
            node.write_line(f"snapshot {format_snapshot_id(snapshot_id)}: {type(error).__name__}")
            return
        node.write_line(
            f"snapshot {format_snapshot_id(snapshot_id)} log_start_offset={log.log_start_offset}"
        )

    # --- output -----------------------------------------------------------------------------------

    def do_status(self, words: Arguments) -> None:
        for node in self._chosen(words):
            if not node.is_alive:
                node.write_line("is dead")
                continue
            log, core = node.replica.log, node.replica.core
            high_watermark = "none" if core.high_watermark is None else core.high_watermark
            node.write_line(
                f"is {format_role(node.role)} log={log.log_start_offset}..{log.end_offset} "
                f"high_watermark={high_watermark}"
            )

    def do_log(self, words: Arguments) -> None:
        for node in self._chosen(words):
            node.write_line(f"has {format_records(_bytes_of(node)) or 'nothing'}")

    def do_equal(self, words: Arguments) -> None:
        chosen = self._chosen(words)
        names = " ".join(str(node.node_id) for node in chosen)
        start = max(node.replica.log.log_start_offset for node in chosen)
        is_equal = len({_bytes_of(node, start) for node in chosen}) == 1
        self._write_line(f"the logs of {names} are {'equal' if is_equal else 'not equal'}")

    def do_quiet(self, _words: Arguments) -> None:
        self._is_quiet = True

    def do_aloud(self, _words: Arguments) -> None:
        self._is_quiet = False


def command_names() -> Iterator[str]:
    for name in dir(Handler):
        if name.startswith("do_"):
            yield name.removeprefix("do_").replace("_", "-")


def _bytes_of(node: ScriptedNode, start_offset: int | None = None) -> bytes:
    log = node.replica.log
    return log.read_bytes(log.log_start_offset if start_offset is None else start_offset, 1 << 30)


def _directory_id(node_id: int) -> str:
    return base64.urlsafe_b64encode(b"directory %6d" % node_id).decode().rstrip("=")
