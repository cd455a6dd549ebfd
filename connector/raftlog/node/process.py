"""A node from start to end: its directory is locked, its log opened, its doors too, until a signal.

Rules of this file:

1. SIGTERM and SIGINT hand leadership over, let what is under way be answered, and close the log in
   order; a second one does not wait. SIGHUP reads certificates and ``[access]`` again: what is
   wrong changes nothing, and who may do something else by now is to come back.
2. A log that fails ends the process: whoever runs it starts it again, and recovery looks at it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from raftlog import __version__
from raftlog.client.clock import Clock
from raftlog.errors import ConfigError, DiskFullError, LogLockedError, NodeRunningError
from raftlog.log.small_files import MetaProperties
from raftlog.log.writing.batch_metadata import ValueKind
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    LeaderChanged,
    LogMessage,
    RoleChanged,
    Send,
)
from raftlog.quorum.events import Event
from raftlog.quorum.roles import Leader
from raftlog.quorum.voters import VoterSet
from raftlog.storage.spare_descriptors import ReservedDescriptorStorage
from raftlog.types import TopicPartition
from raftlog.wire import LogIdentity

from .access import AccessTable, Caller, caller_of
from .addresses import CONTROLLER_NAME
from .apis.client_apis import ClientApis
from .config import ListenerConfig, NodeConfig, read_access_again, voter_of
from .counting import Counting
from .descriptors import raise_descriptor_limit
from .driver import Driver, News
from .formatting import NODE_LOCK_NAME, read_identity, topic_id_of
from .log_lines import LogLines, asyncio_lines
from .metrics import NodeCollector
from .metrics_server import MetricsServer
from .peers import Peers
from .replica import Replica
from .server import Door, Server
from .tls import TlsContexts

EXIT_FAILED: Final = 1
HAND_OVER_MS: Final = 5_000
LAST_ANSWERS_MS: Final = 2_000


def run_node(config: NodeConfig, *, is_counting: bool = False) -> int:
    """Run a node until a signal ends it; the exit code. Lines go to stderr.

    ``is_counting``: it counts while it leads (``counting``).

    Raises what is wrong before it serves: ``NotFormattedError``, ``WrongDirectoryError``,
    ``ConfigError``, ``NodeRunningError``, ``NodeAddressError`` and what
    opening a log raises.
    """
    lines = LogLines(sys.stderr, config.node_id)
    raise_descriptor_limit(config)
    storage = ReservedDescriptorStorage()
    meta = read_identity(config, storage)
    with _locked(storage, config), storage, asyncio_lines(lines):
        return asyncio.run(_run(config, meta, storage, lines, is_counting=is_counting))


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
    *,
    is_counting: bool,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    tls = TlsContexts(config)
    node: Node  # no signal is looked at before the loop goes on, and then there is one
    loop.add_signal_handler(signal.SIGHUP, lambda: _read_again(config, tls, node, lines))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = Node(config, meta, storage, tls=tls, lines=lines)
    try:
        await node.start()
        counting = Counting(node.driver, lines) if is_counting else None
        if counting is not None:
            counting.start()
        node.driver.ended.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if counting is not None:
            counting.stop()
        if node.driver.ended.done():
            error = node.driver.ended.result()
            lines.say("failed", level="error", reason=str(error))
            return EXIT_FAILED
        lines.say("stopping")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # the next one ends the process
        await node.hand_over()
        return 0
    finally:
        await node.close()
        lines.say("stopped")


def _read_again(config: NodeConfig, tls: TlsContexts, node: Node, lines: LogLines) -> None:
    """Take certificates and the table of rights as they are now. Each that is wrong stays."""
    before = access = tls.access
    if config.path is not None:
        try:
            access = read_access_again(config)
        except ConfigError as error:
            lines.say("access", level="error", reason=f"the old table is kept: {error}")
    try:
        tls.reload(access)
    except ConfigError as error:
        kept = "the old ones are kept" if access == before else "they and the access are kept"
        lines.say("certificates", level="error", reason=f"{kept}: {error}")
        return
    lines.say("certificates", reason="read again")
    if access != before:
        closed_count = node.access_changed(before)
        lines.say("access", reason="read again", closed_connections=closed_count)


@dataclass(slots=True)
class _Counts:
    elections: int = 0


class Node:
    """One node on the running loop."""

    def __init__(
        self,
        config: NodeConfig,
        meta: MetaProperties,
        storage: ReservedDescriptorStorage,
        *,
        tls: TlsContexts,
        lines: LogLines,
    ) -> None:
        """Opens the log. Raises what ``Replica.open`` raises."""
        self._config = config
        self._lines = lines
        self._tls = tls
        self._counts = _Counts()
        clock = Clock()
        assert meta.cluster_id is not None, "it was read"
        assert meta.directory_id is not None, "it was read"
        self.log_identity: Final = LogIdentity(
            topic=config.topic,
            topic_id=topic_id_of(meta.cluster_id, config.topic),
            cluster_id=meta.cluster_id,
            listener_name=CONTROLLER_NAME,
        )
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
        self.driver: Final = Driver(
            replica, self.log_identity, send=self._send, hear=self._heard, clock=clock
        )
        self._peers = Peers(
            self.log_identity,
            client_id=f"raftlog-{config.node_id}",
            software_version=__version__,
            tell=self._tell,
            hear=self._heard_of_peer,
            tls=tls.for_peer,
            frame_bytes_max=config.limits.frame_bytes_max,
        )
        self._apis = ClientApis(self.driver, is_one_socket=config.clients is config.voters)
        self.server: Final = Server(
            self.driver,
            self._apis,
            [self._door(listener) for listener in config.listeners],
            config.limits,
            self._heard_from_outside,
            has_descriptors=storage.refill,
        )
        self._cleaning: asyncio.TimerHandle | None = None
        self._metrics: MetricsServer | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. Raises ``NodeAddressError``."""
        config, log = self._config, self.driver.replica.log
        if config.metrics is not None:
            collector = NodeCollector(self.driver, self.server, lambda: self._counts.elections)
            self._metrics = MetricsServer(collector)
            await self._metrics.start(config.metrics.host, config.metrics.port)
        self.server.listen()
        self._lines.say(
            "started",
            version=__version__,
            cluster=self.log_identity.cluster_id,
            directory=config.directory,
            listeners=[listener.address for listener in config.listeners],
            log_start_offset=log.log_start_offset,
            end_offset=log.end_offset,
        )
        reason = log.out_of_election_reason()
        if reason is not None:
            self._lines.say("withdrawn", level="error", reason=reason, path=log.path)
        for cut in log.report.truncated:
            self._lines.say("cut", level="warning", path=cut.path, saved_as=cut.saved_as)
        for path in log.report.deleted_backups:
            self._lines.say("old copy deleted", level="warning", path=path)
        self._warn_of_retention()
        self.driver.start()
        self._clean_later()

    def _warn_of_retention(self) -> None:
        """Log that retention has no effect, if it is configured for a kraft log."""
        config = self.driver.replica.log.config
        if config.values is ValueKind.KRAFT and (
            config.retention_ms is not None or config.retention_bytes is not None
        ):
            reason = (
                "a log with values=kraft is trimmed below snapshots only, and a node makes none: "
                "it keeps every record; raftlog snapshot --bootstrap-server writes the state to a "
                "file outside the node"
            )
            self._lines.say("retention", level="warning", reason=reason)

    def access_changed(self, before: AccessTable) -> int:
        """Let those begin anew who may do something else than before; how many callers they are."""
        names, names_before = ((one.nodes, one.node_names) for one in (self._tls.access, before))
        if names != names_before:
            self._peers.disconnect()
        return self.server.judge_again()

    async def hand_over(self) -> None:
        """Lead no more, and let no new request in."""
        if not await self.driver.hand_over(timeout_ms=HAND_OVER_MS):
            self._lines.say("stopping", level="warning", reason="nobody took leadership over")

    async def close(self) -> None:
        """Answer what is under way, and close the log in order."""
        if self._cleaning is not None:
            self._cleaning.cancel()
        await self.server.close(timeout_ms=LAST_ANSWERS_MS)
        self._apis.close()
        await self._peers.close()
        await self.driver.close()
        if self._metrics is not None:
            await self._metrics.close()

    def _clean_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._cleaning = loop.call_later(
            self._config.retention_check_interval_ms / 1000, self._clean
        )

    def _clean(self) -> None:
        try:
            if self.driver.clean():
                start = self.driver.replica.log.log_start_offset
                self._lines.say("cleaned", log_start_offset=start)
        except (DiskFullError, LogLockedError) as error:
            self._lines.say("cleaned", level="warning", reason=str(error))
        self._clean_later()

    # --- between the parts ------------------------------------------------------------------------

    def _door(self, listener: ListenerConfig) -> Door:
        def introduce(tls: ssl.SSLObject | None) -> Caller:
            certificate = None if tls is None else tls.getpeercert()
            return caller_of(certificate, listener, self._tls.access)

        return Door(
            host=listener.host,
            port=listener.port,
            listener=listener.listener,
            introduce=introduce,
            tls=lambda: self._tls.for_listener(listener),
        )

    def _send(self, asked: Send) -> None:
        self._peers.send(asked)

    def _tell(self, event: Event) -> None:
        self.driver.tell(event)

    # --- what people hear -------------------------------------------------------------------------

    def _heard(self, news: News) -> None:
        match news:
            case RoleChanged():
                if news.new is Leader:
                    self._counts.elections += 1
                self._lines.say(
                    "role",
                    old=None if news.old is None else news.old.__name__.lower(),
                    new=news.new.__name__.lower(),
                    epoch=news.epoch,
                    leader=news.leader_id,
                )
            case LeaderChanged():
                self._lines.say("leader", epoch=news.epoch, leader=news.leader_id)
            case LogMessage(text):
                self._lines.say_rarely("replica", text.partition(":")[0], text)
            case AdvanceHighWatermark():
                pass  # a figure, not a line

    def _heard_of_peer(self, node_id: int, reason: str) -> None:
        self._lines.say_rarely("peer", str(node_id), reason)

    def _heard_from_outside(self, event: str, where: str, reason: str) -> None:
        host = where.rpartition(":")[0] or where
        self._lines.say_rarely(event, host, f"{where}: {reason}")
