"""Validation of the records of a produced batch, and their conversion for the log.

1. Records are decompressed within a limit. Valid records stay packed, so that a batch of a hundred
   thousand records needs no object for each.
2. The first record may name the batch's commit in its header ``raftlog.commit``, and the query that
   it takes over from in ``raftlog.take-over``; in a ``kraft`` log the transaction markers in the
   batch name the commit. Other headers must not begin with ``raftlog.``.
3. A record keeps its timestamp; a record without one (-1) gets the leader's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from raftlog.append.append_batch import named_records
from raftlog.append.user_records import HEADER_PREFIX, new_records
from raftlog.errors import (
    CorruptBatchError,
    DecompressionLimitError,
    InvalidAppendError,
    RecordBatchTooLargeError,
)
from raftlog.limits import BATCH_HEADER_BYTES, PRODUCED_OBJECTS_MAX, RAW_BATCH_BYTES_MAX
from raftlog.log.reading.transactions import Marker, marker_of, transaction_name
from raftlog.log.writing.batch_metadata import (
    COMMIT_HEADER,
    CommitName,
    ValueKind,
    parse_commit_header,
    parse_commit_transaction_name,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.builder import finish_batch
from raftlog.records.compression import Compression, decompress
from raftlog.records.encoding import PackedRecords, RecordToAppend
from raftlog.records.record import Header, NewRecord

TAKE_OVER_HEADER: Final = "raftlog.take-over"
NO_TIMESTAMP: Final = -1
_PACKED_FROM: Final = 64
"""Below this number of records a small batch is decoded record by record: columns have a higher
fixed cost."""
_VALUES_AT_ONCE: Final = 8192
_FRAMED_COMMIT_MIN: Final = 3
"""Begin marker, a record, end marker."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Records of a batch, without the headers or markers that name their commit, and the commit."""

    records: Sequence[RecordToAppend]
    commit: CommitName | None = None
    take_over_from: str | None = None


NOTHING: Final = Produced(())


def produced_records(
    data: bytes, record_count: int, config: LogConfig, *, decompressed_bytes_max: int | None = None
) -> Produced:
    """Return the validated records of a batch with base offset 0.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, if they exceed
    ``decompressed_bytes_max`` but not the limit of the log, ``DecompressionLimitError``.
    """
    log_limit = config.batch_bytes_max
    if config.compression is not Compression.NONE:
        log_limit = RAW_BATCH_BYTES_MAX
    limit = log_limit
    if decompressed_bytes_max is not None:
        limit = min(log_limit, decompressed_bytes_max)
    batch = read_batch(data)
    assert isinstance(batch, RecordBatch), "validated by read_header"
    try:
        is_large = decompressed_bytes_max is None or record_count >= _PACKED_FROM
        if is_large and config.values is not ValueKind.KRAFT:
            found = _packed(batch, data, config.values, limit)
            if found is not None:
                return _encoded(found, config) if decompressed_bytes_max is None else found
        if record_count > PRODUCED_OBJECTS_MAX:
            _refuse(f"more than {PRODUCED_OBJECTS_MAX} records require a timestamp in every record")
        return _one_by_one(batch, config.values, limit)
    except DecompressionLimitError:
        if limit < log_limit:
            raise
        raise RecordBatchTooLargeError(byte_count=limit + 1, byte_count_max=limit) from None
    except CorruptBatchError as error:
        _refuse(f"the records cannot be decoded: {error.reason}")


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
    names = records.headers.flatten().field("key")
    packed = PackedRecords(
        plain[BATCH_HEADER_BYTES:],
        batch.record_count,
        base_timestamp_ms=None if base_ms is None else batch.base_timestamp_ms,
        max_timestamp_ms=latest_ms,
        header_count=len(names),
    )
    if not len(names):
        return Produced(packed)
    first = packed[0]
    if pc.any(pc.starts_with(names[len(first.headers) :], HEADER_PREFIX)).as_py():
        _refuse_others()
    commit, take_over_from = _names(first.headers)
    if commit is not None or take_over_from is not None:
        packed = packed.with_first(_without_internal_headers(first))
    return Produced(packed, commit, take_over_from)


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
    found = list(batch.records(decompressed_bytes_max=limit))
    for record in found:
        _check_time(record.timestamp_ms)
    commit, take_over_from = _names(found[0].headers)
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
        return Produced(records, commit, take_over_from)
    if values is ValueKind.MSGPACK:
        return Produced(new_records(records, values), commit, take_over_from)
    if commit is not None:
        _refuse("in a kraft log a commit is named by its transaction, not by a header")
    return _frames(records, take_over_from)


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


def _names(headers: Sequence[Header]) -> tuple[CommitName | None, str | None]:
    """Return the commit and the take-over in the headers of the first record."""
    commit: CommitName | None = None
    take_over_from: str | None = None
    for header in headers:
        if not header.key.startswith(HEADER_PREFIX):
            continue
        if header.key == COMMIT_HEADER and commit is None:
            commit = parse_commit_header(header.value)
            if commit is None:
                _refuse(f"the value of the header {COMMIT_HEADER!r} is not a valid commit name")
        elif header.key == TAKE_OVER_HEADER and take_over_from is None:
            take_over_from = (header.value or b"").decode(errors="replace")
        else:
            _refuse(f"the header {header.key!r} is unknown or repeated")
    return commit, take_over_from


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


def _refuse(reason: str) -> NoReturn:
    raise InvalidAppendError(reason=reason)
