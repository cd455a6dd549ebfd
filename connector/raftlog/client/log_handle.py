"""Base class of handles of embedded and remote logs: offsets, reads and appends.

Arguments are defined and validated here, so that both kinds of log take the same calls; their clock
is an argument too. numpy and pyarrow are imported by the first read, not by appends.
"""

from __future__ import annotations

import abc
import operator
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from raftlog.append import AppendRequest, AppendResult, UserRecord, new_records
from raftlog.clock import Clock
from raftlog.errors import InvalidAppendError, OptionError
from raftlog.limits import (
    DECOMPRESSED_BYTES_OPTION_MAX,
    INT16_MAX,
    INT32_MAX,
    INT64_MAX,
    UNCHANGED_KEYS_MAX,
)
from raftlog.log.reading.reads import READ_UNCOMMITTED_NAME, Isolation
from raftlog.log.reading.transactions import CommitName, ValueKind
from raftlog.log.writing.key_offsets import UnchangedKeys
from raftlog.printable import has_keys
from raftlog.records.builder import ProducerStamp
from raftlog.storage.protocol import Closeable
from raftlog.types import SnapshotId

if TYPE_CHECKING:
    from raftlog.log.reading.log_reader import LogReader

    from .encryption import ValueCipher
    from .followed_records import FollowedRecords
    from .log_records import LogRecords
    from .table import Table

TIMEOUT_MS_DEFAULT: Final = 30_000
"""Default timeout of a call (Kafka: ``request.timeout.ms``)."""


class LogHandle(Closeable):
    """Open embedded log or log of a quorum. Close it, or use it in a ``with`` statement."""

    path: str
    _clock: Clock
    _closed: threading.Event
    """Set by ``close``."""
    _cipher: ValueCipher | None = None
    """Cipher of the values; None if they are not encrypted."""

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
        """The offset after the last readable record, exclusive: the base offset of the next append.

        Readable records are the durable ones of an embedded log (Kafka's log end offset), or the
        committed ones of a quorum (its high watermark). In a quorum, the node that the client takes
        for the leader returns its end without asking a majority, as in Kafka, so a deposed leader
        that has not noticed returns an older end. ``append([], required_base_offset=end)`` does ask
        a majority. It returns if the log ends there; otherwise it raises
        ``UnexpectedEndOffsetError``, whose ``log_end_offset`` is the confirmed end.
        """
        with self._refreshed_log() as log:
            return log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """Same as ``end_offset``: uncommitted records are not readable."""
        return self.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is committed or aborted."""
        with self._refreshed_log() as log:
            return log.read_end(isolation=Isolation.READ_COMMITTED).offset

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        """Ids of the complete snapshots, oldest first. For a quorum, at most one: the newest
        snapshot of a log with ``kraft`` values that was trimmed.
        """
        with self._refreshed_log() as log:
            return log.snapshots

    # --- reading ----------------------------------------------------------------------------------

    @overload
    def read(
        self,
        from_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        follow: Literal[False] = False,
    ) -> LogRecords: ...

    @overload
    def read(
        self,
        from_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        follow: Literal[True],
    ) -> FollowedRecords: ...

    def read(
        self,
        from_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        follow: bool = False,
    ) -> LogRecords | FollowedRecords:
        """Return the records from an offset up to the current end of the log.

        Iterate over the result for ``Record`` objects, or call ``to_arrow()`` for columns. It is
        empty if ``from_offset`` is the end. All records are replicated by a majority or, in an
        embedded log, durable. The newest records of a quorum may be missing (see ``end_offset``).

        Args:
            from_offset: the first offset to read, 0 or more; None: the first retained one, even if
                that changes before the first record is read.
            end_offset: the exclusive end, 0 or more; None, or beyond the log's end: the log's end.
            isolation: ``read_committed`` returns the records of committed transactions, up to the
                last stable offset; ``high_watermark`` (Kafka: ``read_uncommitted``) returns all.
            follow: whether to continue with records that are appended later, until the log is
                closed or up to ``end_offset``; see ``FollowedRecords``. Iterate over the result, or
                over its ``to_batches()``, with ``for`` or ``async for``.

        Raises:
            OffsetOutOfRangeError: ``from_offset`` is beyond the end of the log.
            OptionError: an argument is invalid.
            DataLossError: ``from_offset`` is before the first retained one; raised by iteration.
        """
        isolation = isolation_of(isolation)
        first, last = from_offset, end_offset
        if first is not None:
            first = whole_number(first, "from_offset")
        with self._refreshed_log() as log:
            start_offset = log.log_start_offset if first is None else first
            end = log.read_end(isolation=isolation).offset
            if start_offset > end:  # after the last stable offset, or beyond the log's end
                log.check_offset(start_offset)
        if last is not None:
            last = whole_number(last, "end_offset")
        if follow:
            from .followed_records import FollowedRecords

            reader, is_closed = self._new_reader, self._closed.is_set
            return FollowedRecords(
                reader,
                start_offset,
                last,
                isolation,
                self._clock,
                is_closed,
                is_from_start=first is None,
            )
        end = end if last is None else min(end, last)
        from .log_records import LogRecords

        return LogRecords(
            self._new_reader, start_offset, end, isolation, is_from_start=first is None
        )

    def table(self, *, follow: bool = True) -> Table:
        """Return the latest value of each key, as a mapping that follows the log.

        ``follow``: whether a thread applies new records until the table or this handle is closed.
        Otherwise, call ``Table.refresh``.

        Raises ``OptionError`` for a log of cluster metadata, and the errors of reading a log.
        """
        from .table import Table

        return Table(self, follow=follow)

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        records: UserRecord | Iterable[UserRecord],
        *,
        epoch: int | None = None,
        required_end_offset: int | None = None,
        required_base_offset: int | None = None,
        unchanged: Mapping[bytes, int | None] | None = None,
        unchanged_since: int | None = None,
        atomic: bool = False,
        commit: CommitName | tuple[str, str, int] | None = None,
        take_over_from: str | None = None,
        producer: ProducerStamp | tuple[int, int, int] | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> AppendResult:
        """Append records; return when they are durable or, in a quorum, committed.

        With a required offset, ``unchanged``, ``commit``, ``producer`` or ``atomic``, the append is
        one batch, appended completely or not at all. Otherwise it may be split into several; in a
        quorum, other appends may be between them. The result has the first and the last offset.

        Args:
            records: a list of values (bytes), of pairs (key, value), or of objects with ``value``
                and optionally ``key``, ``headers`` and ``timestamp_ms``; or one value or object,
                but not one pair. Without records, only the offset or epoch is checked.
            epoch: the leader epoch to append under; stale after an election or another ``claim``.
            required_end_offset: the offset that the last record must get.
            required_base_offset: the offset that the first record must get: the end that was read.
            unchanged: keys, at most 1,000, that must not have changed, each with the offset of its
                last record; None for a key that has no record or was deleted. See ``Table.append``.
            unchanged_since: the end up to which these keys were read; None: up to their offsets.
            atomic: whether all records must be in one batch.
            commit: the name of the append, (application id, query id, version). If it is the
                application's last commit, nothing is appended, and its offsets are returned.
            take_over_from: the query id of the application's last commit, which this one replaces.
            producer: (id, epoch, sequence) of a Kafka idempotent producer, for the same purpose.
            timeout_ms: in a quorum, the limit for the call; in an embedded log, the limit for
                waiting for the lock, to which at least 30 s for the write and the sync are added.

        Raises:
            UnexpectedEndOffsetError: the end is not the required one or too far for ``unchanged``.
            KeyChangedError: a key of ``unchanged`` has another last record.
            NotLeaderError, FutureEpochError: ``epoch`` is stale, or has not begun.
            InvalidAppendError: the records, or the combination of arguments, are never valid.
            OptionError: an argument has the wrong type or is out of range.
            InvalidTimestampError: a timestamp is more than an hour ahead of the writer's clock.
            RecordBatchTooLargeError: the batch, or one record, exceeds ``max.message.bytes``.
            StaleCommitError, ForeignCommitError: a later version, or another query, has committed.
            OutOfOrderSequenceError, InvalidProducerEpochError: ``producer`` has appended others.
            BufferAllocationError: too many bytes of other appends were queued until the timeout.
            LogLockedError: another process held the embedded log's lock until the timeout.
            QuorumUnavailableError: no leader answered until the timeout.
            LogReadOnlyError, LogClosedError, DiskFullError: the log does not accept appends.
            AccessDeniedError, NodeRefusedError: the quorum refuses this client, or the request.
            CallbackError: this is called in a callback of ``append_async``'s future.
            AppendUnknownError: the records may or may not be appended; after any other error they
                are not. Safe to repeat with ``commit`` or ``producer``. Never without records.
        """
        self._check_may_wait()
        request = self._queue_append(
            records,
            unchanged_keys(unchanged, unchanged_since, self.values),
            (epoch, required_end_offset, required_base_offset),
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
        unchanged: Mapping[bytes, int | None] | None = None,
        unchanged_since: int | None = None,
        atomic: bool = False,
        commit: CommitName | tuple[str, str, int] | None = None,
        take_over_from: str | None = None,
        producer: ProducerStamp | tuple[int, int, int] | None = None,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> Future[AppendResult]:
        """Queue an append; return a future with the result, or the exception, of ``append``.

        The future's callbacks run on the thread that completes appends: they may call
        ``append_async``, while calls that wait raise ``CallbackError``.

        Appends of one thread are written in order. Invalid arguments, ``LogReadOnlyError``,
        ``LogClosedError`` and ``BufferAllocationError`` (no space in the queue for ``timeout_ms``,
        or immediately in a callback) are raised by the call itself.
        """
        return self._queue_append(
            records,
            unchanged_keys(unchanged, unchanged_since, self.values),
            (epoch, required_end_offset, required_base_offset),
            atomic=atomic,
            commit=commit,
            take_over_from=take_over_from,
            producer=producer,
            timeout_ms=timeout_ms,
        ).future

    def _queue_append(
        self,
        records: UserRecord | Iterable[UserRecord],
        unchanged: UnchangedKeys | None,
        required: tuple[int | None, int | None, int | None],
        *,
        atomic: bool,
        commit: CommitName | tuple[str, str, int] | None,
        take_over_from: str | None,
        producer: ProducerStamp | tuple[int, int, int] | None,
        timeout_ms: int,
    ) -> AppendRequest:
        """Validate and queue an append. ``required``: epoch, end offset and base offset."""
        submit = self._open_for_appends()
        batch = new_records(records, self.values)
        epoch, required_end_offset, required_base_offset = required
        request = AppendRequest(
            records=batch if self._cipher is None else self._cipher.encrypt_records(batch),
            epoch=offset_or_none(epoch, "epoch"),
            required_end_offset=offset_or_none(required_end_offset, "required_end_offset"),
            required_base_offset=offset_or_none(required_base_offset, "required_base_offset"),
            unchanged=unchanged,
            is_atomic=atomic,
            commit=commit_name(commit),
            take_over_from=text_or_none(take_over_from, "take_over_from"),
            producer=producer_stamp(producer),
            deadline_ms=self._clock.now_ms() + milliseconds(timeout_ms, "timeout_ms"),
        )
        request.check()
        if request.commit is not None and request.producer is not None:
            raise InvalidAppendError(reason="commit and producer cannot be given together")
        submit(request)
        return request

    # --- implemented by subclasses ----------------------------------------------------------------

    @abc.abstractmethod
    def _refreshed_log(self) -> AbstractContextManager[LogReader]:
        """Return the log, refreshed, for the exclusive use of this thread."""

    @abc.abstractmethod
    def _new_reader(self) -> LogReader:
        """Return a new reader, for the exclusive use of one iteration."""

    def _decrypted(self, log: LogReader) -> LogReader:
        """Return a reader of the values as they were appended."""
        if self._cipher is None:
            return log
        from .decrypted_log import DecryptedLog

        return DecryptedLog(log, self._cipher)

    @abc.abstractmethod
    def _open_for_appends(self) -> Callable[[AppendRequest], None]:
        """Return the function that queues appends. Raises if the log takes none."""

    @abc.abstractmethod
    def _check_may_wait(self) -> None:
        """Raise ``CallbackError`` on the thread that completes appends."""

    @abc.abstractmethod
    def _wait_for_append(self, request: AppendRequest, timeout_ms: int) -> AppendResult:
        """Wait for the result of a request."""


# --- Log paths as users give them -----------------------------------------------------------------
# ``file:///a``, ``file:/a`` and ``/a`` are the same path. URIs of object stores are for reads. URLs
# of other schemes are refused, and not shown in the error, since a URL may contain an access key.

_FILE_SCHEME = "file:"
_OTHER_SCHEME: Final = re.compile(r"(?:^|,)\s*(?!file:)([A-Za-z][A-Za-z0-9+.-]*://|dbfs:/)")
_ADDRESS: Final = re.compile(r"(?:^|,)\s*((?:[\w.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5})\s*(?:,|$)")
"""Address of a node: as a path it would be that of a new log. No name of a log has a colon."""


_OBJECTS: Final = re.compile(r"(?:s3[an]?|gs|gcs|abfss?)://", re.IGNORECASE)


def is_object_uri(path: str) -> bool:
    """Return whether a path is the URI of an object store."""
    return _OBJECTS.match(path) is not None


def without_scheme(path: str) -> str:
    """Return the path without ``file:``. Raises ``OptionError`` as ``refuse_addresses``."""
    refuse_addresses(path)
    if not path.startswith(_FILE_SCHEME):
        return path
    rest = path[len(_FILE_SCHEME) :]
    return "/" + rest.lstrip("/") if rest.startswith("/") else rest


def refuse_addresses(paths: str, *, may_be_objects: bool = False) -> None:
    """Raise ``OptionError`` if one of several comma-separated paths is an address.

    That is ``host:port``, or a URL, but not ``file:``, and with ``may_be_objects`` not that of an
    object store unless it has keys.
    """
    for found in _OTHER_SCHEME.finditer(paths):
        is_objects = is_object_uri(found[1])
        if may_be_objects and is_objects:
            continue
        reason = (
            f"{found[1][:20]} is not supported; give a path on a mounted file system, on "
            "Databricks /Volumes/... or /dbfs/..."
        )
        if is_objects:
            reason = (
                f"a log in {found[1][:20]} can be read, not written; give a path on a mounted file "
                "system, or write to a quorum and copy its log with `raftlog backup`"
            )
        raise OptionError(option="path", reason=reason)
    if may_be_objects and has_keys(paths):
        reason = (
            "the URI has keys in it, which plans and logs would show; set them in the environment"
        )
        raise OptionError(option="path", reason=reason)
    address = _ADDRESS.search(paths)
    if address is not None:
        reason = (
            f"{address[1]} is the address of a node, not a path; use raftlog.connect or "
            "raftlog.follow, in Spark bootstrap.servers, in commands --bootstrap-server"
        )
        raise OptionError(option="path", reason=reason)


# --- Validation of arguments ----------------------------------------------------------------------
# An invalid argument raises ``OptionError`` with its name in the caller's thread: on the writer
# thread it would fail the requests of other threads, too. Integers are all that ``operator.index``
# accepts, numpy's included, but not ``True`` or ``1.0``.

_WAIT_MS_MAX: Final = 2**40
"""More than 30 years; Python's locks accept about 290."""


def whole_number(value: Any, name: str, *, at_least: int = 0, at_most: int = INT64_MAX) -> int:
    """Return an integer from ``at_least`` to ``at_most``."""
    try:
        number = None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        number = None
    if number is None:
        raise OptionError(
            option=name, reason=f"it must be a whole number, not {type(value).__name__}"
        )
    if not at_least <= number <= at_most:
        raise OptionError(option=name, reason=f"it must be from {at_least} to {at_most}")
    return number


def decompression_limit(value: Any) -> int:
    """Return the largest size of a decompressed batch in bytes."""
    limit = DECOMPRESSED_BYTES_OPTION_MAX
    return whole_number(value, "decompressed_bytes_max", at_least=1, at_most=limit)


def offset_or_none(value: Any, name: str) -> int | None:
    """Return an offset or epoch, or None. The caller checks whether it may be negative."""
    return None if value is None else whole_number(value, name, at_least=-INT64_MAX)


def milliseconds(value: Any, name: str) -> float:
    """Return a timeout in milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(option=name, reason=f"it must be a number, not {type(value).__name__}")
    if not 0 <= value <= _WAIT_MS_MAX:
        raise OptionError(option=name, reason=f"it must be from 0 to {_WAIT_MS_MAX} milliseconds")
    return value


def commit_name(value: Any) -> CommitName | None:
    """Return a commit's name, given as such or as its three parts."""
    if value is None or isinstance(value, CommitName):
        return value
    application_id, query_id, version = _parts(
        value, "commit", "(application id, query id, version)"
    )
    return CommitName(
        text(application_id, "application id"),
        text(query_id, "query id"),
        whole_number(version, "version"),
    )


def text(value: Any, name: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise OptionError(option=name, reason=f"it must be text, not {type(value).__name__}")
    return value


def text_or_none(value: Any, name: str) -> str | None:
    """Return a text, or None."""
    return None if value is None else text(value, name)


def unchanged_keys(offsets: Any, since: Any, values: ValueKind) -> UnchangedKeys | None:
    """Return a condition on keys; None without one."""
    if offsets is None and since is None:
        return None
    if not isinstance(offsets, Mapping) or not offsets or len(offsets) > UNCHANGED_KEYS_MAX:
        reason = f"it must be a mapping of 1 to {UNCHANGED_KEYS_MAX} keys to offsets"
        raise OptionError(option="unchanged", reason=reason)
    if values is ValueKind.KRAFT:
        raise InvalidAppendError(reason="records of a kraft log have no keys to compare")
    if not all(isinstance(key, bytes) for key in offsets):
        raise OptionError(option="unchanged", reason="its keys must be bytes")
    known = {
        key: None if offset is None else whole_number(offset, "unchanged")
        for key, offset in offsets.items()
    }
    if since is None and None in known.values():
        reason = "it is required for a key without an offset"
        raise OptionError(option="unchanged_since", reason=reason)
    return UnchangedKeys(known, 0 if since is None else whole_number(since, "unchanged_since"))


def producer_stamp(value: Any) -> ProducerStamp | None:
    """Return a producer's stamp, given as such or as its three parts."""
    if value is None:
        return None
    if isinstance(value, ProducerStamp):
        if value.is_transactional:
            reason = "a transactional producer is not supported: its transaction could not be ended"
            raise OptionError(option="producer", reason=reason)
        numbers = value.producer_id, value.producer_epoch, value.base_sequence
    else:
        numbers = _parts(value, "producer", "(id, epoch, sequence)")
    return ProducerStamp(
        whole_number(numbers[0], "producer id"),
        whole_number(numbers[1], "producer epoch", at_most=INT16_MAX),
        whole_number(numbers[2], "producer sequence", at_most=INT32_MAX),
    )


def isolation_of(value: Any) -> Isolation:
    """Return an isolation level, given as such or by name, Kafka's ``read_uncommitted`` too."""
    if value == READ_UNCOMMITTED_NAME:
        return Isolation.READ_UNCOMMITTED
    try:
        return Isolation(value)
    except ValueError:
        names = ", ".join((*(one.value for one in Isolation), READ_UNCOMMITTED_NAME))
        raise OptionError(option="isolation", reason=f"it must be one of {names}") from None


def _parts(value: Any, name: str, form: str) -> tuple[Any, Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise OptionError(option=name, reason=f"it must be {form}")
    return value[0], value[1], value[2]
