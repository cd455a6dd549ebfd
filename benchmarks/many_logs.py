"""CPU milliseconds of the driver for one trigger of a stream that reads many logs.

Half of the logs are copies of a bundled controller's, half are written by raftlog. The reference is
a refresh of each log, which a stream needs that does not see which of them have changed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.run import Row, print_row, row

import raftlog
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.sources_reader import RaftlogSourcesStreamReader

CONTROLLER = Path(__file__).parents[1] / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"
COUNTS = (1, 100, 500)
CHANGED = 5
"""Logs with new records, if not all are idle."""
ROUNDS = 10


def create_log(home: Path, number: int) -> Path:
    """Return the directory of a log, written by raftlog if the number is even."""
    if number % 2 == 0:
        path = home / f"log-{number}"
        with raftlog.open(path) as log:
            log.append(b"0")
        return path
    path = home / f"node-{number}" / "__cluster_metadata-0"
    shutil.copytree(CONTROLLER / path.name, path)
    return path


def make_old(path: Path) -> None:
    for one in (*path.iterdir(), path):
        os.utime(one, (0, 0))


def cpu_ms(action: Callable[[], object]) -> float:
    begin = time.process_time()
    action()
    return (time.process_time() - begin) * 1_000


class Stream:
    """Stream over some logs that has read all of their records."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        sources = [
            {"path": str(path), "clusterId": f"cluster-{number}"}
            for number, path in enumerate(paths)
        ]
        given = {"sources": json.dumps(sources), "startingOffset": "earliest", "pollWaitMs": "0"}
        self.reader = RaftlogSourcesStreamReader(
            RaftlogOptions.parse(given | {"tailHoldback": "0"}), ("clusterId", "offset")
        )
        self.position = self.reader.initialOffset()
        for path in paths:
            make_old(path)
        self.trigger()
        self.trigger()

    def trigger(self) -> None:
        """Find and plan the next batch, with offsets as Spark passes them."""
        start = json.loads(json.dumps(self.position))
        self.position = self.reader.latestOffset(start)
        if self.position is not start:
            self.reader.partitions(start, json.loads(json.dumps(self.position)))

    def refresh_all(self) -> None:
        for log in self.reader._logs.all:
            log.stream.refresh()

    def append_to_few(self) -> None:
        for path in self.paths[: 2 * CHANGED : 2]:
            with raftlog.open(path) as log:
                log.append(b"1")


def measure(paths: list[Path]) -> list[Row]:
    count = len(paths)
    stream = Stream(paths)
    idle = min(cpu_ms(stream.trigger) for _ in range(ROUNDS))
    refresh = min(cpu_ms(stream.refresh_all) for _ in range(ROUNDS))
    with_news = []
    for _ in range(ROUNDS):
        stream.append_to_few()
        with_news.append(cpu_ms(stream.trigger))
    changed = min(CHANGED, (count + 1) // 2)
    reference = "reading the end of each log"
    what = "driver, one trigger of a stream of"
    return [
        row(f"{what} {count} idle logs", idle, "ms CPU", refresh, reference),
        row(f"{what} {count} logs, {changed} with news", min(with_news), "ms CPU"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        paths = [create_log(Path(home), number) for number in range(max(COUNTS))]
        for count in COUNTS:
            for one in measure(paths[:count]):
                print_row(one, as_json=chosen.json, decimals=2)


if __name__ == "__main__":
    main()
