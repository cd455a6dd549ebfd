"""Take a checkpoint that another node wrote: bytes in their order, then all of it (KIP-630).

Rules of this file:

1. It gets its name only after ``SnapshotReader`` has read it through and found it complete.
2. It is written by ``RawSnapshotWriter``, like a snapshot of this node's own: one at a time.
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
    """One checkpoint that is being fetched. Not shared between threads.

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
        """How many bytes are here."""
        return self._writer.byte_count

    def write(self, position: int, data: bytes) -> None:
        """Keep bytes that follow those which are here."""
        assert position == self._writer.byte_count, "bytes come in order"
        self._writer.append(data)

    def keep(self) -> None:
        """Look through it and give it its name; durable on return.

        Raises ``CorruptSnapshotError``: then it is dropped.
        """
        try:
            self._check()
            self._writer.freeze()
        except LogError:
            self.drop()
            raise

    def drop(self) -> None:
        """Delete what was received. Twice is allowed."""
        self._writer.close()

    def abandon(self) -> None:
        """Close the file where the storage may have failed; the next writer deletes it."""
        self._writer.abandon()

    def _check(self) -> None:
        """Read it through, and keep what it says of voters. Raises ``CorruptSnapshotError``."""
        files = LogFiles.of_checkpoint(self._directory.storage, self._writer.path, self.snapshot_id)
        reader = SnapshotReader(files, self.snapshot_id)
        for _ in reader.batches():
            pass
        self.voters, self.kraft_version = reader.voters, reader.kraft_version or None
