"""Atomic replacement of small files, and the ``checksums`` file that detects their damage.

Kafka's text and JSON files have no checksum, and Kafka refuses extra lines in some of them. So
``checksums`` in the same directory lists the CRC-32C values that are valid for each file: after a
replacement both the old and the new one:

                                         content on disk      in ``checksums``
    before                               old                  crc(old)
    replace ``checksums``, durably       old                  crc(old) crc(new)
    write <name>.tmp, sync, rename       old or new           crc(old) crc(new)
    sync the directory                   new                  crc(old) crc(new)

Invariants:

1. A power loss at any moment leaves the old or the new file, whole, and a checksum that matches.
2. The last line of ``checksums`` is its own CRC, and only the canonical encoding is accepted, so
   every flipped bit is detected. A file that it does not list is not checked, nor is any file of a
   directory without ``checksums`` (Kafka's).
3. One writer at a time. Readers take no lock and may read during a replacement.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from crc32c import crc32c

from raftlog.errors import (
    CorruptFileError,
    DiskFullError,
    LogError,
    LogNotFoundError,
    SegmentDeletedError,
)
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.storage.protocol import Storage, WritableStorage

CHECKSUMS_NAME: Final = "checksums"
TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a file that was not renamed yet: after a crash, delete it."""

_FIRST_LINE: Final = "raftlog checksums 1\n"
_LINE: Final = re.compile(r"([^ \n]+)((?: [0-9a-f]{8})+)")
_ATTEMPTS_MAX: Final = 100
"""Retries of a reader while the file is being replaced."""

Checksums = Mapping[str, tuple[int, ...]]
"""Valid CRC-32C values by file name."""


def replace_file(storage: WritableStorage, path: str, data: bytes) -> None:
    """Replace or create a file atomically; durable on return.

    Raises ``DiskFullError`` and ``LogAccessError`` (the old file is unchanged), and
    ``DiskFailedError`` (it is unknown whether the old or the new one survives a power loss).
    """
    _write_and_rename(storage, path, data)
    storage.sync_directory(storage.split(path)[0])


def replace_checked(storage: WritableStorage, directory: str, files: Mapping[str, bytes]) -> None:
    """Replace files of a directory and their checksums; durable on return.

    After a power loss each file is old or new, independently; ``read_checked`` accepts either.
    """
    try:
        before = read_checksums(storage, directory) or {}
    except CorruptFileError:
        before = {}  # unreadable, and replaced below
    checksums = dict(before)
    for name, data in files.items():
        old = _content(storage, storage.join(directory, name))
        old_crc = None if old is None else crc32c(old)
        # Do not list the checksum of a damaged file.
        is_valid = old_crc is not None and (name not in before or old_crc in before[name])
        allowed = {crc32c(data), old_crc} if is_valid else {crc32c(data)}
        checksums[name] = tuple(sorted(crc for crc in allowed if crc is not None))
    if checksums != before:
        # A killed writer may have renamed the files that were read without syncing the directory.
        # Sync it, or a power loss could restore files whose checksums are no longer listed.
        storage.sync_directory(directory)
        replace_file(storage, storage.join(directory, CHECKSUMS_NAME), encode_checksums(checksums))
    for name, data in files.items():
        _write_and_rename(storage, storage.join(directory, name), data)
    storage.sync_directory(directory)


def rebuild_checksums(storage: WritableStorage, directory: str, names: Iterable[str]) -> None:
    """Rewrite a damaged or lost ``checksums`` file from the files' current content.

    The caller must have verified these files by other means.
    """
    checksums = {}
    for name in names:
        data = _content(storage, storage.join(directory, name))
        if data is not None:
            checksums[name] = (crc32c(data),)
    replace_file(storage, storage.join(directory, CHECKSUMS_NAME), encode_checksums(checksums))


def read_checked(storage: Storage, path: str) -> bytes | None:
    """Return the content of a small file, or None if it does not exist.

    Raises ``CorruptFileError`` if ``checksums`` lists the file with other values, or if
    ``checksums`` itself is damaged (then ``path`` of the error is its path).
    """
    directory, name = storage.split(path)
    sidecar_path = storage.join(directory, CHECKSUMS_NAME)
    seen: tuple[bytes | None, bytes | None] | None = None
    for _ in range(_ATTEMPTS_MAX):
        data = _content(storage, path)
        if data is None:
            return None
        sidecar = _content(storage, sidecar_path)
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
    data = _content(storage, path)
    return None if data is None else parse_checksums(data, path)


def encode_checksums(checksums: Checksums) -> bytes:
    """Return the content: a first line, one line per file sorted by name, the CRC-32C of it all."""
    lines = [_FIRST_LINE]
    for name in sorted(checksums):
        line = name + "".join(f" {crc:08x}" for crc in checksums[name])
        assert _LINE.fullmatch(line), f"{name!r} cannot be listed in {CHECKSUMS_NAME}"
        lines.append(line + "\n")
    text = "".join(lines).encode()
    return text + f"crc32c {crc32c(text):08x}\n".encode()


def parse_checksums(data: bytes, path: str) -> Checksums:
    """Parse ``checksums``. Raises ``CorruptFileError`` for any flipped bit."""
    text = data[: data[:-1].rfind(b"\n") + 1]
    if not data or data != text + f"crc32c {crc32c(text):08x}\n".encode():
        raise CorruptFileError(path=path, reason="its last line does not match its checksum")
    checksums = {}
    for line in text.decode("ascii", "replace").removeprefix(_FIRST_LINE).splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptFileError(
                path=path, reason=f"not a file name and checksums: {line[:40]!r}"
            )
        checksums[match[1]] = tuple(int(crc, 16) for crc in match[2].split())
    if encode_checksums(checksums) != data:
        raise CorruptFileError(path=path, reason="not in the canonical encoding of version 1")
    return checksums


def _write_and_rename(storage: WritableStorage, path: str, data: bytes) -> None:
    """Write, sync and rename. The new name is not durable yet."""
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(LogNotFoundError):
        storage.unlink(temporary)  # left by a crash
    try:
        with storage.create_file(temporary) as file:
            file.write_at(0, data)
            file.sync()
    except DiskFullError:
        with contextlib.suppress(LogError):
            storage.unlink(temporary)
        raise
    storage.rename(temporary, path)


def _content(storage: Storage, path: str) -> bytes | None:
    try:
        with storage.open_file(path) as file:
            data = file.read_at(0, SMALL_FILE_BYTES_MAX + 1)
    except (LogNotFoundError, SegmentDeletedError):
        return None
    if len(data) > SMALL_FILE_BYTES_MAX:
        raise CorruptFileError(path=path, reason=f"it is larger than {SMALL_FILE_BYTES_MAX} bytes")
    return data
