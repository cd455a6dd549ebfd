"""A file of one's own, a checkpoint say, made whole and durable, or not at all.

Rules of this file:

1. It is written under another name that Kafka ignores too, synced, and renamed.
2. A file that is there is never replaced.
3. A checkpoint holds secrets in clear: only the owner may read it, from its creation on.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import FileExistsLogError, RaftlogError
from raftlog.storage.local_writing import PrivateLocalStorage

PART_SUFFIX: Final = ".part"
"""Kafka deletes what has it when a node starts (Kafka: ``Snapshots``)."""


def write_new_file(path: str, data: bytes) -> str:
    """Write ``data`` to ``path``, in a directory that is there, and give the absolute path.

    Raises ``FileExistsLogError`` if something has the name, or its first half has (a writer died,
    or is at it), ``LogNotFoundError``, ``LogAccessError``, ``DiskFullError``, ``DiskFailedError``.
    """
    files = PrivateLocalStorage()
    directory, name = files.split(path)
    target, part = files.join(directory, name), files.join(directory, name + PART_SUFFIX)
    if name in files.list_names(directory):
        raise FileExistsLogError(path=target)
    with files.create_file(part) as file:
        try:
            files.set_read_only(part, owner_only=True)
            file.write_at(0, data)
            file.sync()
        except RaftlogError:
            files.unlink(part)
            raise
    files.rename(part, target)
    files.sync_directory(directory)
    return target
