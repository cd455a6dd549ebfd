"""Appends become batches: offsets given, tokens checked, batches filled and handed out in order.

Rules of this file:

1. Everything happens under the caller's lock: the token is checked in the same step that gives the
   offsets. Time is an argument. (Kafka: ``BatchAccumulator``, which has a lock of its own and lets
   a drain pass by an append; here the driver does.)
2. A refusal changes nothing: neither offsets nor batches. Checks come in Kafka's order: epoch,
   token, room in a batch.
3. A list goes into one batch (``append_atomic``) or in order into as many as it needs
   (``append``, KAFKA-12258). A batch that carries a token, a commit's name or a producer's id
   holds nothing else.
4. Batches leave in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from raftlog.errors import (
    AppendError,
    FutureEpochError,
    InvalidAppendError,
    InvalidTimestampError,
    NotLeaderError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import (
    BATCH_BYTES_MAX,
    TIMESTAMP_AFTER_MS_MAX,
)

from .builder import NO_PRODUCER, BatchBuilder, EncodedRecords, ProducerStamp
from .compression import Compression
from .encoding import RecordToAppend
from .packed import PackedRecords


class _BatchPart(NamedTuple):
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
        byte_count_max: int = BATCH_BYTES_MAX,
        compression: Compression = Compression.NONE,
    ) -> None:
        self._epoch = epoch
        self._next_offset = next_offset
        self._byte_count_max: Final = byte_count_max
        self._compression: Final = compression
        self._current_batch: BatchBuilder | None = None
        self._completed: list[bytes] = []

    # --- what it knows ----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The only epoch whose appends are taken."""
        return self._epoch

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._next_offset

    # --- appending --------------------------------------------------------------------------------

    def append(self, epoch: int, records: Sequence[RecordToAppend], *, now_ms: int) -> int:
        """Append in order, in as many batches as it takes. Returns the last record's offset.

        A writer that fails may leave some of the batches written and others not. Raises
        ``NotLeaderError``, ``FutureEpochError``, ``InvalidAppendError`` (no records),
        ``RecordBatchTooLargeError`` (one record alone is too large; none of them is appended),
        ``InvalidTimestampError`` (a time too far ahead of ``now_ms``).
        """
        self._check(epoch, records)
        current = self._current_batch or self._new_builder(now_ms)
        parts = self._encode_whole(current, records, now_ms) or self._split(
            current, records, now_ms
        )
        self._add(parts, now_ms)
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
        has_required_offset = required_end_offset is not None or required_base_offset is not None
        self._check(epoch, records, may_be_empty=has_required_offset)
        self._check_token(len(records), required_end_offset, required_base_offset)
        if not records:
            return self._next_offset - 1
        is_packed = isinstance(records, PackedRecords)
        if standalone or has_required_offset or producer is not None or is_packed:
            base_ms = records.base_timestamp_ms if isinstance(records, PackedRecords) else None
            base_ms = now_ms if base_ms is None else base_ms
            builder = self._new_builder(base_ms, producer or NO_PRODUCER)
            self._append_standalone(builder, records, now_ms)
            return self._next_offset - 1
        current = self._current_batch or self._new_builder(now_ms)
        parts = self._encode_whole(current, records, now_ms)
        if parts is None:
            raise self._too_large(records, now_ms)
        self._add(parts, now_ms)
        return self._next_offset - 1

    # --- draining ---------------------------------------------------------------------------------

    def drain(self) -> list[bytes]:
        """Return all batches that wait, in order."""
        self._complete()
        drained, self._completed = self._completed, []
        return drained

    # --- inside -----------------------------------------------------------------------------------

    def _check(self, epoch: int, records: Sequence[object], *, may_be_empty: bool = False) -> None:
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
            compression=self._compression,
            producer=producer,
        )

    def _encode_whole(
        self, current: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> list[_BatchPart] | None:
        """All of them into the batch that is being filled, or else into a new one."""
        encoded = current.encode(records)
        if encoded is None and current.record_count:
            current = self._new_builder(now_ms)
            encoded = current.encode(records)
        return None if encoded is None else [_BatchPart(current, encoded)]

    def _split(
        self, builder: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> list[_BatchPart]:
        """Fill batch after batch, record by record."""
        parts: list[_BatchPart] = []
        start = 0
        while start < len(records):
            count = builder.fitting_record_count(records, start)
            if count:
                encoded = builder.encode(records[start : start + count])
                assert encoded is not None, "what was measured fits"
                parts.append(_BatchPart(builder, encoded))
                start += count
            elif not builder.record_count:
                raise self._too_large(records[start : start + 1], now_ms)
            builder = self._new_builder(now_ms)
        return parts

    def _too_large(self, records: Sequence[RecordToAppend], now_ms: int) -> AppendError:
        return self._new_builder(now_ms).too_large(records)

    def _append_standalone(
        self, builder: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> None:
        encoded = builder.encode(records)
        if encoded is None:
            raise self._too_large(records, now_ms)
        self._add([_BatchPart(builder, encoded)], now_ms)
        self._complete()

    def _add(self, parts: list[_BatchPart], now_ms: int) -> None:
        """The one step that changes anything."""
        latest_ms = max(part.encoded.max_timestamp_ms for part in parts)
        if latest_ms > now_ms + TIMESTAMP_AFTER_MS_MAX:
            raise InvalidTimestampError(
                timestamp_ms=latest_ms, now_ms=now_ms, after_ms_max=TIMESTAMP_AFTER_MS_MAX
            )
        for part in parts:
            if self._current_batch is not part.builder:
                self._complete()
                self._current_batch = part.builder
            part.builder.add(part.encoded)
            self._next_offset += part.encoded.record_count

    def _complete(self) -> None:
        builder, self._current_batch = self._current_batch, None
        if builder is not None:
            base_offset = self._next_offset - builder.record_count
            self._completed.append(builder.build(base_offset, self._epoch))
