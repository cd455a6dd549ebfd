"""Transactions of a log, their offsets and outcomes; and the metadata of its batches.

- In a metadata log (KIP-868) the records Begin, End and Abort delimit one transaction at a time. A
  transaction's records become visible at its End.
- In an ordinary partition (KIP-98) a batch has a producer id and a transactional flag. A control
  batch ends its producer's open transaction. Many producers may have one open at a time.

      offset      0     1     2     3      4      5      6
      partition   p1    p2    p1    p2 C   p1     p1 A   p2         C commit, A abort
      spans       p2 [1, 3] committed, p1 [0, 5] aborted, p2 [6, ... open; last stable offset 6

A Begin inside a transaction, and an End or Abort outside of one, are stored as ``problems`` and
have no other effect. Only reads of committed records raise them. If the first records of a log were
deleted, an End before any other marker is valid.

Kafka: ``MetadataBatchLoader``, ``ProducerStateManager``, ``TransactionIndex``. This module does no
I/O: markers and headers are added in log order.
"""

from __future__ import annotations

import enum
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import msgpack

from raftlog import compiled
from raftlog.errors import (
    CorruptBatchError,
    DecompressionLimitError,
    OptionError,
    TransactionMarkerError,
)
from raftlog.fast_dataclass import fast_init
from raftlog.limits import COMMIT_ID_BYTES_MAX, INT64_MAX, KIB
from raftlog.printable import compact_json
from raftlog.records.batch import (
    Compression,
    Header,
    RecordBatch,
    contains_any,
    first_record_headers,
    iter_value_starts,
)
from raftlog.records.builder import EncodedBatch
from raftlog.records.control import ControlRecord, ControlType, EndTransactionMarker, decode_control
from raftlog.records.fields import FieldReader, TaggedField, string_bytes, tagged_bytes

METADATA_PRODUCER_ID: Final = -1
"""Producer id of the metadata log's transactions."""


class Outcome(enum.Enum):
    """Outcome of a transaction, as far as the log was read."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"


class Marker(enum.IntEnum):
    """The three metadata records that delimit a transaction, by api key."""

    BEGIN = 23
    END = 24
    ABORT = 25


@dataclass(frozen=True, slots=True)
class TransactionSpan:
    """Offsets of one transaction.

    ``first_offset`` and ``marker_offset`` are inclusive. ``marker_offset`` is the offset of the
    record that ended it, or None while it is open. In a metadata log all records between the two
    belong to it, ``producer_id`` is -1, and ``name`` is from its Begin record. In an ordinary
    partition only the transactional batches of ``producer_id`` belong to it.
    """

    first_offset: int
    marker_offset: int | None
    outcome: Outcome
    producer_id: int = METADATA_PRODUCER_ID
    name: str | None = None

    def touches(self, start_offset: int, end_offset: int) -> bool:
        """Return whether an offset in [start_offset, end_offset) may belong to it."""
        return self.first_offset < end_offset and not self.ended_before(start_offset)

    def ended_before(self, offset: int) -> bool:
        """Return whether its marker is below ``offset``."""
        return self.marker_offset is not None and self.marker_offset < offset


@dataclass(frozen=True, slots=True)
class _RetainedSpan:
    """Span, and base offset of the batch with its first record, where a micro-batch may end."""

    span: TransactionSpan
    batch_base_offset: int


class TransactionIndex:
    """Open transactions of a log, and its latest ended ones.

    All transactions with a marker at or after ``complete_from`` are known. Beyond ``retained_max``
    the oldest ended ones are dropped. With ``retains_committed`` false, committed transactions of
    producers are dropped when they end, and ``last_stable_offset`` for earlier ends is undefined.
    """

    def __init__(
        self,
        path: str,
        *,
        complete_from: int,
        retained_max: int | None,
        retains_committed: bool = True,
    ) -> None:
        self.path = path
        self.complete_from = complete_from
        self.problems: list[TransactionMarkerError] = []
        self._retained_max = retained_max
        self._retains_committed = retains_committed
        self._open: dict[int, _RetainedSpan] = {}
        self._ended: deque[_RetainedSpan] = deque()
        self._may_be_open_until_marker = False

    def assume_open_transaction_at(self, start_offset: int) -> None:
        """Note that a metadata transaction may be open at the log's start offset."""
        self.complete_from = start_offset
        self._may_be_open_until_marker = True

    def copy(self) -> TransactionIndex:
        """Return an independent copy."""
        copied = TransactionIndex(
            self.path,
            complete_from=self.complete_from,
            retained_max=self._retained_max,
            retains_committed=self._retains_committed,
        )
        copied.problems = self.problems.copy()
        copied._open = self._open.copy()
        copied._ended = self._ended.copy()
        copied._may_be_open_until_marker = self._may_be_open_until_marker
        return copied

    # --- batches and markers ----------------------------------------------------------------------

    def open_transaction(self, producer_id: int, *, first_offset: int) -> None:
        """Open the transaction of a transactional batch, unless its producer has one open."""
        if producer_id not in self._open:
            span = TransactionSpan(first_offset, None, Outcome.OPEN, producer_id)
            self._open[producer_id] = _RetainedSpan(span, first_offset)

    def end_transaction(self, producer_id: int, *, marker_offset: int, commit: bool) -> None:
        """Add a control batch. It is ignored if the producer has no open transaction here.

        This is common: the transaction then had records only in other partitions.
        """
        kept = self._open.pop(producer_id, None)
        if kept is not None and (self._retains_committed or not commit):
            outcome = Outcome.COMMITTED if commit else Outcome.ABORTED
            self._end(kept, marker_offset, outcome)

    def metadata_marker(
        self, marker: Marker, offset: int, *, batch_base_offset: int, name: str | None = None
    ) -> None:
        """Add a Begin, End or Abort of a metadata log."""
        may_be_open = self._may_be_open_until_marker
        self._may_be_open_until_marker = False
        is_open = METADATA_PRODUCER_ID in self._open
        if marker is Marker.BEGIN:
            if is_open:
                self._problem(offset, "a transaction begins inside another one")
                return
            span = TransactionSpan(offset, None, Outcome.OPEN, METADATA_PRODUCER_ID, name)
            self._open[METADATA_PRODUCER_ID] = _RetainedSpan(span, batch_base_offset)
            return
        outcome = Outcome.COMMITTED if marker is Marker.END else Outcome.ABORTED
        if is_open:
            self._end(self._open.pop(METADATA_PRODUCER_ID), offset, outcome)
        elif may_be_open:
            start = self.complete_from
            span = TransactionSpan(start, None, Outcome.OPEN, METADATA_PRODUCER_ID)
            self._end(_RetainedSpan(span, start), offset, outcome)
        else:
            self._problem(offset, f"a transaction ends ({marker.name}) where none is open")

    # --- queries ----------------------------------------------------------------------------------

    def open_now(self) -> tuple[tuple[TransactionSpan, int], ...]:
        """Return the open transactions, each with the base offset of its first batch."""
        return tuple((kept.span, kept.batch_base_offset) for kept in self._open.values())

    def opened_before(self, offset: int) -> bool:
        """Return whether a transaction that began below ``offset`` is still open."""
        return any(kept.span.first_offset < offset for kept in self._open.values())

    def spans(
        self, start_offset: int, end_offset: int, *, with_committed: bool
    ) -> tuple[TransactionSpan, ...]:
        """Return the transactions that touch [start_offset, end_offset), by first offset.

        The result is complete if ``start_offset`` is not below ``complete_from``. A transaction
        with a marker at or after ``end_offset`` has its outcome if that marker was read.
        """
        found = [
            kept.span
            for kept in self._all_from(start_offset)
            if kept.span.first_offset < end_offset
            and (with_committed or kept.span.outcome is not Outcome.COMMITTED)
        ]
        return tuple(sorted(found, key=lambda span: (span.first_offset, span.producer_id)))

    def last_stable_offset(self, end_offset: int) -> int:
        """Return the last stable offset of a log that ends at ``end_offset`` (exclusive).

        No record below it belongs to a transaction without a marker below ``end_offset``. In a
        metadata log it is a batch boundary outside every transaction. Since one batch may contain
        the end of a transaction and the start of the next, finding it may take several steps back.
        """
        stable = end_offset
        while True:
            undecided = self._undecided(stable)
            lowest = min((kept.batch_base_offset for kept in undecided), default=stable)
            if lowest >= stable:
                return stable
            stable = lowest
            if any(kept.span.producer_id != METADATA_PRODUCER_ID for kept in undecided):
                return stable

    def first_problem(self, start_offset: int, end_offset: int) -> TransactionMarkerError | None:
        """Return the first contradiction in [start_offset, end_offset)."""
        inside = (error for error in self.problems if start_offset <= error.offset < end_offset)
        return next(inside, None)

    def retain_all(self, *, with_committed: bool) -> None:
        """From now on, drop ended transactions only in ``drop_ended_before``."""
        self._retained_max = None
        self._retains_committed = with_committed

    def drop_ended_before(self, offset: int) -> None:
        """Drop the transactions that ended before ``offset``. A transaction that may be open since
        before the log's start cannot be open below ``offset`` then."""
        while self._ended and self._ended[0].span.ended_before(offset):
            self._ended.popleft()
        self.complete_from = max(self.complete_from, offset)

    def drain_ended(self) -> list[TransactionSpan]:
        """Return the ended transactions in the order of their markers, and drop them."""
        ended = [kept.span for kept in self._ended]
        self._ended.clear()
        return ended

    def _undecided(self, end_offset: int) -> list[_RetainedSpan]:
        """Return the transactions that began below ``end_offset`` and did not end below it.

        Markers ascend, so only the latest ended transactions are examined.
        """
        return [kept for kept in self._all_from(end_offset) if kept.span.first_offset < end_offset]

    def _all_from(self, offset: int) -> Iterator[_RetainedSpan]:
        """Yield the open transactions, and the ended ones with a marker >= ``offset``."""
        yield from self._open.values()
        for kept in reversed(self._ended):
            if kept.span.ended_before(offset):
                return
            yield kept

    def _end(self, kept: _RetainedSpan, marker_offset: int, outcome: Outcome) -> None:
        span = replace(kept.span, marker_offset=marker_offset, outcome=outcome)
        self._ended.append(replace(kept, span=span))
        if self._retained_max is not None and len(self._ended) > self._retained_max:
            dropped = self._ended.popleft().span.marker_offset
            assert dropped is not None, "an ended transaction has a marker"
            self.complete_from = max(self.complete_from, dropped + 1)

    def _problem(self, offset: int, reason: str) -> None:
        self.problems.append(TransactionMarkerError(path=self.path, offset=offset, reason=reason))


def spans_by_range(
    spans: Sequence[TransactionSpan], ranges: Iterable[tuple[int, int]]
) -> Iterator[tuple[TransactionSpan, ...]]:
    """Yield, for each of ``ranges``, the spans that touch it, in linear time.

    Spans and ranges must ascend by start, and ranges must not overlap.
    """
    remaining = iter(spans)
    following = next(remaining, None)
    current: list[TransactionSpan] = []
    for start_offset, end_offset in ranges:
        while following is not None and following.first_offset < end_offset:
            current.append(following)
            following = next(remaining, None)
        current = [span for span in current if span.touches(start_offset, end_offset)]
        yield tuple(current)


# --- Values of the three metadata records that delimit a transaction: recognition and encoding ----
# A value is one of them if it begins with frame version 1 and their api key. The decoder of
# metadata records validates the rest. Only a Begin's name is read here, and a name that cannot be
# parsed is ignored. Values are written in version 0, as Kafka does (KIP-868:
# ``BeginTransactionRecord``, ``EndTransactionRecord``, ``AbortTransactionRecord``).

FRAME_VERSION: Final = 1
assert max(Marker) < 0x80, "an api key of one byte, as an unsigned varint"

_FRAME_BYTES: Final = 3
"""Frame version, api key and version."""
_TEXT_TAG: Final = 0
"""Tag of the only field of Begin (its name) and Abort (its reason), a compact string."""


def marker_of(value: bytes | None) -> Marker | None:
    """Return the marker that a record's value encodes; None if it is another record."""
    if value is None or len(value) < 2 or value[0] != FRAME_VERSION:
        return None
    api_key = value[1]
    return Marker(api_key) if Marker.BEGIN <= api_key <= Marker.ABORT else None


def transaction_name(value: bytes) -> str | None:
    """Return the name in a Begin record; None if it has none."""
    reader = FieldReader(value[_FRAME_BYTES:])
    try:
        for tagged in reader.tagged_fields():
            if tagged.tag == _TEXT_TAG:
                return FieldReader(tagged.data).string()
    except CorruptBatchError:
        return None
    return None


def marker_value(marker: Marker, text: str | None = None) -> bytes:
    """Encode a marker. ``text`` is a Begin's name or an Abort's reason."""
    assert text is None or marker is not Marker.END, "an End has neither name nor reason"
    fields = () if text is None else (TaggedField(_TEXT_TAG, string_bytes(text)),)
    return bytes((FRAME_VERSION, marker, 0)) + tagged_bytes(fields)


# --- Metadata of a batch: the fields of its header, and the few that are in its records -----------
# A commit is named by (application id, query id, version). The name is in a header of the batch's
# first record, as MessagePack ``[application id, query id, version]``. In a ``kraft`` log it is the
# name of a metadata transaction, as JSON; the batch's first record is the Begin, the last the End.
#
# To find the name, only the first headers of the first record are read, and no more of the batch is
# decompressed. In a ``kraft`` log, the values of all records are scanned if the batch's bytes may
# contain a transaction marker. Only control batches are decoded.
#
# Records that raftlog did not write are data: a malformed name counts as no name, and records that
# do not decode as having none. Neither is an error. A control record that does not parse raises
# ``CorruptBatchError``, as in every reader. Reaching a limit before the name is found raises
# ``DecompressionLimitError``.

COMMIT_HEADER: Final = "raftlog.commit"
_COMMIT_HEADER_BYTES: Final = COMMIT_HEADER.encode()
TAKE_OVER_HEADER: Final = "raftlog.take-over"
"""Header after a commit's name, with the id of the query that the commit replaces, as UTF-8."""
VERSION_MAX: Final = INT64_MAX
_HEADER_BYTES_MAX: Final = 2 * (COMMIT_ID_BYTES_MAX + 3) + 10
_HEADERS_READ_MAX: Final = 16
"""Headers of a first record that are read. raftlog writes the name before the user's headers."""
_NAME_TO_FIND: Final = (_COMMIT_HEADER_BYTES, _HEADERS_READ_MAX, _HEADER_BYTES_MAX)
"""The limits in the form that the compiled core takes."""
_MARKER_BYTES_MAX: Final = 64 * KIB
"""Bytes of a marker that are read. A longer name cannot be a commit's."""
_MARKER_STARTS: Final = tuple(bytes((FRAME_VERSION, marker)) for marker in Marker)


class ValueKind(enum.StrEnum):
    """The kind of a log's record values, which is fixed when the log is created."""

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


@fast_init
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
        """Offset after this batch."""
        return self.last_offset + 1


def batch_metadata(batch: RecordBatch, values: ValueKind) -> BatchMetadata:
    """Return the metadata of a batch in a log whose values are of the kind ``values``.

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
        commit = commit_of_header(batch)
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


def followed_batches(
    data: bytes, values: ValueKind, *, end_offset: int, epoch: int, leader_epoch: int
) -> list[tuple[int, BatchMetadata]] | None:
    """Return the sizes and metadata of all batches in ``data``, if the compiled core can read them.

    The metadata are the same as from ``batch_metadata``. The batches must follow a log that ends at
    ``end_offset`` with a record of ``epoch``.

    Returns None without the core; if batches are damaged or do not follow each other; if the last
    one is incomplete; if one has an epoch after ``leader_epoch``; and if any is compressed, has
    control records, or has values of a ``kraft`` log.
    """
    if not compiled.is_native or values is ValueKind.KRAFT:
        return None
    name = _NAME_TO_FIND if _COMMIT_HEADER_BYTES in data else None
    found = compiled.core.followed_batches(data, end_offset, epoch, leader_epoch, name)
    if found is None:
        return None
    return [
        (
            byte_count,
            BatchMetadata(
                base_offset=base_offset,
                last_offset=last_offset,
                leader_epoch=batch_epoch,
                max_timestamp_ms=max_timestamp_ms,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=record_count,
                is_transactional=is_transactional,
                commit=None if name_value is None else parse_commit_header(name_value),
            ),
        )
        for (
            byte_count,
            base_offset,
            last_offset,
            batch_epoch,
            max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
            is_transactional,
            name_value,
        ) in found
    ]


def encoded_metadata(
    batch: EncodedBatch,
    values: ValueKind,
    *,
    commit: CommitName | None = None,
    markers: Sequence[MetadataMarker] = (),
    control: Sequence[ControlRecord] = (),
) -> BatchMetadata:
    """Return the metadata of a batch that this process has built, without parsing its bytes.

    The result equals ``batch_metadata`` of the bytes. ``markers`` may include markers of other
    batches. In a ``kraft`` log the markers name the commit, and ``commit`` is not used.
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
    return compact_json(fields)


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


def commit_of_header(batch: RecordBatch) -> CommitName | None:
    """Return the commit's name from the first record's headers, if it occurs there exactly once.

    Raises ``DecompressionLimitError``.
    """
    if batch.record_count == 0:
        return None
    if batch.compression is Compression.NONE and _COMMIT_HEADER_BYTES not in batch.payload:
        return None  # true for nearly all batches
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
    """Return the transaction marker that a record's value encodes; None for another record."""
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
