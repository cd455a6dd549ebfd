"""Files in the staging directory of a load.

Rules of this file:

1. Only one load at a time uses a directory: another one would delete its files, or overwrite files
   that tasks have mapped into memory.
2. A file is durable before another file names it. Files that a power loss has left incomplete
   nevertheless are recognized and treated as missing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from raftlog_state.errors import ConcurrentWriterError

_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of a file system without locks or syncs of directories, such as an object store."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file, which is created at the start and deleted at the end.

    A file system without locks does not exclude other processes.

    Raises:
        ConcurrentWriterError: another process holds it.
    """
    while True:
        with path.open("a") as file:
            _lock(file, path)
            if not _is_at(file, path):
                continue  # its owner has deleted it meanwhile
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _lock(file: TextIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConcurrentWriterError(
            place=str(path.parent),
            reason="another load of the same tables has this staging directory",
            remedy="wait until it has ended; only one load can write the tables of a cluster",
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def write_durably(path: Path, text: str) -> None:
    """Write a file that is complete and durable once it exists."""
    staged = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    staged.write_text(text)
    sync(staged)
    os.replace(staged, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def sync_descriptor(descriptor: int) -> None:
    """Wait until an open file, or the names in an open directory, are on disk."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def are_complete(files: Iterable[str]) -> bool:
    """Return whether Parquet files exist and have their ends."""
    try:
        for file in files:
            pq.read_metadata(file)
    except (FileNotFoundError, pa.ArrowInvalid):
        return False
    return True
