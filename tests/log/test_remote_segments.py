"""Segments by the names that they have in remote storage are read as a log."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.support.appending import SMALL, fill
from tests.support.cli import run

import raftlog
from raftlog.errors import LogNotFoundError, NotALogError
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import LogKind
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.local import LocalStorage, WritableLocalStorage

NODES = Path(__file__).parents[1] / "data" / "kraft-logs" / "three-nodes-4.3.1"
METADATA = NODES / "node-100" / "__cluster_metadata-0"
TOPIC_ID = "LWgrMmVrT0a__7a4SasuPA"
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def segment_id(chance: Random) -> str:
    letters = "abcdefgh-_XYZ019"
    return "".join(chance.choice(letters) for _ in range(22))


def copied(log: Path, target: Path, *, sealed_only: bool = True) -> list[int]:
    """Copy the segments of a log by their remote names; return their base offsets."""
    chance = Random(3)
    target.mkdir()
    bases = sorted(path.stem for path in log.glob("*.log"))
    for base in bases[: -1 if sealed_only else None]:
        unique = segment_id(chance)
        for suffix in SUFFIXES:
            source = log / f"{base}{suffix}"
            if source.exists():
                (target / f"{base}-{unique}{suffix}").write_bytes(source.read_bytes())
        (target / f"{base}-{unique}.snapshot").write_bytes(b"producers at its end")
        (target / f"{base}-{unique}.leader_epoch_checkpoint").write_bytes(b"0\n0\n")
    return [int(base) for base in bases]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "orders-0"
    written = SingleVoterLog.create(
        WritableLocalStorage(), str(path), config=SMALL, topic_id=TOPIC_ID, now_ms=1_000
    )
    fill(written, 60)
    written.flush()
    written.close()
    return path


def test_remote_segments_are_the_log_up_to_the_active_segment(log: Path, tmp_path: Path) -> None:
    target = tmp_path / f"orders-0-{TOPIC_ID}"
    bases = copied(log, target)
    assert len(bases) > 3
    remote, local = open_log(LocalStorage(), str(target)), open_log(LocalStorage(), str(log))
    assert (remote.topic, remote.partition, remote.kind) == ("orders", 0, LogKind.PARTITION)
    assert (remote.log_start_offset, remote.log_end_offset) == (0, bases[-1])
    expected = [batch.crc for batch in local.batches(0, bases[-1])]
    assert [batch.crc for batch in remote.batches(0, bases[-1])] == expected
    middle = bases[2] + 1
    assert next(remote.batches(middle, bases[-1])).base_offset == middle
    assert run("check", target)[0] == 0


def test_a_segment_that_is_copied_later_is_read_after_a_refresh(log: Path, tmp_path: Path) -> None:
    whole, target = tmp_path / "whole", tmp_path / f"orders-0-{TOPIC_ID}"
    bases = copied(log, whole, sealed_only=False)
    target.mkdir()
    names = sorted(path.name for path in whole.iterdir())
    for name in names:
        if int(name[:20]) < bases[2]:
            (whole / name).rename(target / name)
    remote = open_log(LocalStorage(), str(target))
    assert remote.log_end_offset == bases[2]
    for path in list(whole.iterdir()):
        path.rename(target / path.name)
    remote.refresh()
    assert remote.log_end_offset == 61
    assert sum(1 for _ in remote.batches(0, 61)) == 61


def test_a_segment_that_is_being_copied_ends_the_log(log: Path, tmp_path: Path) -> None:
    target = tmp_path / f"orders-0-{TOPIC_ID}"
    bases = copied(log, target)
    (last,) = target.glob(f"{bases[-2]:020d}-*.log")
    last.write_bytes(last.read_bytes()[:1_000])
    remote = open_log(LocalStorage(), str(target))
    assert bases[-2] < remote.log_end_offset < bases[-1]
    assert sum(1 for _ in remote.batches(0, remote.log_end_offset)) == remote.log_end_offset


def test_two_copies_of_one_segment_are_refused_by_name(log: Path, tmp_path: Path) -> None:
    target = tmp_path / f"orders-0-{TOPIC_ID}"
    bases = copied(log, target)
    (last,) = target.glob(f"{bases[1]:020d}-*.log")
    (target / f"{bases[1]:020d}-{'z' * 22}.log").write_bytes(last.read_bytes())
    with pytest.raises(NotALogError, match=f"{last.name} and .*are copies of one segment"):
        open_log(LocalStorage(), str(target))


def test_metadata_in_remote_segments_is_redacted(tmp_path: Path) -> None:
    target = tmp_path / "renamed"
    copied(METADATA, target, sealed_only=False)
    remote = open_log(LocalStorage(), str(target))
    assert remote.kind is LogKind.METADATA
    status, out, _ = run("cat", target)
    assert (status, out) == (0, run("cat", METADATA)[1])


def test_the_segments_of_backups_are_read_where_they_are(log: Path, tmp_path: Path) -> None:
    location = tmp_path / "backups"
    assert run("backup", log, location)[0] == 0
    with raftlog.open(log) as handle:
        handle.append([b"more"])
        handle.append([b"and more"])
    assert run("backup", log, location)[0] == 0
    (directory,) = location.glob("orders-0-*")
    assert run("cat", directory)[1] == run("cat", log)[1]
    assert run("check", directory)[0] == 0


def test_other_directories_are_refused_as_before(tmp_path: Path) -> None:
    (tmp_path / f"orders-0-{TOPIC_ID}").mkdir()
    (tmp_path / f"orders-0-{TOPIC_ID}" / "x.log").touch()
    with pytest.raises(NotALogError):
        open_log(LocalStorage(), str(tmp_path / f"orders-0-{TOPIC_ID}"))
    with pytest.raises(LogNotFoundError):
        open_log(LocalStorage(), str(tmp_path / f"absent-0-{TOPIC_ID}"))


def test_directories_whose_names_end_with_a_uuid_are_no_partitions(tmp_path: Path) -> None:
    (tmp_path / "spark-f7942b2c-8272-4be3-b7d0-f055523f2589").mkdir()
    with pytest.raises(NotALogError, match="it contains neither a segment nor a checkpoint"):
        open_log(LocalStorage(), str(tmp_path))
