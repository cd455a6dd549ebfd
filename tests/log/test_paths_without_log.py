"""Paths that are no log: an error that differs from that of a damaged log."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.log_builder import data_batch
from tests.support.small_logs import copy_log

import raftlog
from raftlog.client import Isolation, open_path
from raftlog.errors import (
    CorruptBatchError,
    CorruptSnapshotError,
    LogNotFoundError,
    NotALogError,
)

SEGMENT = (
    Path(__file__).parents[1]
    / "data/kraft-logs/three-nodes-4.3.1/node-102/__cluster_metadata-0"
    / "00000000000000002232.log"
)
COMMITTED = Isolation.READ_COMMITTED
NAMES = ["00000000000000000000.log", "00000000000000002232.log", "server.log"]
TEXT = "2026-11-21 08:00:00 INFO this is another kind of log\n"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "content",
    [
        (TEXT * 50).encode(),
        TEXT.encode(),
        b"offset 7",
        "\ufeffBOM".encode() + b"\r\n" * 9,
        json.dumps({"offset": 1, "value": None}).encode(),
        TEXT.encode("utf-16"),
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\2\0\0\0\2\0",
        b"\x7fELF\2\1\1" + bytes(9) + b"\3\0\x3e\0" * 30,
    ],
    ids=["text", "line", "word", "bom", "json", "utf-16", "png", "elf"],
)
def test_another_kind_of_file_is_no_log(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(NotALogError, match="no record batch follows") as caught:
        open_path(str(path))
    assert caught.value.path == str(path)
    assert "it begins with '" in str(caught.value)


def test_an_archive_of_a_segment_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / SEGMENT.name
    path.write_bytes(gzip.compress(SEGMENT.read_bytes(), mtime=0))
    with pytest.raises(NotALogError):
        open_path(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_bit_flipped_in_a_segment_of_one_batch_is_damage(tmp_path: Path, name: str) -> None:
    batch = data_batch([b"a", b"b"], base_offset=2232 if "2232" in name else 0)
    path = tmp_path / name
    for bit in range(len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        log = open_path(str(path))
        if bit // 8 >= 16:  # no CRC covers the bytes before it, and a longer batch is torn
            with pytest.raises(CorruptBatchError):
                _ = log.log_end_offset


def test_a_segment_with_a_corrupt_first_sector_is_damage(tmp_path: Path) -> None:
    content = SEGMENT.read_bytes()
    for seed in range(20):
        for name in NAMES[1:]:
            path = tmp_path / name
            path.write_bytes(random.Random(seed).randbytes(512) + content[512:])
            assert open_path(str(path)).log_end_offset == 3133


def test_zeros_of_a_preallocated_segment_are_an_empty_log(tmp_path: Path) -> None:
    path = tmp_path / SEGMENT.name
    path.write_bytes(bytes(10_000))
    assert open_path(str(path)).log_end_offset == 2232


def test_text_instead_of_a_segment_in_a_log_directory_is_damage(tmp_path: Path) -> None:
    """Other files of the directory show that it is a log."""
    path = tmp_path / "00000000000000000000.log"
    path.write_text(TEXT * 50)
    with pytest.raises(CorruptBatchError) as caught:
        open_path(str(tmp_path)).read_end(isolation=COMMITTED)
    assert (caught.value.path, caught.value.position) == (str(path), 0)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "bootstrap.checkpoint"])
def test_an_empty_file_is_no_log(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(NotALogError, match="the file is empty"):
        open_path(str(tmp_path / name))


def test_text_instead_of_a_snapshot_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_text("hello" * 50)
    log = open_path(str(path))
    with pytest.raises(CorruptSnapshotError):
        next(log.read_snapshot(log.snapshots[0]).scan())


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match="neither a segment nor a checkpoint"):
        open_path(str(tmp_path))
    (tmp_path / "__cluster_metadata-0").mkdir()
    with pytest.raises(NotALogError):
        open_path(str(tmp_path))


def test_a_brokers_directory_lists_its_partitions(tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    with pytest.raises(NotALogError, match="only other partitions: orders-0"):
        open_path(str(tmp_path))


def test_a_directory_of_backups_names_the_command_that_restores_them(tmp_path: Path) -> None:
    log, backup = SEGMENT.parent, tmp_path / "backup"
    assert run("backup", log, backup)[0] == 0
    (partition,) = (one for one in backup.iterdir() if one.name != "manifest")
    code, _, errors = run("cat", backup)
    assert code == 2
    assert f"such as {partition}, or write the log of a backup with `raftlog restore`" in errors
    assert run("cat", partition)[0] == 0


def test_a_folder_of_several_nodes_names_them(tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text("{}")
    (tmp_path / "orders-0").mkdir()
    for name in ("node-1", "node-2"):
        (tmp_path / name / "__cluster_metadata-0").mkdir(parents=True)
    with pytest.raises(NotALogError, match="directories of several nodes: node-1, node-2; give"):
        open_path(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name in ("meta.properties", "00000000000000000000.index", "x.checkpoint.part"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(NotALogError, match="neither a segment nor a checkpoint"):
            open_path(str(tmp_path / name))


@pytest.mark.parametrize("path", ["missing", "missing*", "missing,also", "", ","])
def test_a_missing_path_is_reported(tmp_path: Path, path: str) -> None:
    with pytest.raises(LogNotFoundError):
        open_path(str(tmp_path / path) if path.startswith("m") else path)


def test_one_missing_path_of_several_is_reported(tmp_path: Path) -> None:
    there = SEGMENT.parent
    with pytest.raises(LogNotFoundError) as caught:
        open_path(f"{there},{tmp_path}/missing")
    assert caught.value.path == f"{tmp_path}/missing"


def test_an_existing_path_with_a_comma_or_brackets_is_a_single_path(tmp_path: Path) -> None:
    directory = tmp_path / "a,b [1]"
    directory.mkdir()
    (directory / SEGMENT.name).write_bytes(SEGMENT.read_bytes())
    assert open_path(str(directory)).log_end_offset == 3133


def test_a_directory_with_one_log_of_raftlog_is_that_log(tmp_path: Path) -> None:
    with raftlog.open(tmp_path / "decisions-0") as log:
        log.append([b"a"])
        log_end_offset = log.end_offset
    found = open_path(str(tmp_path))
    assert (found.topic, found.log_end_offset) == ("decisions", log_end_offset)

    with pytest.raises(
        NotALogError, match="it contains the log decisions-0, and a new log is only"
    ):
        raftlog.open(tmp_path)

    raftlog.open(tmp_path / "orders-0").close()
    with pytest.raises(NotALogError, match="give the directory of one, such as") as caught:
        open_path(str(tmp_path))
    assert str(tmp_path / "decisions-0") in str(caught.value)


def test_a_snapshot_next_to_the_metadata_directory_does_not_replace_the_log(
    tmp_path: Path, data: Path
) -> None:
    """As `raftlog snapshot /var/lib/kafka /var/lib/kafka` writes it."""
    node = data / "kraft-logs/three-nodes-4.3.1/node-100"
    log = copy_log(
        node / "__cluster_metadata-0", tmp_path / "__cluster_metadata-0", end_offset=3131
    )
    (older,) = log.glob("*636-*.checkpoint")
    shutil.copy(older, tmp_path / older.name)
    assert open_path(str(tmp_path)).log_end_offset == 3131
    shutil.rmtree(log)
    assert open_path(str(tmp_path)).log_end_offset == 636
