"""Take bytes off the end of a log so that they are never lost: saved aside first, then cut.

Rules of this file:

1. The copy is whole and durable under its name before a byte of the log goes. A crash between
   leaves the log as it was and a copy beside it; the next try finds that and makes no second.
2. A copy is called ``<base>.log.cut-<position>-<n>``, and no reader takes it for a segment. n
   ascends in a directory from copy to copy, so it says which is the oldest. Zeros alone are not
   worth a copy.
3. Copies are bounded in number and bytes (``BACKUPS_MAX``, ``BACKUP_BYTES_MAX``): the oldest
   are deleted, and reported, but none that the same operation made.
4. Memory is bounded by a chunk.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Final

from raftlog.errors import LogNotFoundError
from raftlog.limits import BACKUP_BYTES_MAX, BACKUPS_MAX, MIB
from raftlog.records.header import is_zero
from raftlog.storage.protocol import ReadableFile, WritableStorage

from .atomic_files import TEMPORARY_SUFFIX

DAMAGED_SUFFIX: Final = ".damaged"
"""Of a whole segment that was set aside; a number follows it."""
_CUT: Final = ".cut-"
_BACKUP_NAME: Final = re.compile(r"\d{20}\S*\.(?:cut-\d+-(\d+)|damaged(?:-(\d+))?)")
_CHUNK_BYTES: Final = 1 * MIB


def backup_name(name: str, position: int, names: Collection[str]) -> str:
    """What the end of a file from ``position`` on is called when it is saved beside ``names``."""
    return f"{name}{_CUT}{position}-{next_backup_ordinal(names)}"


def next_backup_ordinal(names: Collection[str]) -> int:
    """The number of the next copy that is saved in a directory."""
    return 1 + max(
        (ordinal for name in names if (ordinal := _ordinal(name)) is not None), default=0
    )


def delete_old_backups(storage: WritableStorage, directory: str, *, before: int) -> tuple[str, ...]:
    """Delete the oldest saved backups, of those below the number ``before``, while there are too
    many or they hold too much; their paths. Durable on return."""
    backups: list[tuple[int, str, int]] = []
    for name in storage.list_names(directory):
        ordinal, path = _ordinal(name), storage.join(directory, name)
        if ordinal is not None:
            with contextlib.suppress(LogNotFoundError), storage.open_file(path) as file:
                backups.append((ordinal, path, file.byte_count()))
    backups.sort()
    byte_count = sum(size for _, _, size in backups)
    deleted: list[str] = []
    for at, (ordinal, path, size) in enumerate(backups):
        is_bounded = len(backups) - at <= BACKUPS_MAX and byte_count <= BACKUP_BYTES_MAX
        if is_bounded or ordinal >= before:
            break
        with contextlib.suppress(LogNotFoundError):
            storage.unlink(path)
        byte_count -= size
        deleted.append(path)
    if deleted:
        storage.sync_directory(directory)
    return tuple(deleted)


def _ordinal(name: str) -> int | None:
    """The number of a saved copy (0 of one that an earlier release did not number), or None."""
    match = _BACKUP_NAME.fullmatch(name)
    return None if match is None else int(match[1] or match[2] or 0)


def back_up(storage: WritableStorage, path: str, position: int) -> str | None:
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
            is_backup = other_name.startswith(f"{name}{_CUT}{position}-")
            if is_backup and not other_name.endswith(TEMPORARY_SUFFIX):
                backup_path = storage.join(directory, other_name)
                with storage.open_file(backup_path) as other:
                    if _is_same(file, position, other):
                        return backup_path
        backup_path = storage.join(directory, backup_name(name, position, names))
        _write(storage, file, position, backup_path + TEMPORARY_SUFFIX)
    storage.rename(backup_path + TEMPORARY_SUFFIX, backup_path)
    storage.sync_directory(directory)
    return backup_path


def truncate_with_backup(storage: WritableStorage, path: str, position: int) -> str | None:
    """Make a file end at ``position``; the path of the copy of what lay behind, if it is worth one.

    Durable when it returns.
    """
    saved_as = back_up(storage, path, position)
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
        left == right for left, right in zip(_chunks(file, position), _chunks(copy, 0), strict=True)
    )
