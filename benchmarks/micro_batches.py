"""CPU time of 10,000 micro-batches into local tables, without Spark, as fast as they are appended.

A cluster of constant size: each batch changes three of its partitions. The thread that appends is
measured, which does not wait for upkeep; and the process, upkeep included. Memory, the files of
each table, and those of Delta's log with its checkpoints, are those at the end.
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
from raftlog_state.tables.schema import STORED_TABLES, StoredTable
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

BATCHES = 10_000
PART = 200
"""Batches at the beginning, after as many to warm up, and at the end that are compared."""
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
    follow(cluster, follower, PART)
    first = follow(cluster, follower, PART)
    follow(cluster, follower, batch_count - 3 * PART)
    last = follow(cluster, follower, PART)
    follower.close()
    after = f"the first {PART}"
    for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        what = f"micro-batch, thread that appends, last {PART} of {batch_count:,}, {name}"
        yield row(what, last.quantile(share), "ms CPU", first.quantile(share), after)
    yield row("the same, upkeep included, mean", last.process_ms, "ms CPU", first.process_ms, after)
    yield row("memory", last.memory_mib, "MiB", first.memory_mib, f"after {after}")
    for table in STORED_TABLES.values():
        yield from sizes(table, DeltaRsStore(place), directory / "tables" / table.name)


def sizes(table: StoredTable, store: DeltaRsStore, path: Path) -> Iterator[Row]:
    """Yield the figures of a table: its files, and those of Delta's log."""
    live = store.size(table)
    stored = len(list(path.glob("**/part-*.parquet")))
    where = "in the directory"
    yield row(f"files of {table.name}, newest version", live.file_count, "files", stored, where)
    yield row(f"the same of {table.name}", live.byte_count / 2**20, "MiB")
    entries = [path.stat().st_size for path in (path / "_delta_log").iterdir()]
    checkpoints = len(list((path / "_delta_log").glob("*.checkpoint*.parquet")))
    title = f"files of the log of {table.name}, checkpoints"
    yield row(title, checkpoints, "files", len(entries), "of all")
    yield row(f"the same of {table.name}, all", sum(entries) / 2**20, "MiB")


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
