"""Tell a memory of batches in a line each: offsets run on by themselves, and so does log time."""

from __future__ import annotations

from raftlog.log.transactions import Marker
from raftlog.log.txn_index import AbortedTransaction
from raftlog.log.writing.batch_facts import (
    BatchFacts,
    CommitName,
    MetadataMarker,
    ProducerMarker,
)
from raftlog.log.writing.memory import LogMemory


class Teller:
    """Feeds one memory. Every batch is a millisecond later than the last, unless it says."""

    def __init__(self, memory: LogMemory | None = None) -> None:
        self.memory = memory if memory is not None else LogMemory("/log")
        self.time_ms = max(self.memory.log_time_ms, 1_000)

    @property
    def end(self) -> int:
        return self.memory.end_offset

    def data(
        self,
        count: int = 1,
        *,
        producer: int = -1,
        epoch: int = 0,
        sequence: int = 0,
        in_transaction: bool = False,
        commit: CommitName | None = None,
        markers: dict[int, Marker] | None = None,
        time_ms: int | None = None,
        name: str | None = None,
    ) -> BatchFacts:
        """A data batch. ``markers``: at which record of it which metadata marker stands."""
        has_producer = producer >= 0
        base = self.end
        facts = BatchFacts(
            base_offset=base,
            last_offset=base + count - 1,
            leader_epoch=1,
            max_timestamp_ms=self._next_time(time_ms),
            producer_id=producer,
            producer_epoch=epoch if has_producer else -1,
            base_sequence=sequence if has_producer else -1,
            record_count=count,
            is_transactional=in_transaction,
            commit=commit,
            markers=tuple(
                MetadataMarker(base + at, marker, name if marker is Marker.BEGIN else None)
                for at, marker in (markers or {}).items()
            ),
        )
        self.memory.apply(facts)
        return facts

    def end_transaction(
        self,
        producer: int,
        *,
        commit: bool,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        time_ms: int | None = None,
    ) -> tuple[AbortedTransaction, ...]:
        """The control batch that ends a producer's transaction."""
        facts = BatchFacts(
            base_offset=self.end,
            last_offset=self.end,
            leader_epoch=1,
            max_timestamp_ms=self._next_time(time_ms),
            producer_id=producer,
            producer_epoch=epoch,
            record_count=1,
            is_control=True,
            is_transactional=True,
            markers=(ProducerMarker(self.end, commit, coordinator_epoch),),
        )
        return self.memory.apply(facts)

    def _next_time(self, time_ms: int | None) -> int:
        self.time_ms += 1
        return self.time_ms if time_ms is None else time_ms


def restarted(memory: LogMemory) -> LogMemory:
    """The memory after a restart: through the bytes of its snapshot."""
    return LogMemory.decode_snapshot(memory.encode_snapshot(), "/log/s", memory.end_offset)
