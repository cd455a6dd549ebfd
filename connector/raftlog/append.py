"""Appends: requests with their records and conditions, and groups of them that are written.

The embedded log, the leader of a quorum and clients use this module. A request is validated before
it is queued, so that on the writer thread it can fail only for reasons that depend on the log's
state. Deadlines are monotonic milliseconds.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias, cast, runtime_checkable

import msgpack

from raftlog.errors import (
    AppendError,
    AppendUnknownError,
    BufferAllocationError,
    DiskFailedError,
    DiskFullError,
    ForeignCommitError,
    FutureEpochError,
    InvalidAppendError,
    InvalidProducerEpochError,
    LogClosedError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.fast_dataclass import fast_init
from raftlog.limits import BATCH_HEADER_BYTES, HEADERS_PER_RECORD_MAX, INT64_MAX, MIB
from raftlog.log.reading.transactions import (
    FRAME_VERSION,
    CommitName,
    Marker,
    MetadataMarker,
    ValueKind,
    commit_header,
    commit_transaction_name,
    encoded_metadata,
    marker_of,
    marker_value,
    metadata_marker,
    parse_commit_transaction_name,
    transaction_name,
)
from raftlog.records.builder import BatchAccumulator, ProducerStamp
from raftlog.records.control import ControlRecord
from raftlog.records.encoding import PackedRecords, RecordToAppend, SealedBatch
from raftlog.records.fields import MalformedVarintError, read_unsigned_varint
from raftlog.records.record import Header, NewRecord, new_record

if TYPE_CHECKING:
    from raftlog.log.writing.key_offsets import UnchangedKeys
    from raftlog.log.writing.producer_state import Duplicate
    from raftlog.log.writing.replicated_log import ReplicatedLog

WAITING_BYTES_MAX: Final = 64 * MIB
"""Bound on the bytes of a handle's requests that have no result yet (Kafka: ``buffer.memory``). A
single larger request is accepted."""
_RECORD_OVERHEAD_BYTES: Final = 24
"""Approximate upper bound of the lengths and deltas in an encoded record."""


@fast_init
@dataclass(frozen=True, slots=True)
class AppendResult:
    """Offsets of appended records, both inclusive, and their leader epoch.

    Without records, ``last_offset`` is ``base_offset - 1``. ``was_duplicate``: the log already
    contained this commit or producer sequence. Nothing was appended then, and the offsets are the
    existing ones.
    """

    base_offset: int
    last_offset: int
    epoch: int
    was_duplicate: bool = False

    @property
    def end_offset(self) -> int:
        """Offset after the records, which is the next append's ``required_base_offset``."""
        return self.last_offset + 1


NOT_AWAITED: Final[Future[AppendResult]] = Future()
"""Future of requests whose result is passed to a callback, as in a node."""


@dataclass(slots=True, kw_only=True, eq=False)
class AppendRequest:
    """Records to append, and the conditions. The append does not begin after ``deadline_ms``."""

    records: Sequence[RecordToAppend]
    control: tuple[ControlRecord, ...] = ()
    """Control records instead of ``records``, in a batch of their own; only in nodes."""
    epoch: int | None = None
    required_end_offset: int | None = None
    required_base_offset: int | None = None
    unchanged: UnchangedKeys | None = None
    is_atomic: bool = False
    commit: CommitName | None = None
    take_over_from: str | None = None
    producer: ProducerStamp | None = None
    deadline_ms: float
    received_ms: float = 0.0
    """Time of receipt; only in nodes."""
    gate: InOrderGate | None = None
    future: Future[AppendResult] = field(default_factory=Future)

    @property
    def identity(self) -> CommitName | ProducerStamp | None:
        """The commit name or producer stamp that identifies a retry, if there is one.

        If a request has both, this is the commit name; the producer's sequence then keeps it in
        order among the producer's other appends.
        """
        return self.producer if self.commit is None else self.commit

    @property
    def has_required_offset(self) -> bool:
        return self.required_end_offset is not None or self.required_base_offset is not None

    @property
    def needs_own_batch(self) -> bool:
        """Whether no other append may share its batch."""
        has_identity = self.commit is not None or self.producer is not None
        return has_identity or self.has_required_offset or self.unchanged is not None

    @property
    def writes(self) -> bool:
        """Whether it has records. Without any it only checks, and its outcome is never unknown."""
        return bool(self.records or self.control)

    def byte_count(self) -> int:
        """Return the approximate size of the records in memory and of their batch."""
        if isinstance(self.records, SealedBatch):
            return self.records.byte_count()
        if isinstance(self.records, PackedRecords):
            return BATCH_HEADER_BYTES + self.records.byte_count()
        count = BATCH_HEADER_BYTES
        if self.unchanged is not None:
            count += self.unchanged.byte_count()
        for record in self.records:
            count += _RECORD_OVERHEAD_BYTES
            if isinstance(record, bytes):
                count += len(record)
                continue
            count += len(record.key or b"") + len(record.value or b"")
            for header in record.headers:
                count += _RECORD_OVERHEAD_BYTES + len(header.key) + len(header.value or b"")
        return count

    def check(self) -> None:
        """Raise ``InvalidAppendError`` for arguments that are invalid in combination."""
        reason, has_records = None, bool(self.records)
        if not has_records and self.epoch is None and not self.needs_own_batch:
            reason = "there are no records to append, and no required offset or epoch to check"
        elif self.take_over_from is not None and self.commit is None:
            reason = "take_over_from requires commit"
        elif self.producer is not None and not has_records:
            reason = "an append with a producer needs at least one record"
        elif self.unchanged is not None and not has_records:
            reason = "an append with unchanged keys needs at least one record"
        for number in (self.epoch, self.required_end_offset, self.required_base_offset):
            if number is not None and number < 0:
                reason = reason or "epoch and required offsets must not be negative"
        if reason is not None:
            raise InvalidAppendError(reason=reason)


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """Operation on the log under its lock, between the appends before and after it.

    ``run`` takes the writer's log and the wall-clock time in milliseconds. What it writes is synced
    together with its group.
    """

    run: Callable[[Any, int], Any]
    deadline_ms: float
    future: Future[Any] = field(default_factory=Future)

    @property
    def writes(self) -> bool:
        """Always true, because ``run`` may write."""
        return True

    def byte_count(self) -> int:
        return 0


Request: TypeAlias = AppendRequest | Operation


@dataclass(frozen=True, slots=True)
class Done:
    """Success of a request, with the result of its future."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Refusal or failure of a request, with its own error object."""

    error: RaftlogError


RequestResult: TypeAlias = Done | Failed


def failed(error: RaftlogError) -> Failed:
    """Return a failure with a copy of ``error``: each caller raises one with its own traceback."""
    return Failed(copy.copy(error))


# --- Bytes of a handle's requests without a result ------------------------------------------------


class BufferPool:
    """Bound on the bytes of one handle's queued requests, and whether it accepts any (``closed``).

    Kafka: ``BufferPool``. ``changed`` also guards the handle's queue, and callers of all methods
    except ``check_process`` must hold it. It is notified when there may be room, and when the pool
    is closed.
    """

    def __init__(self, path: str, byte_count_max: int, now_ms: Callable[[], float]) -> None:
        self.changed: Final = threading.Condition()
        self.closed: str | None = None
        self._path = path
        self._byte_count_max = byte_count_max
        self._now_ms = now_ms
        self._byte_count = 0
        self._process_id = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child. Its parent has the requests, and may hold ``changed``."""
        return os.getpid() != self._process_id

    def check_process(self, opened: str) -> None:
        """Raise ``LogClosedError`` in a forked child."""
        if self.is_forked:
            raise LogClosedError(path=self._path, reason=f"{opened} before this process was forked")

    def wait_for_room(self, byte_count: int, deadline_ms: float) -> None:
        """Wait until ``allocate`` may be called. A request above the bound is accepted alone.

        Raises ``LogClosedError``, and ``BufferAllocationError`` if there is no room before the
        deadline.
        """
        while True:
            if self.closed is not None:
                raise LogClosedError(path=self._path, reason=self.closed)
            if not self._byte_count or self._byte_count + byte_count <= self._byte_count_max:
                return
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                raise BufferAllocationError(
                    byte_count=byte_count, byte_count_max=self._byte_count_max
                )
            self.changed.wait(left_ms / 1000)

    def allocate(self, byte_count: int) -> None:
        """Count the bytes of a request that is queued."""
        self._byte_count += byte_count

    def release(self, byte_count: int) -> None:
        """Return the bytes of requests that have a result."""
        self._byte_count -= byte_count
        self.changed.notify_all()

    def close(self, reason: str) -> bool:
        """Refuse further requests; return False if it was closed already."""
        is_first = self.closed is None
        self.closed = self.closed or reason
        self.changed.notify_all()
        return is_first


# --- Order of one client's appends after one of them was refused for lack of room -----------------
# A client has several appends in flight, and retries one that was refused. Until then its later
# appends are refused too, or a small one would overtake a large one. The retry of a refused append
# shows that the client retries all of them in order and has no other in flight, so it and those
# after it may pass. Only appends with an identity are kept in order, because the retry of any other
# append cannot be recognized. Once the log knows a producer, the sequences alone ensure its order.
# The gate is therefore only for a producer's first batches, of which the log accepts any, and for
# appends with a commit name.

REFUSED_MAX: Final = 16
"""Refusals after which a client that does not retry is accepted again. It is more than a client
that requires order has in flight (Kafka: ``max.in.flight.requests.per.connection``, 5 with
idempotence)."""


class InOrderGate:
    """Gate for the appends of one connection to a leader.

    ``identity`` of an append identifies its retry.
    """

    __slots__ = ("_refusal", "_refused")

    def __init__(self) -> None:
        self._refusal: RaftlogError | None = None
        self._refused: set[Hashable] = set()

    def refusal_of(self, identity: Hashable | None) -> RaftlogError | None:
        """Return why an append must be refused although there may be room, or None."""
        if identity in self._refused:
            self._clear()
        return None if identity is None else self._refusal

    def refuse(self, identity: Hashable | None, refusal: RaftlogError) -> None:
        """Record an append that was refused, for lack of room or after such an append."""
        if identity is None:
            return
        self._refusal = refusal
        self._refused.add(identity)
        if len(self._refused) == REFUSED_MAX:
            self._clear()

    def _clear(self) -> None:
        self._refusal = None
        self._refused.clear()


# --- Records as users give them, validated for the kind of log and converted ----------------------
# A record is its value (bytes), a pair (key, value), or an object with ``value`` and optionally
# ``key``, ``headers`` and ``timestamp_ms``. A single record may be given instead of a list.
#
# A ``msgpack`` log takes ``[type, version, fields]`` as a value, or its encoding. A ``kraft`` log
# takes framed values (frame version 1, api key, version, fields) and, as in KRaft, no keys, headers
# or timestamps (Kafka: ``AbstractApiMessageSerde``, ``RecordsIterator``). Header names that begin
# with ``raftlog.`` and transaction names in the form of a commit's name are reserved.
#
# Errors name a record by its index, and never contain its bytes.

HEADER_PREFIX: Final = "raftlog."
USER_HEADERS_MAX: Final = HEADERS_PER_RECORD_MAX - 3
"""Headers of one record that a user may set. Three more are reserved: a commit's name, the query it
replaces, and a condition on keys."""
_MSGPACK_FIELD_COUNT: Final = 3

BytesLike: TypeAlias = bytes | bytearray | memoryview


@runtime_checkable
class RecordLike(Protocol):
    """Object with a value: a ``Record`` that was read, a ``NewRecord``, a consumer's record.

    ``key``, ``headers`` and ``timestamp_ms`` are used if present.
    """

    @property
    def value(self) -> Any: ...


_NO_RECORDS: Final = frozenset({bytes, bytearray, memoryview, list, tuple})
"""Types without ``value``. A check against the protocol would take longer than all the rest."""

UserRecord: TypeAlias = BytesLike | tuple[Any, ...] | list[Any] | RecordLike
"""One record in any accepted form."""


def new_records(
    records: UserRecord | Iterable[UserRecord], values: ValueKind, *, first_ordinal: int = 0
) -> tuple[RecordToAppend, ...]:
    """Validate records for a log with values of this kind, and return them in its form.

    A record without key, headers and timestamp is returned as its value alone. Indexes in errors
    count from ``first_ordinal``.

    Raises ``InvalidAppendError``.
    """
    if type(records) is not list and isinstance(records, BytesLike | RecordLike):
        return (_new_record(records, values, first_ordinal),)
    if isinstance(records, str | dict) or not isinstance(records, Iterable):
        kind = type(records).__name__
        _refuse(None, f"records must be a list, not {kind}; give one of bytes or (key, value)")
    if values is ValueKind.BYTES:
        return tuple(
            [
                record if type(record) is bytes else _new_bytes_record(record, ordinal)
                for ordinal, record in enumerate(records, first_ordinal)
            ]
        )
    return tuple(
        [
            _new_record(record, values, ordinal)
            for ordinal, record in enumerate(records, first_ordinal)
        ]
    )


def _new_bytes_record(record: object, ordinal: int) -> RecordToAppend:
    """Return a record for a ``bytes`` log. The usual ones need no conversion of their fields."""
    if type(record) is tuple and len(record) == 2:
        key, value = record
        if type(key) is bytes and type(value) is bytes:
            return new_record(key, value)
    elif type(record) is NewRecord and _is_converted(record):
        return record
    return _new_record(record, ValueKind.BYTES, ordinal)


def _is_converted(record: NewRecord) -> bool:
    time_ms = record.timestamp_ms
    is_timed = type(time_ms) is int and 0 <= time_ms <= INT64_MAX
    return (
        type(record.key) is bytes
        and type(record.value) is bytes
        and record.headers == ()
        and (time_ms is None or is_timed)
    )


def _new_record(record: object, values: ValueKind, ordinal: int) -> RecordToAppend:
    key, value, timestamp_ms = None, record, None
    headers: tuple[Header, ...] = ()
    if isinstance(record, NewRecord) or (
        type(record) not in _NO_RECORDS and isinstance(record, RecordLike)
    ):
        key, value = getattr(record, "key", None), record.value
        headers = _headers(getattr(record, "headers", ()) or (), ordinal)
        timestamp_ms = _timestamp(getattr(record, "timestamp_ms", None), ordinal)
    elif isinstance(record, tuple) and len(record) == 2:
        key, value = record
    key = _bytes_or_none(key, "key", ordinal)
    value = _value(value, values, ordinal)
    if key is None and not headers and timestamp_ms is None and value is not None:
        return value
    if values is ValueKind.KRAFT:
        _refuse(ordinal, "a record of a kraft log has no key, headers or timestamp")
    return NewRecord(key, value, timestamp_ms, headers)


def _value(value: object, values: ValueKind, ordinal: int) -> bytes | None:
    match values:
        case ValueKind.BYTES:
            return _bytes_or_none(value, "value", ordinal)
        case ValueKind.MSGPACK:
            return _msgpack_value(value, ordinal)
        case ValueKind.KRAFT:
            return _kraft_value(value, ordinal)


def _bytes_or_none(data: object, what: str, ordinal: int) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    hint = (
        "encode it"
        if isinstance(data, str)
        else "a record is its value or (key, value), in bytes, or an object with a value"
    )
    _refuse(ordinal, f"its {what} is {type(data).__name__}, not bytes; {hint}")


# --- msgpack --------------------------------------------------------------------------------------


def _msgpack_value(value: object, ordinal: int) -> bytes:
    if isinstance(value, BytesLike):
        encoded = bytes(value)
        try:
            value = msgpack.unpackb(encoded, strict_map_key=False)
        except (ValueError, msgpack.exceptions.UnpackException):
            _refuse(ordinal, "its value is not MessagePack")
        except TypeError:
            _refuse(ordinal, "a map in its value has a key that is an array or a map")
        _check_msgpack(value, ordinal)
        return encoded
    _check_msgpack(value, ordinal)
    try:
        packed = cast("bytes", msgpack.packb(value))
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        _refuse(ordinal, "its fields contain a value that MessagePack cannot encode")
    return packed


def _check_msgpack(value: object, ordinal: int) -> None:
    """Raise unless the value is ``[type, version, fields]``."""
    if not isinstance(value, list | tuple) or len(value) != _MSGPACK_FIELD_COUNT:
        _refuse(ordinal, "a value of a msgpack log must be [type, version, fields]")
    kind, version, _ = value
    if not (_is_number(kind) or (isinstance(kind, str) and kind)):
        _refuse(ordinal, "its type must be a non-negative integer or a non-empty string")
    if not _is_number(version):
        _refuse(ordinal, "its version must be a non-negative integer")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- kraft ----------------------------------------------------------------------------------------


def _kraft_value(value: object, ordinal: int) -> bytes:
    data = _bytes_or_none(value, "value", ordinal)
    if not data:
        _refuse(ordinal, "a record of a kraft log must have a value")
    try:
        frame_version, position = read_unsigned_varint(data, 0)
        _, position = read_unsigned_varint(data, position)
        read_unsigned_varint(data, position)
    except MalformedVarintError:
        _refuse(ordinal, "its value does not begin with a frame version, an api key and a version")
    if frame_version != FRAME_VERSION:
        _refuse(ordinal, f"its frame version is {frame_version}, not {FRAME_VERSION}")
    if marker_of(data) is Marker.BEGIN and parse_commit_transaction_name(transaction_name(data)):
        _refuse(
            ordinal, "it begins a transaction with the name of a commit; pass commit=... instead"
        )
    return data


# --- headers and timestamps -----------------------------------------------------------------------


def _headers(headers: Any, ordinal: int) -> tuple[Header, ...]:
    """Validate headers, given as ``Header`` objects, as pairs or as a mapping."""
    pairs = headers.items() if isinstance(headers, dict) else headers
    if not isinstance(pairs, Iterable):
        _refuse(ordinal, f"its headers must be a list of pairs, not {type(headers).__name__}")
    checked: list[Header] = []
    for header in pairs:
        if isinstance(header, Header):
            name, value, raw_key = header.key, header.value, header.raw_key
        else:
            raw_key = None
            try:
                name, value = header
            except (TypeError, ValueError):
                _refuse(ordinal, "a header must be a (name, value) pair")
        if not _is_text(name):
            _refuse(ordinal, "a header name must be valid Unicode text")
        if len(checked) == USER_HEADERS_MAX:
            _refuse(ordinal, f"it has more than {USER_HEADERS_MAX} headers")
        value = _bytes_or_none(value, "header's value", ordinal)
        raw_key = _bytes_or_none(raw_key, "header's raw_key", ordinal)
        stored = name if raw_key is None else raw_key.decode("utf-8", "replace")
        if stored.startswith(HEADER_PREFIX):
            _refuse(ordinal, f"its header {stored!r} begins with {HEADER_PREFIX!r}: reserved")
        checked.append(Header(name, value, raw_key))
    return tuple(checked)


def _is_text(name: object) -> bool:
    try:
        return isinstance(name, str) and name.encode() is not None
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _timestamp(timestamp_ms: object, ordinal: int) -> int | None:
    if timestamp_ms is None:
        return None
    if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms <= INT64_MAX:
        _refuse(ordinal, "its timestamp_ms must be a non-negative int (ms since 1970)")
    return int(timestamp_ms)


def _refuse(ordinal: int | None, reason: str) -> NoReturn:
    where = "" if ordinal is None else f"the record at index {ordinal} is invalid: "
    raise InvalidAppendError(reason=f"{where}{reason}")


# --- Appends of one group: conditions are checked, offsets assigned, batches written --------------
# Invariants:
#
# 1. For each append, these are checked in order and in the same step that assigns the offsets: the
#    epoch, the identity (commit, producer), the keys and the required offset. A refused append
#    changes nothing, and the others of the group continue.
# 2. There are no locks, syncs or threads: the caller excludes other writers, and decides when
#    records are durable or committed.


class AppendBatch:
    """One group of requests to one log, during which nothing else is appended to the log."""

    def __init__(self, log: ReplicatedLog, now_ms: int) -> None:
        self._log = log
        self._now_ms = now_ms
        self._begin()
        self._being_written: AppendResult | None = None

    def _begin(self) -> None:
        """Begin at the end of the log, without pending batches."""
        self._accumulator = self._new_accumulator()
        self._pending = self._log.producer_state.begin_pending()
        self._commits: dict[int, CommitName] = {}

    def process(self, request: Request) -> RequestResult:
        """Execute a request except for its sync. Raises errors that fail the whole group."""
        if isinstance(request, Operation):
            return self._run(request)
        try:
            return Done(self._append(request))
        except AppendError as refusal:
            return failed(refusal)

    def _run(self, operation: Operation) -> RequestResult:
        self.write()
        try:
            return Done(operation.run(self._log, self._now_ms))
        except DiskFailedError:
            raise
        except RaftlogError as refusal:
            return failed(refusal)
        finally:
            self._begin()

    def _append(self, request: AppendRequest) -> AppendResult:
        if self._log.is_read_only:
            self._log.flush()  # raises the reason
        epoch = self._epoch(request)
        if request.control:
            return self._append_control(request.control, epoch)
        if self._log.config.cleanup_policy.compacts:
            _check_keys(request.records)
        records, values = request.records, self._log.config.values
        if request.commit is not None and records:
            records = named_records(records, request.commit, values)
        count = len(records)
        duplicate = self._duplicate(request, count)
        if duplicate is not None:
            return AppendResult(
                duplicate.base_offset,
                duplicate.last_offset,
                self._log.epochs.epoch_at(duplicate.base_offset) or epoch,
                was_duplicate=True,
            )
        if request.unchanged is not None:
            self.write()  # the earlier appends of the group, which may change the keys
            self._log.check_unchanged(request.unchanged, count)
        has_markers = values is ValueKind.KRAFT and self._check_markers(request)
        if request.is_atomic or request.needs_own_batch:
            last_offset = self._append_atomic(request, epoch, records)
        elif count:
            last_offset = self._accumulator.append(epoch, records, now_ms=self._now_ms)
        else:
            last_offset = self._accumulator.next_offset - 1
        result = AppendResult(last_offset - count + 1, last_offset, epoch)
        if has_markers:
            self._being_written = result
            # The next request is checked against an open transaction that includes this one.
            self.write(markers=metadata_markers(records, result.base_offset))
            self._being_written = None
        elif count:
            self._add_identity(request, result)
        return result

    def _append_control(self, control: Sequence[ControlRecord], epoch: int) -> AppendResult:
        """Write the earlier appends, then these control records."""
        self.write()
        base_offset = self._log.end_offset
        self._log.append_control(control, now_ms=self._now_ms)
        self._begin()
        return AppendResult(base_offset, self._log.end_offset - 1, epoch)

    def _add_identity(self, request: AppendRequest, result: AppendResult) -> None:
        """Add an append's identity, so that the next one is checked against it, written or not."""
        base_offset, last_offset = result.base_offset, result.last_offset
        if request.commit is not None:
            self._pending.add_commit(request.commit, base_offset, last_offset)
            self._commits[base_offset] = request.commit
        if request.producer is not None:
            stamp = request.producer
            self._pending.add_producer_batch(
                stamp.producer_id,
                stamp.producer_epoch,
                stamp.base_sequence,
                base_offset=base_offset,
                last_offset=last_offset,
            )

    def _append_atomic(
        self, request: AppendRequest, epoch: int, records: Sequence[RecordToAppend]
    ) -> int:
        if not records and not request.has_required_offset:
            return self._accumulator.next_offset - 1
        return self._accumulator.append_atomic(
            epoch,
            records,
            now_ms=self._now_ms,
            required_end_offset=request.required_end_offset,
            required_base_offset=request.required_base_offset,
            standalone=request.needs_own_batch,
            producer=request.producer,
        )

    def _epoch(self, request: AppendRequest) -> int:
        current = self._accumulator.epoch
        epoch = current if request.epoch is None else request.epoch
        if epoch < current:
            raise NotLeaderError(epoch=epoch, current_epoch=current)
        if epoch > current:
            raise FutureEpochError(epoch=epoch, current_epoch=current)
        return epoch

    def _duplicate(self, request: AppendRequest, record_count: int) -> Duplicate | None:
        """Return the offsets of the same append, if the log or this group already has it.

        A commit's name is checked before its producer, because another producer may have appended
        it.
        """
        found = None
        if request.commit is not None:
            found = self._pending.check_commit(
                request.commit, take_over_from=request.take_over_from
            )
        if found is not None or request.producer is None:
            return found
        stamp = request.producer
        return self._pending.check_producer(
            stamp.producer_id, stamp.producer_epoch, stamp.base_sequence, record_count
        )

    def _check_markers(self, request: AppendRequest) -> bool:
        """Return whether the append has markers of metadata transactions. Write earlier appends.

        Raises ``InvalidAppendError`` if the markers do not fit the open transaction: at most one
        can be open at a time, and a named commit is itself a transaction (KIP-868).
        """
        found = [one.marker for one in metadata_markers(request.records, 0)]
        if not found and request.commit is None:
            return False
        self.write()
        is_open = self._log.producer_state.open_transaction is not None
        reason = None
        if request.commit is not None and found:
            reason = "a named commit is a transaction itself, and cannot contain any markers"
        elif request.commit is not None and is_open:
            reason = "a transaction is open; end it, or claim the log, which aborts it"
        for marker in found:
            if (marker is Marker.BEGIN) is is_open:
                what = "begins while another is open" if is_open else "ends, but none is open"
                reason = reason or f"a transaction {what}"
            is_open = marker is Marker.BEGIN
        if reason is not None:
            raise InvalidAppendError(reason=reason)
        return True

    def write(self, *, markers: Sequence[MetadataMarker] = ()) -> None:
        """Write the accumulated batches. If the disk is full, the group must end."""
        batches, values = self._accumulator.drain(), self._log.config.values
        if not batches:
            return
        names = [self._commits.get(one.base_offset) for one in batches]
        self._log.append_as_leader(
            [
                (one.data, encoded_metadata(one, values, commit=name, markers=markers))
                for one, name in zip(batches, names, strict=True)
            ]
        )
        self._pending.clear()
        self._commits.clear()

    def interrupted(self) -> list[RequestResult]:
        """Return the result of the append that ``process`` was writing when it raised, if any.

        The result is that of a complete append, although only a part may be in the log.
        """
        return [] if self._being_written is None else [Done(self._being_written)]

    def _new_accumulator(self) -> BatchAccumulator:
        config = self._log.config
        return BatchAccumulator(
            epoch=self._log.epoch,
            next_offset=self._log.end_offset,
            byte_count_max=config.batch_bytes_max,
            compression=config.compression,
        )


def metadata_markers(
    records: Sequence[RecordToAppend], base_offset: int
) -> tuple[MetadataMarker, ...]:
    """Return the transaction markers among records, the first of which has ``base_offset``."""
    return tuple(
        marker
        for offset, record in enumerate(records, base_offset)
        if (marker := metadata_marker(offset, _value_of(record)))
    )


def _check_keys(records: Sequence[RecordToAppend]) -> None:
    """Raise ``InvalidAppendError`` for a record without a key, which no compaction could retain."""
    for ordinal, record in enumerate(records):
        if isinstance(record, bytes) or record.key is None:
            _refuse(ordinal, "the log is compacted (cleanup.policy), so each record needs a key")


def _value_of(record: RecordToAppend) -> bytes | None:
    return record if isinstance(record, bytes) else record.value


def named_records(
    records: Sequence[RecordToAppend], name: CommitName, values: ValueKind
) -> Sequence[RecordToAppend]:
    """Return records with the commit's name: a header, or a begin and an end marker (kraft)."""
    if values is ValueKind.KRAFT:
        begin = marker_value(Marker.BEGIN, commit_transaction_name(name))
        return (begin, *records, marker_value(Marker.END))
    if isinstance(records, SealedBatch | PackedRecords) and records.is_named:
        return records
    first = records[0]
    header = commit_header(name)
    if isinstance(first, bytes):
        return (NewRecord(None, first, headers=(header,)), *records[1:])
    named = NewRecord(first.key, first.value, first.timestamp_ms, (header, *first.headers))
    if isinstance(records, PackedRecords):
        return records.with_first(named, is_named=True)
    return (named, *records[1:])


_ABOUT_IDENTITIES: Final = (
    ForeignCommitError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    StaleCommitError,
)
"""Refusals because of an earlier append of a producer or application id, which may be unwritten."""


def fail_if_unwritten(answer: RequestResult, end_offset: int, full: DiskFullError) -> RequestResult:
    """Return a request's result, given that a full disk ended the log at ``end_offset``.

    A refusal or duplicate that may be due to unwritten records becomes ``full``, too.
    """
    if isinstance(answer, Failed):
        error = answer.error
        depends_on_unwritten_records = isinstance(error, _ABOUT_IDENTITIES) or (
            isinstance(error, UnexpectedEndOffsetError) and error.log_end_offset > end_offset
        )
        return failed(full) if depends_on_unwritten_records else answer
    if not isinstance(answer.value, AppendResult):
        return answer
    result = answer.value
    if result.last_offset < end_offset:
        return answer
    if result.base_offset >= end_offset:
        return failed(full)
    reason = f"its records below offset {end_offset} were appended, and then the disk was full"
    return Failed(AppendUnknownError(path=full.path, reason=reason))
