"""Cluster state at an end offset: the snapshot to load and the records to replay after it.

An end offset is exclusive, as in a snapshot's name: the state includes all records below it.

The base is the newest snapshot at or below the end offset, or otherwise the empty state before
offset 0. A damaged snapshot is skipped with a message to the listener. Snapshots do not contain the
log's history (epochs, transactions), so ``from_oldest`` replays it from the oldest base.

A snapshot may end after the log, or in a log whose last records are of an earlier leader epoch: a
follower stopped after it had fetched the snapshot, or segments were lost. The snapshot's records
are committed, so it is the newest state, which replaces that of the log, as in Kafka
(``KafkaRaftLog.truncateToLatestSnapshot``).

Records are redacted before they reach the loader, so rows contain no secrets unless revealed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from raftlog.client import Isolation, LogKind, LogReader, SourceKind, open_path
from raftlog.errors import (
    CorruptSnapshotError,
    DataLossError,
    NotALogError,
    OffsetOutOfRangeError,
)
from raftlog.records.batch_columns import Scan
from raftlog.types import CLUSTER_METADATA_TOPIC, SnapshotId
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import Op, RecordChanges
from raftlog_state.image.entity_names import RowFilter, matching
from raftlog_state.records import DecodedRecord, Redactor, decode

from .metadata_loader import MetadataLoader
from .payload import SkippedRecords
from .scans import LOADER_COLUMNS, advance, changes_of_scans, load_rows, load_snapshot


class Listener(Protocol):
    """Receiver of messages and progress, for instance the console of the command line."""

    def log(self, sentence: str, /) -> None: ...

    def progress(self, done: int, whole: int, /) -> None: ...


class NullListener:
    """Listener that ignores everything."""

    def log(self, sentence: str, /) -> None:
        pass

    def progress(self, done: int, whole: int, /) -> None:
        pass


METADATA_LOG_REMEDY: Final = (
    f"use the log of {CLUSTER_METADATA_TOPIC}, or of a quorum of raftlog with values=kraft"
)
"""Remedy for a log of other records."""


def replacing_snapshot(log: LogReader, end_offset: int) -> SnapshotId | None:
    """Return the newest snapshot if its state replaces that of a log that ends at ``end_offset``.

    The snapshot ends after the log, or the log's last records are of an earlier leader epoch. These
    were not committed: a committed record is in the logs of all later leaders. None otherwise.

    Raises the errors of ``LogReader.epochs``.
    """
    newest = log.newest_snapshot()
    if newest is None or newest.end_offset > end_offset:
        return newest
    return newest if 0 < last_epoch(log, end_offset) < newest.epoch else None


def last_epoch(log: LogReader, end_offset: int) -> int:
    """Return the leader epoch of the log's own record before ``end_offset``; 0 if unknown."""
    return log.epochs.epoch_at(end_offset - 1) or 0


def newest_state_end(log: LogReader) -> tuple[int, str]:
    """Return the end offset of the newest committed state of a log, and the reason as text.

    Raises the errors of ``LogReader.read_end``.
    """
    end = log.read_end(isolation=Isolation.READ_COMMITTED)
    newest = replacing_snapshot(log, end.offset)
    if newest is None:
        return end.offset, end.explanation
    reason = f"the end of snapshot {newest}: committed; "
    if newest.end_offset > end.offset:
        reason += f"the log's own committed end is {end.offset}"
    else:
        epoch = last_epoch(log, end.offset)
        reason += f"the log's last records are of leader epoch {epoch}, and were not"
    return newest.end_offset, reason


def check_is_metadata(log: LogReader) -> None:
    """Raise ``NotALogError`` if the log's records are not a cluster's metadata."""
    if log.kind is not LogKind.METADATA:
        raise NotALogError(
            path=log.path,
            expected="a metadata log",
            reason=f"it is partition {log.topic}-{log.partition}",
            remedy=METADATA_LOG_REMEDY,
        )


class ImageReader:
    """Reader of one log's states at ascending end offsets."""

    def __init__(
        self,
        path: str | LogReader,
        redactor: Redactor,
        console: Listener | None = None,
        *,
        from_oldest: bool = False,
    ) -> None:
        self._log = path if isinstance(path, LogReader) else open_path(path)
        check_is_metadata(self._log)
        self._redactor = redactor
        self._console = NullListener() if console is None else console
        self._from_oldest = from_oldest
        self._loader: MetadataLoader | None = None
        self._base = ""
        self._base_changes: list[RecordChanges] = []
        self._read_extent()

    @property
    def log_end_offset(self) -> int:
        """End offset of the log at the last refresh, committed or not."""
        return self._log_end_offset

    @property
    def open_transaction_offset(self) -> int | None:
        """Begin offset of the transaction that is open at the last image; None without one."""
        return None if self._loader is None else self._loader.open_transaction_offset

    @property
    def skipped(self) -> tuple[SkippedRecords, ...]:
        """Records missing in the last image because this release does not support them."""
        return () if self._loader is None else self._loader.skipped

    def refresh(self) -> None:
        """Read the log's start and end offsets again."""
        self._log.refresh()
        self._read_extent()

    def _read_extent(self) -> None:
        self._log_start_offset = self._log.log_start_offset
        self._log_end_offset = self._log.log_end_offset

    def end_offset(self) -> int:
        """Return the end offset of the newest committed state, and log the reason."""
        end_offset, reason = newest_state_end(self._log)
        self._read_extent()  # of a running node, the committed end is read after the log end
        self._console.log(f"the end offset is {end_offset} (exclusive): {reason}")
        return end_offset

    def image_at(self, end_offset: int) -> MetadataImage:
        """Return the state of all records below ``end_offset``, which must not decrease.

        Raises:
            OffsetOutOfRangeError: the log ends before ``end_offset``, and no snapshot ends there.
            CorruptSnapshotError: the snapshot that ends there and replaces the log is damaged.
            DataLossError: the records below ``end_offset`` and their snapshots were deleted.
            ReplayError: a record contradicts the state before it.
            Also the errors of reading a log.
        """
        self._check_end(end_offset)
        loader = self._loader = self._loader_before(end_offset)
        start_offset = loader.next_offset
        scans = self._scans(start_offset, end_offset)
        for next_offset in advance(loader, scans, self._redactor):
            self._console.progress(next_offset - start_offset, end_offset - start_offset)
        self._load_after_end(loader, end_offset)
        self._log_omissions(loader)
        if end_offset:  # else it is the empty state
            self._console.log(f"the state at end offset {end_offset} is built from {self._base}")
        return loader.image

    def _check_end(self, end_offset: int) -> None:
        if end_offset > self._log_end_offset and self._snapshot_at(end_offset) is None:
            raise OffsetOutOfRangeError(
                path=self._log.path,
                offset=end_offset,
                log_start_offset=self._log_start_offset,
                log_end_offset=self._log_end_offset,
            )

    def changes(
        self, end_offset: int, filters: Sequence[RowFilter] | None = None
    ) -> Iterator[RecordChanges]:
        """Yield the changes that take effect below ``end_offset`` after the last call or image.

        They are changes of rows that match any of ``filters``; None: of all rows. Without a
        previous call or image, the first changes are those of the oldest snapshot, if the log
        begins with it. If reading fails, the next call continues after the last changes that were
        returned.

        Raises:
            As ``image_at``.
        """
        self._check_end(end_offset)
        if self._loader is None:
            loader = self._loader_before(end_offset)
            yield from matching(self._base_changes, filters)
            self._loader, self._base_changes = loader, []
        loader = self._loader
        begin = loader.next_offset
        scans = self._scans(begin, end_offset)
        for changes in changes_of_scans(loader, scans, self._redactor, filters):
            yield from changes
            self._console.progress(loader.next_offset - begin, end_offset - begin)
        yield from matching(self._load_after_end(loader, end_offset), filters)
        self._log_omissions(loader)

    def _scans(self, start_offset: int, end_offset: int) -> Iterator[Scan]:
        """Read the records of the range that the log has, and that no snapshot replaces."""
        if end_offset <= self._log_end_offset and self._replacing_at(end_offset) is not None:
            return iter(())  # which of them were committed is unknown
        end_offset = min(end_offset, self._log_end_offset)
        return self._log.scan(start_offset, end_offset, columns=LOADER_COLUMNS)

    def _replacing_at(self, end_offset: int) -> SnapshotId | None:
        """Return the snapshot that ends at an offset and replaces the log; None without one."""
        newest = self._log.newest_snapshot()
        if newest is None or newest.end_offset != end_offset:
            return None  # the leader epochs of the log are not needed
        return replacing_snapshot(self._log, self._log_end_offset)

    def _snapshot_at(self, end_offset: int) -> SnapshotId | None:
        """Return the newest snapshot that ends at an offset; None if none does."""
        return max(
            (one for one in self._log.snapshots if one.end_offset == end_offset), default=None
        )

    def _load_after_end(self, loader: MetadataLoader, end_offset: int) -> list[RecordChanges]:
        """Load the snapshot at an offset up to which no records were replayed.

        Returns what it changes.
        """
        snapshot_id = self._snapshot_at(end_offset)
        if snapshot_id is None or loader.next_offset >= end_offset:
            return []
        loaded = load_snapshot(loader, self._log.read_snapshot(snapshot_id))
        self._base = f"snapshot {snapshot_id}"
        return _differences(loaded)

    def _loader_before(self, end_offset: int) -> MetadataLoader:
        """Return a loader at the best base at or below ``end_offset``."""
        earlier = self._loader
        replacing = self._replacing_at(end_offset)
        is_whole = self._log_start_offset == 0 and self._log.source is not SourceKind.CHECKPOINT
        for snapshot_id in sorted(self._log.snapshots, reverse=not self._from_oldest):
            if self._from_oldest and (is_whole or earlier is not None):
                break
            if earlier is not None and snapshot_id.end_offset <= earlier.next_offset:
                break
            if self._is_valid_base(snapshot_id, end_offset):
                loader = self._load_snapshot(snapshot_id, is_required=snapshot_id == replacing)
                if loader is not None:
                    return loader
        if earlier is not None:
            return earlier
        if not is_whole:
            raise self._no_base_error(end_offset)
        self._base = "the start of the log"
        return MetadataLoader(decode=self._decode)

    def _is_valid_base(self, snapshot_id: SnapshotId, end_offset: int) -> bool:
        """Return whether the log continues at a snapshot's end, or that is the offset."""
        base = snapshot_id.end_offset
        return base == end_offset or self._log_start_offset <= base < end_offset

    def _load_snapshot(
        self, snapshot_id: SnapshotId, *, is_required: bool
    ) -> MetadataLoader | None:
        """Return a loader at a snapshot; None if it is damaged and not required."""
        loader = MetadataLoader(decode=self._decode)
        snapshot = self._log.read_snapshot(snapshot_id)
        self._base_changes = []
        try:
            if self._from_oldest:
                self._base_changes = load_snapshot(loader, snapshot)
            else:
                load_rows(loader, snapshot, self._redactor)
        except CorruptSnapshotError as error:
            if is_required:
                raise
            self._console.log(f"skipped: {error}")
            return None
        self._base = f"snapshot {snapshot_id}"
        return loader

    def _no_base_error(self, end_offset: int) -> DataLossError:
        ends = [one.end_offset for one in self._log.snapshots]
        known = f"its snapshots end at {ends}" if ends else "it has no snapshot"
        return DataLossError(
            path=self._log.path,
            condition="OFFSETS_DELETED",
            reason=f"the state at end offset {end_offset} cannot be rebuilt: the log starts at "
            f"offset {self._log_start_offset}, and {known}",
            remedy="choose an offset at or after the end of a snapshot",
        )

    def _decode(self, value: bytes) -> DecodedRecord:
        return self._redactor.redact(decode(value))

    def _log_omissions(self, loader: MetadataLoader) -> None:
        if loader.open_transaction_offset is not None:
            self._console.log(
                f"the metadata transaction that begins at offset "
                f"{loader.open_transaction_offset} is "
                "open at the end offset: its records are not part of the state"
            )
        for skipped in loader.skipped:
            self._console.log(f"{skipped} are not supported by this release and were skipped")


def _differences(loaded: Sequence[RecordChanges]) -> list[RecordChanges]:
    """Return the changes of a snapshot without the rows that it has in common with the state."""
    found = []
    for record in loaded:
        changes = tuple(
            replace(change, op=Op.UPDATE) if None not in (change.before, change.after) else change
            for change in record.changes
            if change.before != change.after
        )
        if changes:
            found.append(replace(record, changes=changes))
    return found
