"""CPU time of 10,000 micro-batches into local tables, without Spark, as fast as they are appended.

A cluster of constant size: each batch changes three of its partitions. The thread that appends is
measured, which does not wait for upkeep; and the process, upkeep included. Memory, files and the
entries of Delta's log are those at the end.
"""

from __future__ import annotations

import argparse
import base64
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.run import Row, print_row, row
from tests.support.small_logs import TIME_MS, LogWriter

from raftlog.client import open_path
from raftlog_state.records import (
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
    TopicRecord,
    encode,
)
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.schema import CHANGES_TABLE
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

BATCHES = 10_000
PART = 500
"""Batches at the beginning and at the end that are compared."""
TOPICS = 100
PARTITIONS = range(3)


class Cluster:
    """Log of a cluster whose partitions change, one batch a topic."""

    def __init__(self, directory: Path) -> None:
        self.log = LogWriter(directory / "__cluster_metadata-0", cluster_id="benchmark")
        self._count = 0
        self._ids = [
            base64.urlsafe_b64encode(uuid.UUID(int=number + 1).bytes).decode()[:22]
            for number in range(TOPICS)
        ]
        for number, topic_id in enumerate(self._ids):
            self.log.append(
                encode(TopicRecord(name=f"topic-{number}", topic_id=topic_id)),
                *(
                    encode(
                        PartitionRecord(
                            partition_id=at,
                            topic_id=topic_id,
                            replicas=(1, 2),
                            isr=(1, 2),
                            leader=1,
                        )
                    )
                    for at in PARTITIONS
                ),
            )

    def change(self) -> None:
        """Append a batch that moves the leaders of a topic."""
        turn, topic = divmod(self._count, TOPICS)
        self._count += 1
        records = (
            PartitionChangeRecord(partition_id=at, topic_id=self._ids[topic], leader=2 - turn % 2)
            for at in PARTITIONS
        )
        self.log.append(*map(encode, records), timestamp_ms=TIME_MS + self._count)


@dataclass
class Taken:
    """Milliseconds of CPU time of batches, of the thread that appends; and of the process."""

    thread_ms: list[float] = field(default_factory=list)
    process_ms: float = 0.0
    memory_mib: float = 0.0

    def quantile(self, share: float) -> float:
        """Return the time that this share of the batches does not exceed."""
        return sorted(self.thread_ms)[
            min(len(self.thread_ms) - 1, int(share * len(self.thread_ms)))
        ]


def memory_mib() -> float:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096 / 2**20


def follow(cluster: Cluster, follower: LogFollower, count: int) -> Taken:
    """Append batches; return their times."""
    taken, before = Taken(), time.process_time()
    for _ in range(count):
        cluster.change()
        start = time.thread_time()
        follower.append_next()
        taken.thread_ms.append(1_000 * (time.thread_time() - start))
    taken.process_ms = 1_000 * (time.process_time() - before) / count
    taken.memory_mib = memory_mib()
    return taken


def measure(directory: Path, batch_count: int) -> Iterator[Row]:
    """Yield the figures of a number of batches."""
    cluster, place = Cluster(directory), str(directory / "tables")
    follower = LogFollower(
        lambda: open_path(str(cluster.log.directory)),
        DeltaRsStore(place, writes_checkpoints=False),
        FollowSettings(redactor=Redactor(), holdback_ms=0),
        upkeep_store=DeltaRsStore(place),
        log_event=lambda event: None,
    )
    while follower.append_next() is not None:
        pass
    first = follow(cluster, follower, PART)
    follow(cluster, follower, batch_count - 2 * PART)
    last = follow(cluster, follower, PART)
    follower.close()
    after = f"the first {PART}"
    for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        what = f"micro-batch, thread that appends, last {PART} of {batch_count:,}, {name}"
        yield row(what, last.quantile(share), "ms CPU", first.quantile(share), after)
    yield row("the same, upkeep included, mean", last.process_ms, "ms CPU", first.process_ms, after)
    yield row("memory", last.memory_mib, "MiB", first.memory_mib, f"after {after}")
    table = directory / "tables" / CHANGES_TABLE.name
    live = DeltaRsStore(place).size(CHANGES_TABLE).file_count
    stored = len(list(table.glob("*.parquet")))
    yield row(
        "files of changes, those of the newest version", live, "files", stored, "in the directory"
    )
    entries = [path.stat().st_size for path in (table / "_delta_log").iterdir()]
    yield row("entries of the log of changes", len(entries), "entries")
    yield row("the same", sum(entries) / 2**20, "MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--json", action="store_true", help="print one JSON object a figure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for figures in measure(Path(directory), arguments.batches):
            print_row(figures, as_json=arguments.json, decimals=1)


if __name__ == "__main__":
    main()
