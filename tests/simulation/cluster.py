"""Simulated cluster: nodes on one network, a witness of all events, and users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from raftlog import ValueKind
from raftlog.append import AppendRequest, RequestResult
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import Send
from raftlog.quorum.events import SendFailed
from raftlog.quorum.messages import AddVoterRequest, RemoveVoterRequest, VoterChangeResponse
from raftlog.quorum.roles import Leader
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.types import ReplicaKey
from raftlog.wire.errors import NoCommonVersionError, UnsupportedFieldError

from .codec import encode_request_frame
from .compaction import (
    COMPACTION_INTERVAL_MS,
    DELETE_RETENTION_MS,
    CompactedWitness,
    SimulatedCleaning,
)
from .controllers import ReplayedLog
from .counters import Counted
from .driven_node import LISTENER_NAME, Setting
from .event_loop import Peers
from .invariants import InvariantViolationError, Witness
from .node import Node, describe_message
from .remote_storage import CLEAN_INTERVAL_MS, URI, SimulatedTier
from .world import Network, World

REPLACE_EVERY_US: Final = 1_000_000
CLIENTS_FROM: Final = 200
"""Ids on the network of the product's clients, from this one on."""


class Caller(Protocol):
    """Sender of appends, with a callback for their results."""

    def receive_result(
        self, target: int, attempt: int, answer: RequestResult, leader_id: int | None, /
    ) -> None:
        """Receive a result at the node's end. ``leader_id``: the leader known to that node."""


def small_log_config(
    *,
    retention_bytes: int | None = None,
    values: ValueKind = ValueKind.BYTES,
    has_remote_storage: bool = False,
    is_compacted: bool = False,
) -> LogConfig:
    """Return segment and index sizes so small that runs have many of each."""
    config = LogConfig(
        values=values,
        segment_bytes=4_000,
        index_interval_bytes=300,
        retention_bytes=retention_bytes,
    )
    if is_compacted:
        return replace(
            config,
            segment_bytes=2_000,
            cleanup_policy=CleanupPolicy.COMPACT,
            min_cleanable_dirty_ratio=0.2,
            delete_retention_ms=DELETE_RETENTION_MS,
        )
    if not has_remote_storage:
        return config
    return replace(
        config, remote_storage_enable=True, remote_storage_uri=URI, local_retention_bytes=6_000
    )


def _has(voters: VoterSet, key: ReplicaKey) -> bool:
    """Return whether a set has exactly this replica."""
    found = voters.find(key.node_id)
    return found is not None and found.key == key


def _voter(node_id: int, is_dynamic: bool) -> Voter:
    key = ReplicaKey(node_id, f"{node_id:021d}A") if is_dynamic else ReplicaKey(node_id)
    return Voter(key=key, endpoints=(Endpoint(LISTENER_NAME, "simulated", node_id),))


class Cluster:
    """Voters on one network, a witness of all events, and users."""

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
        has_controllers: bool = False,
        has_old_versions: bool = False,
        has_clients: bool = False,
        client_byte_rate: float | None = None,
        has_remote_storage: bool = False,
        is_compacted: bool = False,
    ) -> None:
        self.world = world
        self.has_old_versions = has_old_versions
        self.has_counters = has_counters
        self.has_controllers = has_controllers
        self.counted = Counted()
        self.network = Network(world)
        self.has_clients = has_clients
        self.client_byte_rate = client_byte_rate
        self.peers = Peers(world, self.network)
        compacted = CompactedWitness() if is_compacted else None
        self.witness = Witness() if compacted is None else compacted
        self.cleaning = None if compacted is None else SimulatedCleaning(self, compacted)
        self.replayed = ReplayedLog(self)
        replicas = [
            _voter(node_id, is_dynamic) for node_id in range(1, node_count + observer_count + 1)
        ]
        self.tier = SimulatedTier(self) if has_remote_storage else None
        self.setting = Setting(
            voters=VoterSet.of(replicas[:node_count]),
            kraft_version=int(is_dynamic),
            config=config or QuorumConfig(),
            log_config=log_config or small_log_config(),
            witness=self.witness,
            bootstrap=tuple(voter.endpoints for voter in replicas),
            remote=None if self.tier is None else self.tier.access,
            clean_interval_ms=None if self.tier is None else CLEAN_INTERVAL_MS,
        )
        if is_compacted:
            self.setting = replace(self.setting, clean_interval_ms=COMPACTION_INTERVAL_MS)
        self.counts: dict[str, int] = {}
        self.lost: set[ReplicaKey] = set()
        """Keys of voters whose disks were formatted again."""
        self._replacing: dict[ReplicaKey, Node] = {}
        self.nodes = {voter.key.node_id: Node(self, voter) for voter in replicas}
        self.peers.listeners.update((one.node_id, one.accept) for one in self.nodes.values())
        self._asked: dict[int, tuple[AppendRequest, Caller, int, int]] = {}
        self.on_hook: Callable[[str, Node], None] = lambda _hook, _node: None
        self.on_failure: Callable[[Node], None] = lambda _node: None

    def start(self) -> None:
        for node in self.nodes.values():
            node.start()

    def leader(self) -> Node | None:
        """Return the leader of the latest epoch that any node leads."""
        leading = {
            node.replica.core.epoch: node
            for node in self.nodes.values()
            if node.replica is not None and node.replica.core.is_leader
        }
        return leading[max(leading)] if leading else None

    def send_request(self, source: Node, send: Send) -> None:
        """Send a request to a node; an endpoint without a known node has a negative id."""
        target_id = send.node_id if send.node_id > 0 else -send.node_id - 1
        target, life, correlation_id = self.nodes[target_id], source.life, send.correlation_id
        words = f"{source.node_id} -> {target_id} {describe_message(send.request)}"
        try:
            data, asked = encode_request_frame(
                send.request, correlation_id, source.offer, target.offer
            )
        except (NoCommonVersionError, UnsupportedFieldError) as error:
            self.count("message inexpressible")
            self.world.note(f"{words} is not sent: {error}")
            failed = SendFailed(correlation_id, is_version_unsupported=True)
            self.world.after(0, lambda: source.on_send_failure(life, failed))
            return
        self.world.note(words, data)
        self.network.send(
            source.node_id, target_id, lambda: target.receive_frame(source, life, asked, data)
        )

    def voters_changed(self, response: VoterChangeResponse) -> None:
        """Pass the result of a change of voters to the operator."""
        self.count(f"voter change {response.error.name}")

    # --- lost disks and damaged logs --------------------------------------------------------------

    def is_known_voter(self, node: Node) -> bool:
        """Return whether any node's latest voter set has this node with its directory id."""
        return any(_has(voters, node.voter.key) for voters in self._voter_sets())

    def is_anything_lost(self) -> bool:
        """Return whether the durable state of a voter is lost that every voter set still needs."""
        sets = self._voter_sets()
        return any(_has(voters, key) for voters in sets for key in self.lost) or any(
            each.is_damaged for each in self.nodes.values()
        )

    def may_lose(self, node: Node) -> bool:
        """Return whether the cluster tolerates the loss of this node's durable state: it is one of
        at least three voters in every known voter set, and no other has lost anything.
        """
        sets = [voters for voters in self._voter_sets() if _has(voters, node.voter.key)]
        return not self.is_anything_lost() and all(len(voters) >= 3 for voters in sets)

    def may_be_wiped(self, node: Node) -> bool:
        """Return whether a new format of the disk is noticed: by the directory id, if the node is a
        voter or is being added as one.
        """
        return self.setting.kraft_version > 0 or not self.is_known_voter(node)

    def replace_voter(self, node: Node, lost: ReplicaKey) -> None:
        """Remove a voter whose disk was formatted again, and add it with its new directory id,
        until every node knows it.
        """
        self.lost.add(lost)
        self._replacing[lost] = node
        self.world.after(REPLACE_EVERY_US, lambda: self._replace(node, lost))

    @property
    def is_replacing(self) -> bool:
        """Return whether an operator is replacing a voter."""
        return bool(self._replacing)

    def _replace(self, node: Node, lost: ReplicaKey) -> None:
        known, key = [each.known_voters for each in self.nodes.values()], node.voter.key
        if all(_has(voters, key) and not _has(voters, lost) for voters in known):
            del self._replacing[lost]
            self.count("voter replaced")
            return
        leader = self.leader()
        if leader is not None and leader.replica is not None:
            voters = leader.replica.core.voters
            if _has(voters, lost):
                leader.change_voters(RemoveVoterRequest(voter=lost))
            elif not _has(voters, key) and node.is_alive:
                leader.change_voters(AddVoterRequest(voter=node.voter, timeout_ms=5_000))
        delay_us = REPLACE_EVERY_US + self.world.chance("operator").randrange(REPLACE_EVERY_US)
        self.world.after(delay_us, lambda: self._replace(node, lost))

    def _voter_sets(self) -> list[VoterSet]:
        """Return the latest voter set of every node, and those that leaders are asked to write."""
        found = [node.known_voters for node in self.nodes.values()]
        for node in self.nodes.values():
            role = None if node.replica is None else node.replica.core.role
            if isinstance(role, Leader) and role.voter_change is not None:
                found.append(role.voter_change.voters)
        return found

    # --- users ------------------------------------------------------------------------------------

    def users_append(self, target: int, request: AppendRequest, user: Caller, attempt: int) -> None:
        """Receive a user's request."""
        self._asked[id(request)] = (request, user, target, attempt)
        self.nodes[target].append(request)

    def answered(self, request: AppendRequest, answer: RequestResult) -> None:
        _, user, target, attempt = self._asked.pop(id(request))
        replica = self.nodes[target].replica
        user.receive_result(
            target, attempt, answer, None if replica is None else replica.core.leader_id
        )

    def is_level(self, without: int | None = None) -> bool:
        """Return whether there is a leader, and all others have its log, committed, and may vote.

        ``without``: a node that is exempt.
        """
        leader = self.leader()
        if leader is None or leader.replica is None:
            return False
        end_offset = leader.replica.log.end_offset
        return all(
            node.replica is not None
            and node.replica.log.end_offset == end_offset
            and node.replica.core.high_watermark == end_offset
            and not node.replica.core.is_recovering
            and (node.counter is None or node.counter.end_offset == end_offset)
            and (node.controller is None or node.controller.end_offset == end_offset)
            for node in self.nodes.values()
            if node.node_id != without
        )

    def describe(self) -> str:
        """Return the state of every node, for a message."""
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
        """Report a hook: a moment at which a fault has an effect."""
        self.on_hook(name, node)

    def after_failure(self, node: Node) -> None:
        """Handle a node that stopped itself."""
        self.count("node ended itself")
        self.on_failure(node)

    def check_survivors(self, node: Node) -> None:
        """Check the last values of a node's keys, if logs are compacted."""
        if self.cleaning is not None:
            self.cleaning.check(node)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def saw_high_watermark(self, node: Node, offset: int) -> None:
        """Check the increased high watermark of a node: a leader's by what a majority has."""
        replica = node.replica
        assert replica is not None
        if replica.core.is_leader:
            self._note_durable(node)
            before = replica.core.voters_at(offset)
            sets = [replica.core.voters, *([] if before is None else [before[0]])]
            self.witness.saw_commit(node.voter.key, offset, sets)

    def _note_durable(self, node: Node) -> None:
        """Note how far a node's log is durable. Records that it acknowledged and lost by damage
        count until it has caught up, since its leader counts them: no more than a minority loses
        anything.
        """
        assert node.replica is not None
        key, end_offset = node.voter.key, node.replica.log.synced_end_offset
        if node.is_damaged:
            end_offset = max(end_offset, self.witness.durable_ends.get(key, 0))
        self.witness.saw_durable(key, end_offset)

    def after_step(self, node: Node) -> None:
        """Check the invariants of a node after a step."""
        replica = node.replica
        assert replica is not None
        log = replica.log
        node.known_voters = replica.core.voters
        self._note_durable(node)
        start, end = node.seen
        node.seen = (log.log_start_offset, log.end_offset)
        if log.end_offset < end:
            self.count("truncation")
            self.hook("truncated", node)
        elif start < log.log_start_offset == log.end_offset and end < log.log_start_offset:
            self.count("snapshot installed")
            if replica.core.is_leader:
                raise InvariantViolationError(f"a leader never loads a snapshot: {node.node_id}")
            self.hook("snapshot installed", node)
        if log.log_start_offset > 0 and not any(
            one.end_offset >= log.log_start_offset for one in log.snapshots
        ):
            raise AssertionError(f"node {node.node_id} does not start at a snapshot")
