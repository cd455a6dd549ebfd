"""Input of the loader: records of a log, as bytes or decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.errors import CorruptBatchError
from raftlog.records import RecordBatch, decode_control
from raftlog.records.control import ControlRecord
from raftlog_state.errors import MetadataParseError, ReplayError
from raftlog_state.records import RECORD_TYPES, DecodedRecord, MetadataRecord, UnknownRecord

Payload: TypeAlias = bytes | DecodedRecord | ControlRecord | None
"""Value bytes, a decoded metadata record or a control record; None (no value) is an error."""

Decode: TypeAlias = Callable[[bytes], DecodedRecord]

JSON_TYPES: Final = {kind: kind.schema.json_type for kind in RECORD_TYPES}
"""``TopicRecord`` -> ``TOPIC_RECORD``."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """Record of a log, or of a snapshot, where its offset has no meaning."""

    offset: int
    leader_epoch: int
    timestamp_ms: int
    payload: Payload


@dataclass(frozen=True, slots=True)
class SkippedRecords:
    """Records of one type and version that this release does not support.

    ``type_id`` is an api key, or the type of a control record (then ``version`` is 0). Both
    offsets are inclusive.
    """

    is_control: bool
    type_id: int
    version: int
    record_count: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        what = "control records" if self.is_control else "records"
        return (
            f"{self.record_count} {what} of type {self.type_id} version {self.version} (offsets "
            f"{self.first_offset} to {self.last_offset})"
        )


def batch_records(batch: RecordBatch) -> Iterator[LogRecord]:
    """Yield the records of a batch, control records decoded.

    Raises ``CorruptBatchError`` with path, position and offset if a record is damaged.
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
    """Decode a payload. Raises ``ReplayError`` if it has no value or its bytes are damaged."""
    if isinstance(payload, DecodedRecord):
        return payload.record
    if payload is None:
        raise ReplayError(offset=offset, record="a record", reason="it has no value")
    try:
        return decode(payload).record
    except MetadataParseError as error:
        what = "it" if error.version is None else f"version {error.version}"
        reason = f"{what} is damaged at byte {error.position}: {error.reason}"
        raise ReplayError(offset=offset, record=error.record, reason=reason) from error
