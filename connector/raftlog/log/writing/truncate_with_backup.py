"""Truncate a segment, after a backup of the truncated bytes.

    copy [position, end of file) to <base>.log.cut-<position>-<n>.tmp, sync
    rename to <base>.log.cut-<position>-<n>, sync the directory
    truncate <base>.log to ``position``, sync

A crash before the last step leaves the log unchanged beside a backup; the next attempt finds that
backup by its content and makes no second one.

Readers ignore backups. n increases from backup to backup of a directory, so it gives their age.
Bytes that are all zeros are not backed up. Number and total size of the backups are bounded
(``BACKUPS_MAX``, ``BACKUP_BYTES_MAX``): the oldest are deleted and reported, but never one of the
same operation. Memory is bounded by a chunk.
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

from .log_directory import TEMPORARY_SUFFIX

DAMAGED_SUFFIX: Final = ".damaged"
"""Suffix of a whole segment that was renamed as damaged; a number follows it."""
_CUT: Final = ".cut-"
_BACKUP_NAME: Final = re.compile(r"\d{20}\S*\.(?:cut-\d+-(\d+)|damaged(?:-(\d+))?)")
_CHUNK_BYTES: Final = 1 * MIB


def backup_name(name: str, position: int, names: Collection[str]) -> str:
    """Return the name for a backup of file ``name`` from ``position`` on, next to ``names``."""
    return f"{name}{_CUT}{position}-{next_backup_ordinal(names)}"


def next_backup_ordinal(names: Collection[str]) -> int:
    """Return the number of the next backup in a directory."""
    return 1 + max(
        (ordinal for name in names if (ordinal := _ordinal(name)) is not None), default=0
    )


def delete_old_backups(storage: WritableStorage, directory: str, *, before: int) -> tuple[str, ...]:
    """Delete the oldest backups while number or size exceeds the bound; return their paths.

    Backups numbered ``before`` or above are kept. Durable on return.
    """
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
    """Return the number of a backup (0 for one of an earlier release), or None for another file."""
    match = _BACKUP_NAME.fullmatch(name)
    return None if match is None else int(match[1] or match[2] or 0)


def back_up(storage: WritableStorage, path: str, position: int) -> str | None:
    """Copy a file's bytes from ``position`` on to a backup; return its path. Durable on return.

    None if there are no bytes or only zeros. Raises ``DiskFullError`` and ``DiskFailedError``.
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
    """Truncate a file to ``position`` after a backup; return the backup's path. Durable on return.

    None if no backup was needed.
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
    """Return whether a backup holds exactly the file's bytes from ``position`` on."""
    if file.byte_count() - position != copy.byte_count():
        return False
    return all(
        left == right for left, right in zip(_chunks(file, position), _chunks(copy, 0), strict=True)
    )
