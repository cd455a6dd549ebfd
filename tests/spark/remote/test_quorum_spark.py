"""Spark reads and writes the log of a quorum by ``bootstrap.servers`` as it does files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.support.quorum_checks import wait_until_listeners_are_known
from tests.support.quorum_processes import RARE_ELECTIONS, QuorumProcesses, free_ports

import raftlog
from pyspark_raftlog import append, commit_loop, conflict, typed_error
from raftlog import ConnectedLog
from raftlog.errors import FutureEpochError, QuorumUnavailableError
from raftlog.limits import KIB
from raftlog.records.record import Header, NewRecord

pytestmark = pytest.mark.spark

COLUMNS = ("key", "value", "headers", "timestamp")


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumProcesses]:
    """Three nodes, of which one is stopped: unreachable bootstrap addresses are normal."""
    home = tmp_path_factory.mktemp("quorum")
    with QuorumProcesses(home, extra=RARE_ELECTIONS) as nodes:
        nodes.nodes[0].stop()
        wait_until_listeners_are_known(nodes)
        yield nodes


@pytest.fixture
def log(quorum: QuorumProcesses) -> Iterator[ConnectedLog]:
    with raftlog.connect(quorum.bootstrap) as opened:
        yield opened


def read(spark: SparkSession, quorum: QuorumProcesses, **options: Any) -> DataFrame:
    reading = spark.read.format("raftlog").option("bootstrap.servers", quorum.bootstrap)
    return reading.options(**options).load()


def save(frame: DataFrame, quorum: QuorumProcesses, **options: Any) -> None:
    writing = frame.write.format("raftlog").mode("append").options(**options)
    writing.option("kafka.bootstrap.servers", quorum.bootstrap).save()


def append_numbers(log: ConnectedLog, first: int, end: int) -> int:
    """Append three records a batch with all fields; return the end offset before them."""
    before = log.end_offset
    for start in range(first, end, 3):
        records = [
            NewRecord(
                b"key %d" % number if number % 2 else None,
                b"value %d" % number if number % 5 else None,
                1_700_000_000_000 + number,
                (Header("n", b"%d" % number),) if number % 3 else (),
            )
            for number in range(start, start + 3)
        ]
        log.append(records, atomic=True)
    return before


def contents(log: ConnectedLog, start: int) -> list[tuple[Any, ...]]:
    return [(one.key, one.value, one.headers, one.timestamp_ms) for one in log.read(start)]


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_read_equals_the_clients(
    spark: SparkSession, quorum: QuorumProcesses, log: ConnectedLog
) -> None:
    start = append_numbers(log, 0, 30)
    rows = read(
        spark, quorum, startingOffset=start, includeHeaders="true", maxRecordsPerPartition=7
    )
    assert rows.rdd.getNumPartitions() > 3, "executors fetch their own ranges"
    found = rows.orderBy("offset").collect()
    expected = list(log.read(start))
    assert [row.offset for row in found] == [record.offset for record in expected]
    assert [row.value and bytes(row.value) for row in found] == [
        record.value for record in expected
    ]
    assert [row.key and bytes(row.key) for row in found] == [record.key for record in expected]
    assert {row.topic for row in found} == {"raftlog"}
    assert [len(row.headers) for row in found] == [len(record.headers) for record in expected]
    assert read(spark, quorum, startingOffset=start, endingOffset=start + 3).count() == 3


def test_a_batch_write_is_one_batch_at_its_required_offset_or_refused(
    spark: SparkSession, quorum: QuorumProcesses, log: ConnectedLog
) -> None:
    frame = spark.range(100, numPartitions=3).selectExpr("CAST(id AS STRING) AS value")
    end = log.end_offset
    save(frame, quorum, requiredBaseOffset=end)
    assert [record.value for record in log.read(end)] == [b"%d" % number for number in range(100)]
    with pytest.raises(PySparkException) as caught:
        save(frame, quorum, requiredBaseOffset=end)
    refused = conflict(caught.value)
    assert refused is not None
    assert refused.log_end_offset == end + 100
    for _ in range(2):
        save(frame.limit(1), quorum, txnAppId="batch", txnVersion=4)
    assert log.end_offset == end + 101
    last = log.last_commit("batch")
    assert last is not None
    assert last.name.version == 4


@pytest.mark.nightly
def test_frames_and_the_commit_loop_use_a_connected_log(
    spark: SparkSession, log: ConnectedLog
) -> None:
    """``make test`` has ``append`` and ``commit_loop`` on an embedded log, and on a quorum what
    they call: the sink, and the appends and reads of a connected log."""
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    result = append(frame, to=log, required_base_offset=log.end_offset)
    assert result is not None
    assert result.end_offset == log.end_offset
    seen: list[int] = []

    def decide(new_records: Any) -> Any:
        seen.append(sum(1 for _ in new_records.records))
        if len(seen) == 1:
            log.append(b"a rival was first")
        return frame

    decided = commit_loop(log, decide, from_offset=result.end_offset)
    assert decided is not None
    assert seen == [0, 1]
    assert decided.base_offset == result.end_offset + 1


def test_unreachable_and_invalid_locations_are_reported(
    spark: SparkSession, quorum: QuorumProcesses
) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(PySparkException, match="cannot be given together with path"):
        save(frame, quorum, path="/somewhere")
    with pytest.raises(PySparkException) as caught:
        save(frame, quorum, requiredEpoch=7)
    assert isinstance(typed_error(caught.value), FutureEpochError)
    (port,) = free_ports(1)
    with pytest.raises(QuorumUnavailableError):
        raftlog.connect(f"127.0.0.1:{port}", timeout_ms=300)


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_continues_after_a_restart_and_writes_each_batch_once(
    spark: SparkSession, quorum: QuorumProcesses, log: ConnectedLog, tmp_path: Path
) -> None:
    """From a quorum into a log of files, and from there back into the quorum."""
    start = append_numbers(log, 0, 30)
    middle = tmp_path / "middle-0"
    raftlog.open(middle, config=raftlog.LogConfig(batch_bytes_max=64 * KIB)).close()

    def copy_out() -> None:
        options = {"startingOffset": str(start), "includeHeaders": "true"}
        reading = spark.readStream.format("raftlog").options(**options)
        rows = reading.option("bootstrap.servers", quorum.bootstrap)
        frame = rows.option("maxOffsetsPerTrigger", 12).load().select(*COLUMNS)
        writing = frame.writeStream.format("raftlog").trigger(availableNow=True)
        checkpoint = str(tmp_path / "out")
        writing.option("checkpointLocation", checkpoint).start(str(middle)).awaitTermination()

    copy_out()
    append_numbers(log, 30, 36)
    copy_out()
    copy_out()
    with raftlog.open(middle) as files:
        copied = [(one.key, one.value, one.headers, one.timestamp_ms) for one in files.read()]
    assert copied == contents(log, start)

    back = log.end_offset

    def copy_back(checkpoint: Path) -> None:
        reading = spark.readStream.format("raftlog").option("includeHeaders", "true")
        reading = reading.option("startingOffset", "earliest").option("tailHoldback", "0s")
        frame = reading.option("maxOffsetsPerTrigger", 20).load(str(middle)).select(*COLUMNS)
        writing = frame.writeStream.format("raftlog").trigger(availableNow=True)
        writing = writing.option("bootstrap.servers", quorum.bootstrap)
        writing = writing.option("checkpointLocation", str(checkpoint))
        writing.start().awaitTermination()

    copy_back(tmp_path / "back")
    assert contents(log, back) == copied
    # As if the process had died between the append and Spark's commit of the batch.
    commits = sorted((tmp_path / "back" / "commits").iterdir())
    newest = max(int(one.name) for one in commits if one.name.isdigit())
    for one in commits:
        if str(newest) in one.name:
            one.unlink()
    copy_back(tmp_path / "back")
    assert contents(log, back) == copied, "the batch was repeated under its name"
