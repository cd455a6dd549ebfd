"""A node's figures for Prometheus; ``metrics_server`` serves them.

Rules of this file:

1. Figures are read when somebody asks, from numbers that the node keeps anyway.
2. Names say their unit; what only grows ends in ``_total``.
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
    """The figures of one node."""

    def __init__(self, driver: Driver, server: Server, elections: Callable[[], int]) -> None:
        self._driver = driver
        self._server = server
        self._elections = elections

    def collect(self) -> Iterator[Metric]:
        """All figures as they are now."""
        yield from self._log()
        yield from self._quorum()
        yield from self._connections()

    def _log(self) -> Iterator[Metric]:
        log = self._driver.replica.log
        yield _gauge("log_start_offset", "The first offset of the log.", log.log_start_offset)
        yield _gauge("log_end_offset", "Where the next record goes.", log.end_offset)
        yield _gauge("synced_end_offset", "All below is durable here.", log.synced_end_offset)
        yield _counter("syncs", "Syncs of the log that were begun.", self._driver.sync_count)

    def _quorum(self) -> Iterator[Metric]:
        core = self._driver.replica.core
        role = type(core.role)
        roles = GaugeMetricFamily("raftlog_role", "1 for what this node is.", labels=["role"])
        for one in _ROLES:
            roles.add_metric([one.__name__.lower()], float(one is role))
        yield roles
        yield _gauge("epoch", "The epoch of the quorum.", core.epoch)
        leader_id = core.leader_id
        yield _gauge(
            "leader_id", "Who leads, -1 if unknown.", -1 if leader_id is None else leader_id
        )
        yield _gauge("high_watermark", "All below is committed.", core.high_watermark or 0)
        yield _gauge("voters", "How many vote.", len(core.voters))
        yield _gauge("withdrawn", "1 while it was damaged and catches up.", core.is_recovering)
        yield _gauge(
            "damaged_voters",
            "Voters that do not vote since their copy of the log was damaged, as this node knows.",
            core.damaged_voter_count,
        )
        yield _counter("elections", "How often this node led a new epoch.", self._elections())
        yield _gauge(
            "appends_waiting", "Appends without an answer.", self._driver.waiting_append_count
        )
        yield from _replicas(core.role)

    def _connections(self) -> Iterator[Metric]:
        metrics = self._server.metrics
        yield _gauge("connections", "Connections that are open.", metrics.connections)
        quotas = self._server.quotas
        pools = GaugeMetricFamily(
            "raftlog_pool_connections", "Connections that count against a limit.", labels=["pool"]
        )
        pools.add_metric(["clients"], quotas.clients.count)
        pools.add_metric(["voters"], quotas.voters.count)
        pools.add_metric(["without_right"], quotas.stranger_count)
        yield pools
        yield _by_label(
            "connections_refused",
            "Connections beyond a limit.",
            "limit",
            metrics.refused_connections,
        )
        requests = CounterMetricFamily("raftlog_requests", "Requests by kind.", labels=["api"])
        for name, count in list(metrics.requests.items()):
            requests.add_metric([name.lower()], count)
        yield requests
        held = GaugeMetricFamily(
            "raftlog_held_bytes",
            "Memory for questions and answers, of all connections.",
            labels=["budget"],
        )
        held.add_metric(["clients"], self._server.clients_budget.held_byte_count)
        held.add_metric(["voters"], self._server.voters_budget.held_byte_count)
        yield held
        waiting = GaugeMetricFamily(
            "raftlog_waiting_for_memory",
            "Connections and requests that wait for room in a budget.",
            labels=["budget"],
        )
        waiting.add_metric(["clients"], self._server.clients_budget.waiting_count)
        waiting.add_metric(["voters"], self._server.voters_budget.waiting_count)
        yield waiting
        yield _by_label(
            "connections_closed",
            "Connections closed by the node.",
            "reason",
            metrics.closed_connections,
        )


def _replicas(role: object) -> Iterator[Metric]:
    """How far the others are, as a leader knows it."""
    if not isinstance(role, Leader):
        return
    ends = GaugeMetricFamily(
        "raftlog_replica_end_offset", "All below is durable at a replica.", labels=["replica"]
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
