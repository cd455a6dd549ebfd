"""Remote segments of a tiered topic of a running Kafka: dump-log is the judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.cli import rows, run
from tests.support.internal_records import remote_as_dumped, remote_printed_by
from tests.support.kafka import HOME, KafkaNode, run_java, running_node, tiered_storage_jar

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"


def check_remote_segments(node: KafkaNode, copied: int, local: int) -> None:
    """Compare with the latest tiered and the earliest local offset that the node has returned."""
    found = rows("state", node.log_dir, "remote_segments")
    finished = [row for row in found if row["state"] == "CopySegmentFinished"]
    assert [row["start_offset"] for row in finished] == [
        0,
        *(row["end_offset"] + 1 for row in finished[:-1]),
    ]
    assert copied in [row["end_offset"] for row in finished]
    assert local in [row["start_offset"] for row in finished]
    for row in finished:
        assert row["only_remote"] == (row["end_offset"] < local)


def check_remote_files(spark: SparkSession, remote: Path, copied: int) -> None:
    """Read the segments where the broker has copied them to, by the command line and by Spark."""
    (directory,) = remote.glob("*/tiered-0-*")
    printed = rows("cat", directory)
    assert copied < len(printed) < 40  # the active segment is not copied
    assert [row["offset"] for row in printed] == list(range(len(printed)))
    assert run("check", directory)[0] == 0
    frame = spark.read.format("raftlog").option("maxRecordsPerPartition", "7").load(str(directory))
    read = frame.select("offset", "value", "topic", "partition").orderBy("offset").collect()
    assert [tuple(row) for row in read] == [
        (offset, bytes(100_000), "tiered", 0) for offset in range(len(printed))
    ]


def test_remote_segments_are_printed_as_by_dump_log(tmp_path: Path, spark: SparkSession) -> None:
    settings = (
        "remote.log.storage.system.enable=true",
        f"remote.log.storage.manager.class.name={STORAGE}",
        f"remote.log.storage.manager.class.path={tiered_storage_jar()}",
        "remote.log.metadata.manager.listener.name=CLIENT",
        "rlmm.config.remote.log.metadata.topic.num.partitions=2",
        "rlmm.config.remote.log.metadata.topic.replication.factor=1",
        f"rsm.config.dir={tmp_path / 'remote'}",
        "remote.log.manager.task.interval.ms=1000",
        "log.retention.check.interval.ms=1000",
    )
    with running_node(tmp_path, *settings) as node:
        program = str(HOME / "tests" / "kafka" / "Tiered.java")
        copied, local = map(int, run_java(node.jars, program, node.bootstrap).split()[-2:])
        check_remote_segments(node, copied, local)
        check_remote_files(spark, tmp_path / "remote", copied)
        types = []
        for path in sorted(node.log_dir.glob("__remote_log_metadata-*")):
            printed = rows("cat", path)
            types += [row["type"] for row in printed]
            text = run_java(
                node.jars,
                "org.apache.kafka.tools.DumpLogSegments",
                "--remote-log-metadata-decoder",
                *("--files", str(path / "00000000000000000000.log")),
            )
            dumped = remote_printed_by(text.splitlines())
            given = [(row["offset"], remote_as_dumped(row)) for row in printed]
            assert dumped[: len(given)] == given  # the log may have grown since
    assert set(types) == {
        "REMOTE_LOG_SEGMENT_METADATA_RECORD",
        "REMOTE_LOG_SEGMENT_METADATA_UPDATE_RECORD",
    }
