"""Streams in a real Spark session; every query is stopped and started again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from tests.support.small_logs import LogWriter, copy_log
from tests.support.spark_session import HAS_LIMITS, needs_limits

pytestmark = pytest.mark.spark

METADATA = "kraft-logs/three-nodes-4.3.1/node-100/__cluster_metadata-0"
TRIMMED = "kraft-logs/trimmed-3.9.2/node-1"
END = 3131
SCHEMA = "offset BIGINT, snapshotPosition INT, recordType STRING"


class Run:
    """Result of one run of a query: rows by batch, and its last progress."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.progress: Any = None

    def keep(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = frame.collect()

    @property
    def rows(self) -> list[Row]:
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]

    @property
    def offsets(self) -> list[int]:
        return [row.offset for row in self.rows]


def drain(
    spark: SparkSession, path: Path, checkpoint: Path, schema: str = SCHEMA, **options: str
) -> Run:
    """Run a query until it has read everything that was in the log when it began."""
    run = Run()
    options = {"tailHoldback": "0"} | options
    query = (
        spark.readStream.format("raftlog")
        .options(**options)
        .schema(schema)
        .load(str(path))
        .writeStream.foreachBatch(run.keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    run.progress = query.lastProgress
    return run


def reset_checkpoint(checkpoint: Path, *, commits_from: int, offsets_from: int = 2**31) -> None:
    """Reset a checkpoint to the state after a crash."""
    for kind, first in (("commits", commits_from), ("offsets", offsets_from)):
        for entry in (checkpoint / kind).iterdir():
            name = entry.name.removeprefix(".").removesuffix(".crc")
            if name.isdigit() and int(name) >= first:
                entry.unlink()


def written_offsets(checkpoint: Path, batch_id: int) -> dict[str, Any]:
    text = (checkpoint / "offsets" / str(batch_id)).read_text()
    offsets: dict[str, Any] = json.loads(text.splitlines()[-1])
    return offsets


@pytest.fixture
def log(data: Path, tmp_path: Path) -> Path:
    return copy_log(data / METADATA, tmp_path / "node" / "__cluster_metadata-0", end_offset=END)


@pytest.mark.nightly
@needs_limits
def test_a_stream_has_the_rows_of_a_batch_read(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """``make test`` compares the rows of a trimmed log, and those of typed columns."""
    batch = spark.read.format("raftlog").schema(SCHEMA).load(str(log)).collect()
    run = drain(spark, log, tmp_path / "c", startingOffset="earliest", maxOffsetsPerTrigger="900")
    assert run.rows == batch
    assert len(run.batches) >= 3
    source = run.progress["sources"][0]
    assert json.loads(source["endOffset"])["offset"] == END
    assert json.loads(source["latestOffset"])["offset"] == END


@needs_limits
def test_a_crash_at_any_point_replays_exactly(
    spark: SparkSession, log: Path, tmp_path: Path
) -> None:
    """A batch planned but not run, run but not committed, committed but not followed by another."""
    checkpoint = tmp_path / "c"
    options = {"startingOffset": "2000", "maxOffsetsPerTrigger": "500"}
    whole = drain(spark, log, checkpoint, **options)
    last = max(whole.batches)
    assert last == 2

    reset_checkpoint(checkpoint, commits_from=last)
    again = drain(spark, log, checkpoint, **options)
    assert again.batches == {last: whole.batches[last]}

    reset_checkpoint(checkpoint, commits_from=last, offsets_from=last)
    again = drain(spark, log, checkpoint, **options)
    assert again.batches == {last: whole.batches[last]}

    reset_checkpoint(checkpoint, commits_from=0, offsets_from=1)
    again = drain(spark, log, checkpoint, **options | {"maxOffsetsPerTrigger": "10000"})
    assert again.batches[0] == whole.batches[0], "planned with other limits, replayed unchanged"
    assert again.rows == whole.rows

    assert drain(spark, log, checkpoint, **options).batches == {}


def test_batch_0_of_a_stream_from_latest_is_not_lost(spark: SparkSession, tmp_path: Path) -> None:
    """The initial offset is requested again after a restart and has changed by then."""
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"old")
    checkpoint = tmp_path / "c"

    def read() -> list[int]:
        runs = 1 if HAS_LIMITS else 2  # without them a run has one batch
        return [
            offset
            for _ in range(runs)
            for offset in drain(spark, log.directory, checkpoint, "offset BIGINT").offsets
        ]

    assert read() == []
    log.append(b"1", b"2")
    reset_checkpoint(checkpoint, commits_from=0)
    assert read() == [1, 2]
    last = max(int(p.name) for p in (checkpoint / "offsets").iterdir() if p.name.isdigit())
    log.append(b"3")
    reset_checkpoint(checkpoint, commits_from=last)
    assert read() == [1, 2, 3]


@pytest.mark.nightly
def test_a_growing_log_is_read_once(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """In ``make test`` one query reads a log that grows, and restarts read what a crash left."""
    path = tmp_path / "node" / "__cluster_metadata-0"
    given: list[int] = []
    for end_offset in (500, 1400, END):
        copy_log(data / METADATA, path, end_offset=end_offset)
        run = drain(
            spark, path, tmp_path / "c", startingOffset="earliest", includeControlRecords="true"
        )
        given += run.offsets
    assert given == list(range(END))


def test_a_trimmed_log_is_streamed_from_its_snapshot(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    run = drain(spark, data / TRIMMED, tmp_path / "c", maxOffsetsPerTrigger="100")
    batch = spark.read.format("raftlog").schema(SCHEMA).option("startingOffset", "snapshot")
    assert run.rows == batch.load(str(data / TRIMMED)).collect()
    if not HAS_LIMITS:
        return
    first = run.batches[0]
    assert {row.offset for row in first} == {1021}
    assert all(row.snapshotPosition is not None for row in first)
    assert written_offsets(tmp_path / "c", 0)["snapshot"] == "1022-2"
    tail = [row for batch_id, rows in run.batches.items() if batch_id for row in rows]
    assert all(row.snapshotPosition is None for row in tail)
    assert tail[0].offset == 1022


@pytest.mark.nightly
@needs_limits
def test_a_snapshot_batch_is_replayed_from_the_same_file(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    """``test_source_progress.py`` has it without Spark."""
    path = copy_log(data / METADATA, tmp_path / "node" / "__cluster_metadata-0", end_offset=700)
    checkpoint = tmp_path / "c"
    before = drain(spark, path, checkpoint)
    assert written_offsets(checkpoint, 0)["snapshot"] == "636-1"
    copy_log(data / METADATA, path, end_offset=END)
    reset_checkpoint(checkpoint, commits_from=0, offsets_from=1)
    again = drain(spark, path, checkpoint)
    assert again.batches[0] == before.batches[0]
    assert again.offsets[len(again.batches[0])] == 636

    reset_checkpoint(checkpoint, commits_from=0, offsets_from=1)
    (path / "00000000000000000636-0000000001.checkpoint").unlink()
    with pytest.raises(StreamingQueryException, match=r"RAFTLOG_DATA_LOSS\.SNAPSHOT_DELETED"):
        drain(spark, path, checkpoint)


@needs_limits
def test_deleted_records_end_the_query_with_an_error_code(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    path = copy_log(data / METADATA, tmp_path / "node" / "__cluster_metadata-0", end_offset=500)
    checkpoint = tmp_path / "c"
    drain(spark, path, checkpoint, startingOffset="earliest")
    shutil.rmtree(path)
    copy_log(data / METADATA, path, end_offset=END, start_offset=1762)
    with pytest.raises(StreamingQueryException, match=r"RAFTLOG_DATA_LOSS\.OFFSETS_DELETED"):
        drain(spark, path, checkpoint, startingOffset="earliest")
    accepted = {"startingOffset": "earliest", "failOnDataLoss": "false"}
    run = drain(spark, path, checkpoint, **accepted, includeControlRecords="true")
    assert run.offsets == list(range(1288, END))
    last = max(run.batches)
    assert written_offsets(checkpoint, last)["lost"] is True
    reset_checkpoint(checkpoint, commits_from=last)
    again = drain(spark, path, checkpoint, includeControlRecords="true")
    assert again.batches[last] == run.batches[last], "a batch is replayed as planned"


def test_an_idle_stream_reads_appended_records(spark: SparkSession, tmp_path: Path) -> None:
    """A running query over a log that grows."""
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    run = Run()
    query = (
        spark.readStream.format("raftlog")
        .schema("offset BIGINT")
        .options(startingOffset="earliest", tailHoldback="0")
        .load(str(log.directory))
        .writeStream.foreachBatch(run.keep)
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        query.processAllAvailable()
        log.append(b"2")
        query.processAllAvailable()
        log.append(b"3", b"4")
        query.processAllAvailable()
    finally:
        query.stop()
    assert run.offsets == [0, 1, 2, 3]


def test_a_stream_refuses_ending_options(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="in batch reads only"):
        drain(spark, log, tmp_path / "c", endingOffset="5")
