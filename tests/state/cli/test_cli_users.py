"""``raftlog users``: passwords of a node's users."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli import run

from raftlog.node.sasl import Users, change_users, read_users, with_password
from raftlog.types import SCRAM_HASHES
from raftlog.wire.sasl import scram_credential


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


def test_a_link_to_the_users_stays_a_link(users: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    run("users", "set", users, "jobs-1", "--password-file", password)
    link = tmp_path / "link.json"
    link.symlink_to(users.name)
    assert run("users", "set", link, "jobs-2", "--password-file", password)[0] == 0
    assert link.is_symlink()
    assert run("users", "list", users)[1] == "jobs-1\njobs-2\n"


def test_a_command_that_was_killed_does_not_block_the_next(users: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    part = tmp_path / "users.json.part"
    part.write_text("{")
    assert run("users", "set", users, "jobs-1", "--password-file", password) == (0, "", "")
    assert not part.exists()


def test_a_change_during_another_one_is_refused(users: Path, tmp_path: Path) -> None:
    """Both would have read the same users, and the second would remove those of the first."""
    password = tmp_path / "password"
    password.write_text("secret\n")
    run("users", "set", users, "jobs-1", "--password-file", password)

    def change_again(found: Users) -> Users:
        for argv in (
            ("set", users, "jobs-2", "--password-file", password),
            ("remove", users, "jobs-1"),
        ):
            status, _, err = run("users", *argv)
            assert status == 2
            assert "another `raftlog users`" in err
        return with_password(found, "jobs-3", "third")

    change_users(str(users), change_again)
    assert run("users", "list", users)[1] == "jobs-1\njobs-3\n"


@pytest.mark.slow
def test_without_a_terminal_no_password_is_read_from_one(users: Path) -> None:
    """``getpass`` would show it, or end in a traceback."""
    found = subprocess.run(
        [sys.executable, "-m", "raftlog_state.cli", "users", "set", users, "jobs-1"],
        input="secret\n",
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert found.returncode == 2
    assert "--password-file" in found.stderr
    assert "Traceback" not in found.stderr
    assert not users.exists()
