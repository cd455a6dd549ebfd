"""Prometheus metrics and readiness of a node, computed on each request, and their HTTP server.

Names contain their unit; the exposition appends ``_total`` to counters. The server responds to
``GET`` and ``HEAD`` of ``/metrics``, ``/health`` (200 while the event loop runs; a node whose log
has failed ends) and ``/ready`` (503 with the reasons while it cannot serve). A connection serves
one request, within five seconds. At most ``METRICS_CONNECTIONS_MAX`` connections are open; a new
one closes the oldest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from raftlog.limits import KIB
from raftlog.quorum.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached

from .certificates import CertificateExpiry
from .client_quotas import ClientQuotas
from .durations import DurationHistogram
from .errors import NodeAddressError
from .raft_node import RaftNode
from .server import Server
from .service import Service

_ROLES: Final = (Unattached, Prospective, Candidate, Follower, Leader, Resigned)


class NodeCollector(Collector):
    """Prometheus collector of one node."""

    def __init__(
        self,
        raft_node: RaftNode,
        server: Server,
        elections: Callable[[], int],
        services: Sequence[Service] = (),
        *,
        quotas: ClientQuotas,
        sync_durations: DurationHistogram,
        lost_audit_lines: Callable[[], int],
        certificates: Callable[[], Sequence[CertificateExpiry]],
    ) -> None:
        self._raft_node = raft_node
        self._server = server
        self._elections = elections
        self._services = services
        self._quotas = quotas
        self._sync_durations = sync_durations
        self._lost_audit_lines = lost_audit_lines
        self._certificates = certificates

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        yield from self._log()
        yield from self._quorum()
        yield from self._connections()
        yield from self._throttled()
        yield _counter(
            "audit_lines_lost",
            "Audit log lines that could not be written.",
            self._lost_audit_lines(),
        )
        yield from certificate_figures(self._certificates(), self._server.wall_s())
        for service in self._services:
            for one in service.figures():
                yield (_counter if one.is_counter else _gauge)(one.name, one.help_text, one.value)

    def _log(self) -> Iterator[Metric]:
        log = self._raft_node.replica.log
        yield _gauge("log_start_offset", "First offset of the log.", log.log_start_offset)
        yield _gauge("log_end_offset", "Offset of the next record to append.", log.end_offset)
        yield _gauge(
            "synced_end_offset", "End offset of the records synced to disk.", log.synced_end_offset
        )
        yield _counter("syncs", "Syncs of the log started.", self._raft_node.counts.syncs)
        yield _histogram("sync_seconds", "Duration of a sync of the log.", self._sync_durations)
        yield from self._compactions()
        yield from self._remote_storage()
        yield from self._fetches()
        yield _gauge(
            "stalled_on_disk_full",
            "1 while this node waits for disk space.",
            self._raft_node.replica.is_stalled_on_disk_full,
        )
        yield _gauge(
            "ready",
            "1 if this node can serve requests, like /ready.",
            not readiness_problems(self._raft_node),
        )

    def _compactions(self) -> Iterator[Metric]:
        counts = self._raft_node.counts
        yield _counter("compactions", "Compactions that changed the log.", counts.compactions)
        yield _counter(
            "compacted_bytes_before",
            "Size in bytes of the compacted segments before compaction.",
            counts.compacted_bytes_before,
        )
        yield _counter(
            "compacted_bytes_after",
            "Size in bytes of the compacted segments after compaction.",
            counts.compacted_bytes_after,
        )
        yield _gauge(
            "tombstones_retained",
            "1 while this leader's compactions retain tombstones beyond delete.retention.ms, "
            "because a replica is fetching compacted records.",
            self._raft_node.keeps_tombstones,
        )

    def _remote_storage(self) -> Iterator[Metric]:
        totals = self._raft_node.counts.remote
        yield _counter(
            "remote_copied_segments",
            "Segments that this node has copied to remote storage.",
            totals.copied_segments,
        )
        yield _counter(
            "remote_copied_bytes",
            "Bytes of segments that this node has copied to remote storage.",
            totals.copied_bytes,
        )
        yield _counter(
            "remote_deleted_segments",
            "Segments that this node has deleted from remote storage.",
            totals.deleted_segments,
        )
        yield _counter("remote_errors", "Failed runs of remote storage tasks.", totals.errors)
        yield _counter(
            "remote_read_errors",
            "Reads from remote storage that failed or timed out.",
            totals.read_errors,
        )
        yield _gauge(
            "remote_copy_lag_segments",
            "Sealed, committed segments that are not in remote storage yet, on the leader.",
            totals.lag_segments,
        )
        yield _gauge(
            "remote_copy_lag_bytes",
            "Bytes of sealed, committed segments that are not in remote storage yet, on the "
            "leader.",
            totals.lag_bytes,
        )

    def _fetches(self) -> Iterator[Metric]:
        counts = self._raft_node.counts
        yield _counter(
            "follower_fetches",
            "Consumer fetches that this node answered as a follower.",
            counts.follower_fetches,
        )
        yield _counter(
            "redirected_fetches",
            "Consumer fetches that this node, as the leader, redirected to a follower in the "
            "consumer's rack.",
            counts.redirected_fetches,
        )

    def _quorum(self) -> Iterator[Metric]:
        core = self._raft_node.replica.core
        role = type(core.role)
        roles = GaugeMetricFamily(
            "raftlog_role", "1 for this node's role, 0 for all other roles.", labels=["role"]
        )
        for one in _ROLES:
            roles.add_metric([one.__name__.lower()], float(one is role))
        yield roles
        yield _gauge("epoch", "Current leader epoch.", core.epoch)
        leader_id = core.leader_id
        yield _gauge(
            "leader_id",
            "Node id of the leader, or -1 if unknown.",
            -1 if leader_id is None else leader_id,
        )
        yield _gauge(
            "high_watermark", "End offset of the committed records.", core.high_watermark or 0
        )
        yield _gauge("voters", "Number of voters.", len(core.voters))
        yield _gauge(
            "withdrawn",
            "1 while this node stays out of elections because it lacks committed records.",
            core.is_recovering,
        )
        yield _gauge(
            "damaged_voters",
            "Voters known to this node that stay out of elections because their logs lack records.",
            core.damaged_voter_count,
        )
        yield _counter("elections", "Elections won by this node.", self._elections())
        yield _gauge(
            "appends_waiting",
            "Appends waiting to be committed and answered.",
            self._raft_node.waiting_append_count,
        )
        yield _histogram(
            "append_seconds",
            "Time from receiving a client's append until its records are committed.",
            self._raft_node.counts.append_durations,
        )
        yield from _replicas(core.role)

    def _connections(self) -> Iterator[Metric]:
        metrics = self._server.metrics
        yield _gauge("connections", "Open connections.", metrics.connections)
        quotas = self._server.quotas
        pools = GaugeMetricFamily(
            "raftlog_pool_connections", "Open connections by connection pool.", labels=["pool"]
        )
        pools.add_metric(["clients"], quotas.clients.count)
        pools.add_metric(["voters"], quotas.voters.count)
        pools.add_metric(["without_right"], quotas.unprivileged_count)
        yield pools
        yield _by_label(
            "connections_refused",
            "Connections refused because of a limit, by limit.",
            "limit",
            metrics.refused_connections,
        )
        requests = CounterMetricFamily(
            "raftlog_requests", "Requests received, by API.", labels=["api"]
        )
        for name, count in list(metrics.requests.items()):
            requests.add_metric([name.lower()], count)
        yield requests
        held = GaugeMetricFamily(
            "raftlog_held_bytes",
            "Memory held by requests and responses of all connections, by memory budget.",
            labels=["budget"],
        )
        held.add_metric(["clients"], self._server.clients_memory.held_byte_count)
        held.add_metric(["voters"], self._server.voters_memory.held_byte_count)
        yield held
        waiting = GaugeMetricFamily(
            "raftlog_waiting_for_memory",
            "Connections and requests waiting for free memory, by memory budget.",
            labels=["budget"],
        )
        waiting.add_metric(["clients"], self._server.clients_memory.waiting_count)
        waiting.add_metric(["voters"], self._server.voters_memory.waiting_count)
        yield waiting
        yield _by_label(
            "connections_closed",
            "Connections closed by the node, by reason.",
            "reason",
            metrics.closed_connections,
        )

    def _throttled(self) -> Iterator[Metric]:
        quotas = self._quotas
        yield _by_label(
            "throttled_requests",
            "Client requests that exceeded a quota, by quota.",
            "quota",
            quotas.throttled_requests,
        )
        yield _by_label(
            "throttle_seconds",
            "Total throttle time of client requests that exceeded a quota, by quota.",
            "quota",
            {name: time_ms / 1000 for name, time_ms in quotas.throttle_ms.items()},
        )
        yield _gauge(
            "muted_connections",
            "Connections that are muted because their clients exceeded a quota.",
            quotas.muted_count,
        )
        yield _gauge(
            "quota_rates", "Rates kept in memory for clients with quotas.", quotas.rate_count
        )


def _replicas(role: object) -> Iterator[Metric]:
    """Yield the other replicas' end offsets if this node is the leader."""
    if not isinstance(role, Leader):
        return
    ends = GaugeMetricFamily(
        "raftlog_replica_end_offset",
        "End offset of the records synced on a replica, as known to the leader.",
        labels=["replica"],
    )
    for replica in role.progress.replicas:
        if replica.end_offset is not None:
            ends.add_metric([str(replica.key.node_id)], replica.end_offset)
    yield ends


def certificate_figures(
    certificates: Sequence[CertificateExpiry], now_s: float
) -> Iterator[Metric]:
    """Yield the days until each certificate and each revocation list expires."""
    found = GaugeMetricFamily(
        "raftlog_certificate_days_left",
        "Days until a certificate in the node's files expires; negative afterwards.",
        labels=["listener", "kind", "number"],
    )
    lists = GaugeMetricFamily(
        "raftlog_revocation_list_days_left",
        "Days until a revocation list in the node's files expires; negative afterwards.",
        labels=["listener", "number"],
    )
    for one in certificates:
        if one.kind == "crl":
            lists.add_metric([one.listener, str(one.number)], one.days_left(now_s))
        else:
            found.add_metric([one.listener, one.kind, str(one.number)], one.days_left(now_s))
    yield from (family for family in (found, lists) if family.samples)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"raftlog_{name}", help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"raftlog_{name}", help_text, value=value)


def _histogram(name: str, help_text: str, durations: DurationHistogram) -> Metric:
    bounds = [*map(repr, durations.bounds_s), "+Inf"]
    found = HistogramMetricFamily(f"raftlog_{name}", help_text)
    counts = list(zip(bounds, accumulate(durations.counts), strict=True))
    found.add_metric([], counts, durations.sum_s)
    return found


def _by_label(name: str, help_text: str, label: str, counts: Mapping[str, float]) -> Metric:
    found = CounterMetricFamily(f"raftlog_{name}", help_text, labels=[label])
    for value, count in list(counts.items()):
        found.add_metric([value], count)
    return found


# --- readiness ------------------------------------------------------------------------------------


def readiness_problems(raft_node: RaftNode) -> tuple[str, ...]:
    """Return why a node cannot serve now; empty if it can.

    A node that waits for disk space or for its log is healthy: a restart would not help.
    """
    replica = raft_node.replica
    core = replica.core
    problems = []
    match core.role:
        case Follower(has_fetched_from_leader=False, leader_id=leader_id):
            problems.append(f"it has not fetched from leader {leader_id} yet")
        case Leader() | Follower():
            if core.high_watermark is None:
                problems.append(f"the committed end of epoch {core.epoch} is not known yet")
        case _:
            problems.append(f"it has no leader in epoch {core.epoch}")
    if core.is_recovering:
        problems.append("it is out of elections until it has caught up after damage to its log")
    if replica.is_stalled_on_disk_full:
        problems.append("it waits for space on its disk")
    return tuple(problems)


# --- server ---------------------------------------------------------------------------------------

METRICS_CONNECTIONS_MAX: Final = 16
_TIMEOUT_S: Final = 5.0
_HEAD_BYTES_MAX: Final = 16 * KIB
_METRICS: Final = "/metrics"
_HEALTH: Final = "/health"
_READY: Final = "/ready"
_TEXT: Final = "text/plain; charset=utf-8"


class MetricsServer:
    """HTTP server for the metrics of one collector, on the running event loop.

    ``problems`` returns why the node is not ready.
    """

    def __init__(
        self,
        collector: Collector,
        problems: Callable[[], Sequence[str]],
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._problems = problems
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Open connections, the oldest first."""

    async def start(self, host: str, port: int) -> None:
        """Bind and listen. Raises ``NodeAddressError``."""
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=_HEAD_BYTES_MAX
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise NodeAddressError(host=host, port=port, reason=reason) from None

    async def close(self) -> None:
        """Close the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(list(self._open))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio serves each connection in a task"
        if len(self._open) >= METRICS_CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            self._open.pop(oldest).transport.abort()
        self._open[task] = writer
        try:
            with contextlib.suppress(
                TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError
            ):
                async with asyncio.timeout(self._timeout_s):
                    writer.write(self._respond(await reader.readuntil(b"\r\n\r\n")))
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._open.pop(task, None)

    def _respond(self, head: bytes) -> bytes:
        request_line, *lines = head.decode("latin-1").split("\r\n")
        words = request_line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, _TEXT, b"")
        method, path = words[0], words[1].partition("?")[0]
        if path not in (_METRICS, _HEALTH, _READY):
            text = f"see {_METRICS}, {_HEALTH} and {_READY}\n"
            return _response(HTTPStatus.NOT_FOUND, _TEXT, text.encode())
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, _TEXT, b"")
        has_body = method == "GET"
        if path != _METRICS:
            problems = self._problems() if path == _READY else ()
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            text = "".join(f"{one}\n" for one in problems or ("ok",))
            return _response(status, _TEXT, text.encode(), has_body=has_body)
        accepted = [line.partition(":")[2] for line in lines if line.lower().startswith("accept:")]
        encode, content_type = choose_encoder(",".join(accepted))
        body = encode(self._registry)
        return _response(HTTPStatus.OK, content_type, body, has_body=has_body)


def _response(
    status: HTTPStatus, content_type: str, body: bytes, *, has_body: bool = True
) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if has_body else b"")
