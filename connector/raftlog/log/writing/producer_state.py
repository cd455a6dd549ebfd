"""Producer state of a log: producers, commits and open transactions up to an offset.

``apply`` is called for every batch in the order of the log, by the writer, by recovery and by a
follower, and never fails. ``check_producer`` and ``check_commit`` are called before an append; a
group of appends is checked against a ``copy``, to which each one is applied.

The state is a function of the batches alone, so it is equal on every replica: no clock is read, and
nothing expires by age. Log time is the greatest timestamp of any batch so far. Its size is bounded
by ``PRODUCERS_MAX``, ``COMMITS_MAX`` and, for transactions, ``drop_decided``.

It is stored in the producer snapshot (``<offset>.snapshot``), which Kafka's tools can read, and as
the same bytes in a tagged field of a checkpoint's header.

Kafka: ``ProducerStateManager``, ``UnifiedLog.lastStableOffset``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptBatchError, CorruptFileError, CorruptSnapshotError, OptionError
from raftlog.limits import (
    BATCH_BYTES_MAX,
    COMMIT_ID_BYTES_MAX,
    COMMITS_MAX,
    PRODUCER_BATCHES_KEPT,
    PRODUCERS_MAX,
)
from raftlog.log.format.indexes import AbortedTransaction
from raftlog.log.format.producer_snapshot import (
    ProducerState,
    encode_producer_snapshot,
    split_producer_snapshot,
)
from raftlog.log.reading.transactions import (
    METADATA_PRODUCER_ID,
    Marker,
    TransactionIndex,
    TransactionSpan,
)
from raftlog.records.control import (
    FieldReader,
    TaggedField,
    array_bytes,
    string_bytes,
    tagged_bytes,
)

from .batch_metadata import BatchMetadata, CommitName, MetadataMarker, ProducerMarker
from .producers import (
    NO_SEQUENCE,
    Commits,
    Duplicate,
    LastCommit,
    ProducerBatch,
    ProducerEntry,
    Producers,
    incremented,
)

# --- Trailer of a producer snapshot: the producer state that Kafka's format does not cover --------
# Layout after Kafka's entries, in the encoding of Kafka's flexible messages:
#
#     "raftlog", int8 version = 1, int64 log time
#     array: per producer, in the order of the entries, its batches but the last one
#     array: the last commits
#     array: the open metadata transaction, if there is one
#     tagged fields
#
# Kafka ignores the trailer, since its CRC covers it. Trailing bytes that do not start with
# ``raftlog`` are no trailer. A trailer that does not parse or has another version is
# ``CorruptFileError``. Entries and trailer fit into one batch, since a checkpoint holds them in its
# SnapshotHeader record.

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
assert COMMITS_MAX * _COMMIT_BYTES_MAX + PRODUCERS_MAX * _PRODUCER_BYTES_MAX < BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open metadata transaction.

    ``batch_base_offset`` is the last batch boundary outside every transaction: that of the batch
    with the Begin record, or an earlier one if another transaction is open where that batch begins.
    """

    first_offset: int
    batch_base_offset: int
    name: str | None


@dataclass(frozen=True, slots=True)
class ProducerStateTrailer:
    """The fields of a trailer.

    ``older_batches``: one tuple for each producer of the snapshot, oldest batch first.
    """

    log_time_ms: int
    older_batches: tuple[tuple[ProducerBatch, ...], ...]
    commits: tuple[LastCommit, ...]
    open_transaction: OpenTransaction | None


def encode_trailer(trailer: ProducerStateTrailer) -> bytes:
    """Return the bytes that follow the entries of a producer snapshot."""
    opened = trailer.open_transaction
    return b"".join(
        (
            _MAGIC,
            bytes((_VERSION,)),
            struct.pack(">q", trailer.log_time_ms),
            array_bytes(tuple(map(_batches_bytes, trailer.older_batches))),
            array_bytes(tuple(map(_commit_bytes, trailer.commits))),
            array_bytes(() if opened is None else (_transaction_bytes(opened),)),
            tagged_bytes(()),
        )
    )


def parse_trailer(data: bytes, path: str, producer_count: int) -> ProducerStateTrailer | None:
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
        reader.tagged_fields()
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
    return ProducerStateTrailer(log_time_ms, older_batches, commits, opened[0] if opened else None)


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

__all__ = ["Duplicate", "LastCommit", "ProducerStateManager"]

HEADER_FIELD_TAG: Final = 0x7266
"""Tag of the SnapshotHeader field that holds a producer snapshot. Kafka skips this unknown tag."""

ENDED_TRANSACTIONS_MAX: Final = 65_536
_PROBLEMS_MAX: Final = 16


class ProducerStateManager:
    """Producer state of one log as of ``end_offset`` (exclusive). Not shared between threads.

    ``is_whole`` False: records below ``end_offset`` were not applied, so a metadata transaction may
    be open there.
    """

    def __init__(self, path: str, *, end_offset: int = 0, is_whole: bool = True) -> None:
        self.path = path
        self._end_offset = end_offset
        self._log_time_ms = -1
        self._producers = Producers()
        self._commits = Commits()
        self._transactions = TransactionIndex(
            path, complete_from=end_offset, retained_max=ENDED_TRANSACTIONS_MAX
        )
        self._unknown_from = None if is_whole else end_offset
        if not is_whole:
            self._transactions.assume_open_transaction_at(end_offset)

    def copy(self) -> ProducerStateManager:
        """Return an independent copy, for appends that may not succeed."""
        copied = ProducerStateManager(self.path, end_offset=self._end_offset)
        copied._log_time_ms = self._log_time_ms
        copied._unknown_from = self._unknown_from
        copied._producers = self._producers.copy()
        copied._commits = self._commits.copy()
        copied._transactions = self._transactions.copy()
        return copied

    # --- state ------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset after the last applied batch."""
        return self._end_offset

    @property
    def log_time_ms(self) -> int:
        """The greatest timestamp of any batch so far; -1 before the first."""
        return self._log_time_ms

    @property
    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers, least recently used first."""
        return tuple(self._producers)

    @property
    def commits(self) -> tuple[LastCommit, ...]:
        """The last commit of each application id, oldest first."""
        return tuple(self._commits)

    def last_commit(self, application_id: str) -> LastCommit | None:
        """Return the last commit of an application id; None if unknown or evicted."""
        return self._commits.get(application_id)

    @property
    def open_transaction(self) -> TransactionSpan | None:
        """The metadata transaction that is open at the end, if there is one."""
        opened = self._open_metadata_transaction()
        return None if opened is None else opened[0]

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset for a high watermark (a batch boundary).

        Exact unless ``drop_decided`` was called with a greater high watermark, or more than 65 536
        transactions ended above this one.
        """
        return self._transactions.last_stable_offset(high_watermark)

    # --- before an append -------------------------------------------------------------------------

    def check_commit(
        self, name: CommitName, *, take_over_from: str | None = None
    ) -> Duplicate | None:
        """Return None if a commit may be appended, or the offsets that it already has.

        Call it before the log token is checked. Raises ``StaleCommitError``, and
        ``ForeignCommitError`` unless ``take_over_from`` is the query id of the last commit.
        """
        return self._commits.check(name, take_over_from=take_over_from)

    def check_producer(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
    ) -> Duplicate | None:
        """Return None if a producer's batch may be appended, or the offsets that it already has.

        Raises ``InvalidProducerEpochError`` and ``OutOfOrderSequenceError``.
        """
        if producer_id < 0:
            return None
        return self._producers.check(producer_id, producer_epoch, base_sequence, record_count)

    # --- batches of the log -----------------------------------------------------------------------

    def apply(self, metadata: BatchMetadata) -> tuple[AbortedTransaction, ...]:
        """Apply the next batch. Returns the transactions that it aborted, for ``.txnindex``."""
        assert metadata.base_offset >= self._end_offset, (
            "batches must be applied in the order of the log"
        )
        self._log_time_ms = max(self._log_time_ms, metadata.max_timestamp_ms)
        aborted: list[AbortedTransaction] = []
        if metadata.producer_id >= 0 and not metadata.is_control:
            self._apply_producer(metadata)
        if metadata.commit is not None:
            self._commits.append(
                LastCommit(
                    metadata.commit, metadata.base_offset, metadata.last_offset, self._log_time_ms
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
        self._end_offset = metadata.next_offset
        return tuple(aborted)

    def drop_decided(self, high_watermark: int) -> None:
        """Drop the transactions that ended below ``high_watermark``, which must not decrease."""
        self._transactions.drop_ended_before(high_watermark)

    def _apply_producer(self, metadata: BatchMetadata) -> None:
        offset_delta = metadata.last_offset - metadata.base_offset
        last_sequence = NO_SEQUENCE
        if metadata.base_sequence >= 0:
            last_sequence = incremented(metadata.base_sequence, offset_delta)
        self._producers.append(
            metadata.producer_id,
            metadata.producer_epoch,
            ProducerBatch(last_sequence, metadata.last_offset, offset_delta),
            self._log_time_ms,
            is_transactional=metadata.is_transactional,
        )
        if metadata.is_transactional:
            self._transactions.open_transaction(metadata.producer_id, metadata.base_offset)

    def _boundary_outside_transactions(self, metadata: BatchMetadata) -> int:
        """Return the last batch boundary, up to this batch, outside every metadata transaction.

        A batch may end one transaction and begin the next. Then the boundary is where the first
        began: a replay from the second would miss the first.
        """
        if self._unknown_from is not None:
            return self._unknown_from
        opened = self._open_metadata_transaction()
        return metadata.base_offset if opened is None else opened[1]

    def _apply_metadata_marker(self, marker: MetadataMarker, outside_offset: int) -> None:
        self._transactions.metadata_marker(
            marker.marker, marker.offset, batch_base_offset=outside_offset, name=marker.name
        )
        del self._transactions.problems[_PROBLEMS_MAX:]
        self._unknown_from = None

    def _end_transaction(
        self, metadata: BatchMetadata, marker: ProducerMarker
    ) -> list[AbortedTransaction]:
        if metadata.producer_id < 0:
            return []  # a marker without a producer, not written by Kafka or raftlog
        first_offset = self._producers.end_transaction(
            metadata.producer_id,
            metadata.producer_epoch,
            marker.coordinator_epoch,
            self._log_time_ms,
        )
        self._transactions.end_transaction(
            metadata.producer_id, marker.offset, commit=marker.is_commit
        )
        if first_offset is None or marker.is_commit:
            return []
        others = (span.first_offset for span, _ in self._transactions.open_now())
        return [
            AbortedTransaction(
                producer_id=metadata.producer_id,
                first_offset=first_offset,
                last_offset=marker.offset,
                last_stable_offset=min(others, default=marker.offset + 1),
            )
        ]

    def _open_metadata_transaction(self) -> tuple[TransactionSpan, int] | None:
        found = (
            one
            for one in self._transactions.open_now()
            if one[0].producer_id == METADATA_PRODUCER_ID
        )
        return next(found, None)

    # --- snapshots --------------------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """Return the content of ``<end_offset>.snapshot``."""
        opened = self._open_metadata_transaction()
        trailer = ProducerStateTrailer(
            log_time_ms=self._log_time_ms,
            older_batches=tuple(entry.batches[:-1] for entry in self._producers),
            commits=tuple(self._commits),
            open_transaction=None
            if opened is None
            else OpenTransaction(opened[0].first_offset, opened[1], opened[0].name),
        )
        return encode_producer_snapshot(map(_state, self._producers), encode_trailer(trailer))

    @classmethod
    def decode_snapshot(cls, data: bytes, path: str, end_offset: int) -> ProducerStateManager:
        """Parse a producer snapshot.

        One of Kafka's has no commits, only the last batch of each producer, and no open metadata
        transaction. Raises ``CorruptFileError``.
        """
        states, trailing = split_producer_snapshot(data, path)
        trailer = parse_trailer(trailing, path, len(states))
        producer_state = cls(
            path, end_offset=end_offset, is_whole=trailer is not None or end_offset == 0
        )
        older: Iterable[tuple[ProducerBatch, ...]] = ((),) * len(states)
        if trailer is not None:
            older = trailer.older_batches
            producer_state._commits = Commits(trailer.commits)
            producer_state._log_time_ms = trailer.log_time_ms
            producer_state._restore_transactions(trailer.open_transaction)
        producer_state._producers = Producers(map(_entry, states, older))
        for state in states:
            producer_state._log_time_ms = max(producer_state._log_time_ms, state.timestamp_ms)
            if state.open_transaction_first_offset is not None:
                producer_state._transactions.open_transaction(
                    state.producer_id, state.open_transaction_first_offset
                )
        return producer_state

    def to_header_field(self) -> TaggedField:
        """Return the field that a checkpoint of ``end_offset`` has in its ``SnapshotHeader``."""
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

    def _restore_transactions(self, opened: OpenTransaction | None) -> None:
        if opened is not None:
            self._transactions.metadata_marker(
                Marker.BEGIN,
                opened.first_offset,
                batch_base_offset=opened.batch_base_offset,
                name=opened.name,
            )


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
