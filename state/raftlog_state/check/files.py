"""Check of small files and of index files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NoReturn

import numpy as np

from raftlog.client import EpochCache
from raftlog.client.inspection import (
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    META_PROPERTIES_NAME,
    OFFSET_ENTRY_BYTES,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    QUORUM_STATE_NAME,
    TIME_ENTRY_BYTES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    AbortedTransaction,
    LogFiles,
    parse_epoch_checkpoint,
    parse_meta_properties,
    parse_offset_index,
    parse_partition_metadata,
    parse_producer_snapshot,
    parse_quorum_state,
    parse_time_index,
    parse_txn_index,
    read_small_file,
)
from raftlog.errors import CorruptFileError, SegmentDeletedError
from raftlog.limits import MIB
from raftlog.records.batch_columns import BatchColumns

from .findings import Finding, Kind, damage, note, of_error

# --- Checks of index files against the log: each entry must match a batch -------------------------
# A check is fed with the batches of its segment in order, and keeps none of them. Entries that
# point into damaged bytes are skipped. Entries after the last batch are a note in the active
# segment: the node wrote while the files were copied, or crashed before the log was synced, and
# Kafka rebuilds the index; in a sealed segment they are damage. Zeros after the last entry are
# preallocated space (Kafka: ``AbstractIndex``).


class OffsetIndexCheck:
    """Check of ``.index``, whose entries contain a batch's last offset and position."""

    def __init__(self, path: str, data: bytes, base_offset: int) -> None:
        self._path = path
        self._data = data
        self._index = parse_offset_index(data, base_offset)
        self._next = 0

    def add(self, batches: BatchColumns) -> Iterator[Finding]:
        """Check the entries that point into these batches."""
        if not len(batches):
            return
        end_position = int(batches.position[-1]) + int(batches.byte_count[-1])
        first, self._next = self._next, int(np.searchsorted(self._index.positions, end_position))
        positions = self._index.positions[first : self._next]
        last_offsets = self._index.last_offsets[first : self._next]
        at = np.searchsorted(batches.position, positions, side="right") - 1
        found = (at >= 0) & (batches.position[at] == positions)
        wrong = ~found | (batches.last_offset[at] != last_offsets)
        for ordinal in np.flatnonzero(wrong).tolist():
            if not found[ordinal]:
                reason = f"no batch begins at byte {positions[ordinal]} of the log"
            else:
                reason = (
                    f"the last offset of the batch at byte {positions[ordinal]} of the log is "
                    f"{batches.last_offset[at[ordinal]]}"
                )
            yield damage(
                Kind.INDEX,
                self._path,
                reason,
                position=(first + ordinal) * OFFSET_ENTRY_BYTES,
                offset=int(last_offsets[ordinal]),
            )

    def skip(self, end_position: int, end_offset: int) -> None:
        """Skip the entries that precede the next valid batch."""
        self._next = max(self._next, int(np.searchsorted(self._index.positions, end_position)))

    def finish(self, *, is_newest: bool) -> Iterator[Finding]:
        """Report the entries after the end of the segment."""
        if self._next < len(self._index):
            make = note if is_newest else damage
            position = int(self._index.positions[self._next])
            yield make(
                Kind.INDEX,
                self._path,
                f"entry for byte {position} of the log, after the last complete batch",
                position=self._next * OFFSET_ENTRY_BYTES,
                offset=int(self._index.last_offsets[self._next]),
            )
        yield from _rest(self._path, self._data, len(self._index), OFFSET_ENTRY_BYTES)


class TimeIndexCheck:
    """Check of ``.timeindex``, whose entries contain the largest timestamp so far and its offset.

    The offset is the batch's last offset or, in some Kafka releases, the record's.
    """

    def __init__(self, path: str, data: bytes, base_offset: int) -> None:
        self._path = path
        self._data = data
        self._index = parse_time_index(data, base_offset)
        self._next = 0

    def add(self, batches: BatchColumns) -> Iterator[Finding]:
        """Check the entries with offsets of these batches."""
        if not len(batches):
            return
        first = self._next
        end_offset = int(batches.last_offset[-1]) + 1
        self._next = int(np.searchsorted(self._index.last_offsets, end_offset))
        offsets = self._index.last_offsets[first : self._next]
        times = self._index.timestamps_ms[first : self._next]
        at = np.searchsorted(batches.base_offset, offsets, side="right") - 1
        found = (at >= 0) & (batches.last_offset[at] >= offsets)
        wrong = ~found | (batches.max_timestamp_ms[at] != times)
        for ordinal in np.flatnonzero(wrong).tolist():
            if not found[ordinal]:
                reason = "no batch of the log contains this offset"
            else:
                reason = (
                    f"timestamp {times[ordinal]} ms, but the batch of the log has "
                    f"{batches.max_timestamp_ms[at[ordinal]]} ms"
                )
            yield damage(
                Kind.INDEX,
                self._path,
                reason,
                position=(first + ordinal) * TIME_ENTRY_BYTES,
                offset=int(offsets[ordinal]),
            )

    def skip(self, end_position: int, end_offset: int) -> None:
        """Skip the entries that precede the next valid batch."""
        self._next = max(self._next, int(np.searchsorted(self._index.last_offsets, end_offset)))

    def finish(self, *, is_newest: bool) -> Iterator[Finding]:
        """Report the entries after the end of the segment."""
        if self._next < len(self._index):
            make = note if is_newest else damage
            yield make(
                Kind.INDEX,
                self._path,
                "entry for an offset after the last complete batch of the log",
                position=self._next * TIME_ENTRY_BYTES,
                offset=int(self._index.last_offsets[self._next]),
            )
        yield from _rest(self._path, self._data, len(self._index), TIME_ENTRY_BYTES)


class TxnIndexCheck:
    """Check of ``.txnindex``, whose entries are transactions with abort markers in a segment."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        self._entries: tuple[AbortedTransaction, ...] = ()
        self._error: CorruptFileError | None = None
        self._next = 0
        try:
            self._entries = parse_txn_index(data, path)
        except CorruptFileError as error:
            self._error = error

    def add(self, batches: BatchColumns) -> Iterator[Finding]:
        """Check the entries whose marker is in these batches."""
        if not len(batches):
            return
        end_offset = int(batches.last_offset[-1]) + 1
        while self._next < len(self._entries):
            entry = self._entries[self._next]
            if entry.last_offset >= end_offset:
                return
            self._next += 1
            at = int(np.searchsorted(batches.base_offset, entry.last_offset, side="right")) - 1
            if (
                at >= 0
                and batches.last_offset[at] >= entry.last_offset
                and batches.is_control[at]
                and batches.producer_id[at] == entry.producer_id
            ):
                continue
            yield damage(
                Kind.INDEX,
                self._path,
                f"the log has no marker of producer {entry.producer_id} at this offset",
                offset=entry.last_offset,
            )

    def skip(self, end_position: int, end_offset: int) -> None:
        """Skip the entries that precede the next valid batch."""
        while self._next < len(self._entries):
            if self._entries[self._next].last_offset >= end_offset:
                return
            self._next += 1

    def finish(self, *, is_newest: bool) -> Iterator[Finding]:
        """Report the entries after the end of the segment."""
        if self._error is not None:
            yield of_error(self._error, self._path)
        if self._next < len(self._entries):
            make = note if is_newest else damage
            yield make(
                Kind.INDEX,
                self._path,
                "entry for an abort marker after the last complete batch of the log",
                offset=self._entries[self._next].last_offset,
            )


IndexCheck = OffsetIndexCheck | TimeIndexCheck | TxnIndexCheck


def _rest(path: str, data: bytes, entry_count: int, entry_bytes: int) -> Iterator[Finding]:
    """Report bytes other than zeros after the last entry."""
    position = entry_count * entry_bytes
    if data[position:].strip(b"\0"):
        what = "does not ascend" if len(data) - position >= entry_bytes else "is incomplete"
        yield damage(Kind.INDEX, path, f"entry {entry_count + 1} {what}", position=position)


# --- Checks of small files ------------------------------------------------------------------------
# Check that the metadata files of a log can be parsed, and selection of a segment's indexes.

_INDEX_BYTES_MAX: Final = 64 * MIB
"""Bytes of an index that are checked at most; Kafka's ``segment.index.bytes`` is 10 MiB."""

_REASON_CHARACTERS_MAX: Final = 400

_Parser = Callable[[bytes, str], object]


def epochs_path(files: LogFiles) -> str:
    """Return the path of ``leader-epoch-checkpoint``."""
    return files.storage.join(files.directory, EPOCH_CHECKPOINT_NAME)


def read_epochs(files: LogFiles) -> EpochCache | None:
    """Read ``leader-epoch-checkpoint``; None if it is missing or corrupt."""
    path = epochs_path(files)
    try:
        data = read_small_file(files.storage, path)
        return None if data is None else parse_epoch_checkpoint(data, path)
    except CorruptFileError:
        return None


def small_files(files: LogFiles) -> Iterator[Finding]:
    """Yield a finding for each metadata file that cannot be parsed."""
    join, directory = files.storage.join, files.directory
    above, _ = files.storage.split(directory)
    parsers: list[tuple[str, _Parser]] = [
        (join(above, META_PROPERTIES_NAME), parse_meta_properties),
        (join(directory, META_PROPERTIES_NAME), parse_meta_properties),
        (join(directory, QUORUM_STATE_NAME), parse_quorum_state),
        (epochs_path(files), parse_epoch_checkpoint),
        (join(directory, PARTITION_METADATA_NAME), parse_partition_metadata),
        (join(directory, OUT_OF_ELECTION_NAME), _out_of_election),
    ]
    for offset in files.listing.producer_snapshots:
        path = files.segment_path(offset, PRODUCER_SNAPSHOT_SUFFIX)
        parsers.append((path, parse_producer_snapshot))
    for path, parse in parsers:
        try:
            data = read_small_file(files.storage, path)
            if data is not None:
                parse(data, path)
        except CorruptFileError as error:
            yield of_error(error, path)


def _out_of_election(data: bytes, path: str) -> NoReturn:
    """Raise ``CorruptFileError``: the file exists only while acknowledged records are missing."""
    letters = data.decode("utf-8", errors="replace")
    text = "".join(letter for letter in letters if letter.isprintable())
    raise CorruptFileError(
        path=path,
        reason=f"{text[:_REASON_CHARACTERS_MAX]}; this node does not vote until it has fetched the "
        "committed records from a leader (if no leader can be elected, see "
        "`raftlog node recover --help`)",
    )


def index_checks(files: LogFiles, base_offset: int) -> list[IndexCheck]:
    """Return a check for each index file of a segment."""
    found: list[IndexCheck] = []
    path = files.segment_path(base_offset, INDEX_SUFFIX)
    data = _index_bytes(files, path)
    if data is not None:
        found.append(OffsetIndexCheck(path, data, base_offset))
    path = files.segment_path(base_offset, TIME_INDEX_SUFFIX)
    data = _index_bytes(files, path)
    if data is not None:
        found.append(TimeIndexCheck(path, data, base_offset))
    path = files.segment_path(base_offset, TXN_INDEX_SUFFIX)
    data = _index_bytes(files, path)
    if data is not None:
        found.append(TxnIndexCheck(path, data))
    return found


def _index_bytes(files: LogFiles, path: str) -> bytes | None:
    try:
        with files.open(path) as file:
            return file.read_at(0, min(file.byte_count(), _INDEX_BYTES_MAX))
    except SegmentDeletedError:
        return None
