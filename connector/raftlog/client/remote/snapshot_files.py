"""Snapshots of a quorum as files, read by position through FetchSnapshot (KIP-630)."""

from __future__ import annotations

from typing import Final

from raftlog.closeable import Closeable
from raftlog.errors import LogNotFoundError, SegmentDeletedError
from raftlog.limits import MIB
from raftlog.log.format.names import Listing, parse_checkpoint_name
from raftlog.log.reading.files import LogFiles
from raftlog.types import SnapshotId

from .leader_client import LeaderClient

_FETCH_BYTES: Final = 1 * MIB


def snapshot_files(
    quorum: LeaderClient, snapshot_id: SnapshotId, decompressed_bytes_max: int
) -> LogFiles:
    """Return the files of a log that has only this snapshot."""
    files = LogFiles(_Snapshots(quorum), quorum.path, Listing(snapshots=(snapshot_id,)))
    files.decompressed_bytes_max = decompressed_bytes_max
    return files


class _Snapshots:
    """Storage (``storage.protocol.Storage``) that has only the snapshots of a quorum."""

    def __init__(self, quorum: LeaderClient) -> None:
        self._quorum = quorum

    def list_names(self, directory: str) -> list[str]:
        raise LogNotFoundError(path=directory)

    def open_file(self, path: str) -> _SnapshotFile:
        snapshot_id = parse_checkpoint_name(self.split(path)[1])
        if snapshot_id is None:
            raise LogNotFoundError(path=path)
        return _SnapshotFile(self._quorum, path, snapshot_id)

    def is_directory(self, path: str) -> bool:
        raise LogNotFoundError(path=path)

    def join(self, directory: str, name: str) -> str:
        return f"{directory}/{name}"

    def split(self, path: str) -> tuple[str, str]:
        directory, _, name = path.rpartition("/")
        return directory, name

    def expand(self, pattern: str) -> list[str]:
        return []


class _SnapshotFile(Closeable):
    """One snapshot. The last response is kept, since readers take small steps."""

    def __init__(self, quorum: LeaderClient, path: str, snapshot_id: SnapshotId) -> None:
        self._quorum = quorum
        self._path = path
        self._snapshot_id = snapshot_id
        self._kept = b""
        self._kept_from = 0
        self._size: int | None = None

    @property
    def path(self) -> str:
        return self._path

    def byte_count(self) -> int:
        if self._size is None:
            self._fetch(0)
        assert self._size is not None, "set by a fetch"
        return self._size

    def read_at(self, position: int, byte_count: int) -> bytes:
        end = min(position + byte_count, self.byte_count())
        parts: list[bytes] = []
        while position < end:
            if not self._kept_from <= position < self._kept_from + len(self._kept):
                self._fetch(position)
            at = position - self._kept_from
            part = self._kept[at : at + end - position]
            if not part:
                break
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def _fetch(self, position: int) -> None:
        found = self._quorum.fetch_snapshot(self._snapshot_id, position, _FETCH_BYTES)
        if found is None:
            raise SegmentDeletedError(path=self._path)
        self._kept, self._size = found
        self._kept_from = position

    def close(self) -> None:
        self._kept = b""
