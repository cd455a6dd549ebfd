"""Locks on real files exclude other processes; a process releases only locks that it holds."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raftlog.storage.local import WritableLocalStorage

# Takes the lock, reports it, and answers each line of its input until that ends.
HOLDER = """
import os, sys
from raftlog.storage.local import WritableLocalStorage
storage = WritableLocalStorage()
lock = storage.try_lock(sys.argv[1])
print("held" if lock else "refused", flush=True)
for line in sys.stdin:
    if line == "open and close\\n":
        storage.open_for_writing(sys.argv[1]).close()
        storage.open_file(sys.argv[1]).close()
        os.close(os.open(sys.argv[1], os.O_RDWR))
    elif line == "release\\n":
        lock.release()
    print("done", flush=True)
"""


class Holder:
    """Another process that tries to take a lock."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        assert self.answer() == "done"


@contextmanager
def holder(path: Path) -> Iterator[Holder]:
    source_root = Path(__file__).parents[2] / "connector"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source_root)},
    )
    with process:
        try:
            yield Holder(process)
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".append.lock"


def is_free(path: Path) -> bool:
    lock = WritableLocalStorage().try_lock(str(path))
    if lock is not None:
        lock.release()
    return lock is not None


def test_processes_exclude_each_other_until_the_lock_is_released(path: Path) -> None:
    with holder(path) as other:
        assert other.answer() == "held"
        assert not is_free(path)
        other.ask("open and close")
        assert not is_free(path)
        other.ask("release")
        with WritableLocalStorage().try_lock(str(path)) or pytest.fail("it was released"):
            with holder(path) as third:
                assert third.answer() == "refused"
            assert not is_free(path)


def test_the_lock_of_a_killed_process_is_released(path: Path) -> None:
    with holder(path) as other:
        assert other.answer() == "held"
        other.process.send_signal(signal.SIGKILL)
        other.process.wait()
        assert is_free(path)


def test_a_child_of_a_killed_process_does_not_keep_its_lock(path: Path) -> None:
    script = (
        "import os, sys\n"
        "from raftlog.storage.local import WritableLocalStorage\n"
        "lock = WritableLocalStorage().try_lock(sys.argv[1])\n"
        "if os.fork() == 0:\n"
        "    print('held' if lock else 'refused', flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"held\n"
        assert not is_free(path)
        parent.kill()
        parent.wait()
        assert is_free(path)


def test_a_child_without_the_lock_neither_keeps_nor_releases_it(path: Path) -> None:
    lock = WritableLocalStorage().try_lock(str(path))
    assert lock is not None
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:  # a child with the same open file description, which survives
        os.close(hold_write)
        lock.release()
        os.read(hold_read, 1)
        os._exit(0)
    second = os.fork()
    if second == 0:  # a child that keeps the open file description
        os.close(hold_write)
        os.read(hold_read, 1)
        os._exit(0)
    os.close(hold_read)
    try:
        assert not is_free(path)
        lock.release()
        assert is_free(path)
    finally:
        os.close(hold_write)
        os.waitpid(child, 0)
        os.waitpid(second, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="open-file-description locks are Linux's")
def test_the_lock_excludes_programs_with_posix_locks(path: Path) -> None:
    """As Java's ``FileChannel.lock`` does; ``flock`` would not."""
    script = (
        "import fcntl, sys\n"
        "with open(sys.argv[1], 'r+b') as file:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with WritableLocalStorage().try_lock(str(path)) or pytest.fail("nobody holds it"):
        refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "BlockingIOError" in refused.stderr
    assert subprocess.run(command, check=False).returncode == 0
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        assert not is_free(path)
    assert is_free(path)


def test_the_boot_id_is_the_same_for_every_process() -> None:
    code = "from raftlog.storage.local import WritableLocalStorage as S; print(S().boot_id())"
    source_root = Path(__file__).parents[2] / "connector"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source_root)},
    )
    assert answer.stdout.strip() == WritableLocalStorage().boot_id()
