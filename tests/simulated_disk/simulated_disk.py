"""A disk in memory that forgets what was not synced, fails on demand and says what was done to it.

Rules of this file:

1. It keeps the promises of ``WritableStorage`` and no more: what a power loss leaves is decided in
   ``survival``; the moment and the seed are the caller's.
2. ``kill`` ends a process: nothing is lost, its locks are free. ``crash`` ends the machine.
3. The same calls with the same seed give the same disk.
4. Several threads may use one disk, each its own files: one call is one step.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator
from random import Random

from raftlog.errors import FileExistsLogError, LogAccessError, LogNotFoundError, NotALogError

from .crash_model import DirectoryNode, FileNode, Survival
from .crash_points import CrashState, Recording
from .simulated_machine import CrashPoint, Machine, Process, SimulatedFile, SimulatedLock
from .simulated_tree import Node, Operation, OperationKind, Tree, names_of

__all__ = ["CrashPoint", "SimulatedDisk", "Survival"]


class SimulatedDisk:
    """A process's view of a simulated disk: a ``WritableStorage``. Paths are absolute, with ``/``.

    ``reads`` counts the bytes that were read of each path; ``open_files_max`` refuses to open more.
    """

    def __init__(self, seed: int = 0, *, tree: Tree | None = None) -> None:
        self._begin(Machine(tree or Tree(), seed))

    def _begin(self, machine: Machine) -> None:
        self._machine = machine
        self._process = Process(machine.boot_number)
        self.reads: dict[str, int] = {}
        self.open_files_max: int | None = None

    @classmethod
    def after(cls, state: CrashState, seed: int = 0) -> SimulatedDisk:
        """The disk of one recorded death, to be opened by a new process. Use a state once."""
        disk = cls(seed, tree=state.tree)
        disk._machine.boot_number = disk._process.boot_number = state.boot_number
        return disk

    def another_process(self) -> SimulatedDisk:
        """The same disk seen by another process: its files and locks die with it alone."""
        other = object.__new__(SimulatedDisk)
        other._begin(self._machine)
        return other

    # --- death ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End this process; the next use of this object is a new one. Nothing is lost."""
        machine = self._machine
        with machine.step:
            self._process.is_killed = True
            for node, lock in list(machine.locks.items()):
                if lock.process is self._process:
                    del machine.locks[node]
            self._process = Process(machine.boot_number)
            machine.stop_at = None

    def crash(self, survival: Survival = Survival.MIXED, seed: int | None = None) -> None:
        """Cut the power: every process ends, and what was not synced survives as ``survival`` says.

        Without a seed, chance goes on from the seed of the disk. Faults and recordings end. Other
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
        """Let this many operations of the disk happen, counted from its making; then die."""
        self._machine.stop_at = operation_count

    @property
    def operation_count(self) -> int:
        """How many changes and syncs there were since the disk was made."""
        return self._machine.operation_count

    @property
    def open_files(self) -> int:
        """How many files this process has not closed."""
        return self._process.open_files

    # --- faults -----------------------------------------------------------------------------------

    def clear_faults(self) -> None:
        """Let everything work again."""
        self._machine.clear_faults()

    def fail_sync_once(self, pattern: str = "*") -> None:
        """Let the next sync of a matching path fail, and what it should have written be lost."""
        self._machine.sync_faults.append(pattern)

    def fail_write_once(self, pattern: str = "*") -> None:
        """Let the next write to a matching path fail with nothing written."""
        self._machine.write_faults.append(pattern)

    def full_at(self, byte_count: int | None) -> None:
        """Let files hold this many bytes together; None: as many as they like."""
        self._machine.byte_count_max = byte_count

    def leave_room(self, byte_count: int) -> None:
        """Let files grow by so many bytes together, from what they hold now."""
        self.full_at(self._machine.tree.byte_count() + byte_count)

    def refuse_writing(self, pattern: str | None) -> None:
        """Refuse every change of matching paths, as a read-only file system; None: of none."""
        self._machine.refused_writing = pattern

    def flip_bit(self, path: str, bit: int) -> None:
        """Damage a file on the disk: bit ``bit % 8`` (1, 2, 4, ...) of byte ``bit // 8``."""
        with self._machine.step:
            number = self._file(path).number
            self._machine.record(Operation(OperationKind.FLIP_BIT, path, number, position=bit))

    # --- looking from outside ---------------------------------------------------------------------

    def record(self) -> Recording:
        """Begin to record operations, from the disk as it is now until the next power loss."""
        with self._machine.step:
            recording = Recording(self._machine.tree.copy(), self._machine.boot_number)
            self._machine.recordings.append(recording)
            return recording

    def copy(self, seed: int = 0) -> SimulatedDisk:
        """Another machine with the same disk, what is pending included; no locks, no faults."""
        with self._machine.step:
            machine = self._machine
            state = CrashState(0, None, 0, machine.boot_number, machine.tree.copy())
            return SimulatedDisk.after(state, seed)

    def files(self) -> dict[str, bytes]:
        """Path and content of every file, as a process sees them now."""
        with self._machine.step:
            return _files(self._machine.tree)

    def durable_files(self) -> dict[str, bytes]:
        """Path and content of every file that a power loss which keeps nothing would leave."""
        with self._machine.step:
            return _files(self._machine.tree.after_crash(Survival.NOTHING, Random(0)))

    def put(self, path: str, data: bytes) -> None:
        """Place a durable file, with the directories above it; the old one goes."""
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
        """The names in ``directory``, sorted."""
        with self._machine.step:
            return sorted(self._directory(directory).names)

    def open_file(self, path: str) -> SimulatedFile:
        """Open a file for reading."""
        return self._open(path, is_writable=False)

    def is_directory(self, path: str) -> bool:
        """Whether ``path`` is a directory. Raises ``LogNotFoundError`` if nothing is there."""
        with self._machine.step:
            return isinstance(self._node(path), DirectoryNode)

    def join(self, directory: str, name: str) -> str:
        """The path of ``name`` in ``directory``."""
        return posixpath.join(directory, name)

    def split(self, path: str) -> tuple[str, str]:
        """The directory that ``path`` lies in and its own name."""
        return posixpath.split(posixpath.normpath(posixpath.join("/", path)))

    def expand(self, pattern: str) -> list[str]:
        """The paths that a shell pattern matches, sorted."""
        with self._machine.step:
            found = [""]
            for part in names_of(pattern):
                found = [f"{path}/{name}" for path in found for name in self._matching(path, part)]
            return sorted(path for path in found if path)

    # --- writing ----------------------------------------------------------------------------------

    def create_file(self, path: str) -> SimulatedFile:
        """Make an empty file that was not there."""
        with self._machine.step:
            self._new_name(path, OperationKind.CREATE)
            return self._open(path, is_writable=True)

    def open_for_writing(self, path: str) -> SimulatedFile:
        """Open a file that is there."""
        return self._open(path, is_writable=True)

    def make_directory(self, path: str) -> bool:
        """Make one directory; False if it was there."""
        with self._machine.step:
            node = self._find(path)
            if isinstance(node, FileNode):
                raise NotALogError(path=path, reason="a directory was expected there")
            if node is None:
                self._new_name(path, OperationKind.MAKE_DIRECTORY)
            return node is None

    def rename(self, path: str, new_path: str) -> None:
        """Rename in one step, replacing a file that has the new name."""
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
        """Take a file out of its directory."""
        with self._machine.step:
            self._file(path)
            parent, name = self.split(path)
            number = self._directory(parent).number
            self._machine.change(Operation(OperationKind.UNLINK, path, number, name))

    def set_read_only(self, path: str, *, owner_only: bool = False) -> None:
        """Refuse to open a file for writing from now on; whoever is here is its owner."""
        with self._machine.step:
            number = self._file(path).number
            self._machine.change(Operation(OperationKind.SET_READ_ONLY, path, number))

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory durable."""
        with self._machine.step:
            number = self._directory(directory).number
            self._machine.sync(Operation(OperationKind.SYNC_DIRECTORY, directory, number))

    def try_lock(self, path: str) -> SimulatedLock | None:
        """Lock a file, made if need be; None if somebody holds it."""
        with self._machine.step:
            if self._find(path) is None:
                self._new_name(path, OperationKind.CREATE)
            node = self._file(path).number
            if node in self._machine.locks:
                return None
            lock = self._machine.locks[node] = SimulatedLock(self._machine, self._process, node)
            return lock

    def boot_id(self) -> str:
        """Another text of the form of Linux's after every power loss."""
        return f"00000000-0000-4000-8000-{self._machine.boot_number:012d}"

    # --- how --------------------------------------------------------------------------------------

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
