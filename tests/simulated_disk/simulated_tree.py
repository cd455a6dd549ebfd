"""Tree of simulated files and directories, and the record of its operations; pure.

Invariants:

1. Nodes have numbers in order of creation, so an operation has the same meaning when it is applied
   to a copy of the tree on which it was recorded.
2. The caller (``SimulatedDisk``) resolves paths and raises errors.
3. Copies share the contents of files until one of them is written to: a copy costs the number of
   files, not their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from random import Random
from typing import Final

from .crash_model import DirectoryNode, FileNode, Survival

Node = FileNode | DirectoryNode
ROOT_NODE: Final = 0


class OperationKind(StrEnum):
    """Kind of operation on a disk."""

    CREATE = auto()
    MAKE_DIRECTORY = auto()
    WRITE = auto()
    TRUNCATE = auto()
    SYNC = auto()
    RENAME = auto()
    UNLINK = auto()
    SET_READ_ONLY = auto()
    SYNC_DIRECTORY = auto()
    FAIL_SYNC = auto()
    FLIP_BIT = auto()


@dataclass(frozen=True, slots=True)
class Operation:
    """Change of a disk, or a sync.

    ``node``: the file, or for a name its directory. ``path`` is for output only: the path that
    opened the file, or the name before the operation. ``position``: of a write; the new length of a
    truncation; the number of a flipped bit.
    """

    kind: OperationKind
    path: str
    node: int
    name: str = ""
    new_name: str = ""
    position: int = 0
    data: bytes = b""

    def __str__(self) -> str:
        facts = f" at {self.position}" if self.position else ""
        facts += f" {len(self.data)} bytes" if self.data else ""
        facts += f" to {self.new_name}" if self.new_name else ""
        return f"{self.kind} {self.path}{facts}"


def names_of(path: str) -> list[str]:
    """Return the names along an absolute path, for ``Tree.find``."""
    return [name for name in path.split("/") if name]


class Tree:
    """All nodes of a disk; the root directory is node 0."""

    def __init__(self, nodes: dict[int, Node] | None = None, next_number: int = 1) -> None:
        self.nodes: dict[int, Node] = nodes or {ROOT_NODE: DirectoryNode(ROOT_NODE)}
        self.next_number = next_number

    def find(self, names: list[str]) -> Node | None:
        """Return the node at a path from the root; None if a name on the way does not exist."""
        node: Node = self.nodes[ROOT_NODE]
        for name in names:
            if not isinstance(node, DirectoryNode) or name not in node.names:
                return None
            node = self.nodes[node.names[name]]
        return node

    def paths(
        self, directory: int = ROOT_NODE, prefix: str = ""
    ) -> Iterator[tuple[str, bytes | None]]:
        """Return every path below a directory with its content (None: a directory), sorted."""
        for name, number in sorted(self.directory(directory).names.items()):
            node = self.nodes[number]
            if isinstance(node, FileNode):
                yield f"{prefix}/{name}", node.shared_content()
            else:
                yield f"{prefix}/{name}", None
                yield from self.paths(number, f"{prefix}/{name}")

    def byte_count(self) -> int:
        """Return the total size of all files that have a name."""
        numbers = [ROOT_NODE]
        byte_count = 0
        for number in numbers:  # grows during the iteration
            node = self.nodes[number]
            if isinstance(node, FileNode):
                byte_count += len(node.content)
            else:
                numbers.extend(node.names.values())
        return byte_count

    def file(self, number: int) -> FileNode:
        """Return a file by its number."""
        node = self.nodes[number]
        assert isinstance(node, FileNode), f"node {number} is a directory"
        return node

    def directory(self, number: int) -> DirectoryNode:
        """Return a directory by its number."""
        node = self.nodes[number]
        assert isinstance(node, DirectoryNode), f"node {number} is a file"
        return node

    @property
    def is_durable(self) -> bool:
        """Return whether a power loss now would change nothing."""
        return not any(node.changes for node in self.nodes.values())

    def do(self, operation: Operation) -> None:
        """Apply an operation, which must be possible: the caller has checked it.

        An operation on an unlinked file that a copy omitted has no effect.
        """
        number = operation.node
        if number not in self.nodes:
            return
        match operation.kind:
            case OperationKind.WRITE:
                self.file(number).write(operation.position, operation.data)
            case OperationKind.SYNC:
                self.file(number).sync()
            case OperationKind.CREATE | OperationKind.MAKE_DIRECTORY:
                kind = FileNode if operation.kind is OperationKind.CREATE else DirectoryNode
                self.nodes[self.next_number] = kind(self.next_number)
                self.directory(number).change(self.next_number, new=operation.name)
                self.next_number += 1
            case OperationKind.TRUNCATE:
                self.file(number).truncate(operation.position)
            case OperationKind.RENAME:
                directory = self.directory(number)
                node = directory.names[operation.name]
                directory.change(node, old=operation.name, new=operation.new_name)
            case OperationKind.UNLINK:
                directory = self.directory(number)
                directory.change(directory.names[operation.name], old=operation.name)
            case OperationKind.SET_READ_ONLY:
                self.file(number).is_read_only = True
            case OperationKind.SYNC_DIRECTORY:
                self.directory(number).sync()
            case OperationKind.FAIL_SYNC:
                self.nodes[number].fail_sync()
            case OperationKind.FLIP_BIT:
                self.file(number).flip_bit(operation.position)

    def after_crash(self, survival: Survival, chance: Random) -> Tree:
        """Return the tree after a power loss, without nodes that have no name."""
        directories: dict[int, Node] = {}
        found = [ROOT_NODE]
        for number in found:  # grows during the iteration
            directories[number] = self.nodes[number].after_crash(survival, chance)
            after = directories[number]
            if isinstance(after, DirectoryNode):
                found.extend(after.names.values())
        return Tree(directories, self.next_number)

    def copy(self) -> Tree:
        """Return the same tree and pending changes, without nodes that no name can refer to."""
        nodes: dict[int, Node] = {}
        found = [ROOT_NODE]
        for number in found:  # grows during the iteration
            if number not in nodes:
                nodes[number] = node = self.nodes[number].copy()
                if isinstance(node, DirectoryNode):
                    found.extend(node.names.values())
                    found.extend(node.durable_names.values())
                    found.extend(change.node for change in node.changes)
        return Tree(nodes, self.next_number)
