"""``raftlog node recover``, and ``raftlog check`` of a node that does not vote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import run

from raftlog.limits import EPOCH_MAX, EPOCH_STEP_MAX
from raftlog.log.format.directory import NODE_LOCK_NAME
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.quorum_log import QuorumLog
from raftlog.records.control import LeaderChange
from raftlog.storage.local import PrivateLocalStorage

NODE = '[node]\nid = 1\ndirectory = "data"\n[listeners.both]\naddress = "127.0.0.1:9192"\n'
NOW_MS = 1_700_000_000_000
EPOCH = 3
WITHDRAWN = "the log was damaged and cut at offset 1; offsets 1 to 8 had been synced"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node that stopped in epoch 3, with one record."""
    (tmp_path / "node.toml").write_text(NODE)
    assert run("node", "format", "-c", tmp_path / "node.toml", "--standalone")[0] == 0
    log = QuorumLog.open_or_create(
        PrivateLocalStorage(),
        str(log_of(tmp_path)),
        config=LogConfig(),
        topic_id="AAAAAAAAAAAAAAAAAAAAZw",
        now_ms=NOW_MS,
    )
    log.begin_epoch(
        EPOCH, (LeaderChange(leader_id=1, voters=(), granting_voters=()),), now_ms=NOW_MS
    )
    log.close()
    write_election_state(tmp_path, EPOCH)
    return tmp_path


def log_of(node: Path) -> Path:
    return node / "data" / "raftlog-0"


def write_election_state(node: Path, epoch: int) -> None:
    fields = {"leaderId": -1, "leaderEpoch": epoch, "votedId": -1}
    text = json.dumps({**fields, "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA", "data_version": 1})
    (log_of(node) / "quorum-state").write_text(text)
    sums = log_of(node) / ".raftlog.checksums"
    if sums.exists():
        sums.unlink()


def recover(node: Path, *more: str) -> tuple[int, str, str]:
    return run("node", "recover", "--config", node / "node.toml", *more)


def election(node: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((log_of(node) / "quorum-state").read_text())
    return found


def test_a_voting_node_is_not_changed(node: Path) -> None:
    for more in ((), ("--allow-data-loss",)):
        status, out, _ = recover(node, *more)
        assert (status, out.splitlines()[-1]) == (0, "the node can vote")
        assert election(node)["leaderEpoch"] == EPOCH


def test_a_damaged_node_votes_again_after_the_operators_command(node: Path) -> None:
    withdrawn = log_of(node) / "withdrawn"
    withdrawn.write_text(WITHDRAWN + "\n")
    status, out, _ = recover(node)
    assert status == 1
    assert WITHDRAWN in out
    assert "--allow-data-loss" in out
    assert withdrawn.exists()
    status, out, _ = recover(node, "--allow-data-loss")
    assert status == 0
    assert "votes after its next start" in out
    assert not withdrawn.exists()
    assert election(node)["leaderEpoch"] == EPOCH, "its votes are known"


@pytest.mark.parametrize("epoch", [EPOCH_MAX, EPOCH_MAX + 1, 2**40])
def test_an_exhausted_epoch_is_replaced_by_one_without_a_leader(node: Path, epoch: int) -> None:
    write_election_state(node, epoch)
    status, out, _ = recover(node)
    assert status == 1
    assert str(epoch) in out
    assert election(node)["leaderEpoch"] == epoch
    assert recover(node, "--allow-data-loss")[0] == 0
    found = election(node)
    assert found["leaderEpoch"] == EPOCH + EPOCH_STEP_MAX // 2
    assert (found["leaderId"], found["votedId"]) == (-1, -1)
    assert recover(node)[0] == 0


def test_a_node_with_unknown_votes_gets_an_epoch_without_a_vote(node: Path) -> None:
    (log_of(node) / "quorum-state").unlink()
    assert "quorum-state is missing" in recover(node)[1]
    assert recover(node, "--allow-data-loss")[0] == 0
    assert election(node)["leaderEpoch"] == EPOCH + EPOCH_STEP_MAX // 2


def test_a_running_node_is_not_changed(node: Path) -> None:
    lock = PrivateLocalStorage().try_lock(str(node / "data" / NODE_LOCK_NAME))
    assert lock is not None
    with lock:
        status, _, err = recover(node, "--allow-data-loss")
    assert status == 1
    assert "RAFTLOG_NODE_RUNNING" in err


def test_a_check_reports_a_node_that_does_not_vote(node: Path) -> None:
    assert run("check", log_of(node))[0] == 0
    (log_of(node) / "withdrawn").write_text(WITHDRAWN + "\x1b[2J\n")
    status, out, err = run("check", log_of(node))
    assert status == 1
    assert WITHDRAWN in out + err
    assert "does not vote" in out + err
    assert "\x1b" not in out + err
