"""Simulated machine: its disk, its processes with their files and locks, and faults.

Invariants:

1. One call is one step: it holds the machine's lock from lookup to change.
2. A process that died, alone or with the machine, raises ``CrashPoint`` on every call, so that no
   clean-up runs after a crash. Closing a file and releasing a lock stay allowed.
3. A fault occurs once, at the first call that matches, and is then removed.
"""

from __future__ import annotations

import fnmatch
import threading
from random import Random
from typing import Final

from raftlog.errors import DiskFailedError, DiskFullError, LogAccessError
from raftlog.storage.protocol import Closeable

from .crash_model import FileNode
from .crash_points import Recording
from .simulated_tree import Operation, OperationKind, Tree, names_of

_FAILED: Final = "input/output error"
_FULL: Final = "no space left on device"


class CrashPoint(BaseException):
    """Death of the process. Not an ``Exception``: no handler of the log may survive it."""


class Process:
    """State that dies with a process."""

    def __init__(self, boot_number: int) -> None:
        self.boot_number = boot_number
        self.is_killed = False
        self.open_files = 0


class Machine:
    """State shared by all processes. ``change`` and ``sync`` make every change of the disk."""

    def __init__(self, tree: Tree, seed: int) -> None:
        self.tree = tree
        self.chance = Random(seed)
        self.step = threading.RLock()
        self.boot_number = 1
        self.locks: dict[int, SimulatedLock] = {}
        self.recordings: list[Recording] = []
        self.operation_count = 0
        self.stop_at: int | None = None
        self.clear_faults()

    def clear_faults(self) -> None:
        """Remove all faults."""
        self.sync_faults: list[str] = []
        self.write_faults: list[str] = []
        self.refused_writing: str | None = None
        self.byte_count_max: int | None = None

    def require_alive(self, process: Process) -> None:
        """Raise ``CrashPoint`` in a process that was killed, or whose machine lost its power."""
        if process.is_killed or process.boot_number != self.boot_number:
            raise CrashPoint("this process is dead")

    def require_room(self, path: str) -> None:
        """Raise ``DiskFullError`` if there is no space even for a name."""
        if self._room() == 0:
            raise DiskFullError(path=path, reason=_FULL)

    def change(self, operation: Operation) -> None:
        """Apply a change, unless the disk is read-only there. Raises ``LogAccessError``."""
        pattern = self.refused_writing
        if pattern is not None and fnmatch.fnmatchcase(operation.path, pattern):
            raise LogAccessError(path=operation.path, reason="read-only file system", to_write=True)
        self.record(operation)

    def write(self, path: str, node: FileNode, position: int, data: bytes) -> None:
        """Write as much as there is space for."""
        _fail_once(self.write_faults, path)
        room = self._room()
        growth = max(0, position + len(data) - len(node.content))
        fitting = len(data) if room is None else len(data) - max(0, growth - room)
        if fitting > 0:
            part = data[:fitting]
            kind = OperationKind.WRITE
            self.change(Operation(kind, path, node.number, position=position, data=part))
        if fitting < len(data):
            raise DiskFullError(path=path, reason=_FULL)

    def sync(self, operation: Operation) -> None:
        """Make a file or a directory durable, unless a fault matches."""
        try:
            _fail_once(self.sync_faults, operation.path)
        except DiskFailedError:
            self.record(Operation(OperationKind.FAIL_SYNC, operation.path, operation.node))
            raise
        self.record(operation)

    def record(self, operation: Operation) -> None:
        """Apply and record an operation, or die before it."""
        if self.stop_at is not None and self.operation_count >= self.stop_at:
            raise CrashPoint(f"before operation {self.operation_count}: {operation}")
        self.tree.do(operation)
        self.operation_count += 1
        for recording in self.recordings:
            recording.operations.append(operation)

    def _room(self) -> int | None:
        """Return the number of bytes by which files may grow; None: no limit."""
        if self.byte_count_max is None:
            return None
        return max(0, self.byte_count_max - self.tree.byte_count())


class SimulatedFile(Closeable):
    """An open file of a simulated disk."""

    def __init__(
        self,
        machine: Machine,
        process: Process,
        path: str,
        node: FileNode,
        *,
        is_writable: bool,
        reads: dict[str, int],
    ) -> None:
        self._machine = machine
        self._process = process
        self._path = path
        self._node: FileNode | None = node
        self._is_writable = is_writable
        self._reads = reads
        process.open_files += 1

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, byte_count: int) -> bytes:
        """Read up to ``byte_count`` bytes; fewer only at the end of the file."""
        with self._machine.step:
            data = bytes(self._living().content[position : position + max(byte_count, 0)])
            self._reads[self._path] = self._reads.get(self._path, 0) + len(data)
            return data

    def byte_count(self) -> int:
        """Return the present size of the file."""
        with self._machine.step:
            return len(self._living().content)

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data``, into memory."""
        with self._machine.step:
            self._machine.write(self._path, self._changing(), position, bytes(data))

    def truncate(self, byte_count: int) -> None:
        """Truncate or extend the file in memory; the extension is zeros."""
        with self._machine.step:
            number, kind = self._changing().number, OperationKind.TRUNCATE
            self._machine.change(Operation(kind, self._path, number, position=byte_count))

    def is_in_place(self) -> bool:
        """Return whether the path still refers to this file."""
        with self._machine.step:
            found = self._machine.tree.find(names_of(self._path))
            return found is not None and found.number == self._living().number

    def sync(self) -> None:
        """Make bytes and length durable."""
        with self._machine.step:
            self._machine.sync(Operation(OperationKind.SYNC, self._path, self._changing().number))

    def close(self) -> None:
        """Close the file."""
        if self._node is not None:
            self._process.open_files -= 1
        self._node = None

    def _living(self) -> FileNode:
        assert self._node is not None, f"{self._path} was closed"
        self._machine.require_alive(self._process)
        return self._node

    def _changing(self) -> FileNode:
        assert self._is_writable, f"{self._path} was opened for reading"
        return self._living()


class SimulatedLock(Closeable):
    """Lock on a file of a simulated disk; released when its process or its machine dies."""

    def __init__(self, machine: Machine, process: Process, node: int) -> None:
        self.process = process
        self._machine = machine
        self._node = node

    def release(self) -> None:
        """Release the lock, if it is not released yet."""
        with self._machine.step:
            if self._machine.locks.get(self._node) is self:
                del self._machine.locks[self._node]

    def close(self) -> None:
        self.release()


def _fail_once(patterns: list[str], path: str) -> None:
    for ordinal, pattern in enumerate(patterns):
        if fnmatch.fnmatchcase(path, pattern):
            del patterns[ordinal]
            raise DiskFailedError(path=path, reason=_FAILED)
