"""Entries of a segment's offset and time index, both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from raftlog.storage.protocol import ReadableFile

# --- Sparse offset index of a segment (Kafka: ``OffsetIndex``) ------------------------------------
# Entry: int32 last offset of a batch minus the base offset, int32 position at which that batch
# begins. There is no entry for position 0. The file has no checksum, and that of a running node is
# 10 MiB of zeros after a few entries: entries are read up to the first that does not ascend, and
# callers check that a batch begins at a position.

OFFSET_ENTRY_BYTES: Final = 8
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

TIME_ENTRY_BYTES: Final = 12
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
