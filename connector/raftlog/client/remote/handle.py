"""Handle of a quorum's log: the calls of an embedded log, answered by its leader.

A handle is thread-safe. In a forked child it reads over its own connections, and refuses appends.
An append whose response was lost is retried until its deadline, but never written twice: if the
caller gives it neither a commit nor a producer, it gets the client's producer id. Operations that
only a node can perform on its log raise ``NotRemoteError``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from raftlog.append import AppendRequest, AppendResult
from raftlog.client.log_handle import (
    TIMEOUT_MS_DEFAULT,
    LogHandle,
    decompression_limit,
    milliseconds,
    whole_number,
)
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    ForeignCommitError,
    InvalidAppendError,
    NotRemoteError,
    OptionError,
    QuorumUnavailableError,
    StaleCommitError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import DECOMPRESSED_BYTES_MAX, INT16_MAX
from raftlog.log.reading.transactions import CommitName, ValueKind
from raftlog.log.writing.producer_state import LastCommit
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.compression import Compression
from raftlog.types import SnapshotId

from .leader_client import LeaderClient
from .nodes import parse_addresses
from .producer_batches import IMPOSSIBLE_OFFSET, LogSettings
from .security import SECURITY_OPTIONS, ClientSecurity, parse_security
from .sender import Sender
from .voters import upgrade_kraft_version

if TYPE_CHECKING:
    from raftlog.client.encryption import Encryption
    from raftlog.log.reading.log_reader import LogReader

    from .log import RemoteLog

L = TypeVar("L")
_LOOKUPS_MAX: Final = 100
_ANY_VALUE: Final = {
    ValueKind.BYTES: b"",
    ValueKind.MSGPACK: b"\x93\x00\x00\x90",  # [0, 0, []]
    ValueKind.KRAFT: b"\x01\x00\x00",  # frame version 1, api key 0, version 0
}
_AT_NODES: Final = "each node does it as configured; see `raftlog node --help`"


def connect(
    bootstrap: str,
    *,
    config: Mapping[str, str] | None = None,
    oauth_token: Callable[[], str] | None = None,
    cluster_id: str | None = None,
    timeout_ms: float = TIMEOUT_MS_DEFAULT,
    encryption: Encryption | None = None,
    clock: Clock | None = None,
) -> ConnectedLog:
    """Connect to the log of a raftlog quorum: ``connect("host1:9092,host2:9092")``.

    Args:
        bootstrap: ``host:port`` of one or more nodes, separated by commas. One is enough to find
            the others; with several, the client can start while a node is down.
        config: security options with the names of Kafka's clients or of librdkafka, such as
            ``{"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}``; None: plaintext.
            ``raftlog.client.remote.security`` describes all of them, and references to secrets.
        oauth_token: returns a token for ``sasl.mechanism=OAUTHBEARER``. It is called for each
            authentication, in another thread, and must return within a few seconds. What it raises
            is raised by the call that needs a connection; appends raise SaslAuthenticationError.
        cluster_id: the expected cluster id, as printed by `raftlog node format`; None: that of the
            first node that responds. All nodes must belong to one cluster.
        timeout_ms: the time limit for a request with its retries, 0 or more. Appends have their
            own limit.
        encryption: how appends encrypt values and reads decrypt them, in a log with ``bytes``
            values; None: values are not encrypted or decrypted.
        clock: the time source; None: the system's.

    Raises:
        OptionError: an argument is invalid, or a file cannot be used.
        QuorumUnavailableError: no leader answered within ``timeout_ms``.
        AccessDeniedError: a certificate or the credentials were not accepted
            (``SaslAuthenticationError``), the nodes use another security protocol
            (``SecurityProtocolError``), or this client has no access to the log.
        WrongClusterError: the nodes belong to several clusters, or not to ``cluster_id``.
        NodeRefusedError: the nodes are not a raftlog quorum, but for instance Kafka controllers.
    """
    return open_remote_log(
        bootstrap,
        _security(config, oauth_token),
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        encryption=encryption,
        clock=clock,
    )


def follow(
    bootstrap: str,
    *,
    config: Mapping[str, str] | None = None,
    oauth_token: Callable[[], str] | None = None,
    cluster_id: str | None = None,
    timeout_ms: float = TIMEOUT_MS_DEFAULT,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> RemoteLog:
    """Open the log of a quorum for reading, as a ``LogReader``.

    The nodes are Kafka controllers or a raftlog quorum. The reader must be used by one thread only.
    Its connections are closed by ``close``, or when it is garbage collected.

    Args:
        bootstrap: ``host:port`` of one or more nodes, separated by commas; for controllers, the
            addresses in ``controller.quorum.bootstrap.servers``.
        config, oauth_token, cluster_id, timeout_ms: as for ``connect``.
        decompressed_bytes_max: the maximum size in bytes of a decompressed batch. Reading a larger
            one raises ``DecompressionLimitError``.

    Raises:
        OptionError, QuorumUnavailableError, AccessDeniedError, WrongClusterError: as for
            ``connect``.
        NodeRefusedError: the nodes refuse a request, or have more than one topic.
    """
    return open_remote_reader(
        bootstrap,
        _security(config, oauth_token),
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        decompressed_bytes_max=decompressed_bytes_max,
    )


def open_remote_log(
    bootstrap: str,
    security: ClientSecurity,
    *,
    cluster_id: str | None = None,
    timeout_ms: float = TIMEOUT_MS_DEFAULT,
    encryption: Encryption | None = None,
    clock: Clock | None = None,
) -> ConnectedLog:
    """Open a log for appending, like ``connect``."""
    time_source = Clock() if clock is None else clock
    open_log = partial(ConnectedLog, clock=time_source, encryption=encryption)
    return _open(bootstrap, security, cluster_id, timeout_ms, open_log)


def open_remote_reader(
    bootstrap: str,
    security: ClientSecurity,
    *,
    cluster_id: str | None = None,
    timeout_ms: float = TIMEOUT_MS_DEFAULT,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> RemoteLog:
    """Open a log for reading, like ``follow``."""
    from .log import RemoteLog

    limit = decompression_limit(decompressed_bytes_max)
    open_log = partial(RemoteLog, decompressed_bytes_max=limit)
    return _open(bootstrap, security, cluster_id, timeout_ms, open_log)


def _security(
    config: Mapping[str, str] | None, oauth_token: Callable[[], str] | None
) -> ClientSecurity:
    """Return the security settings in the arguments of a call. Raises ``OptionError``."""
    given = {} if config is None else dict(config)
    for name, value in given.items():
        if name not in SECURITY_OPTIONS:
            reason = "is not a security option of Kafka's clients that raftlog supports"
            raise OptionError(option=str(name), reason=reason)
        if not isinstance(value, str):
            raise OptionError(option=name, reason="must be text")
    return parse_security(given, get_token=oauth_token)


def _open(
    bootstrap: str,
    security: ClientSecurity,
    cluster_id: str | None,
    timeout_ms: float,
    open_log: Callable[[LeaderClient], L],
) -> L:
    """Open a log over a new client, which is closed if that fails."""
    wait_ms = milliseconds(timeout_ms, "timeout_ms")
    if cluster_id is not None and (not isinstance(cluster_id, str) or not cluster_id):
        raise OptionError(option="cluster_id", reason="it must be text, or None for any cluster")
    quorum = LeaderClient(
        parse_addresses(bootstrap), security, timeout_ms=wait_ms, cluster_id=cluster_id
    )
    try:
        return open_log(quorum)
    except BaseException:
        quorum.close()
        raise


class ConnectedLog(LogHandle):
    """Open log of a quorum, from ``raftlog.connect``. Close it, or use it in ``with``."""

    def __init__(
        self, quorum: LeaderClient, clock: Clock, encryption: Encryption | None = None
    ) -> None:
        self.path = quorum.path
        """The bootstrap addresses."""
        self._quorum = quorum
        self._clock = clock
        self._closed = threading.Event()
        self._settings: LogSettings = quorum.settings()
        if encryption is not None:
            from raftlog.client.encryption import new_cipher

            self._cipher = new_cipher(encryption, self.values, clock.now_ms)
        identity = quorum.identity()
        self._topic = identity.topic
        self._cluster_id = identity.cluster_id
        network = quorum.network  # first, because in a forked child it replaces the metadata
        self._sender = Sender(quorum.metadata, network, self._settings, clock)
        weakref.finalize(self, self._sender.close_later, quorum.close).atexit = False

    def close(self) -> None:
        """Wait for the results of all appends, and disconnect. Can be called twice.

        Even without a leader, it waits no longer than the ``timeout_ms`` of the last append.
        """
        self._closed.set()
        self._sender.close()
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
        """The maximum size of a batch in bytes, including its header."""
        return self._settings.batch_bytes_max

    @property
    def is_compressed(self) -> bool:
        """Whether the log compresses its batches, so that more records fit into one."""
        return self._settings.compression is not Compression.NONE

    def reader(self) -> RemoteLog:
        """Return a ``LogReader`` of the current log, like ``raftlog.follow``. For one thread.

        It does not decrypt values.
        """
        from .log import RemoteLog

        return RemoteLog(self._quorum, self.values)

    def _refreshed_log(self) -> AbstractContextManager[LogReader]:
        return nullcontext(self.reader())

    def _new_reader(self) -> LogReader:
        return self._decrypted(self.reader())

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

    def _open_for_appends(self) -> Callable[[AppendRequest], None]:
        return self._submit

    def _check_may_wait(self) -> None:
        self._sender.network.check_may_wait()

    def _wait_for_append(self, request: AppendRequest, timeout_ms: int) -> AppendResult:
        return _result_of(request)

    def _submit(self, request: AppendRequest) -> None:
        """Queue an append. A commit without records is looked up: no batch can carry its name."""
        if request.commit is None or request.records:
            self._sender.append(request)
            return
        name = request.commit
        known = self._last_commit(name.application_id, request.deadline_ms)
        duplicate = known and known.check(name, take_over_from=request.take_over_from)
        if duplicate is not None:
            first, last = duplicate.base_offset, duplicate.last_offset
            epoch = self.reader().epochs.epoch_at(first) or 0
            request.future.set_result(AppendResult(first, last, epoch, was_duplicate=True))
        elif request.has_required_offset or request.epoch is not None:
            self._sender.append(replace(request, commit=None, take_over_from=None))
        else:
            end, epoch = self.end_offset, self._quorum.leader_epoch()
            request.future.set_result(AppendResult(end, end - 1, epoch))

    # --- lookup of a commit -----------------------------------------------------------------------

    # The last named commit of an application id is looked up with three requests:
    #
    # 1. OffsetFetch returns its version and query id, but no offsets.
    # 2. Produce appends the same commit again, with a required offset that no log reaches. The
    #    leader checks the identity first and returns the existing offsets, which it knows even
    #    after retention has deleted the records. Otherwise it refuses the offset. So nothing is
    #    ever written.
    # 3. Fetch returns its batch, which contains the timestamp.
    #
    # If another commit was appended in between, the lookup starts again.

    def _last_commit(self, application_id: str, deadline_ms: float) -> LastCommit | None:
        """Return the last commit. Its ``timestamp_ms`` is -1 if its records are deleted."""
        began_ms = self._clock.now_ms()
        for _ in range(_LOOKUPS_MAX):
            left_ms = max(deadline_ms - self._clock.now_ms(), 0)
            committed = self._quorum.last_commit(application_id, timeout_ms=left_ms)
            if committed is None:
                return None
            name = CommitName(application_id, committed.query_id, committed.version)
            try:
                appended = self._appended(name, deadline_ms)
            except AppendUnknownError as lost:  # nothing was written: the offset is impossible
                waited_ms = int(self._clock.now_ms() - began_ms)
                raise QuorumUnavailableError(
                    path=self.path, waited_ms=waited_ms, reason=lost.reason
                ) from None
            if appended is None:
                continue
            timestamp_ms = self._timestamp_of(appended, deadline_ms)
            return LastCommit(name, appended.base_offset, appended.last_offset, timestamp_ms)
        reason = f"{application_id!r} committed again in every attempt"
        waited_ms = int(self._clock.now_ms() - began_ms)
        raise QuorumUnavailableError(path=self.path, waited_ms=waited_ms, reason=reason)

    def _appended(self, name: CommitName, deadline_ms: float) -> AppendResult | None:
        """Return the offsets of a commit in the log; None if it is no longer the last one."""
        request = AppendRequest(
            records=(_ANY_VALUE[self.values],),
            required_base_offset=IMPOSSIBLE_OFFSET,
            is_atomic=True,
            commit=name,
            deadline_ms=deadline_ms,
        )
        self._sender.append(request)
        try:
            return _result_of(request)
        except (ForeignCommitError, StaleCommitError, UnexpectedEndOffsetError, InvalidAppendError):
            return None

    def _timestamp_of(self, appended: AppendResult, deadline_ms: float) -> int:
        """Return the timestamp of a commit's batch; -1 if the batch is deleted."""
        byte_count_max = 1
        while True:
            left_ms = max(deadline_ms - self._clock.now_ms(), 0)
            fetched = self._quorum.fetch(
                appended.base_offset, byte_count_max=byte_count_max, timeout_ms=left_ms
            )
            if not fetched.data:
                return -1
            batch = read_batch(fetched.data, path=self.path)
            if isinstance(batch, RecordBatch):
                is_found = batch.base_offset == appended.base_offset
                return batch.max_timestamp_ms if is_found else -1
            byte_count_max = max(2 * len(fetched.data), 1024)

    def upgrade_kraft_version(self, version: int, *, validate_only: bool = False) -> None:
        """Raise the kraft.version of the quorum; return when the change is committed.

        ``validate_only``: the leader only checks whether the change is possible. Raises
        ``VoterChangeError``.
        """
        whole_number(version, "version", at_most=INT16_MAX)
        upgrade_kraft_version(self._quorum, version, validate_only=validate_only)

    # --- operations of nodes ----------------------------------------------------------------------

    def claim(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Raise ``NotRemoteError``: in a quorum, an epoch begins with an election."""
        del timeout_ms
        raise NotRemoteError(
            what="claiming the log",
            remedy="a quorum begins an epoch when it elects a leader; append with the epoch of an "
            "earlier append's result, to be refused after the next election",
        )

    def snapshot(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise ``NotRemoteError``: each node writes its own snapshots."""
        del args, kwargs
        raise NotRemoteError(what="writing a snapshot", remedy=_AT_NODES)

    def read_snapshot(self, snapshot_id: SnapshotId | None = None) -> NoReturn:
        """Raise ``NotRemoteError``: clients read snapshots only of logs with ``kraft`` values, for
        the state that ``raftlog_state`` builds from them.
        """
        del snapshot_id
        raise NotRemoteError(
            what="reading a snapshot", remedy="read a node's directory with raftlog.open"
        )

    def clean(self, *, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Raise ``NotRemoteError``: each node applies retention to its own log."""
        del timeout_ms
        raise NotRemoteError(what="applying retention", remedy=_AT_NODES)

    def run(self, operation: Callable[..., Any], timeout_ms: int = TIMEOUT_MS_DEFAULT) -> NoReturn:
        """Raise ``NotRemoteError``: the log's files are on the nodes."""
        del operation, timeout_ms
        raise NotRemoteError(what="an operation on the log's files", remedy=_AT_NODES)


def _result_of(request: AppendRequest) -> AppendResult:
    """Wait for the result of an append, which is set by its deadline at the latest."""
    try:
        return request.future.result()
    except BaseException:  # such as Ctrl-C: cancel it unless it was sent
        request.future.cancel()
        raise
