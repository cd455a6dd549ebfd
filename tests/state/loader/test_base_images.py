"""Base of the state of a log at an offset."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.small_logs import NO_OP, LogWriter, copy_log

from raftlog.client import open_path
from raftlog.errors import CorruptSnapshotError, DataLossError, OffsetOutOfRangeError
from raftlog.log.format.directory import checkpoint_name
from raftlog.types import SnapshotId
from raftlog_state.image import STATE_ENTITIES, Entity, Key, MetadataImage, Row, TopicRow
from raftlog_state.loader.image_reader import ImageReader, newest_state_end
from raftlog_state.records import Redactor, TopicRecord, encode
from raftlog_state.snapshots import snapshot_bytes

METADATA = "kraft-logs/three-nodes-4.3.1/node-100/__cluster_metadata-0"
LOG_START = 1288
"""Start of the log once the segments before a snapshot are deleted."""


@pytest.fixture
def trimmed(data: Path, tmp_path: Path) -> Path:
    """Real metadata log with deleted first segments and an older snapshot."""
    log = copy_log(data / METADATA, tmp_path / "__cluster_metadata-0", end_offset=3131)
    older = next(log.glob("*0636-*.checkpoint")).rename(tmp_path / "older")
    shutil.rmtree(log)
    copy_log(data / METADATA, log, end_offset=3131, start_offset=1762)
    shutil.copy(older, log / "00000000000000000636-0000000001.checkpoint")
    return log


def test_a_snapshot_below_the_log_start_is_no_base(trimmed: Path) -> None:
    images = ImageReader(str(trimmed), Redactor())
    with pytest.raises(DataLossError) as caught:
        images.image_at(1500)
    assert caught.value.condition == "OFFSETS_DELETED"
    assert f"starts at offset {LOG_START}" in str(caught.value)


def test_a_single_snapshot_is_the_state_at_its_end(trimmed: Path) -> None:
    assert ImageReader(str(trimmed), Redactor()).image_at(636).offset == 635


def test_the_newest_snapshot_below_an_offset_is_the_base(trimmed: Path) -> None:
    class Said:
        def __init__(self) -> None:
            self.sentences: list[str] = []

        def log(self, sentence: str, /) -> None:
            self.sentences.append(sentence)

        def progress(self, done: int, whole: int, /) -> None:
            pass

    said = Said()
    assert ImageReader(str(trimmed), Redactor(), said).image_at(3000).offset == 2999
    assert any("built from snapshot 00000000000000001762" in one for one in said.sentences)


def test_the_newest_state_is_that_of_the_offset_that_was_found(data: Path, tmp_path: Path) -> None:
    """A running controller appends between the reads of the log end and of the committed end."""
    log = copy_log(data / METADATA, tmp_path / "__cluster_metadata-0", end_offset=3131)
    (segment,) = sorted(log.glob("*.log"))[-1:]
    whole = segment.read_bytes()
    shorter = copy_log(data / METADATA, tmp_path / "shorter", end_offset=3100) / segment.name
    segment.write_bytes(shorter.read_bytes())
    images = ImageReader(str(log), Redactor())
    before = images.log_end_offset
    segment.write_bytes(whole)
    end_offset = images.end_offset()
    assert end_offset == 3131 > before
    assert images.image_at(end_offset).offset == 3130


# --- A snapshot that ends after the log -----------------------------------------------------------
# Kafka discards the records of such a log when it starts, and continues after the snapshot.

SNAPSHOT_END = 3128


@pytest.fixture
def lagging(data: Path, tmp_path: Path) -> Path:
    """Real metadata log that has lost its last segment, with a snapshot that ends after it."""
    log = copy_log(data / METADATA, tmp_path / "__cluster_metadata-0", end_offset=2232)
    (newest,) = (data / METADATA).glob(f"*{SNAPSHOT_END}-*.checkpoint")
    shutil.copy(newest, log / newest.name)
    return log


def rows_of(image: MetadataImage) -> dict[tuple[Entity, Key], Row]:
    return {
        (entity, key): row for entity in STATE_ENTITIES for key, row in image.map(entity).items()
    }


def rows_of_newest_snapshot(log: Path) -> dict[tuple[Entity, Key], Row]:
    (path,) = log.glob(f"*{SNAPSHOT_END}-*.checkpoint")
    return rows_of(ImageReader(str(path), Redactor()).image_at(SNAPSHOT_END))


def test_a_snapshot_that_ends_after_the_log_is_the_newest_state(lagging: Path) -> None:
    images = ImageReader(str(lagging), Redactor())
    assert images.end_offset() == SNAPSHOT_END > images.log_end_offset
    image = images.image_at(SNAPSHOT_END)
    assert image.offset == SNAPSHOT_END - 1
    assert rows_of(image) == rows_of_newest_snapshot(lagging)


def test_states_within_the_log_are_read_as_before(lagging: Path, data: Path) -> None:
    expected = ImageReader(str(data / METADATA), Redactor()).image_at(2000)
    assert rows_of(ImageReader(str(lagging), Redactor()).image_at(2000)) == rows_of(expected)
    with pytest.raises(OffsetOutOfRangeError):
        ImageReader(str(lagging), Redactor()).image_at(2500)


@pytest.mark.parametrize("start_offset", [0, 2232])
@pytest.mark.parametrize("from_oldest", [False, True])
def test_changes_up_to_a_snapshot_after_the_log_are_the_differences(
    lagging: Path, start_offset: int, from_oldest: bool
) -> None:
    images = ImageReader(str(lagging), Redactor(), from_oldest=from_oldest)
    rows = rows_of(images.image_at(start_offset))
    in_snapshot = []
    for record in images.changes(SNAPSHOT_END):
        for change in record.changes:
            if change.entity in STATE_ENTITIES:
                rows.pop((change.entity, change.key), None)
                if change.after is not None:
                    rows[change.entity, change.key] = change.after
            if record.offset >= 2232:
                in_snapshot.append(change)
    assert rows == rows_of(images.image_at(SNAPSHOT_END)) == rows_of_newest_snapshot(lagging)
    assert in_snapshot
    assert all(change.before != change.after for change in in_snapshot)


def test_a_damaged_snapshot_after_the_log_is_an_error(lagging: Path) -> None:
    (newest,) = lagging.glob(f"*{SNAPSHOT_END}-*.checkpoint")
    newest.chmod(0o600)
    newest.write_bytes(newest.read_bytes()[:-50])
    with pytest.raises(CorruptSnapshotError):
        ImageReader(str(lagging), Redactor()).image_at(SNAPSHOT_END)
    assert ImageReader(str(lagging), Redactor()).image_at(2232).offset == 2231


def test_after_a_snapshot_after_the_log_an_earlier_one_changes_nothing(lagging: Path) -> None:
    images = ImageReader(str(lagging), Redactor())
    images.image_at(SNAPSHOT_END)
    assert list(images.changes(1762)) == []


# --- A snapshot of a later leader epoch than the last records of the log --------------------------
# A follower has records of a leader that lost an election, and fetched a later snapshot.

STALE = TopicRecord(name="stale", topic_id="muSNo3lITFSJf4sY_teOaw")
COMMITTED = TopicRow(topic_id="IIzV3j_LQFClOqhX3gQ9wA", name="committed")


@pytest.fixture(params=[3, 5])
def diverged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, SnapshotId]:
    """Log with 5 records of epoch 1, and a snapshot of epoch 3 in it or at its end."""
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(encode(STALE), epoch=1)
    for _ in range(4):
        writer.append(NO_OP, epoch=1)
    snapshot_id = SnapshotId(epoch=3, end_offset=request.param)
    image = MetadataImage.from_rows([COMMITTED], offset=request.param - 1, leader_epoch=3)
    path = writer.directory / checkpoint_name(snapshot_id)
    path.write_bytes(snapshot_bytes(image, written_ms=0))
    return writer.directory, snapshot_id


def test_records_of_an_epoch_below_that_of_a_snapshot_are_not_committed(
    diverged: tuple[Path, SnapshotId],
) -> None:
    log, snapshot_id = diverged
    end_offset, reason = newest_state_end(open_path(str(log)))
    assert end_offset == snapshot_id.end_offset
    assert "the log's last records are of leader epoch 1, and were not" in reason


@pytest.mark.parametrize("start_offset", [None, 0, 2])
@pytest.mark.parametrize("from_oldest", [False, True])
def test_they_are_in_no_change_up_to_the_end_of_the_snapshot(
    diverged: tuple[Path, SnapshotId], start_offset: int | None, from_oldest: bool
) -> None:
    log, snapshot_id = diverged
    images = ImageReader(str(log), Redactor(), from_oldest=from_oldest)
    if start_offset is not None:
        images.image_at(start_offset)
    created = [
        change.after.name
        for record in images.changes(snapshot_id.end_offset)
        for change in record.changes
        if isinstance(change.after, TopicRow)
    ]
    assert created == (["committed"] if from_oldest or start_offset is not None else [])
    image = images.image_at(snapshot_id.end_offset)
    names = [row.name for row in image.rows(Entity.TOPIC) if isinstance(row, TopicRow)]
    assert names == ["committed"]
    assert list(images.changes(snapshot_id.end_offset)) == []


@pytest.mark.parametrize("from_oldest", [False, True])
def test_such_a_snapshot_that_is_damaged_is_an_error(
    diverged: tuple[Path, SnapshotId], from_oldest: bool
) -> None:
    log, snapshot_id = diverged
    path = log / checkpoint_name(snapshot_id)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CorruptSnapshotError):
        ImageReader(str(log), Redactor(), from_oldest=from_oldest).image_at(snapshot_id.end_offset)
    with pytest.raises(CorruptSnapshotError):
        list(
            ImageReader(str(log), Redactor(), from_oldest=from_oldest).changes(
                snapshot_id.end_offset
            )
        )


def test_such_a_snapshot_is_a_note_of_a_check(diverged: tuple[Path, SnapshotId]) -> None:
    log, snapshot_id = diverged
    status, out, _ = run("check", log, "--json")
    *findings, last = map(json.loads, out.splitlines())
    assert status == 0
    assert [(one["kind"], one["offset"]) for one in findings] == [
        ("checkpoint", snapshot_id.end_offset)
    ]
    assert "later leader epoch than the log's last records, whose epoch is 1" in out
    assert last["summary"]["checkpoints_compared"] == 0
