"""Metadata of a batch: the fields of its header, and the few that are in its records.

A commit is named by (application id, query id, version): in a header of the batch's first record as
MessagePack ``[application id, query id, version]``; or in a ``kraft`` log as the name of a metadata
transaction, the same as JSON, whose Begin is the batch's first record and whose End is its last.

To find the name, only the first headers of the first record are read, and no more of the batch is
decompressed. In a ``kraft`` log whose bytes may contain a transaction marker, the values of all
records are scanned. Only control batches are decoded.

Records that raftlog did not write are data: a malformed name is no name, and records that do not
decode contain none. Neither is an error. A control record that does not parse is
``CorruptBatchError``, as for every reader; reaching a limit before the name is found is
``DecompressionLimitError``.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgpack

from raftlog.errors import CorruptBatchError, DecompressionLimitError, OptionError
from raftlog.limits import COMMIT_ID_BYTES_MAX, KIB
from raftlog.log.reading.transactions import FRAME_VERSION, Marker, marker_of, transaction_name
from raftlog.records.batch import (
    Header,
    RecordBatch,
    contains_any,
    first_record_headers,
    iter_value_starts,
)
from raftlog.records.builder import EncodedBatch
from raftlog.records.control import (
    ControlRecord,
    ControlType,
    EndTransactionMarker,
    decode_control,
)
from raftlog.records.header import INT64_MAX

COMMIT_HEADER: Final = "raftlog.commit"
TAKE_OVER_HEADER: Final = "raftlog.take-over"
"""Header after a commit's name: the query id that the commit replaces, as UTF-8."""
VERSION_MAX: Final = INT64_MAX
_HEADER_BYTES_MAX: Final = 2 * (COMMIT_ID_BYTES_MAX + 3) + 10
_HEADERS_READ_MAX: Final = 16
"""Headers of a first record that are read: raftlog writes the name before the user's headers."""
_MARKER_BYTES_MAX: Final = 64 * KIB
"""Bytes of a marker that are read: a longer name is not that of a commit."""
_MARKER_STARTS: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)


class ValueKind(enum.StrEnum):
    """The kind of a log's record values; fixed when the log is created."""

    BYTES = "bytes"
    MSGPACK = "msgpack"
    KRAFT = "kraft"


@dataclass(frozen=True, slots=True)
class CommitName:
    """Identity of a commit: the version of a query under an application id.

    Raises ``OptionError`` for an id that is empty or longer than 256 bytes of UTF-8, and for a
    version that is negative or exceeds 64 bits.
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
                    option=option, reason="not valid Unicode: it contains a lone surrogate"
                ) from None
            if not 0 < byte_count <= COMMIT_ID_BYTES_MAX:
                reason = (
                    f"it has {byte_count} bytes of UTF-8, must be from 1 to {COMMIT_ID_BYTES_MAX}"
                )
                raise OptionError(option=option, reason=reason)
        if not 0 <= self.version <= VERSION_MAX:
            raise OptionError(option="version", reason=f"it must be from 0 to {VERSION_MAX}")

    def __str__(self) -> str:
        return f"version {self.version} of query {self.query_id!r} of {self.application_id!r}"


@dataclass(frozen=True, slots=True)
class MetadataMarker:
    """A record that begins, ends or aborts a metadata transaction. Only a Begin has a name."""

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
    """Metadata of one batch. Both offsets are inclusive; ids are -1 if absent."""

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
    commit: CommitName | None = None
    markers: tuple[TransactionMarker, ...] = ()
    control: tuple[ControlRecord, ...] = ()

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.last_offset + 1


def batch_metadata(batch: RecordBatch, values: ValueKind) -> BatchMetadata:
    """Return the metadata of a batch of a log whose values are ``values``.

    Raises ``CorruptBatchError`` for a control record that does not parse, and
    ``DecompressionLimitError`` for a raw snappy block that is too large to decompress.
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
        commit=commit,
        markers=markers,
        control=control,
    )


def encoded_metadata(
    batch: EncodedBatch,
    values: ValueKind,
    *,
    commit: CommitName | None = None,
    markers: Sequence[MetadataMarker] = (),
    control: Sequence[ControlRecord] = (),
) -> BatchMetadata:
    """Return the metadata of a batch that this process has built, without parsing its bytes.

    Equal to ``batch_metadata`` of the bytes. ``markers`` may contain those of other batches. In a
    ``kraft`` log the markers name the commit, and ``commit`` is not used.
    """
    own = tuple(one for one in markers if batch.base_offset <= one.offset <= batch.last_offset)
    if values is ValueKind.KRAFT:
        commit = _commit_of_transaction(batch, own)
    return BatchMetadata(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer_id=batch.producer.producer_id,
        producer_epoch=batch.producer.producer_epoch,
        base_sequence=batch.producer.base_sequence,
        record_count=batch.record_count,
        is_control=batch.is_control,
        is_transactional=batch.producer.is_transactional,
        commit=commit,
        markers=own,
        control=tuple(control),
    )


def control_of(metadata: BatchMetadata) -> Iterator[tuple[int, ControlRecord]]:
    """Return the control records of a batch with their offsets."""
    return enumerate(metadata.control, metadata.base_offset)


# --- encode and parse a commit's name -------------------------------------------------------------


def commit_header(name: CommitName) -> Header:
    """Return the header of the batch's first record that names a commit."""
    fields = [name.application_id, name.query_id, name.version]
    packed = msgpack.packb(fields)
    assert isinstance(packed, bytes), "packb returns bytes unless autoreset is off"
    return Header(COMMIT_HEADER, packed)


def commit_transaction_name(name: CommitName) -> str:
    """Return the name of a commit's metadata transaction."""
    fields = [name.application_id, name.query_id, name.version]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def parse_commit_header(value: bytes | None) -> CommitName | None:
    """Parse the header's value; None if it is not a commit's name."""
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
    """Parse the name of a metadata transaction; None if it is not a commit's name."""
    if text is None or not text.startswith("["):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):  # ValueError also for an integer of too many digits
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


# --- names and markers in records -----------------------------------------------------------------


def _commit_of_header(batch: RecordBatch) -> CommitName | None:
    """Return the name in the first record, if it is there exactly once."""
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
        raise  # not damage: the batch may hold a name
    except CorruptBatchError:
        return None
    return parse_commit_header(found[0]) if len(found) == 1 else None


def _metadata_markers(batch: RecordBatch) -> tuple[MetadataMarker, ...]:
    """Return the markers among the records, up to the first damaged record."""
    found: list[MetadataMarker] = []
    try:
        if not contains_any(batch, _MARKER_STARTS):  # much cheaper than a scan of the records
            return ()
        for delta, value in iter_value_starts(
            batch, _MARKER_STARTS, byte_count_max=_MARKER_BYTES_MAX
        ):
            marker = metadata_marker(batch.base_offset + delta, value)
            assert marker is not None, "the value starts like a marker"
            found.append(marker)
    except DecompressionLimitError:
        raise
    except CorruptBatchError:
        pass  # reported by readers of the records
    return tuple(found)


def _commit_of_transaction(
    batch: RecordBatch | EncodedBatch, markers: Sequence[TransactionMarker]
) -> CommitName | None:
    match markers:
        case (
            MetadataMarker(batch.base_offset, Marker.BEGIN, name),
            MetadataMarker(batch.last_offset, Marker.END),
        ):
            return parse_commit_transaction_name(name)
        case _:
            return None


def metadata_marker(offset: int, value: bytes | None) -> MetadataMarker | None:
    """Return the transaction marker that a record's value is; None for another record."""
    marker = marker_of(value)
    if marker is None or value is None:
        return None
    name = transaction_name(value[:_MARKER_BYTES_MAX]) if marker is Marker.BEGIN else None
    return MetadataMarker(offset, marker, name)


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
