"""Take a checkpoint that another node wrote: bytes as they come, then all of it (KIP-630).

Rules of this file:

1. It lies under ``<name>-0.checkpoint.part`` until ``SnapshotReader`` has read it through and found
   it whole. Then it is synced and renamed.
2. One is written at a time, as in ``snapshot_writer``, whose lock and names these are.
"""

from __future__ import annotations

import contextlib
from typing import Final

from raftlog.errors import LogError, LogNotFoundError
from raftlog.log.files import LogFiles
from raftlog.log.names import checkpoint_name
from raftlog.log.snapshot import SnapshotReader
from raftlog.records.control import KRaftVoters
from raftlog.storage.protocol import WritableFile
from raftlog.types import SnapshotId

from .log_directory import LogDirectory
from .snapshot_writer import PART_SUFFIX


class SnapshotReceiver:
    """One checkpoint that is being fetched. Not shared between threads."""

    def __init__(self, directory: LogDirectory, snapshot_id: SnapshotId) -> None:
        self.snapshot_id: Final = snapshot_id
        self.voters: KRaftVoters | None = None
        self.kraft_version: int | None = None
        self._directory = directory
        self._name = f"{snapshot_id}-0{PART_SUFFIX}"
        names = directory.storage.list_names(directory.path)
        directory.unlink(name for name in names if name.endswith(PART_SUFFIX))
        self._file: WritableFile | None = directory.storage.create_file(directory.file(self._name))

    @property
    def byte_count(self) -> int:
        """How many bytes are here."""
        assert self._file is not None, "it is neither kept nor dropped"
        return self._file.byte_count()

    def write(self, position: int, data: bytes) -> None:
        """Keep bytes that follow those which are here."""
        assert self._file is not None, "it is neither kept nor dropped"
        assert position == self._file.byte_count(), "bytes come in order"
        self._file.write_at(position, data)

    def keep(self) -> None:
        """Look through it and give it its name; durable on return.

        Raises ``CorruptSnapshotError``: then it is dropped.
        """
        file = self._file
        assert file is not None, "it is neither kept nor dropped"
        try:
            self._check()
            file.sync()
        except LogError:
            self.drop()
            raise
        file.close()
        self._file = None
        storage, part = self._directory.storage, self._directory.file(self._name)
        storage.set_read_only(part)
        storage.rename(part, self._directory.file(checkpoint_name(self.snapshot_id)))
        self._directory.sync()

    def drop(self) -> None:
        """Forget what came. Twice is allowed."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(LogNotFoundError):
                self._directory.storage.unlink(self._directory.file(self._name))

    def give_back(self) -> None:
        """Close the file where the storage may have failed; whoever opens the log deletes it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check(self) -> None:
        """Read it through, and keep what it says of voters. Raises ``CorruptSnapshotError``."""
        directory = self._directory
        files = LogFiles.of_checkpoint(
            directory.storage, directory.file(self._name), self.snapshot_id
        )
        reader = SnapshotReader(files, self.snapshot_id)
        for _ in reader.batches():
            pass
        self.voters, self.kraft_version = reader.voters, reader.kraft_version or None
