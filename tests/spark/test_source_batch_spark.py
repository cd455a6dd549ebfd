"""Batch reads in a real Spark session."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from tests.support.dumps import read_dump
from tests.support.small_logs import LogWriter, copy_log

from raftlog import compiled

pytestmark = pytest.mark.spark

NODE = "kraft-logs/three-nodes-4.3.1/node-100"
METADATA = f"{NODE}/__cluster_metadata-0"
TRIMMED = "kraft-logs/trimmed-3.9.2/node-1/__cluster_metadata-0"
PLAIN = "offset BIGINT, leaderEpoch INT, recordType STRING, recordVersion INT, record STRING"
KEY = "a key that is the user's own"


def load(spark: SparkSession, path: Path | list[str], **options: str) -> DataFrame:
    target = path if isinstance(path, list) else str(path)
    return spark.read.format("raftlog").options(**options).load(target)


def value_of(frame: DataFrame) -> Any:
    row = frame.first()
    assert row is not None
    return row[0]


def dumped(path: Path) -> list[tuple[Any, ...]]:
    return [
        (record.offset, batch.leader_epoch, record.json["type"], record.json["version"],
         record.json["data"])
        for batch in read_dump(path) if not batch.is_control
        for record in batch.records
    ]  # fmt: skip


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [(*row[:-1], json.loads(row[-1])) for row in frame.select(*PLAIN_NAMES).collect()]


PLAIN_NAMES = [column.split()[0] for column in PLAIN.split(", ")]


def test_rows_of_a_nodes_directory_equal_dump_logs_output(spark: SparkSession, data: Path) -> None:
    segments = sorted((data / METADATA).glob("*.log"))
    expected = [row for segment in segments for row in dumped(segment)]
    assert collected(load(spark, data / NODE, redact="false")) == expected


def test_rows_of_a_compressed_segment_equal_dump_logs_output(
    spark: SparkSession, data: Path
) -> None:
    """Its records are arbitrary, including transaction markers, and are read unchanged."""
    name = "kraft-logs/every-record-4.3.1/zstd/__cluster_metadata-0/00000000000000000000.log"
    frame = load(spark, data / name, redact="false", isolationLevel="high_watermark")
    assert collected(frame) == dumped(data / name)


def test_rows_of_a_snapshot_equal_dump_logs_output(spark: SparkSession, data: Path) -> None:
    path = data / METADATA / "00000000000000003128-0000000002.checkpoint"
    frame = load(spark, path, redact="false")
    expected = [(3127, *row[1:]) for row in dumped(path)]
    assert collected(frame.orderBy("snapshotPosition")) == expected


def test_a_trimmed_log_starts_with_its_snapshot(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data / TRIMMED, startingOffset="snapshot")
    assert value_of(frame.where("snapshotPosition IS NULL").agg({"offset": "min"})) == 1022
    of_checkpoint = frame.where("snapshotPosition IS NOT NULL")
    assert [row[0] for row in of_checkpoint.select("offset").distinct().collect()] == [1021]
    rows = read_dump(data / TRIMMED / "00000000000000001022-0000000002.checkpoint")
    assert of_checkpoint.count() == sum(len(b.records) for b in rows if not b.is_control)


def test_several_voters_are_one_log(spark: SparkSession, data: Path) -> None:
    nodes = [str(data / NODE.replace("100", node)) for node in ("100", "101", "102")]
    frame = load(spark, nodes).select("offset")
    assert frame.collect() == load(spark, data / METADATA).select("offset").collect()
    pattern = data / "kraft-logs/three-nodes-4.3.1/node-10*"
    assert load(spark, pattern).count() == frame.count()


def test_an_ordinary_partition_shows_committed_records(spark: SparkSession, data: Path) -> None:
    path = data / "kraft-logs/three-nodes-4.3.1/node-1/orders-0-0"
    committed = load(spark, path)
    assert {row.topic for row in committed.select("topic").collect()} == {"orders-0"}
    everything = load(spark, path, isolationLevel="read_uncommitted", includeControlRecords="true")
    kinds = {row.controlType for row in everything.select("controlType").distinct().collect()}
    assert kinds == {None, "commit", "abort"}
    assert 0 < committed.count() < everything.where("controlType IS NULL").count()


def test_segments_in_remote_storage_are_a_log(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    path = data / "kraft-logs/three-nodes-4.3.1/node-1/orders-0-0"
    remote = tmp_path / "orders-0-0-LWgrMmVrT0a__7a4SasuPA"
    remote.mkdir()
    for file in path.iterdir():
        if file.suffix in (".log", ".index", ".timeindex"):
            shutil.copy(file, remote / f"{file.stem}-oAtiIQ95REujbuzNd_lkLQ{file.suffix}")
    whole, copied = load(spark, path), load(spark, remote, maxRecordsPerPartition="10")
    assert copied.orderBy("offset").collect() == whole.orderBy("offset").collect()


def test_a_schema_selects_columns(spark: SparkSession, data: Path) -> None:
    everything = load(spark, data / METADATA)
    some = (
        spark.read.format("raftlog")
        .schema("record STRING, offset BIGINT")
        .load(str(data / METADATA))
    )
    assert some.columns == ["record", "offset"]
    assert some.collect() == everything.select("record", "offset").collect()


def test_a_wrong_schema_is_refused(spark: SparkSession, data: Path) -> None:
    frame = spark.read.format("raftlog").schema("ofset BIGINT").load(str(data / METADATA))
    with pytest.raises(AnalysisException, match=r"\[RAFTLOG_OPTION\].*did you mean offset\?"):
        frame.count()


def test_every_column_is_returned_through_spark(spark: SparkSession, data: Path) -> None:
    options = {"includeHeaders": "true", "includeControlRecords": "true", "endingOffset": "20"}
    rows = load(spark, data / METADATA, **options).collect()
    assert [row.offset for row in rows] == list(range(20))
    assert rows[0].controlType == "leader_change"
    assert rows[0].timestamp.timestamp() == pytest.approx(1795248203.359)
    assert rows[15].headers == []
    assert rows[3].visibleOffset == 11


def test_a_frame_is_fixed_and_another_load_sees_new_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1", b"2")
    frame = load(spark, log.directory)
    assert frame.count() == 2
    log.append(b"3")
    assert [bytes(row.value) for row in frame.select("value").collect()] == [b"1", b"2"]
    assert load(spark, log.directory).count() == 3


def test_two_actions_and_a_filter_are_independent(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data / METADATA)
    before = frame.count()
    assert frame.where("offset >= 3000").count() < before
    assert frame.count() == before
    assert frame.where("offset >= 3000").union(frame).count() > before


def test_a_union_of_two_ranges_is_the_whole_range(spark: SparkSession, data: Path) -> None:
    first = load(spark, data / METADATA, endingOffset="1500")
    second = load(spark, data / METADATA, startingOffset="1500")
    offsets = [row.offset for row in first.union(second).select("offset").collect()]
    whole = [row.offset for row in load(spark, data / METADATA).select("offset").collect()]
    assert offsets == whole


def test_splits_give_the_same_rows_in_the_same_order(spark: SparkSession, data: Path) -> None:
    whole = load(spark, data / METADATA)
    split = load(spark, data / METADATA, minPartitions="4", recordBatchRows="100")
    assert split.rdd.getNumPartitions() >= 4
    assert split.collect() == whole.collect()


def test_a_temporary_view_takes_options(spark: SparkSession, data: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW part USING raftlog "
        f"OPTIONS (path '{data / METADATA}', startingOffset '10', endingOffset '20')"
    )
    assert value_of(spark.sql("SELECT count(*) FROM part")) == 10
    assert value_of(spark.sql("SELECT max(offset) FROM part")) == 19


def test_a_temporary_view_is_planned_once_and_another_sees_new_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    create = f"TEMPORARY VIEW planned_once USING raftlog OPTIONS (path '{log.directory}')"
    spark.sql(f"CREATE {create}")
    count = "SELECT count(*) FROM planned_once"
    assert value_of(spark.sql(count)) == 1
    log.append(b"2")
    assert value_of(spark.sql(count)) == 1
    spark.sql(f"CREATE OR REPLACE {create}")
    assert value_of(spark.sql(count)) == 2


@pytest.mark.parametrize("clause", ["OPTIONS (path '{}')", "LOCATION '{}'"])
def test_a_table_of_sparks_catalog_is_read_from_its_path(
    spark: SparkSession, data: Path, clause: str
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "builtin")  # instead of Delta's
    session.sql(f"CREATE TABLE log_of_path USING raftlog {clause.format(data / METADATA)}")
    try:
        assert value_of(session.sql("SELECT count(*) FROM log_of_path")) == 3125
        assert value_of(session.sql("SELECT max(offset) FROM log_of_path WHERE offset < 9")) == 8
    finally:
        session.sql("DROP TABLE log_of_path")


def test_an_empty_log_is_an_empty_frame(spark: SparkSession, data: Path) -> None:
    frame = load(spark, data / METADATA, startingOffset="3131")
    assert frame.collect() == []
    assert frame.count() == 0


def test_an_unknown_option_is_refused_at_load(spark: SparkSession, data: Path) -> None:
    with pytest.raises(AnalysisException, match="did you mean startingOffset"):
        load(spark, data / METADATA, startingOfset="5")


def test_a_missing_path_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match=r"\[RAFTLOG_LOG_NOT_FOUND\]"):
        load(spark, tmp_path / "nothing").count()


def test_damage_is_reported_with_its_position(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    log = copy_log(data / METADATA, tmp_path / "__cluster_metadata-0", end_offset=3131)
    segment = log / "00000000000000000436.log"
    damaged = bytearray(segment.read_bytes())
    damaged[20_000] ^= 1
    segment.write_bytes(damaged)
    with pytest.raises((PythonException, AnalysisException)) as caught:
        load(spark, log).count()
    assert "[RAFTLOG_CORRUPT_BATCH]" in str(caught.value)
    assert f"{segment.name} at byte" in str(caught.value)


def test_secrets_and_the_redaction_key_are_shown_nowhere(
    spark: SparkSession, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = data / METADATA / "00000000000000003128-0000000002.checkpoint"
    secrets = {
        record.json["data"][name]
        for batch in read_dump(checkpoint) if not batch.is_control
        for record in batch.records if record.json["type"] == "USER_SCRAM_CREDENTIAL_RECORD"
        for name in ("salt", "storedKey", "serverKey")
    }  # fmt: skip
    assert secrets
    frame = load(spark, data / NODE, startingOffset="snapshot", redactKey=KEY)
    frame.explain(extended=True)
    frame.explain(mode="cost")
    plan = str(frame._jdf.queryExecution())
    shown = capfd.readouterr().out + plan + repr(frame)
    shown += "".join(map(str, frame.collect()))
    assert KEY not in shown
    assert not [secret for secret in secrets if secret in shown]
    hashed = frame.where("recordType = 'USER_SCRAM_CREDENTIAL_RECORD'").collect()
    assert hashed


def test_a_redaction_key_in_sql_is_masked_by_spark(spark: SparkSession, data: Path) -> None:
    key = "a-key-of-an-operator"
    create = (
        "CREATE TEMPORARY VIEW masked USING raftlog OPTIONS "
        f"(path '{data / METADATA}', redactSecret '{key}')"
    )
    (plan,) = spark.sql(f"EXPLAIN EXTENDED {create}").collect()
    assert "redactSecret" in plan[0]
    assert key not in plan[0]


def test_a_deleted_log_is_reported_when_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "orders-0")
    log.append(b"1")
    frame = load(spark, log.directory)
    frame.schema  # noqa: B018 - loaded, not planned
    shutil.rmtree(log.directory)
    with pytest.raises(AnalysisException, match="RAFTLOG_LOG_NOT_FOUND"):
        frame.count()


def test_workers_run_the_same_implementation_as_the_driver(spark: SparkSession) -> None:
    """The compiled core where it was built, else Python; its results are those of Python."""
    implementation = udf(lambda _: compiled.describe(), "string", useArrow=False)
    assert value_of(spark.range(1).select(implementation("id"))) == compiled.describe()
