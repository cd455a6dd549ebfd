"""Disk in memory that loses unsynced data, fails on demand and records its operations.

Invariants:

1. It implements ``WritableStorage`` and nothing more: ``crash_model`` decides what a power loss
   leaves; the caller chooses moment and seed.
2. ``kill`` ends a process: nothing is lost, its locks are free. ``crash`` ends the machine.
3. The same calls with the same seed give the same disk.
4. Several threads may use one disk, each its own files: one call is one step.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator
from random import Random
from typing import Self

from raftlog.errors import FileExistsLogError, LogAccessError, LogNotFoundError, NotALogError

from .crash_model import DirectoryNode, FileNode, Survival
from .crash_points import CrashState, Recording
from .simulated_machine import CrashPoint, Machine, Process, SimulatedFile, SimulatedLock
from .simulated_tree import Node, Operation, OperationKind, Tree, names_of

__all__ = ["CrashPoint", "SimulatedDisk", "Survival"]


class SimulatedDisk:
    """View of a simulated disk by one process: a ``WritableStorage``. Paths are absolute, with
    ``/``.

    ``reads`` counts the bytes read per path; ``open_files_max`` is the limit of open files.
    """

    def __init__(self, seed: int = 0, *, tree: Tree | None = None) -> None:
        self._begin(Machine(tree or Tree(), seed))

    def _begin(self, machine: Machine) -> None:
        self._machine = machine
        self._process = Process(machine.boot_number)
        self.reads: dict[str, int] = {}
        self.open_files_max: int | None = None

    @classmethod
    def after(cls, state: CrashState, seed: int = 0) -> Self:
        """Return the disk of one recorded crash, for a new process. Use a state once."""
        disk = cls(seed, tree=state.tree)
        disk._machine.boot_number = disk._process.boot_number = state.boot_number
        return disk

    def another_process(self) -> SimulatedDisk:
        """Return the disk as seen by another process, with its own open files and locks."""
        other = object.__new__(SimulatedDisk)
        other._begin(self._machine)
        return other

    # --- crashes ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill this process; the next use of this object is a new one. Nothing is lost."""
        machine = self._machine
        with machine.step:
            self._process.is_killed = True
            for node, lock in list(machine.locks.items()):
                if lock.process is self._process:
                    del machine.locks[node]
            self._process = Process(machine.boot_number)
            machine.stop_at = None

    def end(self, survival: Survival | None) -> None:
        """Kill this process if ``survival`` is None; otherwise cut the power, as ``crash``."""
        if survival is None:
            self.kill()
        else:
            self.crash(survival)

    def crash(self, survival: Survival = Survival.MIXED, seed: int | None = None) -> None:
        """Cut the power: every process dies, and unsynced data survives according to ``survival``.

        Without a seed, the random sequence of the disk continues. Faults and recordings end. Other
        processes' views raise ``CrashPoint`` until they are killed too.
        """
        machine = self._machine
        with machine.step:
            chance = machine.chance if seed is None else Random(seed)
            machine.tree = machine.tree.after_crash(survival, chance)
            machine.boot_number += 1
            machine.locks.clear()
            machine.recordings.clear()
            machine.clear_faults()
            self.kill()

    def stop_at(self, operation_count: int | None) -> None:
        """Crash after this many operations of the disk, counted from its creation."""
        self._machine.stop_at = operation_count

    @property
    def operation_count(self) -> int:
        """Return the number of changes and syncs since the disk was created."""
        return self._machine.operation_count

    @property
    def open_files(self) -> int:
        """Return the number of files that this process has open."""
        return self._process.open_files

    # --- faults -----------------------------------------------------------------------------------

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._machine.clear_faults()

    def fail_sync_once(self, pattern: str = "*") -> None:
        """Fail the next sync of a matching path, and lose the data that it should have written."""
        self._machine.sync_faults.append(pattern)

    def fail_write_once(self, pattern: str = "*") -> None:
        """Fail the next write to a matching path, with nothing written."""
        self._machine.write_faults.append(pattern)

    def full_at(self, byte_count: int | None) -> None:
        """Limit the total size of files; None: no limit."""
        self._machine.byte_count_max = byte_count

    def leave_room(self, byte_count: int) -> None:
        """Limit the growth of files, from their present total size."""
        self.full_at(self._machine.tree.byte_count() + byte_count)

    def refuse_writing(self, pattern: str | None) -> None:
        """Refuse every change of matching paths, as a read-only file system; None: of none."""
        self._machine.refused_writing = pattern

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage a file on the disk: bit ``bit % 8`` (1, 2, 4, ...) of byte ``bit // 8``."""
        with self._machine.step:
            number = self._file(path).number
            self._machine.record(Operation(OperationKind.FLIP_BIT, path, number, position=bit))

    # --- inspection -------------------------------------------------------------------------------

    def record(self) -> Recording:
        """Record operations from now on, until the next power loss."""
        with self._machine.step:
            recording = Recording(self._machine.tree.copy(), self._machine.boot_number)
            self._machine.recordings.append(recording)
            return recording

    def copy(self, seed: int = 0) -> SimulatedDisk:
        """Return another machine with the same disk and pending changes; no locks, no faults."""
        with self._machine.step:
            machine = self._machine
            state = CrashState(0, None, 0, machine.boot_number, machine.tree.copy())
            return SimulatedDisk.after(state, seed)

    def files(self) -> dict[str, bytes]:
        """Return path and content of every file, as a process sees them now."""
        with self._machine.step:
            return _files(self._machine.tree)

    def durable_files(self) -> dict[str, bytes]:
        """Return path and content of every file after a power loss that keeps nothing unsynced."""
        with self._machine.step:
            return _files(self._machine.tree.after_crash(Survival.NOTHING, Random(0)))

    def put(self, path: str, data: bytes) -> None:
        """Write a durable file, with its parent directories, replacing an old one."""
        names = names_of(path)
        for depth in range(1, len(names)):
            directory = "/" + "/".join(names[:depth])
            if self._find(directory) is None:
                self.make_directory(directory)
                self.sync_directory(posixpath.dirname(directory))
        if self._find(path) is not None:
            self.unlink(path)
        with self.create_file(path) as file:
            file.write_at(0, data)
            file.sync()
        self.sync_directory(posixpath.dirname(path))

    # --- reading ----------------------------------------------------------------------------------

    def list_names(self, directory: str) -> list[str]:
        """Return the names in ``directory``, sorted."""
        with self._machine.step:
            return sorted(self._directory(directory).names)

    def open_file(self, path: str) -> SimulatedFile:
        """Open a file for reading."""
        return self._open(path, is_writable=False)

    def is_directory(self, path: str) -> bool:
        """Return whether ``path`` is a directory. Raises ``LogNotFoundError``."""
        with self._machine.step:
            return isinstance(self._node(path), DirectoryNode)

    def join(self, directory: str, name: str) -> str:
        """Return the path of ``name`` in ``directory``."""
        return posixpath.join(directory, name)

    def split(self, path: str) -> tuple[str, str]:
        """Return the parent directory of ``path``, and its name."""
        return posixpath.split(posixpath.normpath(posixpath.join("/", path)))

    def expand(self, pattern: str) -> list[str]:
        """Return the paths that match a shell pattern, sorted."""
        with self._machine.step:
            found = [""]
            for part in names_of(pattern):
                found = [f"{path}/{name}" for path in found for name in self._matching(path, part)]
            return sorted(path for path in found if path)

    # --- writing ----------------------------------------------------------------------------------

    def create_file(self, path: str) -> SimulatedFile:
        """Create an empty file; it must not exist."""
        with self._machine.step:
            self._new_name(path, OperationKind.CREATE)
            return self._open(path, is_writable=True)

    def open_for_writing(self, path: str) -> SimulatedFile:
        """Open an existing file."""
        return self._open(path, is_writable=True)

    def make_directory(self, path: str) -> bool:
        """Create a directory; return False if it exists."""
        with self._machine.step:
            node = self._find(path)
            if isinstance(node, FileNode):
                raise NotALogError(path=path, reason="a directory was expected there")
            if node is None:
                self._new_name(path, OperationKind.MAKE_DIRECTORY)
            return node is None

    def remove_directory(self, path: str) -> bool:
        """Remove an empty directory; return False if it has entries, or does not exist."""
        with self._machine.step:
            node = self._find(path)
            if isinstance(node, FileNode):
                raise NotALogError(path=path, reason="a directory was expected there")
            if node is None or node.names:
                return False
            parent, name = self.split(path)
            number = self._directory(parent).number
            self._machine.change(Operation(OperationKind.UNLINK, path, number, name))
            return True

    def rename(self, path: str, new_path: str) -> None:
        """Rename atomically, replacing an existing file."""
        with self._machine.step:
            parent, name = self.split(path)
            new_parent, new_name = self.split(new_path)
            assert parent == new_parent, "one directory can be synced"
            node, replaced = self._node(path), self._find(new_path)
            if isinstance(replaced, DirectoryNode) and replaced is not node:
                raise NotALogError(path=new_path, reason="a file was expected there")
            if isinstance(replaced, FileNode) and isinstance(node, DirectoryNode):
                raise NotALogError(path=new_path, reason="a directory was expected there")
            if replaced is not node:
                number = self._directory(parent).number
                self._machine.change(Operation(OperationKind.RENAME, path, number, name, new_name))

    def unlink(self, path: str) -> None:
        """Remove a file from its directory."""
        with self._machine.step:
            self._file(path)
            parent, name = self.split(path)
            number = self._directory(parent).number
            self._machine.change(Operation(OperationKind.UNLINK, path, number, name))

    def set_read_only(self, path: str, *, owner_only: bool = False) -> None:
        """Refuse to open a file for writing from now on; every process is its owner."""
        with self._machine.step:
            number = self._file(path).number
            self._machine.change(Operation(OperationKind.SET_READ_ONLY, path, number))

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""
        with self._machine.step:
            number = self._directory(directory).number
            self._machine.sync(Operation(OperationKind.SYNC_DIRECTORY, directory, number))

    def try_lock(self, path: str) -> SimulatedLock | None:
        """Lock a file, creating it if necessary; return None if it is locked."""
        with self._machine.step:
            if self._find(path) is None:
                self._new_name(path, OperationKind.CREATE)
            node = self._file(path).number
            if node in self._machine.locks:
                return None
            lock = self._machine.locks[node] = SimulatedLock(self._machine, self._process, node)
            return lock

    def boot_id(self) -> str:
        """Return a text of the form of Linux's boot id, different after every power loss."""
        return f"00000000-0000-4000-8000-{self._machine.boot_number:012d}"

    # --- implementation ---------------------------------------------------------------------------

    def _find(self, path: str) -> Node | None:
        self._machine.require_alive(self._process)
        return self._machine.tree.find(names_of(path))

    def _node(self, path: str) -> Node:
        node = self._find(path)
        if node is None:
            if isinstance(self._find(posixpath.dirname(path)), FileNode):
                raise NotALogError(path=path, reason="a directory was expected there")
            raise LogNotFoundError(path=path)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._node(path)
        if not isinstance(node, FileNode):
            raise NotALogError(path=path, reason="a file was expected there")
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._node(path)
        if not isinstance(node, DirectoryNode):
            raise NotALogError(path=path, reason="a directory was expected there")
        return node

    def _matching(self, directory: str, pattern: str) -> Iterator[str]:
        node = self._find(directory)
        if isinstance(node, DirectoryNode):
            for name in node.names:
                is_hidden = name.startswith(".") and not pattern.startswith(".")
                if fnmatch.fnmatchcase(name, pattern) and not is_hidden:
                    yield name

    def _open(self, path: str, *, is_writable: bool) -> SimulatedFile:
        with self._machine.step:
            node = self._file(path)
            if is_writable and node.is_read_only:
                raise LogAccessError(path=path, reason="permission denied", to_write=True)
            if self.open_files_max is not None and self.open_files >= self.open_files_max:
                raise LogAccessError(path=path, reason="too many open files", to_write=is_writable)
            return SimulatedFile(
                self._machine,
                self._process,
                path,
                node,
                is_writable=is_writable,
                reads=self.reads,
            )

    def _new_name(self, path: str, kind: OperationKind) -> None:
        if self._find(path) is not None:
            raise FileExistsLogError(path=path)
        parent, name = self.split(path)
        directory = self._find(parent)
        if directory is None:
            raise LogNotFoundError(path=path)
        if isinstance(directory, FileNode):
            raise NotALogError(path=path, reason="a directory was expected there")
        self._machine.require_room(path)
        self._machine.change(Operation(kind, path, directory.number, name))


def _files(tree: Tree) -> dict[str, bytes]:
    return {path: content for path, content in tree.paths() if content is not None}
