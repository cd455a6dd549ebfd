"""Index of the batches of a buffer: their positions and headers, without their records.

``batch_positions`` finds the positions; numpy copies all headers in one step. Length and magic are
checked here, since no CRC covers them. The other fields are unverified until the CRC is checked
(``crc``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from raftlog.errors import CorruptBatchError
from raftlog.limits import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES

from .batch_positions import find_batch_positions
from .columns import BatchColumns, Bools, HeaderScan, Int64s, Stop
from .compression import Compression
from .header import (
    BATCH_MAGIC,
    COMPRESSION_BITS,
    INT32_MAX,
    INT64_MAX,
    LENGTH_MAX,
    header_damage,
    length_error,
)
from .varint import Buffer

Headers = npt.NDArray[np.void]

HEADER_DTYPE: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "u1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
"""``BATCH_HEADER`` as a numpy dtype."""

assert HEADER_DTYPE.itemsize == BATCH_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class BatchSpans:
    """Contiguous batches of a buffer, and the reason why they end.

    ``position`` has the position of each batch in the buffer; ``end_position`` is the one after the
    last batch. ``error`` is set if ``stop`` is DAMAGED.
    """

    position: Int64s
    headers: Headers
    end_position: int
    stop: Stop
    error: CorruptBatchError | None

    @property
    def batch_end(self) -> Int64s:
        """The position after each batch."""
        end: Int64s = self.position + LOG_OVERHEAD_BYTES + self.headers["length"]
        return end

    def cut(self, count: int, stop: Stop, error: CorruptBatchError | None = None) -> BatchSpans:
        """Return the first ``count`` batches, with another reason for their end."""
        end_position = (
            int(self.position[count]) if count < len(self.position) else self.end_position
        )
        return BatchSpans(self.position[:count], self.headers[:count], end_position, stop, error)


def scan_headers(
    buffer: Buffer,
    *,
    path: str | None = None,
    file_position: int = 0,
    start_offset: int | None = None,
    end_offset: int | None = None,
) -> HeaderScan:
    """Return the headers of the batches in ``buffer``, for planning. No CRC is checked.

    ``file_position`` is the position of the buffer in the file ``path``. Leading batches whose last
    offset is < ``start_offset`` are skipped. The first batch whose base offset is >= ``end_offset``
    ends the scan.
    """
    spans = index_batches(memoryview(buffer), path, file_position)
    bad = np.flatnonzero(damaged_headers(spans.headers))
    if len(bad):
        at = int(bad[0])
        error = _header_error(spans, at, path, file_position)
        spans = spans.cut(at, Stop.DAMAGED, error)
    spans = clip(spans, start_offset, end_offset)
    return HeaderScan(
        batches=batch_columns(spans, file_position),
        end_position=spans.end_position,
        stop=spans.stop,
        error=spans.error,
    )


def index_batches(view: memoryview, path: str | None, file_position: int) -> BatchSpans:
    """Find the batches of a buffer, up to the first one with an invalid length or magic."""
    position, end_position = find_batch_positions(view)
    headers = _gather_headers(view, position)
    bad = np.flatnonzero((headers["magic"] != BATCH_MAGIC) | (headers["length"] > LENGTH_MAX))
    if len(bad):
        end_position = int(position[bad[0]])
        position, headers = position[: bad[0]], headers[: bad[0]]
    if end_position == len(view):
        return BatchSpans(position, headers, end_position, Stop.END, None)
    error = length_error(view, end_position, path, file_position)
    stop = Stop.TORN if error is None else Stop.DAMAGED
    return BatchSpans(position, headers, end_position, stop, error)


def _gather_headers(view: memoryview, position: Int64s) -> Headers:
    """Copy the 61 header bytes at each position."""
    count = len(view) - BATCH_HEADER_BYTES + 1
    if count <= 0 or len(position) == 0:
        return np.empty(0, HEADER_DTYPE)
    # A view with one overlapping element per position of the buffer, without a copy.
    everywhere: Headers = np.ndarray((count,), f"V{BATCH_HEADER_BYTES}", view, strides=(1,))
    return everywhere[position].view(HEADER_DTYPE)


def damaged_headers(headers: Headers) -> Bools:
    """Return which headers ``header_damage`` rejects."""
    base_offset = headers["base_offset"]
    last_delta = headers["last_offset_delta"].astype(np.int64)
    record_count = headers["record_count"]
    damaged: Bools = (
        (base_offset < 0)
        | (base_offset > INT64_MAX - INT32_MAX)
        | ((headers["attributes"] & COMPRESSION_BITS) > Compression.ZSTD)
        | (last_delta < 0)
        | (record_count < 0)
        | (record_count > last_delta + 1)
    )
    return damaged


def _header_error(
    spans: BatchSpans, at: int, path: str | None, file_position: int
) -> CorruptBatchError:
    header = spans.headers[at]
    base_offset = int(header["base_offset"])
    reason = header_damage(
        base_offset,
        int(header["attributes"]),
        int(header["last_offset_delta"]),
        int(header["record_count"]),
    )
    assert reason is not None, "header_damage and damaged_headers must agree"
    position = int(spans.position[at]) + file_position
    return CorruptBatchError(reason=reason, path=path, position=position, offset=base_offset)


def clip(spans: BatchSpans, start_offset: int | None, end_offset: int | None) -> BatchSpans:
    """Remove leading batches below ``start_offset``, and all batches from ``end_offset`` on.

    The remaining batches are contiguous in the buffer. Offsets are not checked for order.
    """
    base_offset = spans.headers["base_offset"]
    if end_offset is not None:
        after = np.flatnonzero(base_offset >= end_offset)
        if len(after):
            spans = spans.cut(int(after[0]), Stop.END_OFFSET)
    if start_offset is not None:
        last_offset = spans.headers["base_offset"] + spans.headers["last_offset_delta"]
        wanted = np.flatnonzero(last_offset >= start_offset)
        first = int(wanted[0]) if len(wanted) else len(last_offset)
        spans = BatchSpans(
            spans.position[first:],
            spans.headers[first:],
            spans.end_position,
            spans.stop,
            spans.error,
        )
    return spans


def batch_columns(spans: BatchSpans, file_position: int) -> BatchColumns:
    """Convert headers to columns in native byte order."""
    headers = spans.headers
    base_offset = headers["base_offset"].astype(np.int64)
    return BatchColumns(
        position=spans.position + file_position,
        byte_count=headers["length"].astype(np.int32) + np.int32(LOG_OVERHEAD_BYTES),
        base_offset=base_offset,
        last_offset=base_offset + headers["last_offset_delta"],
        leader_epoch=headers["leader_epoch"].astype(np.int32),
        attributes=headers["attributes"].astype(np.int16),
        base_timestamp_ms=headers["base_timestamp_ms"].astype(np.int64),
        max_timestamp_ms=headers["max_timestamp_ms"].astype(np.int64),
        producer_id=headers["producer_id"].astype(np.int64),
        producer_epoch=headers["producer_epoch"].astype(np.int16),
        base_sequence=headers["base_sequence"].astype(np.int32),
        record_count=headers["record_count"].astype(np.int32),
    )
