"""`raftlog rescue`: what it prints, what it writes, and when it refuses to."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.cli import rows, run
from tests.support.small_logs import NO_OP, LogWriter, batches_of, copy_log, write_epochs

import raftlog
from raftlog.client import open_path
from raftlog.log.format.directory import parse_meta_properties, parse_quorum_state
from raftlog.log.segment import control_records
from raftlog.records.control import (
    ControlRecord,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    VoterEndpoint,
    encode_control,
)
from raftlog.records.record import NewRecord
from raftlog_state.cli.main import main

DATA = Path(__file__).parents[2] / "data" / "kraft-logs"
DYNAMIC = DATA / "three-nodes-4.3.1"
STATIC = DATA / "trimmed-3.9.2" / "node-1"
LOG = "__cluster_metadata-0"
DIRECTORY_ID = "CrUad84nR8KvMEpDpKrwbw"
VOTERS = f"101@c1:9093,4@c4:9094:{DIRECTORY_ID},5@[::1]:9095"
KINDS = ("topics", "partitions", "configs", "brokers", "acls", "scram", "features", "quotas")


def files_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of every file below a directory."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Directories of the three controllers of a dynamic quorum, which may be changed."""
    for name in ("node-100", "node-101", "node-102"):
        shutil.copytree(DYNAMIC / name, tmp_path / name)
    return tmp_path


def rescue(*words: str | Path) -> tuple[int, str, str]:
    return run("rescue", "--voters", VOTERS, *words)


def test_without_write_only_the_loss_is_printed(home: Path) -> None:
    before = files_of(home)
    status, out, err = rescue(home / "node-101", "--out", home / "out")
    assert (status, err) == (0, "")
    lines = [line.replace(str(home), "") for line in out.splitlines()]
    assert lines[:5] == [
        "survivor: /node-101 (node 101), offsets from 0 to 3132 (exclusive), "
        "last epoch 3, last record at 2026-11-21T08:04:58.997Z",
        "cluster I9iQnKeLSA2lyZwVZic7Xg, kraft.version 1, old voters 100, 101, 102",
        "committed: records below offset 2207: the newest snapshot has them, and has committed "
        "records only",
        "uncertain: 925 records from offset 2207 on may not have been committed; they are from now "
        "on",
        "lost: records from offset 3132 on, if other voters had committed any",
    ]
    assert [line.partition(":")[0] for line in lines[5:]] == [
        "old voter 100 at 127.0.0.1",
        "old voter 101 at 127.0.0.1",
        "old voter 102 at 127.0.0.1",
        "nothing was written; --write writes the directories of the new voters",
    ]
    assert files_of(home) == before


def test_each_new_voter_gets_the_log_and_an_identity(home: Path) -> None:
    survivor, out = home / "node-101", home / "out"
    before = files_of(survivor)
    status, printed, err = rescue(survivor, "--out", out, "--write")
    assert (status, err) == (0, "")
    assert files_of(survivor) == before
    assert sorted(path.name for path in out.iterdir()) == [
        "controller-101",
        "controller-4",
        "controller-5",
    ]
    logs = []
    for node_id in (101, 4, 5):
        directory = out / f"controller-{node_id}"
        files = files_of(directory)
        meta = parse_meta_properties(files.pop("meta.properties")[1], "")
        assert (meta.version, meta.node_id) == (1, node_id)
        assert meta.cluster_id == "I9iQnKeLSA2lyZwVZic7Xg"
        assert f"node.id={node_id}, directory.id={meta.directory_id}" in printed
        logs.append(files)
        assert run("check", directory)[0] == 0
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*.log")} == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*.checkpoint")} == {
            0o400
        }
        folders = (out, directory, directory / LOG)
        assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
        log = open_path(str(directory))
        assert log.log_end_offset == 3135
    assert logs[0] == logs[1] == logs[2]
    for kind in KINDS:
        assert rows("state", directory, kind) == rows("state", survivor, kind)
    assert "controller.quorum.bootstrap.servers=c4:9094,[::1]:9095,c1:9093" in printed


def test_the_voters_are_written_in_a_later_epoch(home: Path) -> None:
    rescue(home / "node-101", "--out", home / "out", "--write")
    directory = home / "out" / "controller-4"
    last = rows("cat", directory, "--control", "--from", "3132")
    assert [row["type"] for row in last] == ["LEADER_CHANGE", "KRAFT_VERSION", "KRAFT_VOTERS"]
    epoch = last[0]["leaderEpoch"]
    assert 3 + 2**15 <= epoch < 3 + 2**15 + 2**14
    voters = {row["voterId"]: row for row in last[2]["data"]["voters"]}
    assert voters.keys() == {4, 5, 101}
    assert voters[4]["voterDirectoryId"] == DIRECTORY_ID
    kept = parse_meta_properties((home / "node-101" / "meta.properties").read_bytes(), "")
    assert voters[101]["voterDirectoryId"] == kept.directory_id
    assert voters[5]["endpoints"] == [{"name": "CONTROLLER", "host": "::1", "port": 9095}]
    state = parse_quorum_state((directory / LOG / "quorum-state").read_bytes(), "")
    assert (state.version, state.leader_epoch) == (1, epoch)
    assert (state.leader_id, state.voted_id) == (None, None)
    lines = (directory / LOG / "leader-epoch-checkpoint").read_text().splitlines()
    assert lines[-1] == f"{epoch} 3132"


def test_static_voters_stay_in_the_configuration(tmp_path: Path) -> None:
    survivor = tmp_path / "node-1"
    shutil.copytree(STATIC, survivor)
    status, printed, _ = rescue(survivor, "--out", tmp_path / "out", "--write")
    assert status == 0
    assert "kraft.version 0, old voters 1" in printed
    assert "controller.quorum.voters=4@c4:9094,5@[::1]:9095,101@c1:9093" in printed
    expected = [rows("state", survivor, kind) for kind in KINDS]
    for node_id in (4, 5, 101):
        directory = tmp_path / "out" / f"controller-{node_id}"
        assert run("check", directory)[0] == 0
        assert open_path(str(directory)).log_end_offset == open_path(str(survivor)).log_end_offset
        state = parse_quorum_state((directory / LOG / "quorum-state").read_bytes(), "")
        assert (state.version, state.voters, state.leader_id) == (0, (4, 5, 101), None)
        assert state.leader_epoch > 2**15
        assert [rows("state", directory, kind) for kind in KINDS] == expected


def test_of_several_copies_the_one_that_wins_an_election_is_used(home: Path) -> None:
    nodes = [home / f"node-{node_id}" for node_id in (100, 102, 101)]
    status, out, _ = rescue(*nodes, "--out", home / "out")
    assert status == 0
    assert "(node 102), offsets from 0 to 3133 (exclusive), last epoch 4" in out
    assert "(node 100) ends at offset 3131 in epoch 2 and has no other records" in out
    # Nodes 101 and 102 have the record of epoch 3, that of epoch 4 is on one node only.
    assert "committed: records below offset 3132: the records that a majority" in out
    assert "uncertain: 1 records" in out


def test_a_later_epoch_wins_over_a_longer_log_and_the_divergence_is_named(tmp_path: Path) -> None:
    for node_id, end_offset in ((100, 1300), (101, 1200)):
        directory = tmp_path / f"node-{node_id}" / LOG
        copy_log(DYNAMIC / f"node-{node_id}" / LOG, directory, end_offset=end_offset)
    end = open_path(str(directory)).log_end_offset
    segment, change = directory / "00000000000000000436.log", LeaderChange(leader_id=101)
    append_control(segment, change, base_offset=end, leader_epoch=7)
    write_epochs(directory, [(1, 0), (2, 721), (7, end)])
    nodes = [tmp_path / "node-100", tmp_path / "node-101"]
    status, out, _ = rescue(*nodes, "--out", tmp_path / "out", "--write")
    assert status == 0
    longer = open_path(str(nodes[0])).log_end_offset
    assert f"(node 101), offsets from 0 to {end + 1} (exclusive), last epoch 7" in out
    assert (
        f"(node 100) ends at offset {longer} in epoch 2 and diverges at offset {end}: epoch 2, "
        f"where the chosen copy has epoch 7; its {longer - end} records from there on are not used"
    ) in out
    assert (
        batches_of(tmp_path / "out/controller-4" / LOG / "00000000000000000436.log")[-1].base_offset
        == end + 1
    )


@pytest.mark.parametrize("is_file", [False, True])
def test_a_snapshot_alone_is_enough(home: Path, is_file: bool) -> None:
    survivor, name = home / "node-101", "00000000000000002207-0000000002.checkpoint"
    for path in (survivor / LOG).iterdir():
        if path.name != name:
            path.unlink()
    given = survivor / LOG / name if is_file else survivor
    status, out, _ = rescue(given, "--out", home / "out", "--write")
    assert status == 0
    assert "committed: records below offset 2207: the newest snapshot has them" in out
    assert "uncertain" not in out
    directory = home / "out" / "controller-5"
    assert run("check", directory)[0] == 0
    assert open_path(str(directory)).log_end_offset == 2210
    assert rows("state", directory, "topics") == rows("state", survivor, "topics")


def test_a_torn_tail_is_not_copied(home: Path) -> None:
    segment = home / "node-101" / LOG / "00000000000000002232.log"
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[:50])
    assert rescue(home / "node-101", "--out", home / "out", "--write")[0] == 0
    copied = home / "out" / "controller-4" / LOG / segment.name
    assert batches_of(copied)[-1].base_offset == 3132
    assert sum(batch.byte_count for batch in batches_of(copied)) == copied.stat().st_size


def test_epochs_of_two_rescues_differ(home: Path) -> None:
    """Directories for other voters, or of another survivor, have no epoch in common."""
    epochs: set[int] = set()
    for name, voters in (("node-101", VOTERS), ("node-102", VOTERS), ("node-101", VOTERS[:10])):
        out = home / f"out-{len(epochs)}"
        call = ("rescue", home / name, "--voters", voters, "--out", out, "--write")
        assert run(*call)[0] == 0
        (state,) = list(out.glob(f"controller-101/{LOG}/quorum-state"))
        epochs.add(json.loads(state.read_text())["leaderEpoch"])
    assert len(epochs) == 3


# --- refusals -------------------------------------------------------------------------------------


def refused(home: Path, *words: str | Path) -> str:
    """Return the error of a call that must write nothing."""
    before = files_of(home)
    status, _, err = rescue(*words, "--out", home / "out", "--write")
    assert status != 0
    assert files_of(home) == before
    assert not (home / "out").exists()
    return err


def move_voters(directory: Path, ports: list[int]) -> None:
    """Append a record in which the old voters listen at these ports."""
    log = open_path(str(directory))
    records = [
        record
        for batch in log.batches(2207, log.log_end_offset)
        for record in control_records(batch)
    ]
    found = [record for record in records if isinstance(record, KRaftVoters)]
    old = found[-1] if found else log.read_snapshot(log.snapshots[-1]).voters
    assert old is not None
    voters = [
        replace(voter, endpoints=(VoterEndpoint("CONTROLLER", "127.0.0.1", port),))
        for voter, port in zip(old.voters, ports, strict=True)
    ]
    append_control(
        directory / LOG / "00000000000000002232.log",
        KRaftVoters(voters=tuple(voters)),
        base_offset=log.log_end_offset,
        leader_epoch=3,
    )


def append_control(
    segment: Path, control: ControlRecord, *, base_offset: int, leader_epoch: int
) -> None:
    records = (NewRecord(*encode_control(control)),)
    batch = NewRecordBatch(records=records, base_timestamp_ms=0, is_control=True)
    with segment.open("ab") as file:
        file.write(encode_batch(batch, base_offset=base_offset, leader_epoch=leader_epoch))


def test_a_majority_that_can_be_reached_is_an_error(home: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.socket() as closed,
    ):
        closed.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (one, closed, other)]
        move_voters(home / "node-101", ports)
        err = refused(home, home / "node-101")
        assert "[RAFTLOG_QUORUM_RUNNING] a majority of the old voters (100, 101, 102)" in err
        assert "may be running: 100, 102 can be reached; two quorums" in err
        other.close()
        assert rescue(home / "node-101", "--out", home / "out")[0] == 0
        confirmed = ("--old-voters-stopped", "--out", home / "out", "--write")
        one.listen()
        assert rescue(home / "node-101", *confirmed)[0] == 0


def test_voters_of_unknown_address_count_as_running(tmp_path: Path) -> None:
    """No record of this log has an address: its voters are static, and did not register."""
    log = LogWriter(tmp_path / "node-1" / LOG, cluster_id="x")
    voters = tuple(LeaderChangeVoter(node_id) for node_id in (1, 2, 3))
    change = NewRecord(*encode_control(LeaderChange(leader_id=1, voters=voters)))
    log.append(batch=NewRecordBatch(records=(change,), base_timestamp_ms=0, is_control=True))
    log.append(NO_OP)
    err = refused(tmp_path, tmp_path / "node-1")
    assert "(1, 2, 3) may be running: the addresses of 1, 2, 3 are unknown" in err
    confirmed = ("--old-voters-stopped", "--out", tmp_path / "out", "--write")
    assert rescue(tmp_path / "node-1", *confirmed)[0] == 0


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "node-1" / LOG
    copy_log(STATIC / LOG, directory, end_offset=2**62)
    for path in directory.glob("*.checkpoint"):
        path.unlink()
    assert "has no snapshot of the records before" in refused(tmp_path, tmp_path / "node-1")


def test_a_running_survivor_is_refused(home: Path) -> None:
    lock = home / "node-101" / ".lock"
    lock.touch()
    with lock.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as Java's FileChannel.tryLock
        child = os.fork()
        if child == 0:
            out = home / "out"
            code = main(["rescue", str(home / "node-101"), "--voters", VOTERS, "--out", str(out)])
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert rescue(home / "node-101", "--out", home / "out")[0] == 0


def test_an_existing_output_is_never_replaced(home: Path) -> None:
    for name in ("out", "out.part"):
        (home / name).mkdir()
        status, _, err = rescue(home / "node-101", "--out", home / "out", "--write")
        assert status == 2
        assert re.search("--out: (it exists|the .part directory)", err)
        assert not list((home / name).iterdir())
        (home / name).rmdir()


def test_damage_of_the_survivor_is_an_error(home: Path) -> None:
    segment = home / "node-101" / LOG / "00000000000000000436.log"
    data = bytearray(segment.read_bytes())
    data[5_000] ^= 1
    segment.write_bytes(data)
    assert "00000000000000000436.log" in refused(home, home / "node-101")


def test_another_log_or_cluster_is_refused(home: Path) -> None:
    assert "NOT_A_LOG" in refused(home, DYNAMIC / "node-1" / "orders-0-0")
    segment = home / "node-101" / LOG / "00000000000000000000.log"
    assert "NOT_A_LOG" in refused(home, segment)
    with raftlog.open(home / "own-0", values="kraft") as log:
        log.append([b"\x01\x14\x00\x00"])
    assert "node format --from" in refused(home, home / "own-0")
    assert "WRONG_CLUSTER" in refused(home, home / "node-101", STATIC)
    assert "WRONG_CLUSTER" in refused(home, home / "node-101", "--cluster-id", DIRECTORY_ID)
    (home / "node-101" / "meta.properties").unlink()
    assert "--cluster-id: is missing" in refused(home, home / "node-101")


@pytest.mark.parametrize(
    "voters", ["", "1@host", "1@host:0", "1@a:1,1@b:1", "1@a:1,2@a:1", "1@host:9093:short"]
)
def test_invalid_voters_are_a_wrong_call(home: Path, voters: str) -> None:
    call = ("rescue", home / "node-101", "--voters", voters, "--out", home / "out")
    status, _, err = run(*call)
    assert status == 2
    assert "--voters" in err
