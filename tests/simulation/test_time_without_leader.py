"""Time without a leader after the leader falls silent, over many seeds."""

from __future__ import annotations

import pytest

from raftlog.quorum.config import QuorumConfig
from tests.simulation.cluster import Cluster
from tests.simulation.world import US_PER_MS, World

pytestmark = pytest.mark.slow

SEEDS = range(60)
CONFIG = QuorumConfig(fetch_timeout_ms=1_000)
AFTER_MS = 250
"""Maximum duration of an election after the last follower has timed out."""


def time_without_leader(seed: int, node_count: int) -> tuple[int, int]:
    """Return the milliseconds until another node leads, and the number of epochs until then."""
    world = World(seed)
    cluster = Cluster(world, node_count=node_count, config=CONFIG)
    cluster.start()
    assert world.run(60_000 * US_PER_MS, cluster.is_level)
    quiet_ms = 1_000 + world.chance("silence").randrange(2_000)
    world.run(world.now_us + quiet_ms * US_PER_MS)
    silent = cluster.leader()
    assert silent is not None
    assert silent.replica is not None
    epoch, began_ms = silent.replica.core.epoch, world.now_ms
    silent.pause()

    def epoch_of_another() -> int:
        cores = [node.replica.core for node in cluster.nodes.values() if node.replica is not None]
        return max(
            (core.epoch for core in cores if core.is_leader and core.epoch > epoch), default=0
        )

    assert world.run(world.now_us + 60_000 * US_PER_MS, lambda: bool(epoch_of_another()))
    return world.now_ms - began_ms, epoch_of_another() - epoch


@pytest.mark.parametrize("node_count", [3, 5])
def test_followers_do_not_time_out_together(node_count: int) -> None:
    found = [time_without_leader(seed, node_count) for seed in SEEDS]
    split = [seed for seed, (_, epochs) in zip(SEEDS, found, strict=True) if epochs > 1]
    assert len(split) <= len(SEEDS) // 30, f"votes were split with seeds {split}"
    times_ms = sorted(time_ms for time_ms, _ in found)
    longest_ms = CONFIG.fetch_timeout_ms + CONFIG.fetch_jitter_ms + AFTER_MS
    assert times_ms[len(times_ms) * 95 // 100] <= longest_ms
