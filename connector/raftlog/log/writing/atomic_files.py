"""Crash-safe changes of a log's directory: small files, and backups of truncated bytes.

Text files have no checksum of their own and are written with ``replace_checked``; other files are
written with ``replace_file``. Only ``published`` and ``synced`` are written in place and never
synced, because they are valid only within one boot.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from crc32c import crc32c

from raftlog.errors import CorruptFileError, DiskFullError, LogError, LogNotFoundError
from raftlog.limits import BACKUP_BYTES_MAX, BACKUPS_MAX, MIB
from raftlog.log.format.directory import (
    CHECKSUMS_NAME,
    Checksums,
    encode_checksums,
    parse_checksums,
    read_small_file,
)
from raftlog.records.header import is_zero
from raftlog.storage.protocol import ReadableFile, Storage, WritableStorage

# --- Atomic replacement of small files, and the ``checksums`` file that detects their damage ------
# Kafka's text and JSON files have no checksum, and Kafka rejects extra lines in some of them.
# Therefore ``checksums`` in the same directory lists the valid CRC-32C values of each file. After a
# replacement it lists those of both the old and the new content:
#
#                                          content on disk      in ``checksums``
#     before                               old                  crc(old)
#     replace ``checksums``, durably       old                  crc(old) crc(new)
#     write <name>.tmp, sync, rename       old or new           crc(old) crc(new)
#     sync the directory                   new                  crc(old) crc(new)
#
# Invariants:
#
# 1. After a power loss at any time, the old or the new file is there as a whole, with a matching
#    checksum.
# 2. Every flipped bit of ``checksums`` is detected. A file that it does not list is not checked;
#    nor are the files of a directory without ``checksums``, which Kafka wrote.
# 3. There is one writer at a time. Readers take no lock and may read during a replacement.

TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a file that is not renamed yet. After a crash the file is deleted."""

_ATTEMPTS_MAX: Final = 100
"""Retries of a reader while the file is being replaced."""


def replace_file(storage: WritableStorage, path: str, data: bytes) -> None:
    """Replace or create a file atomically; durable on return.

    Raises ``DiskFullError`` and ``LogAccessError``, which leave the old file unchanged, and
    ``DiskFailedError``, after which a power loss may leave the old or the new file.
    """
    _write_and_rename(storage, path, (data,))
    storage.sync_directory(storage.split(path)[0])


def replace_checked(storage: WritableStorage, directory: str, files: Mapping[str, bytes]) -> None:
    """Replace files of a directory and their checksums; durable on return.

    After a power loss during the call, each file independently is old or new. ``read_checked``
    accepts both.
    """
    try:
        before = read_checksums(storage, directory) or {}
    except CorruptFileError:
        before = {}  # unreadable, and replaced below
    checksums = dict(before)
    for name, data in files.items():
        old = read_small_file(storage, storage.join(directory, name))
        old_crc = None if old is None else crc32c(old)
        # Do not list the checksum of a damaged file.
        is_valid = old_crc is not None and (name not in before or old_crc in before[name])
        allowed = {crc32c(data), old_crc} if is_valid else {crc32c(data)}
        checksums[name] = tuple(sorted(crc for crc in allowed if crc is not None))
    if checksums != before:
        # A killed writer may have renamed these files without syncing the directory. Sync it, or a
        # power loss could restore old files whose checksums are no longer listed.
        storage.sync_directory(directory)
        replace_file(storage, storage.join(directory, CHECKSUMS_NAME), encode_checksums(checksums))
    for name, data in files.items():
        _write_and_rename(storage, storage.join(directory, name), (data,))
    storage.sync_directory(directory)


def rebuild_checksums(storage: WritableStorage, directory: str, names: Iterable[str]) -> None:
    """Rewrite a damaged or lost ``checksums`` file from the files' current content.

    The caller must have verified these files by other means.
    """
    checksums = {}
    for name in names:
        data = read_small_file(storage, storage.join(directory, name))
        if data is not None:
            checksums[name] = (crc32c(data),)
    replace_file(storage, storage.join(directory, CHECKSUMS_NAME), encode_checksums(checksums))


def read_checked(storage: Storage, path: str) -> bytes | None:
    """Return the content of a small file, or None if it does not exist.

    Raises ``CorruptFileError`` if ``checksums`` lists other values for the file, or if
    ``checksums`` itself is damaged; the error's ``path`` is then that of ``checksums``.
    """
    directory, name = storage.split(path)
    sidecar_path = storage.join(directory, CHECKSUMS_NAME)
    seen: tuple[bytes | None, bytes | None] | None = None
    for _ in range(_ATTEMPTS_MAX):
        data = read_small_file(storage, path)
        if data is None:
            return None
        sidecar = read_small_file(storage, sidecar_path)
        if sidecar is None:
            return data
        allowed = parse_checksums(sidecar, sidecar_path).get(name)
        if allowed is None or crc32c(data) in allowed:
            return data
        if seen == (data, sidecar):  # nothing has changed: no replacement is in progress
            break
        seen = (data, sidecar)
    raise CorruptFileError(
        path=path,
        reason=f"its checksum does not match {CHECKSUMS_NAME}: it is damaged or was edited by hand",
    )


def read_checksums(storage: Storage, directory: str) -> Checksums | None:
    """Read ``checksums`` of a directory; None if missing. Raises ``CorruptFileError``."""
    path = storage.join(directory, CHECKSUMS_NAME)
    data = read_small_file(storage, path)
    return None if data is None else parse_checksums(data, path)


def _write_and_rename(storage: WritableStorage, path: str, chunks: Iterable[bytes]) -> None:
    """Write, sync and rename. The new name is not durable yet."""
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(LogNotFoundError):
        storage.unlink(temporary)  # left by a crash
    try:
        with storage.create_file(temporary) as file:
            position = 0
            for chunk in chunks:
                file.write_at(position, chunk)
                position += len(chunk)
            file.sync()
    except DiskFullError:
        with contextlib.suppress(LogError):
            storage.unlink(temporary)
        raise
    storage.rename(temporary, path)


# --- Truncate a segment, after a backup of the truncated bytes ------------------------------------
#     copy [position, end of file) to <base>.log.cut-<position>-<n>.tmp, sync
#     rename to <base>.log.cut-<position>-<n>, sync the directory
#     truncate <base>.log to ``position``, sync
#
# A crash before the last step leaves the log unchanged and a backup next to it. The next attempt
# recognizes that backup by its content and does not create a second one.
#
# Readers ignore backups. n increases with each backup in a directory and therefore gives their age.
# Bytes that are all zeros are not backed up. The number and total size of the backups are bounded
# (``BACKUPS_MAX``, ``BACKUP_BYTES_MAX``): the oldest ones are deleted and reported, but never a
# backup of the same operation. Copying needs memory for one chunk only.

DAMAGED_SUFFIX: Final = ".damaged"
"""Suffix of a segment that was renamed as a whole because it is damaged; a number follows."""
_CUT: Final = ".cut-"
_BACKUP_NAME: Final = re.compile(r"\d{20}\S*\.(?:cut-\d+-(\d+)|damaged(?:-(\d+))?)")
_CHUNK_BYTES: Final = 1 * MIB


def backup_name(name: str, position: int, names: Collection[str]) -> str:
    """Return the name for a backup of file ``name`` from ``position`` on, unused in ``names``."""
    return f"{name}{_CUT}{position}-{next_backup_ordinal(names)}"


def next_backup_ordinal(names: Collection[str]) -> int:
    """Return the number of the next backup in a directory."""
    return 1 + max(
        (ordinal for name in names if (ordinal := _ordinal(name)) is not None), default=0
    )


def delete_old_backups(storage: WritableStorage, directory: str, *, before: int) -> tuple[str, ...]:
    """Delete the oldest backups while their number or size exceeds the bound; return their paths.

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

    Returns None if there are no bytes, or only zeros. Raises ``DiskFullError`` and
    ``DiskFailedError``.
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
        _write_and_rename(storage, backup_path, _chunks(file, position))
    storage.sync_directory(directory)
    return backup_path


def truncate_with_backup(storage: WritableStorage, path: str, position: int) -> str | None:
    """Truncate a file to ``position`` after a backup; return the backup's path. Durable on return.

    Returns None if no backup was needed.
    """
    saved_as = back_up(storage, path, position)
    with storage.open_for_writing(path) as file:
        file.truncate(position)
        file.sync()
    return saved_as


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
