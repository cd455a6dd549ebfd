"""What the log must know of a batch: the facts of its header, and the few that lie in its records.

Rules of this file:

1. Of the usual batch only the first record's first headers are looked at, for the name of its
   commit, and no more of it is decompressed. In a ``kraft`` log whose bytes may hold a marker the
   values of all records are looked at, one after the other. Only control batches are decoded.
2. What strangers wrote is data. A name of a commit that is not exactly as ours is no name, and
   records that do not decode hold none; neither is an error here. A control record that does not
   parse is damage, as for every reader: ``CorruptBatchError``. A limit that ends the search before
   the name is neither: ``DecompressionLimitError``.
3. A commit is named by (application id, query id, version): in a header of the first record as
   MessagePack ``[application id, query id, version]``, or in a ``kraft`` log as the name of a
   transaction, the same as JSON, whose Begin is the batch's first record and whose End is its last.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgpack

from raftlog.errors import CorruptBatchError, DecompressionLimitError, OptionError
from raftlog.limits import COMMIT_ID_BYTES_MAX, KIB
from raftlog.log.marker_values import FRAME_VERSION, marker_of, transaction_name
from raftlog.log.transactions import Marker
from raftlog.records.batch import Header, RecordBatch
from raftlog.records.compression import Compression
from raftlog.records.control import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    decode_control,
)
from raftlog.records.forward import contains_any, first_record_headers, iter_value_starts

COMMIT_HEADER: Final = "raftlog.commit"
VERSION_MAX: Final = 2**63 - 1
_HEADER_BYTES_MAX: Final = 2 * (COMMIT_ID_BYTES_MAX + 3) + 10
_HEADERS_READ_MAX: Final = 16
"""Headers of a first record that are looked at: a log writes the name in front of a user's."""
_MARKER_BYTES_MAX: Final = 64 * KIB
"""Bytes of a marker that are looked at: a longer name is not that of a commit."""
_MARKER_STARTS: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)


class ValueKind(enum.StrEnum):
    """What the values of a log are; declared when it is made."""

    BYTES = "bytes"
    MSGPACK = "msgpack"
    KRAFT = "kraft"


@dataclass(frozen=True, slots=True)
class CommitName:
    """Who commits what: the versions of one query under one application id rise.

    Raises ``OptionError`` for an id that is empty or longer than 256 bytes of UTF-8, and for a
    version that is negative or above 64 bits.
    """

    application_id: str
    query_id: str
    version: int

    def __post_init__(self) -> None:
        for option, text in (
            ("application id", self.application_id),
            ("query id", self.query_id),
        ):
            try:
                byte_count = len(text.encode())
            except UnicodeEncodeError:
                raise OptionError(
                    option=option, reason="it is no text: it holds half a letter"
                ) from None
            if not 0 < byte_count <= COMMIT_ID_BYTES_MAX:
                reason = f"it has {byte_count} bytes; 1 to {COMMIT_ID_BYTES_MAX} are allowed"
                raise OptionError(option=option, reason=reason)
        if not 0 <= self.version <= VERSION_MAX:
            raise OptionError(option="version", reason=f"it must be from 0 to {VERSION_MAX}")

    def __str__(self) -> str:
        return f"version {self.version} of query {self.query_id!r} of {self.application_id!r}"


@dataclass(frozen=True, slots=True)
class MetadataMarker:
    """A record that begins, ends or aborts a metadata transaction. ``name``: of a Begin."""

    offset: int
    marker: Marker
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerMarker:
    """A control record that ends the open transaction of its batch's producer."""

    offset: int
    is_commit: bool
    coordinator_epoch: int


TransactionMarker: TypeAlias = MetadataMarker | ProducerMarker


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    """A batch as the log remembers it. Offsets first to last are inclusive; ids are -1 for none."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int
    is_control: bool = False
    is_transactional: bool = False
    compression: Compression = Compression.NONE
    commit: CommitName | None = None
    markers: tuple[TransactionMarker, ...] = ()
    control: tuple[ControlRecord, ...] = ()

    @property
    def next_offset(self) -> int:
        """The offset behind this batch."""
        return self.last_offset + 1


def batch_metadata(batch: RecordBatch, values: ValueKind) -> BatchMetadata:
    """The facts of a batch of a log whose values are ``values``.

    Raises ``CorruptBatchError`` for a control record that does not parse, and
    ``DecompressionLimitError`` for a raw block of snappy that is too large to be looked into.
    """
    commit: CommitName | None = None
    markers: tuple[TransactionMarker, ...] = ()
    control: tuple[ControlRecord, ...] = ()
    if batch.is_control:
        control, markers = _control(batch)
    elif values is ValueKind.KRAFT:
        framing = _metadata_markers(batch)
        markers, commit = framing, _commit_of_transaction(batch, framing)
    else:
        commit = _commit_of_header(batch)
    return BatchMetadata(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        record_count=batch.record_count,
        is_control=batch.is_control,
        is_transactional=batch.is_transactional,
        compression=batch.compression,
        commit=commit,
        markers=markers,
        control=control,
    )


def control_of(metadata: BatchMetadata) -> Iterator[tuple[int, ControlRecord]]:
    """The control records of a batch with their offsets."""
    return enumerate(metadata.control, metadata.base_offset)


# --- the name of a commit, both ways --------------------------------------------------------------


def commit_header(name: CommitName) -> Header:
    """The header that names a commit in the first record of its batch."""
    fields = [name.application_id, name.query_id, name.version]
    packed = msgpack.packb(fields)
    assert isinstance(packed, bytes), "packb gives bytes unless it is told to keep them"
    return Header(COMMIT_HEADER, packed)


def commit_transaction_name(name: CommitName) -> str:
    """What the metadata transaction of a commit calls itself."""
    fields = [name.application_id, name.query_id, name.version]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def parse_commit_header(value: bytes | None) -> CommitName | None:
    """The name in the value of such a header, or None if it is not as ours."""
    if value is None or len(value) > _HEADER_BYTES_MAX:
        return None
    try:
        fields = msgpack.unpackb(
            value,
            max_array_len=3,
            max_str_len=COMMIT_ID_BYTES_MAX,
            max_bin_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    return _commit_name(fields)


def parse_commit_transaction_name(text: str | None) -> CommitName | None:
    """The name of the commit that a metadata transaction's name is, or None."""
    if text is None or not text.startswith("["):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):  # also a number of thousands of digits
        return None
    return _commit_name(fields)


def _commit_name(fields: object) -> CommitName | None:
    match fields:
        case [str(application_id), str(query_id), int(version)] if type(version) is int:
            try:
                return CommitName(application_id, query_id, version)
            except OptionError:
                return None
        case _:
            return None


# --- looking into records -------------------------------------------------------------------------


def _commit_of_header(batch: RecordBatch) -> CommitName | None:
    """The name in the first record: once among its first headers, or it is not of this log."""
    if batch.record_count == 0:
        return None
    try:
        found = first_record_headers(
            batch,
            COMMIT_HEADER,
            header_count_max=_HEADERS_READ_MAX,
            byte_count_max=_HEADER_BYTES_MAX,
        )
    except DecompressionLimitError:
        raise  # a name may be there: a limit is no damage
    except CorruptBatchError:
        return None
    return parse_commit_header(found[0]) if len(found) == 1 else None


def _metadata_markers(batch: RecordBatch) -> tuple[MetadataMarker, ...]:
    """The markers among the records, up to the first record that is damaged."""
    found: list[MetadataMarker] = []
    try:
        if not contains_any(batch, _MARKER_STARTS):  # far cheaper than looking at each record
            return ()
        for delta, value in iter_value_starts(
            batch, _MARKER_STARTS, byte_count_max=_MARKER_BYTES_MAX
        ):
            marker = marker_of(value)
            assert marker is not None, "its value begins as one"
            name = transaction_name(value) if marker is Marker.BEGIN else None
            found.append(MetadataMarker(batch.base_offset + delta, marker, name))
    except DecompressionLimitError:
        raise
    except CorruptBatchError:
        pass  # readers of the records report it
    return tuple(found)


def _commit_of_transaction(
    batch: RecordBatch, markers: tuple[MetadataMarker, ...]
) -> CommitName | None:
    match markers:
        case (
            MetadataMarker(batch.base_offset, Marker.BEGIN, name),
            MetadataMarker(batch.last_offset, Marker.END),
        ):
            return parse_commit_transaction_name(name)
        case _:
            return None


def _control(
    batch: RecordBatch,
) -> tuple[tuple[ControlRecord, ...], tuple[TransactionMarker, ...]]:
    control: list[ControlRecord] = []
    markers: list[TransactionMarker] = []
    for stored in batch.records():
        try:
            record = decode_control(stored.key, stored.value)
        except CorruptBatchError as error:
            raise CorruptBatchError(
                reason=error.reason,
                path=batch.path,
                position=batch.position,
                offset=stored.offset,
            ) from None
        control.append(record)
        if isinstance(record, EndTransactionMarker):
            is_commit = record.control_type is ControlType.COMMIT
            markers.append(ProducerMarker(stored.offset, is_commit, record.coordinator_epoch))
    return tuple(control), tuple(markers)
