"""Quotas on connections: their number per pool, address and principal, and their creation rate.

Each listener has a pool of connections without any right: handshakes in progress, and certificates
without rights. They are closed after ``handshake_ms``; while the pool is full, a new connection
replaces the oldest one if that is older than a fifth of this time. A connection with a right moves
to the pool of clients or of voters. The latter is reserved for connections to the voters' listener
and of nodes that have proven their id (Kafka: inter-broker listener, KIP-402).

Limits per address and per principal apply within a pool. An address is an IPv4 host or the /64
network of an IPv6 host (Kafka: ``max.connections.per.ip``, KIP-308). Connections above the creation
rate of their address are refused before the handshake (KIP-612); bursts of five seconds' worth are
allowed.

Kafka: ``ConnectionQuotas``.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raftlog.wire import Listener

from .access import ANONYMOUS, Principal, Rights
from .config import LimitsConfig

_STRANGER_TIME_DIVISOR: Final = 5
_BURST_S: Final = 5.0
_IPV6_HOST_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """Refusal of a connection. ``limit`` is the key in ``[limits]``."""

    limit: str
    reason: str


@dataclass(slots=True, eq=False)
class CountedConnection:
    """Counted connection. ``close`` may be called until the connection has left."""

    listener: Listener
    address: str
    began_s: float
    close: Callable[[], None]
    pool: ConnectionPool | None = None
    """None while the connection has no right."""
    principal: str | None = None


@dataclass(slots=True, eq=False)
class ConnectionPool:
    """Connections that share one maximum. ``limit`` is its key in ``[limits]``."""

    name: str
    limit: str
    count_max: int
    per_address_max: int
    per_principal_max: int
    count: int = 0
    by_address: Counter[str] = field(default_factory=Counter)
    by_principal: Counter[str] = field(default_factory=Counter)

    def refusal(self, address: str, principal: str | None = None) -> LimitExceeded | None:
        """Return the refusal of one more connection, None if it is within the limits."""
        if self.count >= self.count_max:
            return LimitExceeded(self.limit, f"{self.count} connections of {self.name} are open")
        if (count := self.by_address[address]) >= self.per_address_max:
            return LimitExceeded(
                "connections_per_address_max", f"{count} connections from {address} are open"
            )
        if principal is not None and self.by_principal[principal] >= self.per_principal_max:
            count = self.by_principal[principal]
            return LimitExceeded(
                "connections_per_principal_max",
                f"{count} connections of principal {principal} are open",
            )
        return None

    def count_one(self, address: str, principal: str | None, change: int) -> None:
        """Add 1 or -1 connection to the counts."""
        self.count += change
        _change(self.by_address, address, change)
        if principal is not None:
            _change(self.by_principal, principal, change)


class ConnectionQuotas:
    """Counts of one node's connections. Methods take the current time in seconds."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self.clients: Final = ConnectionPool(
            "clients",
            "connections_max",
            limits.connections_max,
            limits.connections_per_address_max,
            limits.connections_per_principal_max,
        )
        self.voters: Final = ConnectionPool(
            "voters",
            "voters_connections_max",
            limits.voters_connections_max,
            limits.connections_per_address_max,
            max(1, limits.voters_connections_max // 2),
        )
        self._strangers: dict[Listener, dict[CountedConnection, None]] = {}
        """Connections without any right, the oldest first."""
        self._buckets: dict[str, tuple[float, float]] = {}
        """Token buckets by address: tokens, and the time in seconds at which they were counted."""

    @property
    def unprivileged_count(self) -> int:
        """Return the number of connections without any right."""
        return sum(map(len, self._strangers.values()))

    def enter(
        self, listener: Listener, host: str, close: Callable[[], None], now_s: float
    ) -> CountedConnection | LimitExceeded:
        """Count a new connection, before its handshake, or return its refusal."""
        address = _address_of(host)
        refusal = self._rate_refusal(address, now_s)
        if refusal is None and listener == Listener.CLIENTS:
            refusal = self.clients.refusal(address)
        elif refusal is None and listener == Listener.VOTERS:
            refusal = self.voters.refusal(address)
        if refusal is not None:
            return refusal
        strangers = self._strangers.setdefault(listener, {})
        if len(strangers) >= self._limits.stranger_connections_max:
            oldest = next(iter(strangers))
            if (now_s - oldest.began_s) * _STRANGER_TIME_DIVISOR < self._handshake_s:
                reason = f"{len(strangers)} connections are not authorized yet"
                return LimitExceeded("stranger_connections_max", reason)
            del strangers[oldest]
            oldest.close()
        entered = CountedConnection(listener, address, now_s, close)
        strangers[entered] = None
        return entered

    def admit(self, connection: CountedConnection, principal: Principal) -> LimitExceeded | None:
        """Move a connection to the pool of its principal, or return its refusal.

        A connection whose principal has no right stays in the pool of connections without right.
        """
        if principal.possible_rights is Rights.NONE:
            return None
        is_voter = connection.listener == Listener.VOTERS or principal.node_id is not None
        pool = self.voters if is_voter else self.clients
        name = None if principal.name in ("", ANONYMOUS) else principal.name
        refusal = pool.refusal(connection.address, name)
        if refusal is None:
            self._strangers[connection.listener].pop(connection, None)
            connection.pool, connection.principal = pool, name
            pool.count_one(connection.address, name, 1)
        return refusal

    def leave(self, connection: CountedConnection) -> None:
        """Remove a closed connection from the counts."""
        if connection.pool is None:
            self._strangers[connection.listener].pop(connection, None)
        else:
            connection.pool.count_one(connection.address, connection.principal, -1)

    def close_oldest_unprivileged(self) -> bool:
        """Close the oldest connection without any right; return whether there was one."""
        oldest = [next(iter(strangers)) for strangers in self._strangers.values() if strangers]
        if not oldest:
            return False
        found = min(oldest, key=lambda one: one.began_s)
        del self._strangers[found.listener][found]
        found.close()
        return True

    def close_overdue(self, now_s: float) -> None:
        """Close connections that are without any right for longer than ``handshake_ms``."""
        for strangers in self._strangers.values():
            for one in [at for at in strangers if now_s - at.began_s > self._handshake_s]:
                del strangers[one]
                one.close()
        for address in [at for at in self._buckets if self._saved_up(at, now_s) >= self._burst]:
            del self._buckets[address]

    @property
    def _handshake_s(self) -> float:
        return self._limits.handshake_ms / 1000

    @property
    def _burst(self) -> float:
        return self._limits.connection_rate_per_address_max * _BURST_S

    def _saved_up(self, address: str, now_s: float) -> float:
        count, then_s = self._buckets.get(address, (self._burst, now_s))
        rate = self._limits.connection_rate_per_address_max
        return min(self._burst, count + (now_s - then_s) * rate)

    def _rate_refusal(self, address: str, now_s: float) -> LimitExceeded | None:
        count = self._saved_up(address, now_s)
        if count < 1:
            reason = f"{address} opens connections too fast"
            return LimitExceeded("connection_rate_per_address_max", reason)
        self._buckets[address] = count - 1, now_s
        return None


def _change(counts: Counter[str], key: str, change: int) -> None:
    counts[key] += change
    if counts[key] <= 0:
        del counts[key]


def _address_of(host: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = int(address) >> _IPV6_HOST_BITS << _IPV6_HOST_BITS
    return f"{ipaddress.IPv6Address(network)}/{_IPV6_HOST_BITS}"
