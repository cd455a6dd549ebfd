"""The cluster's state at an offset: which checkpoint to begin with, and what to replay behind it.

Rules of this file:

1. An offset here is an end offset: the state of all records below it, as a checkpoint's name says.
2. The base is the newest checkpoint at or below it, else the empty state before offset 0. One that
   is not whole is passed over, said to the listener, for an older one. For the log's own history
   (epochs, transactions) it is the oldest one: a checkpoint holds none of it.
3. Secrets are replaced before records reach the loader: no row ever holds one, unless revealed.
"""

from __future__ import annotations

from typing import Protocol

from raftlog.client import Isolation, LogKind, LogReader, SourceKind, open_path
from raftlog.errors import (
    CorruptSnapshotError,
    DataLossError,
    NotALogError,
    OffsetOutOfRangeError,
)
from raftlog.types import SnapshotId

from .image import MetadataImage
from .metadata_loader import MetadataLoader
from .payload import SkippedRecords
from .records import DecodedRecord, Redactor, decode
from .scans import LOADER_COLUMNS, append_scan, load_snapshot


class Listener(Protocol):
    """Who is told what was found on the way: the command line's console, for instance."""

    def log(self, sentence: str, /) -> None: ...

    def progress(self, done: int, whole: int, /) -> None: ...


class NullListener:
    """A listener that does not listen."""

    def log(self, sentence: str, /) -> None:
        pass

    def progress(self, done: int, whole: int, /) -> None:
        pass


class ImageReader:
    """States of one log, asked for in the order of their offsets."""

    def __init__(
        self,
        path: str | LogReader,
        redactor: Redactor,
        console: Listener | None = None,
        *,
        from_oldest: bool = False,
    ) -> None:
        self._log = path if isinstance(path, LogReader) else open_path(path)
        if self._log.kind is not LogKind.METADATA:
            reason = f"it is the partition {self._log.topic}-{self._log.partition}, without a state"
            raise NotALogError(path=self._log.path, reason=reason)
        self._redactor = redactor
        self._console = NullListener() if console is None else console
        self._from_oldest = from_oldest
        self._loader: MetadataLoader | None = None
        self._base = ""
        self._log_start_offset = self._log.log_start_offset
        self._log_end_offset = self._log.log_end_offset

    @property
    def log_end_offset(self) -> int:
        """Where the log ended when it was last looked at, whatever is committed."""
        return self._log_end_offset

    @property
    def open_transaction_offset(self) -> int | None:
        """Where the transaction begins that was open at the last moment, if one was."""
        return None if self._loader is None else self._loader.open_transaction_offset

    @property
    def skipped(self) -> tuple[SkippedRecords, ...]:
        """The records that this release does not know, and left out of the last moment."""
        return () if self._loader is None else self._loader.skipped

    def refresh(self) -> None:
        """Look at the log's files again: it may have grown."""
        self._log.refresh()
        self._log_start_offset = self._log.log_start_offset
        self._log_end_offset = self._log.log_end_offset

    def end_offset(self) -> int:
        """The newest state that may be shown; why there is said to the listener."""
        end = self._log.read_end(isolation=Isolation.READ_COMMITTED)
        self._console.log(f"the end is offset {end.offset} (exclusive): {end.explanation}")
        return end.offset

    def image_at(self, end_offset: int) -> MetadataImage:
        """The state of all records below ``end_offset``, which never falls from call to call.

        Raises:
            OffsetOutOfRangeError: the log does not reach that far.
            DataLossError: what the state would be built on was deleted.
            ReplayError: the log contradicts itself; also the errors of reading a log.
        """
        if end_offset > self._log_end_offset:
            raise OffsetOutOfRangeError(
                path=self._log.path,
                offset=end_offset,
                log_start_offset=self._log_start_offset,
                log_end_offset=self._log_end_offset,
            )
        loader = self._loader = self._loader_before(end_offset)
        start_offset = loader.next_offset
        for scan in self._log.scan(start_offset, end_offset, columns=LOADER_COLUMNS):
            append_scan(loader, scan.records)
            self._console.progress(loader.next_offset - start_offset, end_offset - start_offset)
        self._log_omissions(loader)
        self._console.log(f"the state below offset {end_offset} is built on {self._base}")
        return loader.image

    def _loader_before(self, end_offset: int) -> MetadataLoader:
        """A loader at the best base at or below ``end_offset``."""
        earlier = self._loader
        is_whole = self._log_start_offset == 0 and self._log.source is not SourceKind.CHECKPOINT
        for snapshot_id in sorted(self._log.snapshots, reverse=not self._from_oldest):
            if self._from_oldest and (is_whole or earlier is not None):
                break
            if earlier is not None and snapshot_id.end_offset <= earlier.next_offset:
                break
            if self._is_valid_base(snapshot_id, end_offset):
                loader = self._load_snapshot(snapshot_id)
                if loader is not None:
                    return loader
        if earlier is not None:
            return earlier
        if not is_whole:
            raise self._no_base_error(end_offset)
        self._base = "the beginning of the log"
        return MetadataLoader(decode=self._decode)

    def _is_valid_base(self, snapshot_id: SnapshotId, end_offset: int) -> bool:
        """Whether the log goes on from a checkpoint, or need not."""
        base = snapshot_id.end_offset
        return base == end_offset or self._log_start_offset <= base < end_offset

    def _load_snapshot(self, snapshot_id: SnapshotId) -> MetadataLoader | None:
        loader = MetadataLoader(decode=self._decode)
        try:
            load_snapshot(loader, self._log.read_snapshot(snapshot_id))
        except CorruptSnapshotError as error:
            self._console.log(f"passed over: {error}")
            return None
        self._base = f"checkpoint {snapshot_id}"
        return loader

    def _no_base_error(self, end_offset: int) -> DataLossError:
        ends = [one.end_offset for one in self._log.snapshots]
        known = f"the checkpoints end at {ends}" if ends else "there is no checkpoint"
        return DataLossError(
            path=self._log.path,
            condition="OFFSETS_DELETED",
            reason=f"the state below offset {end_offset} has nothing to be built on: the log "
            f"begins at {self._log_start_offset}, and {known}",
            remedy="ask for an offset at or behind a checkpoint's",
        )

    def _decode(self, value: bytes) -> DecodedRecord:
        return self._redactor.redact(decode(value))

    def _log_omissions(self, loader: MetadataLoader) -> None:
        if loader.open_transaction_offset is not None:
            self._console.log(
                f"the metadata transaction that begins at offset "
                f"{loader.open_transaction_offset} is "
                "open there: its records are not part of the state"
            )
        for skipped in loader.skipped:
            what = "control records" if skipped.is_control else "records"
            self._console.log(
                f"{skipped.record_count} {what} of type {skipped.type_id} version "
                f"{skipped.version} are not known to this release and left out (offsets "
                f"{skipped.first_offset} to {skipped.last_offset})"
            )
