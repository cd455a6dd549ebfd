"""Several logs in a real Spark session: one stream that is stopped and started again, one batch."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.small_logs import LogWriter, copy_log
from tests.support.spark_session import needs_limits

pytestmark = pytest.mark.spark

METADATA = "kraft-logs/three-nodes-4.3.1/node-100/__cluster_metadata-0"
METADATA_CLUSTER = "I9iQnKeLSA2lyZwVZic7Xg"
SCHEMA = "clusterId STRING, offset BIGINT, snapshotPosition INT, value BINARY"
SECRET = "correct horse battery staple"

Rows = dict[str, list[tuple[Any, ...]]]


def by_cluster(rows: list[Row]) -> Rows:
    """Return the rows without the cluster id, in the order of each log."""
    found: Rows = defaultdict(list)
    for cluster_id, *row in rows:
        found[cluster_id].append(tuple(row))
    return dict(found)


def drain(
    spark: SparkSession, sources: list[dict[str, Any]], checkpoint: Path, **options: Any
) -> tuple[Rows, dict[str, Any]]:
    """Run a query over what the logs have; return its rows, and the last progress of its source."""
    rows: list[Row] = []

    def keep(frame: DataFrame, _: int) -> None:
        rows.extend(frame.collect())

    query = (
        spark.readStream.format("raftlog")
        .options(sources=json.dumps(sources), tailHoldback="0", **options)
        .schema(SCHEMA)
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.lastProgress
    return by_cluster(rows), progress["sources"][0] if progress else {}


def stored(checkpoint: Path) -> dict[str, Any]:
    """Return the offset of the last batch."""
    last = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    text = (checkpoint / "offsets" / str(last)).read_text()
    offset: dict[str, Any] = json.loads(text.splitlines()[-1])
    return offset


@needs_limits
def test_a_stream_of_several_logs_continues_from_its_checkpoint(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    path = tmp_path / "node" / "__cluster_metadata-0"
    copy_log(data / METADATA, path, end_offset=1400)
    logs = {
        key: LogWriter(tmp_path / key / "orders-0", cluster_id=key)
        for key in ("fleet-b", "fleet-a", "fleet-c")
    }
    for number, log in enumerate(logs.values()):
        for record in range(5 + number):
            log.append(b"%d" % record)
    sources: list[dict[str, Any]] = [{"path": str(path), "startingOffset": "earliest"}]
    sources += [{"path": str(log.directory), "startingOffset": "earliest"} for log in logs.values()]
    checkpoint = tmp_path / "c"
    seen, progress = drain(spark, sources, checkpoint, maxOffsetsPerTrigger=200)
    assert json.loads(progress["endOffset"]) == stored(checkpoint)
    assert list(stored(checkpoint)["logs"]) == sorted([METADATA_CLUSTER, *logs])

    # one log is down, one was removed, one grows, one was added
    copy_log(data / METADATA, path, end_offset=3131)
    logs["fleet-a"].append(b"more")
    logs["fleet-b"].append(b"more")
    logs["fleet-d"] = added = LogWriter(tmp_path / "fleet-d" / "orders-0", cluster_id="fleet-d")
    added.append(b"0", b"1")
    away = (tmp_path / "fleet-a").rename(tmp_path / "away")
    without_b = [one for one in sources if "fleet-b" not in one["path"]]
    without_b.append({"path": str(added.directory), "startingOffset": 1})
    second, progress = drain(spark, without_b, checkpoint)
    assert second.keys() == {METADATA_CLUSTER, "fleet-d"}
    assert json.loads(progress["latestOffset"])["unavailable"]

    away.rename(tmp_path / "fleet-a")
    third, progress = drain(spark, [*without_b, sources[1]], checkpoint)
    assert third.keys() == {"fleet-a", "fleet-b"}
    assert "unavailable" not in json.loads(progress["latestOffset"])
    for found in (second, third):
        for key, rows in found.items():
            seen.setdefault(key, []).extend(rows)

    for key, location in {
        METADATA_CLUSTER: path,
        **{k: v.directory for k, v in logs.items()},
    }.items():
        first = 1 if key == "fleet-d" else 0
        alone = spark.read.format("raftlog").schema(SCHEMA.split(", ", 1)[1])
        expected = alone.option("startingOffset", first).load(str(location)).collect()
        assert seen[key] == [tuple(row) for row in expected]
    assert drain(spark, sources, checkpoint)[0] == {}


@pytest.mark.nightly
@needs_limits
def test_the_data_loss_of_one_log_ends_the_query_with_its_code(
    spark: SparkSession, tmp_path: Path
) -> None:
    """``test_sources_progress.py`` has it without Spark, and ``make test`` that of a single log."""
    logs = [LogWriter(tmp_path / key / "orders-0", cluster_id=key) for key in ("a", "b")]
    for log in logs:
        log.append(b"0")
        log.append(b"1")
    sources: list[dict[str, Any]] = [
        {"path": str(log.directory), "startingOffset": "earliest"} for log in logs
    ]
    drain(spark, sources, tmp_path / "c")
    shutil.rmtree(logs[0].directory)
    rewritten = LogWriter(logs[0].directory)
    rewritten.append(b"0")
    rewritten.append(b"other", epoch=2)
    logs[1].append(b"2")
    with pytest.raises(StreamingQueryException, match=r"RAFTLOG_DATA_LOSS\.DIVERGED_EPOCH"):
        drain(spark, sources, tmp_path / "c")
    sources[0]["failOnDataLoss"] = False
    rows, _ = drain(spark, sources, tmp_path / "c")
    assert {key: [offset for offset, *_ in found] for key, found in rows.items()} == {
        "a": [1],
        "b": [2],
    }


def test_a_batch_read_of_many_logs_is_few_tasks_and_shows_no_secret(
    spark: SparkSession, tmp_path: Path
) -> None:
    sources = []
    for number in range(40):
        log = LogWriter(tmp_path / f"c{number:02}" / "orders-0", cluster_id=f"c{number:02}")
        log.append(*[b"x"] * (number + 1))
        sources.append({"path": str(log.directory)})
    reading = spark.read.format("raftlog").option("redactKey", SECRET)
    frame = reading.option("sources", json.dumps(sources)).load()
    assert frame.columns[:3] == ["clusterId", "key", "value"]
    assert frame.rdd.getNumPartitions() <= 2
    counts = {
        row["clusterId"]: row["count"] for row in frame.groupBy("clusterId").count().collect()
    }
    assert counts == {f"c{number:02}": number + 1 for number in range(40)}
    plan = frame._jdf.queryExecution().toString()
    assert SECRET not in plan

    node = {
        "bootstrap.servers": "127.0.0.1:1",
        "ssl.ca.location": "/ca",
        "ssl.certificate.location": "/cert",
        "ssl.key.location": "/key",
        "ssl.key.password": SECRET,
    }
    frame = spark.read.format("raftlog").option("sources", json.dumps([node])).load()
    assert SECRET not in frame._jdf.queryExecution().logical().toString()
    with pytest.raises(Exception, match="RAFTLOG") as caught:
        frame.count()
    assert SECRET not in str(caught.value)
