"""``raftlog apply`` and ``raftlog diff --changes``: states as changes, and back."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import rows, run

import raftlog
from raftlog_state import apply_changes
from raftlog_state.controller import CHANGE_TYPES

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
THREE = LOGS / "three-nodes-4.3.1" / "node-100"
FIRST = [
    {"change": "set_feature", "feature": "metadata.version", "level": 30},
    {"change": "register_broker", "broker_id": 1, "endpoints": {"CLIENT": "localhost:9092"}},
    {"change": "unfence_broker", "broker_id": 1},
]
TOPIC = {"change": "create_topic", "topic": "orders", "partitions": 1, "replication_factor": 1}
SECRET = {
    "change": "set_config",
    "resource_type": "BROKER",
    "resource_name": "",
    "name": "ssl.keystore.password",
    "value": "squirrel",
}


def write_lines(path: Path, *changes: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in changes))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "cluster-0"
    with raftlog.open(path, values="kraft") as opened:
        apply_changes(opened, FIRST)
    return path


@pytest.mark.parametrize(
    "snapshot",
    [
        "three-nodes-4.3.1/node-100/__cluster_metadata-0/00000000000000000636-0000000001.checkpoint",
        "trimmed-3.9.2/node-1/__cluster_metadata-0/00000000000000001022-0000000002.checkpoint",
    ],
)
def test_a_state_of_kafka_is_reached_by_the_changes_to_it(snapshot: str, tmp_path: Path) -> None:
    new, file, wanted = tmp_path / "new-0", tmp_path / "changes.json", LOGS / snapshot
    raftlog.open(new, values="kraft").close()
    status, changes, err = run("diff", new, wanted, "--changes", "--reveal")
    assert status == 0
    left_out = [line for line in err.splitlines() if "left out: " in line]
    assert left_out
    assert all("SCRAM" in line or "token" in line for line in left_out)
    file.write_text(changes)
    assert rows("apply", new, file)[0]["records"] > 300
    assert rows("diff", new, wanted, "--changes", "--reveal") == []
    status, out, _ = run("diff", new, wanted, "--reveal")
    assert status == 1
    differing = {json.loads(line)["entity"] for line in out.splitlines()}
    assert not differing & {"config", "quota", "feature"}


def test_changes_of_two_offsets_of_a_log() -> None:
    found = rows("diff", THREE, "--from", "1231", "--to", "1232", "--changes")
    assert found == [{"change": "fence_broker", "broker_id": 3}]


def test_changes_are_rows_that_apply_reads(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "target-0"
    with raftlog.open(target, values="kraft") as opened:
        apply_changes(opened, [*FIRST, TOPIC])
    found = rows("diff", log, target, "--changes")
    assert found == [{"change": "create_topic", "topic": "orders", "assignment": [[1]]}]
    assert {row["change"] for row in found} <= set(CHANGE_TYPES)
    (done,) = rows("apply", log, write_lines(tmp_path / "c", *found))
    assert done["records"] == 2
    assert done["end_offset"] - done["base_offset"] == 4
    assert rows("diff", log, target, "--changes") == []


def test_a_dry_run_prints_the_records_and_writes_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows("cat", log)
    file = write_lines(tmp_path / "changes.json", SECRET, TOPIC)
    found = rows("apply", "--dry-run", log, file)
    assert [row["type"] for row in found] == [
        "BEGIN_TRANSACTION_RECORD",
        "CONFIG_RECORD",
        "TOPIC_RECORD",
        "PARTITION_RECORD",
        "END_TRANSACTION_RECORD",
    ]
    assert found[0]["offset"] == before[-1]["offset"] + 1
    assert "squirrel" not in str(found)
    assert "squirrel" in str(rows("apply", "--dry-run", log, file, "--reveal"))
    monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text() + "\n"))
    assert len(rows("apply", "--dry-run", log, "-")) == 5
    assert rows("cat", log) == before


def test_secrets_are_in_changes_only_if_they_are_revealed(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-0"
    with raftlog.open(other, values="kraft") as opened:
        apply_changes(opened, [*FIRST, SECRET])
    status, out, err = run("diff", log, other, "--changes")
    assert (status, out) == (0, "")
    assert "left out: 'ssl.keystore.password' of '': it requires --reveal" in err
    assert rows("diff", log, other, "--changes", "--reveal")[0]["value"] == "squirrel"


def test_refused_changes_are_listed_and_nothing_is_written(log: Path, tmp_path: Path) -> None:
    before = rows("cat", log)
    file = write_lines(tmp_path / "c", TOPIC, {"change": "delete_topic", "topic": "missing"})
    for more in ([], ["--dry-run"]):
        status, out, err = run("apply", log, file, *more)
        assert (status, out) == (1, "")
        assert "row 1 (delete_topic)" in err
    assert rows("cat", log) == before


@pytest.mark.parametrize(
    ("text", "hint"),
    [(None, "cannot be read"), ("{}\n[1]\n", "line 2 is not a JSON object"), ("x", "line 1")],
)
def test_a_file_that_is_not_one_of_changes(
    log: Path, tmp_path: Path, text: str | None, hint: str
) -> None:
    file = tmp_path / "changes.json"
    if text is not None:
        file.write_text(text)
    status, out, err = run("apply", log, file)
    assert (status, out) == (2, "")
    assert hint in err


def test_a_log_of_kafka_is_only_read(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "c", {"change": "delete_topic", "topic": "orders2-1"})
    (record,) = [
        row for row in rows("apply", "--dry-run", THREE, file) if "TRANSACTION" not in row["type"]
    ]
    assert record["type"] == "REMOVE_TOPIC_RECORD"
    status, _, err = run("apply", THREE, file)
    assert status == 2
    assert "is not a log that raftlog created" in err
