"""What is learned by reading a log forward: its end, its epochs, voters and transactions.

Rules of this file:

1. Reading begins at a place where it is known which transactions are open: behind a snapshot, which
   never ends inside one (KIP-630); behind a producer snapshot, which says; or at the log's start.
   From there on nothing is read twice: ``follow`` goes on where it stopped.
2. A node may truncate what a reader has seen and write other records there. So the last batch that
   was read is looked at again each time: is it still the same? If not, all that was learned is void
   (``LogTruncated``).
3. Damage ends it: what lies behind is not learned, and ``damage`` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    DataLossError,
    LogError,
    LogGapError,
)
from raftlog.limits import BATCH_HEADER_BYTES, READ_CHUNK_BYTES
from raftlog.records.columns import BatchColumns

from .chunks import ColumnDecoder, HeaderDecoder
from .cursor import LogCursor, LogTail
from .epoch_cache import EpochCache
from .files import LogFiles
from .names import PRODUCER_SNAPSHOT_SUFFIX
from .producer_snapshot import ProducerState, parse_producer_snapshot
from .text_files import read_small_file
from .transaction_markers import (
    MARKER_COLUMNS,
    VoterSet,
    add_metadata_markers,
    add_producer_transactions,
    last_voters,
)
from .transactions import TransactionIndex

ENDED_RETAINED_MAX: Final = 65_536
"""How many ended transactions are remembered; older ones are read again if needed."""


class LogTruncated(Exception):  # noqa: N818 - not an error: the reader begins again
    """The node truncated records that were read, and may have written others in their place."""


class LogReplay:
    """One forward reading of a log. Not shared between threads."""

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
        """The offset behind the last batch that was read."""
        return self._cursor.next_offset

    @property
    def tail(self) -> LogTail | None:
        """What lies behind it, if reading came to the end of the log."""
        return self._cursor.tail

    @property
    def segment(self) -> int:
        """The base offset of the segment that reading came to."""
        return self._cursor.segment

    def follow(self, end_offset: int | None = None) -> None:
        """Read on to ``end_offset`` (exclusive, a batch boundary) or to the end of the log.

        Raises ``LogTruncated``, and whatever keeps the files from being read. Damage is not
        raised but kept.
        """
        if self.damage is not None:
            return
        self._check_not_rewritten()
        try:
            if self._is_metadata:
                self._follow_records(end_offset)
            else:
                self._follow_headers(end_offset)
        except (CorruptBatchError, LogGapError) as error:
            self.damage = error
        self._note_last_header()

    def _follow_records(self, end_offset: int | None) -> None:
        limit = self._files.decompressed_bytes_max
        decoder = ColumnDecoder(MARKER_COLUMNS, READ_CHUNK_BYTES, limit, whole_batches=True)
        for chunk in self._cursor.read(decoder, end_offset):
            self._note_batches(chunk.batches)
            add_metadata_markers(chunk, self.transactions, from_offset=self.start_offset)
            try:
                self.voters = last_voters(chunk, self.voters, self._files.path)
                self.voters_damage = None
            except CorruptBatchError as error:
                self.voters_damage = error  # it keeps nobody from reading the records

    def _follow_headers(self, end_offset: int | None) -> None:
        for chunk in self._cursor.read(HeaderDecoder(), end_offset):
            self._note_batches(chunk.batches)
            add_producer_transactions(chunk, self.transactions, from_offset=self.start_offset)

    def _note_batches(self, batches: BatchColumns) -> None:
        epoch = batches.leader_epoch
        changes = np.flatnonzero(epoch[1:] != epoch[:-1]) + 1
        self.epochs = self.epochs.assign_all(
            (int(epoch[at]), int(batches.base_offset[at])) for at in (0, *changes.tolist())
        )
        self._last_batch = (self.segment, int(batches.position[-1]), b"")

    def _note_last_header(self) -> None:
        """Keep the header of the last batch: its CRC and epoch say which batch it was."""
        if self._last_batch is not None:
            segment, position, _ = self._last_batch
            self._last_batch = segment, position, self._header_at(segment, position)

    def _check_not_rewritten(self) -> None:
        if self._last_batch is None:
            return
        segment, position, header = self._last_batch
        if segment in self._files.listing.segments:
            if self._header_at(segment, position) != header:
                raise LogTruncated
        elif not self._files.listing.segments or segment > self._files.listing.segments[0]:
            raise LogTruncated  # gone, but not because the log was trimmed from its start

    def _header_at(self, segment: int, position: int) -> bytes:
        with self._files.open(self._files.segment_path(segment)) as file:
            return file.read_at(position, BATCH_HEADER_BYTES)


# --- where to begin -------------------------------------------------------------------------------


def metadata_replay(files: LogFiles, before_offset: int | None = None) -> LogReplay:
    """Begin a history of a metadata log: behind the newest snapshot that the log reaches.

    With ``before_offset``: behind the newest whose end offset is at most that.
    """
    start_offset = log_start(files)
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
    """Begin a history of an ordinary partition: behind the newest producer snapshot that is sound.

    With ``before_offset``: behind the newest whose offset is at most that.
    """
    start_offset = log_start(files)
    for offset, producers in _producer_snapshots(files):
        if before_offset is not None and offset > before_offset:
            continue
        if offset < start_offset or not holds_boundary(files, offset, contiguous=False):
            continue
        replay = LogReplay(files, offset, is_metadata=False)
        for producer in producers:
            if producer.open_transaction_first_offset is not None:
                replay.transactions.open_transaction(
                    producer.producer_id, producer.open_transaction_first_offset
                )
        return replay
    return LogReplay(files, start_offset, is_metadata=False)


def log_start(files: LogFiles) -> int:
    """The first offset on disk. A log without segments begins behind its newest snapshot."""
    if files.listing.segments:
        return files.listing.segments[0]
    return files.listing.snapshots[-1].end_offset if files.listing.snapshots else 0


def holds_boundary(files: LogFiles, offset: int, *, contiguous: bool) -> bool:
    """Whether the log reaches ``offset``: a segment begins there, or a batch lies before it."""
    segment = files.segment_at(offset)
    if segment is None or segment == offset:
        return segment is not None
    cursor = LogCursor(files, offset - 1, contiguous=contiguous)
    try:
        return any(len(chunk.batches) for chunk in cursor.read(HeaderDecoder(), offset))
    except (CorruptBatchError, LogGapError, DataLossError):
        return False


def _producer_snapshots(files: LogFiles) -> Iterator[tuple[int, tuple[ProducerState, ...]]]:
    """The producer snapshots that parse, newest first."""
    for offset in reversed(files.listing.producer_snapshots):
        path = files.segment_path(offset, PRODUCER_SNAPSHOT_SUFFIX)
        try:
            data = read_small_file(files.storage, path)
            if data is not None:
                yield offset, parse_producer_snapshot(data, path)
        except CorruptFileError:
            continue
