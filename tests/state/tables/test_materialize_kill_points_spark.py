"""A driver killed at every point of ``materialize``, repeatedly on one checkpoint.

A reader runs beside it, and verifies what it has read with the invariant pack.

``RAFTLOG_KILL_ORDERS=5`` adds five random orders.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.state.tables.tables_driver import (
    CHANGES_WRITTEN,
    FILE_CREATED,
    LOG_WRITTEN,
    POINTS,
    STATE_WRITTEN,
    materialize,
)
from tests.support.invariant_reader import InvariantReader, reading
from tests.support.kill_points import DIED, ORDERS, run_driver
from tests.support.small_logs import copy_log
from tests.support.tables import Feed, contents, offsets_once

from raftlog_state.errors import TablesError
from raftlog_state.tables import open_tables

pytestmark = pytest.mark.spark

LOG = "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0"
NOTHING, FIRST, LAST = -1, 36, 109
"""Last offsets of the two micro-batches."""
LATER = 160
"""Two more micro-batches. From offset 173 on, rows of ``Feed`` have Python's format of numbers."""
RUNS_MAX = 8

DEATHS = (
    (FILE_CREATED, 1, NOTHING),
    (LOG_WRITTEN, 1, NOTHING),
    (CHANGES_WRITTEN, 1, FIRST),
    (LOG_WRITTEN, 1, FIRST),
    (CHANGES_WRITTEN, 1, LAST),
    (STATE_WRITTEN, 1, LAST),
)
"""Point, number of times it is reached, offset that readers see afterwards."""


class Follower:
    """Tables that follow a log, run by run, and reference tables that were written in one run."""

    def __init__(self, directory: Path, data: Path, feed: Feed, template: Path) -> None:
        self.directory, self.feed, self.template = directory, feed, template
        self.kafkas, self.log = data / LOG, directory / "node" / "__cluster_metadata-0"
        self.tables = directory / "tables"
        self.reader = InvariantReader(lambda: open_tables(str(self.tables)))

    def grow(self, last: int) -> None:
        """Extend the log to this end offset."""
        copy_log(self.kafkas, self.log, end_offset=last + 1)

    def run(self, point: str, occurrence: int = 1) -> int:
        places = (self.log, self.tables, self.directory / "checkpoint")
        said = self.directory / "said"
        with reading(self.reader):
            return run_driver(said, "tests.state.tables.tables_driver", *places, point, occurrence)

    def said(self) -> str:
        return (self.directory / "said").read_text(errors="replace")[-4000:]

    def seen(self) -> int:
        """Return the offset that readers see; -1 before the first publication."""
        try:
            return self.feed.open(self.tables).latest().offset
        except TablesError as error:
            if "nothing was published" not in str(error):
                raise
            return NOTHING

    def compare(self) -> None:
        """Compare the tables that readers see with the reference tables at that offset."""
        assert contents(self.tables) == contents(self.template, self.seen())

    def run_here(self) -> None:
        """Run to the end in the session of the test, which takes the place of a restarted driver.

        It tries each task once.
        """
        tables = self.feed.open(self.tables)
        with reading(self.reader):
            materialize(tables, str(self.log), str(self.directory / "checkpoint"))

    def check_end(self, last: int) -> None:
        """Check the tables after the last record: each record once, rows as of a replay."""
        assert self.seen() == last
        self.compare()
        assert offsets_once(contents(self.tables))
        report = self.feed.open(self.tables).verify()
        assert report.ok, str(report)
        assert not self.reader.violations(self.feed.spark)
        assert self.reader.state_count


@pytest.fixture
def follower(tmp_path: Path, data: Path, feed: Feed, template: Path) -> Follower:
    return Follower(tmp_path, data, feed, template)


def test_a_run_dies_at_every_point() -> None:
    assert {point for point, _, _ in DEATHS} == set(POINTS)


@pytest.mark.nightly
@pytest.mark.parametrize(("point", "offset"), [(FILE_CREATED, NOTHING), (CHANGES_WRITTEN, FIRST)])
def test_tables_have_each_record_once_after_a_kill_and_a_restart(
    follower: Follower, point: str, offset: int
) -> None:
    """A micro-batch is repeated whose first file no commit adds, or that readers already see."""
    follower.grow(LAST)
    assert follower.run(point) == DIED, follower.said()
    assert follower.seen() == offset
    if offset != NOTHING:
        follower.compare()
    follower.run_here()
    follower.check_end(LAST)


@pytest.mark.nightly
def test_tables_have_each_record_once_after_one_kill_at_each_point(follower: Follower) -> None:
    follower.grow(LAST)
    for point, occurrence, offset in DEATHS:
        assert follower.run(point, occurrence) == DIED, follower.said()
        assert follower.seen() == offset
    follower.compare()  # once every table is above it
    assert follower.run("none") == 0, follower.said()
    follower.check_end(LAST)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(ORDERS))
def test_tables_have_each_record_once_after_kills_at_random_points(
    follower: Follower, seed: int
) -> None:
    chance = random.Random(seed)
    follower.grow(LATER)
    offset = NOTHING
    for _ in range(RUNS_MAX):
        point = chance.choice(POINTS)
        died = follower.run(point, chance.randint(1, 2))
        assert died in (0, DIED), follower.said()
        seen = follower.seen()
        assert seen >= offset, "the offset of readers never decreases"
        offset = seen
        if died == 0:
            break
    assert follower.run("none") == 0, follower.said()
    follower.check_end(LATER)
