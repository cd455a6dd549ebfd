"""``pyspark_raftlog.lag``: offsets that a stream has not read, from Spark's progress."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_raftlog import StreamLag, lag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODE = Path(__file__).parents[1] / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-100"


def offset(end: int, cluster: str | None = "c") -> dict[str, Any]:
    return {"v": 1, "offset": end, "epoch": 1, "from": 0, "cluster": cluster}


def source(read: object, latest: object) -> dict[str, str | None]:
    return {"endOffset": json.dumps(read), "latestOffset": json.dumps(latest)}


OTHER = {"orders": {"0": 7}}


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ([source(offset(5), offset(9))], StreamLag(4, {"c": 4})),
        ([source(offset(9), offset(9))], StreamLag(0, {"c": 0})),
        ([source(offset(9), offset(5))], StreamLag(0, {"c": 0})),
        ([source(offset(5, None), offset(6, None))], StreamLag(1, {None: 1})),
        ([source(OTHER, OTHER), source(offset(1), offset(3))], StreamLag(2, {"c": 2})),
        ([source(OTHER, OTHER)], None),
        ([source(None, None)], None),
        ([{"endOffset": "not JSON", "latestOffset": None}], None),
        ([], None),
        (
            [
                source(
                    {"v": 2, "logs": {"a": offset(1, "a")}},
                    {"v": 2, "logs": {"a": offset(4, "a"), "b": offset(9, "b")}},
                )
            ],
            StreamLag(3, {"a": 3}),
        ),
        (
            [
                source(
                    {"v": 2, "logs": {"s-0": offset(5, None), "s-1": offset(90, None)}},
                    {"v": 2, "logs": {"s-0": offset(9, None), "s-1": offset(91, None)}},
                )
            ],
            StreamLag(5, {"s-0": 4, "s-1": 1}),
        ),
    ],
)
def test_the_lag_is_what_the_log_has_after_the_end_that_was_read(
    sources: list[Any], expected: StreamLag | None
) -> None:
    for progress in ({"sources": sources}, SimpleNamespace(sources=sources)):
        assert lag(progress) == expected
        assert lag(SimpleNamespace(lastProgress=progress)) == expected
    assert lag(SimpleNamespace(lastProgress=None)) is None


@pytest.mark.spark
def test_the_lag_of_a_stream_decreases_to_0(spark: SparkSession, tmp_path: Path) -> None:
    options = {"maxOffsetsPerTrigger": "1000", "startingOffsets": "earliest"}
    stream = spark.readStream.format("raftlog").options(**options).load(str(NODE))
    query = (
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        query.processAllAvailable()
        found = [
            one.offsets_behind_latest for one in map(lag, query.recentProgress) if one is not None
        ]
        last = lag(query)
    finally:
        query.stop()
    assert found[0] > 1_000
    assert found == sorted(found, reverse=True)
    assert last is not None
    assert last.offsets_behind_latest == 0
    assert list(last.logs) != [None]
