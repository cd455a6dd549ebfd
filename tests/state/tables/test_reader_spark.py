"""Tables read as Arrow equal what Spark reads from them: rows, columns, types and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from tests.state.tables.conftest import TEMPLATE_END, TEMPLATE_MERGED
from tests.support.tables import Feed

from raftlog.errors import RaftlogError
from raftlog_state.tables import ClusterTables, open_tables
from raftlog_state.tables.schema import BY_NAME

pytestmark = pytest.mark.spark


def texts(rows: pa.Table) -> list[str]:
    return sorted(json.dumps(row, default=str) for row in rows.to_pylist())


def check_equal(found: pa.Table, frame: DataFrame) -> pa.Table:
    """Compare columns, types and rows; return the rows of Spark in their order."""
    expected = frame.toArrow()
    assert found.column_names == expected.column_names
    expected = expected.cast(found.schema)
    assert texts(found) == texts(expected)
    return expected


@dataclass(frozen=True)
class Reads:
    """What is read: tables of earlier states, of the newest one, histories, and ranges.

    With Spark each of them is a query, and each state and range reads first what is published.
    """

    earlier: Sequence[tuple[int, Sequence[str]]]
    newest: Sequence[str]
    histories: Sequence[str]
    differences: Sequence[tuple[int, int]]
    changes: Sequence[dict[str, Any]]


SOME: Final = Reads(
    earlier=[(100, ["partitions", "epochs"])],
    newest=["configs", "partitions", "changes", "log"],
    histories=["partitions"],
    differences=[(120, 260)],
    changes=[
        {"table": "partitions", "since": "2026-11-21T08:03:37Z", "until": 260},
        {"entity": "topic", "name": "orders-0", "partitions": True},
    ],
)
"""One of each kind: state before and after a merge, a table of lists, one with secrets."""

ALL: Final = Reads(
    earlier=[
        (100, ["partitions", "configs", "epochs"]),
        (TEMPLATE_MERGED - 1, ["topics", "brokers"]),
        (TEMPLATE_END - 1, ["topics"]),
    ],
    newest=[*BY_NAME, "changes", "log"],
    histories=["partitions", "configs"],
    differences=[(11, 299), (120, 260)],
    changes=[
        *SOME.changes,
        {},
        {"table": "partitions", "since": 120, "until": 260},
        {"table": "brokers", "key": 1},
        {"since": "2026-11-21T08:03:37Z"},
        {"entity": "quota", "name": "user/orders"},
        {"entity": "acl", "until": "timestamp:1795248217000"},
    ],
)


@pytest.mark.parametrize(
    "reads", [pytest.param(SOME, id="some"), pytest.param(ALL, id="all", marks=pytest.mark.nightly)]
)
def test_arrow_and_spark_read_the_same(feed: Feed, template: Path, reads: Reads) -> None:
    spark, arrow = feed.open(template), open_tables(str(template))
    assert arrow.status() == spark.status()
    for offset, names in reads.earlier:
        theirs, ours = spark.at(offset=offset), arrow.at(offset=offset)
        for name in names:
            check_equal(ours.table(name), theirs.table(name))
    theirs, ours = spark.latest(), arrow.latest()
    assert ours.offset == theirs.offset
    for name in reads.newest:
        check_equal(ours.table(name), theirs.table(name))
    for name in reads.histories:
        check_equal(ours.history(name), theirs.history(name))
    for since, until in reads.differences:
        check_equal(arrow.diff(since, until), spark.diff(since, until))
    for arguments in reads.changes:
        frame, rows = spark.changes(**arguments), arrow.changes(**arguments)
        order = ["visible_offset", "offset", "seq"]
        assert rows.select(order).to_pylist() == check_equal(rows, frame).select(order).to_pylist()


Call = Callable[[Any], object]
FEW_REFUSED: Final[tuple[Call, ...]] = (
    lambda tables: tables.at(offset=TEMPLATE_END),
    lambda tables: tables.at(time="soon"),
    lambda tables: tables.changes(entity="broker", name="three"),
    lambda tables: tables.changes(since="epoch:7"),
    lambda tables: tables.latest().table("nothing"),
)
REFUSED: Final[tuple[Call, ...]] = (
    lambda tables: tables.at(),
    lambda tables: tables.at(offset=1.5),
    lambda tables: tables.at(time="1999-12-31T23:59:59Z"),
    lambda tables: tables.diff(20, 10),
    lambda tables: tables.changes(table="nothing"),
    lambda tables: tables.history("nothing"),
)
"""``make test`` has them of Arrow, in ``test_reader.py``."""


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(FEW_REFUSED, id="some"),
        pytest.param(REFUSED, id="others", marks=pytest.mark.nightly),
    ],
)
def test_arrow_and_spark_refuse_the_same(
    feed: Feed, template: Path, tmp_path: Path, calls: Sequence[Call]
) -> None:
    spark, arrow = feed.open(template), open_tables(str(template))
    for call in calls:
        assert refusal(call, arrow) == refusal(call, spark)
    none: ClusterTables = feed.open(tmp_path / "none")
    other = open_tables(str(tmp_path / "none"))
    assert refusal(lambda tables: tables.latest(), other) == refusal(
        lambda tables: tables.latest(), none
    )
    assert other.status() == none.status()


def refusal(call: Call, tables: object) -> tuple[type, str]:
    with pytest.raises(RaftlogError) as caught:
        call(tables)
    return type(caught.value), str(caught.value)
