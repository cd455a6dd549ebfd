"""A batch that a producer sent, turned into an append.

Rules of this file:

1. The order is that of trust: sizes, then the CRC, then the header, then decompression within a
   limit, then records. What is refused is an error of ``raftlog.errors`` with Kafka's code.
2. The header carries the token: a leader epoch of 1 or more requires that epoch, a base offset of 0
   or more beside it that offset for the first record. Below 1 (librdkafka says 0, Java -1) the
   append is unconditional. A batch without records only checks.
3. The first record may name the batch's commit in the header ``raftlog.commit``, and in
   ``raftlog.take-over`` the query that it takes over from; in a ``kraft`` log the batch's own
   markers name it. No other header may begin as ours do.
4. A record keeps its own time. Kafka: ``ProduceRequest.validateRecords``, ``LogValidator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, NoReturn

from crc32c import crc32c

from raftlog.client.requests import AppendRequest
from raftlog.client.user_records import HEADER_PREFIX, new_records
from raftlog.errors import (
    CorruptBatchError,
    DecompressionLimitError,
    InvalidAppendError,
    RecordBatchTooLargeError,
)
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    LOG_OVERHEAD_BYTES,
)
from raftlog.log.marker_values import marker_of, transaction_name
from raftlog.log.transactions import Marker
from raftlog.log.writing.batch_facts import (
    COMMIT_HEADER,
    CommitName,
    ValueKind,
    parse_commit_header,
    parse_commit_transaction_name,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.builder import ProducerStamp
from raftlog.records.compression import Compression
from raftlog.records.encoding import RecordToAppend
from raftlog.records.header import (
    BATCH_HEADER,
    BATCH_MAGIC,
    COMPRESSION_BITS,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from raftlog.records.record import Header, NewRecord

TAKE_OVER_HEADER: Final = "raftlog.take-over"
NO_TIMESTAMP: Final = -1
_COLUMNS_FROM: Final = 64
"""Fewer records are decoded one by one: columns cost more to begin with."""
_EXPANSION_MAX: Final = 8
"""How many times the limit of a batch its records may take while they are looked at, in a log that
compresses: they must fit compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedHeader:
    """What the header of a sound batch says."""

    base_offset: int
    leader_epoch: int
    compression: Compression
    producer: ProducerStamp | None
    record_count: int


def read_header(data: bytes, *, byte_count_max: int) -> ProducedHeader:
    """The header of the one batch that ``data`` must be. No record is looked at.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, for a CRC that does not hold or
    bytes that stop inside the batch, ``CorruptBatchError``.
    """
    _check_frame(data, byte_count_max)
    head = BATCH_HEADER.unpack_from(data)
    base_offset, _, leader_epoch, _, crc, attributes, last_offset_delta = head[:7]
    producer_id, producer_epoch, base_sequence, record_count = head[9:]
    if crc32c(memoryview(data)[CRC_START:]) != crc:
        raise CorruptBatchError(reason="its CRC is not that of its bytes")
    _check_attributes(attributes)
    if record_count < 0 or (record_count > 0 and last_offset_delta != record_count - 1):
        _refuse(f"it claims {record_count} records up to offset delta {last_offset_delta}")
    if record_count == 0 and len(data) != BATCH_HEADER_BYTES:
        _refuse("it claims no records, and holds bytes of some")
    producer = None
    if producer_id >= 0:
        if producer_epoch < 0 or base_sequence < 0:
            _refuse(f"producer {producer_id} says epoch {producer_epoch}, sequence {base_sequence}")
        producer = ProducerStamp(producer_id, producer_epoch, base_sequence)
    return ProducedHeader(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        compression=Compression(attributes & COMPRESSION_BITS),
        producer=producer,
        record_count=record_count,
    )


def append_request(
    data: bytes, header: ProducedHeader, config: LogConfig, *, deadline_ms: float
) -> AppendRequest:
    """What a producer asks for by this batch, of a log that is configured so.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError``.
    """
    records: list[RecordToAppend] = []
    commit, take_over_from = None, None
    if header.record_count:
        found = _decoded(data, header, config)
        commit, take_over_from = _take_names(found)
        records = _checked(found, config.values)
        if config.values is ValueKind.KRAFT:
            if commit is not None:
                _refuse("a kraft log names a commit in the transaction that holds it")
            commit = _take_framing(records)
    has_epoch = header.leader_epoch >= 1
    if has_epoch and header.base_offset < -1:
        _refuse(f"its base offset is {header.base_offset}")
    request = AppendRequest(
        records=tuple(records),
        epoch=header.leader_epoch if has_epoch else None,
        required_base_offset=header.base_offset if has_epoch and header.base_offset >= 0 else None,
        is_atomic=True,
        commit=commit,
        take_over_from=take_over_from,
        producer=header.producer,
        deadline_ms=deadline_ms,
    )
    request.check()
    return request


def _check_frame(data: bytes, byte_count_max: int) -> None:
    """Whether this is one whole batch of the present format, and not too large."""
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != BATCH_MAGIC:
        _refuse(f"only batches of magic {BATCH_MAGIC} are taken, not of {data[MAGIC_POSITION]}")
    if len(data) < BATCH_HEADER_BYTES:
        raise CorruptBatchError(reason=f"{len(data)} bytes hold no header of a batch")
    byte_count = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD_BYTES
    if byte_count < BATCH_HEADER_BYTES or byte_count > len(data):
        raise CorruptBatchError(reason=f"its length is {byte_count}, and {len(data)} bytes came")
    if byte_count < len(data):
        _refuse("a request holds exactly one batch for a partition")
    if byte_count > byte_count_max:
        raise RecordBatchTooLargeError(byte_count=byte_count, byte_count_max=byte_count_max)


def _check_attributes(attributes: int) -> None:
    if attributes & COMPRESSION_BITS > Compression.ZSTD:
        _refuse(f"no codec has the number {attributes & COMPRESSION_BITS}")
    if attributes & CONTROL_BIT:
        _refuse("clients write no control records")
    if attributes & TRANSACTIONAL_BIT:
        _refuse("producers' transactions are not served")
    if attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT):
        _refuse("the times of its records are not their producer's")


# --- records --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Decoded:
    """Records as columns; ``headers`` is empty if no record has any."""

    keys: list[bytes | None]
    values: list[bytes | None]
    times_ms: list[int]
    headers: list[tuple[Header, ...]]


def _decoded(data: bytes, header: ProducedHeader, config: LogConfig) -> _Decoded:
    """The records, of which nothing but their form is known to be right."""
    limit = config.batch_bytes_max
    if config.compression is not Compression.NONE:
        limit = min(limit * _EXPANSION_MAX, DECOMPRESSED_BYTES_MAX)
    at_zero = bytes(8) + memoryview(data)[8:]  # its own base offset is a token, or means nothing
    try:
        if header.record_count < _COLUMNS_FROM:
            return _decoded_one_by_one(at_zero, limit)
        return _decoded_as_columns(at_zero, limit)
    except DecompressionLimitError:
        raise RecordBatchTooLargeError(byte_count=limit + 1, byte_count_max=limit) from None
    except CorruptBatchError as error:
        _refuse(f"its records cannot be read: {error.reason}")


def _decoded_one_by_one(data: bytes, limit: int) -> _Decoded:
    batch = read_batch(data)
    assert isinstance(batch, RecordBatch), "its length was looked at"
    records = list(batch.records(decompressed_bytes_max=limit))
    has_headers = any(record.headers for record in records)
    return _Decoded(
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp_ms for record in records],
        [record.headers for record in records] if has_headers else [],
    )


def _decoded_as_columns(data: bytes, limit: int) -> _Decoded:
    from raftlog.records.scan import Column, scan  # with what it needs for columns

    found = scan(data, columns=Column.ALL, decompressed_bytes_max=limit)
    if found.error is not None:
        raise found.error
    records = found.records
    assert records.key is not None, "all columns were asked for"
    assert records.value is not None
    assert records.timestamp_ms is not None
    assert records.headers is not None
    headers: list[tuple[Header, ...]] = []
    if len(records.headers.flatten()):
        headers = [_headers(row) for row in records.headers.to_pylist()]
    return _Decoded(
        records.key.to_pylist(),
        records.value.to_pylist(),
        records.timestamp_ms.to_pylist(),
        headers,
    )


def _headers(row: list[dict[str, Any]]) -> tuple[Header, ...]:
    return tuple(Header(one["key"], one["value"]) for one in row)


def _take_names(found: _Decoded) -> tuple[CommitName | None, str | None]:
    """The commit and the take-over in the first record's headers, which are taken out."""
    if not found.headers:
        return None, None
    ours = [one for one in found.headers[0] if one.key.startswith(HEADER_PREFIX)]
    found.headers[0] = tuple(
        one for one in found.headers[0] if not one.key.startswith(HEADER_PREFIX)
    )
    for row in found.headers:
        for header in row:
            if header.key.startswith(HEADER_PREFIX):
                _refuse(f"only its first record has headers that begin with {HEADER_PREFIX!r}")
    commit: CommitName | None = None
    take_over_from: str | None = None
    for header in ours:
        if header.key == COMMIT_HEADER and commit is None:
            commit = parse_commit_header(header.value)
            if commit is None:
                _refuse(f"its header {COMMIT_HEADER!r} is no name of a commit")
        elif header.key == TAKE_OVER_HEADER and take_over_from is None:
            take_over_from = (header.value or b"").decode(errors="replace")
        else:
            _refuse(f"its header {header.key!r} is not known, or stands there twice")
    if not any(found.headers):
        found.headers = []
    return commit, take_over_from


def _checked(found: _Decoded, values: ValueKind) -> list[RecordToAppend]:
    """The records as the log takes them."""
    if min(found.times_ms) < NO_TIMESTAMP:
        _refuse("a record's time lies before 1970")
    if values is ValueKind.KRAFT:
        return _checked_frames(found)
    records: list[RecordToAppend] = list(_records(found))
    return records if values is ValueKind.BYTES else list(new_records(records, values))


def _records(found: _Decoded) -> Iterator[NewRecord]:
    headers: Iterable[tuple[Header, ...]] = found.headers or repeat(())
    for key, value, time_ms, own in zip(
        found.keys, found.values, found.times_ms, headers, strict=False
    ):
        yield NewRecord(key, value, None if time_ms == NO_TIMESTAMP else time_ms, own)


def _checked_frames(found: _Decoded) -> list[RecordToAppend]:
    """Values of a ``kraft`` log: one time for all of them, which is the leader's."""
    if found.headers or len(set(found.times_ms)) > 1 or any(key is not None for key in found.keys):
        _refuse("a kraft log takes no key, no header and no time of a record's own")
    framed = [b"" if value is None else value for value in found.values]
    first = framed[0]
    if len(framed) > 1 and _commit_of(first) is not None:  # checked with what it frames
        return [first, *new_records(framed[1:], ValueKind.KRAFT)]
    return list(new_records(framed, ValueKind.KRAFT))


def _take_framing(records: list[RecordToAppend]) -> CommitName | None:
    """The commit that the markers around the records name; the markers are taken out."""
    first, last = records[0], records[-1]
    named = _commit_of(first)
    if named is None:
        return None
    if not isinstance(last, bytes) or marker_of(last) is not Marker.END:
        _refuse("the transaction that names a commit ends with its batch")
    del records[0], records[-1]
    if not records:
        _refuse("a commit has records")
    return named


def _commit_of(value: RecordToAppend) -> CommitName | None:
    if not isinstance(value, bytes) or marker_of(value) is not Marker.BEGIN:
        return None
    return parse_commit_transaction_name(transaction_name(value))


def _refuse(reason: str) -> NoReturn:
    raise InvalidAppendError(reason=reason)
