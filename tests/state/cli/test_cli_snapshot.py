"""``raftlog snapshot``: a snapshot of any offset, written on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.cli import rows, run
from tests.support.kafka import HOME

import raftlog
from raftlog_state import apply_changes


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Log of two states: a feature, and a topic's broker."""
    path = tmp_path / "cluster-0"
    with raftlog.open(path, values="kraft") as opened:
        feature = {"change": "set_feature", "feature": "metadata.version", "level": 30}
        apply_changes(opened, [feature])
        broker = {"change": "register_broker", "broker_id": 7, "endpoints": {"A": "h:1"}}
        apply_changes(opened, [broker])
    return path


def test_the_newest_state_is_written_under_kafkas_name(log: Path, tmp_path: Path) -> None:
    status, out, err = run("snapshot", log, tmp_path, "--reveal")
    assert status == 0, err
    result = json.loads(out)
    assert result["path"] == str(tmp_path / "00000000000000000007-0000000001.checkpoint")
    assert (result["end_offset"], result["leader_epoch"]) == (7, 1)
    assert result["bytes"] == Path(result["path"]).stat().st_size
    assert [row["broker_id"] for row in rows("state", result["path"], "brokers")] == [7]


def test_the_end_and_whether_it_is_committed_are_reported(tmp_path: Path) -> None:
    """The last records of one directory may be truncated: nothing was printed about that."""
    node = HOME / "tests" / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
    status, out, err = run("snapshot", node, tmp_path, "--reveal")
    assert (status, json.loads(out)["end_offset"]) == (0, 3131)
    assert err == run("state", node, "features")[2].splitlines()[0] + "\n"
    assert "its last records may not be committed" in err
    assert run("snapshot", node, tmp_path / "a.checkpoint", "--reveal", "--quiet")[2] == ""


def test_an_older_state_is_written_under_a_given_name(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "before.checkpoint"
    assert run("snapshot", log, path, "--at", "4", "--reveal")[0] == 0
    assert len(rows("cat", path)) == 1
    status, _, err = run("snapshot", path, tmp_path, "--reveal")
    assert status == 2
    assert "the end offset of the source is unknown" in err
    assert rows("state", path, "brokers") == []
    assert [row["level"] for row in rows("state", path, "features")] == [30]
    status, _, err = run("snapshot", log, path, "--at", "4", "--reveal")
    assert status == 1
    assert "it already exists" in err


def test_secrets_are_written_only_on_request(log: Path, tmp_path: Path) -> None:
    status, _, err = run("snapshot", log, tmp_path)
    assert status == 2
    assert "confirm with --reveal" in err
    assert not list(tmp_path.glob("*.checkpoint"))


def test_a_missing_offset_is_refused(log: Path, tmp_path: Path) -> None:
    status, _, err = run("snapshot", log, tmp_path, "--at", "99", "--reveal")
    assert status == 1
    assert "RAFTLOG_OFFSET_OUT_OF_RANGE" in err
