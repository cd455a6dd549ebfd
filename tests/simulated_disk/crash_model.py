"""State of a file and of a directory after a power loss: the crash model, pure.

Invariants:

1. A change is pending until its file or directory is synced. A power loss decides on each pending
   change separately: dropped, kept, truncated to its first bytes, torn by sectors of 512 bytes, or
   zero-filled. There is no order between them, as on a disk.
2. A failed sync makes its pending changes lost: they can still be read, a later sync does not write
   them, and no power loss keeps them (Rebello et al., ATC 2020).
3. Zero-filling makes a file longer, as a file system does that stores the length before the bytes;
   bytes that existed before are never zeroed.
4. A name is never lost by a change of another one: if the change that freed a name was dropped,
   later changes that reuse it are dropped too. A rename is one change.
5. A kernel does not keep changes in memory forever: the oldest of very many are durable.
6. Randomness is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random
from typing import Final

SECTOR_BYTES: Final = 512
"""Unit that a disk writes atomically."""


PENDING_CHANGES_MAX: Final = 4096
"""Maximum of pending changes of a file; beyond it the kernel has written the older half."""


class Survival(Enum):
    """Fate of all unsynced changes in a power loss."""

    NOTHING = auto()
    """All changes are dropped: bytes and names."""
    EVERYTHING = auto()
    """All changes are kept, as if only the process had died."""
    NAMES_ONLY = auto()
    """Names are kept and bytes dropped: new files exist and are empty."""
    DATA_ONLY = auto()
    """Bytes are kept and names dropped: new files are missing, renamed ones have their old name."""
    CUT = auto()
    """Each file and each directory keeps its first changes, and a first part of the next one."""
    TORN = auto()
    """Each sector, truncation and name is kept or dropped separately."""
    ZEROED = auto()
    """Names and lengths are kept; from some change on the bytes of a file are zeros."""
    MIXED = auto()
    """Each change has any of these fates separately."""


class ChangeState(Enum):
    """State of a change before a power loss."""

    PENDING = auto()
    DURABLE = auto()
    LOST = auto()


class _Outcome(Enum):
    """Outcome of one pending change of a file in a power loss."""

    DROPPED = auto()
    KEPT = auto()
    CUT = auto()
    TORN = auto()
    ZEROED = auto()


_OUTCOMES: Final = tuple(_Outcome)


@dataclass(slots=True)
class DataChange:
    """Write (``data``) or truncation (``byte_count``), with what is needed to undo it."""

    position: int
    data: bytes
    byte_count: int | None
    undo: bytes
    byte_count_before: int
    state: ChangeState = ChangeState.PENDING


@dataclass(slots=True)
class FileNode:
    """File without its name. ``content`` is ``bytes`` while other states share it."""

    number: int
    content: bytes | bytearray = b""
    changes: list[DataChange] = field(default_factory=list)
    is_read_only: bool = False

    def write(self, position: int, data: bytes) -> None:
        """Write bytes at a position; a hole before them is zeros."""
        content = self._own_content()
        byte_count = len(content)
        undo = bytes(content[position : position + len(data)])
        self._append(DataChange(position, data, None, undo, byte_count))
        _put(content, position, data)

    def truncate(self, byte_count: int) -> None:
        """Truncate the file, or extend it with zeros."""
        content = self._own_content()
        undo = bytes(content[byte_count:])
        self._append(DataChange(byte_count, b"", byte_count, undo, len(content)))
        _resize(content, byte_count)

    def sync(self) -> None:
        """Make pending changes durable."""
        if any(change.state is ChangeState.LOST for change in self.changes):
            self._settle(ChangeState.DURABLE)
        else:
            self.changes.clear()

    def fail_sync(self) -> None:
        """Lose pending changes permanently, without an effect on what can be read."""
        self._settle(ChangeState.LOST)

    def flip_bit(self, bit: int) -> None:
        """Damage the file on the disk: byte ``bit // 8``, the bit of value ``1 << bit % 8``."""
        position = bit // 8
        flipped = bytes([self.content[position] ^ (1 << bit % 8)])
        self.write(position, flipped)
        if len(self.changes) == 1:
            self.changes.clear()
        else:
            self.changes[-1].state = ChangeState.DURABLE

    def after_crash(self, survival: Survival, chance: Random) -> FileNode:
        """Return the file after a power loss. This one does not change."""
        content = self.shared_content()
        if self.changes:
            content = self._surviving_content(survival, chance)
        return FileNode(self.number, content, is_read_only=self.is_read_only)

    def copy(self) -> FileNode:
        """Return the same file with the same pending changes."""
        changes = [replace(change) for change in self.changes]
        return FileNode(self.number, self.shared_content(), changes, self.is_read_only)

    def shared_content(self) -> bytes:
        """Return the content as immutable bytes; copied only after it was written to."""
        if isinstance(self.content, bytearray):
            self.content = bytes(self.content)
        return self.content

    def _append(self, change: DataChange) -> None:
        self.changes.append(change)
        if len(self.changes) > PENDING_CHANGES_MAX:
            older = self.changes[: PENDING_CHANGES_MAX // 2]
            if all(change.state is ChangeState.PENDING for change in older):
                del self.changes[: len(older)]

    def _own_content(self) -> bytearray:
        if isinstance(self.content, bytes):
            self.content = bytearray(self.content)
        return self.content

    def _settle(self, state: ChangeState) -> None:
        for change in self.changes:
            if change.state is ChangeState.PENDING:
                change.state = state

    def _surviving_content(self, survival: Survival, chance: Random) -> bytes:
        image = bytearray(self.content)
        for change in reversed(self.changes):
            image[change.position : change.position + len(change.data)] = change.undo
            _resize(image, change.byte_count_before)
        pending = [change for change in self.changes if change.state is ChangeState.PENDING]
        outcomes = iter(_outcomes(len(pending), survival, chance))
        for change in self.changes:
            if change.state is ChangeState.DURABLE:
                _apply(image, change, _Outcome.KEPT, chance)
            elif change.state is ChangeState.PENDING:
                _apply(image, change, next(outcomes), chance)
        return bytes(image)


def _outcomes(count: int, survival: Survival, chance: Random) -> Sequence[_Outcome]:
    """Return the outcome of each of ``count`` pending changes of a file, in order."""
    match survival:
        case Survival.NOTHING | Survival.NAMES_ONLY:
            return [_Outcome.DROPPED] * count
        case Survival.EVERYTHING | Survival.DATA_ONLY:
            return [_Outcome.KEPT] * count
        case Survival.TORN:
            return [_Outcome.TORN] * count
        case Survival.MIXED:
            return chance.choices(_OUTCOMES, k=count)
        case Survival.ZEROED:
            kept = chance.randint(0, count)
            return [_Outcome.KEPT] * kept + [_Outcome.ZEROED] * (count - kept)
        case Survival.CUT:
            kept = chance.randint(0, count)
            rest = [_Outcome.CUT] + [_Outcome.DROPPED] * count
            return [_Outcome.KEPT] * kept + rest[: count - kept]


def _apply(image: bytearray, change: DataChange, outcome: _Outcome, chance: Random) -> None:
    """Apply to a file's durable image what a power loss leaves of one change."""
    if outcome is _Outcome.DROPPED:
        return
    if change.byte_count is not None:
        if outcome in (_Outcome.KEPT, _Outcome.ZEROED) or chance.random() < 0.5:
            _resize(image, change.byte_count)
        return
    data, position = change.data, change.position
    match outcome:
        case _Outcome.KEPT:
            _put(image, position, data)
        case _Outcome.CUT:
            first_part = data[: chance.randint(0, len(data))]
            if first_part:
                _put(image, position, first_part)
        case _Outcome.TORN:
            for start, end in _sectors(position, len(data)):
                if chance.random() < 0.5:
                    _put(image, start, data[start - position : end - position])
        case _Outcome.ZEROED:
            _resize(image, max(len(image), position + len(data)))


def _sectors(position: int, byte_count: int) -> Sequence[tuple[int, int]]:
    """Split a range of a file at multiples of a sector."""
    end = position + byte_count
    cuts = [position, *range(position - position % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES)]
    return list(zip(cuts, [*cuts[1:], end], strict=True)) if byte_count else []


def _put(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, byte_count: int) -> None:
    if byte_count > len(content):
        content.extend(bytes(byte_count - len(content)))
    else:
        del content[byte_count:]


# --- names ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class NameChange:
    """Removal of a name from a directory (``old``), addition (``new``), or both in one step."""

    node: int
    old: str | None
    new: str | None
    state: ChangeState = ChangeState.PENDING


@dataclass(slots=True)
class DirectoryNode:
    """Names of one directory: as seen by processes, as on the disk, and the changes between."""

    number: int
    names: dict[str, int] = field(default_factory=dict)
    durable_names: dict[str, int] = field(default_factory=dict)
    changes: list[NameChange] = field(default_factory=list)

    def change(self, node: int, *, old: str | None = None, new: str | None = None) -> None:
        """Add, remove or rename. An existing new name is replaced."""
        change = NameChange(node, old, new)
        self.changes.append(change)
        _rename(self.names, change)

    def sync(self) -> None:
        """Make pending changes durable."""
        kept = [change.state is not ChangeState.LOST for change in self.changes]
        _survive(self.durable_names, self.changes, kept)
        self.changes = [change for change in self.changes if change.state is ChangeState.LOST]

    def fail_sync(self) -> None:
        """Lose pending changes permanently, without an effect on what can be listed."""
        for change in self.changes:
            change.state = ChangeState.LOST

    def after_crash(self, survival: Survival, chance: Random) -> DirectoryNode:
        """Return the directory after a power loss. This one does not change."""
        names = dict(self.durable_names)
        if self.changes:
            kept = _names_kept(len(self.changes), survival, chance)
            is_possible = [change.state is ChangeState.PENDING for change in self.changes]
            _survive(names, self.changes, [a and b for a, b in zip(kept, is_possible, strict=True)])
        return DirectoryNode(self.number, names, dict(names))

    def copy(self) -> DirectoryNode:
        """Return the same directory with the same pending changes."""
        changes = [replace(change) for change in self.changes]
        return DirectoryNode(self.number, dict(self.names), dict(self.durable_names), changes)


def _names_kept(count: int, survival: Survival, chance: Random) -> Sequence[bool]:
    """Return which of ``count`` pending changes of a directory a power loss keeps."""
    match survival:
        case Survival.NOTHING | Survival.DATA_ONLY:
            return [False] * count
        case Survival.EVERYTHING | Survival.NAMES_ONLY | Survival.ZEROED:
            return [True] * count
        case Survival.CUT:
            kept = chance.randint(0, count)
            return [ordinal < kept for ordinal in range(count)]
        case Survival.TORN | Survival.MIXED:
            return [chance.random() < 0.5 for _ in range(count)]


def _survive(names: dict[str, int], changes: Sequence[NameChange], kept: Sequence[bool]) -> None:
    """Apply the kept changes to a directory's durable names; see rule 4."""
    never_freed = set()
    for change, is_kept in zip(changes, kept, strict=True):
        if is_kept and change.new not in never_freed:
            _rename(names, change)
        elif change.old is not None:
            never_freed.add(change.old)


def _rename(names: dict[str, int], change: NameChange) -> None:
    if change.old is not None and names.get(change.old) == change.node:
        del names[change.old]
    if change.new is not None:
        names[change.new] = change.node
