"""Permissions of other users on keys and configurations."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.storage import file_rights
from raftlog.storage.file_rights import (
    change_by_others,
    others_may_replace_in,
    read_by_others,
)


@pytest.fixture(params=[True, False])
def is_alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the owner of the files is the only member of their group."""
    members = [] if request.param else ["somebody-else"]
    name = pwd.getpwuid(os.getuid()).pw_name
    group = grp.struct_group((name, "x", os.getgid(), members))
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    return bool(request.param)


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_rights, "_ROOT", -1)
    directory = tmp_path / "keys"
    directory.mkdir(mode=0o700)
    found = directory / "a.key"
    found.write_text("a key")
    found.chmod(0o600)
    return found


def test_a_private_file_is_accepted(key: Path, is_alone: bool) -> None:
    assert change_by_others(str(key)) is None
    assert read_by_others(str(key)) is None


@pytest.mark.parametrize(
    ("mode", "judged", "words"),
    [
        (0o602, change_by_others, "may change"),
        (0o604, read_by_others, "may read"),
    ],
)
def test_permissions_of_others_are_reported(
    key: Path, mode: int, judged: Callable[[str], str | None], words: str
) -> None:
    key.chmod(mode)
    assert words in (judged(str(key)) or "")


def test_permissions_of_a_group_are_reported_unless_the_owner_is_its_only_member(
    key: Path, is_alone: bool
) -> None:
    key.chmod(0o660)
    assert (change_by_others(str(key)) is None) is is_alone
    assert (read_by_others(str(key)) is None) is is_alone


def test_the_group_may_read_a_key_owned_by_root(
    key: Path, is_alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rights, "_ROOT", os.getuid())
    key.chmod(0o640)
    assert read_by_others(str(key)) is None
    key.chmod(0o644)
    assert read_by_others(str(key)) is not None


@pytest.mark.parametrize("mode", [0o702, 0o720])
def test_a_directory_that_others_can_write_is_reported_unless_it_is_sticky(
    key: Path, mode: int, is_alone: bool
) -> None:
    key.parent.chmod(mode)
    is_fine = is_alone and mode == 0o720
    assert (change_by_others(str(key)) is None) is is_fine
    key.parent.chmod(mode | 0o1000)
    assert change_by_others(str(key)) is None


def test_permissions_of_a_directory_are_ignored_on_a_read_only_mount(
    key: Path,
) -> None:
    """A Kubernetes ConfigMap is mounted read-only, with a world-writable directory."""
    key.parent.chmod(0o777)
    directory = os.stat(key.parent)
    other_flags = os.ST_NOSUID
    assert others_may_replace_in(directory, other_flags)
    assert not others_may_replace_in(directory, other_flags | os.ST_RDONLY)


def test_both_directories_of_a_link_are_checked(key: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.key"
    link.symlink_to(key)
    assert change_by_others(str(link)) is None
    key.parent.chmod(0o702)
    assert str(key.parent) in (change_by_others(str(link)) or "")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for judged in (change_by_others, read_by_others):
        with pytest.raises(FileNotFoundError):
            judged(str(tmp_path / "a"))
