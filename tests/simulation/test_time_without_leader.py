"""Time without a leader after the leader falls silent, over many seeds."""

from __future__ import annotations

import math

import pytest

from raftlog.append import NOT_AWAITED, AppendRequest
from raftlog.quorum.config import QuorumConfig
from tests.simulation.cluster import Cluster
from tests.simulation.node import Node
from tests.simulation.world import US_PER_MS, World

SEEDS = range(60)
CONFIG = QuorumConfig(fetch_timeout_ms=1_000)
AFTER_MS = 250
"""Maximum duration of an election after the last follower has timed out."""


def append_to_one_follower(world: World, cluster: Cluster, leader: Node) -> None:
    """Append a record that one follower of the leader receives, and the others do not."""
    first, *others = (one for one in cluster.nodes.values() if one is not leader)
    for other in others:
        cluster.network.link(leader.node_id, other.node_id).is_cut = True
    request = AppendRequest(records=(b"last",), deadline_ms=math.inf, future=NOT_AWAITED)
    assert leader.raft_node is not None
    leader.raft_node.append(request, lambda _: None)
    assert first.replica is not None
    end_offset = first.replica.log.end_offset
    assert world.run(
        world.now_us + 1_000 * US_PER_MS,
        lambda: first.replica is not None and first.replica.log.end_offset > end_offset,
    )


def time_without_leader(
    seed: int, node_count: int, *, is_last_on_one: bool = False
) -> tuple[int, int]:
    """Return the milliseconds until another node leads, and the number of epochs until then.

    ``is_last_on_one``: one follower has a record that the others lack.
    """
    world = World(seed)
    cluster = Cluster(world, node_count=node_count, config=CONFIG)
    cluster.start()
    assert world.run(60_000 * US_PER_MS, cluster.is_level)
    quiet_ms = 1_000 + world.chance("silence").randrange(2_000)
    world.run(world.now_us + quiet_ms * US_PER_MS)
    silent = cluster.leader()
    assert silent is not None
    assert silent.replica is not None
    epoch = silent.replica.core.epoch
    if is_last_on_one:
        append_to_one_follower(world, cluster, silent)
    began_ms = world.now_ms
    silent.pause()

    def epoch_of_another() -> int:
        cores = [node.replica.core for node in cluster.nodes.values() if node.replica is not None]
        return max(
            (core.epoch for core in cores if core.is_leader and core.epoch > epoch), default=0
        )

    assert world.run(world.now_us + 60_000 * US_PER_MS, lambda: bool(epoch_of_another()))
    return world.now_ms - began_ms, epoch_of_another() - epoch


@pytest.mark.parametrize(
    ("node_count", "is_last_on_one"),
    [
        pytest.param(3, True, marks=pytest.mark.slow),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in ((3, False), (5, False), (5, True))
        ),
    ],
)
def test_followers_do_not_time_out_together(node_count: int, is_last_on_one: bool) -> None:
    """Not even if only one of them can be elected, and its timeout is the first to expire."""
    found = [time_without_leader(seed, node_count, is_last_on_one=is_last_on_one) for seed in SEEDS]
    split = [seed for seed, (_, epochs) in zip(SEEDS, found, strict=True) if epochs > 1]
    assert len(split) <= len(SEEDS) // 30, f"votes were split with seeds {split}"
    times_ms = sorted(time_ms for time_ms, _ in found)
    longest_ms = CONFIG.fetch_timeout_ms + CONFIG.fetch_jitter_ms + AFTER_MS
    assert times_ms[len(times_ms) * 95 // 100] <= longest_ms
