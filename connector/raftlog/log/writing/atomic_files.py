"""Small files, replaced in one step, and the sidecar that tells a damaged one from a sound one.

Rules of this file:

1. A file is replaced by: write ``<name>.tmp``, sync it, rename it, sync the directory. After a
   power loss at any moment it is the old one or the new one, whole.
2. Kafka's text and JSON files have no checksum, and Kafka refuses extra lines in some. So a file
   ``checksums`` beside them names the CRC-32C that each may have: two during a change. It is
   replaced, and its name synced, before the files that it speaks of.
3. The sidecar covers itself by its last line, and is read only in the one form that it is written
   in: every flipped bit is found. A file that it does not name is not checked, nor is any file of a
   directory without one (Kafka's own).
4. One writer at a time; readers take no lock and may look in the middle of a change.
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
"""What lies under such a name after a crash was never in force: delete it."""

_FIRST_LINE: Final = "raftlog checksums 1\n"
_LINE: Final = re.compile(r"([^ \n]+)((?: [0-9a-f]{8})+)")
_ATTEMPTS_MAX: Final = 100
"""How often a reader looks again at a file that changes under its eyes."""

Checksums = Mapping[str, tuple[int, ...]]
"""By the name of a file the CRC-32C values that are right for it."""


def replace_file(storage: WritableStorage, path: str, data: bytes) -> None:
    """Replace a file by another content, or make it; durable on return.

    Raises ``DiskFullError`` and ``LogAccessError`` (the old file is untouched) and
    ``DiskFailedError`` (it is the old or the new one, and nobody knows which will stay).
    """
    _write_and_rename(storage, path, data)
    storage.sync_directory(storage.split(path)[0])


def replace_checked(storage: WritableStorage, directory: str, files: Mapping[str, bytes]) -> None:
    """Replace files of a directory by name, with their checksums; durable on return.

    After a power loss each of them is old or new on its own, and ``read_checked`` takes either.
    """
    try:
        before = read_checksums(storage, directory) or {}
    except CorruptFileError:
        before = {}  # the sidecar is about to be written anew; what it said cannot be known
    checksums = dict(before)
    for name, data in files.items():
        old = _content(storage, storage.join(directory, name))
        old_crc = None if old is None else crc32c(old)
        # A damaged file must not become a sound one by being listed.
        is_valid = old_crc is not None and (name not in before or old_crc in before[name])
        allowed = {crc32c(data), old_crc} if is_valid else {crc32c(data)}
        checksums[name] = tuple(sorted(crc for crc in allowed if crc is not None))
    if checksums != before:
        # What was read may be in memory only, renamed by a writer that was killed. Once the sidecar
        # forgets what was there before, no power loss may bring that back.
        storage.sync_directory(directory)
        replace_file(storage, storage.join(directory, CHECKSUMS_NAME), encode_checksums(checksums))
    for name, data in files.items():
        _write_and_rename(storage, storage.join(directory, name), data)
    storage.sync_directory(directory)


def rebuild_checksums(storage: WritableStorage, directory: str, names: Iterable[str]) -> None:
    """Write the sidecar anew for the files as they are, where it was damaged or lost.

    The caller has to know by other means that they are sound.
    """
    checksums = {}
    for name in names:
        data = _content(storage, storage.join(directory, name))
        if data is not None:
            checksums[name] = (crc32c(data),)
    replace_file(storage, storage.join(directory, CHECKSUMS_NAME), encode_checksums(checksums))


def read_checked(storage: Storage, path: str) -> bytes | None:
    """The content of a small file, or None if there is none.

    Raises ``CorruptFileError`` if the sidecar names the file and not this content, or if the
    sidecar itself is damaged (then ``path`` of the error is the sidecar's).
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
        if seen == (data, sidecar):  # nobody is changing anything
            break
        seen = (data, sidecar)
    raise CorruptFileError(
        path=path,
        reason=f"its checksum is not the one in {CHECKSUMS_NAME} (damage, or an edit by hand)",
    )


def read_checksums(storage: Storage, directory: str) -> Checksums | None:
    """The sidecar of a directory, or None if there is none. Raises ``CorruptFileError``."""
    path = storage.join(directory, CHECKSUMS_NAME)
    data = _content(storage, path)
    return None if data is None else parse_checksums(data, path)


def encode_checksums(checksums: Checksums) -> bytes:
    """The sidecar's text: a first line, one line a file in order of names, the text's own CRC."""
    lines = [_FIRST_LINE]
    for name in sorted(checksums):
        line = name + "".join(f" {crc:08x}" for crc in checksums[name])
        assert _LINE.fullmatch(line), f"{name!r} cannot be named in {CHECKSUMS_NAME}"
        lines.append(line + "\n")
    text = "".join(lines).encode()
    return text + f"crc32c {crc32c(text):08x}\n".encode()


def parse_checksums(data: bytes, path: str) -> Checksums:
    """Read a sidecar. Raises ``CorruptFileError`` if a bit of it is not as it was written."""
    text = data[: data[:-1].rfind(b"\n") + 1]
    if not data or data != text + f"crc32c {crc32c(text):08x}\n".encode():
        raise CorruptFileError(path=path, reason="its last line is not its checksum")
    checksums = {}
    for line in text.decode("ascii", "replace").removeprefix(_FIRST_LINE).splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise CorruptFileError(path=path, reason=f"{line[:40]!r} is no name and checksum")
        checksums[match[1]] = tuple(int(crc, 16) for crc in match[2].split())
    if encode_checksums(checksums) != data:
        raise CorruptFileError(path=path, reason="it is not in the form of version 1")
    return checksums


def _write_and_rename(storage: WritableStorage, path: str, data: bytes) -> None:
    """Write, sync and rename; the name is not durable yet."""
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(LogNotFoundError):
        storage.unlink(temporary)  # of a writer that died here
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
