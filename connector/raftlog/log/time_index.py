"""Sparse time index of a segment (Kafka: ``TimeIndex``).

Entry: int64 greatest timestamp so far in the segment, int32 last offset of the batch that has it,
minus the base offset. Both ascend strictly. As with the offset index, entries are read up to the
first that does not ascend, and callers check them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from .offset_index import ascending_count

TIME_ENTRY_BYTES: Final = 12
_ENTRY: Final = np.dtype([("timestamp_ms", ">i8"), ("offset_delta", ">i4")])

assert _ENTRY.itemsize == TIME_ENTRY_BYTES


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
    entries = np.frombuffer(data, _ENTRY, count=len(data) // TIME_ENTRY_BYTES)
    timestamps_ms = entries["timestamp_ms"].astype(np.int64)
    deltas = entries["offset_delta"].astype(np.int64)
    kept = ascending_count((timestamps_ms, 0), (deltas, -1))
    return TimeIndex(timestamps_ms[:kept], deltas[:kept] + base_offset)
