"""Run of the simulator: a seed, its plan, faults, healing, and the result.

``python -m tests.simulation.running --seed 17`` replays one seed and prints its trace, or with
``--shrink`` the smallest plan that violates the same invariant, and the end of that run; ``--seeds
1000`` runs this number of seeds, from ``--first`` on or from a number that depends on the clock.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from raftlog import ValueKind
from raftlog.quorum.config import QuorumConfig

from .checker import check_book
from .clients import Client, ClientUser, check_order
from .cluster import Cluster, small_log_config
from .compaction import Deleting
from .controllers import Changing
from .counters import Counting, check_counters
from .faults import CALM_US, FAULTS_US, Fault, FaultDriver, Hook, Plan, draw_plan
from .group_offsets import Committing
from .invariants import InvariantViolationError
from .keyed_appends import KeyedAppends, check_keyed_appends
from .remote_storage import SimulatedTier
from .shrinking import describe_plan, shrunk
from .users import Operation, User
from .world import World

EXPECTED: Final = (
    *(f"fault {fault.value}" for fault in Fault),
    *(f"hook {hook.value}" for hook in Hook),
    *(f"fault at {hook.value}" for hook in Hook),
    *(f"message {name}" for name in ("cut", "lost", "duplicated", "late", "reset")),
    "message inexpressible",
    "damaged log",
    "voter replaced",
    "stalled sync",
    "stood still",
    "resigned without space",
    "appends submitted together",
    "increment committed",
    "request PRODUCE",
    "segment copied",
    "remote segments read",
    "remote request failed",
    "segments compacted",
    "survivors compared",
    "crash of a compaction",
    "result of a client: done",
    "result of a client: AppendUnknownError",
    "result of a client: QuorumUnavailableError",
    "result of a client: UnexpectedEndOffsetError",
)
"""Counts expected in every large set of seeds: faults with an effect, hooks that were called,
faults at each of them, effects of the network, and results of the product's client.
"""
SEEDS_FOR_EVERY_FAULT: Final = 500
"""Number of seeds in which all of ``EXPECTED`` must occur."""
INVARIANT_CHARS: Final = 24
"""Number of characters of a failure that identify the invariant."""
TRACE_LINES: Final = 60
HW_DELAYS_MS: Final = (0, 5)
"""By the seed: Kafka's behaviour, and the default of a node."""
RUNS_US: Final = 5_000_000
"""Within which each node has completed a run of remote storage."""
HEAL_WITHIN_US: Final = 60_000_000
"""After healing: a leader, the last operation of every user completed, all logs equal."""


@dataclass(slots=True)
class RunResult:
    """Result of a run. ``failure`` None: no invariant was violated."""

    seed: int
    failure: str | None
    event_count: int
    virtual_us: int
    trace_hash: str
    counts: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)


def run_seed(seed: int, *, plan: Plan | None = None, keeps_trace: bool = False) -> RunResult:
    """Run one seed to its end, or to the first violated invariant."""
    world = World(seed, keeps_trace=keeps_trace)
    plan = draw_plan(seed) if plan is None else plan
    cluster = Cluster(
        world,
        node_count=plan.node_count,
        observer_count=plan.observer_count,
        is_dynamic=plan.is_dynamic,
        config=QuorumConfig(fetch_hw_delay_ms=HW_DELAYS_MS[world.seed % len(HW_DELAYS_MS)]),
        log_config=small_log_config(
            retention_bytes=plan.retention_bytes,
            values=ValueKind.KRAFT if plan.has_controllers else ValueKind.BYTES,
            has_remote_storage=plan.has_remote_storage,
            is_compacted=plan.is_compacted,
        ),
        has_counters=plan.has_counters,
        has_controllers=plan.has_controllers,
        has_old_versions=plan.has_old_versions,
        has_clients=bool(plan.client_user_counts),
        client_byte_rate=plan.client_byte_rate,
        has_remote_storage=plan.has_remote_storage,
        is_compacted=plan.is_compacted,
    )
    failure = None
    try:
        _run(cluster, plan)
    except AssertionError as error:
        failure = f"{type(error).__name__}: {error}"
        if not isinstance(error, InvariantViolationError) and keeps_trace:
            failure += "\n" + traceback.format_exc()
    counts = dict(cluster.counts)
    counts.update({f"message {name}": count for name, count in cluster.network.counts.items()})
    counts["committed record"] = cluster.witness.end_offset
    return RunResult(
        seed,
        failure,
        world.event_count,
        world.now_us,
        world.trace_hash(),
        counts,
        world.trace or [],
    )


def _run(cluster: Cluster, plan: Plan) -> None:
    book = list[Operation]()
    users: list[User] = [
        User(cluster, number, book, plan.pause_us) for number in range(plan.user_count)
    ]
    clients = [Client(cluster, number) for number in range(len(plan.client_user_counts))]
    users += [
        ClientUser(cluster, client, number, book, plan.pause_us)
        for client, count in zip(clients, plan.client_user_counts, strict=True)
        for number in range(count)
    ]
    if plan.has_keys:
        keyed = KeyedAppends(cluster.witness)
        for user in users:
            user.keyed = keyed
    try:
        _run_users(cluster, plan, users, book)
    finally:
        for client in clients:
            client.close()
    for client in clients:
        check_order(client)


def _run_users(cluster: Cluster, plan: Plan, users: list[User], book: list[Operation]) -> None:
    world = cluster.world
    driver, counting = FaultDriver(cluster, plan), Counting(cluster)
    changing, committing = Changing(cluster), Committing(cluster)
    deleting = Deleting(cluster)
    cluster.start()
    counting.begin()
    changing.begin()
    if plan.commits_offsets:
        committing.begin()
    if plan.is_compacted:
        deleting.begin()
    for user in users:
        user.begin()
    driver.begin()
    world.run(CALM_US + FAULTS_US)
    world.note("healing")
    driver.heal()
    counting.is_stopping = changing.is_stopping = committing.is_stopping = True
    deleting.is_stopping = True
    if cluster.cleaning is not None:
        cluster.cleaning.crash_rate = 0.0
    for user in users:
        user.is_stopping = True
    healed = world.run(
        world.now_us + HEAL_WITHIN_US,
        lambda: (
            all(user.is_idle for user in users)
            and committing.is_idle
            and not cluster.is_replacing
            and cluster.is_level()
        ),
    )
    if not healed:
        raise InvariantViolationError(f"progress after healing: {cluster.describe()}")
    if plan.has_controllers:
        changing.check()
    else:
        check_counters(cluster, cluster.witness.history)
    if plan.commits_offsets:
        committing.check(cluster.witness.history)
    if cluster.tier is not None:
        _check_remote_storage(cluster, cluster.tier, plan)
    _kill_the_leader(cluster)
    for node in cluster.nodes.values():
        if node.replica is None:
            node.start()
        assert node.replica is not None
        cluster.witness.check_history(node.node_id, node.replica.log)
        cluster.check_survivors(node)
    check_book(book, cluster.witness.history)
    check_keyed_appends(book, cluster.witness.history)


def _check_remote_storage(cluster: Cluster, tier: SimulatedTier, plan: Plan) -> None:
    """Let every node complete a run without failures, and read the whole log of each."""
    tier.failure_rate = 0.0
    cluster.world.run(cluster.world.now_us + RUNS_US)
    for node in cluster.nodes.values():
        tier.check(node, start_offset=0 if plan.retention_bytes is None else None)


def _kill_the_leader(cluster: Cluster) -> None:
    """Kill the leader permanently: the others, if they are a majority, must continue."""
    leader = cluster.leader()
    assert leader is not None
    assert leader.replica is not None
    if len(leader.replica.core.voters) < 3:
        return
    cluster.world.note("the leader is buried")
    leader.kill()
    if not cluster.world.run(
        cluster.world.now_us + HEAL_WITHIN_US,
        lambda: cluster.is_level(without=leader.node_id),
    ):
        raise InvariantViolationError(f"progress without the leader: {cluster.describe()}")


def main() -> None:
    """Run seeds, or replay one with its trace. Exit code 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="make sim")
    parser.add_argument("--seed", type=int, help="replay this one and print what happened")
    parser.add_argument("--shrink", action="store_true", help="cut its plan down")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--first", type=int, default=None, help="the first one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    if chosen.seed is not None and chosen.shrink:
        sys.exit(shrink_seed(chosen.seed))
    if chosen.seed is not None:
        verdict = run_seed(chosen.seed, keeps_trace=True)
        print("\n".join(verdict.trace))
        print(f"seed {verdict.seed}: {verdict.failure or 'no invariant was violated'}")
        sys.exit(verdict.failure is not None)
    first = secrets.randbelow(2**31) if chosen.first is None else chosen.first
    sys.exit(not run_many(range(first, first + chosen.seeds), chosen.workers))


def shrink_seed(seed: int) -> bool:
    """Print the smallest plan that violates the seed's invariant; return if it violates any."""
    failure = run_seed(seed).failure
    if failure is None:
        print(f"seed {seed}: no invariant was violated")
        return False
    invariant = failure.partition(":")[2][:INVARIANT_CHARS]

    def fails(plan: Plan) -> bool:
        return invariant in (run_seed(seed, plan=plan).failure or "")

    plan = shrunk(draw_plan(seed), fails)
    verdict = run_seed(seed, plan=plan, keeps_trace=True)
    print("\n".join(verdict.trace[-TRACE_LINES:]))
    print("\n".join(describe_plan(plan)))
    print(f"seed {seed}: {verdict.failure}")
    return True


def run_many(seeds: range, workers: int) -> bool:
    """Run seeds on all cores and print the report; return whether no invariant was violated."""
    began, counts, events, virtual_us = time.perf_counter(), Counter[str](), 0, 0
    failed: list[RunResult] = []
    with ProcessPoolExecutor(workers) as pool:
        for done, verdict in enumerate(pool.map(run_seed, seeds, chunksize=4), 1):
            counts += Counter(verdict.counts)
            events += verdict.event_count
            virtual_us += verdict.virtual_us
            if verdict.failure is not None:
                failed.append(verdict)
                print(f"make sim SEED={verdict.seed}   # {verdict.failure}", flush=True)
            if done % 500 == 0:
                print(f"{done} of {len(seeds)} seeds, {len(failed)} failed", flush=True)
    took_s = time.perf_counter() - began
    print(
        f"seeds {seeds.start} to {seeds.stop - 1}: {len(failed)} of {len(seeds)} failed; "
        f"{virtual_us / 3.6e9:.1f} simulated hours, {events} events, {took_s:.0f} s "
        f"({60 * len(seeds) / took_s / workers:.0f} seeds a minute and worker)"
    )
    if not failed:
        print(f"so a seed violates an invariant in at most {3 / len(seeds):.2g} of cases (95 %)")
    for name, count in sorted(counts.items()):
        print(f"  {name:32} {count}")
    never = never_counted(counts)
    if never and len(seeds) >= SEEDS_FOR_EVERY_FAULT:
        print(f"these never happened: {', '.join(never)}")
        return False
    return not failed


def never_counted(counts: Mapping[str, int]) -> list[str]:
    """Return the faults and hooks that should occur in many seeds and did not."""
    return [name for name in EXPECTED if not counts.get(name)]


if __name__ == "__main__":
    main()
