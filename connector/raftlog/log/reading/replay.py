"""Forward read of a log for its end, leader epochs, voters and transactions.

Invariants:

1. A replay starts where the open transactions are known: at the end of a snapshot, which is never
   inside one (KIP-630); at a producer snapshot, which contains them; or at the log's start. No
   batch is read twice.
2. A node may truncate records that were read and append others. Therefore each ``follow`` first
   compares the header of the last batch that was read. If it differs, the replay is invalid
   (``LogTruncated``).
3. A replay ends at damage, which it stores as ``damage``.
"""

from __future__ import annotations

import contextlib
from typing import Final

import numpy as np

from raftlog.errors import CorruptBatchError, CorruptFileError, DataLossError, LogError, LogGapError
from raftlog.limits import BATCH_HEADER_BYTES, READ_CHUNK_BYTES
from raftlog.log.format.directory import ProducerState
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.records.batch_columns import BatchColumns

from .aborted_transactions import (
    MARKER_COLUMNS,
    MARKER_PREFIXES,
    VoterSet,
    add_metadata_markers,
    add_producer_transactions,
    last_voters,
)
from .chunks import ColumnDecoder, HeaderDecoder
from .files import LogCursor, LogFiles, LogTail
from .transactions import TransactionIndex

ENDED_RETAINED_MAX: Final = 65_536
"""Ended transactions that are retained; earlier ones are read again if needed."""


class LogTruncated(Exception):  # noqa: N818 - not an error: the replay starts again
    """Records that were read were truncated, and may have been replaced: start a new replay."""


class LogReplay:
    """Forward read of one log. Not thread-safe.

    ``damage`` is the error at which the read ended, and ``voters_damage`` the error of the newest
    record of the voters. Both are None without an error.
    """

    def __init__(self, files: LogFiles, start_offset: int, *, is_metadata: bool) -> None:
        self.start_offset = start_offset
        self.transactions = TransactionIndex(
            files.path,
            complete_from=start_offset,
            retained_max=ENDED_RETAINED_MAX,
        )
        self.epochs = EpochCache()
        self.voters: VoterSet | None = None
        self.voters_damage: CorruptBatchError | None = None
        self.damage: LogError | None = None
        self._files = files
        self._is_metadata = is_metadata
        self._cursor = LogCursor(files, start_offset, contiguous=is_metadata)
        self._last_batch: tuple[int, int, bytes] | None = None

    @property
    def next_offset(self) -> int:
        """Offset after the last batch that was read."""
        return self._cursor.next_offset

    @property
    def tail(self) -> LogTail | None:
        """Bytes after it, if the end of the log was reached."""
        return self._cursor.tail

    @property
    def segment(self) -> int:
        """Base offset of the segment that is read."""
        return self._cursor.segment

    def follow(self, end_offset: int | None = None) -> None:
        """Read up to ``end_offset`` (exclusive, a batch boundary), or to the end of the log.

        Damage is not raised, but stored as ``damage``. Raises ``LogTruncated``, and errors of files
        that cannot be read.
        """
        if self.damage is not None:
            return
        self._check_not_truncated()
        try:
            if self._is_metadata:
                self._follow_records(end_offset)
            else:
                self._follow_headers(end_offset)
        except (CorruptBatchError, LogGapError) as error:
            self.damage = error
        self._store_last_header()

    def _follow_records(self, end_offset: int | None) -> None:
        limit = self._files.decompressed_bytes_max
        decoder = ColumnDecoder(
            MARKER_COLUMNS,
            READ_CHUNK_BYTES,
            limit,
            whole_batches=True,
            value_prefixes=MARKER_PREFIXES,
        )
        for chunk in self._cursor.read(decoder, end_offset):
            self._add_batches(chunk.batches)
            add_metadata_markers(chunk, self.transactions, from_offset=self.start_offset)
            try:
                self.voters = last_voters(chunk, self.voters, self._files.path)
                self.voters_damage = None
            except CorruptBatchError as error:
                self.voters_damage = error  # raised only by ``voters()``: records remain readable

    def _follow_headers(self, end_offset: int | None) -> None:
        for chunk in self._cursor.read(HeaderDecoder(), end_offset):
            self._add_batches(chunk.batches)
            add_producer_transactions(chunk, self.transactions, from_offset=self.start_offset)

    def _add_batches(self, batches: BatchColumns) -> None:
        epoch = batches.leader_epoch
        changes = np.flatnonzero(epoch[1:] != epoch[:-1]) + 1
        self.epochs = self.epochs.assign_all(
            (int(epoch[at]), int(batches.base_offset[at])) for at in (0, *changes.tolist())
        )
        self._last_batch = (self.segment, int(batches.position[-1]), b"")

    def _store_last_header(self) -> None:
        """Store the header of the last batch, because its CRC and epoch identify the batch."""
        if self._last_batch is not None:
            segment, position, _ = self._last_batch
            self._last_batch = segment, position, self._header_at(segment, position)

    def _check_not_truncated(self) -> None:
        if self._last_batch is None:
            return
        segment, position, header = self._last_batch
        if segment in self._files.listing.segments:
            if self._header_at(segment, position) != header:
                raise LogTruncated
        elif not self._files.listing.segments or segment > self._files.listing.segments[0]:
            raise LogTruncated  # the segment was truncated, not deleted by retention

    def _header_at(self, segment: int, position: int) -> bytes:
        with self._files.open(self._files.segment_path(segment)) as file:
            return file.read_at(position, BATCH_HEADER_BYTES)


# --- start of a replay ----------------------------------------------------------------------------


def metadata_replay(files: LogFiles, before_offset: int | None = None) -> LogReplay:
    """Start a replay of a metadata log at the end of the newest snapshot that the log reaches.

    With ``before_offset``, use the newest snapshot whose end offset is <= ``before_offset``.
    """
    start_offset = files.listing.start_offset
    for snapshot_id in reversed(files.listing.snapshots):
        end_offset = snapshot_id.end_offset
        if before_offset is not None and end_offset > before_offset:
            continue
        if end_offset >= start_offset and holds_boundary(files, end_offset, contiguous=True):
            return LogReplay(files, end_offset, is_metadata=True)
    replay = LogReplay(files, start_offset, is_metadata=True)
    if start_offset > 0:
        replay.transactions.assume_open_transaction_at(start_offset)
    return replay


def partition_replay(files: LogFiles, before_offset: int | None = None) -> LogReplay:
    """Start a replay of an ordinary partition at its newest valid producer snapshot.

    With ``before_offset``, use the newest one whose offset is <= ``before_offset``.
    """
    start_offset = files.listing.start_offset
    for offset in reversed(files.producer_offsets):
        if offset < start_offset or (before_offset is not None and offset > before_offset):
            continue
        producers = _producers_at(files, offset)
        if producers is None or not holds_boundary(files, offset, contiguous=False):
            continue
        replay = LogReplay(files, offset, is_metadata=False)
        for producer in producers:
            if producer.open_transaction_first_offset is not None:
                replay.transactions.open_transaction(
                    producer.producer_id, first_offset=producer.open_transaction_first_offset
                )
        return replay
    return LogReplay(files, start_offset, is_metadata=False)


def holds_boundary(files: LogFiles, offset: int, *, contiguous: bool) -> bool:
    """Return whether a segment starts at ``offset``, or the offset before it is on disk."""
    segment = files.segment_at(offset)
    if segment is None or segment == offset:
        return segment is not None
    cursor = LogCursor(files, offset - 1, contiguous=contiguous)
    try:
        return any(len(chunk.batches) for chunk in cursor.read(HeaderDecoder(), offset))
    except (CorruptBatchError, LogGapError, DataLossError):
        return False


def _producers_at(files: LogFiles, offset: int) -> tuple[ProducerState, ...] | None:
    """Return the producers at an offset; None if their state is damaged or was deleted."""
    with contextlib.suppress(CorruptFileError):
        return files.read_producers(offset)
    return None
