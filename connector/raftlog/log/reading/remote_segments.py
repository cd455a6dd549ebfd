"""Segments in remote storage with the names of Kafka's ``LocalTieredStorage``, read as a log.

The names of a partition's directory and of its files contain ids; a backup uses the same names::

    orders-0-LWgrMmVrT0a__7a4SasuPA/00000000000000000011-oAtiIQ95REujbuzNd_lkLQ.log

Segments are copied in order, and only after they are sealed, so a log of them ends at the last
complete one. ``.snapshot`` files are not read: here they contain the producers at the end of their
segment, whereas those of a log contain the producers at its start.

Kafka: ``RemoteTopicPartitionDirectory``, ``RemoteLogSegmentFileset``.
"""

from __future__ import annotations

import re
from typing import Final

from raftlog.errors import LogNotFoundError, NotALogError
from raftlog.log.format.directory import parse_partition_name
from raftlog.storage.protocol import ReadableFile, Storage
from raftlog.types import TopicPartition

_DIRECTORY: Final = re.compile(r"(.+-[0-9]+)-[A-Za-z0-9_-]{21}[AQgw]")
"""Ends with a topic id of 16 bytes, whose last character encodes two bits. A name that ends with a
UUID in hexadecimal digits, such as a directory of Spark, does not match."""
_FILE: Final = re.compile(r"([0-9]{20})-[A-Za-z0-9_-]{22}(\.log|\.index|\.timeindex|\.txnindex)")


def parse_remote_directory(name: str) -> TopicPartition | None:
    """Return the partition in a directory's name, else None."""
    match = _DIRECTORY.fullmatch(name)
    return None if match is None else parse_partition_name(match[1])


def has_remote_segments(names: list[str]) -> bool:
    """Return whether one of a directory's file names is that of a remote segment."""
    return any(name.endswith(".log") and _FILE.fullmatch(name) for name in names)


class RemoteSegments:
    """View of a storage in which the files of one directory have the names that they have in a log.

    Other files of the directory are hidden. All other paths are those of the storage.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = self._absolute(directory)
        self._names: dict[str, str] = {}

    def list_names(self, directory: str) -> list[str]:
        """Raises ``NotALogError`` if a segment is there twice, by its offset."""
        names = self._storage.list_names(directory)
        if self._absolute(directory) != self._directory:
            return names
        found: dict[str, str] = {}
        for name in names:
            match = _FILE.fullmatch(name)
            if match is None:
                continue
            other = found.setdefault(match[1] + match[2], name)
            if other != name:
                raise NotALogError(
                    path=directory,
                    reason=f"{other} and {name} are copies of one segment",
                    remedy="`raftlog state NODE remote_segments`, with the directory of a broker, "
                    "prints which one is CopySegmentFinished: move the other out of the directory",
                )
        self._names = found
        return sorted(found)

    def open_file(self, path: str) -> ReadableFile:
        directory, name = self._storage.split(path)
        if directory != self._directory:
            return self._storage.open_file(path)
        if name not in self._names:
            raise LogNotFoundError(path=path)
        return self._storage.open_file(self._storage.join(directory, self._names[name]))

    def is_directory(self, path: str) -> bool:
        return self._storage.is_directory(path)

    def join(self, directory: str, name: str) -> str:
        return self._storage.join(directory, name)

    def split(self, path: str) -> tuple[str, str]:
        return self._storage.split(path)

    def expand(self, pattern: str) -> list[str]:
        return self._storage.expand(pattern)

    def _absolute(self, directory: str) -> str:
        return self._storage.join(*self._storage.split(directory))
