"""Producer state of a log: the epoch of each producer, and its last five batches.

``check`` is called before an append and changes nothing. ``append`` and ``end_transaction`` apply
what the log contains, in order, and never fail.

A producer's epoch never decreases: a batch of an older epoch in the log, which no check accepted,
is ignored. Sequences run from 0 to 2^31 - 1 and wrap to 0. Beyond ``PRODUCERS_MAX`` the least
recently used producer without an open transaction is evicted; nothing expires by age (Kafka:
``producer.id.expiration.ms``).

Kafka: ``ProducerStateManager``, ``ProducerStateEntry``, ``ProducerAppendInfo`` (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from raftlog.errors import (
    ForeignCommitError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    StaleCommitError,
)
from raftlog.limits import COMMITS_MAX, PRODUCER_BATCHES_KEPT, PRODUCERS_MAX

from .batch_metadata import CommitName

NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
_SEQUENCES: Final = 2**31


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A batch that is in the log already, at these offsets (both inclusive)."""

    base_offset: int
    last_offset: int


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

    def duplicate_of(self, base_sequence: int, record_count: int) -> Duplicate | None:
        """Return the retained batch with exactly these sequences, if there is one."""
        last_sequence = incremented(base_sequence, record_count - 1)
        for batch in self.batches:
            if (batch.base_sequence, batch.last_sequence) == (base_sequence, last_sequence):
                return Duplicate(batch.base_offset, batch.last_offset)
        return None

    def with_batch(self, producer_epoch: int, batch: ProducerBatch) -> ProducerEntry:
        """Return the entry after a batch. A new epoch drops the batches of the old one."""
        kept = self.batches if producer_epoch == self.producer_epoch else ()
        return replace(
            self,
            producer_epoch=producer_epoch,
            batches=(*kept, batch)[-PRODUCER_BATCHES_KEPT:],
        )


class Producers:
    """The producers of one log, in order of their last use. A copy is cheap."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        """Iterate over the entries, least recently used first."""
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def copy(self) -> Producers:
        copied = Producers()
        copied._entries = self._entries.copy()
        return copied

    # --- before an append -------------------------------------------------------------------------

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, record_count: int
    ) -> Duplicate | None:
        """Return None if a batch may be appended, or the offsets that it already has.

        An unknown producer may start with any sequence, since it may have been evicted; a new epoch
        starts with 0. Raises ``InvalidProducerEpochError`` for an epoch older than the last;
        ``OutOfOrderSequenceError`` for a gap, and for a repeat of a batch older than the last five.
        """
        entry = self._entries.get(producer_id)
        if entry is None or entry.producer_epoch == NO_EPOCH:
            return None
        if producer_epoch < entry.producer_epoch:
            raise InvalidProducerEpochError(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                current_producer_epoch=entry.producer_epoch,
            )
        expected = 0
        if producer_epoch == entry.producer_epoch:
            duplicate = entry.duplicate_of(base_sequence, record_count)
            if duplicate is not None:
                return duplicate
            expected = incremented(entry.last_sequence, 1)
        if base_sequence != expected:
            raise OutOfOrderSequenceError(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                sequence=base_sequence,
                expected_sequence=expected,
            )
        return None

    # --- batches of the log -----------------------------------------------------------------------

    def append(
        self,
        producer_id: int,
        producer_epoch: int,
        batch: ProducerBatch,
        timestamp_ms: int,
        *,
        is_transactional: bool,
    ) -> None:
        """Apply a batch. The first transactional one of a producer opens its transaction."""
        entry = self._entries.get(producer_id) or ProducerEntry(producer_id=producer_id)
        has_sequences = batch.last_sequence != NO_SEQUENCE
        if has_sequences and producer_epoch >= entry.producer_epoch:
            entry = entry.with_batch(producer_epoch, batch)
        first_offset = entry.open_transaction_first_offset
        if first_offset is None and is_transactional:
            first_offset = batch.base_offset
        self._use(
            replace(
                entry,
                timestamp_ms=timestamp_ms,
                open_transaction_first_offset=first_offset,
            )
        )

    def end_transaction(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
    ) -> int | None:
        """Apply the marker that ends a producer's transaction.

        Returns the first offset of the transaction, or None if it wrote nothing to this log.
        """
        entry = self._entries.get(producer_id) or ProducerEntry(producer_id=producer_id)
        first_offset = entry.open_transaction_first_offset
        kept = entry.batches if producer_epoch <= entry.producer_epoch else ()
        self._use(
            replace(
                entry,
                producer_epoch=max(producer_epoch, entry.producer_epoch),
                batches=kept,
                timestamp_ms=timestamp_ms,
                coordinator_epoch=max(coordinator_epoch, entry.coordinator_epoch),
                open_transaction_first_offset=None,
            )
        )
        return first_offset

    def _use(self, entry: ProducerEntry) -> None:
        self._entries.pop(entry.producer_id, None)
        self._entries[entry.producer_id] = entry
        if len(self._entries) > PRODUCERS_MAX:
            idle = (one for one in self if one.open_transaction_first_offset is None)
            oldest = next(idle, None)
            if oldest is not None:
                del self._entries[oldest.producer_id]


def incremented(sequence: int, count: int) -> int:
    """Add ``count`` to a sequence (Kafka: ``DefaultRecordBatch.incrementSequence``)."""
    return (sequence + count) % _SEQUENCES


def decremented(sequence: int, count: int) -> int:
    """Subtract ``count`` from a sequence."""
    return (sequence - count) % _SEQUENCES


# --- The last named commit of each application id, to recognize retries of a commit ---------------
# A commit is checked before its log token: a retry of an append that succeeded must get its offsets
# although the log's end has moved on. Names are compared as a whole: the same version under another
# query id is another commit.
#
# Beyond ``COMMITS_MAX`` application ids the least recently used one is evicted. Nothing expires by
# age: no clock proves that an application will not retry, and a wrong clock would let a repeated
# commit be appended twice.


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last commit of an application id: its batch's offsets (inclusive) and its log time.

    ``timestamp_ms`` is -1 in a client's answer if retention has deleted the batch.
    """

    name: CommitName
    base_offset: int
    last_offset: int
    timestamp_ms: int


class Commits:
    """The last commits of one log, by application id."""

    def __init__(self, last: Iterable[LastCommit] = ()) -> None:
        self._last = {commit.name.application_id: commit for commit in last}

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[LastCommit]:
        """Iterate over the last commits, oldest first."""
        return iter(self._last.values())

    def get(self, application_id: str) -> LastCommit | None:
        return self._last.get(application_id)

    def copy(self) -> Commits:
        copied = Commits()
        copied._last = self._last.copy()
        return copied

    def check(self, name: CommitName, *, take_over_from: str | None = None) -> Duplicate | None:
        """Return None if the commit may be appended, or the offsets that it already has.

        ``take_over_from``: the query id of the last commit. Then another query may start under the
        application id, with any version. Raises ``StaleCommitError`` for a version older than the
        last, ``ForeignCommitError`` for another query id.
        """
        last = self._last.get(name.application_id)
        if last is None:
            return None
        if name == last.name:
            return Duplicate(last.base_offset, last.last_offset)
        if name.query_id != last.name.query_id:
            if take_over_from == last.name.query_id:
                return None
            raise ForeignCommitError(
                application_id=name.application_id,
                query_id=name.query_id,
                version=name.version,
                last_query_id=last.name.query_id,
                last_version=last.name.version,
            )
        if name.version < last.name.version:
            raise StaleCommitError(
                application_id=name.application_id,
                query_id=name.query_id,
                version=name.version,
                last_version=last.name.version,
            )
        return None

    def append(self, commit: LastCommit) -> None:
        """Record an appended commit as the last one of its application id, whatever its version."""
        self._last.pop(commit.name.application_id, None)
        self._last[commit.name.application_id] = commit
        if len(self._last) > COMMITS_MAX:
            del self._last[next(iter(self._last))]
