"""The records of a batch that a producer sent, as the log takes them.

Rules of this file:

1. Decompressed within a limit, then looked at; records that are all right as they are stay packed,
   so that a batch of a hundred thousand costs its leader no object for each.
2. The first record may name the batch's commit in the header ``raftlog.commit``, and in
   ``raftlog.take-over`` the query that it takes over from; in a ``kraft`` log the batch's own
   markers name it. No other header may begin as ours do.
3. A record keeps its own time; one that has none (-1) gets the log's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from raftlog.client.append_batch import named_records
from raftlog.client.user_records import HEADER_PREFIX, new_records
from raftlog.errors import (
    CorruptBatchError,
    DecompressionLimitError,
    InvalidAppendError,
    RecordBatchTooLargeError,
)
from raftlog.limits import BATCH_HEADER_BYTES, PRODUCED_OBJECTS_MAX, RAW_BATCH_BYTES_MAX
from raftlog.log.marker_values import marker_of, transaction_name
from raftlog.log.transactions import Marker
from raftlog.log.writing.batch_metadata import (
    COMMIT_HEADER,
    CommitName,
    ValueKind,
    parse_commit_header,
    parse_commit_transaction_name,
)
from raftlog.log.writing.properties import LogConfig
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.compression import Compression, decompress
from raftlog.records.encoding import RecordToAppend
from raftlog.records.new_batch import finish_batch
from raftlog.records.packed import PackedRecords
from raftlog.records.record import Header, NewRecord

TAKE_OVER_HEADER: Final = "raftlog.take-over"
NO_TIMESTAMP: Final = -1
_PACKED_FROM: Final = 64
"""Fewer records of a small batch are decoded one by one: columns cost more to begin with."""
_VALUES_AT_ONCE: Final = 8192
_FRAMED_COMMIT_MIN: Final = 3
"""Begin, a record, end."""


@dataclass(frozen=True, slots=True)
class Produced:
    """Records without what names their commit, and that."""

    records: Sequence[RecordToAppend]
    commit: CommitName | None = None
    take_over_from: str | None = None


NOTHING: Final = Produced(())


def produced_records(
    data: bytes, record_count: int, config: LogConfig, *, decompressed_bytes_max: int | None = None
) -> Produced:
    """The records of a sound batch at offset 0, for a log that is configured so.

    Raises ``InvalidAppendError``, ``RecordBatchTooLargeError`` and, if they are more bytes than
    ``decompressed_bytes_max`` though the log might take them, ``DecompressionLimitError``.
    """
    log_limit = config.batch_bytes_max
    if config.compression is not Compression.NONE:
        log_limit = RAW_BATCH_BYTES_MAX
    limit = log_limit
    if decompressed_bytes_max is not None:
        limit = min(log_limit, decompressed_bytes_max)
    batch = read_batch(data)
    assert isinstance(batch, RecordBatch), "it was looked at"
    try:
        is_large = decompressed_bytes_max is None or record_count >= _PACKED_FROM
        if is_large and config.values is not ValueKind.KRAFT:
            found = _packed(batch, data, config.values, limit)
            if found is not None:
                return _encoded(found, config) if decompressed_bytes_max is None else found
        if record_count > PRODUCED_OBJECTS_MAX:
            _refuse(f"more than {PRODUCED_OBJECTS_MAX} records are taken only if all have a time")
        return _one_by_one(batch, config.values, limit)
    except DecompressionLimitError:
        if limit < log_limit:
            raise
        raise RecordBatchTooLargeError(byte_count=limit + 1, byte_count_max=limit) from None
    except CorruptBatchError as error:
        _refuse(f"its records cannot be read: {error.reason}")


# --- many -----------------------------------------------------------------------------------------


def _packed(batch: RecordBatch, data: bytes, values: ValueKind, limit: int) -> Produced | None:
    """The records as they lie there; None if some have no time, and must be given one."""
    import pyarrow.compute as pc

    from raftlog.records.scan import Column, scan  # with what it needs for columns

    plain = _plain_batch(batch, data, limit)
    columns = Column.TIMESTAMP | Column.HEADERS
    if values is not ValueKind.BYTES:
        columns |= Column.VALUE
    found = scan(plain, columns=columns)
    if found.error is not None:
        raise found.error
    records = found.records
    assert records.timestamp_ms is not None, "it was asked for"
    assert records.headers is not None, "it was asked for"
    times_ms = records.timestamp_ms.to_numpy()
    earliest_ms = int(times_ms.min())
    latest_ms = int(times_ms.max())
    base_ms = None if batch.base_timestamp_ms == latest_ms == NO_TIMESTAMP else earliest_ms
    if base_ms == NO_TIMESTAMP or batch.base_timestamp_ms < NO_TIMESTAMP:
        return None
    _check_time(earliest_ms)
    for start in range(0, 0 if records.value is None else batch.record_count, _VALUES_AT_ONCE):
        assert records.value is not None, "it was asked for"
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
    """Name and compress a large batch here, so that the leader's loop has only to write it."""
    packed = produced.records
    assert isinstance(packed, PackedRecords), "large batches stay packed"
    if produced.commit is not None:
        packed = named_records(packed, produced.commit, config.values)
        assert isinstance(packed, PackedRecords), "a name leaves them so"
    if config.compression is not Compression.NONE:
        packed = packed.with_compressed(config.compression)
    return replace(produced, records=packed)


def _plain_batch(batch: RecordBatch, data: bytes, limit: int) -> bytes:
    """The same batch without a codec."""
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
        _refuse("a kraft log names a commit in the transaction that holds it")
    return _frames(records, take_over_from)


def _frames(records: list[NewRecord], take_over_from: str | None) -> Produced:
    """Values of a ``kraft`` log: one time for all of them, which is the leader's."""
    has_more = any(record.key is not None or record.headers for record in records)
    if has_more or len({record.timestamp_ms for record in records}) > 1:
        _refuse("a kraft log takes no key, no header and no time of a record's own")
    framed = [b"" if record.value is None else record.value for record in records]
    commit = _commit_of(framed[0])
    if commit is None:
        return Produced(new_records(framed, ValueKind.KRAFT), None, take_over_from)
    if len(framed) < _FRAMED_COMMIT_MIN or marker_of(framed[-1]) is not Marker.END:
        _refuse("the transaction that names a commit holds records, and ends with its batch")
    return Produced(new_records(framed[1:-1], ValueKind.KRAFT), commit, take_over_from)


def _commit_of(value: bytes) -> CommitName | None:
    if marker_of(value) is not Marker.BEGIN:
        return None
    return parse_commit_transaction_name(transaction_name(value))


# --- what stands beside values --------------------------------------------------------------------


def _names(headers: Sequence[Header]) -> tuple[CommitName | None, str | None]:
    """The commit and the take-over that a first record names."""
    commit: CommitName | None = None
    take_over_from: str | None = None
    for header in headers:
        if not header.key.startswith(HEADER_PREFIX):
            continue
        if header.key == COMMIT_HEADER and commit is None:
            commit = parse_commit_header(header.value)
            if commit is None:
                _refuse(f"its header {COMMIT_HEADER!r} is no name of a commit")
        elif header.key == TAKE_OVER_HEADER and take_over_from is None:
            take_over_from = (header.value or b"").decode(errors="replace")
        else:
            _refuse(f"its header {header.key!r} is not known, or stands there twice")
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
    _refuse(f"only its first record has headers that begin with {HEADER_PREFIX!r}")


def _check_time(time_ms: int) -> None:
    if time_ms < NO_TIMESTAMP:
        _refuse("a record's time lies before 1970")


def _refuse(reason: str) -> NoReturn:
    raise InvalidAppendError(reason=reason)
