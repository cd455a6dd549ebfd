"""Process of a node: lock the directory, open the log, serve the listeners until a signal.

On SIGTERM and SIGINT the node hands over leadership, completes the requests in progress and closes
the log; a second signal ends the process immediately. SIGHUP reloads the settings in ``settings``
and the token keys, all or none, and closes connections whose principal has changed. A failed log
ends the process with ``EXIT_FAILED``; the next start recovers the log. A node does not start if its
limits allow more connections than it has file descriptors, because it would fail later, under load.
Python's garbage collection visits the objects loaded at the start only once
(``garbage_collection``).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import signal
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from raftlog import __version__
from raftlog.client.object_stores import open_object_store, surroundings
from raftlog.clock import Clock
from raftlog.errors import NodeRunningError, RaftlogError
from raftlog.log.format.directory import NODE_LOCK_NAME, MetaProperties
from raftlog.log.reading.transactions import ValueKind
from raftlog.log.writing.quorum_log import TombstonesMissedError
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    LeaderChanged,
    LogMessage,
    RoleChanged,
)
from raftlog.quorum.roles import Leader
from raftlog.quorum.voters import VoterSet
from raftlog.storage.local import ReservedDescriptorStorage
from raftlog.types import TopicPartition
from raftlog.wire import ApiKey, LogIdentity

from .access import AccessTable, Principal, forwarded_principal, host_text, principal_of
from .addresses import CONTROLLER_NAME
from .apis.client_apis import ClientApis
from .audit import AuditFile, AuditLog
from .certificates import ExpiryWatch
from .client_quotas import ClientQuota, QuotaTable
from .config import ListenerConfig, NodeConfig, reload_access, voter_of
from .connection import FlushQueue
from .driver import Driver
from .durations import DURATION_BUCKETS_S
from .errors import ConfigError
from .event_loop import NodeEventLoop
from .formatting import read_identity, topic_id_of
from .garbage_collection import survivors_frozen
from .log_lines import LogLines, asyncio_lines
from .metrics import (
    METRICS_CONNECTIONS_MAX,
    MetricsServer,
    NodeCollector,
    readiness_problems,
)
from .network_channel import NetworkChannel
from .oauth import TokenKey, TokenVerifier
from .raft_node import (
    CleaningRefused,
    LogCleaned,
    LogCompacted,
    Notification,
    RemoteStorage,
    SegmentsCopied,
)
from .replica import Replica
from .sasl import SaslAuthenticator, Users
from .server import ListenerSocket, Server
from .service import CreateService, LogAccess, NodeContext
from .settings import ReloadableSettings
from .tls import check_key_file

EXIT_FAILED: Final = 1
HAND_OVER_MS: Final = 5_000
DRAIN_TIMEOUT_MS: Final = 2_000
SECRET_LENGTH_MAX: Final = 4_096
FILES_RESERVE: Final = 128
"""Descriptors for the log's files, connections to other nodes, Python and system libraries."""


def run_node(config: NodeConfig, *, services: Sequence[CreateService] = ()) -> int:
    """Run a node until a signal ends it, and return the exit code. Log lines are written to stderr.

    ``services`` receive all committed records, and the requests that they handle.

    Raises ``NotFormattedError``, ``WrongDirectoryError``, ``ConfigError``, ``NodeRunningError``,
    ``NodeAddressError`` and the errors of opening a log, all of them before the node serves.
    """
    if config.controller is not None and not services:
        raise ConfigError(
            path=config.path or "the configuration",
            key="controller.enabled",
            reason="this program has no controller: start the node with `raftlog node start`",
        )
    lines = LogLines(sys.stderr, config.node_id)
    raise_descriptor_limit(config)
    storage = ReservedDescriptorStorage()
    meta = read_identity(config, storage)
    with (
        _locked(storage, config),
        storage,
        asyncio_lines(lines),
        survivors_frozen(),
        asyncio.Runner(loop_factory=NodeEventLoop) as runner,
    ):
        return runner.run(_run(config, meta, storage, lines, services))


@contextlib.contextmanager
def _locked(storage: ReservedDescriptorStorage, config: NodeConfig) -> Iterator[None]:
    lock = storage.try_lock(storage.join(config.directory, NODE_LOCK_NAME))
    if lock is None:
        raise NodeRunningError(path=config.directory)
    with lock:
        yield


async def _run(
    config: NodeConfig,
    meta: MetaProperties,
    storage: ReservedDescriptorStorage,
    lines: LogLines,
    services: Sequence[CreateService],
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    settings = ReloadableSettings(config)
    node: Node  # bound before the loop can run a signal handler
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(config, settings, node, lines))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    while True:
        node = Node(config, meta, storage, settings=settings, lines=lines, services=services)
        try:
            error = await _run_until(stop, node)
            if isinstance(error, TombstonesMissedError):
                lines.log("restarting", level="warning", reason=error.reason)
                continue
            if error is not None:
                lines.log("failed", level="error", reason=str(error))
                return EXIT_FAILED
            lines.log("stopping")
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)  # a second signal ends the process
            await node.hand_over()
            return 0
        finally:
            await node.close()
            lines.log("stopped")


async def _run_until(stop: asyncio.Event, node: Node) -> RaftlogError | None:
    """Start a node, and wait until it has ended or must stop; return why it ended, otherwise None.
    Raises the exception of a bug."""
    await node.start()
    stopping = asyncio.ensure_future(stop.wait())
    ended = node.driver.ended
    try:
        await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
    return ended.result() if ended.done() else None


def _reload(config: NodeConfig, settings: ReloadableSettings, node: Node, lines: LogLines) -> None:
    """Reload all settings, or none if a file has an error (``ReloadableSettings``)."""
    node.reopen_audit_log()  # first: a file with an error must not keep the old audit log open
    access, users, quotas = settings.access, settings.users(), settings.quotas
    try:
        keys = node.read_token_keys()
        found = (None, None) if config.path is None else reload_access(config)
        is_trust_reduced = settings.reload(*found)
    except ConfigError as error:
        reason = f"nothing is reloaded, all old settings stay in use: {error}"
        lines.log("reload", level="error", reason=reason)
        node.audit.log("reload", outcome=reason)
        return
    node.use_token_keys(keys)
    node.use_quotas(settings.quotas)
    node.expiry_watch.check()
    closed_count = node.access_changed(access, is_trust_reduced=is_trust_reduced)
    lines.log("reload", reason="reloaded", closed_connections=closed_count)
    node.audit.log(
        "reload",
        outcome="reloaded",
        closed_connections=closed_count,
        **_changed_rights(access, settings.access),
        **_changed_quotas(quotas.quotas, settings.quotas.quotas),
        **_changed_users(users, settings.users()),
    )


def _changed_rights(before: AccessTable, after: AccessTable) -> dict[str, object]:
    """Return the changed keys of ``[access]``, for the audit log."""
    old, new = asdict(before), asdict(after)
    return {
        f"access.{name}": {"old": old[name], "new": new[name]}
        for name in new
        if old[name] != new[name]
    }


def _changed_quotas(
    before: tuple[ClientQuota, ...], after: tuple[ClientQuota, ...]
) -> dict[str, object]:
    """Return the old and new quotas, if they have changed, for the audit log."""
    return {} if before == after else {"quotas": {"old": before, "new": after}}


def _changed_users(before: Users, after: Users) -> dict[str, object]:
    """Return the names of changed users, for the audit log."""
    old, new = before.credentials, after.credentials
    found = {
        "added": new.keys() - old.keys(),
        "removed": old.keys() - new.keys(),
        "changed": {name for name in old.keys() & new.keys() if old[name] != new[name]},
    }
    return {f"users.{how}": sorted(names) for how, names in found.items() if names}


class Node:
    """A node on the running event loop."""

    def __init__(
        self,
        config: NodeConfig,
        meta: MetaProperties,
        storage: ReservedDescriptorStorage,
        *,
        settings: ReloadableSettings,
        lines: LogLines,
        services: Sequence[CreateService] = (),
    ) -> None:
        """Open the log and create the services. Raises the errors of ``Replica.open``."""
        self._config, self._lines, self._settings = config, lines, settings
        self.tokens: Final = self._create_verifier()
        self.lost_audit_lines = 0
        """Number of lines that could not be written."""
        self._audit_file = file = self._open_audit_file()
        self.audit: Final = AuditLog(None if file is None else file.write, config.node_id)
        self._election_count = 0
        clock = Clock()
        assert meta.directory_id is not None, "checked by read_identity"
        self.log_identity: Final = _log_identity(config, meta)
        replica = Replica.open(
            storage,
            storage.join(config.directory, str(TopicPartition(config.topic, 0))),
            local_voter=voter_of(config, meta.directory_id),
            voters=VoterSet(()) if config.static_voters is None else config.static_voters,
            kraft_version=1 if config.static_voters is None else 0,
            log_config=config.log,
            topic_id=self.log_identity.topic_id,
            config=config.quorum,
            jitter_ms=random.SystemRandom().randrange,
            bootstrap=tuple((endpoint,) for endpoint in config.bootstrap_servers),
            now_ms=int(clock.now_ms()),
            time_ms=clock.wall_ms(),
        )
        flush_queue = FlushQueue(asyncio.get_running_loop())
        self.driver: Final = self._create_driver(replica, flush_queue, clock)
        self.raft_node: Final = self.driver.raft_node
        self._channel = self._create_channel()
        context = self._context(self.log_identity.cluster_id)
        self.services: Final = [one for create in services if (one := create(context)) is not None]
        self._apis = ClientApis(
            self.raft_node,
            is_one_socket=config.clients is config.voters,
            services=self.services,
            audit=self.audit,
            quota_limits=self._log_access or self._settings.quotas,
        )
        self.server: Final = Server(
            self.raft_node,
            self._apis,
            [self._listener_socket(listener) for listener in config.listeners],
            config.limits,
            self._log_connection,
            audit=self.audit,
            flush_queue=flush_queue,
            has_descriptors=storage.refill,
        )
        self._metrics: MetricsServer | None = None
        self.expiry_watch: Final = self._expiry_watch()

    def _create_verifier(self) -> TokenVerifier | None:
        """Return the verifier of clients' tokens, if any. Raises ``ConfigError``."""
        clients = self._config.clients
        if clients is None or clients.sasl is None or clients.sasl.oauth is None:
            return None
        return TokenVerifier(
            clients.sasl.oauth,
            lambda: self.server.reauthenticate(),
            lambda level, text: self._lines.log("sasl", level=level, reason=text),
            wall_s=lambda: self.server.wall_s(),
        )

    def _create_driver(self, replica: Replica, flush_queue: FlushQueue, clock: Clock) -> Driver:
        config = self._config
        return Driver(
            replica,
            self.log_identity,
            send=lambda outgoing: self._channel.send(outgoing),
            notify=self._log_notification,
            flush_queue=flush_queue,
            clean_interval_ms=config.retention_check_interval_ms,
            compaction_bytes_per_second=config.limits.compaction_bytes_per_second,
            clock=clock,
            remote=_remote_storage(config),
            buckets_s=DURATION_BUCKETS_S if config.metrics is None else config.metrics.buckets_s,
        )

    def _create_channel(self) -> NetworkChannel:
        return NetworkChannel(
            self.log_identity,
            client_id=f"raftlog-{self._config.node_id}",
            software_version=__version__,
            handle=self.driver.handle,
            log_event=self._log_peer,
            tls=self._settings.for_peer,
            frame_bytes_max=self._config.limits.frame_bytes_max,
        )

    def _expiry_watch(self) -> ExpiryWatch:
        def log(level: str, text: str) -> None:
            self._lines.log("certificates", level=level, reason=text)

        return ExpiryWatch(self._settings.expiries, self.server.wall_s, log)

    def _open_audit_file(self) -> AuditFile | None:
        """Open the audit log's file; return None without ``[audit]``. Raises ``ConfigError``."""
        config = self._config
        if config.audit is None:
            return None
        path = config.audit.path

        def failed(reason: str) -> None:
            self.lost_audit_lines += 1
            self._lines.log_throttled("audit", path, f"a line cannot be written: {reason}")

        try:
            return AuditFile(config.audit, failed)
        except OSError as error:
            reason = f"{path} cannot be opened: {(error.strerror or 'unknown error').lower()}"
            raise ConfigError(
                path=config.path or "the configuration", key="audit.file", reason=reason
            ) from None

    def _context(self, cluster_id: str) -> NodeContext:
        lines = self._lines
        return NodeContext(
            config=self._config,
            log_config=lambda: self.raft_node.replica.log.config,
            cluster_id=cluster_id,
            log=self.raft_node.raft_client,
            committed_at_start=lambda: self.raft_node.replica.core.committed_at_start,
            reauthenticate=lambda: self.server.reauthenticate(),
            sync_snapshot=self.driver.sync_snapshot,
            ask_leader=self._ask_leader,
            forwarded_principal=self._forwarded_principal,
            forwarded_audit=self._forwarded_audit,
            token_secret=_read_token_secret(self._config),
            log_line=lambda event, level, text: lines.log(event, level=level, reason=text),
        )

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the listeners and start the replica. Raises ``NodeAddressError``."""
        config, log = self._config, self.raft_node.replica.log
        if config.metrics is not None:
            collector = NodeCollector(
                self.raft_node,
                self.server,
                lambda: self._election_count,
                self.services,
                quotas=self._apis.quotas,
                sync_durations=self.driver.sync_durations,
                lost_audit_lines=lambda: self.lost_audit_lines,
                certificates=self._settings.expiries,
            )
            problems = partial(readiness_problems, self.raft_node)
            self._metrics = MetricsServer(collector, problems)
            await self._metrics.start(config.metrics.host, config.metrics.port)
        if self._log_access is not None:
            self.server.quotas.rate_of = self._log_access.connection_rate
        self.server.listen()
        self._lines.log(
            "started",
            version=__version__,
            cluster=self.log_identity.cluster_id,
            directory=config.directory,
            listeners=[listener.address for listener in config.listeners],
            log_start_offset=log.log_start_offset,
            end_offset=log.end_offset,
        )
        self.audit.log(
            "started", version=__version__, settings=asdict(config), log_settings=asdict(log.config)
        )
        reason = log.out_of_election_reason()
        if reason is not None:
            self._lines.log("withdrawn", level="error", reason=reason, path=log.path)
        for cut in log.report.truncated:
            self._lines.log("truncated", level="warning", path=cut.path, saved_as=cut.saved_as)
        for path in log.report.deleted_backups:
            self._lines.log("old_copy_deleted", level="warning", path=path)
        self._warn_of_retention()
        self.expiry_watch.check()
        self.use_token_keys(None)
        self.driver.start()
        for service in self.services:
            self.raft_node.register(service.listener)

    def _warn_of_retention(self) -> None:
        """Log a warning if retention is configured for a kraft log without snapshots."""
        config = self.raft_node.replica.log.config
        if (not self.services and config.values is ValueKind.KRAFT) and (
            config.retention_ms is not None or config.retention_bytes is not None
        ):
            reason = (
                "retention has no effect: a log with values=kraft is deleted below snapshots only, "
                "and this program writes none, so it keeps every record: start the node with "
                "`raftlog node start`, which writes them"
            )
            self._lines.log("retention", level="warning", reason=reason)

    def access_changed(self, before: AccessTable, *, is_trust_reduced: bool) -> int:
        """Close connections whose principal has changed, whose certificate may be from a removed
        CA, or whose chain may contain a revoked certificate; return how many accepted ones were
        closed."""
        names, names_before = (
            (one.nodes, one.node_names) for one in (self._settings.access, before)
        )
        if names != names_before or is_trust_reduced:
            self._channel.disconnect()
        return self.server.reauthenticate()

    def use_quotas(self, quotas: QuotaTable) -> None:
        """Use the quotas in the configuration file, unless the log's apply."""
        if self._log_access is None:
            self._apis.quotas.use(quotas)

    def read_token_keys(self) -> Mapping[str, TokenKey] | None:
        """Return the keys of clients' tokens that are now in their file; None for a URL, or without
        tokens. Raises ``ConfigError``."""
        return None if self.tokens is None else self.tokens.read_file()

    def use_token_keys(self, keys: Mapping[str, TokenKey] | None) -> None:
        """Use these keys of clients' tokens, from their file; None: read the URL again."""
        if self.tokens is not None and keys is not None:
            self.tokens.use(keys)
        elif self.tokens is not None:
            self.tokens.refresh()

    def reopen_audit_log(self) -> None:
        """Open the file of the audit log again, if there is one."""
        if self._audit_file is not None:
            self._audit_file.reopen()

    async def hand_over(self) -> None:
        """Resign leadership; wait until a later epoch begins or no other voter is running."""
        if not await self.driver.hand_over(timeout_ms=HAND_OVER_MS):
            reason = "leadership was not handed over in time"
            self._lines.log("stopping", level="warning", reason=reason)

    async def close(self) -> None:
        """Complete the requests in progress, then close connections and log."""
        self.expiry_watch.close()
        if self.tokens is not None:
            self.tokens.close()
        await self.server.close(timeout_ms=DRAIN_TIMEOUT_MS)
        self._apis.close()
        await self._channel.close()
        await self.driver.close()
        if self._metrics is not None:
            await self._metrics.close()
        self.audit.close()
        self.audit.log("stopped")
        if self._audit_file is not None:
            self._audit_file.close()

    # --- callbacks --------------------------------------------------------------------------------

    def _listener_socket(self, listener: ListenerConfig) -> ListenerSocket:
        def authenticate(
            tls: ssl.SSLObject | None, user: str | None, host: str
        ) -> Principal | None:
            certificate = None if tls is None else tls.getpeercert()
            settings = self._settings
            if tls is not None and certificate and not settings.trusts(listener, tls.context):
                return None
            return principal_of(
                certificate,
                listener,
                settings.access,
                user,
                certificate_der=None if tls is None else tls.getpeercert(binary_form=True),
                host=host_text(host),
                authorizer=self._log_access,
            )

        sasl = listener.sasl
        return ListenerSocket(
            host=listener.host,
            port=listener.port,
            listener=listener.listener,
            authenticate=authenticate,
            tls=lambda: self._settings.for_listener(listener),
            sasl=None
            if sasl is None
            else lambda: SaslAuthenticator(
                self._users,
                sasl.max_reauth_ms / 1000,
                self.tokens,
                has_passwords=sasl.users is not None,
            ),
        )

    async def _ask_leader(self, key: ApiKey, request: object, response_class: type[Any]) -> Any:
        core = self.raft_node.replica.core
        leader_id = core.leader_id
        if leader_id is None:
            raise ConnectionError("no leader is known")
        endpoints = core.endpoints_of(leader_id)
        return await self._channel.ask(leader_id, endpoints, key, request, response_class)

    @property
    def _log_access(self) -> LogAccess | None:
        return next((one.access for one in self.services if one.access is not None), None)

    def _users(self) -> Users:
        return replace(self._settings.users(), log=self._log_access)

    def _forwarded_principal(self, sender: Principal, name: str, host: str) -> Principal:
        clients = self._config.clients
        return forwarded_principal(
            sender,
            name,
            self._settings.access,
            host=host_text(host),
            authorizer=self._log_access,
            are_clients_known=clients is not None and bool(clients.tls or clients.sasl),
        )

    def _forwarded_audit(
        self, sender: Principal, principal: Principal, request: str, arguments: object | None
    ) -> Callable[[object], None]:
        where = f"forwarded by {sender.name}:0"
        return self.audit.answered(principal, where, request, arguments)

    # --- log lines --------------------------------------------------------------------------------

    def _log_notification(self, notification: Notification) -> None:
        match notification:
            case AdvanceHighWatermark():  # the most frequent first
                pass  # a metric, not a log line
            case RoleChanged():
                if notification.new is Leader:
                    self._election_count += 1
                self._lines.log(
                    "role",
                    old=None if notification.old is None else notification.old.__name__.lower(),
                    new=notification.new.__name__.lower(),
                    epoch=notification.epoch,
                    leader=notification.leader_id,
                )
            case LeaderChanged():
                self._lines.log("leader", epoch=notification.epoch, leader=notification.leader_id)
            case LogMessage(text):
                self._lines.log_throttled("replica", text.partition(":")[0], text)
            case LogCleaned(start_offset):
                self._lines.log("cleaned", log_start_offset=start_offset)
            case LogCompacted(segment_count, byte_count_before, byte_count_after):
                self._lines.log(
                    "compacted",
                    segments=segment_count,
                    bytes_before=byte_count_before,
                    bytes_after=byte_count_after,
                )
            case SegmentsCopied(counts):
                self._lines.log(
                    "copied",
                    segments=counts.copied_segments,
                    bytes=counts.copied_bytes,
                    deleted_segments=counts.deleted_segments,
                )
            case CleaningRefused(error):
                self._lines.log("cleaned", level="warning", reason=str(error))

    def _log_peer(self, node_id: int, reason: str) -> None:
        self._lines.log_throttled("peer", str(node_id), reason)

    def _log_connection(self, event: str, where: str, reason: str) -> None:
        host = where.rpartition(":")[0] or where
        self._lines.log_throttled(event, host, f"{where}: {reason}")


def _remote_storage(config: NodeConfig) -> RemoteStorage:
    limits = config.limits
    return RemoteStorage(
        open_object_store,
        surroundings(),
        reader_threads=limits.remote_log_reader_threads,
        reader_max_pending_tasks=limits.remote_log_reader_max_pending_tasks,
        fetch_max_wait_ms=limits.remote_fetch_max_wait_ms,
    )


def _log_identity(config: NodeConfig, meta: MetaProperties) -> LogIdentity:
    assert meta.cluster_id is not None, "checked by read_identity"
    return LogIdentity(
        topic=config.topic,
        topic_id=topic_id_of(meta.cluster_id, config.topic),
        cluster_id=meta.cluster_id,
        listener_name=CONTROLLER_NAME,
        rack=config.rack,
    )


def _read_token_secret(config: NodeConfig) -> str | None:
    """Return the secret key of delegation tokens, if any. Raises ``ConfigError``."""
    path = None if config.controller is None else config.controller.token_secret
    if path is None:
        return None
    check_key_file(path)
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.read(SECRET_LENGTH_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path=path, key=None, reason="cannot be read as UTF-8 text") from error
    if not secret:
        raise ConfigError(path=path, key=None, reason="the file is empty")
    return secret


# --- file descriptors -----------------------------------------------------------------------------


def descriptors_needed(config: NodeConfig) -> int:
    """Return the maximum number of descriptors that a node has open."""
    limits = config.limits
    return (
        limits.connections_max
        + limits.voters_connections_max
        + limits.stranger_connections_max * len(config.listeners)
        + METRICS_CONNECTIONS_MAX
        + FILES_RESERVE
    )


def raise_descriptor_limit(config: NodeConfig) -> None:
    """Raise the soft limit of open files (RLIMIT_NOFILE) if the node needs more.

    Raises ``ConfigError`` if the hard limit is too low.
    """
    needed = descriptors_needed(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):
        raise ConfigError(
            path=config.path or "the configuration",
            key="limits.connections_max",
            reason=f"the connections of [limits] and the log's files need {needed} file "
            f"descriptors, but the limit of open files is {hard}: raise it (`ulimit -n`, or "
            "LimitNOFILE= in systemd), or lower connections_max",
        ) from None
