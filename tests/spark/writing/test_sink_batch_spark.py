"""Batch writes in a real Spark session: written rows are read again, once, whatever fails."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgpack
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

import raftlog
from pyspark_raftlog import append, conflict, typed_error
from pyspark_raftlog.errors import (
    AppendOnlyError,
    CommitTooLargeError,
    InvalidRowError,
    WriteSchemaError,
)
from raftlog import LogConfig
from raftlog.client.embedded.directory import configure
from raftlog.client.encryption import is_encrypted
from raftlog.errors import (
    LogAccessError,
    LogNotFoundError,
    NotALogError,
    OptionError,
    RaftlogError,
    UnexpectedEndOffsetError,
)
from raftlog_state.records import ConfigRecord, TopicRecord, encode, to_json

pytestmark = pytest.mark.spark

TOPIC = TopicRecord(name="ids", topic_id="AAAAAAAAAAAAAAAAAAAAAQ")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_log(tmp_path / "ids-0")


def new_log(path: Path, values: str = "bytes", config: LogConfig | None = None) -> Path:
    raftlog.open(path, values=values, config=config).close()
    return path


def save(frame: DataFrame, path: Path, **options: str | int | bool) -> None:
    frame.write.format("raftlog").mode("append").options(**options).save(str(path))


def refused(frame: DataFrame, path: Path, **options: str | int | bool) -> RaftlogError:
    """Return the error of a write; the log must be unchanged."""
    before = _files(path)
    with pytest.raises(PySparkException) as caught:
        save(frame, path, **options)
    assert _files(path) == before
    found = typed_error(caught.value)
    assert found is not None, caught.value
    return found


def _files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("*.log")}


def numbers(spark: SparkSession, count: int, partitions: int = 1) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id AS STRING) AS value")


def values(path: Path, from_offset: int | None = None) -> list[bytes | None]:
    with raftlog.open(path, create=False) as log:
        return [record.value for record in log.read(from_offset)]


def test_values_and_all_other_fields_round_trip(spark: SparkSession, path: Path) -> None:
    frame = spark.sql(
        """
        SELECT * FROM VALUES
          (X'01', X'61', TIMESTAMP '2026-03-01 12:00:00.123', array(struct('h', X'62'))),
          (NULL, NULL, NULL, NULL),
          (X'', X'', TIMESTAMP '1970-01-01 00:00:00', array())
        AS t(key, value, timestamp, headers)
        """
    ).coalesce(1)
    frame = frame.selectExpr(
        "value",
        "key",
        "timestamp",
        "transform(headers, h -> struct(h.col1 AS key, h.col2 AS value)) AS headers",
    )
    save(frame, path)
    back = spark.read.format("raftlog").option("includeHeaders", "true").load(str(path))
    rows = back.selectExpr(
        "offset", "hex(key)", "hex(value)", "cast(timestamp AS DOUBLE)", "to_json(headers)"
    ).collect()
    assert [tuple(row) for row in rows[::2]] == [
        (1, "01", "61", 1772366400.123, '[{"key":"h","value":"Yg=="}]'),
        (3, "", "", 0.0, "[]"),
    ]
    assert tuple(rows[1])[:3] == (2, None, None)
    assert rows[1][3] > 1.7e9, "it has the timestamp of its append"


def test_values_are_encrypted_by_the_sink_and_decrypted_in_workers(
    spark: SparkSession, path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = raftlog.KeyFile(path.parent / "keys.properties")
    keys.create("a")
    options = {"encryption.key.file": keys.path, "encryption.context": "ids"}
    rows = spark.range(0, 40, 1, 2).selectExpr(
        "encode(id, 'UTF-8') AS key", "CASE WHEN id < 39 THEN encode(id * 7, 'UTF-8') END AS value"
    )
    save(rows, path, **options)
    assert [one is not None and is_encrypted(one) for one in values(path)] == [True] * 39 + [False]
    frame = spark.read.format("raftlog").options(minPartitions="2", **options).load(str(path))
    found = {(bytes(key), value) for key, value in frame.select("key", "value").collect()}
    assert found == {(b"%d" % at, b"%d" % (at * 7) if at < 39 else None) for at in range(40)}
    frame.explain(extended=True)
    shown = capfd.readouterr().out + str(frame._jdf.queryExecution()) + repr(frame)
    (secret,) = re.findall(r"key\.a=(\S+)", Path(keys.path).read_text())
    assert secret not in shown


def test_a_write_is_one_batch_in_the_order_of_partitions(spark: SparkSession, path: Path) -> None:
    save(numbers(spark, 1000, 4), path, requiredBaseOffset=1, requiredEndOffset=1000)
    assert values(path) == [str(number).encode() for number in range(1000)]
    with raftlog.open(path) as log:
        assert log.append(b"next", required_base_offset=1001).base_offset == 1001
    from raftlog.client import open_path

    batches = [batch.record_count for batch in open_path(str(path)).batches(1, 1002)]
    assert batches == [1000, 1]


def test_messagepack_is_encoded_from_json_and_from_structs(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = new_log(tmp_path / "state-0", "msgpack")
    save(
        spark.sql("SELECT 'put' AS recordType, 1 AS recordVersion, '{\"k\":[1,null]}' AS record"),
        path,
    )
    save(
        spark.sql(
            "SELECT 7 AS recordType, 0 AS recordVersion, "
            "struct('a' AS name, map('x', array(1.5D)) AS more, X'00' AS raw) AS record"
        ),
        path,
    )
    written = values(path)
    assert [msgpack.unpackb(value) for value in written if value] == [
        ["put", 1, {"k": [1, None]}],
        [7, 0, {"name": "a", "more": {"x": [1.5]}, "raw": b"\0"}],
    ]
    save(spark.read.format("raftlog").load(str(path)).select("value"), path)
    assert values(path) == written * 2


def test_metadata_records_have_the_names_that_the_source_returns(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = new_log(tmp_path / "__cluster_metadata-0", "kraft")
    given = [TOPIC, ConfigRecord(resource_type=2, resource_name="ids", name="a", value="b")]
    texts = [to_json(record) for record in given]
    frame = spark.createDataFrame(
        [(text["type"], json.dumps(text["data"])) for text in texts],
        "recordType STRING, record STRING",
    ).coalesce(1)
    save(frame, path, txnAppId="setup", txnVersion=1)
    save(frame, path, txnAppId="setup", txnVersion=1)
    columns = ("recordType", "recordVersion", "record")
    back = spark.read.format("raftlog").option("redact", "false").load(str(path)).select(*columns)
    back = back.where("recordType NOT LIKE '%TRANSACTION%'")
    rows = [(row[0], row[1], json.loads(row[2])) for row in back.collect()]
    assert rows == [(text["type"], text["version"], text["data"]) for text in texts]
    save(back, path)
    assert values(path)[-2:] == [encode(record) for record in given]


def test_of_two_rivals_with_one_required_offset_one_wins_and_the_other_fails(
    spark: SparkSession, path: Path
) -> None:
    save(numbers(spark, 2), path, requiredBaseOffset=1)
    with pytest.raises(AnalysisException) as caught:
        save(numbers(spark, 3), path, requiredBaseOffset=1)
    lost = conflict(caught.value)
    assert lost is not None
    assert (lost.required_base_offset, lost.log_end_offset) == (1, 3)
    assert "[RAFTLOG_UNEXPECTED_END_OFFSET] Wanted base offset 1, but the next" in str(caught.value)
    found = refused(numbers(spark, 3), path, requiredEndOffset=3)
    assert isinstance(found, UnexpectedEndOffsetError)
    assert (found.required_end_offset, found.next_available_offset) == (3, 5)
    save(numbers(spark, 3), path, requiredBaseOffset=lost.log_end_offset)
    assert values(path) == [b"0", b"1", b"0", b"1", b"2"]


@pytest.mark.parametrize("job_count", [4, pytest.param(8, marks=pytest.mark.nightly)])
def test_jobs_race_for_each_offset(spark: SparkSession, path: Path, job_count: int) -> None:
    """Every loser gets a conflict and succeeds after retries; no write is there twice."""

    def write(number: int, at: int) -> int | None:
        """Return None for success, or the end of the log at a conflict."""
        # A new thread has no active session, which Spark requires for the source.
        frame = spark.createDataFrame([(str(number),)], "value STRING")
        try:
            save(frame, path, requiredBaseOffset=at)
        except AnalysisException as error:
            lost = conflict(error)
            return -1 if lost is None else lost.log_end_offset
        return None

    def job(number: int) -> list[int]:
        won: list[int] = []
        at = 1
        while not won:
            end_offset = write(number, at)
            if end_offset is None:
                won.append(at)
                end_offset = at + 1
            assert end_offset > at, "the loser gets the end of the log"
            at = end_offset
        return won

    with ThreadPoolExecutor(job_count) as pool:
        won = dict(enumerate(pool.map(job, range(job_count))))
    winners = {offset: number for number, offsets in won.items() for offset in offsets}
    offsets = range(1, job_count + 1)
    assert sorted(winners) == list(offsets), "one winner per offset"
    assert values(path) == [str(winners[offset]).encode() for offset in offsets]


def test_an_empty_frame_only_checks_its_required_offset(spark: SparkSession, path: Path) -> None:
    empty = numbers(spark, 0)
    save(empty, path)
    save(empty, path, requiredBaseOffset=1)
    assert isinstance(refused(empty, path, requiredBaseOffset=2), UnexpectedEndOffsetError)
    assert append(empty, to=path) is None


def test_a_failed_task_and_its_retry_write_nothing_twice(spark: SparkSession, path: Path) -> None:
    """The session does not retry tasks: the job fails, and is started again."""
    flag = path.parent / "failed"

    def fail_once(index: int, rows: Iterable[Row]) -> Iterator[Row]:
        yield from rows
        if index == 1 and not flag.exists():
            flag.touch()
            os._exit(1)  # as the worker of a killed executor ends

    rdd = numbers(spark, 10, 2).rdd.mapPartitionsWithIndex(fail_once)
    frame = spark.createDataFrame(rdd, "value STRING")
    with pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        save(frame, path)
    assert flag.exists()
    assert values(path) == []
    save(frame, path)
    assert values(path) == [str(number).encode() for number in range(10)]


def test_append_returns_offsets_and_raises_typed_errors(spark: SparkSession, path: Path) -> None:
    result = append(numbers(spark, 3, 2), to=path, required_base_offset=1)
    assert result is not None
    assert (result.base_offset, result.last_offset, result.epoch) == (1, 3, 1)
    with pytest.raises(UnexpectedEndOffsetError, match="Wanted base offset 1"):
        append(numbers(spark, 1), to=path, required_base_offset=1)
    named = partial(
        append,
        to=path,
        required_base_offset=result.end_offset,
        txn_app_id="nightly",
        txn_version=3,
    )
    first, again = named(numbers(spark, 1)), named(numbers(spark, 1))
    assert first is not None
    assert again is not None
    assert again.was_duplicate
    assert again.base_offset == first.base_offset == 4
    with pytest.raises(WriteSchemaError):
        append(numbers(spark, 1).selectExpr("value AS valu"), to=path)
    of_url = append(numbers(spark, 1), to=f"file:{path}")
    assert of_url is not None
    assert of_url.base_offset == 5
    with pytest.raises(OptionError, match="is the address of a node, not a path"):
        append(numbers(spark, 1), to="localhost:9092")


def test_invalid_input_is_a_typed_error_and_the_next_write_succeeds(
    spark: SparkSession, path: Path
) -> None:
    kraft = new_log(path.parent / "__cluster_metadata-0", "kraft")
    state = new_log(path.parent / "state-0", "msgpack")
    text = to_json(TOPIC)

    def typed(kind: str, record: str) -> DataFrame:
        return spark.sql(f"SELECT {kind} AS recordType, 0 AS recordVersion, {record} AS record")

    for frame, place, kind, words in (
        (spark.range(1), path, WriteSchemaError, "column id"),
        (numbers(spark, 1).selectExpr("value", "value AS topic"), path, WriteSchemaError, "topic"),
        (numbers(spark, 1), kraft, WriteSchemaError, "must be binary"),
        (spark.sql("SELECT X'' AS value, X'' AS key"), kraft, WriteSchemaError, "have no key"),
        (spark.sql("SELECT cast(NULL AS BINARY) AS value"), kraft, InvalidRowError, "row 0"),
        (spark.sql("SELECT cast(NULL AS BINARY) AS value"), state, InvalidRowError, "row 0"),
        (typed("'TOPIC_RECORD'", "'{'"), kraft, InvalidRowError, "is not JSON"),
        (
            typed("'TOPIC_RECORD'", "'{}'"),
            kraft,
            InvalidRowError,
            "field name: the field is required and missing",
        ),
        (
            typed("'TOPPIC_RECORD'", "'{}'"),
            kraft,
            InvalidRowError,
            "not a type of metadata records",
        ),
        (typed("''", "'{}'"), state, InvalidRowError, "neither a name"),
    ):
        error = refused(frame, place)
        assert isinstance(error, kind)
        assert words in str(error)
    save(numbers(spark, 1), path)
    save(typed("'a'", "'{}'"), state)
    save(typed("'TOPIC_RECORD'", f"'{json.dumps(text['data'])}'"), kraft)
    assert [len(values(log)) for log in (path, state, kraft)] == [1, 1, 1]


def test_a_write_above_the_limit_succeeds_after_the_limit_is_raised(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = new_log(tmp_path / "ids-0", config=LogConfig(batch_bytes_max=1024))
    large = spark.range(4).selectExpr("repeat('x', 1000) AS value").repartition(2)
    found = refused(large, path)
    assert isinstance(found, CommitTooLargeError)
    assert (found.byte_count, found.byte_count_max) == (61 + 4 * 1007, 1024)
    assert isinstance(refused(large.limit(1), path), CommitTooLargeError)
    assert isinstance(refused(numbers(spark, 9), path, maxBytesPerCommit=80), CommitTooLargeError)
    configure(path, {"max.message.bytes": "8192"})
    save(large, path)
    assert len(values(path)) == 4


def test_partitions_of_a_large_write_are_appended_once_as_the_page_of_spark_shows(
    spark: SparkSession, path: Path
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (block,) = (one for one in blocks if "foreachPartition" in one)
    frame = numbers(spark, 40)
    for _ in range(2):
        exec(block, {"raftlog": raftlog, "decisions": str(path), "frame": frame})
    assert sorted(int(value or b"") for value in values(path)) == list(range(40))


def test_only_appends_to_raftlogs_own_logs_are_allowed(
    spark: SparkSession, path: Path, data: Path
) -> None:
    frame = numbers(spark, 1)
    with pytest.raises(AnalysisException) as caught:
        frame.write.format("raftlog").mode("overwrite").save(str(path))
    assert isinstance(typed_error(caught.value), AppendOnlyError)
    assert 'use mode("append")' in str(typed_error(caught.value))
    for mode in ("ignore", "error"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            frame.write.format("raftlog").mode(mode).save(str(path))
    half_named = refused(frame, path, txnAppId="a", txnVersion=1, txnTakeOverFrom="")
    assert isinstance(half_named, OptionError)
    with pytest.raises(AnalysisException, match="includeHeaders: is allowed in reads only"):
        save(frame, path, includeHeaders="true")
    missing = refused(frame, path.parent / "nothing-0")
    assert isinstance(missing, LogNotFoundError)
    assert "create the log first" in str(missing)
    kafka = data / "kraft-logs/three-nodes-4.3.1/node-100/__cluster_metadata-0"
    assert isinstance(refused(frame, kafka), NotALogError)
    assert values(path) == []


def test_sql_inserts_and_refuses_to_overwrite(spark: SparkSession, path: Path) -> None:
    spark.sql(
        f"""CREATE TEMPORARY VIEW ids (value STRING, key STRING)
        USING raftlog OPTIONS (path '{path}', txnAppId 'sql', txnVersion '1')"""
    )
    try:
        spark.sql("INSERT INTO ids VALUES ('a', 'k'), ('b', NULL)")
        with pytest.raises(AnalysisException) as caught:
            spark.sql("INSERT OVERWRITE ids VALUES ('c', NULL)")
        assert isinstance(typed_error(caught.value), AppendOnlyError)
    finally:
        spark.catalog.dropTempView("ids")
    assert values(path) == [b"a", b"b"]


def test_sql_inserts_into_a_view_and_selects_from_it(spark: SparkSession, path: Path) -> None:
    of_path = f"USING raftlog OPTIONS (path '{path}')"
    spark.sql(f"CREATE TEMPORARY VIEW decisions (value BINARY) {of_path}")
    spark.sql(f"CREATE TEMPORARY VIEW undeclared {of_path}")
    try:
        spark.sql("INSERT INTO decisions VALUES (CAST('a' AS BINARY))")
        [row] = spark.sql("SELECT CAST(value AS STRING) AS text FROM decisions").collect()
        assert row.text == "a"
        with pytest.raises(AnalysisException) as caught:
            spark.sql("INSERT INTO undeclared (value) VALUES (CAST('b' AS BINARY))")
        error = typed_error(caught.value)
        assert isinstance(error, WriteSchemaError)
        assert "as v (value BINARY) USING raftlog" in str(error)
    finally:
        for view in ("decisions", "undeclared"):
            spark.catalog.dropTempView(view)
    assert values(path) == [b"a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_directory_is_a_typed_error(spark: SparkSession, path: Path) -> None:
    for entry in (*path.iterdir(), path):
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    try:
        assert isinstance(refused(numbers(spark, 1), path), LogAccessError)
    finally:
        path.chmod(0o755)
        for entry in path.iterdir():
            entry.chmod(0o644)
    save(numbers(spark, 1), path)
