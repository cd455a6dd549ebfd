"""What a log remembers of its producers: epochs, and the sequences of their last five batches.

Rules of this file:

1. ``check`` is asked before an append and changes nothing; ``append`` and ``end_transaction`` are
   told what lies in the log, in order, and never fail: what is written is written.
2. A producer's epoch never falls. A batch of an older one in the log (no check let it in) is not
   remembered.
3. Entries are values in the order of their last use, so that a copy is cheap and the one that has
   been silent longest is first. Beyond ``PRODUCERS_MAX`` it is forgotten; one whose transaction is
   open is never forgotten. Nothing is forgotten by age (Kafka: ``producer.id.expiration.ms``).
4. Sequences count from 0 to 2^31 - 1 and begin again at 0.
5. Kafka: ``ProducerStateManager``, ``ProducerStateEntry``, ``ProducerAppendInfo`` (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from raftlog.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from raftlog.limits import PRODUCER_BATCHES_KEPT, PRODUCERS_MAX

NO_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
_SEQUENCES: Final = 2**31


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The append was made before, and got these offsets (both inclusive)."""

    base_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """A batch of a producer. ``offset_delta``: its last offset less its first."""

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
    """One producer: its newest batches, oldest first, all of its current epoch.

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
        """The retained batch that has exactly these sequences."""
        last_sequence = incremented(base_sequence, record_count - 1)
        for batch in self.batches:
            if (batch.base_sequence, batch.last_sequence) == (base_sequence, last_sequence):
                return Duplicate(batch.base_offset, batch.last_offset)
        return None

    def with_batch(self, producer_epoch: int, batch: ProducerBatch) -> ProducerEntry:
        """The entry after a batch. A new epoch forgets the batches of the old one."""
        kept = self.batches if producer_epoch == self.producer_epoch else ()
        return replace(
            self,
            producer_epoch=producer_epoch,
            batches=(*kept, batch)[-PRODUCER_BATCHES_KEPT:],
        )


class Producers:
    """The producers of one log."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        """Entries, the one that has been silent longest first."""
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
        """Whether a batch may be appended: None, or the offsets that it has already.

        A producer that is not known may begin with any sequence, since it may have been forgotten;
        a new epoch begins with 0. Raises ``InvalidProducerEpochError`` for an epoch older than the
        last, ``OutOfOrderSequenceError`` for a gap, and for a repeat of a batch that is older than
        the last five.
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

    # --- what lies in the log ---------------------------------------------------------------------

    def append(
        self,
        producer_id: int,
        producer_epoch: int,
        batch: ProducerBatch,
        timestamp_ms: int,
        *,
        is_transactional: bool,
    ) -> None:
        """Note a batch. The first transactional one of a producer opens its transaction."""
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
        """Note the marker that ends a producer's transaction.

        Gives the first offset of the transaction, or None if it wrote nothing here.
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
            silent = next(idle, None)
            if silent is not None:
                del self._entries[silent.producer_id]


def incremented(sequence: int, count: int) -> int:
    """``count`` sequences on, around 2^31 - 1 (Kafka: ``DefaultRecordBatch.incrementSequence``)."""
    return (sequence + count) % _SEQUENCES


def decremented(sequence: int, count: int) -> int:
    """``count`` sequences back."""
    return (sequence - count) % _SEQUENCES
