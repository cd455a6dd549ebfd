"""Typed columns in a real Spark session: the fields of ``record``, without JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import udf
from tests.support.dumps import read_dump
from tests.support.metadata_values import typed_fields
from tests.support.small_logs import LogWriter

from raftlog import compiled
from raftlog_state.records import (
    ConfigRecord,
    NoOpRecord,
    PartitionRecord,
    Redactor,
    TopicRecord,
    UnknownTag,
    UserScramCredentialRecord,
    encode,
)
from raftlog_state.records.native_program import program
from raftlog_state.records.typed_columns import TYPED_COLUMNS, typed_columns

pytestmark = pytest.mark.spark

NODE = "kraft-logs/three-nodes-4.3.1/node-100"
METADATA = f"{NODE}/__cluster_metadata-0"
EVERY_RECORD = "kraft-logs/every-record-4.3.1/none/__cluster_metadata-0"
KEY = "a key that is the user's own"
KINDS = {kind.schema.json_type: (name, kind) for name, kind in TYPED_COLUMNS.items()}


def load(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("raftlog").options(columns="typed", **options).load(str(path))


def plain(value: Any) -> Any:
    if isinstance(value, Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return bytes(value) if isinstance(value, bytearray) else value


def assert_typed(spark: SparkSession, path: Path, **options: str) -> set[str]:
    """Compare the typed rows with the JSON of the same read; return the types of its records."""
    typed = load(spark, path, **options).collect()
    texts = spark.read.format("raftlog").options(**options).load(str(path))
    shared = ("offset", "snapshotPosition", "value", "recordType", "recordVersion")
    types = set()
    for row, text in zip(typed, texts.collect(), strict=True):
        assert [row[name] for name in shared] == [text[name] for name in shared]
        found = {name: plain(row[name]) for name in TYPED_COLUMNS if row[name] is not None}
        expected = {}
        if text.recordType in KINDS:
            name, kind = KINDS[text.recordType]
            expected = {name: typed_fields(kind, json.loads(text.record))}
        assert found == expected
        types.add(text.recordType)
    return types


def test_typed_rows_equal_the_json_of_the_same_read(spark: SparkSession, data: Path) -> None:
    options = {"redact": "false", "isolationLevel": "read_uncommitted"}
    newer = {"UNREGISTER_CONTROLLER_RECORD"}  # than Kafka 4.3
    assert assert_typed(spark, data / EVERY_RECORD, **options) >= set(KINDS) - newer
    path = data / METADATA / "00000000000000003128-0000000002.checkpoint"
    for redaction in ({}, {"redactKey": KEY}, {"redact": "false"}):
        assert "USER_SCRAM_CREDENTIAL_RECORD" in assert_typed(spark, path, **redaction)


def test_a_stream_has_the_typed_rows_of_a_batch_read(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    names = ["offset", "topic_record", "partition_change_record", "config_record"]
    batch = load(spark, data / METADATA).select(*names)
    rows: list[Row] = []
    query = (
        spark.readStream.format("raftlog")
        .options(columns="typed", startingOffset="earliest", tailHoldback="0")
        .option("maxOffsetsPerTrigger", "1200")
        .schema(batch.schema)
        .load(str(data / METADATA))
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert rows == batch.collect()
    assert sum(row.partition_change_record is not None for row in rows) > 100


def test_no_secret_is_in_typed_columns_or_the_plan(
    spark: SparkSession, tmp_path: Path, data: Path
) -> None:
    secret = "s3cret-of-a-test"
    raw = secret.encode()
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(
        encode(ConfigRecord(resource_type=4, name="ssl.key.password", value=secret)),
        encode(ConfigRecord(resource_type=2, name="retention.ms", value="77")),
        encode(UserScramCredentialRecord(name="u", salt=raw, stored_key=raw, server_key=raw)),
        encode(TopicRecord(name="orders", unknown_tags=(UnknownTag(9, raw),))),
    )

    def shown(**options: str) -> str:
        frame = load(spark, log.directory, **options)
        return f"{frame.collect()} {frame._jdf.queryExecution()} {frame!r}"

    for options in ({}, {"redactKey": KEY}):
        text = shown(**options)
        assert secret not in text
        assert KEY not in text
        assert "retention.ms" in text
        assert "'77'" in text
    assert secret in shown(redact="false")
    hashed = [row.config_record for row in load(spark, log.directory, redactKey=KEY).collect()]
    assert hashed[0].value.startswith("hmac:")
    checkpoint = data / METADATA / "00000000000000003128-0000000002.checkpoint"
    salts = {
        record.json["data"]["salt"]
        for batch in read_dump(checkpoint) if not batch.is_control
        for record in batch.records if record.json["type"] == "USER_SCRAM_CREDENTIAL_RECORD"
    }  # fmt: skip
    assert salts
    assert not [salt for salt in salts if salt in str(load(spark, checkpoint).collect())]


def test_types_that_are_not_selected_are_not_decoded(spark: SparkSession, tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    damaged = encode(TopicRecord(name="orders"))[:-3]
    log.append(encode(PartitionRecord(partition_id=7)), damaged, encode(NoOpRecord()))
    whole = load(spark, log.directory)
    some = (
        spark.read.format("raftlog")
        .option("columns", "typed")
        .schema(whole.select("partition_record", "offset").schema)
        .load(str(log.directory))
    )
    assert [
        row.partition_record and row.partition_record.partition_id for row in some.collect()
    ] == [7, None, None]
    with pytest.raises(Exception, match=r"\[RAFTLOG_CORRUPT_BATCH\]"):
        whole.collect()


def test_typed_columns_of_an_ordinary_log_are_refused(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    with pytest.raises(AnalysisException, match=r"\[RAFTLOG_OPTION\].*columns: typed requires"):
        load(spark, log.directory).count()
    with pytest.raises(AnalysisException, match="columns: typed requires values=kraft"):
        load(spark, log.directory, values="bytes").count()
    schema = "topic_record STRUCT<name: STRING>"
    without_option = spark.read.format("raftlog").schema(schema).load(str(data / METADATA))
    with pytest.raises(AnalysisException, match="requires option columns=typed"):
        without_option.count()
    sources = json.dumps([{"path": str(data / METADATA)}, {"path": str(log.directory)}])
    with pytest.raises(AnalysisException, match="columns: typed requires"):
        spark.read.format("raftlog").options(columns="typed", sources=sources).load().count()


@pytest.mark.nightly
def test_typed_rows_are_written_to_parquet(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    frame = load(spark, data / METADATA, endingOffset="500")
    frame.write.parquet(str(tmp_path / "rows"))
    again = spark.read.parquet(str(tmp_path / "rows"))
    assert again.orderBy("offset").collect() == frame.orderBy("offset").collect()
    shutil.rmtree(tmp_path / "rows")


@pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")
def test_workers_decode_typed_columns_by_the_core(spark: SparkSession) -> None:
    def programs(value: bytes) -> int:
        column = pa.array([bytes(value)], pa.binary())
        found = typed_columns(column, [TopicRecord], Redactor())
        assert found[TopicRecord].fields.to_pylist()[0]["name"] == "orders"
        return program.cache_info().currsize

    frame = spark.createDataFrame([(encode(TopicRecord(name="orders")),)], "value BINARY")
    row = frame.select(udf(programs, "int", useArrow=False)("value")).first()
    assert row is not None
    assert row[0] == 1
