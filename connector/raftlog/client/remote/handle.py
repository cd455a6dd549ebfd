"""The door to a quorum: the same calls as an embedded log's, answered by whoever leads.

Rules of this file:

1. A handle may be shared by threads. After a fork it reads by connections of its own, and refuses
   to append.
2. An append that may have been taken is asked for again until its deadline, and never written
   twice: what has no name or producer of its own gets one of the client's.
3. What only a node can do to its log is ``NotRemoteError``.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from raftlog.client.arguments import milliseconds
from raftlog.client.clock import Clock
from raftlog.client.log_handle import TIMEOUT_MS_DEFAULT, LogHandle
from raftlog.client.requests import AppendRequest, AppendResult
from raftlog.errors import NotRemoteError, OptionError
from raftlog.log.writing.batch_metadata import ValueKind
from raftlog.log.writing.commits import Commits, LastCommit
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
    from raftlog.log.reader import LogReader

    from .remote_log import RemoteLog

_AT_NODES: Final = "a node of the quorum does it by its configuration; see `raftlog node --help`"


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
    """Connect to the log of a quorum: ``connect("host1:9092,host2:9092")``.

    One address is enough to find the others, several survive a node that is down. With ``tls_ca``
    (the CA of the nodes' certificates) connections are encrypted and nodes must prove themselves;
    ``tls_certificate`` and ``tls_key`` prove this client. All are files in PEM form. Without
    ``tls_check_host`` a node need not be certified for the host of its address.

    ``timeout_ms`` bounds every question but appends, which have their own.

    Raises ``OptionError``, ``QuorumUnavailableError``, ``AccessDeniedError``, and
    ``NodeRefusedError`` if what answers is no quorum of raftlog's.
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
    """A quorum's log. ``raftlog.connect`` makes it; close it, or use it in a ``with`` statement."""

    def __init__(self, quorum: LeaderClient, clock: Clock) -> None:
        self.path = quorum.path
        """The addresses that were given."""
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
        """Wait until every append has its answer, and disconnect. Closing twice is allowed.

        That is at the latest when the last append's ``timeout_ms`` has passed, even if no node
        leads.
        """
        self._appends.close()
        self._quorum.close()

    # --- what it is -------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def partition(self) -> int:
        return 0

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the nodes were formatted for."""
        return self._cluster_id

    @property
    def leader_id(self) -> int:
        """The node that leads now, as far as this client knows."""
        return self._quorum.leader_id()

    @property
    def values(self) -> ValueKind:
        """What its values are."""
        return self._settings.values

    @property
    def batch_bytes_max(self) -> int:
        """What one batch may hold, its header included."""
        return self._settings.batch_bytes_max

    @property
    def is_compressed(self) -> bool:
        """Whether the log compresses its batches: then more fits into one."""
        return self._settings.compression is not Compression.NONE

    def reader(self) -> RemoteLog:
        """The log as it is now, for one thread: a ``LogReader``, as ``raftlog.follow`` gives."""
        from .remote_log import RemoteLog

        return RemoteLog(self._quorum, self.values)

    def _refreshed_log(self) -> AbstractContextManager[LogReader]:
        return nullcontext(self.reader())

    def _new_reader(self) -> LogReader:
        return self.reader()

    # --- appending --------------------------------------------------------------------------------

    def last_commit(
        self, application_id: str, *, timeout_ms: int = TIMEOUT_MS_DEFAULT
    ) -> LastCommit | None:
        """The last named commit of an application id, if the log remembers one."""
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
        except BaseException:  # Ctrl-C, say: what was not sent shall not be
            request.future.cancel()
            raise

    def _submit(self, request: AppendRequest) -> None:
        """Queue an append. One without a record has nowhere to say its commit's name."""
        if request.commit is None or request.records:
            self._appends.submit(request)
            return
        name = request.commit
        known = self._last_commit(name.application_id, request.deadline_ms)
        commits = Commits(() if known is None else (known,))
        duplicate = commits.check(name, take_over_from=request.take_over_from)
        if duplicate is not None:
            first, last = duplicate.base_offset, duplicate.last_offset
            epoch = self.reader().epochs.epoch_at(first) or 0
            request.future.set_result(AppendResult(first, last, epoch, was_duplicate=True))
        elif request.has_required_offset or request.epoch is not None:
            self._appends.submit(replace(request, commit=None, take_over_from=None))
        else:
            end, epoch = self.end_offset, self._quorum.leader_epoch()
            request.future.set_result(AppendResult(end, end - 1, epoch))

    # --- what a node does -------------------------------------------------------------------------

    def claim(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Not here: epochs of a quorum begin with an election."""
        del timeout_ms
        raise NotRemoteError(
            what="claiming the log",
            remedy="a quorum begins an epoch when it elects a leader; append under an epoch that "
            "an earlier append was answered with, to be refused after the next election",
        )

    def snapshot(self, *args: object, **kwargs: object) -> NoReturn:
        """Not here: each node writes its own."""
        del args, kwargs
        raise NotRemoteError(what="writing a snapshot", remedy=_AT_NODES)

    def read_snapshot(self, snapshot_id: SnapshotId | None = None) -> NoReturn:
        """Not here: nodes send theirs to replicas only."""
        del snapshot_id
        raise NotRemoteError(
            what="reading a snapshot", remedy="read a node's directory with raftlog.open"
        )

    def clean(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Not here: each node does it by itself."""
        del timeout_ms
        raise NotRemoteError(what="deleting what retention does not keep", remedy=_AT_NODES)

    def run(self, operation: Callable[..., Any], timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Not here: the log's files are the nodes'."""
        del operation, timeout_ms
        raise NotRemoteError(what="doing something to the log's files", remedy=_AT_NODES)


def _end(appends: Appends, quorum: LeaderClient) -> None:
    """What is done if nobody closes a handle: what was queued is still sent."""
    appends.close_later(quorum.close)
