"""Kafka's own classes replay random logs, read raftlog's snapshots, and start from one."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from tests.support.kafka import booted, dump_log, kafka_jars
from tests.support.kafka_images import LEVELS, Answer, ask_kafka, random_values, read_recording
from tests.support.kafka_state import assert_same_access, ordered
from tests.support.metadata_logs import CLUSTERS, LOGS, metadata_log, multiset, restored

from raftlog_state.image import ConfigRow, MetadataImage, PartitionRow
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.records import decode, to_json_text
from raftlog_state.snapshots import snapshot_bytes

TRIMMED = CLUSTERS[-1]


def assert_same_images(answer: Answer) -> None:
    loader = MetadataLoader()
    for offset, value in enumerate(answer.values):
        loader.append([LogRecord(offset, 1, offset, value)])
        theirs = answer.images.get(offset + 1)
        if theirs is not None:
            assert multiset(image_records(loader.image)) == multiset(map(decode, theirs))


@pytest.mark.parametrize("answer", read_recording(), ids=lambda answer: f"level {answer.level}")
def test_random_logs_give_kafkas_recorded_images(answer: Answer) -> None:
    assert len(answer.images) == 5
    assert len(max(answer.images.values(), key=len)) > 20
    assert_same_images(answer)


def test_the_recorded_answers_cover_every_change() -> None:
    kinds = Counter(
        type(decode(value).record).__name__
        for answer in read_recording()
        for value in answer.values
    )
    silent = {"NoOp", "BeginTransaction", "EndTransaction", "AbortTransaction"}
    # Kafka 4.3 ignores it, does not know them
    absent = {"ZkMigrationState", "UnregisterController"}
    assert len(kinds) == 27 - len(silent) - len(absent)


@pytest.mark.kafka
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("level", [LEVELS[-1], 21])
def test_long_random_logs_give_kafkas_images(seed: int, level: int) -> None:
    values = random_values(seed, level, 3_000)
    assert_same_images(ask_kafka(kafka_jars(), level, values, 50))


@pytest.mark.kafka
@pytest.mark.parametrize("cluster", [CLUSTERS[1], TRIMMED])
def test_kafka_dump_log_reads_a_raftlog_snapshot(cluster: str, tmp_path: Path) -> None:
    image = final_image(cluster, tmp_path)
    file = tmp_path / f"{image.snapshot_id}.checkpoint"
    file.write_bytes(snapshot_bytes(image, written_ms=1_700_000_000_000))
    lines = dump_log(kafka_jars(), file)
    printed = [line.split("payload: ")[1] for line in lines if "payload: " in line]
    assert printed == [to_json_text(record) for record in image_records(image)]
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert len(batches) == 3
    assert all("isvalid: true" in line for line in batches)


def final_image(cluster: str, directory: Path) -> MetadataImage:
    source = directory / "source"
    source.mkdir()
    loader = MetadataLoader()
    loader.append(metadata_log(restored(cluster, source)).records)
    return loader.image


# --- a node that has only a snapshot by raftlog ---------------------------------------------------


@pytest.mark.kafka
def test_kafka_starts_from_a_raftlog_snapshot(tmp_path: Path) -> None:
    image = final_image(TRIMMED, tmp_path)
    data = tmp_path / "data"
    log = data / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (log / f"{image.snapshot_id}.checkpoint").write_bytes(
        snapshot_bytes(image, written_ms=1_700_000_000_000)
    )
    shutil.copyfile(LOGS / TRIMMED / "meta.properties", data / "meta.properties")
    with booted(data) as node:
        described = node.admin("describe")
    assert ordered(
        [name, topic_id, number, replicas]
        for name, topic_id, number, _, replicas, _ in described["partitions"]
    ) == ordered(
        [row.topic_name, row.topic_id, row.partition_id, list(row.replicas)]
        for row in image.rows_of(PartitionRow)
    )
    assert ordered(one for one in described["configs"] if one[0] == 2) == ordered(
        [row.resource_type, row.resource_name, row.name, row.value]
        for row in image.rows_of(ConfigRow)
        if row.resource_type == 2
    )
    assert_same_access(described, image)
