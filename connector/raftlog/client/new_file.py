"""Creation of a new file, such as a snapshot: complete and durable, or absent.

The file is written under a name that Kafka ignores, synced, and renamed. Existing files are never
replaced. A snapshot contains secrets in clear text, so that the file is readable only by its owner
from its creation on.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import FileExistsLogError, RaftlogError
from raftlog.storage.local_writing import PrivateLocalStorage

PART_SUFFIX: Final = ".part"
"""Suffix of incomplete snapshots, which Kafka deletes at startup (Kafka: ``Snapshots``)."""


def write_new_file(path: str, data: bytes) -> str:
    """Write ``data`` to a new file in an existing directory, and return its absolute path.

    Raises ``FileExistsLogError`` if ``path`` or its ``.part`` file exists (another writer is
    running, or died), ``LogNotFoundError``, ``LogAccessError``, ``DiskFullError``,
    ``DiskFailedError``.
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
