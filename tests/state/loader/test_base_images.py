"""Base of the state of a log at an offset."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.small_logs import copy_log

from raftlog.errors import DataLossError
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor

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
