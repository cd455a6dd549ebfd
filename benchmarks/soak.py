"""Appends to three nodes for a long time, while nodes are killed and paused.

Writers append continuously, each value once under a commit name, half of them with a required
offset. Every few seconds the leader is killed (SIGKILL) and started again, or a follower is. The
first node is never killed: when it leads it is paused (SIGSTOP) until another one is elected. So it
has all elections, lost connections and truncations of the run. Once each of these has occurred its
memory, descriptors and threads must not grow: it has imported numpy, by which its log is truncated
(12 MiB), and what it keeps of the log has bounds, such as the last MiB of batches. At the end each
acknowledged record is in the log once, at its offset. With ``--judge`` the exit code is 1 if a
bound is exceeded or a node has logged an error.

    python -m benchmarks.soak --seconds 3600 --judge
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from benchmarks.resources import Resources
from tests.support.quorum_checks import grows, leader_of
from tests.support.quorum_load import Load, check_nothing_is_lost
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

SECONDS: Final = 600.0
PAUSE_S: Final = 3.0
"""Time of undisturbed appends between two disturbances."""
LEADER_PAUSED: Final = "leader paused"
LEADER_KILLED: Final = "leader killed"
FOLLOWER_KILLED: Final = "follower killed"
DISTURBANCES: Final = (LEADER_PAUSED, LEADER_KILLED, FOLLOWER_KILLED)
"""Each occurs before the measured time, and so does a truncation."""


def disturb(quorum: QuorumProcesses, load: Load, rng: random.Random) -> str:
    """Kill or pause one node while appends continue; return what was done."""
    survivor = quorum.nodes[0]
    leader = eventually(lambda: leader_of(quorum), "a leader")
    if leader is survivor:
        survivor.pause()
        eventually(lambda: leader_of(quorum) is not survivor, "another leader")
        grows(load)
        survivor.resume()
        done = LEADER_PAUSED
    else:
        node = rng.choice([one for one in quorum.nodes if one is not survivor])
        done = LEADER_KILLED if node is leader else FOLLOWER_KILLED
        node.kill()
        grows(load)
        node.start()
    grows(load)
    return done


def soak(seconds: float, seed: int) -> tuple[Resources, Counter[str], int, list[str]]:
    """Return the resources of the first node, the disturbances, the number of acknowledged appends,
    and errors that nodes have logged."""
    found, done, rng = Resources(), Counter[str](), random.Random(seed)
    with tempfile.TemporaryDirectory() as home, QuorumProcesses(Path(home)) as quorum:
        survivor = quorum.nodes[0].process
        assert survivor is not None
        with Load(quorum.bootstrap) as load:
            grows(load)
            while len(done) < len(DISTURBANCES) or not has_truncated(quorum.nodes[0]):
                done[disturb(quorum, load, rng)] += 1
            found.look(survivor.pid)
            before, end_s = load.count, time.monotonic() + seconds
            while time.monotonic() < end_s:
                time.sleep(PAUSE_S)
                found.look(survivor.pid)
                done[disturb(quorum, load, rng)] += 1
            found.look(survivor.pid)
            found.append_count = load.count - before
        check_nothing_is_lost(quorum.bootstrap, load.book)
        errors = [error for node in quorum.nodes for error in errors_of(node)]
        return found, done, load.count, errors


def has_truncated(node: NodeProcess) -> bool:
    """Return whether a node has truncated its log while it ran: each time it keeps a backup."""
    return any(node.directory.glob("*/*.log.cut-*"))


def errors_of(node: NodeProcess) -> list[str]:
    return [str(line) for line in node.lines() if line.get("level", "error") == "error"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of the run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of disturbances")
    parser.add_argument("--judge", action="store_true", help="fail if a bound is exceeded")
    arguments = parser.parse_args()
    if arguments.seconds <= 0:
        parser.error("argument --seconds: must be above 0")
    found, done, count, errors = soak(arguments.seconds, arguments.seed)
    print(", ".join(f"{times} times {what}" for what, times in sorted(done.items())))
    print(f"{count:,} appends were acknowledged, each is in the log once")
    print("\n".join(found.lines()))
    if arguments.judge:
        broken = [*found.broken_bounds(), *errors]
        sys.exit("\n".join(broken) if broken else 0)


if __name__ == "__main__":
    main()
