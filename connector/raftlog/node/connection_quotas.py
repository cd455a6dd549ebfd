"""How many connections there are, of whom, and how fast an address makes new ones.

Rules of this file:

1. A listener has a pool of connections without any right: handshakes under way, and certificates
   that give none. They stay for ``handshake_ms``. While the pool is full, the oldest is closed for
   a new one as soon as it has had a fifth of that time.
2. A connection with a right leaves that pool for the one of clients or the one of voters. Voters
   have theirs alone: connections to the voters' listener, and of nodes that have proven their id
   (Kafka: room for the inter-broker listener, KIP-402).
3. Limits of addresses and principals hold within a pool. An address is a host, or the network of
   64 bits of an IPv6 host (Kafka: ``max.connections.per.ip``, KIP-308).
4. Connections of an address beyond its creation rate are refused before anything else is done for
   them (Kafka: KIP-612). It may save up for five seconds.

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
    """Why a connection is refused: the limit by its name in the configuration."""

    limit: str
    reason: str


@dataclass(slots=True, eq=False)
class CountedConnection:
    """One connection. ``close`` closes it, at any time until it has left."""

    listener: Listener
    address: str
    began_s: float
    close: Callable[[], None]
    pool: ConnectionPool | None = None
    """None: it has no right, or none yet."""
    principal: str | None = None


@dataclass(slots=True, eq=False)
class ConnectionPool:
    """Connections that count against one maximum, and its name in the configuration."""

    name: str
    limit: str
    count_max: int
    per_address_max: int
    per_principal_max: int
    count: int = 0
    by_address: Counter[str] = field(default_factory=Counter)
    by_principal: Counter[str] = field(default_factory=Counter)

    def refusal(self, address: str, principal: str | None = None) -> LimitExceeded | None:
        """Return why there is no place for one more of this address and principal."""
        if self.count >= self.count_max:
            return LimitExceeded(self.limit, f"{self.count} connections of {self.name} are open")
        if (count := self.by_address[address]) >= self.per_address_max:
            return LimitExceeded("connections_per_address_max", f"{count} of {address} are open")
        if principal is not None and self.by_principal[principal] >= self.per_principal_max:
            count = self.by_principal[principal]
            return LimitExceeded(
                "connections_per_principal_max", f"{count} of {principal} are open"
            )
        return None

    def count_one(self, address: str, principal: str | None, change: int) -> None:
        """Count one connection more (1), or one less (-1)."""
        self.count += change
        _change(self.by_address, address, change)
        if principal is not None:
            _change(self.by_principal, principal, change)


class ConnectionQuotas:
    """The counts of one node's connections. It is given the time, in seconds."""

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
        """How many connections an address may make, and when that was so."""

    @property
    def stranger_count(self) -> int:
        """How many connections have no right, or none yet."""
        return sum(map(len, self._strangers.values()))

    def enter(
        self, listener: Listener, host: str, close: Callable[[], None], now_s: float
    ) -> CountedConnection | LimitExceeded:
        """Count a new connection, of which only its address is known, or return why not."""
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
                reason = f"{len(strangers)} connections have not proven any right yet"
                return LimitExceeded("stranger_connections_max", reason)
            del strangers[oldest]
            oldest.close()
        entered = CountedConnection(listener, address, now_s, close)
        strangers[entered] = None
        return entered

    def admit(self, connection: CountedConnection, caller: Principal) -> LimitExceeded | None:
        """Move a connection to the pool of its caller, or return why there is no place there.

        A caller without any right stays where it is, for a short time.
        """
        if caller.rights is Rights.NONE:
            return None
        is_voter = connection.listener == Listener.VOTERS or caller.node_id is not None
        pool = self.voters if is_voter else self.clients
        principal = None if caller.name in ("", ANONYMOUS) else caller.name
        refusal = pool.refusal(connection.address, principal)
        if refusal is None:
            self._strangers[connection.listener].pop(connection, None)
            connection.pool, connection.principal = pool, principal
            pool.count_one(connection.address, principal, 1)
        return refusal

    def leave(self, connection: CountedConnection) -> None:
        """Count a connection no more that was closed."""
        if connection.pool is None:
            self._strangers[connection.listener].pop(connection, None)
        else:
            connection.pool.count_one(connection.address, connection.principal, -1)

    def close_oldest_stranger(self) -> bool:
        """Close the connection that has waited longest without any right; whether there is one."""
        oldest = [next(iter(strangers)) for strangers in self._strangers.values() if strangers]
        if not oldest:
            return False
        found = min(oldest, key=lambda one: one.began_s)
        del self._strangers[found.listener][found]
        found.close()
        return True

    def close_overdue(self, now_s: float) -> None:
        """Close connections that have had no right for ``handshake_ms``."""
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
            reason = f"{address} makes new connections too fast"
            return LimitExceeded("connection_rate_per_address_max", reason)
        self._buckets[address] = count - 1, now_s
        return None


def _change(counts: Counter[str], key: str, change: int) -> None:
    counts[key] += change
    if counts[key] <= 0:
        del counts[key]


def _address_of(host: str) -> str:
    """Return the host, or the network of an IPv6 host."""
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
