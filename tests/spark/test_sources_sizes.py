"""Sizes in a read of several logs, as pure functions: shares of a limit, and tasks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pyspark_raftlog.admission import share_limit
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.planning import (
    OPEN_LOG_ROWS,
    RECORDS_PER_PARTITION_DEFAULT,
    RECORDS_PER_TASK_MIN,
    LogPart,
    LogRange,
    SnapshotRows,
    pack,
    records_per_task,
)
from raftlog.client import Split
from raftlog.types import SnapshotId

BACKLOGS = st.dictionaries(st.text(max_size=3), st.integers(1, 2**40), max_size=50)
OPTIONS = RaftlogOptions(path="/x")


@given(BACKLOGS, st.integers(1, 2**40))
def test_shares_are_proportional_to_backlogs_and_never_zero(
    backlogs: dict[str, int], limit: int
) -> None:
    shares = share_limit(limit, backlogs)
    assert shares.keys() == backlogs.keys()
    total = sum(backlogs.values())
    for log, share in shares.items():
        exact = limit * backlogs[log] / total
        assert share is not None
        assert share >= 1
        assert share == 1 or exact * (1 - 1e-9) - 1 <= share <= exact * (1 + 1e-9)
    above_one = [share for share in shares.values() if share is not None and share > 1]
    assert sum(above_one) <= limit


def test_one_log_with_new_records_has_the_whole_limit() -> None:
    assert share_limit(100, {"a": 7}) == {"a": 100}
    assert share_limit(100, {"a": 300, "b": 100}) == {"a": 75, "b": 25}
    assert share_limit(None, {"a": 300}) == {"a": None}
    assert share_limit(5, {}) == {}


def part(log: int, row_count: int) -> LogPart:
    return LogPart(str(log), OPTIONS, LogRange(Split(start_offset=10, end_offset=10 + row_count)))


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 2_000))
def test_tasks_have_all_parts_in_order_and_few_are_small(sizes: list[int], most: int) -> None:
    parts = [part(log, size) for log, size in enumerate(sizes)]
    packed = pack(parts, most)
    assert [one for task in packed for one in task.parts] == parts
    costs = [sum(one.row_count + OPEN_LOG_ROWS for one in task.parts) for task in packed]
    for task, cost in zip(packed, costs, strict=True):
        assert cost <= most or len(task.parts) == 1
    for one, two in itertools.pairwise(costs):
        assert one + two > most, "two neighbours would fit into one task"


def test_many_small_logs_are_few_tasks() -> None:
    parts = [part(log, 100) for log in range(500)]
    sizes = [one.row_count for one in parts]
    assert len(pack(parts, records_per_task(OPTIONS, sizes, parallelism=4))) == 4
    few = [part(log, 1) for log in range(100)]
    assert len(pack(few, records_per_task(OPTIONS, [1] * 100, parallelism=64))) == 1
    asked = RaftlogOptions(path="/x", min_partitions=10)
    assert len(pack(few, records_per_task(asked, [1] * 100, parallelism=1))) == 10


def test_a_task_has_no_more_records_than_the_option_allows() -> None:
    sizes = [10**9]
    assert records_per_task(OPTIONS, sizes, 2) == RECORDS_PER_PARTITION_DEFAULT
    small = RaftlogOptions(path="/x", max_records_per_partition=77)
    assert records_per_task(small, sizes, 2) == 77
    assert records_per_task(OPTIONS, [], 2) == RECORDS_PER_TASK_MIN


def test_snapshots_of_many_logs_share_tasks() -> None:
    rows = SnapshotRows(SnapshotId(end_offset=5, epoch=1))
    parts = [LogPart(str(log), OPTIONS, rows) for log in range(100)]
    packed = pack(parts, RECORDS_PER_PARTITION_DEFAULT)
    assert 1 < len(packed) < 10
