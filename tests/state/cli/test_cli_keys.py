"""``raftlog keys``: the keys of encrypted values."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path

import pytest
from tests.support.cli import run

from raftlog.client.key_file import KeyFile


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.properties"
    assert run("keys", "create", path, "2026-11") == (0, "", "")
    return path


def listed(keys: Path) -> dict[str, str]:
    """Return the state of each key, as the command prints it, and check that it prints no key."""
    status, out, err = run("keys", "list", keys)
    assert (status, err) == (0, "")
    secrets = [line.partition("=")[2] for line in keys.read_text().splitlines()]
    assert not [one for one in secrets if len(one) == 44 and one in out]
    return dict(line.split("  ") for line in out.splitlines())


def test_keys_are_created_rotated_listed_and_deleted(keys: Path) -> None:
    data_key = bytes(range(32))
    wrapped = KeyFile(keys).wrap("2026-11", data_key)
    assert run("keys", "rotate", keys, "2026-12") == (0, "", "")
    assert run("keys", "create", keys, "subject/alice") == (0, "", "")
    assert run("keys", "delete", keys, "subject/alice", "--confirm", "subject/alice")[0] == 0
    assert listed(keys) == {"2026-11": "usable", "2026-12": "current", "subject/alice": "deleted"}
    before = keys.read_bytes()
    again = run("keys", "delete", keys, "subject/alice")
    assert again == (0, "key subject/alice was deleted before; nothing was changed\n", "")
    assert keys.read_bytes() == before
    assert KeyFile(keys).unwrap("2026-11", wrapped) == data_key
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert os.listdir(keys.parent) == [keys.name]


def test_a_wrong_call_changes_nothing(keys: Path, tmp_path: Path) -> None:
    run("keys", "create", keys, "old")
    run("keys", "create", keys, "deleted")
    run("keys", "delete", keys, "deleted", "--confirm", "deleted")
    before = keys.read_bytes()
    calls: list[tuple[int, str, tuple[str | Path, ...]]] = [
        (2, "exists", ("create", keys, "old")),
        (2, "exists", ("rotate", keys, "old")),
        (1, "was deleted", ("rotate", keys, "deleted")),
        (2, "letters", ("create", keys, "a b")),
        (2, "cannot be read", ("rotate", tmp_path / "missing", "new")),
        (2, "cannot be read", ("list", tmp_path / "missing")),
        (2, "current", ("delete", keys, "2026-11", "--confirm", "2026-11")),
        (1, "is not in", ("delete", keys, "unknown", "--confirm", "unknown")),
        (2, "differ", ("delete", keys, "old", "--confirm", "2026-11")),
    ]
    for expected, words, argv in calls:
        status, out, err = run("keys", *argv)
        assert (status, out) == (expected, ""), argv
        assert words in err
    assert keys.read_bytes() == before
    assert os.listdir(tmp_path) == [keys.name]
    keys.chmod(0o644)
    assert run("keys", "list", keys)[0] == 2


class Terminal(io.StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_deletion_is_confirmed_by_the_id(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("keys", "create", keys, "subject/alice")
    for typed in ("", "y\n", "yes\n", "subject/bob\n"):
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        status, _, err = run("keys", "delete", keys, "subject/alice")
        assert status == 2
        assert "can never be read again" in err
    monkeypatch.setattr(sys, "stdin", io.StringIO("subject/alice\n"))
    status, _, err = run("keys", "delete", keys, "subject/alice")
    assert status == 2
    assert "--confirm" in err
    assert listed(keys)["subject/alice"] == "usable"
    monkeypatch.setattr(sys, "stdin", Terminal("subject/alice\n"))
    assert run("keys", "delete", keys, "subject/alice")[0] == 0
    assert listed(keys)["subject/alice"] == "deleted"


def test_a_link_to_the_keys_stays_a_link(keys: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.properties"
    link.symlink_to(keys.name)
    assert run("keys", "rotate", link, "2026-12")[0] == 0
    assert link.is_symlink()
    assert listed(keys)["2026-12"] == "current"


def test_a_change_during_another_one_is_refused(keys: Path) -> None:
    before = keys.read_bytes()
    changing = Path(f"{keys}.changing")
    changing.touch()
    status, _, err = run("keys", "rotate", keys, "2026-12")
    assert status == 2
    assert "another process changes the keys" in err
    assert keys.read_bytes() == before
