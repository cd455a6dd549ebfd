"""Receive a snapshot from the leader (KIP-630, FetchSnapshot).

The file gets its final name only after ``SnapshotReader`` has read all of it and found it complete.
``RawSnapshotWriter`` writes the bytes, so at most one snapshot is written at a time.
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import LogError
from raftlog.log.files import LogFiles
from raftlog.log.snapshot import SnapshotReader
from raftlog.records.control import KRaftVoters
from raftlog.types import SnapshotId

from .log_directory import LogDirectory
from .raw_snapshot_writer import RawSnapshotWriter


class SnapshotReceiver:
    """One snapshot that is being fetched. Not shared between threads.

    Raises ``LogLockedError`` while another snapshot is being written.
    """

    def __init__(self, directory: LogDirectory, snapshot_id: SnapshotId) -> None:
        self.snapshot_id: Final = snapshot_id
        self.voters: KRaftVoters | None = None
        self.kraft_version: int | None = None
        self._directory = directory
        self._writer = RawSnapshotWriter(directory, snapshot_id)

    @property
    def byte_count(self) -> int:
        """Bytes that were received so far."""
        return self._writer.byte_count

    def write(self, position: int, data: bytes) -> None:
        """Append bytes at ``position``, which must be ``byte_count``."""
        assert position == self._writer.byte_count, "bytes must be received in order"
        self._writer.append(data)

    def keep(self) -> None:
        """Validate the snapshot and rename it to its final name; durable on return.

        Raises ``CorruptSnapshotError``: then the received bytes are deleted.
        """
        try:
            self._check()
            self._writer.freeze()
        except LogError:
            self.drop()
            raise

    def drop(self) -> None:
        """Delete the received bytes. May be called twice."""
        self._writer.close()

    def abandon(self) -> None:
        """Close the file after a storage failure, without deleting it: the next writer does."""
        self._writer.abandon()

    def _check(self) -> None:
        """Read the whole snapshot and store its voters. Raises ``CorruptSnapshotError``."""
        files = LogFiles.of_checkpoint(self._directory.storage, self._writer.path, self.snapshot_id)
        reader = SnapshotReader(files, self.snapshot_id)
        for _ in reader.batches():
            pass
        self.voters, self.kraft_version = reader.voters, reader.kraft_version or None
