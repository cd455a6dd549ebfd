"""Index of the batches of a buffer, their CRCs, and the columns that a scan returns.

Batches are numpy columns, records are Arrow columns.

Each column has one element per batch or one per record. A column that was not requested is None.
Positions are positions in the file, except ``end_position``, which is a position in the buffer.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from raftlog import compiled
from raftlog.errors import CorruptBatchError
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    INT32_MAX,
    INT64_MAX,
    LOG_OVERHEAD_BYTES,
    MIB,
    VARINT_BYTES_MAX,
    VARLONG_BYTES_MAX,
)

from .batch import read_batch
from .compression import Compression
from .fields import Buffer
from .header import (
    BATCH_HEADER,
    BATCH_LENGTH,
    BATCH_MAGIC,
    COMPRESSION_BITS,
    CONTROL_BIT,
    CRC_START,
    LENGTH_MAX,
    LENGTH_MIN,
    LENGTH_POSITION,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    header_damage,
    length_error,
)

if TYPE_CHECKING:  # a recovery reads only headers, without the memory of Arrow
    import pyarrow as pa

Int16s = npt.NDArray[np.int16]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]


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
    """A limit of one scan was reached. Another scan may continue at ``end_position``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """Headers of batches, one element per batch.

    Those from ``scan_headers`` are unverified: no CRC was checked.
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

    ``end_position`` is the number of bytes of the buffer that were scanned, including skipped
    batches but not the batch that ended the scan. ``error`` is set if ``stop`` is DAMAGED. The
    batches before it are valid, so return them first and then raise it.
    """

    batches: BatchColumns
    records: RecordColumns
    end_position: int
    stop: Stop
    error: CorruptBatchError | None = None


# --- Vectorized reading of varints with numpy -----------------------------------------------------
# ``at`` are the positions of the varints. For positions beyond the end of ``data`` its last byte is
# read repeatedly, so the caller must check the end position of a record's last field. ``bad`` is
# set for varints that ``read_varint`` or ``read_varlong`` rejects for their length or value.

Bytes = npt.NDArray[np.uint8]


def read_varints(data: Bytes, at: Int64s, bad: Bools) -> tuple[Int64s, Int64s]:
    """Read zigzag 32-bit varints; return the values and the positions after them."""
    raw, after = _read(data, at, bad, VARINT_BYTES_MAX, 0x0F)
    return (raw >> 1) ^ -(raw & 1), after


def read_varlongs(data: Bytes, at: Int64s, bad: Bools) -> tuple[Int64s, Int64s]:
    """Read zigzag 64-bit varints; return the values and the positions after them."""
    raw, after = _read(data, at, bad, VARLONG_BYTES_MAX, 0x01)
    half = (raw.view(np.uint64) >> np.uint64(1)).view(np.int64)
    return half ^ -(raw & 1), after


def _read(
    data: Bytes, at: Int64s, bad: Bools, byte_count_max: int, last_byte_max: int
) -> tuple[Int64s, Int64s]:
    byte = data.take(at, mode="clip")
    after = at + 1
    more = byte >> 7  # the continuation bit: 1 or 0
    if not more.any():
        return byte.astype(np.int64), after
    raw = (byte & 0x7F).astype(np.int64)
    for ordinal in range(1, byte_count_max):
        byte = data.take(after, mode="clip") * more
        if ordinal == byte_count_max - 1:
            bad |= byte > last_byte_max
        raw |= (byte & 0x7F).astype(np.int64) << (7 * ordinal)
        after += more
        more = byte >> 7
        if not more.any():
            break
    return raw, after


# --- Positions of the batches in a buffer ---------------------------------------------------------
# Each batch's length gives the position of the next one, which forms a chain that starts at the
# first byte. A metadata log has so many batches of one record that following the chain in Python
# costs more than decoding the batches. For small batches numpy therefore finds *candidates*,
# positions whose bytes look like a batch header, and the chain is compared with them. Only
# candidates on the chain count, so the result is the same as if every length were followed.
#
#     candidate    c0    c1    c2    c3    c4    c5
#     start         0    80   160   210   300   380
#     next         80   160   300   250   380   460     start plus the candidate's size
#     break                     x     x           x     next is not the start of the next candidate
#
# From position 0 the chain takes c0, c1, c2 as one slice, up to the break, and continues at 300
# with c4, c5. c3 is never reached, because its bytes are inside a record of batch c2. Where the
# chain does not reach a candidate, one batch is followed in Python.
#
# Only lengths are checked for plausibility here; callers check magic, header and CRC.

_PROBE_BATCHES: Final = 64
_SMALL_BYTES: Final = 400
"""Mean batch size below which the pass over all bytes for candidates saves time."""
_MISSES_MAX: Final = 16
"""Candidates are used if at most one in this many is a break, because each break costs as much as
following many batches in Python."""


def find_batch_positions(view: memoryview) -> tuple[Int64s, int]:
    """Return the positions of complete batches, and the end position of the last one.

    That end is the end of the buffer, or the position of an incomplete batch or an invalid length.
    """
    positions, position, ended = _follow(view, 0, _PROBE_BATCHES)
    found = [np.array(positions, np.int64)]
    if not ended and position < _SMALL_BYTES * _PROBE_BATCHES:
        candidates = _Candidates(view, position)
        if candidates.is_plausible():
            position, ended = candidates.follow(found, position)
    if not ended:
        positions, position, _ = _follow(view, position, None)
        found.append(np.array(positions, np.int64))
    return np.concatenate(found), position


def _follow(view: memoryview, position: int, count_max: int | None) -> tuple[list[int], int, bool]:
    """Follow the chain of lengths for at most ``count_max`` batches.

    Returns their positions, the position after them, and whether the chain ended there.
    """
    length_at = BATCH_LENGTH.unpack_from
    byte_count = len(view)
    last = byte_count - BATCH_HEADER_BYTES
    positions: list[int] = []
    add = positions.append
    while position <= last:
        (length,) = length_at(view, position + LENGTH_POSITION)
        after = position + LOG_OVERHEAD_BYTES + length
        if length < LENGTH_MIN or after > byte_count:
            break
        add(position)
        position = after
        if count_max is not None and len(positions) == count_max:
            return positions, position, False
    return positions, position, True


class _Candidates:
    """Positions from ``position`` on whose bytes look like the header of a small batch."""

    __slots__ = ("_breaks", "_next", "_start", "_view")

    def __init__(self, view: memoryview, position: int) -> None:
        data = np.frombuffer(view[position:], np.uint8)
        magics = data[MAGIC_POSITION : len(data) - (BATCH_HEADER_BYTES - MAGIC_POSITION - 1)]
        start = np.flatnonzero(magics == BATCH_MAGIC)
        # Length below 2**16; leader epoch below 2**24; high byte of the attributes 0; base
        # timestamp between 2004 and 2039 (its high bytes are 0, 0, 1).
        zeros = np.bitwise_or.reduce([data.take(start + at) for at in (8, 9, 12, 21, 27, 28)])
        start = start[(zeros == 0) & (data.take(start + 29) == 1)]
        low = data.take(start + 11)
        length = data.take(start + 10).astype(np.int64) << 8 | low
        after = start + LOG_OVERHEAD_BYTES + length
        whole = (length >= LENGTH_MIN) & (after <= len(data))
        self._view = view
        self._start = start[whole] + position
        self._next = after[whole] + position
        is_break = np.ones(len(self._start), np.bool_)
        is_break[:-1] = self._next[:-1] != self._start[1:]
        self._breaks = np.flatnonzero(is_break).tolist()

    def is_plausible(self) -> bool:
        """Return whether nearly every candidate ends where the next candidate starts."""
        return len(self._breaks) * _MISSES_MAX <= len(self._start)

    def follow(self, found: list[Int64s], position: int) -> tuple[int, bool]:
        """Append the positions on the chain to ``found``: slices of candidates, and single batches.

        Returns the position after them, and whether the chain ended there.
        """
        while True:
            at = int(np.searchsorted(self._start, position))
            if at < len(self._start) and self._start[at] == position:
                last = self._breaks[bisect_left(self._breaks, at)]
                found.append(self._start[at : last + 1])
                position = int(self._next[last])
                continue
            single, position, ended = _follow(self._view, position, 1)
            found.append(np.array(single, np.int64))
            if ended:
                return position, True


# --- Index of the batches of a buffer: their positions and headers, without their records ---------
# ``find_batch_positions`` finds the positions; numpy copies all headers in one step. Length and
# magic are checked here, since no CRC covers them. The other fields are unverified until the CRC is
# checked.

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

    ``position`` has the position of each batch in the buffer, and ``end_position`` is the position
    after the last batch. ``error`` is set if ``stop`` is DAMAGED.
    """

    position: Int64s
    headers: Headers
    end_position: int
    stop: Stop
    error: CorruptBatchError | None

    @property
    def batch_end(self) -> Int64s:
        """Position after each batch."""
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
    crcs: bool = False,
) -> HeaderScan:
    """Return the headers of the batches in ``buffer``, up to the first one that is damaged.

    ``file_position`` is the position of the buffer in the file ``path``. Leading batches whose last
    offset is < ``start_offset`` are skipped. The first batch whose base offset is >= ``end_offset``
    ends the scan. With ``crcs``, the CRC of each batch in the range is verified, and the error is
    the one that ``batch.read_batch`` raises; otherwise only header fields are checked.
    """
    view = memoryview(buffer)
    walked = None
    if compiled.is_native:
        walked = walk_native(
            buffer,
            file_position=file_position,
            start_offset=start_offset,
            end_offset=end_offset,
            crcs=crcs,
        )
    if walked is not None:
        batches, end_position, stop = walked
        stop, error = end_of_walk(view, end_position, stop, path, file_position)
    else:
        spans = index_batches(view, path, file_position)
        if crcs:  # only of batches in the range
            spans = clip(spans, start_offset, end_offset)
        bad = first_invalid(view, spans) if crcs else _first_damaged(spans.headers)
        if bad is not None:
            spans = spans.cut(bad, Stop.DAMAGED)
        spans = clip(spans, start_offset, end_offset)
        batches = batch_columns(spans, file_position)
        end_position, stop, error = spans.end_position, spans.stop, spans.error
    if stop is Stop.DAMAGED and error is None:
        find_error = _batch_error if crcs else _header_error
        error = find_error(view, end_position, path, file_position)
    return HeaderScan(batches=batches, end_position=end_position, stop=stop, error=error)


def index_batches(view: memoryview, path: str | None, file_position: int) -> BatchSpans:
    """Find the batches of a buffer, up to the first one with an invalid length or magic."""
    position, end_position = find_batch_positions(view)
    headers = _gather_headers(view, position)
    bad = np.flatnonzero((headers["magic"] != BATCH_MAGIC) | (headers["length"] > LENGTH_MAX))
    if len(bad):
        end_position = int(position[bad[0]])
        position, headers = position[: bad[0]], headers[: bad[0]]
    stop = Stop.END if end_position == len(view) else Stop.TORN
    stop, error = end_of_walk(view, end_position, stop, path, file_position)
    return BatchSpans(position, headers, end_position, stop, error)


def end_of_walk(
    view: memoryview, end_position: int, stop: Stop, path: str | None, file_position: int
) -> tuple[Stop, CorruptBatchError | None]:
    """Return why a walk ended; TORN becomes DAMAGED with its error if the length is invalid."""
    if stop is not Stop.TORN:
        return stop, None
    error = length_error(view, end_position, path, file_position)
    return (Stop.TORN if error is None else Stop.DAMAGED), error


def _gather_headers(view: memoryview, position: Int64s) -> Headers:
    """Copy the 61 header bytes at each position."""
    count = len(view) - BATCH_HEADER_BYTES + 1
    if count <= 0 or len(position) == 0:
        return np.empty(0, HEADER_DTYPE)
    # A view with an overlapping element for each position of the buffer, without a copy.
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
    view: memoryview, position: int, path: str | None, file_position: int
) -> CorruptBatchError:
    header = BATCH_HEADER.unpack_from(view, position)
    reason = header_damage(
        base_offset=header[0],
        attributes=header[5],
        last_offset_delta=header[6],
        record_count=header[12],
    )
    assert reason is not None, "header_damage and damaged_headers must agree"
    return CorruptBatchError(
        reason=reason, path=path, position=position + file_position, offset=header[0]
    )


def _batch_error(
    view: memoryview, position: int, path: str | None, file_position: int
) -> CorruptBatchError:
    try:
        read_batch(view, position, path=path, file_position=file_position)
    except CorruptBatchError as error:
        return error
    raise AssertionError("read_batch must reject what the columnar walk rejects")


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


# --- Verification of the CRCs of batches ----------------------------------------------------------
# A call of ``crc32c`` costs more than reading the bytes of a small batch, so small batches are
# checked in windows, by one call over a modified copy of their bytes (``_all_match``). If that
# fails, each batch is checked alone to find the first corrupt one.
#
# One corrupt batch is detected as reliably as by its own CRC. Several in one window are missed only
# if they cancel each other out. The probability is 2**-32, as for any corrupt batch to match its
# CRC.

_WINDOW_BYTES: Final = 1 * MIB
"""Bytes per copy, which should fit into a CPU cache."""
_TOGETHER_BYTES_MAX: Final = 2048
"""Mean batch size above which batches are checked one by one: a call costs less than the copy."""
_ALL_ONES: Final = 0xFFFF_FFFF


def first_invalid(view: memoryview, spans: BatchSpans) -> int | None:
    """Return the ordinal of the first batch with a wrong CRC or invalid fields, or None."""
    bad_crc = first_bad_crc(view, spans)
    headers = spans.headers if bad_crc is None else spans.headers[:bad_crc]
    damaged = _first_damaged(headers)
    return bad_crc if damaged is None else damaged


def _first_damaged(headers: Headers) -> int | None:
    damaged = np.flatnonzero(damaged_headers(headers))
    return int(damaged[0]) if len(damaged) else None


def first_bad_crc(view: memoryview, spans: BatchSpans) -> int | None:
    """Return the ordinal of the first batch whose CRC does not match, or None."""
    position = spans.position
    end = spans.batch_end
    stored = spans.headers["crc"].astype(np.uint32)
    first = 0
    while first < len(position):
        limit = position[first] + _WINDOW_BYTES
        after = max(first + 1, int(np.searchsorted(end, limit, side="right")))
        window = slice(first, after)
        byte_count = int(end[after - 1] - position[first])
        if byte_count > _TOGETHER_BYTES_MAX * (after - first) or not _all_match(
            view, position[window], int(end[after - 1]), stored[window]
        ):
            bad = np.flatnonzero(_crcs(view, position[window], end[window]) != stored[window])
            if len(bad):
                return first + int(bad[0])
        first = after
    return None


def _crcs(view: memoryview, position: Int64s, end: Int64s) -> UInt32s:
    """Compute the CRC of each batch alone."""
    pieces = map(slice, (position + CRC_START).tolist(), end.tolist())
    return np.fromiter(map(crc32c, map(view.__getitem__, pieces)), np.uint32, len(position))


def _all_match(view: memoryview, position: Int64s, end_position: int, stored: UInt32s) -> bool:
    """Return whether the CRCs of all batches, contiguous in the buffer, match.

    With an initial register of zero, a CRC is the remainder of a polynomial division. Bytes
    followed by their own remainder have remainder zero, and so have several such pieces in a row,
    with zeros in between. CRC-32C starts with a register of ones and inverts its result. Inverting
    the first four bytes and the CRC of a batch converts the batch to such a piece:

        batch n    [21 bytes, the last 4 are its CRC     ][body                         ]
        copy       [inverted CRC of batch n-1][17 zeros  ][body, first 4 bytes inverted ]

    The CRC of the last batch is appended. The remainder of the whole copy must be zero.
    """
    start = int(position[0])
    copy = np.frombuffer(view[start:end_position], np.uint8).copy()
    seam = CRC_START + 4
    everywhere = np.ndarray((len(copy) - seam + 1,), f"V{seam}", copy, strides=(1,))
    at = position - start
    seams = everywhere[at].view(np.uint8).reshape(-1, seam)
    seams[:, :CRC_START] = 0
    seams[:, CRC_START:] ^= 0xFF
    # A remainder's lowest byte is first, whereas a CRC in the header is big-endian.
    remainders = (stored ^ np.uint32(_ALL_ONES)).astype("<u4").view(np.uint8).reshape(-1, 4)
    seams[1:, :4] = remainders[:-1]
    everywhere[at] = seams.view(everywhere.dtype).ravel()
    register = crc32c(copy.data, _ALL_ONES)
    return crc32c(remainders[-1].tobytes(), register) == _ALL_ONES


# --- Columns that the compiled core built ---------------------------------------------------------

NATIVE_STOPS: Final = (Stop.END, Stop.TORN, Stop.DAMAGED, Stop.END_OFFSET, Stop.FULL)
"""Stops by their number in the core. Python decides whether the bytes after TORN are damaged."""


def walk_native(
    buffer: Buffer,
    *,
    file_position: int,
    start_offset: int | None,
    end_offset: int | None,
    crcs: bool,
) -> tuple[BatchColumns, int, Stop] | None:
    """Walk the headers of ``buffer`` in the compiled core; None if the core cannot handle them.

    With ``crcs`` each batch must be valid; otherwise only its header fields must be.
    """
    data = buffer if type(buffer) is bytes else bytes(buffer)
    try:
        walked = compiled.core.walk(data, start_offset, end_offset, file_position, crcs)
    except OverflowError:  # a bound that does not fit into 64 bits
        return None
    if walked is None:
        return None
    return native_batches(walked), walked[1], NATIVE_STOPS[walked[0]]


def native_batches(walked: compiled.core.Headers) -> BatchColumns:
    """Return the header columns that the compiled core built."""
    _, _, count, (wide, middle, narrow) = walked
    int64s = np.frombuffer(memoryview(wide), np.int64).reshape(6, count)
    int32s = np.frombuffer(memoryview(middle), np.int32).reshape(4, count)
    int16s = np.frombuffer(memoryview(narrow), np.int16).reshape(2, count)
    return BatchColumns(
        position=int64s[0],
        base_offset=int64s[1],
        last_offset=int64s[2],
        base_timestamp_ms=int64s[3],
        max_timestamp_ms=int64s[4],
        producer_id=int64s[5],
        byte_count=int32s[0],
        leader_epoch=int32s[1],
        base_sequence=int32s[2],
        record_count=int32s[3],
        attributes=int16s[0],
        producer_epoch=int16s[1],
    )
