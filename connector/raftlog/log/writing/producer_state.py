"""Producer state of a log: producers, commits, open transactions and consumer groups' offsets.

The writer, recovery and followers call ``apply`` for every batch in log order; it never fails.
``check_producer`` and ``check_commit`` are called before an append. A group of appends is checked
against a ``copy``, to which each of them is applied in turn.

The state is a function of the batches alone and therefore equal on every replica: no clock is read,
and nothing expires by age. Log time is the greatest timestamp of any batch so far. The size of the
state is bounded by ``PRODUCERS_MAX``, ``COMMITS_MAX``, ``GROUP_OFFSETS_BYTES_MAX`` and, for
transactions, ``drop_decided``.

The state is stored in the producer snapshot (``<offset>.snapshot``), which Kafka's tools can read.
A tagged field of a checkpoint's header has the same bytes.

Kafka: ``ProducerStateManager``, ``ProducerStateEntry``, ``ProducerAppendInfo`` (KIP-98),
``UnifiedLog.lastStableOffset``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    ForeignCommitError,
    InvalidProducerEpochError,
    OptionError,
    OutOfOrderSequenceError,
    StaleCommitError,
)
from raftlog.fast_dataclass import fast_init, positional_constructor
from raftlog.limits import (
    BATCH_BYTES_MAX,
    COMMIT_ID_BYTES_MAX,
    COMMITS_MAX,
    GROUP_OFFSETS_BYTES_MAX,
    PRODUCER_BATCHES_KEPT,
    PRODUCERS_MAX,
)
from raftlog.log.format.directory import (
    ProducerState,
    encode_producer_snapshot,
    split_producer_snapshot,
)
from raftlog.log.reading.transactions import (
    METADATA_PRODUCER_ID,
    BatchMetadata,
    CommitName,
    Marker,
    MetadataMarker,
    ProducerMarker,
    TransactionIndex,
    TransactionSpan,
    control_of,
)
from raftlog.log.segment import AbortedTransaction
from raftlog.records.builder import decremented, incremented
from raftlog.records.control import OffsetCommit
from raftlog.records.fields import FieldReader, TaggedField, array_bytes, string_bytes, tagged_bytes

from .group_offsets import GroupOffsets

NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

# --- Producers, commits, transactions -------------------------------------------------------------


@fast_init
@dataclass(frozen=True, slots=True)
class Duplicate:
    """A batch that is already in the log, at these offsets (both inclusive)."""

    base_offset: int
    last_offset: int


@fast_init
@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """A producer's batch. ``offset_delta`` is its last offset minus its first."""

    last_sequence: int
    last_offset: int
    offset_delta: int

    @property
    def base_sequence(self) -> int:
        return decremented(self.last_sequence, self.offset_delta)

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerEntry:
    """One producer, with the newest batches of its current epoch, oldest first.

    ``timestamp_ms`` is the log time of its last batch or marker.
    """

    producer_id: int
    producer_epoch: int = NO_EPOCH
    batches: tuple[ProducerBatch, ...] = ()
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    open_transaction_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record; -1 if no batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def check(self, producer_epoch: int, base_sequence: int, record_count: int) -> Duplicate | None:
        """Return None if the next batch may be appended, or the offsets at which it already is.

        A new epoch starts with sequence 0. Raises ``InvalidProducerEpochError`` if the epoch is
        older than the last one, and ``OutOfOrderSequenceError`` for a gap, or for a retry of a
        batch older than the retained ones.
        """
        if self.producer_epoch == NO_EPOCH:
            return None
        if producer_epoch < self.producer_epoch:
            raise InvalidProducerEpochError(
                producer_id=self.producer_id,
                producer_epoch=producer_epoch,
                current_producer_epoch=self.producer_epoch,
            )
        is_same_epoch = producer_epoch == self.producer_epoch
        expected = incremented(self.last_sequence, 1) if is_same_epoch else 0
        if base_sequence == expected:
            return None  # not retained: those before it have fewer records than there are sequences
        if is_same_epoch:
            last_sequence = incremented(base_sequence, record_count - 1)
            for batch in self.batches:
                is_same = batch.last_sequence == last_sequence
                if is_same and batch.base_sequence == base_sequence:
                    return Duplicate(batch.base_offset, batch.last_offset)
        raise OutOfOrderSequenceError(
            producer_id=self.producer_id,
            producer_epoch=producer_epoch,
            sequence=base_sequence,
            expected_sequence=expected,
        )

    def with_batch(self, producer_epoch: int, batch: ProducerBatch) -> ProducerEntry:
        """Return the entry after a batch. A new epoch drops the batches of the old one."""
        return _new_entry(
            self.producer_id,
            producer_epoch,
            self.batches_with(producer_epoch, batch),
            self.timestamp_ms,
            self.coordinator_epoch,
            self.open_transaction_first_offset,
        )

    def batches_with(self, producer_epoch: int, batch: ProducerBatch) -> tuple[ProducerBatch, ...]:
        """Return the retained batches after another one is added."""
        if producer_epoch != self.producer_epoch:
            return (batch,)
        return (*self.batches, batch)[-PRODUCER_BATCHES_KEPT:]


# Each idempotent append creates two of both on the leader and one on each follower. A constructor
# with keywords takes three times as long, and ``replace`` longer still.
_BATCH_FIELDS: Final = ("last_sequence", "last_offset", "offset_delta")
_ENTRY_FIELDS: Final = (
    "producer_id",
    "producer_epoch",
    "batches",
    "timestamp_ms",
    "coordinator_epoch",
    "open_transaction_first_offset",
)
_new_batch: Final = positional_constructor(ProducerBatch, _BATCH_FIELDS)
_new_entry: Final = positional_constructor(ProducerEntry, _ENTRY_FIELDS)


@fast_init
@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last commit of an application id: its batch's offsets (inclusive) and its log time.

    In a client's response, ``timestamp_ms`` is -1 if retention has deleted the batch.
    """

    name: CommitName
    base_offset: int
    last_offset: int
    timestamp_ms: int

    def check(self, name: CommitName, *, take_over_from: str | None = None) -> Duplicate | None:
        """Return None if the commit may be appended, or the offsets at which it already is.

        Names are compared as a whole: the same version under another query id is another commit.
        ``take_over_from`` is the query id of this last commit. If it is given, another query may
        continue under the application id, with any version. Raises ``StaleCommitError`` for a
        version older than the last, and ``ForeignCommitError`` for another query id.
        """
        if name == self.name:
            return Duplicate(self.base_offset, self.last_offset)
        if name.query_id != self.name.query_id:
            if take_over_from == self.name.query_id:
                return None
            raise ForeignCommitError(
                application_id=name.application_id,
                query_id=name.query_id,
                version=name.version,
                last_query_id=self.name.query_id,
                last_version=self.name.version,
            )
        if name.version < self.name.version:
            raise StaleCommitError(
                application_id=name.application_id,
                query_id=name.query_id,
                version=name.version,
                last_version=self.name.version,
            )
        return None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open metadata transaction.

    ``batch_base_offset`` is the last batch boundary outside every transaction. This is the start of
    the batch with the Begin record, unless another transaction is open where that batch begins;
    then it is an earlier boundary.
    """

    first_offset: int
    batch_base_offset: int
    name: str | None


# --- Trailer of a producer snapshot: the producer state that Kafka's format does not cover --------
# Layout after Kafka's entries, in the encoding of Kafka's flexible messages:
#
#     "raftlog", int8 version = 1, int64 log time
#     array: for each producer, in the order of the entries, its batches except the last one
#     array: the last commits
#     array: the open metadata transaction, if there is one
#     tagged fields: 0, the offsets of consumer groups; 1, their owners (``GroupOffsets``)
#
# Kafka ignores the trailer, since the CRC covers it. Trailing bytes that do not start with
# ``raftlog`` are not a trailer. A trailer that does not parse or has another version is a
# ``CorruptFileError``. Entries and trailer together fit into one batch, because the SnapshotHeader
# record of a checkpoint contains them.

_MAGIC: Final = b"raftlog"
_VERSION: Final = 1
_BATCH: Final = struct.Struct(
    ">"
    "i"  # last_sequence
    "q"  # last_offset
    "i"  # offset_delta
)
_COMMIT: Final = struct.Struct(
    ">"
    "q"  # version
    "q"  # base_offset
    "q"  # last_offset
    "q"  # timestamp_ms
)
_TRANSACTION: Final = struct.Struct(
    ">"
    "q"  # first_offset
    "q"  # batch_base_offset
)
_COMMIT_BYTES_MAX: Final = _COMMIT.size + 2 * (COMMIT_ID_BYTES_MAX + 2)
_PRODUCER_BYTES_MAX: Final = 46 + 1 + (PRODUCER_BATCHES_KEPT - 1) * _BATCH.size
assert (
    COMMITS_MAX * _COMMIT_BYTES_MAX + PRODUCERS_MAX * _PRODUCER_BYTES_MAX + GROUP_OFFSETS_BYTES_MAX
    < BATCH_BYTES_MAX
)

_Trailer: TypeAlias = tuple[
    int,
    tuple[tuple[ProducerBatch, ...], ...],
    tuple[LastCommit, ...],
    OpenTransaction | None,
    tuple[TaggedField, ...],
]
"""Log time; the older batches of each producer, oldest first; commits; open transaction; tagged
fields."""


def _encode_trailer(trailer: _Trailer) -> bytes:
    """Return the bytes that follow the entries of a producer snapshot."""
    log_time_ms, older_batches, commits, opened, tagged_fields = trailer
    return b"".join(
        (
            _MAGIC,
            bytes((_VERSION,)),
            struct.pack(">q", log_time_ms),
            array_bytes(tuple(map(_batches_bytes, older_batches))),
            array_bytes(tuple(map(_commit_bytes, commits))),
            array_bytes(() if opened is None else (_transaction_bytes(opened),)),
            tagged_bytes(tagged_fields),
        )
    )


def _parse_trailer(data: bytes, path: str, *, producer_count: int) -> _Trailer | None:
    """Parse the bytes after ``producer_count`` entries; None if there is no trailer.

    Raises ``CorruptFileError``.
    """
    if not data.startswith(_MAGIC):
        return None
    version = data[len(_MAGIC) : len(_MAGIC) + 1]
    if version != bytes((_VERSION,)):
        raise CorruptFileError(
            path=path, reason=f"unsupported trailer version 0x{version.hex()}, expected {_VERSION}"
        )
    reader = FieldReader(data[len(_MAGIC) + 1 :])
    try:
        log_time_ms = reader.int64()
        older_batches = reader.array(_read_batches)
        commits = reader.array(_read_commit)
        opened = reader.array(_read_transaction)
        tagged_fields = reader.tagged_fields()
    except CorruptBatchError as error:
        raise CorruptFileError(path=path, reason=f"invalid trailer: {error.reason}") from None
    except OptionError as error:
        reason = f"invalid trailer: a commit's {error.option}: {error.reason}"
        raise CorruptFileError(path=path, reason=reason) from None
    if len(older_batches) != producer_count or len(opened) > 1:
        raise CorruptFileError(
            path=path,
            reason=f"invalid trailer: {len(older_batches)} producers instead of {producer_count}, "
            f"{len(opened)} open transactions",
        )
    return log_time_ms, older_batches, commits, opened[0] if opened else None, tagged_fields


def _batches_bytes(batches: Iterable[ProducerBatch]) -> bytes:
    return array_bytes(
        tuple(
            _BATCH.pack(batch.last_sequence, batch.last_offset, batch.offset_delta)
            for batch in batches
        )
    )


def _commit_bytes(commit: LastCommit) -> bytes:
    name = commit.name
    return (
        string_bytes(name.application_id)
        + string_bytes(name.query_id)
        + _COMMIT.pack(name.version, commit.base_offset, commit.last_offset, commit.timestamp_ms)
    )


def _transaction_bytes(opened: OpenTransaction) -> bytes:
    name = () if opened.name is None else (string_bytes(opened.name),)
    return _TRANSACTION.pack(opened.first_offset, opened.batch_base_offset) + array_bytes(name)


def _read_batches(reader: FieldReader) -> tuple[ProducerBatch, ...]:
    return reader.array(
        lambda fields: ProducerBatch(fields.int32(), fields.int64(), fields.int32())
    )


def _read_commit(reader: FieldReader) -> LastCommit:
    application_id, query_id = reader.string(), reader.string()
    name = CommitName(application_id, query_id, reader.int64())
    return LastCommit(name, reader.int64(), reader.int64(), reader.int64())


def _read_transaction(reader: FieldReader) -> OpenTransaction:
    first_offset, batch_base_offset = reader.int64(), reader.int64()
    name = reader.array(lambda fields: fields.string())
    return OpenTransaction(first_offset, batch_base_offset, name[0] if name else None)


# --- Producer state -------------------------------------------------------------------------------

HEADER_FIELD_TAG: Final = 0x7266
"""Tag of the SnapshotHeader field with a producer snapshot. Kafka skips this unknown tag."""

ENDED_TRANSACTIONS_MAX: Final = 65_536
_PROBLEMS_MAX: Final = 16


class ProducerStateManager:
    """Producer state of one log as of ``end_offset`` (exclusive). Not shared between threads.

    ``is_whole`` False: some records below ``end_offset`` were not applied, so a metadata
    transaction may be open there.

    A producer's epoch never decreases: a batch of an older epoch that the log contains, although no
    check would have accepted it, is ignored. Beyond ``PRODUCERS_MAX`` the least recently used
    producer without an open transaction is evicted; beyond ``COMMITS_MAX`` the least recently used
    application id. Nothing expires by age (Kafka: ``producer.id.expiration.ms``), because no clock
    proves that an application will not retry, and with a wrong clock a repeated commit could be
    appended twice.
    """

    def __init__(self, path: str, *, end_offset: int = 0, is_whole: bool = True) -> None:
        self.path = path
        self.end_offset = end_offset
        """Offset after the last applied batch."""
        self.log_time_ms = -1
        """Greatest timestamp of any batch so far; -1 before the first."""
        self._producers: dict[int, ProducerEntry] = {}
        self._commits: dict[str, LastCommit] = {}
        self.data_end_offset = end_offset
        """Offset after the last batch of data."""
        self._group_offsets: GroupOffsets | None = None
        """None until a group commits."""
        self._transactions: TransactionIndex | None = None
        """None until a transaction begins or ends."""
        self._unknown_from = None if is_whole else end_offset
        if not is_whole:
            self._begun_transactions().assume_open_transaction_at(end_offset)

    def copy(self) -> ProducerStateManager:
        """Return an independent copy, for appends that may not succeed."""
        copied = ProducerStateManager(self.path, end_offset=self.end_offset)
        copied.log_time_ms = self.log_time_ms
        copied._unknown_from = self._unknown_from
        copied._producers = self._producers.copy()
        copied._commits = self._commits.copy()
        copied.data_end_offset = self.data_end_offset
        if self._group_offsets is not None:
            copied._group_offsets = self._group_offsets.copy()
        if self._transactions is not None:
            copied._transactions = self._transactions.copy()
        return copied

    # --- state ------------------------------------------------------------------------------------

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """Producers, least recently used first."""
        return tuple(self._producers.values())

    @property
    def commits(self) -> tuple[LastCommit, ...]:
        """Last commit of each application id, oldest first."""
        return tuple(self._commits.values())

    def last_commit(self, application_id: str) -> LastCommit | None:
        """Return the last commit of an application id; None if unknown or evicted."""
        return self._commits.get(application_id)

    @property
    def group_offsets(self) -> GroupOffsets:
        """Committed offsets of consumer groups."""
        return GroupOffsets() if self._group_offsets is None else self._group_offsets

    @property
    def open_transaction(self) -> TransactionSpan | None:
        """The metadata transaction that is open at the end, if there is one."""
        opened = self._open_metadata_transaction()
        return None if opened is None else opened[0]

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset for a high watermark, which must be a batch boundary.

        The result is exact unless ``drop_decided`` was called with a greater high watermark, or
        more than 65 536 transactions ended above this one.
        """
        if self._transactions is None:
            return high_watermark
        return self._transactions.last_stable_offset(high_watermark)

    # --- before an append -------------------------------------------------------------------------

    def check_commit(
        self, name: CommitName, *, take_over_from: str | None = None
    ) -> Duplicate | None:
        """Return None if a commit may be appended, or the offsets at which it already is.

        Call it before checking the required offset: a retry of an append that succeeded must get
        its offsets although the log's end has advanced. Raises what ``LastCommit.check`` raises.
        """
        last = self._commits.get(name.application_id)
        return None if last is None else last.check(name, take_over_from=take_over_from)

    def check_producer(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
    ) -> Duplicate | None:
        """Return None if a producer's batch may be appended, or the offsets at which it already is.

        An unknown producer may start with any sequence, since it may have been evicted. Raises what
        ``ProducerEntry.check`` raises.
        """
        if producer_id < 0:
            return None
        entry = self._producers.get(producer_id)
        return None if entry is None else entry.check(producer_epoch, base_sequence, record_count)

    def begin_pending(self) -> PendingProducerState:
        """Return a state for checking appends while earlier ones have not been written yet."""
        return PendingProducerState(self)

    # --- batches of the log -----------------------------------------------------------------------

    def apply(self, metadata: BatchMetadata) -> tuple[AbortedTransaction, ...]:
        """Apply the next batch. Return the transactions that it aborted, for ``.txnindex``.

        An empty batch may begin before the end of the state, because a compaction may have joined
        batches from before and after a snapshot.
        """
        is_joined = not metadata.record_count and metadata.last_offset >= self.end_offset
        assert is_joined or metadata.base_offset >= self.end_offset, (
            "batches must be applied in the order of the log"
        )
        self.log_time_ms = max(self.log_time_ms, metadata.max_timestamp_ms)
        aborted: list[AbortedTransaction] = []
        if metadata.producer_id >= 0 and not metadata.is_control:
            self._apply_producer(metadata)
        if metadata.commit is not None:
            self._use_commit(
                LastCommit(
                    metadata.commit, metadata.base_offset, metadata.last_offset, self.log_time_ms
                )
            )
        outside_offset = (
            self._boundary_outside_transactions(metadata)
            if metadata.markers
            else metadata.base_offset
        )
        for marker in metadata.markers:
            match marker:
                case MetadataMarker():
                    self._apply_metadata_marker(marker, outside_offset)
                case ProducerMarker():
                    aborted += self._end_transaction(metadata, marker)
        if metadata.is_control:
            self._apply_control(metadata)
        elif metadata.record_count:  # compaction replaces commits by an empty batch
            self.data_end_offset = metadata.last_offset + 1
        self.end_offset = metadata.last_offset + 1
        return tuple(aborted)

    def drop_decided(self, high_watermark: int) -> None:
        """Drop the transactions that ended below ``high_watermark``. It must not decrease."""
        if self._transactions is not None:
            self._transactions.drop_ended_before(high_watermark)

    def _apply_producer(self, metadata: BatchMetadata) -> None:
        """Apply a producer's batch. Its first transactional batch opens a transaction."""
        producer_id, last_offset = metadata.producer_id, metadata.last_offset
        offset_delta = last_offset - metadata.base_offset
        entry = self.producer(producer_id)
        epoch, batches = entry.producer_epoch, entry.batches
        if metadata.base_sequence >= 0 and metadata.producer_epoch >= epoch:
            last_sequence = incremented(metadata.base_sequence, offset_delta)
            epoch = metadata.producer_epoch
            batches = entry.batches_with(
                epoch, _new_batch(last_sequence, last_offset, offset_delta)
            )
        first_offset = entry.open_transaction_first_offset
        if metadata.is_transactional:
            if first_offset is None:
                first_offset = metadata.base_offset
            begun = self._begun_transactions()
            begun.open_transaction(producer_id, first_offset=metadata.base_offset)
        self._use_producer(
            _new_entry(
                producer_id,
                epoch,
                batches,
                self.log_time_ms,
                entry.coordinator_epoch,
                first_offset,
            )
        )

    def _apply_control(self, metadata: BatchMetadata) -> None:
        """Apply the consumer groups' commits among a batch's control records."""
        for offset, record in control_of(metadata):
            if isinstance(record, OffsetCommit):
                self._group_offsets = self.group_offsets
                self._group_offsets.add(record, offset)

    def producer(self, producer_id: int) -> ProducerEntry:
        """Return a producer's entry, or an empty one if it is unknown."""
        return self._producers.get(producer_id) or ProducerEntry(producer_id=producer_id)

    def _use_producer(self, entry: ProducerEntry) -> None:
        """Make a producer the most recently used one."""
        producers, producer_id = self._producers, entry.producer_id
        producers.pop(producer_id, None)
        producers[producer_id] = entry
        if len(producers) > PRODUCERS_MAX:
            for idle in producers.values():
                if idle.open_transaction_first_offset is None:
                    del producers[idle.producer_id]
                    break

    def _use_commit(self, commit: LastCommit) -> None:
        """Store an appended commit as its application id's last one, whatever its version."""
        self._commits.pop(commit.name.application_id, None)
        self._commits[commit.name.application_id] = commit
        if len(self._commits) > COMMITS_MAX:
            del self._commits[next(iter(self._commits))]

    def _boundary_outside_transactions(self, metadata: BatchMetadata) -> int:
        """Return the last batch boundary, up to this batch, outside every metadata transaction.

        A batch may end one transaction and begin the next. The boundary is then where the first
        one began, because a replay from the start of the second would miss its beginning.
        """
        if self._unknown_from is not None:
            return self._unknown_from
        opened = self._open_metadata_transaction()
        return metadata.base_offset if opened is None else opened[1]

    def _apply_metadata_marker(self, marker: MetadataMarker, outside_offset: int) -> None:
        transactions = self._begun_transactions()
        transactions.metadata_marker(
            marker.marker, marker.offset, batch_base_offset=outside_offset, name=marker.name
        )
        del transactions.problems[_PROBLEMS_MAX:]
        self._unknown_from = None

    def _end_transaction(
        self, metadata: BatchMetadata, marker: ProducerMarker
    ) -> list[AbortedTransaction]:
        if metadata.producer_id < 0:
            return []  # a marker without a producer, not written by Kafka or raftlog
        entry = self.producer(metadata.producer_id)
        first_offset = entry.open_transaction_first_offset  # None: it wrote nothing to this log
        self._use_producer(
            replace(
                entry,
                producer_epoch=max(metadata.producer_epoch, entry.producer_epoch),
                batches=entry.batches if metadata.producer_epoch <= entry.producer_epoch else (),
                timestamp_ms=self.log_time_ms,
                coordinator_epoch=max(marker.coordinator_epoch, entry.coordinator_epoch),
                open_transaction_first_offset=None,
            )
        )
        transactions = self._begun_transactions()
        transactions.end_transaction(
            metadata.producer_id, marker_offset=marker.offset, commit=marker.is_commit
        )
        if first_offset is None or marker.is_commit:
            return []
        others = (span.first_offset for span, _ in transactions.open_now())
        return [
            AbortedTransaction(
                producer_id=metadata.producer_id,
                first_offset=first_offset,
                last_offset=marker.offset,
                last_stable_offset=min(others, default=marker.offset + 1),
            )
        ]

    def _open_metadata_transaction(self) -> tuple[TransactionSpan, int] | None:
        if self._transactions is None:
            return None
        found = (
            one
            for one in self._transactions.open_now()
            if one[0].producer_id == METADATA_PRODUCER_ID
        )
        return next(found, None)

    def _begun_transactions(self) -> TransactionIndex:
        """Return the transaction index; create it for the first begin or end."""
        if self._transactions is None:
            self._transactions = TransactionIndex(
                self.path, complete_from=self.end_offset, retained_max=ENDED_TRANSACTIONS_MAX
            )
        return self._transactions

    # --- snapshots --------------------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """Return the content of ``<end_offset>.snapshot``."""
        opened = self._open_metadata_transaction()
        trailer = _encode_trailer(
            (
                self.log_time_ms,
                tuple(entry.batches[:-1] for entry in self.producers),
                self.commits,
                None
                if opened is None
                else OpenTransaction(opened[0].first_offset, opened[1], opened[0].name),
                self._tagged_fields(),
            )
        )
        return encode_producer_snapshot(map(_state, self.producers), trailer)

    @classmethod
    def decode_snapshot(cls, data: bytes, path: str, end_offset: int) -> ProducerStateManager:
        """Parse a producer snapshot.

        A snapshot that Kafka wrote has no commits, no open metadata transaction, and only the last
        batch of each producer. Raises ``CorruptFileError``.
        """
        states, trailing = split_producer_snapshot(data, path)
        trailer = _parse_trailer(trailing, path, producer_count=len(states))
        producer_state = cls(
            path, end_offset=end_offset, is_whole=trailer is not None or end_offset == 0
        )
        older: Iterable[tuple[ProducerBatch, ...]] = ((),) * len(states)
        if trailer is not None:
            producer_state.log_time_ms, older, commits, opened, tagged_fields = trailer
            if tagged_fields:
                producer_state._read_groups(tagged_fields, path)
            producer_state._commits = {one.name.application_id: one for one in commits}
            if opened is not None:
                producer_state._begun_transactions().metadata_marker(
                    Marker.BEGIN,
                    opened.first_offset,
                    batch_base_offset=opened.batch_base_offset,
                    name=opened.name,
                )
        producer_state._producers = {
            state.producer_id: _entry(state, batches)
            for state, batches in zip(states, older, strict=True)
        }
        for state in states:
            producer_state.log_time_ms = max(producer_state.log_time_ms, state.timestamp_ms)
            if state.open_transaction_first_offset is not None:
                producer_state._begun_transactions().open_transaction(
                    state.producer_id, first_offset=state.open_transaction_first_offset
                )
        return producer_state

    def _tagged_fields(self) -> tuple[TaggedField, ...]:
        found = self._group_offsets
        return () if found is None else found.to_tagged_fields(self.data_end_offset)

    def _read_groups(self, tagged_fields: Iterable[TaggedField], path: str) -> None:
        try:
            self._group_offsets, data_end_offset = GroupOffsets.from_tagged_fields(tagged_fields)
        except CorruptBatchError as error:
            raise CorruptFileError(path=path, reason=f"invalid trailer: {error.reason}") from None
        if data_end_offset is not None:
            self.data_end_offset = min(data_end_offset, self.end_offset)

    def to_header_field(self) -> TaggedField:
        """Return the field for the ``SnapshotHeader`` of a checkpoint at ``end_offset``."""
        return TaggedField(HEADER_FIELD_TAG, self.encode_snapshot())

    @classmethod
    def from_header_field(
        cls, tagged_fields: Iterable[TaggedField], path: str, end_offset: int
    ) -> ProducerStateManager | None:
        """Parse the tagged fields of a checkpoint's ``SnapshotHeader``; None if Kafka wrote it.

        ``path`` is the checkpoint's. Raises ``CorruptSnapshotError``.
        """
        for tagged in tagged_fields:
            if tagged.tag == HEADER_FIELD_TAG:
                try:
                    return cls.decode_snapshot(tagged.data, path, end_offset)
                except CorruptFileError as error:
                    raise CorruptSnapshotError(path=path, reason=error.reason) from None
        return None


class PendingProducerState:
    """Producer state of a log including batches that have offsets but are not written yet.

    It is cleared when they are written, and dropped if the disk has no room for them.
    """

    def __init__(self, written: ProducerStateManager) -> None:
        self._written = written
        self._producers: dict[int, ProducerEntry] = {}
        self._commits: dict[str, LastCommit] = {}

    def check_commit(
        self, name: CommitName, *, take_over_from: str | None = None
    ) -> Duplicate | None:
        """Check a commit as ``ProducerStateManager.check_commit`` does."""
        last = self._commits.get(name.application_id)
        if last is None:
            return self._written.check_commit(name, take_over_from=take_over_from)
        return last.check(name, take_over_from=take_over_from)

    def check_producer(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
    ) -> Duplicate | None:
        """Check a batch as ``ProducerStateManager.check_producer`` does."""
        entry = self._producers.get(producer_id)
        if entry is None:
            return self._written.check_producer(
                producer_id, producer_epoch, base_sequence, record_count
            )
        return entry.check(producer_epoch, base_sequence, record_count)

    def add_commit(self, name: CommitName, base_offset: int, last_offset: int) -> None:
        """Add a commit whose batch will have these offsets (both inclusive)."""
        log_time_ms = self._written.log_time_ms
        self._commits[name.application_id] = LastCommit(name, base_offset, last_offset, log_time_ms)

    def add_producer_batch(
        self,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        base_offset: int,
        last_offset: int,
    ) -> None:
        """Add a batch accepted by ``check_producer``, at these offsets (both inclusive)."""
        delta = last_offset - base_offset
        entry = self._producers.get(producer_id) or self._written.producer(producer_id)
        batch = _new_batch(incremented(base_sequence, delta), last_offset, delta)
        self._producers[producer_id] = entry.with_batch(producer_epoch, batch)

    def clear(self) -> None:
        """Forget the batches, because they have been written."""
        self._producers.clear()
        self._commits.clear()


def _state(entry: ProducerEntry) -> ProducerState:
    last = entry.batches[-1] if entry.batches else ProducerBatch(NO_SEQUENCE, -1, 0)
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.offset_delta,
        timestamp_ms=entry.timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        open_transaction_first_offset=entry.open_transaction_first_offset,
    )


def _entry(state: ProducerState, older: tuple[ProducerBatch, ...]) -> ProducerEntry:
    last = ProducerBatch(state.last_sequence, state.last_offset, state.offset_delta)
    return ProducerEntry(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        batches=(*older, last) if state.last_offset >= 0 else (),
        timestamp_ms=state.timestamp_ms,
        coordinator_epoch=state.coordinator_epoch,
        open_transaction_first_offset=state.open_transaction_first_offset,
    )
