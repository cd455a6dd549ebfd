"""What both doors to a log have in common: how it is asked, read and appended to.

Rules of this file:

1. What an argument means, and what is refused before anything is done with it, is said here alone:
   a log of one's own and a quorum's take the same calls.
2. Who only appends does not pay for what reading needs (numpy, pyarrow): it is imported when asked.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from raftlog.closeable import Closeable
from raftlog.log.reads import Isolation
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
from .requests import AppendRequest, AppendResult
from .user_records import UserRecord, new_records

if TYPE_CHECKING:
    from raftlog.log.reader import LogReader

    from .log_records import LogRecords

TIMEOUT_MS_DEFAULT: Final = 30_000
"""How long a call waits for others (Kafka: ``request.timeout.ms``)."""


class LogHandle(Closeable):
    """An open log, one's own or a quorum's: close it, or use it in a ``with`` statement."""

    path: str
    _clock: Clock

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    # --- what it is -------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def values(self) -> ValueKind:
        """What its values are."""

    @property
    def log_start_offset(self) -> int:
        """The first offset that is kept."""
        with self._refreshed_log() as log:
            return log.log_start_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last record that can be read: where the next one goes.

        In a log of one's own the last durable one (Kafka's log end), in a quorum's the last
        committed one. A quorum's is that of the node that the client takes for the leader, which
        asks no majority, as in Kafka: a leader that was deposed and does not know it yet answers
        with an older end. ``append([], required_base_offset=end)`` asks a majority: it returns if
        the log ends there, and else raises ``UnexpectedEndOffsetError``, whose ``log_end_offset``
        is the confirmed end.
        """
        with self._refreshed_log() as log:
            return log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """The same: what is not committed cannot be seen, and in a log of one's own all is."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which every transaction is decided."""
        with self._refreshed_log() as log:
            return log.read_end(isolation=Isolation.READ_COMMITTED).offset

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """The finished snapshots that can be read, oldest first. A quorum shows a client none."""
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
        """The records from an offset on (the log's first), up to where the log ends now.

        ``isolation`` is ``read_committed``, or ``high_watermark`` (Kafka: ``read_uncommitted``)
        for all, whatever becomes of its transaction. Every record that is read is committed; of a
        quorum the newest may be missing, as ``end_offset`` explains.

        Iterate it for records, or take ``to_arrow()`` for columns. At the end of the log there are
        none yet. Raises ``OffsetOutOfRangeError`` for a ``from_offset`` beyond it.
        """
        isolation = isolation_of(isolation)
        first, last = offset_or_none(from_offset, "from_offset"), end_offset
        with self._refreshed_log() as log:
            start_offset = log.log_start_offset if first is None else first
            end = log.read_end(isolation=isolation).offset
            if start_offset > end:  # beyond what is decided, or beyond all that there is
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
        """Append records and return when they are durable; in a quorum, when they are committed.

        A token makes it conditional and atomic: ``required_base_offset`` is the end offset that the
        caller has read, ``required_end_offset`` the offset that the last record must get; without
        records a token is only checked. ``epoch`` refuses if another writer has claimed the log
        since, or another leader was elected. ``commit`` names the append (application id, query id,
        version): appended again, it gets the offsets that it has; without records nothing is named.
        ``take_over_from`` is the query id under whose application id this one goes on, if the last
        commit is still that one's. ``producer`` (id, epoch, sequence) names it as Kafka's
        idempotent producers do. Without any of these, records may be spread over several batches,
        unless ``atomic``; in a quorum others may append between them, and the result tells the
        first and the last offset. ``timeout_ms`` bounds all of it in a quorum; in a log of one's
        own the wait for its turn, and it is as long again for its sync.

        Raises, with nothing changed: ``UnexpectedEndOffsetError``, ``NotLeaderError``,
        ``FutureEpochError``, ``InvalidAppendError``, ``OptionError`` (an argument of a wrong type
        or size), ``InvalidTimestampError`` (a time over an hour ahead of the clock of the log's
        writer), ``RecordBatchTooLargeError``, ``StaleCommitError``, ``ForeignCommitError``,
        ``OutOfOrderSequenceError``, ``InvalidProducerEpochError``, ``BufferAllocationError``,
        ``LogLockedError``, ``LogReadOnlyError``, ``LogClosedError``, ``DiskFullError``; in a quorum
        also ``QuorumUnavailableError``, ``AccessDeniedError``, ``NodeRefusedError``. And
        ``AppendUnknownError`` if nobody knows: with a commit's name it may simply be appended
        again. An append without records, which only checks, never gets that one.
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
        """Append as ``append`` does, and return at once with a future that ends as it would.

        Appends of one thread are made in its order. What cannot be meant is raised here, and so is
        a log that is closed, or has no room for what waits (``BufferAllocationError``).
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
        """Check and queue an append."""
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

    # --- what a door brings -----------------------------------------------------------------------

    @abc.abstractmethod
    def _refreshed_log(self) -> AbstractContextManager[LogReader]:
        """The log as it is now, for this thread alone."""

    @abc.abstractmethod
    def _new_reader(self) -> LogReader:
        """A reader that a reading may keep."""

    @abc.abstractmethod
    def _open_for_appends(self) -> Callable[[AppendRequest], None]:
        """What takes a request that is complete. Raises why the log takes none at all."""

    @abc.abstractmethod
    def _wait_for_append(self, request: AppendRequest, timeout_ms: int) -> AppendResult:
        """Wait for an answer."""
