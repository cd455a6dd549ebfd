"""Take a checkpoint that another node wrote: bytes as they come, then all of it (KIP-630).

Rules of this file:

1. It lies under ``<name>-0.checkpoint.part`` until it was read through: every batch sound, a header
   first, a footer last, all of the epoch in its name. Then it is synced and renamed.
2. One is written at a time, as in ``snapshot_writer``, whose lock and names these are.
"""

from __future__ import annotations

import contextlib
from typing import Final

from raftlog.errors import CorruptBatchError, CorruptSnapshotError, LogError, LogNotFoundError
from raftlog.log.names import checkpoint_name
from raftlog.records.batch import RecordBatch
from raftlog.records.control import (
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    decode_control,
)
from raftlog.storage.protocol import WritableFile
from raftlog.types import SnapshotId

from .located import read_batches
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
            self._check(file)
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

    # --- whether it is one ------------------------------------------------------------------------

    def _check(self, file: WritableFile) -> None:
        last: RecordBatch | None = None
        try:
            for batch in read_batches(file, 0, file.byte_count()):
                if batch.base_offset != (0 if last is None else last.next_offset):
                    raise self._damaged("its offsets are not in order")
                if batch.leader_epoch != self.snapshot_id.epoch:
                    raise self._damaged(f"a batch of it is of epoch {batch.leader_epoch}")
                if last is None:
                    self._read_head(batch)
                last = batch
        except CorruptBatchError as error:
            raise self._damaged(error.reason) from None
        if last is None or not last.is_control:
            raise self._damaged("it does not end with a footer")
        if not any(isinstance(one, SnapshotFooter) for one in _controls(last)):
            raise self._damaged("it does not end with a footer")

    def _read_head(self, batch: RecordBatch) -> None:
        controls = _controls(batch) if batch.is_control else []
        if not controls or not isinstance(controls[0], SnapshotHeader):
            raise self._damaged("it does not begin with a header")
        self.voters, self.kraft_version = snapshot_voters(batch)

    def _damaged(self, reason: str) -> CorruptSnapshotError:
        return CorruptSnapshotError(
            path=self._directory.file(self._name), position=0, reason=reason
        )


def _controls(batch: RecordBatch) -> list[object]:
    return [decode_control(record.key, record.value) for record in batch.records()]


def snapshot_voters(head: RecordBatch) -> tuple[KRaftVoters | None, int | None]:
    """What the first batch of a checkpoint says of voters and kraft.version, if anything."""
    controls = _controls(head)
    voters = next((one for one in controls if isinstance(one, KRaftVoters)), None)
    versions = (one.kraft_version for one in controls if isinstance(one, KRaftVersion))
    return voters, next(versions, None)
