"""Handle of an embedded log.

Reads take no lock and return only synced records. Each handle has one writer thread for its
appends, which holds the log's lock for one group of appends at a time (``writer``). Any other
directory, such as Kafka's or a quorum node's, is only read: not even a lock file is written to it.

A handle is thread-safe. In a forked child it can read, but refuses appends. ``log_handle`` has the
calls that embedded and remote logs share.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from raftlog.append import AppendRequest, AppendResult, Operation, UserRecord, new_records
from raftlog.client.errors import CallbackError
from raftlog.client.log_handle import (
    TIMEOUT_MS_DEFAULT,
    LogHandle,
    milliseconds,
    whole_number,
    without_scheme,
)
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    InvalidAppendError,
    LogLockedError,
    LogReadOnlyError,
    NotALogError,
    OptionError,
    RaftlogError,
)
from raftlog.log.format.directory import RAFTLOG_PROPERTIES_NAME
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.recovery.recover import RecoveryReport
from raftlog.log.writing.producer_state import LastCommit
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.storage.file_rights import others_may_read_in
from raftlog.storage.local import WritableLocalStorage
from raftlog.storage.protocol import Closeable, WritableStorage
from raftlog.types import SnapshotId

from .directory import find_or_create, is_of_node, node_refusal
from .writer import GroupCommitter, WriterThread

if TYPE_CHECKING:
    from raftlog.client.encryption import Encryption
    from raftlog.log.reading.log_reader import LogReader
    from raftlog.log.reading.remote_tier import OpenStore
    from raftlog.log.remote.manifest import ManifestCache
    from raftlog.log.remote.tiering import RemoteCounts, RemoteLogRun
    from raftlog.records.record import Record
    from raftlog.storage.objects import ObjectStore


T = TypeVar("T")
C = TypeVar("C", bound=Closeable)
_PRIVATE_MODE: Final = 0o700


def open_embedded(
    path: str | os.PathLike[str],
    *,
    create: bool = True,
    values: ValueKind | str | None = None,
    config: LogConfig | None = None,
    directory_mode: int | None = None,
    encryption: Encryption | None = None,
    storage: WritableStorage | None = None,
    clock: Clock | None = None,
) -> EmbeddedLog:
    """Open the embedded log in a directory, and create it if it does not exist.

    A log of Kafka or of a quorum's node is opened read-only. If the name of the directory has
    Kafka's form, ``<topic>-<partition>``, it is the name of the log.

    Args:
        path: the directory of the log, or a ``file:`` URL. Its parent directory must exist.
        create: whether to create a log that does not exist.
        values: the kind of values: ``bytes`` (default), ``msgpack`` or ``kraft``. If given, an
            existing log must have the same kind.
        config: settings of a new log. An existing log keeps its own.
        directory_mode: mode of a new log's directory, from 0o700 to 0o777; its files have no
            permission that the directory does not have. 0o750 lets the group read, 0o770 also
            write. Default: 0o700 for ``kraft`` values (credentials), otherwise by the umask.
        encryption: how appends encrypt values and reads decrypt them, in a log with ``bytes``
            values; None: values are not encrypted or decrypted.
        storage: the file system; None: the local one.
        clock: the time source; None: the system's.

    Raises:
        LogNotFoundError: the log does not exist and ``create`` is False, or its parent directory
            does not exist.
        NotALogError: the directory contains other files.
        LogReadOnlyError: the directory belongs to a quorum's node and contains no log yet.
        OptionError: an argument is invalid, or the log has another kind of values.
        LogLockedError: another process held the lock of the new log for 30 s.
        LogAccessError, CorruptFileError, DiskFullError: the files cannot be used.

    Warns (``UserWarning``) if other users can read a log with ``kraft`` values.
    """
    path = without_scheme(os.fspath(path))
    if not path:
        raise OptionError(option="path", reason="it is empty; give the log's directory")
    if storage is None:
        path = os.path.abspath(path)
    clock = Clock() if clock is None else clock
    wanted = LogConfig() if config is None else config
    wanted = replace(wanted, values=_value_kind(wanted.values if values is None else values))
    mode = _directory_mode(directory_mode, wanted.values)
    files = WritableLocalStorage(directory_mode=mode) if storage is None else storage
    found = find_or_create(files, path, wanted if create else None, clock)
    is_declared = values is not None or wanted.values is not ValueKind.BYTES
    if found is not None and is_declared and found.values is not wanted.values:
        raise OptionError(
            option="values",
            reason=f"the log in {path} has {found.values.value} values, which cannot be changed; "
            f"open it with values={found.values.value!r}, or name another directory",
        )
    if storage is None and found is not None and found.values is ValueKind.KRAFT:
        _warn_of_readers(path)
    try:
        return EmbeddedLog(files, path, found, clock, _refusal(files, path, found), encryption)
    except NotALogError as error:
        if not create or not files.is_directory(path):
            raise
        if is_of_node(files, path):
            raise node_refusal(path) from None
        reason = f"{error.reason}, and a new log is only created in an empty directory"
        raise NotALogError(path=path, reason=reason) from None


def _refusal(
    files: WritableStorage, path: str, config: LogConfig | None
) -> LogReadOnlyError | None:
    """Return the error of appends if the log is not an embedded log; otherwise None."""
    if config is None:
        return LogReadOnlyError(
            path=path,
            reason="it was not created by raftlog",
            remedy="create a log with raftlog.open in an empty directory",
        )
    return node_refusal(path) if is_of_node(files, path) else None


class EmbeddedLog(LogHandle):
    """Open embedded log, from ``raftlog.open``. Close it, or use it in a ``with`` statement."""

    def __init__(
        self,
        storage: WritableStorage,
        path: str,
        config: LogConfig | None,
        clock: Clock,
        refusal: LogReadOnlyError | None,
        encryption: Encryption | None = None,
    ) -> None:
        self.path = path
        self.remote_counts: RemoteCounts | None = None
        """Counts of this handle's last run of remote storage, even if it failed."""
        self._manifest_cache: ManifestCache = {}
        self._storage = storage
        self._clock = clock
        self._reader: LogReader | None = None
        self._reader_lock = threading.Lock()
        self._closed = threading.Event()
        self._process_id = os.getpid()
        self._config = config
        self._refusal = refusal
        if encryption is not None:
            from raftlog.client.encryption import new_cipher

            self._cipher = new_cipher(encryption, self.values, clock.now_ms)
        self._committer: GroupCommitter | None = None
        self._writer_thread: WriterThread | None = None
        self._cleaner: threading.Thread | None = None
        if config is None:
            self._reader = self._new_reader()  # raises if it is not a log
        if refusal is None:
            assert config is not None, "any other log is refused"
            self._committer = GroupCommitter(storage, path, clock)
            self._writer_thread = WriterThread(
                path,
                self._committer.write,
                on_close=self._committer.close,
                linger_ms=config.linger_ms,
                now_ms=clock.now_ms,
            )
            self._committer.on_linger = self._writer_thread.set_linger
            start_cleaner = weakref.WeakMethod(self._start_cleaner)

            def clean_in_thread() -> None:
                if (start := start_cleaner()) is not None:
                    start()

            self._committer.on_clean = clean_in_thread
            weakref.finalize(self, self._writer_thread.close, 0).atexit = False

    def close(self) -> None:
        """Write queued appends and close the log cleanly. Can be called twice.

        Aborts a running compaction, even one that another thread started with ``clean``.
        """
        self._closed.set()
        if self._writer_thread is not None:
            self._writer_thread.close()
            if self._cleaner is not None and not self._writer_thread.is_current:
                self._cleaner.join()  # it may wait for the writer thread, which has ended

    # --- properties -------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        with self._reading():
            return self._log().topic

    @property
    def partition(self) -> int:
        with self._reading():
            return self._log().partition

    @property
    def values(self) -> ValueKind:
        """The kind of values; ``BYTES`` for a log of Kafka."""
        return ValueKind.BYTES if self._config is None else self._config.values

    @property
    def recovery_report(self) -> RecoveryReport | None:
        """What recovery found when this handle opened the log for appending; None before that."""
        return None if self._committer is None else self._committer.report

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Hold the reader's lock. A forked child replaces the lock and the reader."""
        if os.getpid() != self._process_id:
            self._process_id = os.getpid()
            self._reader, self._reader_lock = None, threading.Lock()
        with self._reader_lock:
            yield

    @contextmanager
    def _refreshed_log(self) -> Iterator[LogReader]:
        with self._reading():
            yield self._log(refresh=True)

    def _new_reader(self) -> LogReader:
        from raftlog.client.object_stores import readers_of

        values = None if self._config is None else self._config.values
        open_store = readers_of(self._open_store)
        return self._decrypted(_open_reader(self._storage, self.path, values, open_store))

    def _open_store(self, uri: str) -> ObjectStore:
        """Open the store of remote segments; a path refers to the log's storage."""
        from raftlog.client.object_stores import stores_of

        is_local = isinstance(self._storage, WritableLocalStorage)
        return stores_of(None if is_local else self._storage)(uri)

    def _log(self, *, refresh: bool = False) -> LogReader:
        """Return the reader. Its lock must be held, for this call and while the reader is used."""
        if self._reader is None:
            self._reader = self._new_reader()
        elif refresh:
            self._reader.refresh()
        return self._reader

    # --- reading ----------------------------------------------------------------------------------

    def read_snapshot(self, snapshot_id: SnapshotId | None = None) -> Iterator[Record]:
        """Return the records of one of ``snapshots``, by default the newest.

        The log continues at the snapshot's ``end_offset``. The offsets of the returned records
        count from 0 and are not offsets of the log. Raises ``OptionError`` if there is no such
        snapshot. Iteration raises ``CorruptSnapshotError`` after the valid records.
        """
        with self._refreshed_log() as log:
            found = log.snapshots[-1:] if snapshot_id is None else (snapshot_id,)
            if not found or found[0] not in log.snapshots:
                known = ", ".join(map(str, log.snapshots)) or "none"
                raise OptionError(
                    option="snapshot_id", reason=f"no such snapshot; existing ones: {known}"
                )
            snapshot = log.read_snapshot(found[0])
        from raftlog.client.log_records import snapshot_records

        return snapshot_records(snapshot)

    # --- appending --------------------------------------------------------------------------------

    def last_commit(
        self, application_id: str, *, timeout_ms: int = TIMEOUT_MS_DEFAULT
    ) -> LastCommit | None:
        """Return the last named commit of an application id, or None.

        Raises ``OptionError``, ``LogLockedError``, ``LogReadOnlyError`` and ``LogClosedError``.
        """
        if not isinstance(application_id, str):
            raise OptionError(option="application_id", reason="it must be text")
        return self.run(lambda log, _: log.producer_state.last_commit(application_id), timeout_ms)

    def claim(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> int:
        """Begin a new epoch and return it. Later appends with an older ``epoch`` are rejected.

        Raises ``LogLockedError``, ``LogReadOnlyError`` and ``LogClosedError``.
        """
        return self.run(lambda log, now_ms: log.claim(now_ms=now_ms), timeout_ms)

    # --- snapshots and retention ------------------------------------------------------------------

    def snapshot(
        self,
        records: UserRecord | Iterable[UserRecord] = (),
        *,
        end_offset: int | None = None,
        delete_before: bool = False,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> SnapshotId | None:
        """Write a snapshot of the state below an offset, and return its id.

        Returns None if the snapshot already exists, or if the log starts after it. Appends wait
        while the snapshot is written.

        Args:
            records: the state, in the order in which it is read. A ``bytes`` log has no such
                records; its snapshot contains only producers and commits.
            end_offset: the exclusive end of the state, at a batch boundary; None: the log's end.
            delete_before: whether to delete the log below ``end_offset``.
            timeout_ms: as for ``append``.

        Raises:
            SnapshotRefusedError: ``end_offset`` is inside a batch, or beyond the log's end.
            InvalidAppendError, RecordBatchTooLargeError: a record is invalid or too large.
            LogLockedError, LogReadOnlyError, LogClosedError, DiskFullError: as for ``append``.
        """
        state = new_records(records, self.values)
        if state and self.values is ValueKind.BYTES:
            reason = "a bytes log has no state, so its snapshot takes no records"
            raise InvalidAppendError(reason=reason)
        wanted_end = None if end_offset is None else whole_number(end_offset, "end_offset")

        def write(log: SingleVoterLog, now_ms: int) -> SnapshotId | None:
            log.flush()
            end = log.end_offset if wanted_end is None else wanted_end
            snapshot_id = log.snapshot_id_at(end)
            writer = log.begin_snapshot(snapshot_id, now_ms=now_ms)
            if writer is None:
                return None
            with writer:
                writer.append(state)
                writer.freeze()
            if delete_before:
                log.delete_before(snapshot_id)
            return snapshot_id

        return self.run(write, timeout_ms)

    def clean(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> bool:
        """Apply ``cleanup.policy`` and ``remote.storage.enable`` now; return whether anything was
        copied, deleted or compacted.

        Appends do this every few minutes, and a thread then copies sealed segments to remote
        storage and compacts the log. This call does both in the calling thread, while appends and
        reads continue. It skips what another process is already doing, and compaction if too little
        of the log is dirty (``min.cleanable.dirty.ratio``). The objects of deleted remote segments
        are deleted by the next call.

        Raises:
            CorruptBatchError, CorruptFileError: a sealed segment is damaged; it is not changed.
            RemoteStorageError: the store did not answer; segments copied before are kept.
            WrongBackupError, CorruptRemoteObjectError: the store belongs to another log, or is
                damaged.
            LogEndsBeforeRemoteError: another copy of this log has copied more to the store.
            LogLockedError, LogReadOnlyError, LogClosedError, DiskFullError: as for ``append``.
        """
        is_changed = self._copy_to_remote(timeout_ms)
        is_changed |= self.run(lambda log, now_ms: log.clean(now_ms=now_ms), timeout_ms)
        return self._compact(timeout_ms) or is_changed

    def _start_cleaner(self) -> None:
        """Copy and compact in a thread, unless one runs already. The next call retries an error.

        The thread ends with its process, because what it has written is not part of the log yet. If
        no thread can be started, as when the interpreter exits, the next interval retries.
        """
        if self._cleaner is not None and self._cleaner.is_alive():
            return

        def clean() -> None:
            with suppress(RaftlogError):
                self._copy_to_remote(TIMEOUT_MS_DEFAULT)
            with suppress(RaftlogError):
                self._compact(TIMEOUT_MS_DEFAULT)

        cleaner = threading.Thread(target=clean, name="raftlog-cleaner", daemon=True)
        with suppress(RuntimeError):
            cleaner.start()
            self._cleaner = cleaner

    def _copy_to_remote(self, timeout_ms: int) -> bool:
        """Run the log's remote storage; return whether its remote segments have changed."""
        from raftlog.client.object_stores import surroundings

        def begin(log: SingleVoterLog, _: int) -> RemoteLogRun | None:
            return log.begin_remote_run(
                self._open_store, surroundings(), cache=self._manifest_cache
            )

        run = self._begin(begin, timeout_ms)
        if run is None:
            return False
        with run:
            try:
                run.run(self._closed.is_set)
            finally:
                self.remote_counts = run.counts
            return self.run(lambda log, _: log.complete_remote_run(run), timeout_ms)

    def _begin(self, begin: Callable[[SingleVoterLog, int], C | None], timeout_ms: int) -> C | None:
        """Return what ``begin`` starts; it is closed if this call ends without returning it."""
        future = self._submit(begin, timeout_ms)
        try:
            return self._wait(future, timeout_ms)
        except BaseException:  # such as Ctrl-C: it may still start
            future.add_done_callback(_close_begun)
            raise

    def _compact(self, timeout_ms: int) -> bool:
        compaction = self._begin(
            lambda log, now_ms: log.begin_compaction(now_ms=now_ms), timeout_ms
        )
        if compaction is None:
            return False
        completing = threading.Lock()

        def complete(log: SingleVoterLog, _: int) -> bool:
            with completing:
                return log.complete_compaction(compaction)

        try:
            compaction.run(self._closed.is_set)
            return self.run(complete, timeout_ms)
        finally:
            with completing:  # if this stops waiting, as after Ctrl-C, it may still be completed
                compaction.close()

    def run(
        self,
        operation: Callable[[SingleVoterLog, int], T],
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
    ) -> T:
        """Run ``operation`` on the log while holding its lock. For tools.

        It is called with the log and the wall-clock time in milliseconds.
        """
        return self._wait(self._submit(operation, timeout_ms), timeout_ms)

    # --- inside -----------------------------------------------------------------------------------

    def _submit(self, operation: Callable[[SingleVoterLog, int], T], timeout_ms: int) -> Future[T]:
        self._check_may_wait()
        deadline_ms = self._clock.now_ms() + milliseconds(timeout_ms, "timeout_ms")
        request = Operation(run=operation, deadline_ms=deadline_ms)
        self._require_writer_thread().submit(request)
        return request.future

    def _require_writer_thread(self) -> WriterThread:
        if self._writer_thread is None:
            assert self._refusal is not None, "a log without a writer is refused"
            raise copy.copy(self._refusal)
        return self._writer_thread

    def _open_for_appends(self) -> Callable[[AppendRequest], None]:
        return self._require_writer_thread().submit

    def _check_may_wait(self) -> None:
        if self._writer_thread is not None and self._writer_thread.is_current:
            raise CallbackError(path=self.path)

    def _wait_for_append(self, request: AppendRequest, timeout_ms: int) -> AppendResult:
        try:
            return self._wait(request.future, timeout_ms)
        except AppendUnknownError:
            if request.writes:
                raise
            raise LogLockedError(path=self.path, waited_ms=timeout_ms) from None

    def _wait(self, future: Future[T], timeout_ms: int) -> T:
        """Wait up to ``timeout_ms`` for a request to start, and then at least 30 s for its sync."""
        try:
            return future.result(timeout_ms / 1000)
        except FutureTimeoutError:
            if future.cancel():
                raise LogLockedError(path=self.path, waited_ms=timeout_ms) from None
        except BaseException:  # such as Ctrl-C: cancel it unless it has started
            future.cancel()
            raise
        try:
            return future.result(max(timeout_ms, TIMEOUT_MS_DEFAULT) / 1000)
        except FutureTimeoutError:
            reason = "it is still being written"
            raise AppendUnknownError(path=self.path, reason=reason) from None


def _close_begun(future: Future[C | None]) -> None:
    """Close what was started for a caller that no longer waits."""
    if not future.cancelled() and future.exception() is None:
        begun = future.result()
        if begun is not None:
            begun.close()


def _open_reader(
    storage: WritableStorage, path: str, values: ValueKind | None, open_store: OpenStore
) -> LogReader:
    """Open a log for reading; ``values`` is None if it is not an embedded log.

    Raises ``NotALogError`` for a directory that only contains the directory of a raftlog log.
    Readers open such a directory, but a handle requires the log's own.
    """
    from raftlog.log.reading.opening import open_log
    from raftlog.log.reading.reads import LogKind, SourceKind

    if values is None:
        log = open_log(storage, path, open_store=open_store)
        if log.is_raftlog and log.source is SourceKind.DIRECTORY:
            reason = f"it contains the log {log.topic}-{log.partition}"
            raise NotALogError(path=path, reason=reason)
        return log
    is_metadata = values is ValueKind.KRAFT
    kind = LogKind.METADATA if is_metadata else LogKind.PARTITION
    return open_log(storage, path, kind=kind, open_store=open_store)


def _value_kind(values: ValueKind | str) -> ValueKind:
    try:
        return ValueKind(values)
    except ValueError:
        kinds = ", ".join(kind.value for kind in ValueKind)
        raise OptionError(option="values", reason=f"it must be one of {kinds}") from None


def _directory_mode(mode: int | None, values: ValueKind) -> int | None:
    """Return the mode of a new log's directory; None to use the umask."""
    if mode is None:
        return _PRIVATE_MODE if values is ValueKind.KRAFT else None
    if isinstance(mode, bool) or not isinstance(mode, int) or mode & ~0o777 or mode >> 6 != 7:
        reason = "it must be from 0o700 to 0o777, octal: the owner needs all rights"
        raise OptionError(option="directory_mode", reason=reason)
    return mode


def _warn_of_readers(path: str) -> None:
    """Warn if other users may read cluster metadata, which contains credentials."""
    if others_may_read_in(path, RAFTLOG_PROPERTIES_NAME):
        warnings.warn(
            f"other users may read {path}, and cluster metadata contains credentials; "
            f"run chmod -R o-rwx {path}",
            stacklevel=3,
        )
