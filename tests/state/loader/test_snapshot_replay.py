"""Replay of a real log up to a snapshot gives the content of that snapshot."""

from __future__ import annotations

import itertools
import tarfile
from pathlib import Path

import pytest
from tests.support.metadata_logs import (
    CLUSTERS,
    Checkpoint,
    MetadataLog,
    metadata_log,
    multiset,
    restored,
)
from tests.support.snapshot_files import image_from_records, snapshot_log_records
from tests.support.sweep_size import COPIES, nightly_except

from raftlog_state.image import MetadataImage
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import DecodedRecord, MetadataRecord, PartitionRecord, TopicRecord
from raftlog_state.snapshots import snapshot_bytes


@pytest.fixture(
    scope="module", params=nightly_except([one for one in CLUSTERS if one not in COPIES], CLUSTERS)
)
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MetadataLog:
    found = metadata_log(restored(request.param, tmp_path_factory.mktemp("log")))
    assert len(found.checkpoints) >= 2
    return found


def image_at(log: MetadataLog, checkpoint: Checkpoint) -> MetadataImage:
    loader = MetadataLoader()
    loader.append(log.records[: checkpoint.snapshot_id.end_offset])
    return loader.image


def sections(records: list[DecodedRecord]) -> list[str]:
    """Return the kinds of records in order, where a topic and its partitions are one kind."""

    def kind(decoded: DecodedRecord) -> str:
        record = decoded.record
        assert isinstance(record, MetadataRecord)
        return "topics" if isinstance(record, PartitionRecord) else record.schema.name

    names = ["topics" if name == "TopicRecord" else name for name in map(kind, records)]
    return [name for name, _ in itertools.groupby(names)]


def test_replayed_records_equal_those_that_kafka_wrote(log: MetadataLog) -> None:
    for checkpoint in log.checkpoints:
        ours = list(image_records(image_at(log, checkpoint)))
        theirs = checkpoint.metadata()
        assert multiset(ours) == multiset(theirs)
        assert len(ours) > 200


def test_replayed_records_have_the_order_that_kafka_wrote(log: MetadataLog) -> None:
    for checkpoint in log.checkpoints:
        ours = list(image_records(image_at(log, checkpoint)))
        theirs = checkpoint.metadata()
        assert sections(ours) == sections(theirs)
        assert ours[0] == theirs[0], "metadata.version is first"
        assert topic_blocks(ours) == topic_blocks(theirs)


def topic_blocks(records: list[DecodedRecord]) -> dict[str, list[int]]:
    """Return, for each topic, the partitions after it in order."""
    blocks: dict[str, list[int]] = {}
    current = ""
    for decoded in records:
        if isinstance(decoded.record, TopicRecord):
            current = decoded.record.topic_id
            blocks[current] = []
        elif isinstance(decoded.record, PartitionRecord):
            assert decoded.record.topic_id == current
            blocks[current].append(decoded.record.partition_id)
    return blocks


def test_the_state_of_a_snapshot_is_the_state_of_the_log(log: MetadataLog) -> None:
    for checkpoint in log.checkpoints:
        replayed = image_at(log, checkpoint)
        loaded = image_from_records(checkpoint.snapshot_id, checkpoint.log_records())
        assert loaded == replayed
        assert loaded.digest() == replayed.digest()
        assert loaded.timestamp_ms == replayed.timestamp_ms
        assert replayed.snapshot_id == checkpoint.snapshot_id


def test_an_older_snapshot_and_the_log_after_it_give_the_newer_one(log: MetadataLog) -> None:
    for older, newer in itertools.combinations(log.checkpoints, 2):
        loader = MetadataLoader()
        loader.bootstrap(older.snapshot_id, older.log_records())
        loader.append(log.records[older.snapshot_id.end_offset : newer.snapshot_id.end_offset])
        assert multiset(image_records(loader.image)) == multiset(newer.metadata())
        assert loader.image == image_at(log, newer)


def test_a_snapshot_by_raftlog_has_the_same_state(log: MetadataLog) -> None:
    for checkpoint in log.checkpoints:
        image = image_at(log, checkpoint)
        data = snapshot_bytes(image, written_ms=1_700_000_000_000)
        records = snapshot_log_records(data)
        assert image_from_records(image.snapshot_id, records) == image
        assert len(data) == len(checkpoint.data), "as many bytes as Kafka's own"


def test_a_running_nodes_log_is_replayed_to_its_end(tmp_path: Path, data: Path) -> None:
    with tarfile.open(data / "kraft-logs" / "running-4.3.1" / "running.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    log = metadata_log(next(tmp_path.rglob("__cluster_metadata-0")))
    loader = MetadataLoader()
    loader.append(log.records)
    assert loader.next_offset == len(log.records)
    assert loader.image.metadata_version == 30
    assert loader.skipped == ()
