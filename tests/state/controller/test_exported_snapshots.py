"""A snapshot of an offset has the whole state there, or is not written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster_changes import after, cluster
from tests.support.metadata_logs import CLUSTERS, restored
from tests.support.snapshot_files import image_from_records, snapshot_log_records

import raftlog
from raftlog.client import open_path
from raftlog.errors import (
    FileExistsLogError,
    LogNotFoundError,
    LogReadOnlyError,
    OffsetOutOfRangeError,
    OptionError,
)
from raftlog_state import apply_changes, export_snapshot, snapshot_log, write_snapshot
from raftlog_state.controller import ChangeRequest, SetConfig, SetScram
from raftlog_state.errors import InvalidRecordError, UnsupportedVersionError
from raftlog_state.image import BrokerRow, MetadataImage, PartitionRow
from raftlog_state.loader.image_reader import ImageReader, NullListener
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.scans import load_snapshot
from raftlog_state.records import Redactor, decode

FIRST: list[dict[str, Any]] = [
    {"change": "set_feature", "feature": "metadata.version", "level": 30},
    {"change": "register_broker", "broker_id": 1, "endpoints": {"CLIENT": "localhost:9092"}},
    {"change": "unfence_broker", "broker_id": 1},
    {"change": "create_topic", "topic": "a", "configs": {"retention.ms": "1"}},
]


def image_in(path: str) -> MetadataImage:
    log = open_path(path)
    (snapshot_id,) = log.snapshots
    loader = MetadataLoader()
    load_snapshot(loader, log.read_snapshot(snapshot_id))
    return loader.image


def test_a_snapshot_has_the_state_of_its_offset(tmp_path: Path) -> None:
    with raftlog.open(tmp_path / "cluster-0", values="kraft") as log:
        apply_changes(log, FIRST)
        middle = log.end_offset
        apply_changes(log, [{"change": "delete_topic", "topic": "a"}])
        newest = export_snapshot(log.path, tmp_path)
        older = export_snapshot(log.path, tmp_path, end_offset=middle)
    assert newest.path == str(tmp_path / f"{newest.snapshot_id}.checkpoint")
    assert (older.snapshot_id.end_offset, older.snapshot_id.epoch) == (middle, 1)
    images = ImageReader(log.path, Redactor(reveal=True))
    for exported in (older, newest):
        image = images.image_at(exported.snapshot_id.end_offset)
        assert image_in(exported.path) == image
        assert image_in(exported.path).timestamp_ms == image.timestamp_ms
        mode = Path(exported.path).stat()
        assert stat.S_IMODE(mode.st_mode) == 0o400
        assert mode.st_size == exported.byte_count
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("cluster_name", [CLUSTERS[1], CLUSTERS[-1]])
def test_a_log_of_kafka_is_exported_with_its_voters_and_secrets(
    cluster_name: str, tmp_path: Path
) -> None:
    source = tmp_path / "__cluster_metadata-0"
    source.mkdir()
    restored(cluster_name, source)
    path = tmp_path / "state.checkpoint"
    exported = export_snapshot(source, path)
    assert exported.path == str(path)
    images = ImageReader(str(source), Redactor(reveal=True))
    image = images.image_at(images.end_offset())
    records = snapshot_log_records(path.read_bytes())
    assert image_from_records(exported.snapshot_id, records) == image


@pytest.mark.parametrize("delete_before", [False, True])
def test_a_log_with_a_snapshot_is_changed_from_it(delete_before: bool, tmp_path: Path) -> None:
    with raftlog.open(tmp_path / "cluster-0", values="kraft") as log:
        apply_changes(log, FIRST)
        before = ImageReader(log.path, Redactor(reveal=True)).image_at(log.end_offset)
        snapshot_id = snapshot_log(log, delete_before=delete_before)
        assert snapshot_id == before.snapshot_id
        assert snapshot_log(log) is None
        apply_changes(log, [{"change": "add_partitions", "topic": "a", "partitions": 3}])
        said = Said()
        image = ImageReader(log.path, Redactor(reveal=True), said).image_at(log.end_offset)
        assert said.sentences[-1].endswith(f"is built from snapshot {snapshot_id}")
        assert len(image.rows_of(PartitionRow)) == 3
        assert image.rows_of(BrokerRow) == before.rows_of(BrokerRow)


class Said(NullListener):
    """Listener that records its messages."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def log(self, sentence: str, /) -> None:
        self.sentences.append(sentence)


def test_no_snapshot_is_added_to_the_directory_of_a_log_of_raftlog(tmp_path: Path) -> None:
    with raftlog.open(tmp_path / "cluster-0", values="kraft") as log:
        names = sorted(os.listdir(log.path))
        for path in (log.path, f"{log.path}/mine.checkpoint"):
            with pytest.raises(LogReadOnlyError, match="directory of a log of raftlog"):
                write_snapshot(cluster(), path)
        assert sorted(os.listdir(log.path)) == names


def test_an_existing_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mine.checkpoint"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsLogError):
        write_snapshot(cluster(), path)
    assert path.read_bytes() == b"mine"
    with pytest.raises(LogNotFoundError):
        write_snapshot(cluster(), tmp_path / "nowhere" / "a.checkpoint")


def test_an_offset_outside_the_log_is_refused(tmp_path: Path) -> None:
    with raftlog.open(tmp_path / "cluster-0", values="kraft") as log:
        apply_changes(log, FIRST)
        with pytest.raises(OffsetOutOfRangeError):
            export_snapshot(log.path, tmp_path, end_offset=log.end_offset + 1)
        log.append([b"\x01\x7f\x00\x00"])  # an unknown record type
        with pytest.raises(UnsupportedVersionError, match="a snapshot would lose it"):
            export_snapshot(log.path, tmp_path)
    assert not list(tmp_path.glob("*.checkpoint"))


@pytest.mark.parametrize("key", [None, b"0123456789abcdef"])
def test_redacted_secrets_are_refused(key: bytes | None, tmp_path: Path) -> None:
    changes: tuple[ChangeRequest, ...] = (
        SetConfig(resource_type=4, resource_name="", name="ssl.key.password", value="secret"),
        SetScram(user="a", mechanism=1, password="secret"),
    )
    redactor = Redactor(key=key)
    for place, change in enumerate(changes):
        written = write_snapshot(after(cluster(), change), tmp_path / f"{place}.checkpoint")
        records = snapshot_log_records(Path(written.path).read_bytes())
        hidden = image_from_records(
            written.snapshot_id, records, decode=lambda value: redactor.redact(decode(value))
        )
        with pytest.raises(InvalidRecordError, match="is redacted") as caught:
            write_snapshot(hidden, tmp_path / "no.checkpoint")
        assert "secret" not in str(caught.value)
    assert not (tmp_path / "no.checkpoint").exists()


def test_a_path_is_no_log_to_write_a_snapshot_into(tmp_path: Path) -> None:
    log: Any = str(tmp_path)
    with pytest.raises(OptionError, match=r"must be a log from raftlog\.open, not str$"):
        snapshot_log(log)
