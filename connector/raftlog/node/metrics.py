"""Prometheus metrics of a node, computed on each scrape. ``metrics_server`` serves them.

Names contain their unit; the exposition appends ``_total`` to counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from raftlog.quorum.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached

from .driver import Driver
from .server import Server

_ROLES: Final = (Unattached, Prospective, Candidate, Follower, Leader, Resigned)


class NodeCollector(Collector):
    """Prometheus collector of one node."""

    def __init__(self, driver: Driver, server: Server, elections: Callable[[], int]) -> None:
        self._driver = driver
        self._server = server
        self._elections = elections

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        yield from self._log()
        yield from self._quorum()
        yield from self._connections()

    def _log(self) -> Iterator[Metric]:
        log = self._driver.replica.log
        yield _gauge("log_start_offset", "First offset of the log.", log.log_start_offset)
        yield _gauge("log_end_offset", "Offset of the next record to append.", log.end_offset)
        yield _gauge(
            "synced_end_offset", "End of the records synced to disk.", log.synced_end_offset
        )
        yield _counter("syncs", "Syncs of the log started.", self._driver.sync_count)

    def _quorum(self) -> Iterator[Metric]:
        core = self._driver.replica.core
        role = type(core.role)
        roles = GaugeMetricFamily(
            "raftlog_role", "1 for the role of this node, 0 for all others.", labels=["role"]
        )
        for one in _ROLES:
            roles.add_metric([one.__name__.lower()], float(one is role))
        yield roles
        yield _gauge("epoch", "Current leader epoch.", core.epoch)
        leader_id = core.leader_id
        yield _gauge(
            "leader_id",
            "Node id of the leader, -1 if unknown.",
            -1 if leader_id is None else leader_id,
        )
        yield _gauge("high_watermark", "End of the committed records.", core.high_watermark or 0)
        yield _gauge("voters", "Number of voters.", len(core.voters))
        yield _gauge(
            "withdrawn",
            "1 while this node is out of elections, until it has caught up after log damage.",
            core.is_recovering,
        )
        yield _gauge(
            "damaged_voters",
            "Voters out of elections after damage to their log, as known to this node.",
            core.damaged_voter_count,
        )
        yield _counter("elections", "Elections won by this node.", self._elections())
        yield _gauge(
            "appends_waiting",
            "Appends waiting to be committed and answered.",
            self._driver.waiting_append_count,
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
        pools.add_metric(["without_right"], quotas.stranger_count)
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
        held.add_metric(["clients"], self._server.clients_budget.held_byte_count)
        held.add_metric(["voters"], self._server.voters_budget.held_byte_count)
        yield held
        waiting = GaugeMetricFamily(
            "raftlog_waiting_for_memory",
            "Connections and requests waiting for free memory, by memory budget.",
            labels=["budget"],
        )
        waiting.add_metric(["clients"], self._server.clients_budget.waiting_count)
        waiting.add_metric(["voters"], self._server.voters_budget.waiting_count)
        yield waiting
        yield _by_label(
            "connections_closed",
            "Connections closed by the node, by reason.",
            "reason",
            metrics.closed_connections,
        )


def _replicas(role: object) -> Iterator[Metric]:
    """Yield the end offsets of the other replicas, if this node is the leader."""
    if not isinstance(role, Leader):
        return
    ends = GaugeMetricFamily(
        "raftlog_replica_end_offset",
        "End of the records synced on a replica, as known to the leader.",
        labels=["replica"],
    )
    for replica in role.progress.replicas:
        if replica.end_offset is not None:
            ends.add_metric([str(replica.key.node_id)], replica.end_offset)
    yield ends


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"raftlog_{name}", help_text, value=value)


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(f"raftlog_{name}", help_text, value=value)


def _by_label(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> Metric:
    found = CounterMetricFamily(f"raftlog_{name}", help_text, labels=[label])
    for value, count in list(counts.items()):
        found.add_metric([value], count)
    return found
