"""What a scan gives: batches as numpy columns, records as Arrow columns.

Rules of this file:

1. One element a batch, or one element a record; no Python object for either.
2. A column that was not asked for is None, and nothing was spent on it.
3. Positions are the file's; ``Scan.end_position`` alone is the buffer's, since it says how much of
   the buffer was used.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog.errors import CorruptBatchError

from .header import (
    COMPRESSION_BITS,
    CONTROL_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)

Int16s = npt.NDArray[np.int16]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Column(enum.Flag):
    """What to build of the records."""

    OFFSET = enum.auto()
    TIMESTAMP = enum.auto()
    LEADER_EPOCH = enum.auto()
    KEY = enum.auto()
    VALUE = enum.auto()
    HEADERS = enum.auto()

    NONE = 0
    ALL_BUT_HEADERS = OFFSET | TIMESTAMP | LEADER_EPOCH | KEY | VALUE
    ALL = ALL_BUT_HEADERS | HEADERS


class Stop(enum.Enum):
    """Why a scan ended where it ended."""

    END = "end"
    """The whole buffer was used."""
    TORN = "torn"
    """What follows is no whole batch: one cut off, or zeros. More bytes may complete it."""
    DAMAGED = "damaged"
    """What follows is damaged, and ``error`` says how."""
    END_OFFSET = "end_offset"
    """The next batch begins at or behind the ``end_offset`` that was asked for."""
    FULL = "full"
    """Enough bytes are decoded for one scan: go on with another at ``end_position``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """Headers of batches, one element a batch.

    Before their CRC is checked (``scan_headers``) they are what the bytes say, no more.
    """

    position: Int64s
    byte_count: Int32s
    base_offset: Int64s
    last_offset: Int64s
    leader_epoch: Int32s
    attributes: Int16s
    base_timestamp_ms: Int64s
    max_timestamp_ms: Int64s
    producer_id: Int64s
    producer_epoch: Int16s
    base_sequence: Int32s
    record_count: Int32s

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, which: slice | Bools | Int64s) -> BatchColumns:
        """Some of the batches."""
        chosen: dict[str, Any] = {one.name: getattr(self, one.name)[which] for one in fields(self)}
        return BatchColumns(**chosen)

    def _has(self, bit: int) -> Bools:
        has: Bools = (self.attributes & bit) != 0
        return has

    @property
    def next_offset(self) -> Int64s:
        return self.last_offset + 1

    def in_order_count(self, expected_offset: int) -> int:
        """How many leading batches follow each other from ``expected_offset`` on."""
        expected = np.concatenate(([expected_offset], self.next_offset))[: len(self)]
        wrong = np.flatnonzero(self.base_offset != expected)
        return int(wrong[0]) if len(wrong) else len(self)

    @property
    def is_control(self) -> Bools:
        return self._has(CONTROL_BIT)

    @property
    def is_transactional(self) -> Bools:
        return self._has(TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> Bools:
        return self._has(TIMESTAMP_TYPE_BIT)

    @property
    def compression(self) -> Int16s:
        """Numbers of ``Compression``."""
        return self.attributes & np.int16(COMPRESSION_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records of the batches, one element a record, in the order of the log.

    ``batch_ordinal`` is the place of the record's batch in ``Scan.batches``. Control records are
    among the records: ``is_control`` tells them apart.
    """

    batch_ordinal: Int32s
    is_control: Bools
    offset: pa.Int64Array | None
    timestamp_ms: pa.Int64Array | None
    leader_epoch: pa.Int32Array | None
    key: pa.BinaryArray | None = field(repr=False)
    value: pa.BinaryArray | None = field(repr=False)
    headers: pa.ListArray | None = field(repr=False)

    def __len__(self) -> int:
        return len(self.batch_ordinal)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderScan:
    """The batches of a buffer by their headers alone. ``end_position`` is where the walk ended."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Whole, sound batches of a buffer, and where and why they end.

    ``end_position`` is how many bytes of the buffer were used: skipped batches are, the one that
    ended the scan is not. ``error`` is set if ``stop`` is DAMAGED: give out what is here, then
    raise it.
    """

    batches: BatchColumns
    records: RecordColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None = None
