"""``raftlog users``: passwords of a node's users."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from tests.support.cli import run

from raftlog.node.sasl import read_users
from raftlog.wire.sasl import SCRAM_HASHES, scram_credential


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def test_users_are_set_listed_and_removed(users: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    for name, text in (("jobs-1", "one"), ("jobs-2", "two"), ("jobs-1", "new = \u00e9")):
        password.write_text(f"{text}\n")
        assert run("users", "set", users, name, "--password-file", password) == (0, "", "")
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    assert run("users", "list", users)[1] == "jobs-1\njobs-2\n"
    for mechanism in SCRAM_HASHES:
        found = read_users(str(users)).find(mechanism, "jobs-1")
        assert found is not None
        assert found == scram_credential(
            mechanism, "new = \u00e9", salt=found.salt, iterations=found.iterations
        )
    assert run("users", "remove", users, "jobs-1")[0] == 0
    assert run("users", "list", users)[1] == "jobs-2\n"


def test_a_wrong_call_changes_nothing(users: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    run("users", "set", users, "jobs-1", "--password-file", password)
    before = users.read_bytes()
    empty = tmp_path / "empty"
    empty.write_text("\n")
    calls: list[tuple[str | Path, ...]] = [
        ("no user 'jobs-9'", "remove", users, "jobs-9"),
        ("printable characters", "set", users, "anonymous", "--password-file", password),
        ("password is empty", "set", users, "jobs-2", "--password-file", empty),
        ("no such file", "set", users, "jobs-2", "--password-file", tmp_path / "missing"),
    ]
    for reason, *argv in calls:
        status, _, err = run("users", *argv)
        assert status == 2
        assert str(reason) in err
        assert "secret" not in err
    assert users.read_bytes() == before
    users.chmod(0o644)
    status, _, err = run("users", "set", users, "jobs-2", "--password-file", password)
    assert (status, users.read_bytes()) == (2, before)
    assert "other users may read" in err
