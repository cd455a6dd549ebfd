"""``pyspark_raftlog.lag``: offsets that a stream has not read, from Spark's progress."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.spark_session import needs_limits

from pyspark_raftlog import LagListener, StreamLag, lag
from raftlog.client import open_path

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
        ([source(offset(9), offset(9))], StreamLag(0, {"c": 0}, 0, 0, 0.0)),
        ([source(offset(9), offset(5))], StreamLag(0, {"c": 0}, 0, 0, 0.0)),
        (
            [source(offset(5), {**offset(9), "unread": {"bytes": 70, "batches": 2, "ms": 1500}})],
            StreamLag(4, {"c": 4}, 70, 2, 1.5),
        ),
        (
            [source(offset(5), {**offset(9), "unread": {"bytes": 9_000, "ms": 1}})],
            StreamLag(4, {"c": 4}, 9_000, None, 0.001),
        ),
        (
            [
                source(
                    {"v": 2, "logs": {key: offset(1, key) for key in "ab"}},
                    {
                        "v": 2,
                        "logs": {
                            "a": {**offset(4), "unread": {"bytes": 1, "batches": 1, "ms": 9_000}},
                            "b": {**offset(2), "unread": {"bytes": 2, "batches": 3, "ms": 7_000}},
                        },
                    },
                )
            ],
            StreamLag(4, {"a": 3, "b": 1}, 3, 4, 9.0),
        ),
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


def samples(path: Path) -> dict[tuple[str, ...], float]:
    """Return the samples of a file by name and labels, as Prometheus parses them."""
    return {
        (sample.name.removeprefix("raftlog_stream_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def progress(
    read: int, latest: int, *, name: str | None, second: int, unread: object = None
) -> SimpleNamespace:
    newest = offset(latest) if unread is None else {**offset(latest), "unread": unread}
    facts = {
        "id": "query-id",
        "name": name,
        "timestamp": f"2026-11-21T08:00:{second:02}.500Z",
        "sources": [source(offset(read), newest)],
    }
    return SimpleNamespace(progress=SimpleNamespace(**facts))


@pytest.mark.parametrize("name", [None, 'a "quoted"\nname\\'])
def test_a_listener_writes_the_lag_and_when_all_was_read(tmp_path: Path, name: str | None) -> None:
    file = tmp_path / "raftlog.prom"
    listener = LagListener(file)
    lagging = ("offsets_behind_latest", name or "query-id", "c")
    outstanding = [(f"{what}_behind_latest", name or "query-id") for what in ("bytes", "batches")]
    caught_up = ("caught_up_timestamp_seconds", name or "query-id")
    listener.onQueryProgress(progress(5, 9, name=name, second=1))
    assert samples(file) == {lagging: 4}
    listener.onQueryProgress(progress(9, 9, name=name, second=2))
    nothing = {lagging: 0, outstanding[0]: 0, outstanding[1]: 0}
    assert samples(file) == {**nothing, caught_up: 1_795_248_002.5}
    unread = {"bytes": 70, "batches": 2, "ms": 1500}
    listener.onQueryProgress(progress(9, 12, name=name, second=4, unread=unread))
    assert samples(file) == {
        lagging: 3,
        outstanding[0]: 70,
        outstanding[1]: 2,
        caught_up: 1_795_248_002.5,
    }
    idle = {"id": "query-id", "timestamp": "2026-11-21T08:00:14.000Z"}
    listener.onQueryIdle(SimpleNamespace(**idle))
    assert samples(file) == {**nothing, caught_up: 1_795_248_014}
    listener.onQueryTerminated(SimpleNamespace(id="query-id"))
    assert samples(file) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["raftlog.prom"]


def test_a_listener_ignores_other_sources_and_reports_a_file_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = LagListener(tmp_path / "missing" / "raftlog.prom")
    other = SimpleNamespace(id="id", name=None, timestamp="", sources=[source(OTHER, OTHER)])
    listener.onQueryProgress(SimpleNamespace(progress=other))
    listener.onQueryIdle(SimpleNamespace(id="id", timestamp=""))
    listener.onQueryTerminated(SimpleNamespace(id="id"))
    assert not caplog.records
    listener.onQueryProgress(progress(5, 9, name=None, second=1))
    assert "raftlog.prom cannot be written: No such file" in caplog.text


@pytest.mark.spark
def test_spark_calls_the_listener(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "raftlog.prom"
    found: list[dict[tuple[str, ...], float]] = []
    ended = threading.Event()

    class Recorder(LagListener):
        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            found.append(samples(file))
            super().onQueryTerminated(event)
            ended.set()

    listener = Recorder(file)
    spark.streams.addListener(listener)
    try:
        stream = spark.readStream.format("raftlog").load(str(NODE))
        writer = stream.writeStream.format("noop").queryName("watched").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination()
        assert ended.wait(300)
    finally:
        spark.streams.removeListener(listener)
    (last,) = found
    assert [(*key[:2], value) for key, value in last.items() if key[0].startswith("off")] == [
        ("offsets_behind_latest", "watched", 0)
    ]
    assert last["caught_up_timestamp_seconds", "watched"] > 0
    assert samples(file) == {}


@pytest.mark.spark
@needs_limits
def test_the_lag_of_a_stream_decreases_to_0(spark: SparkSession, tmp_path: Path) -> None:
    options = {"maxOffsetsPerTrigger": "1000", "startingOffsets": "earliest"}
    stream = spark.readStream.format("raftlog").options(**options).load(str(NODE))
    query = (
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        query.processAllAvailable()
        lags = [one for one in map(lag, query.recentProgress) if one is not None]
        last = lag(query)
    finally:
        query.stop()
    found = [one.offsets_behind_latest for one in lags]
    assert found[0] > 1_000
    assert found == sorted(found, reverse=True)
    assert last is not None
    assert last == StreamLag(0, dict.fromkeys(last.logs, 0), 0, 0, 0.0)
    end = found[0] + int(json.loads(query.recentProgress[0].sources[0].endOffset)["offset"])
    left = list(open_path(str(NODE)).batches(end - found[0], end))
    assert lags[0].bytes_behind_latest == sum(batch.byte_count for batch in left)
    assert lags[0].batches_behind_latest == len(left)
    oldest_s = left[0].base_timestamp_ms / 1_000
    assert lags[0].seconds_behind_latest is not None
    assert 0 < time.time() - oldest_s - lags[0].seconds_behind_latest < 3_600
    assert list(last.logs) != [None]
