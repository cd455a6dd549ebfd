"""A real Kafka starts from a cluster whose metadata was written only by batch jobs."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka import booted, dump_log, kafka_jars
from tests.support.kafka_state import assert_same_access, ordered
from tests.support.quorum_processes import eventually

import raftlog
from raftlog_state import ExportedSnapshot, apply_changes, export_snapshot
from raftlog_state.image import ConfigRow, FeatureRow, MetadataImage, PartitionRow
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor, to_json_text

pytestmark = pytest.mark.kafka

CLUSTER_ID = "raftlogBatchJobsMadeIt"
DIRECTORY_ID = "logDirectoryOfBroker1A"
SHELL = "org.apache.kafka.shell.MetadataShell"

CLUSTER = [
    {"change": "set_feature", "feature": "metadata.version", "level": 30},
    {"change": "set_feature", "feature": "group.version", "level": 1},
    {"change": "set_feature", "feature": "transaction.version", "level": 2},
    {
        "change": "register_broker",
        "broker_id": 1,
        "endpoints": {"CLIENT": "localhost:9092"},
        "log_dirs": [DIRECTORY_ID],
    },
    {"change": "unfence_broker", "broker_id": 1},
]
WORK: list[dict[str, Any]] = [
    {
        "change": "create_topic",
        "topic": "payments",
        "partitions": 3,
        "configs": {"retention.ms": "86400000", "cleanup.policy": "compact,delete"},
    },
    {"change": "create_topic", "topic": "audit", "assignment": [[1]]},
    {"change": "create_topic", "topic": "gone", "partitions": 2},
    {"change": "add_partitions", "topic": "payments", "partitions": 5},
    {
        "change": "set_config",
        "resource_type": "TOPIC",
        "resource_name": "audit",
        "name": "segment.ms",
        "value": "3600000",
    },
    {
        "change": "set_config",
        "resource_type": "BROKER",
        "resource_name": "",
        "name": "log.retention.ms",
        "value": "172800000",
    },
    {
        "change": "add_acl",
        "resource_type": "TOPIC",
        "resource_name": "pay",
        "pattern_type": "PREFIXED",
        "principal": "User:ana",
        "operation": "READ",
    },
    {
        "change": "set_quota",
        "entity": {"user": "ana", "client-id": "app"},
        "quota": "producer_byte_rate",
        "limit": 1048576,
    },
    {
        "change": "set_scram",
        "user": "ana",
        "mechanism": "SCRAM-SHA-512",
        "password": "opensesame",
        "iterations": 8192,
    },
    {"change": "delete_topic", "topic": "gone"},
    {"change": "fence_broker", "broker_id": 1},  # until the broker has started
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a metadata log that two jobs wrote."""
    path = tmp_path_factory.mktemp("made") / "__cluster_metadata-0"
    with raftlog.open(path, values="kraft") as log:
        apply_changes(log, CLUSTER)
        apply_changes(log, WORK, commit=("nightly", "job", 1))
    return path


@pytest.fixture(scope="module")
def image(cluster: Path) -> MetadataImage:
    images = ImageReader(str(cluster), Redactor(reveal=True))
    return images.image_at(images.end_offset())


@pytest.fixture(scope="module")
def exported(cluster: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportedSnapshot:
    return export_snapshot(cluster, tmp_path_factory.mktemp("exported"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Data directory of a node that has only its properties."""
    data = tmp_path / "data"
    (data / "__cluster_metadata-0").mkdir(parents=True)
    lines = ("version=1", f"cluster.id={CLUSTER_ID}", "node.id=1", f"directory.id={DIRECTORY_ID}")
    (data / "meta.properties").write_text("\n".join(lines) + "\n")
    return data


def assert_cluster_is_as_written(described: dict[str, Any], image: MetadataImage) -> None:
    assert described["cluster_id"] == CLUSTER_ID
    ours = {"payments", "audit"}
    assert ordered(one for one in described["partitions"] if one[0] in ours) == ordered(
        [row.topic_name, row.topic_id, row.partition_id, 1, [1], [1]]
        for row in image.rows_of(PartitionRow)
    )
    assert {one[0] for one in described["partitions"]} == ours
    assert ordered(described["configs"]) == ordered(
        [row.resource_type, row.resource_name, row.name, row.value]
        for row in image.rows_of(ConfigRow)
    )
    assert_same_access(described, image)
    features = {row.name: row.level for row in image.rows_of(FeatureRow)}
    assert {name: described["features"][name] for name in features} == features


def test_kafka_starts_from_raftlogs_snapshot_and_uses_it(
    exported: ExportedSnapshot, image: MetadataImage, data: Path
) -> None:
    shutil.copy(exported.path, data / "__cluster_metadata-0")
    with booted(data) as node:
        described = node.admin("describe")
        assert_cluster_is_as_written(described, image)
        assert described["high_watermark"] > exported.snapshot_id.end_offset
        described = node.admin("create", "describe")
    names = {one[0] for one in described["partitions"]}
    assert names >= {"payments", "audit", "orders-0", "orders-11"}


def test_kafka_starts_from_raftlogs_log_and_replays_its_transactions(
    cluster: Path, image: MetadataImage, data: Path
) -> None:
    for name in ("00000000000000000000.log", "leader-epoch-checkpoint"):
        # Kafka creates the other files again
        shutil.copy(cluster / name, data / "__cluster_metadata-0")
    with booted(data) as node:
        assert_cluster_is_as_written(node.admin("describe"), image)


def test_dump_log_prints_raftlogs_snapshot(
    exported: ExportedSnapshot, image: MetadataImage
) -> None:
    lines = dump_log(kafka_jars(), Path(exported.path))
    printed = [line.split("payload: ")[1] for line in lines if "payload: " in line]
    assert printed == [to_json_text(record) for record in image_records(image)]
    assert all("isvalid: true" in line for line in lines if line.startswith("baseOffset"))


def test_the_metadata_shell_finds_raftlogs_topics(
    exported: ExportedSnapshot, image: MetadataImage
) -> None:
    topic = image.topic("payments")
    assert topic is not None
    command = ["java", "-cp", f"{kafka_jars()}/*", SHELL, "--snapshot", exported.path]

    def partition() -> str:
        done = subprocess.run(
            [*command, "cat", "/image/topics/byName/payments/4"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # The shell may run a command before it has loaded the snapshot.
    eventually(lambda: "replicas" in partition(), "the shell finds the partition")


def test_the_ids_of_this_test_have_sixteen_bytes() -> None:
    for text in (CLUSTER_ID, DIRECTORY_ID):
        assert len(base64.urlsafe_b64decode(text + "==")) == 16
