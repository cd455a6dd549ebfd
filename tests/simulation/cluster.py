"""A simulated cluster: nodes on one network, a witness who sees all, and users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from raftlog.client.requests import Answer, AppendRequest
from raftlog.log.writing.properties import LogConfig
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.messages import Request, VoterChangeResponse
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.types import ReplicaKey

from .counters import Counted
from .driven_node import Setting
from .invariants import Witness
from .node import Node, message_words
from .world import Network, World


class Asker(Protocol):
    """Who appends, and is told."""

    def hear(self, target: int, attempt: int, answer: Answer, leader_id: int | None, /) -> None:
        """An answer arrives at the node's end. ``leader_id``: who leads, as far as it knows."""


def small_log_config(*, retention_bytes: int | None = None) -> LogConfig:
    """Segments and indexes so small that runs have many."""
    return LogConfig(segment_bytes=4_000, index_interval_bytes=300, retention_bytes=retention_bytes)


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
        everybody = [
            _voter(node_id, is_dynamic) for node_id in range(1, node_count + observer_count + 1)
        ]
        self.setting = Setting(
            voters=VoterSet.of(everybody[:node_count]),
            kraft_version=int(is_dynamic),
            config=config or QuorumConfig(),
            log_config=log_config or small_log_config(),
            witness=self.witness,
            bootstrap=tuple(voter.endpoints for voter in everybody),
        )
        self.counts: dict[str, int] = {}
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
        self.world.note(f"{source} -> {target} {message_words(request)}")
        self.network.send(
            source,
            target,
            lambda: self.nodes[target].receive_request(source, life, correlation_id, request),
        )

    def voters_changed(self, response: VoterChangeResponse) -> None:
        """An operator hears."""
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
