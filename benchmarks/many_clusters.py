"""CPU of ``raftlog tables follow --sources`` for many clusters, and the delay of their changes.

Time is that of one core, so the figures do not depend on what else the machine does. First each
round reads the changes of five seconds. Then rounds follow each other without a pause: one reads
what has been written while the round before used the CPU.
"""

from __future__ import annotations

import argparse
import base64
import tempfile
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.run import Row, print_row, row
from tests.support.small_logs import LogWriter

from raftlog.client import open_path
from raftlog.clock import Clock
from raftlog_state.records import (
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
    TopicRecord,
    encode,
)
from raftlog_state.tables.group_follower import GroupFollower
from raftlog_state.tables.log_follower import FollowSettings
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

CLUSTERS = 500
CHANGES_PER_S = 20
PARTITIONS = 40
ROUNDS = 5
LENGTH_S = 5.0
"""Seconds of changes that each round of the first measurement reads."""
TOPIC_ID = base64.urlsafe_b64encode(uuid.UUID(int=1).bytes).decode()[:22]


def cluster_log(directory: Path, number: int) -> LogWriter:
    """Create the log of a cluster with one topic."""
    name = f"cluster-{number:04}"
    log = LogWriter(directory / name / "__cluster_metadata-0", cluster_id=name)
    partitions = [
        encode(
            PartitionRecord(
                partition_id=number, topic_id=TOPIC_ID, replicas=(1, 2), isr=(1, 2), leader=1
            )
        )
        for number in range(PARTITIONS)
    ]
    log.append(encode(TopicRecord(name="topic", topic_id=TOPIC_ID)), *partitions)
    return log


class Changes:
    """Changes of leaders and in-sync replicas, the same in each log, one batch a second."""

    def __init__(self) -> None:
        self._values = [
            encode(
                PartitionChangeRecord(
                    partition_id=number % PARTITIONS,
                    topic_id=TOPIC_ID,
                    isr=(1, 2)[: 1 + number // PARTITIONS % 2],
                    leader=1,
                )
            )
            for number in range(2 * PARTITIONS)
        ]
        self._next = 0

    def append(self, logs: list[LogWriter], count: int) -> None:
        """Append as many changes to each log."""
        values = [self._values[(self._next + at) % len(self._values)] for at in range(count)]
        self._next += count
        for log in logs:
            for first in range(0, count, CHANGES_PER_S):
                log.append(*values[first : first + CHANGES_PER_S])


def measure(directory: Path, cluster_count: int, rounds: int) -> Iterator[Row]:
    logs = [cluster_log(directory, number) for number in range(cluster_count)]
    settings = FollowSettings(
        redactor=Redactor(), writes_log=False, holdback_ms=0, record_count_max=10_000_000
    )
    follower = GroupFollower(
        {log.directory.parent.name: partial(open_path, str(log.directory)) for log in logs},
        DeltaRsStore(str(directory / "tables")),
        settings,
        group="all",
        clock=Clock(now_ms=lambda: 1_000 * time.process_time()),
        log_event=lambda event: None,
    )
    title = f"{cluster_count} clusters x {CHANGES_PER_S} changes/s"
    begun_s = time.process_time()
    assert follower.append_round() == cluster_count
    yield row(f"{title}, first append of all, CPU", time.process_time() - begun_s, "s")
    changes = Changes()

    def cpu_of_round(length_s: float) -> float:
        """Return the CPU seconds of a round that reads so many seconds of changes."""
        changes.append(logs, max(1, round(length_s * CHANGES_PER_S)))
        begun_s = time.process_time()
        assert follower.append_round() == cluster_count
        return time.process_time() - begun_s

    used = [cpu_of_round(LENGTH_S) for _ in range(1 + rounds)][1:]
    yield row(
        f"{title}, cores, a round each {LENGTH_S:g} s", sum(used) / rounds / LENGTH_S, "cores"
    )
    # A change waits for half of the seconds that its round reads, and for the round.
    length_s, delays = used[-1], []
    for _ in range(rounds):
        used_s = cpu_of_round(length_s)
        delays.append(length_s / 2 + used_s)
        length_s = used_s
    assert not follower.failures
    yield row(f"{title}, written to published, p50", sorted(delays)[rounds // 2], "s")
    begun_s = time.process_time()
    follower.merge_state()
    yield row(f"{title}, merge into state, CPU", time.process_time() - begun_s, "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clusters", type=int, default=CLUSTERS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for figures in measure(Path(directory), arguments.clusters, arguments.rounds):
            print_row(figures, as_json=arguments.json, decimals=2)


if __name__ == "__main__":
    main()
