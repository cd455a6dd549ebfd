"""Short ways to feed a producer state manager batch by batch, with increasing offsets and times."""

from __future__ import annotations

from raftlog.log.reading.transactions import (
    BatchMetadata,
    CommitName,
    Marker,
    MetadataMarker,
    ProducerMarker,
)
from raftlog.log.segment import AbortedTransaction
from raftlog.log.writing.producer_state import ProducerStateManager


class BatchFeeder:
    """Feeder of one producer state. Each batch is 1 ms later than the last one by default."""

    def __init__(self, producer_state: ProducerStateManager | None = None) -> None:
        self.producer_state = (
            producer_state if producer_state is not None else ProducerStateManager("/log")
        )
        self.time_ms = max(self.producer_state.log_time_ms, 1_000)

    @property
    def end(self) -> int:
        return self.producer_state.end_offset

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
    ) -> BatchMetadata:
        """Add a data batch. ``markers``: metadata transaction markers by index of the record."""
        has_producer = producer >= 0
        base = self.end
        metadata = BatchMetadata(
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
        self.producer_state.apply(metadata)
        return metadata

    def end_transaction(
        self,
        producer: int,
        *,
        commit: bool,
        epoch: int = 0,
        coordinator_epoch: int = 0,
        time_ms: int | None = None,
    ) -> tuple[AbortedTransaction, ...]:
        """Add the control batch that ends a producer's transaction."""
        metadata = BatchMetadata(
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
        return self.producer_state.apply(metadata)

    def _next_time(self, time_ms: int | None) -> int:
        self.time_ms += 1
        return self.time_ms if time_ms is None else time_ms


def restarted(producer_state: ProducerStateManager) -> ProducerStateManager:
    """Return the producer state after a restart, restored from the bytes of its snapshot."""
    return ProducerStateManager.decode_snapshot(
        producer_state.encode_snapshot(), "/log/s", producer_state.end_offset
    )
