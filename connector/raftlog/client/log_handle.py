"""Base class of handles of embedded and remote logs: offsets, reads and appends.

Arguments are defined and validated here, so that both kinds of log take the same calls. numpy and
pyarrow are imported by the first read, not by appends.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from raftlog.append.requests import AppendRequest, AppendResult, UserRecord, new_records
from raftlog.closeable import Closeable
from raftlog.log.reading.reads import Isolation
from raftlog.log.writing.batch_metadata import CommitName, ValueKind
from raftlog.records.builder import ProducerStamp
from raftlog.types import SnapshotId

from .arguments import (
    commit_name,
    isolation_of,
    milliseconds,
    offset_or_none,
    producer_stamp,
    text_or_none,
    whole_number,
)
from .clock import Clock

if TYPE_CHECKING:
    from raftlog.log.reading.log_reader import LogReader

    from .log_records import LogRecords

TIMEOUT_MS_DEFAULT: Final = 30_000
"""Default timeout of a call (Kafka: ``request.timeout.ms``)."""


class LogHandle(Closeable):
    """Open log, embedded or of a quorum. Close it, or use it in a ``with`` statement."""

    path: str
    _clock: Clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    # --- properties -------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def values(self) -> ValueKind:
        """The kind of values."""

    @property
    def log_start_offset(self) -> int:
        """The first retained offset."""
        with self._refreshed_log() as log:
            return log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last readable record, exclusive: the base offset of a next append.

        Readable records are the durable ones of an embedded log (Kafka's log end offset), and the
        committed ones of a quorum (its high watermark). A quorum's is that of the node that the
        client takes for the leader, which as in Kafka asks no majority: a deposed leader that has
        not noticed returns an older end. ``append([], required_base_offset=end)`` asks a majority:
        it returns if the log ends there, and otherwise raises ``UnexpectedEndOffsetError``, whose
        ``log_end_offset`` is the confirmed end.
        """
        with self._refreshed_log() as log:
            return log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Same as ``end_offset``: records that are not committed are not readable."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is committed or aborted."""
        with self._refreshed_log() as log:
            return log.read_end(isolation=Isolation.READ_COMMITTED).offset

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Ids of the complete snapshots, oldest first. Empty for a quorum."""
        with self._refreshed_log() as log:
            return log.snapshots

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        from_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
    ) -> LogRecords:
        """Return the records from an offset up to the current end of the log.

        Iterate over the result for ``Record`` objects, or call ``to_arrow()`` for columns; it is
        empty if ``from_offset`` is the end. All records are replicated by a majority or, in an
        embedded log, durable. A quorum's newest ones may be missing (see ``end_offset``).

        Args:
            from_offset: the first offset to read; None: the first retained one.
            end_offset: the exclusive end, 0 or more; None, or beyond the log's end: the log's end.
            isolation: ``read_committed`` returns the records of committed transactions, up to the
                last stable offset; ``high_watermark`` (Kafka: ``read_uncommitted``) returns all.

        Raises:
            OffsetOutOfRangeError: ``from_offset`` is beyond the end of the log.
            OptionError: an argument is invalid.
            DataLossError: ``from_offset`` is before the first retained one; raised by iteration.
        """
        isolation = isolation_of(isolation)
        first, last = offset_or_none(from_offset, "from_offset"), end_offset
        with self._refreshed_log() as log:
            start_offset = log.log_start_offset if first is None else first
            end = log.read_end(isolation=isolation).offset
            if start_offset > end:  # after the last stable offset, or beyond the log's end
                log.check_offset(start_offset)
        if last is not None:
            end = min(end, whole_number(last, "end_offset"))
        from .log_records import LogRecords

        return LogRecords(self._new_reader, start_offset, end, isolation)

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        records: UserRecord | Iterable[UserRecord],
        *,
        epoch: int | None = None,
        required_end_offset: int | None = None,
        required_base_offset: int | None = None,
        atomic: bool = False,
        commit: CommitName | tuple[str, str, int] | None = None,
        take_over_from: str | None = None,
        producer: ProducerStamp | tuple[int, int, int] | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> AppendResult:
        """Append records; return when they are durable or, in a quorum, committed.

        With a required offset, ``commit``, ``producer`` or ``atomic`` the append is one batch,
        appended completely or not at all. Otherwise it may be split into several; in a quorum
        other appends may be between them, and the result has the first and the last offset.

        Args:
            records: an iterable of records, or a single one: its value (bytes), a pair (key,
                value), or an object with ``value`` and optionally ``key``, ``headers`` and
                ``timestamp_ms``. Without records the offset or epoch is only checked.
            epoch: the leader epoch to append under. It is stale once another leader was elected or,
                in an embedded log, another writer has called ``claim``.
            required_end_offset: the offset that the last record must get.
            required_base_offset: the offset that the first record must get: the ``end_offset`` that
                the caller has read.
            atomic: whether all records must be in one batch.
            commit: the name of the append, (application id, query id, version). If it is the
                application's last commit, nothing is appended and its offsets are returned.
            take_over_from: the query id that this one replaces under the same application id, if
                the last commit is that query's.
            producer: (id, epoch, sequence) of a Kafka idempotent producer, for the same purpose.
            timeout_ms: in a quorum the bound on the call; in an embedded log the bound on the wait
                for the lock, to which at least 30 s for the write and the sync are added.

        Raises:
            UnexpectedEndOffsetError: the log does not end where a required offset needs it.
            NotLeaderError, FutureEpochError: ``epoch`` is stale, or has not begun.
            InvalidAppendError: the records, or the arguments together, can never be appended.
            OptionError: an argument has a wrong type or is out of range.
            InvalidTimestampError: a timestamp is over an hour ahead of the clock of the writer.
            RecordBatchTooLargeError: the batch, or one record, exceeds ``max.message.bytes``.
            StaleCommitError, ForeignCommitError: the application's last commit is a later version,
                or another query's.
            OutOfOrderSequenceError: the sequence of ``producer`` does not follow its last one.
            InvalidProducerEpochError: a later epoch of ``producer`` has appended.
            BufferAllocationError: too many bytes of other appends were queued until the timeout.
            LogLockedError: another process held the embedded log's lock until the timeout.
            LogReadOnlyError, LogClosedError, DiskFullError: the log takes no appends.
            QuorumUnavailableError: no leader answered until the timeout.
            AccessDeniedError, NodeRefusedError: the quorum refuses this client, or the request.
            AppendUnknownError: the records may or may not be appended. With ``commit`` or
                ``producer`` the call can be repeated safely. Never raised without records.

        After any other error nothing is appended.
        """
        request = self._queue_append(
            records,
            epoch=epoch,
            required_end_offset=required_end_offset,
            required_base_offset=required_base_offset,
            atomic=atomic,
            commit=commit,
            take_over_from=take_over_from,
            producer=producer,
            timeout_ms=timeout_ms,
        )
        return self._wait_for_append(request, timeout_ms)

    def append_async(
        self,
        records: UserRecord | Iterable[UserRecord],
        *,
        epoch: int | None = None,
        required_end_offset: int | None = None,
        required_base_offset: int | None = None,
        atomic: bool = False,
        commit: CommitName | tuple[str, str, int] | None = None,
        take_over_from: str | None = None,
        producer: ProducerStamp | tuple[int, int, int] | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> Future[AppendResult]:
        """Queue an append and return a future with the result, or the exception, of ``append``.

        Appends of one thread are written in its order. Invalid arguments, ``LogReadOnlyError``,
        ``LogClosedError`` and ``BufferAllocationError`` (no room in the queue for ``timeout_ms``)
        are raised by this call.
        """
        return self._queue_append(
            records,
            epoch=epoch,
            required_end_offset=required_end_offset,
            required_base_offset=required_base_offset,
            atomic=atomic,
            commit=commit,
            take_over_from=take_over_from,
            producer=producer,
            timeout_ms=timeout_ms,
        ).future

    def _queue_append(
        self,
        records: UserRecord | Iterable[UserRecord],
        *,
        epoch: int | None,
        required_end_offset: int | None,
        required_base_offset: int | None,
        atomic: bool,
        commit: CommitName | tuple[str, str, int] | None,
        take_over_from: str | None,
        producer: ProducerStamp | tuple[int, int, int] | None,
        timeout_ms: int,
    ) -> AppendRequest:
        """Validate and queue an append."""
        submit = self._open_for_appends()
        request = AppendRequest(
            records=new_records(records, self.values),
            epoch=offset_or_none(epoch, "epoch"),
            required_end_offset=offset_or_none(required_end_offset, "required_end_offset"),
            required_base_offset=offset_or_none(required_base_offset, "required_base_offset"),
            is_atomic=atomic,
            commit=commit_name(commit),
            take_over_from=text_or_none(take_over_from, "take_over_from"),
            producer=producer_stamp(producer),
            deadline_ms=self._clock.now_ms() + milliseconds(timeout_ms, "timeout_ms"),
        )
        request.check()
        submit(request)
        return request

    # --- implemented by subclasses ----------------------------------------------------------------

    @abc.abstractmethod
    def _refreshed_log(self) -> AbstractContextManager[LogReader]:
        """Return the log, refreshed, for the exclusive use of this thread."""

    @abc.abstractmethod
    def _new_reader(self) -> LogReader:
        """Return a new reader, for the exclusive use of one iteration."""

    @abc.abstractmethod
    def _open_for_appends(self) -> Callable[[AppendRequest], None]:
        """Return the function that queues appends. Raises if the log takes none."""

    @abc.abstractmethod
    def _wait_for_append(self, request: AppendRequest, timeout_ms: int) -> AppendResult:
        """Wait for the result of a request."""
