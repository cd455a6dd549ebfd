"""Appends become batches: offsets given, tokens checked, batches filled and handed out in order.

Rules of this file:

1. Everything happens under the caller's lock: the token is checked in the same step that gives the
   offsets. Time is an argument. (Kafka: ``BatchAccumulator``, which has a lock of its own and lets
   a drain pass by an append; here the driver does.)
2. A refusal changes nothing: neither offsets nor batches nor the pool. Checks come in Kafka's
   order: epoch, token, room in a batch, memory.
3. A list goes into one batch (``append_atomic``) or in order into as many as it needs
   (``append``, KAFKA-12258). A batch that carries a token, a commit's name or a producer's id
   holds nothing else, and a control batch no data.
4. Batches leave in the order of their offsets; what they hold of the pool comes back with
   ``CompletedBatch.release``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from raftlog.errors import (
    AppendError,
    FutureEpochError,
    InvalidAppendError,
    InvalidTimestampError,
    LogClosedError,
    NotLeaderError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    RAW_BATCH_BYTES_MAX,
    TIMESTAMP_AFTER_MS_MAX,
)

from .buffer_pool import BufferPool
from .builder import NO_PRODUCER, BatchBuilder, EncodedRecords, ProducerStamp
from .compression import Compression
from .control import ControlRecord, encode_control
from .encoding import RecordsToEncode, RecordToAppend
from .packed import PackedRecords
from .record import NewRecord

LINGER_MS_DEFAULT: Final = 25
"""How long the first append of a batch may wait for others (Kafka: ``raft.linger.ms``)."""


class CompletedBatch:
    """A batch that is ready to be written. ``last_offset`` is inclusive.

    ``release`` gives its memory back: once, after it was written or given up.
    """

    __slots__ = (
        "_is_released",
        "_pool",
        "base_offset",
        "data",
        "epoch",
        "is_control",
        "last_offset",
        "max_timestamp_ms",
        "producer",
    )

    def __init__(
        self, builder: BatchBuilder, base_offset: int, epoch: int, pool: BufferPool
    ) -> None:
        self.base_offset: Final = base_offset
        self.last_offset: Final = base_offset + builder.record_count - 1
        self.epoch: Final = epoch
        self.data: Final = builder.build(base_offset, epoch)
        self.max_timestamp_ms: Final = builder.max_timestamp_ms
        self.producer: Final = builder.producer
        self.is_control: Final = builder.is_control
        self._pool = pool
        self._is_released = False
        pool.give_back(builder.byte_count - len(self.data))

    @property
    def record_count(self) -> int:
        return self.last_offset - self.base_offset + 1

    def release(self) -> None:
        """Give its bytes back to the pool."""
        assert not self._is_released, "a batch is released once"
        self._is_released = True
        self._pool.give_back(len(self.data))


class _Placed(NamedTuple):
    """Records in the bytes that they will have, and the builder they are for."""

    builder: BatchBuilder
    encoded: EncodedRecords


class BatchAccumulator:
    """Collects the appends of one leader epoch. Not safe for threads: see rule 1."""

    def __init__(
        self,
        *,
        epoch: int,
        next_offset: int,
        pool: BufferPool,
        linger_ms: int = LINGER_MS_DEFAULT,
        byte_count_max: int = BATCH_BYTES_MAX,
        raw_byte_count_max: int = RAW_BATCH_BYTES_MAX,
        compression: Compression = Compression.NONE,
    ) -> None:
        assert byte_count_max <= pool.byte_count_max, "a pool holds a whole batch at least"
        self._epoch = epoch
        self._next_offset = next_offset
        self._pool: Final = pool
        self._linger_ms: Final = linger_ms
        self._byte_count_max: Final = byte_count_max
        self._raw_byte_count_max: Final = raw_byte_count_max
        self._compression: Final = compression
        self._filling: BatchBuilder | None = None
        self._completed: list[CompletedBatch] = []
        self._lingers_until_ms: float = math.inf
        self._is_due = False
        self._is_closed = False

    # --- what it knows ----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The only epoch whose appends are taken."""
        return self._epoch

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._next_offset

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be drained."""
        return self._filling is None and not self._completed

    def time_until_drain(self, now_ms: float) -> float:
        """Milliseconds until what waits should be drained; infinity if nothing waits.

        Nothing waits longer once a batch is full, holds control records, or a drain was forced.
        """
        if self._is_due:
            return 0
        return max(0, self._lingers_until_ms - now_ms)

    def needs_drain(self, now_ms: float) -> bool:
        """Whether what waits should be drained now."""
        return self.time_until_drain(now_ms) <= 0

    # --- appending --------------------------------------------------------------------------------

    def begin(self, epoch: int, next_offset: int) -> None:
        """Say where the log ends now, and in which epoch: before requests that waited are placed.

        Nothing may wait here: batches that have offsets already would be in the wrong place.
        """
        assert self.is_empty, "batches with offsets are still waiting"
        self._epoch = epoch
        self._next_offset = next_offset

    def append(self, epoch: int, records: Sequence[RecordToAppend], *, now_ms: int) -> int:
        """Append in order, in as many batches as it takes. Returns the last record's offset.

        A writer that fails may leave some of the batches written and others not. Raises
        ``NotLeaderError``, ``FutureEpochError``, ``InvalidAppendError`` (no records),
        ``RecordBatchTooLargeError`` (one record alone is too large; none of them is appended),
        ``InvalidTimestampError`` (a time too far ahead of ``now_ms``),
        ``BufferAllocationError``, ``LogClosedError``.
        """
        self._check(epoch, records)
        filling = self._filling or self._new_builder(now_ms)
        placed = self._place_whole(filling, records, now_ms) or self._split(
            filling, records, now_ms
        )
        self._add(placed, now_ms)
        return self._next_offset - 1

    def append_atomic(
        self,
        epoch: int,
        records: Sequence[RecordToAppend],
        *,
        now_ms: int,
        required_end_offset: int | None = None,
        required_base_offset: int | None = None,
        standalone: bool = False,
        producer: ProducerStamp | None = None,
    ) -> int:
        """Append all records in one batch, or none. Returns the last record's offset.

        ``required_end_offset`` is the offset that the last record must get (Kafka's token, begin
        and end markers counted), ``required_base_offset`` the first one's. Under a token no records
        may be given: that only checks, and returns the offset before the next. ``standalone`` keeps
        other appends out of the batch, as a token, a producer and packed records do by themselves.

        Raises like ``append``, and ``UnexpectedEndOffsetError`` and ``RecordBatchTooLargeError``
        for what the token and one batch cannot hold.
        """
        has_token = required_end_offset is not None or required_base_offset is not None
        self._check(epoch, records, may_be_empty=has_token)
        self._check_token(len(records), required_end_offset, required_base_offset)
        if not records:
            return self._next_offset - 1
        is_packed = isinstance(records, PackedRecords)
        if standalone or has_token or producer is not None or is_packed:
            base_ms = records.base_timestamp_ms if isinstance(records, PackedRecords) else None
            base_ms = now_ms if base_ms is None else base_ms
            builder = self._new_builder(base_ms, producer or NO_PRODUCER)
            self._append_alone(builder, records, now_ms)
            return self._next_offset - 1
        filling = self._filling or self._new_builder(now_ms)
        placed = self._place_whole(filling, records, now_ms)
        if placed is None:
            raise self._too_large(records, now_ms)
        self._add(placed, now_ms)
        return self._next_offset - 1

    def append_control(
        self,
        records: Sequence[ControlRecord],
        *,
        now_ms: int,
        producer: ProducerStamp = NO_PRODUCER,
    ) -> int:
        """Append control records as a batch of their own, to be drained at once.

        The log appends these itself, so there is no epoch and no token to check. Returns the last
        one's offset. Raises ``InvalidAppendError``, ``BufferAllocationError``, ``LogClosedError``.
        """
        self._check(self._epoch, records)
        encoded = [NewRecord(*encode_control(record)) for record in records]
        builder = BatchBuilder(
            base_timestamp_ms=now_ms,
            byte_count_max=self._byte_count_max,
            producer=producer,
            is_control=True,
        )
        self._append_alone(builder, encoded, now_ms)
        self._is_due = True
        return self._next_offset - 1

    # --- draining ---------------------------------------------------------------------------------

    def force_drain(self) -> None:
        """Make what waits due now; nothing happens if nothing waits."""
        self._is_due = not self.is_empty

    def drain(self) -> list[CompletedBatch]:
        """All that waits, in order; the linger begins anew with the next append."""
        self._complete()
        drained, self._completed = self._completed, []
        self._lingers_until_ms = math.inf
        self._is_due = False
        return drained

    def close(self) -> None:
        """Drop what waits, give its memory back, and refuse whatever comes."""
        if self._filling is not None:
            self._pool.give_back(self._filling.byte_count)
            self._filling = None
        for batch in self.drain():
            batch.release()
        self._is_closed = True

    # --- inside -----------------------------------------------------------------------------------

    def _check(self, epoch: int, records: Sequence[object], *, may_be_empty: bool = False) -> None:
        if self._is_closed:
            raise LogClosedError(reason="it takes no more appends")
        if epoch < self._epoch:
            raise NotLeaderError(epoch=epoch, current_epoch=self._epoch)
        if epoch > self._epoch:
            raise FutureEpochError(epoch=epoch, current_epoch=self._epoch)
        if not records and not may_be_empty:
            raise InvalidAppendError(reason="there are no records")

    def _check_token(
        self, count: int, required_end_offset: int | None, required_base_offset: int | None
    ) -> None:
        is_end_right = required_end_offset in (None, self._next_offset + count - 1)
        is_base_right = required_base_offset in (None, self._next_offset)
        if not (is_end_right and is_base_right):
            raise UnexpectedEndOffsetError(
                required_end_offset=None if is_end_right else required_end_offset,
                required_base_offset=None if is_base_right else required_base_offset,
                record_count=count,
                log_end_offset=self._next_offset,
            )

    def _new_builder(self, now_ms: int, producer: ProducerStamp = NO_PRODUCER) -> BatchBuilder:
        return BatchBuilder(
            base_timestamp_ms=now_ms,
            byte_count_max=self._byte_count_max,
            raw_byte_count_max=self._raw_byte_count_max,
            compression=self._compression,
            producer=producer,
        )

    def _place_whole(
        self, filling: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> list[_Placed] | None:
        """All of them into the batch that is being filled, or else into a new one."""
        encoded = filling.encode(records)
        if encoded is None and filling.record_count:
            filling = self._new_builder(now_ms)
            encoded = filling.encode(records)
        return None if encoded is None else [_Placed(filling, encoded)]

    def _split(
        self, builder: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> list[_Placed]:
        """Fill batch after batch, record by record."""
        self._check_pool_size(RecordsToEncode(records).least_byte_count())
        placed: list[_Placed] = []
        start = 0
        while start < len(records):
            count = builder.count_that_fits(records, start)
            if count:
                encoded = builder.encode(records[start : start + count])
                assert encoded is not None, "what was measured fits"
                placed.append(_Placed(builder, encoded))
                start += count
            elif not builder.record_count:
                raise self._too_large(records[start : start + 1], now_ms)
            builder = self._new_builder(now_ms)
        return placed

    def _too_large(self, records: Sequence[RecordToAppend], now_ms: int) -> AppendError:
        return self._new_builder(now_ms).too_large(records)

    def _append_alone(
        self, builder: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> None:
        was_due = self._is_due
        encoded = builder.encode(records)
        if encoded is None:
            raise self._too_large(records, now_ms)
        self._add([_Placed(builder, encoded)], now_ms)
        self._complete()
        self._is_due = was_due  # nothing is full: others may still join the same write

    def _add(self, placed: list[_Placed], now_ms: int) -> None:
        """The one step that changes anything, and only after the memory was given."""
        latest_ms = max(place.encoded.max_timestamp_ms for place in placed)
        if latest_ms > now_ms + TIMESTAMP_AFTER_MS_MAX:
            raise InvalidTimestampError(
                timestamp_ms=latest_ms, now_ms=now_ms, after_ms_max=TIMESTAMP_AFTER_MS_MAX
            )
        new_count = sum(place.builder is not self._filling for place in placed)
        byte_count = sum(len(place.encoded.data) for place in placed)
        byte_count += BATCH_HEADER_BYTES * new_count
        self._check_pool_size(byte_count)
        self._pool.take(byte_count)
        if self.is_empty:
            self._lingers_until_ms = now_ms + self._linger_ms
        for place in placed:
            if self._filling is not place.builder:
                self._is_due |= self._filling is not None
                self._complete()
                self._filling = place.builder
            place.builder.add(place.encoded)
            self._next_offset += place.encoded.record_count

    def _check_pool_size(self, byte_count: int) -> None:
        """Waiting would not help an append that is larger than the whole pool."""
        if byte_count > self._pool.byte_count_max:
            raise RecordBatchTooLargeError(
                byte_count=byte_count, byte_count_max=self._pool.byte_count_max
            )

    def _complete(self) -> None:
        builder, self._filling = self._filling, None
        if builder is not None:
            base_offset = self._next_offset - builder.record_count
            self._completed.append(CompletedBatch(builder, base_offset, self._epoch, self._pool))
