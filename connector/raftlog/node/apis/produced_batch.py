"""Validation of a produced batch, and its conversion to an append request.

1. The order of validation is: sizes, CRC, header, decompression within a limit, records. A rejected
   batch raises an error in ``raftlog.errors`` with Kafka's error code. The CRC is computed once:
   together with the records, or before a header is rejected.
2. The header contains the append's condition. A leader epoch of 1 or more requires that epoch; a
   base offset of 0 or more then also requires that offset for the first record. Below epoch 1
   (librdkafka sends 0, Java -1) the append is unconditional. A batch without records only checks
   the condition.
3. Records are decompressed within a limit. The bytes of a valid batch are appended unchanged,
   unless its codec is not the log's or is used in a way that Kafka does not decompress, a timestamp
   must be assigned or corrected, its values are frames (``kraft``), or its records contain the
   bytes ``raftlog.`` other than in a commit's name as the log writes it. In these cases valid
   records stay packed, so that a batch of a hundred thousand records does not need an object for
   each.
4. The first record may name the batch's commit in its header ``raftlog.commit``, and the query that
   it takes over from in ``raftlog.take-over``. In a ``kraft`` log the transaction markers in the
   batch name the commit. ``raftlog.unchanged`` lists keys that must not have changed. No other
   header may begin with ``raftlog.``.
5. A record keeps its timestamp; a record without one (-1) gets the leader's.

Kafka: ``ProduceRequest.validateRecords``, ``LogValidator``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, NoReturn

from crc32c import crc32c

from raftlog import compiled
from raftlog.append import (
    HEADER_PREFIX,
    NOT_AWAITED,
    AppendRequest,
    InOrderGate,
    named_records,
    new_records,
)
from raftlog.errors import (
    CorruptBatchError,
    DecompressionLimitError,
    InvalidAppendError,
    RecordBatchTooLargeError,
)
from raftlog.limits import (
    BATCH_HEADER_BYTES,
    HEADERS_PER_BATCH_MAX,
    HEADERS_PER_RECORD_MAX,
    LOG_OVERHEAD_BYTES,
    PRODUCED_OBJECTS_MAX,
    PRODUCED_RECORDS_MAX,
    RAW_BATCH_BYTES_MAX,
)
from raftlog.log.reading.transactions import (
    COMMIT_HEADER,
    TAKE_OVER_HEADER,
    CommitName,
    Marker,
    ValueKind,
    commit_header,
    marker_of,
    parse_commit_header,
    parse_commit_transaction_name,
    transaction_name,
)
from raftlog.log.writing.key_offsets import (
    UNCHANGED_HEADER,
    UnchangedKeys,
    parse_unchanged_header,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.builder import NO_PRODUCER, ProducerStamp, finish_batch
from raftlog.records.compression import Compression, decompress, is_read_by_kafka
from raftlog.records.encoding import PackedRecords, RecordToAppend, SealedBatch, summarize_records
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
from raftlog.records.record import Header, NewRecord, read_record

NO_TIMESTAMP: Final = -1
_PACKED_FROM: Final = 64
"""Below this number of records a small batch is decoded record by record, because columns have a
higher fixed cost."""
_VALUES_AT_ONCE: Final = 8192
HEADER_PREFIX_BYTES: Final = HEADER_PREFIX.encode()
_COMMIT_HEADER_BYTES: Final = COMMIT_HEADER.encode()
_NATIVE_LIMITS: Final = (PRODUCED_RECORDS_MAX, HEADERS_PER_RECORD_MAX, HEADERS_PER_BATCH_MAX)
"""Limits: records of a batch, headers of a record, headers of a batch."""
_FRAMED_COMMIT_MIN: Final = 3
"""Begin marker, a record, end marker."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Records of a batch without raftlog's headers or markers, and the contents of those."""

    records: Sequence[RecordToAppend]
    commit: CommitName | None = None
    take_over_from: str | None = None
    unchanged: UnchangedKeys | None = None


NOTHING: Final = Produced(())


class ProducedHeader(NamedTuple):
    """Fields of the header of a valid batch."""

    base_offset: int
    leader_epoch: int
    compression: Compression
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer: ProducerStamp
    """``NO_PRODUCER`` without a producer id."""
    record_count: int


def read_header(data: bytes, *, byte_count_max: int) -> ProducedHeader:
    """Validate the size and header of ``data``, which must be one batch; return its header.

    The CRC of a batch with records is checked by ``append_request``. Raises ``InvalidAppendError``,
    ``RecordBatchTooLargeError`` and, for a wrong CRC or incomplete batch, ``CorruptBatchError``.
    """
    _check_frame(data, byte_count_max)
    header = BATCH_HEADER.unpack_from(data)
    base_offset, _, leader_epoch, _, crc, attributes, last_offset_delta, base_ms, max_ms = header[
        :9
    ]
    producer_id, producer_epoch, base_sequence, record_count = header[9:]
    problem = _header_problem(attributes, last_offset_delta, record_count, len(data))
    producer = NO_PRODUCER
    if producer_id >= 0:
        if producer_epoch < 0 or base_sequence < 0:
            problem = problem or (
                f"producer id {producer_id} comes with the invalid epoch {producer_epoch} or "
                f"sequence {base_sequence}"
            )
        producer = ProducerStamp(producer_id, producer_epoch, base_sequence)
    if problem is not None or not record_count:
        if crc32c(memoryview(data)[CRC_START:]) != crc:
            raise CorruptBatchError(reason="the CRC does not match the data")
        if problem is not None:
            _refuse(problem)
    return ProducedHeader(
        base_offset,
        leader_epoch,
        Compression(attributes & COMPRESSION_BITS),
        base_ms,
        max_ms,
        producer,
        record_count,
    )


def plain_request(
    data: bytes, config: LogConfig, *, deadline_ms: float, gate: InOrderGate
) -> AppendRequest | None:
    """Return the append request of an uncompressed batch that is appended unchanged.

    The log must not be compressed either. The result is what ``read_header`` and ``append_request``
    return, but from the compiled core. It is None for any other batch, even an invalid one. Raises
    ``InvalidAppendError``.
    """
    is_plain = config.values is ValueKind.BYTES and config.compression is Compression.NONE
    prefix_count = data.count(HEADER_PREFIX_BYTES, BATCH_HEADER_BYTES)
    if not (is_plain and compiled.is_native) or prefix_count > 1:
        return None
    name = _COMMIT_HEADER_BYTES if prefix_count else None
    found = compiled.core.produced_batch(data, (config.batch_bytes_max, *_NATIVE_LIMITS), name)
    if found is None:
        return None
    base_offset, epoch, max_timestamp_ms, producer_id, producer_epoch, sequence, count, value = (
        found
    )
    commit = None
    if value is not None:
        commit = parse_commit_header(value)
        if commit is None or commit_header(commit).value != value:
            return None
    if base_offset:
        data = _with_base_offset_0(data)
    sealed = SealedBatch(data, count, max_timestamp_ms, is_named=commit is not None)
    producer = None
    if producer_id >= 0:
        producer = ProducerStamp(producer_id, producer_epoch, sequence)
    return _request(
        Produced(sealed, commit), base_offset, epoch, producer, deadline_ms=deadline_ms, gate=gate
    )


def append_request(
    data: bytes,
    header: ProducedHeader,
    config: LogConfig,
    *,
    deadline_ms: float,
    gate: InOrderGate,
    decompressed_bytes_max: int | None = None,
) -> AppendRequest:
    """Return the append request of a batch with a validated header.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, if the records exceed
    ``decompressed_bytes_max``, ``DecompressionLimitError``.
    """
    found = NOTHING
    if header.record_count:
        found = produced_records(
            _with_base_offset_0(data) if header.base_offset else data,
            header,
            config,
            decompressed_bytes_max=decompressed_bytes_max,
        )
    producer = None if header.producer is NO_PRODUCER else header.producer
    return _request(
        found,
        header.base_offset,
        header.leader_epoch,
        producer,
        deadline_ms=deadline_ms,
        gate=gate,
    )


def _with_base_offset_0(data: bytes) -> bytes:
    """Return a batch without its base offset, which is a condition or unused."""
    return bytes(8) + memoryview(data)[8:]


def _request(
    found: Produced,
    base_offset: int,
    leader_epoch: int,
    producer: ProducerStamp | None,
    *,
    deadline_ms: float,
    gate: InOrderGate,
) -> AppendRequest:
    """Return a request with the condition in the header of its batch."""
    has_epoch = leader_epoch >= 1
    if has_epoch and base_offset < -1:
        _refuse(f"the batch has the invalid base offset {base_offset}")
    request = AppendRequest(
        records=found.records,
        epoch=leader_epoch if has_epoch else None,
        required_base_offset=base_offset if has_epoch and base_offset >= 0 else None,
        unchanged=found.unchanged,
        is_atomic=True,
        commit=found.commit,
        take_over_from=found.take_over_from,
        producer=producer,
        deadline_ms=deadline_ms,
        gate=gate,
        future=NOT_AWAITED,
    )
    request.check()
    return request


def _check_frame(data: bytes, byte_count_max: int) -> None:
    """Raise unless this is exactly one complete batch of magic 2, within the size limit."""
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] != BATCH_MAGIC:
        _refuse(f"the batch has magic {data[MAGIC_POSITION]}, but only {BATCH_MAGIC} is supported")
    if len(data) < BATCH_HEADER_BYTES:
        raise CorruptBatchError(reason=f"{len(data)} bytes are less than a batch header")
    byte_count = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD_BYTES
    if byte_count < BATCH_HEADER_BYTES or byte_count > len(data):
        raise CorruptBatchError(
            reason=f"its length is {byte_count}, but {len(data)} bytes were received"
        )
    if byte_count < len(data):
        _refuse("a request has exactly one record batch per partition")
    if byte_count > byte_count_max:
        raise RecordBatchTooLargeError(byte_count=byte_count, byte_count_max=byte_count_max)


def _header_problem(
    attributes: int, last_offset_delta: int, record_count: int, byte_count: int
) -> str | None:
    """Return why a header whose CRC matches is invalid; None if it is valid."""
    if attributes & COMPRESSION_BITS > Compression.ZSTD:
        return f"compression codec {attributes & COMPRESSION_BITS} is not supported"
    if attributes & CONTROL_BIT:
        return "clients may not write control records"
    if attributes & TRANSACTIONAL_BIT:
        return "transactions are not supported"
    if attributes & (TIMESTAMP_TYPE_BIT | DELETE_HORIZON_BIT):
        return "the batch has a delete horizon, or a timestamp type other than CreateTime"
    if record_count < 0 or (record_count > 0 and last_offset_delta != record_count - 1):
        return (
            f"the batch header has record count {record_count} and last offset delta "
            f"{last_offset_delta}, which contradict each other"
        )
    if record_count == 0 and byte_count != BATCH_HEADER_BYTES:
        return "the batch header has record count 0, but bytes follow the header"
    if record_count > PRODUCED_RECORDS_MAX:
        return f"the batch has {record_count} records, and the maximum is {PRODUCED_RECORDS_MAX}"
    return None


def _refuse(reason: str) -> NoReturn:
    raise InvalidAppendError(reason=reason)


# --- records --------------------------------------------------------------------------------------


def produced_records(
    data: bytes,
    header: ProducedHeader,
    config: LogConfig,
    *,
    decompressed_bytes_max: int | None = None,
) -> Produced:
    """Return the validated records of a batch with base offset 0.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError``, ``CorruptBatchError`` for a wrong
    CRC and, if the records exceed ``decompressed_bytes_max`` but not the limit of the log,
    ``DecompressionLimitError``.
    """
    log_limit = config.batch_bytes_max
    if config.compression is not Compression.NONE:
        log_limit = RAW_BATCH_BYTES_MAX
    limit = log_limit
    if decompressed_bytes_max is not None:
        limit = min(log_limit, decompressed_bytes_max)
    sealed = None if config.values is ValueKind.KRAFT else _sealed(data, header, config, limit)
    if sealed is not None and config.values is ValueKind.BYTES:
        return sealed
    batch = read_batch(data)
    assert isinstance(batch, RecordBatch), "validated by read_header"
    try:
        is_large = decompressed_bytes_max is None or header.record_count >= _PACKED_FROM
        found = None
        if is_large and config.values is not ValueKind.KRAFT:
            found = _packed(batch, data, config.values, limit)
        if found is None:
            if header.record_count > PRODUCED_OBJECTS_MAX:
                _refuse(
                    f"more than {PRODUCED_OBJECTS_MAX} records require a timestamp in every record"
                )
            found = _one_by_one(batch, config.values, limit)
        elif decompressed_bytes_max is None and sealed is None:
            found = _encoded(found, config)
    except DecompressionLimitError:
        if limit < log_limit:
            raise
        raise RecordBatchTooLargeError(byte_count=limit + 1, byte_count_max=limit) from None
    except CorruptBatchError as error:
        _refuse(f"the records cannot be decoded: {error.reason}")
    return found if sealed is None else sealed


def _sealed(data: bytes, header: ProducedHeader, config: LogConfig, limit: int) -> Produced | None:
    """Return the batch if it may be appended unchanged; None if its records must be decoded, even
    if only to find an error."""
    if header.compression is not config.compression or header.base_timestamp_ms < 0:
        return None
    summary = summarize_records(data, HEADER_PREFIX_BYTES, decompressed_bytes_max=limit)
    if summary is None:
        return None
    if summary.earliest_ms < 0 or summary.latest_ms != header.max_timestamp_ms:
        return None
    if not is_read_by_kafka(memoryview(data)[BATCH_HEADER_BYTES:], header.compression):
        return None
    commit = None
    if summary.has_text:
        commit = _name(data, header.compression) if config.values is ValueKind.BYTES else None
        if commit is None:
            return None
    sealed = SealedBatch(
        data, header.record_count, header.max_timestamp_ms, is_named=commit is not None
    )
    return Produced(sealed, commit)


def _name(data: bytes, compression: Compression) -> CommitName | None:
    """Return the commit that is named by the first header of the first of these valid records,
    encoded as by the log. None if anything else may be a header of raftlog, as in compressed
    records.
    """
    prefix_count = data.count(HEADER_PREFIX_BYTES, BATCH_HEADER_BYTES)
    if compression is not Compression.NONE or prefix_count != 1:
        return None
    headers = read_record(data, BATCH_HEADER_BYTES)[0].headers
    if not headers or headers[0].key != COMMIT_HEADER:
        return None
    commit = parse_commit_header(headers[0].value)
    return commit if commit is not None and commit_header(commit) == headers[0] else None


# --- columns --------------------------------------------------------------------------------------


def _packed(batch: RecordBatch, data: bytes, values: ValueKind, limit: int) -> Produced | None:
    """Return the records packed as they are; None if some need a timestamp."""
    import pyarrow.compute as pc

    from raftlog.records.scan import Column, scan  # imports numpy and pyarrow

    plain = _plain_batch(batch, data, limit)
    columns = Column.TIMESTAMP | Column.HEADERS
    if values is not ValueKind.BYTES:
        columns |= Column.VALUE
    found = scan(plain, columns=columns)
    if found.error is not None:
        raise found.error
    records = found.records
    assert records.timestamp_ms is not None, "a requested column"
    assert records.headers is not None, "a requested column"
    times_ms = records.timestamp_ms.to_numpy()
    earliest_ms = int(times_ms.min())
    latest_ms = int(times_ms.max())
    base_ms = None if batch.base_timestamp_ms == latest_ms == NO_TIMESTAMP else earliest_ms
    if base_ms == NO_TIMESTAMP or batch.base_timestamp_ms < NO_TIMESTAMP:
        return None
    _check_time(earliest_ms)
    for start in range(0, 0 if records.value is None else batch.record_count, _VALUES_AT_ONCE):
        assert records.value is not None, "a requested column"
        some = records.value[start : start + _VALUES_AT_ONCE].to_pylist()
        new_records(some, values, first_ordinal=start)
    headers = records.headers.flatten().field("key")
    packed = PackedRecords(
        plain[BATCH_HEADER_BYTES:],
        batch.record_count,
        base_timestamp_ms=None if base_ms is None else batch.base_timestamp_ms,
        max_timestamp_ms=latest_ms,
        header_count=len(headers),
    )
    if not len(headers):
        return Produced(packed)
    first = packed[0]
    if pc.any(pc.starts_with(headers[len(first.headers) :], HEADER_PREFIX)).as_py():
        _refuse_others()
    names = _names(first.headers)
    if names != _Names():
        packed = packed.with_first(_without_internal_headers(first))
    return Produced(packed, *names)


def _encoded(produced: Produced, config: LogConfig) -> Produced:
    """Name and compress a large batch on the executor, so that the event loop only writes it."""
    packed = produced.records
    assert isinstance(packed, PackedRecords), "large batches stay packed"
    if produced.commit is not None:
        packed = named_records(packed, produced.commit, config.values)
        assert isinstance(packed, PackedRecords), "named records stay packed"
    if config.compression is not Compression.NONE:
        packed = packed.with_compressed(config.compression)
    return replace(produced, records=packed)


def _plain_batch(batch: RecordBatch, data: bytes, limit: int) -> bytes:
    """Return the batch decompressed."""
    if batch.compression is Compression.NONE:
        return data
    payload = bytes(decompress(batch.payload, batch.compression, byte_count_max=limit))
    return finish_batch(
        payload,
        base_offset=0,
        leader_epoch=0,
        byte_count_max=BATCH_HEADER_BYTES + len(payload),
        compression=Compression.NONE,
        flags=0,
        last_offset_delta=batch.last_offset,
        base_timestamp_ms=batch.base_timestamp_ms,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer=(-1, -1, -1),
        record_count=batch.record_count,
    )


# --- one by one -----------------------------------------------------------------------------------


def _one_by_one(batch: RecordBatch, values: ValueKind, limit: int) -> Produced:
    """Return the records of a batch as objects, without raftlog's headers."""
    found = list(batch.records(decompressed_bytes_max=limit))
    for record in found:
        _check_time(record.timestamp_ms)
    names = _names(found[0].headers)
    _check_others(header.key for record in found[1:] for header in record.headers)
    records = [
        NewRecord(
            record.key,
            record.value,
            None if record.timestamp_ms == NO_TIMESTAMP else record.timestamp_ms,
            record.headers,
        )
        for record in found
    ]
    records[0] = _without_internal_headers(records[0])
    if values is ValueKind.BYTES:
        return Produced(records, *names)
    if values is ValueKind.MSGPACK:
        return Produced(new_records(records, values), *names)
    if names.commit is not None:
        _refuse("in a kraft log a commit is named by its transaction, not by a header")
    if names.unchanged is not None:
        _refuse("records of a kraft log have no keys")
    return _frames(records, names.take_over_from)


def _frames(records: list[NewRecord], take_over_from: str | None) -> Produced:
    """Return the records of a ``kraft`` log, all with the leader's timestamp."""
    has_more = any(record.key is not None or record.headers for record in records)
    if has_more or len({record.timestamp_ms for record in records}) > 1:
        _refuse("records of a kraft log have no keys, no headers and no individual timestamps")
    framed = [b"" if record.value is None else record.value for record in records]
    commit = _commit_of(framed[0])
    if commit is None:
        return Produced(new_records(framed, ValueKind.KRAFT), None, take_over_from)
    if len(framed) < _FRAMED_COMMIT_MIN or marker_of(framed[-1]) is not Marker.END:
        _refuse(
            "a transaction that names a commit must contain records and end at the end of its batch"
        )
    return Produced(new_records(framed[1:-1], ValueKind.KRAFT), commit, take_over_from)


def _commit_of(value: bytes) -> CommitName | None:
    if marker_of(value) is not Marker.BEGIN:
        return None
    return parse_commit_transaction_name(transaction_name(value))


# --- headers and timestamps -----------------------------------------------------------------------


class _Names(NamedTuple):
    """Contents of raftlog's headers in a first record."""

    commit: CommitName | None = None
    take_over_from: str | None = None
    unchanged: UnchangedKeys | None = None


def _names(headers: Sequence[Header]) -> _Names:
    """Return commit, take-over and condition in the headers of the first record."""
    commit: CommitName | None = None
    take_over_from: str | None = None
    unchanged: UnchangedKeys | None = None
    for header in headers:
        if not header.key.startswith(HEADER_PREFIX):
            continue
        if header.key == COMMIT_HEADER and commit is None:
            commit = parse_commit_header(header.value)
            if commit is None:
                _refuse(f"the value of the header {COMMIT_HEADER!r} is not a valid commit name")
        elif header.key == TAKE_OVER_HEADER and take_over_from is None:
            take_over_from = (header.value or b"").decode(errors="replace")
        elif header.key == UNCHANGED_HEADER and unchanged is None:
            unchanged = parse_unchanged_header(header.value)
            if unchanged is None:
                _refuse(f"the value of the header {UNCHANGED_HEADER!r} is not a condition on keys")
        else:
            _refuse(f"the header {header.key!r} is unknown or repeated")
    return _Names(commit, take_over_from, unchanged)


def _without_internal_headers(record: NewRecord) -> NewRecord:
    kept = tuple(one for one in record.headers if not one.key.startswith(HEADER_PREFIX))
    if len(kept) == len(record.headers):
        return record
    return NewRecord(record.key, record.value, record.timestamp_ms, kept)


def _check_others(names: Iterable[str]) -> None:
    if any(name.startswith(HEADER_PREFIX) for name in names):
        _refuse_others()


def _refuse_others() -> NoReturn:
    _refuse(f"only the first record may have headers that begin with {HEADER_PREFIX!r}")


def _check_time(time_ms: int) -> None:
    if time_ms < NO_TIMESTAMP:
        _refuse("the timestamp of a record is before 1970")
