"""Appends of one group: conditions are checked, offsets assigned, batches written.

Invariants:

1. For each append the epoch is checked first, then its identity (commit or producer), then its
   required offset, in the same step that assigns the offsets. A refused append changes nothing, and
   the others of the group continue.
2. No lock, sync or thread: the caller excludes other writers, and decides when records are durable
   or committed. Used by an embedded log (``client.embedded.writer``) and by a quorum's leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from raftlog.errors import (
    AppendError,
    AppendUnknownError,
    DiskFailedError,
    DiskFullError,
    FutureEpochError,
    InvalidAppendError,
    NotLeaderError,
    RaftlogError,
    UnexpectedEndOffsetError,
)
from raftlog.log.reading.transactions import Marker, marker_value
from raftlog.log.writing.batch_metadata import (
    CommitName,
    MetadataMarker,
    ValueKind,
    commit_header,
    commit_transaction_name,
    encoded_metadata,
    metadata_marker,
)
from raftlog.log.writing.producer_state import Duplicate
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.records.builder import BatchAccumulator
from raftlog.records.encoding import PackedRecords, RecordToAppend
from raftlog.records.record import NewRecord

from .requests import (
    AppendRequest,
    AppendResult,
    Done,
    Failed,
    Operation,
    Request,
    RequestResult,
    failed,
)


class AppendBatch:
    """One group of requests to one log, to which nothing else is appended meanwhile."""

    def __init__(self, log: ReplicatedLog, now_ms: int) -> None:
        self._log = log
        self._now_ms = now_ms
        self._accumulator = self._new_accumulator()
        self._being_written: AppendResult | None = None

    def process(self, request: Request) -> RequestResult:
        """Execute a request, up to the sync. Raises errors that fail the whole group."""
        if isinstance(request, Operation):
            return self._run(request)
        try:
            return Done(self._append(request))
        except AppendError as refusal:
            return failed(refusal)

    def _run(self, operation: Operation) -> RequestResult:
        self.write()
        try:
            return Done(operation.run(self._log, self._now_ms))
        except DiskFailedError:
            raise
        except RaftlogError as refusal:
            return failed(refusal)
        finally:
            self._accumulator = self._new_accumulator()

    def _append(self, request: AppendRequest) -> AppendResult:
        if self._log.is_read_only:
            self._log.flush()  # raises the reason
        epoch = self._epoch(request)
        duplicate = self._duplicate(request)
        if duplicate is not None:
            return AppendResult(
                duplicate.base_offset,
                duplicate.last_offset,
                self._log.epochs.epoch_at(duplicate.base_offset) or epoch,
                was_duplicate=True,
            )
        records = request.records
        is_kraft = self._log.config.values is ValueKind.KRAFT
        has_markers = is_kraft and self._check_markers(request)
        if records and request.commit is not None:
            records = named_records(records, request.commit, self._log.config.values)
        if request.is_atomic or request.needs_own_batch:
            last_offset = self._append_atomic(request, epoch, records)
        elif records:
            last_offset = self._accumulator.append(epoch, records, now_ms=self._now_ms)
        else:
            last_offset = self._accumulator.next_offset - 1
        result = AppendResult(last_offset - len(records) + 1, last_offset, epoch)
        if has_markers or request.commit is not None or request.producer is not None:
            self._being_written = result
            # The next request is checked against producer state that includes this one.
            markers = metadata_markers(records, result.base_offset) if has_markers else ()
            self.write(commit=request.commit if records else None, markers=markers)
            self._being_written = None
        return result

    def _append_atomic(
        self, request: AppendRequest, epoch: int, records: Sequence[RecordToAppend]
    ) -> int:
        if not records and not request.has_required_offset:
            return self._accumulator.next_offset - 1
        return self._accumulator.append_atomic(
            epoch,
            records,
            now_ms=self._now_ms,
            required_end_offset=request.required_end_offset,
            required_base_offset=request.required_base_offset,
            standalone=request.needs_own_batch,
            producer=request.producer,
        )

    def _epoch(self, request: AppendRequest) -> int:
        current = self._accumulator.epoch
        epoch = current if request.epoch is None else request.epoch
        if epoch < current:
            raise NotLeaderError(epoch=epoch, current_epoch=current)
        if epoch > current:
            raise FutureEpochError(epoch=epoch, current_epoch=current)
        return epoch

    def _duplicate(self, request: AppendRequest) -> Duplicate | None:
        """Return the offsets of the same append, if the log has it already.

        Earlier appends with an identity are written, and so part of the producer state.
        """
        producer_state = self._log.producer_state
        if request.commit is not None:
            return producer_state.check_commit(
                request.commit, take_over_from=request.take_over_from
            )
        if request.producer is None:
            return None
        stamp = request.producer
        return producer_state.check_producer(
            stamp.producer_id, stamp.producer_epoch, stamp.base_sequence, len(request.records)
        )

    def _check_markers(self, request: AppendRequest) -> bool:
        """Return whether the append has markers of metadata transactions. Writes earlier appends.

        Raises ``InvalidAppendError`` if the markers do not fit the open transaction: at most one is
        open at a time, and a named commit is one itself (KIP-868).
        """
        found = [one.marker for one in metadata_markers(request.records, 0)]
        if not found and request.commit is None:
            return False
        self.write()
        is_open = self._log.producer_state.open_transaction is not None
        reason = None
        if request.commit is not None and found:
            reason = "a named commit is a transaction itself, and cannot contain any markers"
        elif request.commit is not None and is_open:
            reason = "a transaction is open; end it, or claim the log, which aborts it"
        for marker in found:
            if (marker is Marker.BEGIN) is is_open:
                what = "begins while another is open" if is_open else "ends, but none is open"
                reason = reason or f"a transaction {what}"
            is_open = marker is Marker.BEGIN
        if reason is not None:
            raise InvalidAppendError(reason=reason)
        return True

    def write(
        self, *, commit: CommitName | None = None, markers: Sequence[MetadataMarker] = ()
    ) -> None:
        """Write the accumulated batches; the last one is that of ``commit``."""
        batches, values = self._accumulator.drain(), self._log.config.values
        if not batches:
            return
        names = [*[None] * (len(batches) - 1), commit]
        self._log.append_as_leader(
            [
                (one.data, encoded_metadata(one, values, commit=name, markers=markers))
                for one, name in zip(batches, names, strict=True)
            ]
        )

    def interrupted(self) -> list[RequestResult]:
        """Return the result of the append that ``process`` was writing when it raised, if any.

        It is the result of a complete append, of which only a part may be in the log.
        """
        return [] if self._being_written is None else [Done(self._being_written)]

    def _new_accumulator(self) -> BatchAccumulator:
        config = self._log.config
        return BatchAccumulator(
            epoch=self._log.epoch,
            next_offset=self._log.end_offset,
            byte_count_max=config.batch_bytes_max,
            compression=config.compression,
        )


def metadata_markers(
    records: Sequence[RecordToAppend], base_offset: int
) -> tuple[MetadataMarker, ...]:
    """Return the transaction markers among records, the first of which has ``base_offset``."""
    return tuple(
        marker
        for offset, record in enumerate(records, base_offset)
        if (marker := metadata_marker(offset, _value_of(record)))
    )


def _value_of(record: RecordToAppend) -> bytes | None:
    return record if isinstance(record, bytes) else record.value


def named_records(
    records: Sequence[RecordToAppend], name: CommitName, values: ValueKind
) -> Sequence[RecordToAppend]:
    """Return records with the commit's name: a header, or a begin and an end marker (kraft)."""
    if values is ValueKind.KRAFT:
        begin = marker_value(Marker.BEGIN, commit_transaction_name(name))
        return (begin, *records, marker_value(Marker.END))
    if isinstance(records, PackedRecords) and records.is_named:
        return records
    first = records[0]
    header = commit_header(name)
    if isinstance(first, bytes):
        return (NewRecord(None, first, headers=(header,)), *records[1:])
    named = NewRecord(first.key, first.value, first.timestamp_ms, (header, *first.headers))
    if isinstance(records, PackedRecords):
        return records.with_first(named, is_named=True)
    return (named, *records[1:])


def fail_if_unwritten(answer: RequestResult, end_offset: int, full: DiskFullError) -> RequestResult:
    """Return the result of a request, given that only ``end_offset`` was reached on a full disk."""
    if isinstance(answer, Failed):
        error = answer.error
        depends_on_unwritten_records = (
            isinstance(error, UnexpectedEndOffsetError) and error.log_end_offset > end_offset
        )
        return failed(full) if depends_on_unwritten_records else answer
    if not isinstance(answer.value, AppendResult):
        return answer
    result = answer.value
    if result.was_duplicate or result.last_offset < end_offset:
        return answer
    if result.base_offset >= end_offset:
        return failed(full)
    reason = f"its records below offset {end_offset} were appended, and then the disk was full"
    return Failed(AppendUnknownError(path=full.path, reason=reason))
