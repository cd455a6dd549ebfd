"""Tables, records, log, tables: nothing is lost in the round trip, and secrets stay redacted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.metadata_logs import MetadataLog, metadata_log
from tests.support.snapshot_files import image_from_records, snapshot_log_records
from tests.support.source_rows import source_rows

import raftlog
from raftlog_state import apply_changes
from raftlog_state.image import MetadataImage, PartitionRow, TopicRow
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import Redactor, decode, encode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftlog_state.tables import ClusterTables

pytestmark = pytest.mark.spark

JOBS: list[list[dict[str, Any]]] = [
    [
        {"change": "set_feature", "feature": "metadata.version", "level": 30},
        {"change": "register_broker", "broker_id": 1, "endpoints": {"CLIENT": "localhost:9092"}},
        {"change": "register_broker", "broker_id": 2, "endpoints": {"CLIENT": "localhost:9093"}},
        {"change": "unfence_broker", "broker_id": 1},
        {"change": "unfence_broker", "broker_id": 2},
        {"change": "set_feature", "feature": "eligible.leader.replicas.version", "level": 1},
    ],
    [
        {"change": "create_topic", "topic": "a", "partitions": 3, "replication_factor": 2},
        {"change": "create_topic", "topic": "b", "configs": {"min.insync.replicas": "2"}},
        {
            "change": "set_quota",
            "entity": {"user": None, "client-id": "c"},
            "quota": "producer_byte_rate",
            "limit": 9,
        },
        {
            "change": "add_acl",
            "resource_type": "TOPIC",
            "resource_name": "a",
            "principal": "User:a",
            "operation": "READ",
        },
        {"change": "fence_broker", "broker_id": 2},
    ],
    [
        {"change": "set_scram", "user": "a", "mechanism": 1, "password": "opensesame"},
        {
            "change": "set_config",
            "resource_type": "BROKER",
            "resource_name": "",
            "name": "ssl.key.password",
            "value": "opensesame",
        },
    ],
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MetadataLog:
    path = tmp_path_factory.mktemp("log") / "cluster-0"
    with raftlog.open(path, values="kraft") as cluster:
        for rows in JOBS:
            apply_changes(cluster, rows)
    return metadata_log(path)


def filled(
    spark: SparkSession, log: MetadataLog, place: Path, *, redact: bool = False
) -> ClusterTables:
    from raftlog_state.tables import open_cluster

    tables = open_cluster(spark, str(place), redact=redact)
    tables.apply(spark.createDataFrame(source_rows(log.records, redact=redact)))
    return tables


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, log: MetadataLog, tmp_path_factory: pytest.TempPathFactory
) -> ClusterTables:
    return filled(spark, log, tmp_path_factory.mktemp("tables") / "one")


def exported_image(tables: ClusterTables, offset: int | None, directory: Path) -> MetadataImage:
    exported = tables.export_snapshot(offset, directory)
    records = snapshot_log_records(Path(exported.path).read_bytes())
    return image_from_records(exported.snapshot_id, records)


def test_tables_round_trip_through_records_and_a_log(
    spark: SparkSession, log: MetadataLog, tables: ClusterTables, tmp_path: Path
) -> None:
    from raftlog_state.errors import TablesError

    image = tables.image()
    loader = MetadataLoader()
    loader.append(log.records)
    assert image == loader.image
    assert image.timestamp_ms == loader.image.timestamp_ms
    assert exported_image(tables, None, tmp_path) == image

    with raftlog.open(tmp_path / "again-0", values="kraft") as again:
        again.append([encode(record) for record in image_records(image)], atomic=True)
    copied = metadata_log(tmp_path / "again-0")
    second = filled(spark, copied, tmp_path / "two", redact=True)
    hidden = MetadataLoader(decode=lambda value: Redactor().redact(decode(value)))
    hidden.append(copied.records)
    assert second.image() == hidden.image
    assert hidden.image.rows_of(TopicRow) == image.rows_of(TopicRow)
    assert hidden.image.rows_of(PartitionRow) == image.rows_of(PartitionRow)
    with pytest.raises(TablesError, match="2 secrets are redacted") as caught:
        second.export_snapshot(None, tmp_path)
    assert "opensesame" not in str(caught.value)


def test_a_past_offset_is_exported_unless_it_is_inside_a_transaction(
    log: MetadataLog, tables: ClusterTables, tmp_path: Path
) -> None:
    from raftlog_state.errors import TablesError

    end = next(
        at
        for at, record in enumerate(log.records)
        if record.payload == b"\x01\x18\x00\x00"  # the first end marker
    )
    loader = MetadataLoader()
    loader.append(log.records[: end + 1])
    assert exported_image(tables, end, tmp_path) == loader.image
    with pytest.raises(TablesError, match="inside the metadata transaction that begins at 1"):
        tables.export_snapshot(end - 1, tmp_path)
    assert len(list(tmp_path.glob("*.checkpoint"))) == 1


def test_a_frame_of_changes_is_collected_by_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    schema = (
        "change string, topic string, partitions int, configs map<string,string>, "
        "entity map<string,string>, quota string, `limit` double"
    )
    rows = [
        ("create_topic", "t", 2, {"retention.ms": "1"}, None, None, None),
        ("set_quota", None, None, None, {"user": None}, "request_percentage", 12.5),
    ]
    with raftlog.open(tmp_path / "cluster-0", values="kraft") as log:
        apply_changes(log, JOBS[0])
        done = apply_changes(log, spark.createDataFrame(rows, schema))
        assert done.record_count == 5
        assert done.result.end_offset == log.end_offset
