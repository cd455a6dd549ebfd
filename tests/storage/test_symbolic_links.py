"""Symbolic links in a log's directory: never written through, and their target is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

import raftlog
from raftlog.errors import CorruptBatchError, LogAccessError
from raftlog.records.batch import read_batch
from raftlog.storage.local import WritableLocalStorage

PASSWORDS = b"root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"


def test_a_lock_is_not_created_through_a_planted_link(tmp_path: Path) -> None:
    log, elsewhere = tmp_path / "orders-0", tmp_path / "elsewhere"
    raftlog.open(log).close()
    (log / ".append.lock").unlink()
    (log / ".append.lock").symlink_to(elsewhere)
    with pytest.raises(LogAccessError, match="symbolic link"), raftlog.open(log) as opened:
        opened.append([b"x"])
    assert not elsewhere.exists()


def test_a_link_is_not_opened_for_writing(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link.log"
    target.write_bytes(PASSWORDS)
    link.symlink_to(target)
    with pytest.raises(LogAccessError, match="remove the link"):
        WritableLocalStorage().open_for_writing(str(link))


@pytest.mark.parametrize("data", [PASSWORDS, PASSWORDS[:8] + b"\0\0\0\x64" + PASSWORDS[12:]])
def test_an_error_shows_no_bytes_that_are_no_batch(data: bytes) -> None:
    """A reader with more rights than the directory's creator would reveal the link's target."""
    assert data[16] > 2
    with pytest.raises(CorruptBatchError) as caught:
        read_batch(data, path="00000000000000000000.log")
    assert caught.value.offset is None
    assert str(int.from_bytes(data[:8], "big")) not in str(caught.value)
    assert str(int.from_bytes(PASSWORDS[8:12], "big")) not in str(caught.value)
