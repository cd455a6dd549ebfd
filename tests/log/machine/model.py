"""Model of an embedded log and its producer state in lists and dictionaries.

Invariants:

1. No code of the log decides anything here: only its types are used.
2. An entry is the whole of one append; everything else is a fold over the entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raftlog.append import AppendRequest
from raftlog.errors import (
    ForeignCommitError,
    FutureEpochError,
    InvalidProducerEpochError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RaftlogError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.log.reading.transactions import CommitName
from raftlog.records.builder import ProducerStamp

BATCHES_KEPT = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One append. A value of None is a control record."""

    base_offset: int
    values: tuple[bytes | None, ...]
    epoch: int
    commit: CommitName | None = None
    producer: ProducerStamp | None = None

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.values)


@dataclass(frozen=True, slots=True)
class AppendedBatch:
    """Append that succeeds, and the offsets of its records (last offset inclusive)."""

    base_offset: int
    last_offset: int
    was_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """A producer's batch."""

    base_sequence: int
    count: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class Model:
    """Immutable model of a log: every append returns another one.

    ``noted_epoch``: epoch of a log without batches, whose leader change record was deleted.
    """

    start_offset: int = 0
    noted_epoch: int = 0
    entries: tuple[Entry, ...] = ()
    commits: dict[str, tuple[CommitName, int, int]] = field(default_factory=dict)
    producers: dict[int, tuple[int, tuple[Batch, ...]]] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset

    @property
    def epoch(self) -> int:
        return max(self.noted_epoch, self.entries[-1].epoch)

    def rows(self) -> list[tuple[int, int, bytes | None]]:
        """Return offset, epoch and value of the readable records."""
        return [
            (offset, entry.epoch, value)
            for entry in self.entries
            for offset, value in enumerate(entry.values, start=entry.base_offset)
            if offset >= self.start_offset
        ]

    def with_entry(self, entry: Entry) -> Model:
        """Return the log with one more entry."""
        commits, producers = self.commits, self.producers
        if entry.commit is not None:
            last = entry.commit, entry.base_offset, entry.end_offset - 1
            commits = {**commits, entry.commit.application_id: last}
        if entry.producer is not None:
            stamp = entry.producer
            epoch, batches = producers.get(stamp.producer_id, (stamp.producer_epoch, ()))
            kept = batches if epoch == stamp.producer_epoch else ()
            batch = Batch(stamp.base_sequence, len(entry.values), entry.base_offset)
            known = stamp.producer_epoch, (*kept, batch)[-BATCHES_KEPT:]
            producers = {**producers, stamp.producer_id: known}
        return replace(self, entries=(*self.entries, entry), commits=commits, producers=producers)

    def claimed(self) -> Model:
        """Return the log with the leader change of its next epoch."""
        return self.with_entry(Entry(self.end_offset, (None,), self.epoch + 1))

    def starting_at(self, offset: int) -> Model:
        return replace(self, start_offset=offset)

    def cut(self, offset: int) -> Model:
        """Return the log truncated to an offset, as if later records had never been appended."""
        model = Model(self.start_offset)
        for entry in self.entries:
            if entry.end_offset <= offset:
                model = model.with_entry(entry)
            else:
                assert entry.base_offset >= offset, "an append was written in part"
        return model

    # --- results of appends -----------------------------------------------------------------------

    def answer(self, request: AppendRequest) -> tuple[AppendedBatch | type[RaftlogError], Model]:
        """Return the result of the request, and the log after it."""
        refused = self._refused(request)
        if refused is not None:
            return refused, self
        base_offset, count = self.end_offset, len(request.records)
        if not count:
            return AppendedBatch(base_offset, base_offset - 1), self
        values = tuple(one if isinstance(one, bytes) else one.value for one in request.records)
        entry = Entry(base_offset, values, self.epoch, request.commit, request.producer)
        return AppendedBatch(base_offset, base_offset + count - 1), self.with_entry(entry)

    def _refused(self, request: AppendRequest) -> AppendedBatch | type[RaftlogError] | None:
        """Return the first refusal, by epoch, identity and required offset."""
        if request.epoch is not None and request.epoch != self.epoch:
            return NotLeaderError if request.epoch < self.epoch else FutureEpochError
        found: AppendedBatch | type[RaftlogError] | None = None
        if request.commit is not None:
            found = self._commit(request.commit, take_over_from=request.take_over_from)
        if request.producer is not None:
            found = self._producer(request.producer, len(request.records))
        if found is not None:
            return found
        end = self.end_offset + len(request.records) - 1
        is_right = request.required_base_offset in (None, self.end_offset)
        is_right &= request.required_end_offset in (None, end)
        return None if is_right else UnexpectedEndOffsetError

    def _commit(
        self, name: CommitName, *, take_over_from: str | None
    ) -> AppendedBatch | type[RaftlogError] | None:
        if name.application_id not in self.commits:
            return None
        last, base_offset, last_offset = self.commits[name.application_id]
        if name == last:
            return AppendedBatch(base_offset, last_offset, was_duplicate=True)
        if name.query_id != last.query_id:
            return None if take_over_from == last.query_id else ForeignCommitError
        return StaleCommitError if name.version < last.version else None

    def _producer(
        self, stamp: ProducerStamp, count: int
    ) -> AppendedBatch | type[RaftlogError] | None:
        if stamp.producer_id not in self.producers:
            return None
        epoch, batches = self.producers[stamp.producer_id]
        if stamp.producer_epoch < epoch:
            return InvalidProducerEpochError
        expected = 0
        if stamp.producer_epoch == epoch:
            for batch in batches:
                if (batch.base_sequence, batch.count) == (stamp.base_sequence, count):
                    last_offset = batch.base_offset + count - 1
                    return AppendedBatch(batch.base_offset, last_offset, was_duplicate=True)
            expected = batches[-1].base_sequence + batches[-1].count
        return None if stamp.base_sequence == expected else OutOfOrderSequenceError
