"""Results of a scan: batches as numpy columns, records as Arrow columns.

Each column has one element per batch or one per record. A column that was not requested is None.
Positions are positions in the file, except ``end_position``, which is a position in the buffer.
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
    """Record columns to build."""

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
    """Reason for the end of a scan."""

    END = "end"
    """The whole buffer was scanned."""
    TORN = "torn"
    """An incomplete batch follows, or zeros. More bytes may complete it."""
    DAMAGED = "damaged"
    """A corrupt batch follows; see ``error``."""
    END_OFFSET = "end_offset"
    """The base offset of the next batch is >= the requested ``end_offset``."""
    FULL = "full"
    """A limit of one scan was reached: continue with another scan at ``end_position``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """Headers of batches, one element per batch.

    From ``scan_headers`` they are unverified: no CRC was checked.
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
        """Return the batches that ``which`` selects."""
        columns: dict[str, Any] = {
            column.name: getattr(self, column.name)[which] for column in fields(self)
        }
        return BatchColumns(**columns)

    def _has(self, bit: int) -> Bools:
        has: Bools = (self.attributes & bit) != 0
        return has

    @property
    def next_offset(self) -> Int64s:
        return self.last_offset + 1

    def in_order_count(self, expected_offset: int) -> int:
        """Return how many leading batches have contiguous offsets from ``expected_offset`` on."""
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
        """Values of ``Compression``."""
        return self.attributes & np.int16(COMPRESSION_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Records of the batches, one element per record, in offset order.

    ``batch_ordinal`` is the index of the record's batch in ``Scan.batches``. Control records are
    included and marked by ``is_control``.
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
    """Unverified headers of the batches of a buffer, up to ``end_position`` in the buffer."""

    batches: BatchColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Verified batches of a buffer and their records, and where and why the scan ended.

    ``end_position`` is the number of bytes of the buffer that were scanned, skipped batches
    included and the batch that ended the scan excluded. ``error`` is set if ``stop`` is DAMAGED:
    the batches before it are valid, so return them first, then raise it.
    """

    batches: BatchColumns
    records: RecordColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None = None
