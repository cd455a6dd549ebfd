"""Handle of a quorum's log: the calls of an embedded log, answered by the leader.

A handle is thread-safe. In a forked child it reads over its own connections, and refuses appends.
An append whose response was lost is retried until its deadline, and never written twice: without
a commit or a producer of the caller it gets a producer id of the client. Operations that only a
node can do to its log raise ``NotRemoteError``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from raftlog.append.requests import AppendRequest, AppendResult
from raftlog.client.arguments import milliseconds
from raftlog.client.clock import Clock
from raftlog.client.log_handle import TIMEOUT_MS_DEFAULT, LogHandle
from raftlog.errors import NotRemoteError, OptionError
from raftlog.log.writing.batch_metadata import ValueKind
from raftlog.log.writing.producer_state import LastCommit
from raftlog.records.compression import Compression
from raftlog.types import SnapshotId

from .addresses import parse_addresses
from .appends import Appends
from .last_commit import last_commit
from .leader_client import LeaderClient
from .sender import Sender
from .sendings import LogSettings
from .tls import tls_from_files

if TYPE_CHECKING:
    from raftlog.log.reading.log_reader import LogReader

    from .log import RemoteLog

_AT_NODES: Final = "each node does it as configured; see `raftlog node --help`"


def connect(
    bootstrap: str,
    *,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_key_password: str | None = None,
    tls_check_host: bool = True,
    timeout_ms: float = TIMEOUT_MS_DEFAULT,
    clock: Clock | None = None,
) -> ConnectedLog:
    """Connect to the log of a raftlog quorum: ``connect("host1:9092,host2:9092")``.

    Args:
        bootstrap: ``host:port`` of one or more nodes, separated by commas. One is enough to find
            the others; with several the client can start while a node is down.
        tls_ca: PEM file of the CA of the nodes' certificates, which are then verified; None:
            connections are plain text.
        tls_certificate: PEM file of this client's certificate, if the nodes require one.
        tls_key: PEM file of its private key; None: it is in ``tls_certificate``.
        tls_key_password: the password of the key.
        tls_check_host: whether a node's certificate must be for the host of its address.
        timeout_ms: the bound on a request with its retries, 0 or more. Appends have their own.
        clock: the time source; None: the system's.

    Raises:
        OptionError: an argument is invalid, or a file cannot be used.
        QuorumUnavailableError: no leader answered within ``timeout_ms``.
        AccessDeniedError: a certificate was not accepted, or this client has no access to the log.
        NodeRefusedError: the nodes are not a raftlog quorum, but Kafka's controllers for instance.
    """
    tls = tls_from_files(tls_ca, tls_certificate, tls_key, tls_key_password, tls_check_host)
    wait_ms = milliseconds(timeout_ms, "timeout_ms")
    quorum = LeaderClient(parse_addresses(bootstrap), tls, timeout_ms=wait_ms)
    try:
        return ConnectedLog(quorum, Clock() if clock is None else clock)
    except BaseException:
        quorum.close()
        raise


class ConnectedLog(LogHandle):
    """Open log of a quorum, from ``raftlog.connect``. Close it, or use it in ``with``."""

    def __init__(self, quorum: LeaderClient, clock: Clock) -> None:
        self.path = quorum.path
        """The bootstrap addresses."""
        self._quorum = quorum
        self._clock = clock
        self._settings: LogSettings = quorum.settings()
        identity = quorum.identity()
        self._topic = identity.topic
        self._cluster_id = identity.cluster_id
        network = quorum.network
        sender = Sender(quorum.metadata, self._settings, clock)
        self._appends = Appends(self.path, network, sender, clock)
        weakref.finalize(self, _end, self._appends, quorum).atexit = False

    def close(self) -> None:
        """Wait for the results of all appends, and disconnect. It may be called twice.

        It waits until the ``timeout_ms`` of the last append at most, even without a leader.
        """
        self._appends.close()
        self._quorum.close()

    # --- properties -------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def partition(self) -> int:
        return 0

    @property
    def cluster_id(self) -> str | None:
        """The cluster id that the nodes were formatted with."""
        return self._cluster_id

    @property
    def leader_id(self) -> int:
        """The node id of the current leader, as far as this client knows."""
        return self._quorum.leader_id()

    @property
    def values(self) -> ValueKind:
        """The kind of values."""
        return self._settings.values

    @property
    def batch_bytes_max(self) -> int:
        """The maximum size of a batch in bytes, its header included."""
        return self._settings.batch_bytes_max

    @property
    def is_compressed(self) -> bool:
        """Whether the log compresses its batches, so that more records fit into one."""
        return self._settings.compression is not Compression.NONE

    def reader(self) -> RemoteLog:
        """Return a ``LogReader`` of the current log, as ``raftlog.follow`` does. For one thread."""
        from .log import RemoteLog

        return RemoteLog(self._quorum, self.values)

    def _refreshed_log(self) -> AbstractContextManager[LogReader]:
        return nullcontext(self.reader())

    def _new_reader(self) -> LogReader:
        return self.reader()

    # --- appending --------------------------------------------------------------------------------

    def last_commit(
        self, application_id: str, *, timeout_ms: int = TIMEOUT_MS_DEFAULT
    ) -> LastCommit | None:
        """Return the last named commit of an application id, or None.

        Raises ``OptionError``, ``QuorumUnavailableError``, ``AccessDeniedError`` and
        ``LogClosedError``.
        """
        if not isinstance(application_id, str):
            raise OptionError(option="application_id", reason="it must be text")
        deadline_ms = self._clock.now_ms() + milliseconds(timeout_ms, "timeout_ms")
        return self._last_commit(application_id, deadline_ms)

    def _last_commit(self, application_id: str, deadline_ms: float) -> LastCommit | None:
        return last_commit(
            self._quorum,
            self.values,
            application_id,
            deadline_ms,
            self._appends.submit,
            self._clock.now_ms,
        )

    def _open_for_appends(self) -> Callable[[AppendRequest], None]:
        return self._submit

    def _wait_for_append(self, request: AppendRequest, timeout_ms: int) -> AppendResult:
        try:
            return request.future.result()
        except BaseException:  # such as Ctrl-C: cancel it unless it was sent
            request.future.cancel()
            raise

    def _submit(self, request: AppendRequest) -> None:
        """Queue an append. A commit without records is looked up: no batch can have its name."""
        if request.commit is None or request.records:
            self._appends.submit(request)
            return
        name = request.commit
        known = self._last_commit(name.application_id, request.deadline_ms)
        duplicate = known and known.check(name, take_over_from=request.take_over_from)
        if duplicate is not None:
            first, last = duplicate.base_offset, duplicate.last_offset
            epoch = self.reader().epochs.epoch_at(first) or 0
            request.future.set_result(AppendResult(first, last, epoch, was_duplicate=True))
        elif request.has_required_offset or request.epoch is not None:
            self._appends.submit(replace(request, commit=None, take_over_from=None))
        else:
            end, epoch = self.end_offset, self._quorum.leader_epoch()
            request.future.set_result(AppendResult(end, end - 1, epoch))

    # --- operations of nodes ----------------------------------------------------------------------

    def claim(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Raise ``NotRemoteError``: an epoch of a quorum begins with an election."""
        del timeout_ms
        raise NotRemoteError(
            what="claiming the log",
            remedy="a quorum begins an epoch when it elects a leader; append with the epoch of an "
            "earlier append's result, to be refused after the next election",
        )

    def snapshot(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise ``NotRemoteError``: each node writes its own."""
        del args, kwargs
        raise NotRemoteError(what="writing a snapshot", remedy=_AT_NODES)

    def read_snapshot(self, snapshot_id: SnapshotId | None = None) -> NoReturn:
        """Raise ``NotRemoteError``: nodes send snapshots to replicas only."""
        del snapshot_id
        raise NotRemoteError(
            what="reading a snapshot", remedy="read a node's directory with raftlog.open"
        )

    def clean(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Raise ``NotRemoteError``: each node applies retention itself."""
        del timeout_ms
        raise NotRemoteError(what="applying retention", remedy=_AT_NODES)

    def run(self, operation: Callable[..., Any], timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Raise ``NotRemoteError``: the log's files are on the nodes."""
        del operation, timeout_ms
        raise NotRemoteError(what="an operation on the log's files", remedy=_AT_NODES)


def _end(appends: Appends, quorum: LeaderClient) -> None:
    """Finalize a handle that was not closed: send what is queued, then disconnect."""
    appends.close_later(quorum.close)
