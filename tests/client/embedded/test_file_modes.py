"""File modes of a log with cluster metadata: readable by its owner, unless configured otherwise."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftlog
from raftlog.client.location import write_new_file
from raftlog.errors import OptionError


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """Set the umask to 0: a private file must be private by its own mode."""
    mask = os.umask(0)
    yield
    os.umask(mask)


def modes(directory: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def frame() -> bytes:
    """Return a framed NoOpRecord."""
    return bytes((1, 20, 0, 0))


def test_all_files_of_a_kraft_log_are_private_to_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "__cluster_metadata-0"
    with raftlog.open(path, values="kraft") as log:
        log.append([frame()])
    with raftlog.open(path) as log:  # a later process that does not pass the format of values
        log.append([frame()])
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert modes(path) == {0o600}


def test_an_existing_empty_directory_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "changes-0"
    path.mkdir(mode=0o755)
    raftlog.open(path, values="kraft").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert modes(path) == {0o600}


@pytest.mark.parametrize(("mode", "file_mode"), [(0o750, 0o640), (0o770, 0o660)])
def test_group_access_can_be_configured(tmp_path: Path, mode: int, file_mode: int) -> None:
    path = tmp_path / "changes-0"
    with raftlog.open(path, values="kraft", directory_mode=mode) as log:
        log.append([frame()])
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert modes(path) == {file_mode}


@pytest.mark.parametrize("mode", [0o1777, 0o077, 0o600, -1])
def test_a_mode_without_owner_access_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(OptionError, match="directory_mode"):
        raftlog.open(tmp_path / "changes-0", directory_mode=mode)


def test_other_logs_follow_the_umask(tmp_path: Path) -> None:
    raftlog.open(tmp_path / "orders-0").close()
    assert stat.S_IMODE((tmp_path / "orders-0").stat().st_mode) == 0o777
    assert modes(tmp_path / "orders-0") == {0o666}


def test_a_kraft_log_that_others_can_read_is_logged_as_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "changes-0"
    raftlog.open(path, values="kraft").close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        raftlog.open(path).close()
    for one in (path, *path.iterdir()):
        one.chmod(0o755 if one is path else 0o644)
    with pytest.warns(UserWarning, match=r"other users may read .*chmod"):
        raftlog.open(path).close()


def test_a_snapshot_is_private_before_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later change of mode would leave a time in which another user could open it."""
    changed = []
    monkeypatch.setattr(os, "chmod", lambda path, mode: changed.append((path, mode)))
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    target = write_new_file(str(shared / "a.checkpoint"), b"secret")
    assert stat.S_IMODE(os.stat(target).st_mode) & 0o077 == 0
