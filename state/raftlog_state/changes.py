"""Changes of a cluster's metadata from a batch job: rows in, one metadata transaction in a log.

The rows are validated against the state at the log's end offset, and appended with that offset as
their required base offset. If another writer appended in between, the append fails with
``UnexpectedEndOffsetError``; up to ``attempts`` times the rows are validated and appended again at
the new end. Control records, such as that of an election, are no reason to fail: then they are
validated and appended again in any case. The log is embedded, or that of a quorum; the state of its
last call is kept.

    log        ... | begin  records | records | records  end |
    appends          base = end of the state; each at the end of the one before

Changes that do not fit into one batch are a metadata transaction in several. Readers see it at its
end marker. If another batch is appended in between, such as that of an election, the transaction is
aborted. One that is open belongs to a writer that was killed, or is slow: a call with
``abort_open_transaction`` aborts it, and fences its writer, whose next append does not find the end
offset that it requires.

kraft.version is in control records, which only the leader of a quorum appends: after all changes
are validated, and before their records are appended. It stays raised if that fails, as in Kafka.

A named commit that is already in the log returns its offsets without validation, which its own
changes would fail ("topic already exists").
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

from raftlog import AppendResult, CommitName, ConnectedLog, EmbeddedLog, ValueKind
from raftlog.client import open_path
from raftlog.errors import (
    InvalidAppendError,
    OptionError,
    RaftlogError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
    VoterChangeError,
)
from raftlog_state.errors import UnsupportedVersionError

from .controller import TRANSACTION_NAME, ChangeRequest, ControllerResult, Random
from .controller.api_exception import INVALID_UPDATE_VERSION, ApiException
from .controller.plan import plan_changes_of_state
from .followed_log import FollowedLog
from .records import AbortTransactionRecord, DecodedRecord, encode
from .snapshots import batch_chunks

MetadataLog: TypeAlias = EmbeddedLog | ConnectedLog

_ABORT_ATTEMPTS_MAX: Final = 5
_ELECTIONS_MAX: Final = 10


@runtime_checkable
class ArrowTable(Protocol):
    """Arrow table or record batch: each row is a change."""

    def to_pylist(self) -> list[dict[str, Any]]: ...


@runtime_checkable
class Frame(Protocol):
    """Spark DataFrame; it is collected to the driver."""

    def toArrow(self) -> ArrowTable: ...  # noqa: N802 - Spark's name


Changes: TypeAlias = Frame | ArrowTable | Iterable[Mapping[str, Any] | ChangeRequest]
_Rows: TypeAlias = list[Mapping[str, Any] | ChangeRequest]


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """Offsets of the changes in the log, and their ``records`` without transaction markers.

    There are no records if nothing changed, or if the commit is a duplicate
    (``result.was_duplicate``). They contain secrets in clear text. With ``validate_only``, the
    result is that of an append without records at the offset at which the changes would begin.
    """

    result: AppendResult
    records: tuple[DecodedRecord, ...]

    @property
    def record_count(self) -> int:
        return len(self.records)


def apply_changes(
    log: MetadataLog,
    changes: Changes,
    *,
    commit: CommitName | tuple[str, str, int] | None = None,
    take_over_from: str | None = None,
    transaction_name: str = TRANSACTION_NAME,
    attempts: int = 1,
    rng: Random | None = None,
    validate_only: bool = False,
    abort_open_transaction: bool = False,
    timeout_ms: int = 30_000,
) -> AppliedChanges:
    """Apply changes of a cluster's metadata atomically; they are durable on return.

    The state of the log is kept with its handle, so that a later call reads only the records after
    it. Calls on one handle are executed one after the other.

    Args:
        log: from ``raftlog.open(path, values="kraft")``, or ``raftlog.connect`` to such a quorum.
        changes: one change per row, in order: the column ``change`` and those of its kind (see
            ``raftlog_state.controller``), as a DataFrame, an Arrow table, dicts or change objects.
        commit: (application id, query id, version) of records that fit into one batch; a repeated
            call returns the offsets of the first one. ``take_over_from``: as for ``append``.
        transaction_name: name of the metadata transaction in its begin marker.
        attempts: how many times to validate and append the changes if other writers append, too.
            Attempts before which only control records were appended, for instance by an election,
            are not counted, up to ten of them.
        rng: source of ids, salts and replica placement; default: ``random.SystemRandom()``.
        validate_only: whether to return the records of the changes without appending them.
        abort_open_transaction: whether to abort a metadata transaction that another writer has left
            open. If that writer still exists, its changes fail as a whole.
        timeout_ms: the time limit for each append, as for ``append``.

    Raises:
        InvalidChangesError: rows were rejected; each is listed.
        UnexpectedEndOffsetError: in every attempt, another writer appended first.
        InvalidAppendError: a metadata transaction is open at the log's end.
        UnsupportedVersionError: the log contains records that this release does not support.
        RecordBatchTooLargeError: a record, or a named commit, does not fit into one batch, or
            metadata.version does not support transactions.
        OptionError: the log does not contain metadata records, or ``attempts`` is below 1.
        VoterChangeError: kraft.version was validated, but could not be raised.
        AppendUnknownError: as for ``append``; with ``commit``, the call can be repeated safely.
        Also the errors of reading a log and of ``append``. After any other error, nothing was
        written except kraft.version, or a part of a transaction that has no effect.
    """
    _check_arguments(log, attempts)
    rows = _rows(changes)
    if commit is not None:
        probe = log.append((), commit=commit, take_over_from=take_over_from, timeout_ms=timeout_ms)
        if probe.was_duplicate:
            return AppliedChanges(probe, ())
    writer = _writer_of(log)
    with writer.lock:
        return writer.apply(
            log,
            rows,
            _Options(
                commit=commit,
                take_over_from=take_over_from,
                transaction_name=transaction_name,
                rng=random.SystemRandom() if rng is None else rng,
                validate_only=validate_only,
                abort_open_transaction=abort_open_transaction,
                timeout_ms=timeout_ms,
            ),
            attempts,
        )


def _check_arguments(log: MetadataLog | object, attempts: int) -> None:
    if not isinstance(log, EmbeddedLog | ConnectedLog):
        reason = f"must be a log from raftlog.open or raftlog.connect, not {type(log).__name__}"
        raise OptionError(option="log", reason=reason)
    if log.values is not ValueKind.KRAFT:
        reason = (
            f'{log.path} is not a log that raftlog created with values="kraft", which changes of '
            "metadata need; for a log of Kafka, `raftlog apply --dry-run` prints the records that "
            "they would write"
        )
        raise OptionError(option="log", reason=reason)
    if attempts < 1:
        raise OptionError(option="attempts", reason="it must be at least 1")


def _rows(changes: Changes) -> _Rows:
    table = changes.toArrow() if isinstance(changes, Frame) else changes
    return list(table.to_pylist() if isinstance(table, ArrowTable) else table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """Arguments of ``apply_changes``."""

    commit: CommitName | tuple[str, str, int] | None
    take_over_from: str | None
    transaction_name: str
    rng: Random
    validate_only: bool
    abort_open_transaction: bool
    timeout_ms: int


class _Quorum:
    """kraft.version of a log's quorum, which the leader raises before the changes are appended."""

    def __init__(self, log: MetadataLog) -> None:
        self._log: Final = log
        self._current_version = self.kraft_version = 0

    def begin_plan(self, kraft_version: int) -> None:
        """Begin a plan: ``kraft_version`` is that of the state, unless it lacks an upgrade."""
        self._current_version = max(self._current_version, kraft_version)
        self.kraft_version = self._current_version

    @property
    def is_upgrade_planned(self) -> bool:
        return self.kraft_version > self._current_version

    def upgrade_kraft_version(self, version: int, *, validate_only: bool) -> None:
        """Validate an upgrade, which ``upgrade`` executes. Raises ``ApiException``."""
        if version <= self.kraft_version:
            return
        if not isinstance(self._log, ConnectedLog):
            raise _invalid_kraft_version(
                "an embedded log has no voters, whose place it determines",
                "leave it out: it is for the log of a quorum, from raftlog.connect",
            )
        try:
            self._log.upgrade_kraft_version(version, validate_only=True)
        except VoterChangeError as refused:
            remedy = "start all voters with a release that supports it, and wait until they follow"
            raise _invalid_kraft_version(refused.reason, remedy) from refused
        if not validate_only:
            self.kraft_version = version

    def upgrade(self, base_offset: int, timeout_ms: int) -> None:
        """Raise the version as planned, if the log ends at an offset and may be appended to.

        Raises ``VoterChangeError``, and as ``append``.
        """
        assert isinstance(self._log, ConnectedLog), "it was validated"
        self._log.append((), required_base_offset=base_offset, timeout_ms=timeout_ms)
        self._log.upgrade_kraft_version(self.kraft_version)
        self._current_version = self.kraft_version


def _invalid_kraft_version(reason: str, remedy: str) -> ApiException:
    return ApiException("feature 'kraft.version'", reason, remedy, INVALID_UPDATE_VERSION)


class _ChangeWriter:
    """Writer of changes to one log, with the log's state. Hold ``lock`` to use it."""

    def __init__(self, log: MetadataLog) -> None:
        self.lock: Final = threading.Lock()
        self.process_id: Final = os.getpid()
        self._end_offset = 0
        """An end offset of the log, committed in a quorum, which its reader may not know yet."""
        # no reference to an embedded log, which is the key of this writer
        if isinstance(log, EmbeddedLog):
            path = log.path
            self._followed = FollowedLog(lambda: open_path(path))
        else:
            reader = log.reader()
            self._followed = FollowedLog(lambda: reader)

    def apply(
        self, log: MetadataLog, rows: _Rows, options: _Options, attempts: int
    ) -> AppliedChanges:
        elections_left, quorum = _ELECTIONS_MAX, _Quorum(log)
        while True:
            try:
                self._followed.catch_up(self._end_offset)
                self._check_writable(log, options)
                quorum.begin_plan(self._followed.kraft_version)
                plan = self._plan(rows, options, quorum)
                if options.validate_only:
                    return self._validated(plan)
                if quorum.is_upgrade_planned:
                    quorum.upgrade(plan.base_offset, options.timeout_ms)
                    continue
                return self._append(log, plan, options)
            except UnexpectedEndOffsetError as error:
                if elections_left and self._is_by_control_records(error):
                    elections_left -= 1
                else:
                    attempts -= 1
                if attempts == 0:
                    raise
                self._end_offset = error.log_end_offset

    def _is_by_control_records(self, error: UnexpectedEndOffsetError) -> bool:
        """Return whether an append failed only because the log itself appended control records."""
        start_offset, end_offset = error.required_base_offset, error.log_end_offset
        if start_offset is None or start_offset >= end_offset:
            return False
        try:
            return self._followed.has_only_control_records(start_offset, end_offset)
        except RaftlogError:  # the next attempt, or the caller, reads the log again
            return False

    def _check_writable(self, log: MetadataLog, options: _Options) -> None:
        followed = self._followed
        begin_offset = followed.open_transaction_offset
        if begin_offset is not None and options.abort_open_transaction:
            if not options.validate_only:
                self._abort(log, begin_offset, options.timeout_ms)
        elif begin_offset is not None:
            reason = (
                f"the metadata transaction that begins at offset {begin_offset} is open; wait "
                "until its writer ends it, or set abort_open_transaction"
            )
            raise InvalidAppendError(reason=reason)
        if followed.unknown:
            type_id, version = followed.unknown[0]
            raise UnsupportedVersionError(
                record=f"record type {type_id}",
                version=version,
                reason="the log contains it and this release does not support it, so the state to "
                "validate changes against is unknown; use a newer release",
            )

    def _plan(self, rows: _Rows, options: _Options, quorum: _Quorum) -> ControllerResult:
        followed = self._followed
        try:
            return plan_changes_of_state(
                followed.state,
                rows,
                base_offset=followed.end_offset,
                leader_epoch=followed.leader_epoch,
                rng=options.rng,
                transaction_name=options.transaction_name,
                is_named_commit=options.commit is not None,
                quorum=quorum,
            )
        finally:
            followed.revert()

    def _validated(self, plan: ControllerResult) -> AppliedChanges:
        base_offset = plan.base_offset
        result = AppendResult(base_offset, base_offset - 1, self._followed.leader_epoch)
        return AppliedChanges(result, plan.change_records)

    # --- appending --------------------------------------------------------------------------------

    def _append(
        self, log: MetadataLog, plan: ControllerResult, options: _Options
    ) -> AppliedChanges:
        values = plan.values()
        has_records = bool(plan.change_records)
        try:
            result = log.append(
                values,
                required_base_offset=plan.base_offset,
                atomic=True,
                commit=options.commit if has_records else None,
                take_over_from=options.take_over_from if has_records else None,
                timeout_ms=options.timeout_ms,
            )
        except RecordBatchTooLargeError as error:
            chunks = list(batch_chunks(values, error.byte_count_max))
            if plan.transaction_name is None or len(chunks) == 1:
                raise
            result = self._append_chunks(log, chunks, plan.base_offset, options.timeout_ms)
        if result.was_duplicate:
            return AppliedChanges(result, ())
        self._end_offset = result.end_offset
        return AppliedChanges(result, plan.change_records)

    def _append_chunks(
        self, log: MetadataLog, chunks: list[list[bytes]], base_offset: int, timeout_ms: int
    ) -> AppendResult:
        """Append a transaction in several batches; abort it if one of them fails."""
        next_offset = base_offset
        try:
            for chunk in chunks:
                result = log.append(
                    chunk, required_base_offset=next_offset, atomic=True, timeout_ms=timeout_ms
                )
                next_offset = result.end_offset
        except BaseException as error:
            if next_offset == base_offset:
                raise  # a transaction that begins there may be that of another writer
            end_offset = self._abort_own(log, base_offset, next_offset, timeout_ms)
            if isinstance(error, InvalidAppendError) and end_offset > next_offset:
                # its end marker was refused, because another writer has aborted it
                raise UnexpectedEndOffsetError(
                    required_base_offset=next_offset,
                    record_count=len(chunk),
                    log_end_offset=end_offset,
                ) from error
            raise
        return AppendResult(base_offset, result.last_offset, result.epoch)

    def _abort_own(
        self, log: MetadataLog, begin_offset: int, next_offset: int, timeout_ms: int
    ) -> int:
        """Abort a transaction after an error of its writer, this one; return the log's end offset.

        If that fails, the next writer finds the transaction open, and aborts it.
        """
        with suppress(RaftlogError):
            self._followed.catch_up(next_offset)
            self._abort(log, begin_offset, timeout_ms)
            return self._followed.end_offset
        return next_offset

    def _abort(self, log: MetadataLog, begin_offset: int, timeout_ms: int) -> None:
        """Abort the transaction that begins at an offset, if it is open, and follow the log."""
        record = AbortTransactionRecord(reason="its writer did not end it")
        value = encode(DecodedRecord(0, record))
        for _ in range(_ABORT_ATTEMPTS_MAX):
            if self._followed.open_transaction_offset != begin_offset:
                return
            try:
                done = log.append(
                    [value],
                    required_base_offset=self._followed.end_offset,
                    atomic=True,
                    timeout_ms=timeout_ms,
                )
            except UnexpectedEndOffsetError as error:
                self._followed.catch_up(error.log_end_offset)
            else:
                self._followed.catch_up(done.end_offset)


_writers: Final[WeakKeyDictionary[MetadataLog, _ChangeWriter]] = WeakKeyDictionary()
_writers_lock = threading.Lock()


def _writer_of(log: MetadataLog) -> _ChangeWriter:
    """Return the writer of a handle; in a forked child another one than that of its parent."""
    with _writers_lock:
        found = _writers.get(log)
        if found is None or found.process_id != os.getpid():
            found = _writers[log] = _ChangeWriter(log)
        return found
