"""Accumulator of appended records: checks, offset assignment and batching of one leader epoch.

As Kafka's ``BatchAccumulator``, but without a lock of its own: the caller's lock makes the check of
required offsets and the assignment of offsets one step. Time is an argument.

The checks have Kafka's order: epoch, required offsets, size. A rejected append changes neither
offsets nor batches.
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
    """Encoded records and the builder that they are encoded for."""

    builder: BatchBuilder
    encoded: EncodedRecords


class BatchAccumulator:
    """Batches of the appends of one leader epoch, in offset order. Not thread-safe.

    Offsets are contiguous from ``next_offset`` on. ``byte_count_max`` is the largest batch, header
    included.
    """

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

    # --- state ------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The only leader epoch whose appends are accepted."""
        return self._epoch

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._next_offset

    # --- appending --------------------------------------------------------------------------------

    def append(self, epoch: int, records: Sequence[RecordToAppend], *, now_ms: int) -> int:
        """Append records in order, in as many batches as needed (KAFKA-12258).

        After a failed write some of the batches may be written and others not. Returns the offset
        of the last record.

        Raises:
            NotLeaderError: ``epoch`` is stale.
            FutureEpochError: ``epoch`` is larger than the current one.
            InvalidAppendError: there are no records.
            RecordBatchTooLargeError: one record alone exceeds a batch; no record is appended.
            InvalidTimestampError: a timestamp is too far ahead of ``now_ms``.
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
        """Append all records in one batch, or none. Returns the offset of the last record.

        ``required_base_offset`` is the offset required for the first record, and
        ``required_end_offset`` the one for the last (Kafka: ``requiredBaseOffset``; begin and end
        markers of a transaction count). With a required offset ``records`` may be empty: the
        offsets are checked only, and the last assigned offset is returned.

        The batch has no records of other appends if ``standalone`` is set, an offset is required, a
        producer is given, or the records are ``PackedRecords``.

        Raises:
            UnexpectedEndOffsetError: a required offset does not match the next offset.
            RecordBatchTooLargeError: the records exceed one batch.
            AppendError: as ``append``.
        """
        has_required_offset = required_end_offset is not None or required_base_offset is not None
        self._check(epoch, records, may_be_empty=has_required_offset)
        self._check_required_offsets(len(records), required_end_offset, required_base_offset)
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
        """Remove and return all batches, in offset order."""
        self._complete()
        drained, self._completed = self._completed, []
        return drained

    # --- batching ---------------------------------------------------------------------------------

    def _check(self, epoch: int, records: Sequence[object], *, may_be_empty: bool = False) -> None:
        if epoch < self._epoch:
            raise NotLeaderError(epoch=epoch, current_epoch=self._epoch)
        if epoch > self._epoch:
            raise FutureEpochError(epoch=epoch, current_epoch=self._epoch)
        if not records and not may_be_empty:
            raise InvalidAppendError(reason="there are no records")

    def _check_required_offsets(
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
        """Encode all records for the current batch, else for a new one; None if too large."""
        encoded = current.encode(records)
        if encoded is None and current.record_count:
            current = self._new_builder(now_ms)
            encoded = current.encode(records)
        return None if encoded is None else [_BatchPart(current, encoded)]

    def _split(
        self, builder: BatchBuilder, records: Sequence[RecordToAppend], now_ms: int
    ) -> list[_BatchPart]:
        """Encode the records for as many batches as needed, filling each one."""
        parts: list[_BatchPart] = []
        start = 0
        while start < len(records):
            count = builder.fitting_record_count(records, start)
            if count:
                encoded = builder.encode(records[start : start + count])
                assert encoded is not None, "fitting_record_count measured these records"
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
        """Add encoded records and advance the next offset: the only step that changes state."""
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
