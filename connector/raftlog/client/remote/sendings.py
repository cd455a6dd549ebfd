"""Appends on their way to the leader: which batches they become, and what an answer means. Pure.

Rules of this file:

1. A sending is one batch, and is repeated as it is but for base offset and leader epoch, which are
   outside its CRC: so a node that gets it twice recognizes its commit's name or its producer.
2. It states the epoch of the leader that it is sent to. So of appends that follow each other none
   is taken by a later leader when the one before it was refused by an earlier one.
3. A batch whose first answer was lost may be in the log. A refusal that a repetition gets says that
   it is not only where identity was looked at before what was refused (``AppendBatch``); where the
   caller's epoch was, the same batch is sent under the present epoch and a token that never holds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from raftlog.append.append_batch import named_records
from raftlog.append.requests import AppendRequest, AppendResult
from raftlog.errors import (
    AccessDeniedError,
    AppendUnknownError,
    BufferAllocationError,
    DiskFullError,
    FutureEpochError,
    InvalidAppendError,
    LogClosedError,
    LogLockedError,
    NodeRefusedError,
    NotLeaderError,
    RaftlogError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import MIB
from raftlog.log.writing.batch_metadata import ValueKind
from raftlog.records.builder import NO_PRODUCER, BatchBuilder, ProducerStamp, finish_batch
from raftlog.records.compression import Compression
from raftlog.records.encoding import RecordToAppend
from raftlog.records.record import Header, NewRecord
from raftlog.wire.produce_error_messages import parse_error_message

from .metadata import is_access_error

TAKE_OVER_HEADER: Final = "raftlog.take-over"
"""Beside a commit's name: the query id whose place it takes, as UTF-8."""
MERGED_BYTES_MAX: Final = MIB
"""How large a batch of several appends grows: larger ones save nothing more."""
MERGED_REQUESTS_MAX: Final = 4096
IMPOSSIBLE_OFFSET: Final = 2**62
"""No log ends there: a token that never holds."""
_SEQUENCES: Final = 2**31
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LEADER_EPOCH_POSITION: Final = struct.calcsize(">qi")
_RETRIABLE: Final = frozenset((3, 5, 6, 8, 9, 13, 14, 15, 16, 19, 74, 75, 76, 100, 103, 104))
"""Kafka's codes after which nothing was appended, and another try may help."""
_UNKNOWN: Final = frozenset((7, 20))
"""Kafka's codes of an unknown outcome (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND)."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a client must know of the log: the same as ``LogConfig`` has under these names."""

    values: ValueKind
    batch_bytes_max: int
    compression: Compression


@dataclass(slots=True)
class Lane:
    """A producer id of the client's own, for one batch at a time (KIP-98)."""

    producer_id: int
    producer_epoch: int
    next_sequence: int = 0

    def stamp(self) -> ProducerStamp:
        return ProducerStamp(self.producer_id, self.producer_epoch, self.next_sequence)

    def advance(self, record_count: int) -> None:
        """A batch was stamped; a negative count takes it back, as it was not appended."""
        self.next_sequence = (self.next_sequence + record_count) % _SEQUENCES


@dataclass(slots=True, eq=False, kw_only=True)
class Sending:
    """One batch. ``base_offset`` is what it requires, -1 for nothing.

    ``epoch`` is that of its caller; None: whatever the leader's is. ``is_uncertain``: a try of it
    may have been taken. ``refusal``: the caller's epoch was refused, and the batch is sent only to
    learn whether an earlier try was taken.
    """

    requests: tuple[AppendRequest, ...]
    data: bytearray
    record_count: int
    base_offset: int = -1
    epoch: int | None = None
    lane: Lane | None = None
    is_uncertain: bool = False
    refusal: RaftlogError | None = None
    last_problem: str = ""
    split: Split | None = None

    def stamped(self, leader_epoch: int) -> bytes:
        """The batch as it is sent to the leader of this epoch."""
        base_offset, epoch = self.base_offset, self.epoch
        if self.refusal is not None:
            base_offset, epoch = IMPOSSIBLE_OFFSET, None
        epoch = leader_epoch if epoch is None else epoch
        _BASE_OFFSET.pack_into(self.data, 0, base_offset)
        _LEADER_EPOCH.pack_into(self.data, _LEADER_EPOCH_POSITION, epoch)
        return bytes(self.data)

    @property
    def has_condition(self) -> bool:
        """Whether it says where it must land: under an epoch below 1 that would mean nothing."""
        return self.base_offset >= 0 or self.refusal is not None

    @property
    def writes(self) -> bool:
        """Whether it has records: what has none, and only asks, is never in doubt."""
        return self.record_count > 0

    @property
    def is_wanted(self) -> bool:
        """Whether a caller still waits for it."""
        return any(not request.future.done() for request in self.requests)

    def late(self, now_ms: float) -> list[AppendRequest]:
        """Return the appends without an answer whose deadline has passed."""
        return [
            request
            for request in self.requests
            if request.deadline_ms <= now_ms and not request.future.done()
        ]

    @property
    def is_named(self) -> bool:
        """Whether it is known by a name of its caller's."""
        first = self.requests[0]
        return first.commit is not None or first.producer is not None

    def finish(self, result: AppendResult) -> None:
        """Complete the appends with their offsets."""
        if self.split is not None:
            self.split.add(result)
            return
        if len(self.requests) == 1:
            _answer(self.requests[0], result)
            return
        base_offset = result.base_offset
        for request in self.requests:
            last_offset = base_offset + len(request.records) - 1
            _answer(request, AppendResult(base_offset, last_offset, result.epoch))
            base_offset = last_offset + 1

    def fail(self, error: RaftlogError) -> None:
        """Fail the appends."""
        if self.split is not None:
            self.split.fail(error)
            return
        for request in self.requests:
            fail_request(request, error)


class Split:
    """An append that is too large for one batch: it is done when all of its batches are."""

    def __init__(self, request: AppendRequest, part_count: int) -> None:
        self._request = request
        self._left = part_count
        self._first: int | None = None
        self._end: int = 0

    def add(self, result: AppendResult) -> None:
        """One batch is in the log."""
        self._left -= 1
        if self._first is None:
            self._first = result.base_offset
        self._end = result.end_offset
        if not self._left:
            _answer(self._request, replace(result, base_offset=self._first))

    def fail(self, error: RaftlogError) -> None:
        if self._first is not None and not isinstance(error, AppendUnknownError):
            reason = f"its records below offset {self._end} were appended, and then: {error}"
            error = AppendUnknownError(path=getattr(error, "path", "") or "the log", reason=reason)
        fail_request(self._request, error)


def _answer(request: AppendRequest, result: AppendResult) -> None:
    if not request.future.done():
        request.future.set_result(result)


def fail_request(request: AppendRequest, error: RaftlogError) -> None:
    """Fail an append with an error object of its own."""
    if not request.future.done():
        kind, (_, facts) = type(error), error.__reduce__()[1]
        request.future.set_exception(kind(**facts))


# --- requests become batches ----------------------------------------------------------------------


def may_share(request: AppendRequest) -> bool:
    """Whether other appends may be in its batch."""
    return not request.needs_own_batch and request.epoch is None and bool(request.records)


def records_on_the_wire(request: AppendRequest, values: ValueKind) -> Sequence[RecordToAppend]:
    """With the name of their commit as the log writes it, and the way over another's."""
    if request.commit is None or not request.records:
        return request.records
    records = named_records(request.records, request.commit, values)
    if request.take_over_from is None:
        return records
    header = Header(TAKE_OVER_HEADER, request.take_over_from.encode())
    first = records[0]
    if isinstance(first, bytes):
        first = NewRecord(None, first)
    return (replace(first, headers=(*first.headers, header)), *records[1:])


def needs_lane(request: AppendRequest) -> bool:
    """Whether it is known by nothing of its own when it comes again."""
    return bool(request.records) and request.commit is None and request.producer is None


def merged(
    requests: Sequence[AppendRequest], settings: LogSettings, now_ms: int, lane: Lane
) -> Sending | None:
    """One batch of appends that may share one; None if they are too large for it."""
    builder = _builder(settings, now_ms, lane.stamp())
    encoded = builder.encode([record for request in requests for record in request.records])
    if encoded is None:
        return None
    builder.add(encoded)
    lane.advance(builder.record_count)
    return Sending(
        requests=tuple(requests),
        data=bytearray(builder.build(-1, -1).data),
        record_count=builder.record_count,
        lane=lane,
    )


def alone(request: AppendRequest, settings: LogSettings, now_ms: int, lane: Lane | None) -> Sending:
    """The batch of one append. Raises ``RecordBatchTooLargeError``."""
    records = records_on_the_wire(request, settings.values)
    stamp = request.producer or (NO_PRODUCER if lane is None else lane.stamp())
    if records:
        builder = _builder(settings, now_ms, stamp)
        builder.append(records)
        data = builder.build(-1, -1).data
    else:
        data = _empty_batch(now_ms)
    if lane is not None:
        lane.advance(len(records))
    return Sending(
        requests=(request,),
        data=bytearray(data),
        record_count=len(records),
        base_offset=required_base_offset(request, len(records)),
        epoch=request.epoch,
        lane=lane,
    )


def split_up(
    request: AppendRequest, settings: LogSettings, now_ms: int, lane: Lane
) -> list[Sending]:
    """The batches of an append that is too large for one: the last of them gives the lane back.

    They follow each other in one producer's sequences, so that none is taken without those before
    it. Raises ``RecordBatchTooLargeError`` if one record alone is too large.
    """
    parts = _parts(request.records, settings, now_ms)
    split = Split(request, len(parts))
    sendings = []
    for records in parts:
        builder = _builder(settings, now_ms, lane.stamp())
        builder.append(records)
        lane.advance(len(records))
        sendings.append(
            Sending(
                requests=(request,),
                data=bytearray(builder.build(-1, -1).data),
                record_count=len(records),
                split=split,
            )
        )
    sendings[-1].lane = lane
    return sendings


def _parts(
    records: Sequence[RecordToAppend], settings: LogSettings, now_ms: int
) -> list[Sequence[RecordToAppend]]:
    parts = []
    start = 0
    while start < len(records):
        builder = _builder(settings, now_ms, NO_PRODUCER)
        count = builder.fitting_record_count(records, start)
        if count == 0:
            builder.append(records[start : start + 1])  # raises, unless its codec makes it fit
            count = 1
        parts.append(records[start : start + count])
        start += count
    return parts


def required_base_offset(request: AppendRequest, record_count: int) -> int:
    """The token as the wire has it; -1 for none. Two that contradict each other never hold."""
    base = request.required_base_offset
    if request.required_end_offset is None:
        return -1 if base is None else min(base, IMPOSSIBLE_OFFSET)
    of_end = request.required_end_offset - record_count + 1
    if of_end < 0 or base not in (None, of_end):
        return IMPOSSIBLE_OFFSET
    return min(of_end, IMPOSSIBLE_OFFSET)


def _builder(settings: LogSettings, now_ms: int, stamp: ProducerStamp) -> BatchBuilder:
    return BatchBuilder(
        base_timestamp_ms=now_ms,
        byte_count_max=settings.batch_bytes_max,
        compression=settings.compression,
        producer=stamp,
    )


def _empty_batch(now_ms: int) -> bytes:
    """A header that only checks."""
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


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendAgain:
    """It was not refused for good. ``is_uncertain``: it may have been appended."""

    reason: str
    is_uncertain: bool = False
    is_leader_gone: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not in the log, and will not be."""

    error: RaftlogError


@dataclass(frozen=True, slots=True)
class AskWhether:
    """The caller's epoch is over; whether an earlier try was taken is to be found out."""

    error: RaftlogError


Judged = SendAgain | Refused | AskWhether
_PASSING: Final = (LogClosedError, BufferAllocationError, LogLockedError, DiskFullError)
"""A leader without room on its disk resigns: another may have some."""
_LOOKED_AT_LATER: Final = (UnexpectedEndOffsetError, InvalidAppendError)
"""Refusals that come after the question whether the log has the batch already, or that its first
try would have got, too. Not that it is too large: a leader's limit is its own."""


def judged(sending: Sending, code: int, text: str | None, path: str) -> Judged:
    """What an answer with an error means. ``path`` stands for the quorum in errors."""
    error = parse_error_message(text)
    if isinstance(error, AppendUnknownError) or (error is None and code in _UNKNOWN):
        return SendAgain(text or f"Kafka's error {code}", is_uncertain=True, is_leader_gone=False)
    if isinstance(error, NotLeaderError | FutureEpochError):
        return _judged_epoch(sending, error)
    if isinstance(error, _PASSING):
        is_leader_gone = isinstance(error, LogClosedError | DiskFullError)
        return SendAgain(str(error), is_leader_gone=is_leader_gone)
    if error is None and code in _RETRIABLE:
        return SendAgain(text or f"Kafka's error {code}", is_leader_gone=code != 19)
    if error is None:
        error = _foreign_refusal(code, text, path)
    if sending.refusal is not None and isinstance(error, UnexpectedEndOffsetError):
        return Refused(sending.refusal)
    if sending.is_uncertain and not isinstance(error, _LOOKED_AT_LATER):
        reason = f"a response was lost, and a retry failed: {error.message()}"
        return Refused(AppendUnknownError(path=path, reason=reason))
    return Refused(_as_asked(sending, error))


def _judged_epoch(sending: Sending, error: NotLeaderError | FutureEpochError) -> Judged:
    is_node_behind = isinstance(error, NotLeaderError) and error.epoch == error.current_epoch
    if sending.epoch is None or sending.refusal is not None or is_node_behind:
        return SendAgain(str(error))
    error = replace(error, epoch=sending.epoch)
    return AskWhether(error) if sending.is_uncertain else Refused(error)


def _foreign_refusal(code: int, text: str | None, path: str) -> RaftlogError:
    if is_access_error(code):
        reason = text or f"client not authorized to append (Kafka's error {code})"
        return AccessDeniedError(path=path, reason=reason)
    return NodeRefusedError(path=path, api="Produce", error=code, reason=text or "no details given")


def _as_asked(sending: Sending, error: RaftlogError) -> RaftlogError:
    """A refused token in the caller's terms: the wire has base offsets only."""
    if not isinstance(error, UnexpectedEndOffsetError):
        return error
    request, end = sending.requests[0], error.log_end_offset
    wanted_end, wanted_base = request.required_end_offset, request.required_base_offset
    next_available = end + sending.record_count - 1
    return UnexpectedEndOffsetError(
        required_end_offset=None if wanted_end == next_available else wanted_end,
        required_base_offset=None if wanted_base == end else wanted_base,
        record_count=sending.record_count,
        log_end_offset=end,
    )


def without(
    sending: Sending, late: Sequence[AppendRequest], settings: LogSettings, now_ms: int
) -> bool:
    """Remove appends, and those that have an answer, from a batch that is not in the log.

    The batch is built again, with the same producer id and sequence. Return False if that fails:
    then the batch is as it was (what is left of a compressed batch may be larger than the whole).
    """
    left = [one for one in sending.requests if one not in late and not one.future.done()]
    if not left or sending.lane is None or sending.split is not None:
        return not left
    lane = sending.lane
    lane.advance(-sending.record_count)
    rebuilt = merged(left, settings, now_ms, lane)
    if rebuilt is None:
        lane.advance(sending.record_count)
        return False
    sending.requests, sending.data = rebuilt.requests, rebuilt.data
    sending.record_count = rebuilt.record_count
    return True
