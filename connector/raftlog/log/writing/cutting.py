"""Take bytes off the end of a log so that they are never lost: saved aside first, then cut.

Rules of this file:

1. The copy is whole and durable under its name before a byte of the log goes. A crash between
   leaves the log as it was and a copy beside it; the next try finds that and makes no second.
2. A copy is called ``<base>.log.cut-<position>-<n>``, n from 1 on, and no reader takes it for a
   segment. Zeros alone are not worth a copy.
3. Memory is bounded by a chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count
from typing import Final

from raftlog.limits import MIB
from raftlog.records.header import is_zero
from raftlog.storage.protocol import ReadableFile, WritableStorage

from .replacing import TEMPORARY_SUFFIX

_CUT: Final = ".cut-"
_CHUNK_BYTES: Final = 1 * MIB


def saved_name(name: str, position: int, names: Collection[str]) -> str:
    """What the end of a file from ``position`` on is called when it is saved, if ``names`` are
    taken."""
    taken = (f"{name}{_CUT}{position}-{ordinal}" for ordinal in count(1))
    return next(free for free in taken if free not in names)


def save_aside(storage: WritableStorage, path: str, position: int) -> str | None:
    """Copy what a file holds from ``position`` on to a file beside it; the path of the copy.

    None if there is nothing, or nothing but zeros. Durable when it returns. Raises
    ``DiskFullError`` and ``DiskFailedError``: then nothing was cut.
    """
    directory, name = storage.split(path)
    names = storage.list_names(directory)
    with storage.open_file(path) as file:
        if all(is_zero(chunk, 0) for chunk in _chunks(file, position)):
            return None
        for other_name in names:
            is_copy = other_name.startswith(f"{name}{_CUT}{position}-")
            if is_copy and not other_name.endswith(TEMPORARY_SUFFIX):
                copy_path = storage.join(directory, other_name)
                with storage.open_file(copy_path) as other:
                    if _is_same(file, position, other):
                        return copy_path
        copy_path = storage.join(directory, saved_name(name, position, names))
        _write(storage, file, position, copy_path + TEMPORARY_SUFFIX)
    storage.rename(copy_path + TEMPORARY_SUFFIX, copy_path)
    storage.sync_directory(directory)
    return copy_path


def cut(storage: WritableStorage, path: str, position: int) -> str | None:
    """Make a file end at ``position``; the path of the copy of what lay behind, if it is worth one.

    Durable when it returns.
    """
    saved_as = save_aside(storage, path, position)
    with storage.open_for_writing(path) as file:
        file.truncate(position)
        file.sync()
    return saved_as


def _write(storage: WritableStorage, file: ReadableFile, position: int, path: str) -> None:
    directory, name = storage.split(path)
    if name in storage.list_names(directory):
        storage.unlink(path)
    with storage.create_file(path) as copy:
        at = 0
        for chunk in _chunks(file, position):
            copy.write_at(at, chunk)
            at += len(chunk)
        copy.sync()


def _chunks(file: ReadableFile, position: int) -> Iterator[bytes]:
    while chunk := file.read_at(position, _CHUNK_BYTES):
        yield chunk
        position += len(chunk)


def _is_same(file: ReadableFile, position: int, copy: ReadableFile) -> bool:
    """Whether a copy holds exactly what a file holds from ``position`` on."""
    if file.byte_count() - position != copy.byte_count():
        return False
    return all(
        mine == theirs
        for mine, theirs in zip(_chunks(file, position), _chunks(copy, 0), strict=True)
    )
