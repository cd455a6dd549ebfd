"""What the loader is fed: records of a log, as bytes or already decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.errors import CorruptBatchError, MetadataParseError, ReplayError
from raftlog.records import RecordBatch, decode_control
from raftlog.records.control import ControlRecord

from .records import RECORD_TYPES, DecodedRecord, MetadataRecord, UnknownRecord

Payload: TypeAlias = bytes | DecodedRecord | ControlRecord | None
"""A value's bytes, what they decode to, or a control record; None (no value) is damage."""

Decode: TypeAlias = Callable[[bytes], DecodedRecord]

JSON_TYPES: Final = {kind: kind.schema.json_type for kind in RECORD_TYPES}
"""``TopicRecord`` -> ``TOPIC_RECORD``, worked out once."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a log or of a checkpoint (where its offset means nothing)."""

    offset: int
    leader_epoch: int
    timestamp_ms: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class SkippedRecords:
    """Records of one kind that could not be understood: this program is older than the log.

    ``type_id`` is an api key, or the number of a control record's type (then ``version`` is 0).
    Both offsets are inclusive.
    """

    is_control: bool
    type_id: int
    version: int
    record_count: int
    first_offset: int
    last_offset: int


def batch_records(batch: RecordBatch) -> Iterator[LogRecord]:
    """The records of a batch that was read, control records decoded.

    Raises ``CorruptBatchError`` with path, position and offset where a record is damaged.
    """
    for record in batch.records():
        payload: Payload = record.value
        if batch.is_control:
            try:
                payload = decode_control(record.key, record.value)
            except CorruptBatchError as error:
                raise CorruptBatchError(
                    path=batch.path,
                    position=batch.position,
                    offset=record.offset,
                    reason=error.reason,
                ) from None
        yield LogRecord(record.offset, batch.leader_epoch, record.timestamp_ms, payload)


def metadata_record(
    payload: bytes | DecodedRecord | None, offset: int, decode: Decode
) -> MetadataRecord | UnknownRecord:
    """What a payload says. Raises ``ReplayError`` where its bytes say nothing."""
    if isinstance(payload, DecodedRecord):
        return payload.record
    if payload is None:
        raise ReplayError(offset=offset, record="a record", reason="it has no value")
    try:
        return decode(payload).record
    except MetadataParseError as error:
        reason = f"version {error.version} is damaged at byte {error.position}: {error.reason}"
        raise ReplayError(offset=offset, record=error.record, reason=reason) from error
