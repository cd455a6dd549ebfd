"""Faults of a run, drawn from the seed as a plan, which is data and can be shrunk.

Invariants:

1. A fault occurs at a time, or at the n-th call of a hook; its plan has all parameters, so that a
   plan replays and shrinks without the generator.
2. A seed disables some kinds and draws the rates of the others: runs differ in kind.
3. Power may fail on all nodes together, without loss of acknowledged records. Durable data is
   damaged on one node at a time, and only if that is a minority of every voter set that a node
   knows: more would be loss, not a fault.
4. A disk is formatted again only where that is detected: on voters with directory ids, and on
   observers. An operator replaces the old directory id by the new one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from raftlog.quorum.messages import AddVoterRequest, RemoveVoterRequest
from tests.simulated_disk.crash_model import Survival

from .cluster import CLIENTS_FROM, Cluster
from .damage import flip_bit_of_any_segment, restore_older_chunk, truncate_file
from .node import Node
from .world import Link

CALM_US: Final = 3_000_000
FAULTS_US: Final = 30_000_000
OLDER_EVERY_US: Final = 2_000_000
"""Interval at which the contents of all disks are saved, for chunks of older content."""


class Fault(enum.Enum):
    """Kind of fault of a node."""

    KILL = "kill"
    POWER = "power loss"
    POWER_ALL = "power loss of all"
    PAUSE = "pause"
    ISOLATE = "isolate"
    CUT_TO = "cut towards it"
    CUT_FROM = "cut from it"
    CUT_LINK = "cut one link"
    RESET = "reset connections"
    SNAPSHOT = "snapshot"
    RESIGN = "resign"
    ADD_VOTER = "add a voter"
    REMOVE_VOTER = "remove a voter"
    DAMAGE = "a durable bit flips"
    SYNC_FAILS = "a sync fails"
    STALL = "syncs stall"
    DISK_FULL = "the disk is full"
    RETENTION = "retention"
    WIPE = "a disk is formatted again"
    FLIP_ANY = "a bit of any segment flips"
    CUT_FILE = "a file is truncated"
    OLD_CHUNK = "a chunk has older content"


class Hook(enum.Enum):
    """Moment at which a fault is likely to have an effect."""

    BETWEEN_APPEND_AND_SYNC = "between append and sync"
    BETWEEN_SYNC_AND_ANSWER = "between sync and answer"
    ELECTED = "elected"
    HIGH_WATERMARK = "high watermark"
    TRUNCATED = "truncated"
    SNAPSHOT_INSTALLED = "snapshot installed"


LATER: Final = (Fault.DISK_FULL, Fault.RETENTION)
LATEST: Final = (Fault.WIPE, Fault.FLIP_ANY, Fault.CUT_FILE, Fault.OLD_CHUNK)
"""Kinds of a later round, drawn last: the meaning of earlier seeds must not change."""
ROUNDS: Final = 6
"""Number of rounds of kinds: the first ones, ``LATER``, ``LATEST``, the product's clients, remote
storage, and compaction. Each has a generator of its own: a seed that draws nothing in the last ones
has the plan, and the trace, that it had before them."""
LOSSES: Final = (Fault.DAMAGE, Fault.FLIP_ANY, Fault.CUT_FILE, Fault.OLD_CHUNK)
"""Kinds that damage durable data."""
_AT_HOOKS: Final = (Fault.KILL, Fault.POWER, Fault.ISOLATE, Fault.CUT_FROM)
_RARE: Final = (Hook.ELECTED, Hook.TRUNCATED, Hook.SNAPSHOT_INSTALLED)
"""Hooks that are called rarely in a run."""
_SURVIVALS: Final = tuple(Survival)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """Planned fault. ``hook`` None: at ``at`` microseconds; else at call number ``at`` of the hook,
    on its node. It is undone after ``lasts_us``.
    """

    fault: Fault
    at: int
    node: int
    other: int
    lasts_us: int
    survival: Survival
    hook: Hook | None = None
    room_bytes: int = 0
    """Free space on a full disk."""
    number: int = 0
    """Selects the damaged file and the position in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All faults of one run."""

    node_count: int
    observer_count: int
    is_dynamic: bool
    user_count: int
    pause_us: int
    loss: float
    duplicates: float
    slow: float
    stall_rate: float
    faults: tuple[PlannedFault, ...]
    retention_bytes: int | None = None
    has_counters: bool = False
    has_controllers: bool = False
    has_old_versions: bool = False
    """Whether nodes have older versions of Kafka's requests, each its own."""
    client_user_counts: tuple[int, ...] = ()
    """Number of users of each handle of the product's client."""
    client_byte_rate: float | None = None
    """Quota of the bytes that each handle produces per second, on each node."""
    commits_offsets: bool = False
    """Whether a consumer commits offsets; not drawn."""
    has_keys: bool = False
    """Whether appends without a required offset have conditions on keys; not drawn."""
    has_remote_storage: bool = False
    """Whether sealed segments are copied to an object store, and deleted locally."""
    is_compacted: bool = False
    """Whether each node compacts its log."""


def draw_plan(seed: int, *, rounds: int = ROUNDS) -> Plan:
    """Return the plan of a seed, with the kinds of this number of rounds."""
    plan = _first_plan(seed)
    if rounds >= 2:
        plan = _with_later(plan, Random(f"{seed}:plan of what came later"))
    if rounds >= 3:
        plan = _with_latest(plan, Random(f"{seed}:plan of round 3"))
    if rounds >= 4:
        chance = Random(f"{seed}:plan of round 4")
        counts = [chance.randrange(1, 5) for _ in range(chance.choice((0, 1, 1, 2)))]
        plan = replace(plan, client_user_counts=tuple(counts))
    if rounds >= 5:
        chance = Random(f"{seed}:plan of round 5")
        may_have = not (plan.has_counters or plan.has_controllers)
        if may_have and chance.random() < 0.25:
            plan = with_remote_storage(plan)
    if rounds >= 6:
        chance = Random(f"{seed}:plan of round 6")
        may_have = not (plan.has_counters or plan.has_controllers or plan.has_remote_storage)
        if may_have and chance.random() < 0.4:
            plan = replace(with_compaction(plan), user_count=4, pause_us=50_000)
    return plan


def with_remote_storage(plan: Plan) -> Plan:
    """Return a plan without the faults after which a log starts at a snapshot."""
    faults = tuple(one for one in plan.faults if one.fault is not Fault.SNAPSHOT)
    return replace(plan, faults=faults, has_remote_storage=True)


def with_compaction(plan: Plan) -> Plan:
    """Return a plan of appends with keys, without faults that delete records or damage them."""
    left_out = (Fault.SNAPSHOT, Fault.RETENTION, Fault.WIPE, *LOSSES)
    return replace(
        plan,
        faults=tuple(one for one in plan.faults if one.fault not in left_out),
        retention_bytes=None,
        has_counters=False,
        has_controllers=False,
        client_user_counts=(),
        has_remote_storage=False,
        is_compacted=True,
    )


def _first_plan(seed: int) -> Plan:
    chance = Random(f"{seed}:plan")
    node_count = chance.choice((1, 3, 3, 3, 5))
    is_dynamic = chance.random() < 0.4
    observer_count = chance.choice((0, 1, 2)) if is_dynamic else chance.choice((0, 0, 1))
    first = [kind for kind in Fault if kind not in (*LATER, *LATEST)]
    kinds = [kind for kind in first if chance.random() < 0.5] or [Fault.KILL]
    hooks = [hook for hook in Hook if chance.random() < 0.5]
    timed = [
        _draw(
            chance, kinds, CALM_US + chance.randrange(FAULTS_US), None, node_count + observer_count
        )
        for _ in range(chance.randrange(3, 25))
    ]
    at_kinds = [kind for kind in _AT_HOOKS if kind in kinds] or [Fault.KILL]
    hooked = [
        _draw(
            chance,
            at_kinds,
            chance.randrange(1, 40),
            chance.choice(hooks),
            node_count + observer_count,
        )
        for _ in range(chance.randrange(8))
        if hooks
    ]
    return Plan(
        node_count=node_count,
        observer_count=observer_count,
        is_dynamic=is_dynamic,
        user_count=chance.randrange(1, 6),
        pause_us=chance.choice((50_000, 300_000, 1_000_000)),
        loss=chance.choice((0.0, 0.0, 0.05, 0.3)),
        duplicates=chance.choice((0.0, 0.0, 0.1, 0.5)),
        slow=chance.choice((0.0, 0.0, 0.01, 0.1)),
        stall_rate=chance.choice((0.0, 0.0, 0.02)),
        faults=tuple(sorted(timed, key=lambda one: one.at)) + tuple(hooked),
    )


def _with_later(plan: Plan, chance: Random) -> Plan:
    """Draw the kinds of the second round, which the first kept seeds must not contain."""
    kinds = [kind for kind in LATER if chance.random() < 0.5]
    has_counters = chance.random() < 0.5
    if has_counters and Fault.RETENTION in kinds:
        kinds.remove(Fault.RETENTION)  # a log with a state machine starts only at its snapshots
    node_count = plan.node_count + plan.observer_count
    added: list[PlannedFault] = []
    for _ in range(chance.randrange(1, 7) if kinds else 0):
        at = CALM_US + chance.randrange(FAULTS_US)
        one = _draw(chance, kinds, at, None, node_count)
        hook = chance.choice((None, None, *Hook))
        if one.fault is Fault.DISK_FULL and hook is not None:
            one = replace(one, hook=hook, at=chance.randrange(1, 40))
        added.append(replace(one, room_bytes=chance.choice((0, 0, 60, 300, 2_000))))
    faults = (*plan.faults, *sorted(added, key=lambda one: one.at))
    keeps = 10_000 if Fault.RETENTION in kinds else None
    return replace(plan, faults=faults, retention_bytes=keeps, has_counters=has_counters)


def _moment(chance: Random, hook: Hook) -> int:
    """Draw the call of a hook at which a fault occurs."""
    return chance.randrange(1, 4 if hook in _RARE else 40)


def _with_latest(plan: Plan, chance: Random) -> Plan:
    """Draw the kinds of the third round, which earlier kept seeds must not contain."""
    kinds = [kind for kind in LATEST if chance.random() < 0.5]
    node_count = plan.node_count + plan.observer_count
    added: list[PlannedFault] = []
    for _ in range(chance.randrange(1, 7) if kinds else 0):
        at = CALM_US + chance.randrange(FAULTS_US)
        one = _draw(chance, kinds, at, None, node_count)
        hook = chance.choice((None, None, *Hook))
        if hook is not None:
            one = replace(one, hook=hook, at=_moment(chance, hook))
        added.append(replace(one, number=chance.randrange(2**31)))
    for _ in range(chance.randrange(3)):
        hook = chance.choice(_RARE)
        at = _moment(chance, hook)
        added.append(_draw(chance, list(_AT_HOOKS), at, hook, node_count))
    faults = (*plan.faults, *sorted(added, key=lambda one: one.at))
    has_old_versions = not plan.is_dynamic and chance.random() < 0.5
    return replace(plan, faults=faults, has_old_versions=has_old_versions)


def _draw(
    chance: Random, kinds: Sequence[Fault], at: int, hook: Hook | None, node_count: int
) -> PlannedFault:
    return PlannedFault(
        fault=chance.choice(kinds),
        at=at,
        node=chance.randrange(1, node_count + 1),
        other=chance.randrange(1, node_count + 1),
        lasts_us=int(chance.choice((0.05, 0.5, 2.0, 6.0)) * 1_000_000 * (0.5 + chance.random())),
        survival=chance.choice(_SURVIVALS),
        hook=hook,
    )


class FaultDriver:
    """Executor of a plan on a cluster, until it heals everything."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._moments: dict[str, int] = {}
        self._is_healing = False
        self._hooked = [one for one in plan.faults if one.hook is not None]
        self._older: list[dict[int, dict[str, bytes]]] = []
        """Earlier contents of the disks of all nodes, the newest last."""
        cluster.on_hook = self._on_hook
        cluster.on_failure = self._on_failure

    def begin(self) -> None:
        """Set the rates of the network, and schedule the plan's faults."""
        plan, cluster = self._plan, self._cluster
        clients = range(CLIENTS_FROM, CLIENTS_FROM + len(plan.client_user_counts))
        users = (*range(100, 100 + plan.user_count), *clients)
        for source in (*cluster.nodes, *users):
            for target in (*cluster.nodes, *users):
                link = cluster.network.link(source, target)
                link.loss, link.slow = plan.loss, plan.slow
                if source in cluster.nodes and target in cluster.nodes:
                    link.duplicates = plan.duplicates  # a user's connection delivers messages once
        for node in cluster.nodes.values():
            node.speed.stall_rate = plan.stall_rate
        for one in plan.faults:
            if one.hook is None:
                node = cluster.nodes[one.node]
                cluster.world.after(one.at - cluster.world.now_us, partial(self._do, one, node))
        if any(one.fault is Fault.OLD_CHUNK for one in plan.faults):
            cluster.world.after(CALM_US, self._save_disks)

    def heal(self) -> None:
        """Stop all faults, and start all nodes."""
        self._is_healing = True
        cluster = self._cluster
        for link in cluster.network.links():
            link.loss = link.duplicates = link.slow = 0.0
            link.is_cut = False
        for node in cluster.nodes.values():
            node.speed.stall_rate = 0.0
            node.resume()
            node.disk.clear_faults()
            if not node.is_alive:
                node.start()

    # --- execution --------------------------------------------------------------------------------

    def _on_hook(self, hook: str, node: Node) -> None:
        moment = self._moments[hook] = self._moments.get(hook, 0) + 1
        if self._is_healing:
            return
        self._cluster.count(f"hook {hook}")
        for one in self._hooked:
            if one.hook is not None and one.hook.value == hook and one.at == moment:
                self._cluster.count(f"fault at {hook}")
                self._do(one, node)

    def _on_failure(self, node: Node) -> None:
        """Restart a node that stopped itself, as an operator would."""
        self._cluster.world.after(500_000, lambda: self._start(node))

    def _start(self, node: Node) -> None:
        if not node.is_alive:
            node.start()

    def _do(self, one: PlannedFault, node: Node) -> None:
        if self._is_healing:
            return
        cluster = self._cluster
        cluster.world.note(f"fault: {one.fault.value} on {node.node_id}")
        done = self._apply(one, node)
        if done:
            cluster.count(f"fault {one.fault.value}")

    def _apply(self, one: PlannedFault, node: Node) -> bool:
        cluster, world = self._cluster, self._cluster.world
        match one.fault:
            case Fault.KILL | Fault.POWER:
                if not node.is_alive:
                    return False
                node.kill() if one.fault is Fault.KILL else node.lose_power(one.survival)
                world.after(one.lasts_us, lambda: self._start(node))
            case Fault.POWER_ALL:
                for each in cluster.nodes.values():
                    if each.is_alive:
                        each.lose_power(one.survival)
                    delay_us = world.chance("staggered").randrange(one.lasts_us + 1)
                    world.after(delay_us, partial(self._start, each))
            case Fault.PAUSE:
                if not node.is_alive:
                    return False
                node.pause()
                world.after(one.lasts_us, node.resume)
            case Fault.SNAPSHOT:
                node.snapshot()
            case Fault.DAMAGE | Fault.FLIP_ANY | Fault.CUT_FILE | Fault.OLD_CHUNK:
                return self._damage(one, node)
            case Fault.WIPE:
                return self._wipe(one, node)
            case Fault.ADD_VOTER | Fault.REMOVE_VOTER:
                return self._change_voters(one, node)
            case Fault.RESIGN:
                leader = cluster.leader()
                if leader is None:
                    return False
                leader.resign()
            case Fault.SYNC_FAILS:
                node.disk.fail_sync_once("*.log")
            case Fault.DISK_FULL:
                self._fill_disks(one, node)
            case Fault.RETENTION:
                return node.clean()
            case Fault.STALL:
                node.speed.stall_rate = 0.5
                world.after(one.lasts_us, lambda: self._calm(node))
            case Fault.RESET:
                for other in cluster.nodes:
                    cluster.network.reset(node.node_id, other)
                node.reset_clients()
            case _:
                self._cut(one, node)
        return True

    def _fill_disks(self, one: PlannedFault, node: Node) -> None:
        """Fill the disk of the node, or of all: then no leader can be elected for a while."""
        is_everybodys = one.other == one.node
        for each in self._cluster.nodes.values() if is_everybodys else (node,):
            disk = each.disk
            disk.leave_room(one.room_bytes)
            self._cluster.world.after(one.lasts_us, partial(disk.full_at, None))

    def _damage(self, one: PlannedFault, node: Node) -> bool:
        """Damage durable data while the process is dead; return whether there was any."""
        cluster = self._cluster
        if one.fault is Fault.DAMAGE and (self._plan.node_count < 3 or self._plan.is_dynamic):
            return False  # the meaning of a seed of an older round must not change
        if not node.is_alive or not cluster.may_lose(node):
            return False
        node.kill()
        found = self._damage_files(one, node)
        if found is not None:
            node.add_damage(found)
            cluster.count("damaged log")
        cluster.world.after(one.lasts_us, lambda: self._start(node))
        return True if one.fault is Fault.DAMAGE else found is not None

    def _damage_files(self, one: PlannedFault, node: Node) -> str | None:
        """Damage one file of a node's log; return a description."""
        node.disk.clear_faults()
        match one.fault:
            case Fault.DAMAGE:
                return "the newest segment" if node.flip_durable_bit(one.at) else None
            case Fault.FLIP_ANY:
                return flip_bit_of_any_segment(node.disk, one.number)
            case Fault.CUT_FILE:
                return truncate_file(node.disk, one.number)
            case _:
                if not self._older:
                    return None
                older = self._older[one.number % len(self._older)]
                return restore_older_chunk(node.disk, older[node.node_id], one.number)

    def _save_disks(self) -> None:
        nodes = self._cluster.nodes.values()
        self._older.append({node.node_id: node.disk.files() for node in nodes})
        if not self._is_healing:
            self._cluster.world.after(OLDER_EVERY_US, self._save_disks)

    def _wipe(self, one: PlannedFault, node: Node) -> bool:
        """Format a node's disk again while the process is dead."""
        cluster = self._cluster
        if not node.is_alive or not cluster.may_lose(node) or not cluster.may_be_wiped(node):
            return False
        lost, was_voter = node.voter.key, cluster.is_known_voter(node)
        node.wipe()
        cluster.world.after(one.lasts_us, lambda: self._start(node))
        if was_voter:
            cluster.count("voter formatted again")
            cluster.replace_voter(node, lost)
        return True

    def _change_voters(self, one: PlannedFault, node: Node) -> bool:
        cluster = self._cluster
        leader = cluster.leader()
        if leader is None or not self._plan.is_dynamic:
            return False
        if one.fault is Fault.ADD_VOTER:
            leader.change_voters(AddVoterRequest(voter=node.voter, timeout_ms=5_000))
        elif cluster.is_anything_lost():
            return False  # the remaining nodes may be the only ones with the lost records
        else:
            leader.change_voters(RemoveVoterRequest(voter=node.voter.key))
        return True

    def _calm(self, node: Node) -> None:
        node.speed.stall_rate = 0.0 if self._is_healing else self._plan.stall_rate

    def _cut(self, one: PlannedFault, node: Node) -> None:
        network, me = self._cluster.network, node.node_id
        links: list[Link] = []
        others = [other for other in self._cluster.nodes if other != me]
        if one.fault in (Fault.ISOLATE, Fault.CUT_TO):
            links += [network.link(other, me) for other in others]
        if one.fault in (Fault.ISOLATE, Fault.CUT_FROM):
            links += [network.link(me, other) for other in others]
        if one.fault is Fault.CUT_LINK and one.other != me:
            links += [network.link(me, one.other), network.link(one.other, me)]
        for link in links:
            link.is_cut = True

        def repair_network() -> None:
            for link in links:
                link.is_cut = False

        self._cluster.world.after(one.lasts_us, repair_network)
