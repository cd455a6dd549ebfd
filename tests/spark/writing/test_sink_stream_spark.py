"""Streams into a log in a real Spark session: each micro-batch is written once, whatever fails."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.support.spark_session import needs_limits

import raftlog
from pyspark_raftlog import typed_error
from pyspark_raftlog.errors import AppendOnlyError, CommitTooLargeError
from raftlog import LogConfig
from raftlog.client.embedded.directory import configure
from raftlog.errors import ForeignCommitError
from raftlog.records.record import Header, NewRecord

pytestmark = pytest.mark.spark

COLUMNS = ("key", "value", "headers", "timestamp")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Thirty records in ten batches, with all fields of a record."""
    path = tmp_path / "in-0"
    with raftlog.open(path) as log:
        append_numbers(log, 0, 30)
    return path


def append_numbers(log: raftlog.EmbeddedLog, first: int, end: int) -> None:
    for start in range(first, end, 3):
        log.append(
            [
                NewRecord(
                    b"key %d" % number if number % 2 else None,
                    b"value %d" % number if number % 5 else None,
                    1_700_000_000_000 + number,
                    (Header("n", b"%d" % number),) if number % 3 else (),
                )
                for number in range(start, start + 3)
            ],
            atomic=True,
        )


@pytest.fixture
def sink(tmp_path: Path) -> Path:
    path = tmp_path / "out-0"
    raftlog.open(path).close()
    return path


def stream(spark: SparkSession, source: Path, **options: str) -> DataFrame:
    given = {"startingOffset": "earliest", "tailHoldback": "0", "includeHeaders": "true"}
    reading = spark.readStream.format("raftlog").options(**given | options)
    return reading.load(str(source)).select(*COLUMNS)


def start(
    frame: DataFrame, sink: Path, checkpoint: Path, trigger: Any = None, **options: str
) -> StreamingQuery:
    writing = frame.writeStream.format("raftlog").options(**options)
    writing = writing.option("checkpointLocation", str(checkpoint))
    return writing.trigger(**trigger or {"availableNow": True}).start(str(sink))


def drain(frame: DataFrame, sink: Path, checkpoint: Path, **options: str) -> StreamingQuery:
    query = start(frame, sink, checkpoint, **options)
    query.awaitTermination()
    return query


def records(path: Path) -> list[tuple[Any, ...]]:
    with raftlog.open(path, create=False) as log:
        return [(one.key, one.value, one.headers, one.timestamp_ms) for one in log.read()]


def last_version(sink: Path, application_id: str) -> int:
    with raftlog.open(sink, create=False) as log:
        last = log.last_commit(application_id)
    assert last is not None
    return last.name.version


def reset_last_commit(checkpoint: Path) -> int:
    """Reset a checkpoint to the state after a crash that follows the sink's commit."""
    names = [entry.name for entry in (checkpoint / "commits").iterdir()]
    last = max(int(name) for name in names if name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last


@needs_limits
def test_a_log_is_copied_through_spark_into_a_log_record_by_record(
    spark: SparkSession, source: Path, sink: Path, tmp_path: Path
) -> None:
    """Several batches; a crash after the last; more records; a crash again."""
    checkpoint = tmp_path / "c"
    frame = stream(spark, source, maxOffsetsPerTrigger="12")
    query = drain(frame, sink, checkpoint)
    assert records(sink) == records(source)
    last = reset_last_commit(checkpoint)
    assert last >= 2
    assert last_version(sink, str(query.id)) == last
    with raftlog.open(source) as log:
        append_numbers(log, 30, 36)
    again = drain(frame, sink, checkpoint)
    assert again.id == query.id
    assert records(sink) == records(source)
    reset_last_commit(checkpoint)
    drain(frame, sink, checkpoint)
    assert records(sink) == records(source)


@pytest.mark.parametrize(
    "trigger",
    [
        pytest.param({"availableNow": True}, marks=pytest.mark.nightly, id="available-now"),
        pytest.param({"processingTime": "0 seconds"}, id="by-time"),
    ],
)
@pytest.mark.delta
def test_restarted_streams_through_a_log_to_delta_lose_nothing(
    spark: SparkSession, source: Path, sink: Path, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    """log, Spark, log, Spark, Delta: each round has new streams on the same checkpoints."""
    table = str(tmp_path / "delta")
    for end in (33, 36):
        with raftlog.open(source) as log:
            append_numbers(log, end - 3, end)
        copying = stream(spark, source, maxOffsetsPerTrigger="20")
        copied = start(copying, sink, tmp_path / "c", trigger)
        settle(copied, trigger)
        to_delta = stream(spark, sink).writeStream.format("delta").trigger(**trigger)
        settle(to_delta.option("checkpointLocation", str(tmp_path / "d")).start(table), trigger)
        assert records(sink) == records(source)
    rows = spark.read.format("delta").load(table).orderBy("timestamp").collect()
    assert [
        (row.key, row.value, [(one.key, one.value) for one in row.headers], row.timestamp)
        for row in rows
    ] == [
        (key, value, [(one.key, one.value) for one in headers], when(timestamp_ms))
        for key, value, headers, timestamp_ms in records(source)
    ]


def settle(query: StreamingQuery, trigger: dict[str, Any]) -> None:
    """Let a query process all available records, and stop it."""
    if "availableNow" not in trigger:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()


def when(timestamp_ms: int) -> datetime:
    """Return a timestamp as Spark converts it to Python: local time without a zone."""
    return datetime.fromtimestamp(timestamp_ms / 1000)  # noqa: DTZ006


def test_of_two_queries_with_one_application_id_the_first_keeps_it(
    spark: SparkSession, source: Path, sink: Path, tmp_path: Path
) -> None:
    frame = stream(spark, source)
    first = drain(frame, sink, tmp_path / "first", txnAppId="copy")
    with pytest.raises(StreamingQueryException) as caught:
        drain(frame, sink, tmp_path / "second", txnAppId="copy")
    found = typed_error(caught.value)
    assert isinstance(found, ForeignCommitError)
    assert found.last_query_id == str(first.id)
    assert f"option txnTakeOverFrom={first.id}" in str(caught.value)
    assert records(sink) == records(source)
    second = drain(frame, sink, tmp_path / "second", txnAppId="copy", txnTakeOverFrom=str(first.id))
    assert records(sink) == records(source) * 2
    assert str(second.id) == found.query_id
    with raftlog.open(source) as log:
        append_numbers(log, 30, 33)
    with pytest.raises(StreamingQueryException, match="RAFTLOG_FOREIGN_COMMIT"):
        drain(frame, sink, tmp_path / "first", txnAppId="copy")


@pytest.mark.nightly
def test_a_stream_continues_with_a_batch_that_was_too_large(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    """In ``make test`` it is a batch job that continues, and other errors end a stream."""
    sink = tmp_path / "small-0"
    raftlog.open(sink, config=LogConfig(batch_bytes_max=1024)).close()
    with raftlog.open(source) as log:
        append_numbers(log, 30, 60)
    frame = stream(spark, source)
    with pytest.raises(StreamingQueryException) as caught:
        drain(frame, sink, tmp_path / "c")
    assert isinstance(typed_error(caught.value), CommitTooLargeError)
    assert records(sink) == []
    configure(sink, {"max.message.bytes": "65536"})
    drain(frame, sink, tmp_path / "c")
    assert records(sink) == records(source)


def test_a_stream_only_appends(
    spark: SparkSession, source: Path, sink: Path, tmp_path: Path
) -> None:
    counted = stream(spark, source).groupBy("key").count().selectExpr("key", "key AS value")

    def run(frame: DataFrame, mode: str, **options: str) -> str:
        """Return the error that ends the query."""
        writing = frame.writeStream.format("raftlog").options(**options).outputMode(mode)
        writing = writing.option("checkpointLocation", str(tmp_path / mode))
        with pytest.raises((AnalysisException, StreamingQueryException)) as caught:
            writing.trigger(availableNow=True).start(str(sink)).awaitTermination()
        return str(caught.value)

    assert isinstance(typed_error(Exception(run(counted, "complete"))), AppendOnlyError)
    assert "does not support Update mode" in run(counted, "update")
    refused = run(stream(spark, source), "append", requiredBaseOffset="1")
    assert "requiredBaseOffset: is allowed in batch writes only" in refused
    assert records(sink) == []
