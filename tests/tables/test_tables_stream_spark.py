"""A real log flows through the real source into tables; Kafka's own checkpoints are the judge."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.tables import contents, image_of, offsets_once

from raftlog.types import SnapshotId
from raftlog_state.checkpoint import checkpoint_log_records, image_from_records
from raftlog_state.image import MetadataImage
from raftlog_state.records import DecodedRecord, Redactor, decode
from raftlog_state.tables import ClusterTables, open_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def redacted(value: bytes) -> DecodedRecord:
    return Redactor().redact(decode(value))


def kafkas_own(directory: Path, end_offset: int) -> MetadataImage:
    """The state that Kafka wrote into its checkpoint of this end offset, without the secrets."""
    (file,) = directory.glob(f"__cluster_metadata-0/{end_offset:020d}-*.checkpoint")
    snapshot_id = SnapshotId(epoch=int(file.stem.split("-")[1]), end_offset=end_offset)
    records = checkpoint_log_records(file.read_bytes(), path=str(file))
    return image_from_records(snapshot_id, records, decode=redacted)


def follow(tables: ClusterTables, log: Path, checkpoint: Path) -> None:
    """Take what there is, in micro-batches of about a thousand records."""
    options = {"path": str(log), "maxOffsetsPerTrigger": "1500", "tailHoldback": "0s"}
    query = tables.materialize(options, checkpoint=str(checkpoint), trigger="availableNow")
    query.awaitTermination()


def test_a_stream_s_tables_equal_kafka_s_checkpoints_and_outlive_a_lost_streaming_checkpoint(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    log = data / "kraft-logs/three-nodes-4.3.1/node-100"
    tables = open_cluster(spark, str(tmp_path / "tables"))
    follow(tables, log, tmp_path / "checkpoint")
    assert tables.latest().offset == 3130
    for end_offset in (1762, 3128):
        then = image_of(tables.at(offset=end_offset - 1))
        assert then.same_rows(kafkas_own(log, end_offset))
    before = contents(tables.latest())
    shutil.rmtree(tmp_path / "checkpoint")
    follow(open_cluster(spark, str(tmp_path / "tables")), log, tmp_path / "checkpoint")
    assert contents(tables.latest()) == before
    assert offsets_once(tables.latest())


def test_a_log_whose_beginning_is_gone_starts_with_its_checkpoint(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    log = data / "kraft-logs/trimmed-3.9.2/node-1"
    tables = open_cluster(spark, str(tmp_path / "tables"))
    follow(tables, log, tmp_path / "checkpoint")
    assert tables.latest().offset == 1304
    assert image_of(tables.at(offset=1021)).same_rows(kafkas_own(log, 1022))
    report = tables.verify()
    assert report.ok, report
