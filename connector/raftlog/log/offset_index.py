"""Sparse offset index of a segment (Kafka: ``OffsetIndex``).

Entry: int32 last offset of a batch minus the base offset, int32 position at which that batch
begins. There is no entry for position 0. The file has no checksum, and that of a running node is 10
MiB of zeros after a few entries: entries are read up to the first that does not ascend, and callers
check that a batch begins at a position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from raftlog.storage.protocol import ReadableFile

OFFSET_ENTRY_BYTES: Final = 8
_ENTRY: Final = np.dtype([("offset_delta", ">i4"), ("position", ">i4")])
_READ_ENTRIES: Final = 8192

assert _ENTRY.itemsize == OFFSET_ENTRY_BYTES


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
    entries = np.frombuffer(data, _ENTRY, count=len(data) // OFFSET_ENTRY_BYTES)
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
