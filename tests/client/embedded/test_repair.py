"""``raftlog.repair``: a damaged end is backed up and truncated when the operator requests it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import raftlog
from raftlog.errors import LogClosedError, LogReadOnlyError, OptionError


def records_of(directory: Path) -> list[bytes | None]:
    with raftlog.open(directory, create=False) as log:
        return [record.value for record in log.read(0)]


def test_a_log_damaged_below_its_end_is_truncated_before_the_damage_and_writable_again(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "decisions-0"
    with raftlog.open(directory) as log:
        for number in range(20):
            log.append([b"value %d" % number])
    segment = directory / "00000000000000000000.log"
    damaged = bytearray(segment.read_bytes())
    at = damaged.index(b"value 12")
    damaged[at] ^= 1
    segment.write_bytes(damaged)

    repaired = raftlog.repair(directory, cut_at=13)
    assert repaired.first_lost_offset == 13
    assert repaired.end_offset_before == 21, "the leader change, and twenty records"
    backups = [Path(cut.saved_as) for cut in repaired.truncated if cut.saved_as is not None]
    assert any(b"value 19" in path.read_bytes() for path in backups)
    with raftlog.open(directory) as log:
        assert log.append([b"after"]).base_offset == 13
    assert records_of(directory) == [*(b"value %d" % number for number in range(12)), b"after"]


def test_an_offset_outside_the_log_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "decisions-0"
    with raftlog.open(directory) as log:
        log.append([b"one"])
    with pytest.raises(OptionError, match="cut-at"):
        raftlog.repair(directory, cut_at=100)
    assert records_of(directory) == [b"one"]


def test_kafkas_directory_is_never_truncated(data: Path) -> None:
    with pytest.raises(LogReadOnlyError, match=r"Kafka's"):
        raftlog.repair(data / "kraft-logs/three-nodes-4.3.1/node-1/__cluster_metadata-0", cut_at=5)


def test_a_process_with_the_log_open_continues_at_the_truncated_end(tmp_path: Path) -> None:
    directory = tmp_path / "decisions-0"
    with raftlog.open(directory, config=raftlog.LogConfig(segment_bytes=500)) as log:
        for number in range(20):
            log.append([b"%02d" % number * 15])
        boundary = sorted(int(path.stem) for path in directory.glob("*.log"))[2]
        raftlog.repair(directory, cut_at=boundary)
        assert log.append([b"after"]).base_offset == boundary
        with raftlog.open(directory) as other:
            assert other.append([b"and"]).base_offset == boundary + 1
        assert log.append([b"on"]).base_offset == boundary + 2
    assert records_of(directory)[-3:] == [b"after", b"and", b"on"]


def test_a_process_does_not_write_to_a_log_that_replaced_its_own(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "decisions-0"
    old = raftlog.open(directory)
    for number in range(20):
        old.append([b"%d" % number])
    shutil.rmtree(directory)
    with raftlog.open(directory) as new:
        new.append([b"new"])
        with pytest.raises(LogClosedError, match="replaced by another log"):
            old.append([b"old"])
        old.close()
        assert new.append([b"on"]).base_offset == 2
    assert records_of(directory) == [b"new", b"on"]
