"""The output of a rescue is complete or absent, whatever is lost when the power fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.errors import DiskFullError
from raftlog.node.addresses import parse_voters
from raftlog.node.rescue import open_survivor, with_directory_ids, write_controllers
from raftlog.node.survivor import contact_voters
from raftlog.quorum.voters import VoterSet
from tests.simulated_disk.simulated_disk import SimulatedDisk, Survival
from tests.support.crash_injection import crashes_after
from tests.support.small_logs import copy_log

SOURCE = Path(__file__).parents[1] / "data/kraft-logs/three-nodes-4.3.1/node-101"
LOG = "__cluster_metadata-0"
TIME_MS = 1_795_301_564_853


def disk_of_a_survivor(home: Path) -> SimulatedDisk:
    """Return a disk with the beginning of a controller's log, which ends inside a segment."""
    copy_log(SOURCE / LOG, home / "node" / LOG, end_offset=700)
    disk = SimulatedDisk(3)
    for path in (home / "node").rglob("*"):
        if path.is_file():
            disk.put(f"/{path.relative_to(home)}", path.read_bytes())
    return disk


def rescue(disk: SimulatedDisk) -> VoterSet:
    with open_survivor(["/node"], disk) as survivor:
        voters = with_directory_ids(parse_voters("1@a:1:CrUad84nR8KvMEpDpKrwbw"), survivor)
        write_controllers(
            survivor, voters, cluster_id="x", out="/out", storage=disk, time_ms=TIME_MS
        )
    return voters


def written(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if path.startswith("/out/")}


def test_a_power_loss_at_any_step_leaves_all_of_the_output_or_none(tmp_path: Path) -> None:
    disk = disk_of_a_survivor(tmp_path)
    done = disk.copy()
    rescue(done)
    complete = written(done.files())
    assert len(complete) == 7  # two segments, the snapshot, and the small files
    assert written(done.durable_files()) == complete
    survivor = {path: data for path, data in disk.files().items() if path.startswith("/node/")}
    for operations in range(1, 200):
        for survival in Survival:
            crashed = disk.copy(operations)
            is_crash = crashes_after(crashed, operations, rescue, crashed)
            crashed.crash(survival)
            files = crashed.files()
            assert written(files) in ({}, complete), (operations, survival)
            assert {path: files[path] for path in survivor} == survivor
        if not is_crash:
            assert written(files) == complete
            return
    raise AssertionError("the rescue never ended")


def test_a_full_disk_leaves_no_output(tmp_path: Path) -> None:
    disk = disk_of_a_survivor(tmp_path)
    disk.leave_room(40_000)
    with pytest.raises(DiskFullError):
        rescue(disk)
    assert not written(disk.files())


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "", "\x00"])
def test_a_voter_whose_host_is_no_name_cannot_be_reached(host: str) -> None:
    (contact,) = contact_voters({1: (host, 9093)})
    assert contact.problem
