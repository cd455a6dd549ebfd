"""Files of one log by its last directory listing, and positions in them.

Between two listings the node may roll, rename and delete segments: opening a listed file that no
longer exists raises ``SegmentDeletedError``, and the caller lists again. An index is only a hint: a
position from it is used if a valid batch begins there that ends with the entry's offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from raftlog.errors import LogNotFoundError, SegmentDeletedError
from raftlog.limits import DECOMPRESSED_BYTES_MAX
from raftlog.log.format.directory import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    Listing,
    checkpoint_name,
    offset_name,
    read_listing,
    read_small_file,
)
from raftlog.log.format.indexes import OFFSET_ENTRY, TIME_ENTRY
from raftlog.log.segment import find_header, read_batch_at
from raftlog.storage.protocol import ReadableFile, Storage
from raftlog.types import SnapshotId

# --- Sparse offset index of a segment (Kafka: ``OffsetIndex``) ------------------------------------
# Entry: int32 last offset of a batch minus the base offset, int32 position at which that batch
# begins. There is no entry for position 0. The file has no checksum, and that of a running node is
# 10 MiB of zeros after a few entries: entries are read up to the first that does not ascend, and
# callers check that a batch begins at a position.

OFFSET_ENTRY_BYTES: Final = OFFSET_ENTRY.size
_OFFSET_ENTRY: Final = np.dtype([("offset_delta", ">i4"), ("position", ">i4")])
_READ_ENTRIES: Final = 8192

assert _OFFSET_ENTRY.itemsize == OFFSET_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """Last offsets of batches and the positions at which these begin; both strictly ascending."""

    last_offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    positions: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.positions)

    def entry_before(self, offset: int) -> int | None:
        """Return the ordinal of the last entry whose last offset is <= ``offset``, or None."""
        ordinal = int(np.searchsorted(self.last_offsets, offset, side="right")) - 1
        return None if ordinal < 0 else ordinal


def parse_offset_index(data: bytes, base_offset: int) -> OffsetIndex:
    """Parse an ``.index`` up to the first entry that does not ascend."""
    entries = np.frombuffer(data, _OFFSET_ENTRY, count=len(data) // OFFSET_ENTRY_BYTES)
    deltas = entries["offset_delta"].astype(np.int64)
    positions = entries["position"].astype(np.int64)
    kept = ascending_count((deltas, 0), (positions, 0))
    return OffsetIndex(deltas[:kept] + base_offset, positions[:kept])


def ascending_count(*columns: tuple[npt.NDArray[np.int64], int]) -> int:
    """Return how many leading elements ascend strictly in every column, from above its bound."""
    valid = np.ones(len(columns[0][0]), np.bool_)
    for column, above in columns:
        valid[1:] &= column[1:] > column[:-1]
        valid[:1] &= column[:1] > above
    return len(valid) if valid.all() else int(np.argmin(valid))


def read_entries(file: ReadableFile, entry_bytes: int) -> bytes:
    """Read an index up to its zeros."""
    parts = []
    position = 0
    step = _READ_ENTRIES * entry_bytes
    while part := file.read_at(position, step):
        parts.append(part)
        position += len(part)
        if len(part) < step or not any(part[-entry_bytes:]):
            break
    return b"".join(parts)


# --- Sparse time index of a segment (Kafka: ``TimeIndex``) ----------------------------------------
# Entry: int64 greatest timestamp so far in the segment, int32 last offset of the batch that has it,
# minus the base offset. Both ascend strictly. As with the offset index, entries are read up to the
# first that does not ascend, and callers check them.

TIME_ENTRY_BYTES: Final = TIME_ENTRY.size
_TIME_ENTRY: Final = np.dtype([("timestamp_ms", ">i8"), ("offset_delta", ">i4")])

assert _TIME_ENTRY.itemsize == TIME_ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Timestamps and last offsets; both strictly ascending."""

    timestamps_ms: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    last_offsets: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.timestamps_ms)

    def entry_before(self, timestamp_ms: int) -> int | None:
        """Return the ordinal of the last entry with a timestamp < ``timestamp_ms``, or None."""
        ordinal = int(np.searchsorted(self.timestamps_ms, timestamp_ms, side="left")) - 1
        return None if ordinal < 0 else ordinal


def parse_time_index(data: bytes, base_offset: int) -> TimeIndex:
    """Parse a ``.timeindex`` up to the first entry that does not ascend.

    The first entry may have offset delta 0 (a first batch of one record); an entry with zeros in
    both fields is the end.
    """
    entries = np.frombuffer(data, _TIME_ENTRY, count=len(data) // TIME_ENTRY_BYTES)
    timestamps_ms = entries["timestamp_ms"].astype(np.int64)
    deltas = entries["offset_delta"].astype(np.int64)
    kept = ascending_count((timestamps_ms, 0), (deltas, -1))
    return TimeIndex(timestamps_ms[:kept], deltas[:kept] + base_offset)


# --- Segments, indexes and snapshots of one directory, opened once --------------------------------

V = TypeVar("V")

_INDEXES_KEPT: Final = 256
_HINTS_KEPT: Final = 256
_ATTEMPTS_MAX: Final = 10
"""Listings while the cleaner swaps segments, which takes microseconds."""


class LogFiles:
    """Directory of a log, or one file opened as a log. Not thread-safe."""

    def __init__(self, storage: Storage, directory: str, listing: Listing) -> None:
        self.decompressed_bytes_max = DECOMPRESSED_BYTES_MAX
        """Limit of the decompressed records of one batch, in bytes."""
        self.storage = storage
        self.directory = directory
        self.listing = listing
        self._single_path: str | None = None
        self._indexes: OrderedDict[int, OffsetIndex] = OrderedDict()
        self._hints: OrderedDict[int, tuple[int, int]] = OrderedDict()

    @classmethod
    def of_directory(cls, storage: Storage, directory: str) -> Self:
        """List a partition's directory."""
        return cls(storage, directory, read_listing(storage.list_names(directory)))

    @classmethod
    def of_segment(cls, storage: Storage, path: str, base_offset: int) -> Self:
        """Open one segment; its indexes are read from the same directory."""
        files = cls(storage, storage.split(path)[0], Listing(segments=(base_offset,)))
        files._single_path = path
        return files

    @classmethod
    def of_checkpoint(cls, storage: Storage, path: str, snapshot_id: SnapshotId) -> Self:
        """Open one checkpoint: a log without records after the snapshot."""
        files = cls(storage, storage.split(path)[0], Listing(snapshots=(snapshot_id,)))
        files._single_path = path
        return files

    @property
    def path(self) -> str:
        """Path in error messages."""
        return self._single_path or self.directory

    def refresh(self) -> None:
        """List the directory again; no-op for a single file."""
        if self._single_path is not None:
            return
        for _ in range(_ATTEMPTS_MAX):
            self.listing = read_listing(self.storage.list_names(self.directory))
            if not self.listing.swapped:
                return

    # --- files ------------------------------------------------------------------------------------

    def segment_at(self, offset: int) -> int | None:
        """Return the base offset of the segment for ``offset``; None below the first segment."""
        ordinal = bisect_right(self.listing.segments, offset)
        return self.listing.segments[ordinal - 1] if ordinal else None

    def segment_after(self, base_offset: int) -> int | None:
        """Return the next segment's base offset; None for the active segment."""
        ordinal = bisect_right(self.listing.segments, base_offset)
        return self.listing.segments[ordinal] if ordinal < len(self.listing.segments) else None

    def segment_path(self, base_offset: int, suffix: str = LOG_SUFFIX) -> str:
        """Return the path of a segment's file with this suffix."""
        if self._single_path is None:
            if suffix == LOG_SUFFIX and base_offset in self.listing.swapped:
                suffix += SWAP_SUFFIX
            return self.storage.join(self.directory, offset_name(base_offset, suffix))
        path = self._single_path.removesuffix(DELETED_SUFFIX)
        tail = self._single_path[len(path) :]
        return self._single_path if suffix == LOG_SUFFIX else _stem(path) + suffix + tail

    def checkpoint_path(self, snapshot_id: SnapshotId) -> str:
        """Return the path of a snapshot file."""
        return self._single_path or self.storage.join(self.directory, checkpoint_name(snapshot_id))

    def open(self, path: str) -> ReadableFile:
        """Open a listed file. Raises ``SegmentDeletedError`` if it no longer exists."""
        try:
            return self.storage.open_file(path)
        except LogNotFoundError:
            raise SegmentDeletedError(path=path) from None

    def read_small(self, name: str) -> bytes | None:
        """Return the content of a small file of the directory; None if it does not exist."""
        return self.parse_small(name, lambda data, _: data)

    def parse_small(self, name: str, parse: Callable[[bytes, str], V]) -> V | None:
        """Return the parsed content of a small file; None if it does not exist.

        Raises ``CorruptFileError``.
        """
        path = self.storage.join(self.directory, name)
        data = read_small_file(self.storage, path)
        return None if data is None else parse(data, path)

    # --- positions in them ------------------------------------------------------------------------

    def offset_index(self, base_offset: int) -> OffsetIndex:
        """Return a segment's offset index, empty if it has none; cached for sealed segments."""
        index = self._indexes.get(base_offset)
        if index is None:
            data = self._index_bytes(base_offset, INDEX_SUFFIX, OFFSET_ENTRY_BYTES)
            index = parse_offset_index(data, base_offset)
            if self.segment_after(base_offset) is not None:
                _keep(self._indexes, base_offset, index, _INDEXES_KEPT)
        return index

    def time_index(self, base_offset: int) -> TimeIndex:
        """Return a segment's time index, empty if it has none."""
        data = self._index_bytes(base_offset, TIME_INDEX_SUFFIX, TIME_ENTRY_BYTES)
        return parse_time_index(data, base_offset)

    def remember_position(self, offset: int, base_offset: int, position: int) -> None:
        """Cache the position of ``offset``: the next read often continues there."""
        _keep(self._hints, offset, (base_offset, position), _HINTS_KEPT)

    def was_read_to(self, offset: int, base_offset: int) -> bool:
        """Return whether the position of ``offset`` in this segment is cached."""
        segment, position = self._hints.get(offset, (None, 0))
        return segment == base_offset and position > 0

    def find(self, file: ReadableFile, base_offset: int, offset: int) -> int:
        """Return a position at which a batch with a base offset <= ``offset`` begins.

        The batch that contains ``offset`` is at that position or after it. 0 without a valid hint
        or index entry.
        """
        hint = self._nearest_hint(base_offset, offset)
        if hint is not None and hint[0] == offset and _begins_with(file, hint[1], offset):
            return hint[1]
        position = 0
        index = self.offset_index(base_offset)
        ordinal = index.entry_before(offset)
        if ordinal is not None and self.is_entry_valid(file, index, ordinal):
            position = int(index.positions[ordinal])
        if hint is not None and hint[1] > position and _begins_with(file, hint[1], hint[0]):
            return hint[1]
        return position

    def _nearest_hint(self, base_offset: int, offset: int) -> tuple[int, int] | None:
        """Return the greatest cached offset <= ``offset`` of a segment, and its position."""
        known = [
            (hinted, position)
            for hinted, (segment, position) in self._hints.items()
            if segment == base_offset and hinted <= offset
        ]
        return max(known, default=None)

    def is_entry_valid(self, file: ReadableFile, index: OffsetIndex, ordinal: int) -> bool:
        """Return whether the batch of an index entry begins at the entry's position."""
        batch = read_batch_at(file, int(index.positions[ordinal]))
        return batch is not None and batch.last_offset == int(index.last_offsets[ordinal])

    def _index_bytes(self, base_offset: int, suffix: str, entry_bytes: int) -> bytes:
        try:
            with self.storage.open_file(self.segment_path(base_offset, suffix)) as file:
                return read_entries(file, entry_bytes)
        except (LogNotFoundError, SegmentDeletedError):
            return b""


def _begins_with(file: ReadableFile, position: int, offset: int) -> bool:
    """Return whether the batch at ``position``, where one once began, has this base offset."""
    header = find_header(file, position)
    return header is not None and header.base_offset == offset


def _stem(path: str) -> str:
    return path.removesuffix(LOG_SUFFIX)


def _keep(kept: OrderedDict[int, V], key: int, value: V, count_max: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > count_max:
        kept.popitem(last=False)
