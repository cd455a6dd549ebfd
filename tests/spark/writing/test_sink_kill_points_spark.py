"""A driver killed at every point of a micro-batch, repeatedly on one checkpoint.

``RAFTLOG_KILL_ORDERS=5`` adds five random orders.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.kill_points import DIED, ORDERS, run_driver
from tests.support.sink_driver import POINTS, stream
from tests.support.spark_session import has_java

import raftlog
from pyspark_raftlog.source import RaftlogDataSource
from raftlog.client import open_path
from raftlog.records.record import NewRecord

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not has_java(), reason="Spark needs Java 17 or newer"),
]

RECORDS = 60
"""A micro-batch has two batches of the log: there are ten."""
FEW_RECORDS = 24
RUNS_MAX = 8


class Copy:
    """Stream that copies one log into another in several runs."""

    def __init__(self, directory: Path, record_count: int = RECORDS) -> None:
        self.directory = directory
        self.source, self.sink = directory / "in-0", directory / "out-0"
        with raftlog.open(self.source) as log:
            for start in range(0, record_count, 3):
                numbers = range(start, start + 3)
                log.append(
                    [NewRecord(b"k%d" % n, b"v%d" % n, 1_700_000_000_000 + n) for n in numbers],
                    atomic=True,
                )
        raftlog.open(self.sink).close()

    def run(self, point: str, occurrence: int = 1) -> int:
        """Run until it is killed or done; return the driver's exit code."""
        places = (self.source, self.sink, self.directory / "checkpoint")
        said = self.directory / "said"
        return run_driver(said, "tests.support.sink_driver", "stream", *places, point, occurrence)

    def run_here(self, spark: SparkSession) -> None:
        """Run to the end in a session of this process, which takes the place of a restarted driver.

        It tries each task once.
        """
        spark.dataSource.register(RaftlogDataSource)
        places = map(str, (self.source, self.sink, self.directory / "checkpoint"))
        stream(spark, *places, sink_format=RaftlogDataSource.name())

    def said(self) -> str:
        return (self.directory / "said").read_text(errors="replace")[-4000:]

    def check(self, *, is_done: bool) -> None:
        """Check that the copy is a prefix of the source: nothing lost, nothing twice."""
        sent, copied = records(self.source), records(self.sink)
        assert copied == (sent if is_done else sent[: len(copied)])


def records(path: Path) -> list[tuple[Any, ...]]:
    """Return the records that readers see. The log is unchanged for the next driver's recovery."""
    log = open_path(str(path))
    return [
        (one.key, one.value, one.timestamp_ms)
        for batch in log.batches(log.log_start_offset, log.log_end_offset)
        if not batch.is_control
        for one in batch.records()
    ]


def test_a_stream_killed_after_its_append_copies_each_record_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark repeats a batch that the log has: the other points are those of the next test."""
    copy = Copy(tmp_path, FEW_RECORDS)
    assert copy.run("after the sync", occurrence=2) == DIED, copy.said()
    copy.check(is_done=False)
    copy.run_here(spark)
    copy.check(is_done=True)


@pytest.mark.nightly
def test_a_stream_killed_once_at_each_point_of_a_batch_copies_each_record_once(
    tmp_path: Path,
) -> None:
    copy = Copy(tmp_path)
    for number, point in enumerate(POINTS):
        assert copy.run(point, 1 + number % 2) == DIED, copy.said()
        copy.check(is_done=False)
    assert copy.run("none") == 0, copy.said()
    copy.check(is_done=True)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(ORDERS))
def test_a_stream_killed_at_random_points_copies_each_record_once(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    copy = Copy(tmp_path)
    for _ in range(RUNS_MAX):
        died = copy.run(chance.choice(POINTS), chance.randint(1, 3))
        assert died in (0, DIED), copy.said()
        copy.check(is_done=died == 0)
        if died == 0:
            break
    assert copy.run("none") == 0, copy.said()
    copy.check(is_done=True)
