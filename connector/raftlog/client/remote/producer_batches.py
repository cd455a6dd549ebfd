"""Batches of a client's appends, as they are sent to the leader. Pure: no clock, no connection.

Rules of this file:

1. A batch is sent again unchanged except for its base offset and leader epoch, which its CRC does
   not cover. So a node that receives it twice recognizes its commit name or its producer.
2. A batch has the epoch of the leader that it is sent to, so that no other leader appends a late
   copy.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from raftlog.append import AppendRequest, AppendResult, named_records
from raftlog.errors import AppendUnknownError, RaftlogError
from raftlog.limits import BATCH_HEADER_BYTES, MIB
from raftlog.log.reading.transactions import TAKE_OVER_HEADER, ValueKind
from raftlog.records.builder import (
    NO_PRODUCER,
    BatchBuilder,
    ProducerStamp,
    build_batch,
    finish_batch,
)
from raftlog.records.compression import Compression
from raftlog.records.encoding import RecordToAppend
from raftlog.records.header import CRC_START
from raftlog.records.record import Header, NewRecord

IMPOSSIBLE_OFFSET: Final = 2**62
"""Required offset that no log reaches."""
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LEADER_EPOCH_POSITION: Final = struct.calcsize(">qi")
_CRC: Final = struct.Struct(">I")
_STAMP: Final = struct.Struct(">qhi")
_STAMP_POSITION: Final = BATCH_HEADER_BYTES - struct.calcsize(">i") - _STAMP.size


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a quorum's log that its clients need, named as in ``LogConfig``."""

    values: ValueKind
    batch_bytes_max: int
    compression: Compression


@dataclass(slots=True, eq=False, kw_only=True)
class ProducerBatch:
    """Batch of one or more appends (Kafka: ``ProducerBatch``).

    ``required_base_offset`` is -1 for none. ``epoch`` is the caller's, or None for the leader's.
    ``may_be_appended``: an earlier attempt has an unknown outcome. ``epoch_error``: the caller's
    epoch was refused, and the batch is sent only to learn whether an earlier attempt was appended.
    ``stamp``: the stamp of this client's producer, None before it is sent; ``ordinal``: the number
    of stamped batches before it.
    """

    requests: tuple[AppendRequest, ...]
    data: bytearray
    record_count: int
    base_timestamp_ms: int
    required_base_offset: int = -1
    epoch: int | None = None
    stamp: ProducerStamp | None = None
    ordinal: int = 0
    is_in_flight: bool = False
    may_be_appended: bool = False
    epoch_error: RaftlogError | None = None
    last_problem: str = ""
    split: SplitAppend | None = None

    def data_for(self, leader_epoch: int) -> bytes:
        """Return the bytes to send to the leader of this epoch."""
        base_offset, epoch = self.required_base_offset, self.epoch
        if self.epoch_error is not None:
            base_offset, epoch = IMPOSSIBLE_OFFSET, None
        epoch = leader_epoch if epoch is None else epoch
        _BASE_OFFSET.pack_into(self.data, 0, base_offset)
        _LEADER_EPOCH.pack_into(self.data, _LEADER_EPOCH_POSITION, epoch)
        return bytes(self.data)

    def assign(self, stamp: ProducerStamp) -> None:
        """Write the producer's id, epoch and sequence into the batch."""
        self.stamp = stamp
        numbers = stamp.producer_id, stamp.producer_epoch, stamp.base_sequence
        _STAMP.pack_into(self.data, _STAMP_POSITION, *numbers)
        crc = crc32c(memoryview(self.data)[CRC_START:])
        _CRC.pack_into(self.data, CRC_START - _CRC.size, crc)

    @property
    def has_sequence(self) -> bool:
        """Whether it has a sequence of this client's producer, which fixes its order.

        Without one it has no records, a producer of the caller's, or an offset that no log reaches.
        """
        return needs_producer_id(self.requests[0])

    @property
    def is_conditional(self) -> bool:
        """Whether it has a required offset, which a leader ignores under an epoch below 1."""
        return self.required_base_offset >= 0 or self.epoch_error is not None

    @property
    def writes(self) -> bool:
        """Whether it has records. Without records, its outcome is never unknown."""
        return self.record_count > 0

    @property
    def is_done(self) -> bool:
        """Whether all of its appends have a result."""
        return all(request.future.done() for request in self.requests)

    @property
    def is_named(self) -> bool:
        """Whether its caller gave it a commit name or a producer."""
        return self.requests[0].identity is not None

    def expired_requests(self, now_ms: float) -> list[AppendRequest]:
        """Return the appends that have no result and whose deadline has passed."""
        return [
            request
            for request in self.requests
            if request.deadline_ms <= now_ms and not request.future.done()
        ]

    def complete(self, result: AppendResult) -> None:
        """Complete the appends with their offsets."""
        if self.split is not None:
            self.split.complete_part(result)
            return
        if len(self.requests) == 1:
            _complete_request(self.requests[0], result)
            return
        base_offset = result.base_offset
        for request in self.requests:
            last_offset = base_offset + len(request.records) - 1
            _complete_request(request, AppendResult(base_offset, last_offset, result.epoch))
            base_offset = last_offset + 1

    def fail(self, error: RaftlogError) -> None:
        """Fail the appends."""
        self.fail_requests(self.requests, error)

    def fail_requests(self, requests: Iterable[AppendRequest], error: RaftlogError) -> None:
        """Fail some of the appends."""
        for request in requests:
            if self.split is not None:
                self.split.fail(error)
            else:
                fail_request(request, error)


class SplitAppend:
    """Append that is too large for one batch. It is complete when all of its batches are."""

    def __init__(self, request: AppendRequest, part_count: int) -> None:
        self._request = request
        self._left = part_count
        self._base_offset: int | None = None
        self._end_offset: int = 0

    def complete_part(self, result: AppendResult) -> None:
        """Add the result of a batch. An earlier batch may get its result later."""
        self._left -= 1
        base_offset, end_offset = result.base_offset, result.end_offset
        if self._base_offset is not None:
            base_offset = min(base_offset, self._base_offset)
        self._base_offset, self._end_offset = base_offset, max(end_offset, self._end_offset)
        if not self._left:
            last_offset = self._end_offset - 1
            _complete_request(
                self._request, replace(result, base_offset=base_offset, last_offset=last_offset)
            )

    def fail(self, error: RaftlogError) -> None:
        if self._base_offset is not None and not isinstance(error, AppendUnknownError):
            reason = f"its records below offset {self._end_offset} were appended, and then: {error}"
            error = AppendUnknownError(path=getattr(error, "path", "") or "the log", reason=reason)
        fail_request(self._request, error)


def _complete_request(request: AppendRequest, result: AppendResult) -> None:
    if not request.future.done():
        request.future.set_result(result)


def fail_request(request: AppendRequest, error: RaftlogError) -> None:
    """Fail an append with its own copy of the error."""
    if not request.future.done():
        kind, (_, facts) = type(error), error.__reduce__()[1]
        request.future.set_exception(kind(**facts))


# --- Building of batches --------------------------------------------------------------------------


def can_share_batch(request: AppendRequest) -> bool:
    """Return whether other appends may be in the same batch."""
    return not request.needs_own_batch and request.epoch is None and bool(request.records)


def needs_producer_id(request: AppendRequest) -> bool:
    """Return whether an append's batch needs a sequence of this client's producer."""
    is_possible = request.required_base_offset != IMPOSSIBLE_OFFSET
    return bool(request.records) and is_possible and request.producer is None


def append_batches(
    requests: Sequence[AppendRequest], settings: LogSettings, now_ms: int
) -> list[ProducerBatch]:
    """Return the batches of these appends; empty if several do not fit into one batch.

    Raises ``RecordBatchTooLargeError`` and, for too many headers, ``InvalidAppendError``.
    """
    first = requests[0]
    if not can_share_batch(first):
        return [single_batch(first, settings, now_ms)]
    shared = shared_batch(requests, settings, now_ms)
    if shared is not None:
        return [shared]
    if len(requests) > 1:
        return []
    if first.is_atomic:
        return [single_batch(first, settings, now_ms)]  # raises: too large
    return split_batches(first, settings, now_ms)


def shared_batch(
    requests: Sequence[AppendRequest], settings: LogSettings, now_ms: int
) -> ProducerBatch | None:
    """Return one batch of appends that may share it; None if they do not fit."""
    builder = _builder(settings, now_ms)
    encoded = builder.encode([record for request in requests for record in request.records])
    if encoded is None:
        return None
    builder.add(encoded)
    return ProducerBatch(
        requests=tuple(requests),
        data=bytearray(builder.build(-1, -1).data),
        record_count=builder.record_count,
        base_timestamp_ms=now_ms,
    )


def single_batch(request: AppendRequest, settings: LogSettings, now_ms: int) -> ProducerBatch:
    """Return the batch of one append.

    Raises ``RecordBatchTooLargeError`` and, for too many headers, ``InvalidAppendError``.
    """
    records = _records_to_send(request, settings.values)
    stamp = request.producer or NO_PRODUCER
    data = _built(records, settings, now_ms, stamp) if records else _empty_batch(now_ms)
    return ProducerBatch(
        requests=(request,),
        data=bytearray(data),
        record_count=len(records),
        base_timestamp_ms=now_ms,
        required_base_offset=required_base_offset(request, len(records)),
        epoch=request.epoch,
    )


def split_batches(
    request: AppendRequest, settings: LogSettings, now_ms: int
) -> list[ProducerBatch]:
    """Return the batches of an append that is too large for one.

    Raises ``RecordBatchTooLargeError`` if one record alone is too large.
    """
    parts = _parts(request.records, settings, now_ms)
    split = SplitAppend(request, len(parts))
    return [
        ProducerBatch(
            requests=(request,),
            data=bytearray(_built(records, settings, now_ms, NO_PRODUCER)),
            record_count=len(records),
            base_timestamp_ms=now_ms,
            split=split,
        )
        for records in parts
    ]


def _parts(
    records: Sequence[RecordToAppend], settings: LogSettings, now_ms: int
) -> list[Sequence[RecordToAppend]]:
    parts = []
    start = 0
    while start < len(records):
        builder = _builder(settings, now_ms)
        count = builder.fitting_record_count(records, start)
        if count == 0:
            builder.append(records[start : start + 1])  # raises, unless it fits when compressed
            count = 1
        parts.append(records[start : start + count])
        start += count
    return parts


def remove_requests(
    batch: ProducerBatch, removed: Sequence[AppendRequest], settings: LogSettings, now_ms: int
) -> bool:
    """Remove these appends, and appends with a result, from a batch that is not in the log.

    The batch is built again, without a stamp. Returns False and leaves the batch unchanged if that
    fails: a part of a compressed batch may be larger than the whole.
    """
    excluded = set(removed)
    left = [one for one in batch.requests if one not in excluded and not one.future.done()]
    if not left or len(batch.requests) == 1:
        return not left
    rebuilt = shared_batch(left, settings, now_ms)
    if rebuilt is None:
        return False
    batch.requests, batch.data, batch.stamp = rebuilt.requests, rebuilt.data, None
    batch.record_count = rebuilt.record_count
    return True


def required_base_offset(request: AppendRequest, record_count: int) -> int:
    """Return the required offset of a batch; -1 for none.

    It is ``IMPOSSIBLE_OFFSET`` if the append's two required offsets contradict each other.
    """
    base = request.required_base_offset
    if request.required_end_offset is None:
        return -1 if base is None else min(base, IMPOSSIBLE_OFFSET)
    of_end = request.required_end_offset - record_count + 1
    if of_end < 0 or base not in (None, of_end):
        return IMPOSSIBLE_OFFSET
    return min(of_end, IMPOSSIBLE_OFFSET)


def _records_to_send(request: AppendRequest, values: ValueKind) -> Sequence[RecordToAppend]:
    """Return the records with the name of their commit, the query id that it replaces, and the
    condition on keys."""
    records, headers = request.records, []
    if not records:
        return records
    if request.commit is not None:
        records = named_records(records, request.commit, values)
    if request.take_over_from is not None:
        headers.append(Header(TAKE_OVER_HEADER, request.take_over_from.encode()))
    if request.unchanged is not None:
        headers.append(request.unchanged.header())
    if not headers:
        return records
    first = records[0]
    if isinstance(first, bytes):
        first = NewRecord(None, first)
    return (replace(first, headers=(*first.headers, *headers)), *records[1:])


def _builder(settings: LogSettings, now_ms: int) -> BatchBuilder:
    return BatchBuilder(
        base_timestamp_ms=now_ms,
        byte_count_max=settings.batch_bytes_max,
        compression=settings.compression,
    )


def _built(
    records: Sequence[RecordToAppend], settings: LogSettings, now_ms: int, stamp: ProducerStamp
) -> bytes:
    """Build the batch of these records; offset, epoch and the client's producer are set later."""
    return build_batch(
        records,
        base_offset=-1,
        leader_epoch=-1,
        base_timestamp_ms=now_ms,
        byte_count_max=settings.batch_bytes_max,
        compression=settings.compression,
        producer=stamp,
    ).data


def _empty_batch(now_ms: int) -> bytes:
    """Return a batch header without records, to check a required offset or an epoch."""
    return finish_batch(
        b"",
        base_offset=-1,
        leader_epoch=-1,
        byte_count_max=MIB,
        compression=Compression.NONE,
        flags=0,
        last_offset_delta=0,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer=(-1, -1, -1),
        record_count=0,
    )
