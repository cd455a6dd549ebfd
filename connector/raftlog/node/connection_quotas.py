"""Quotas on connections: their number per pool, address and principal, and their creation rate.

Each listener has a pool of connections without any right: handshakes in progress, and certificates
without rights. They are closed after ``handshake_ms``. While the pool is full, a new connection
replaces the oldest one if that is older than a fifth of this time. Half of the pool is for known
addresses, from which a connection had a right before, and the other half is for unknown addresses.
While known addresses use less than their half, a new connection of theirs replaces the oldest one
of an unknown address, whatever its age.

A connection with a right moves to the pool of clients or of voters. The voters' pool is reserved
for connections to the voters' listener, and for nodes that have proven their id (Kafka:
inter-broker listener, KIP-402).

Limits per address and per principal apply within a pool. An address is an IPv4 host or the /64
network of an IPv6 host (Kafka: ``max.connections.per.ip``, KIP-308). Connections above the creation
rate of their address are refused before the handshake (KIP-612); bursts of five seconds' worth are
allowed. At a listener that is only for clients, the address's quota in a controller's log
(``connection_creation_rate``) applies if it is lower. It must not keep voters out.

Kafka: ``ConnectionQuotas``.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from raftlog.wire import Listener

from .access import ANONYMOUS, Principal, Rights, host_text
from .config import LimitsConfig

_STRANGER_TIME_DIVISOR: Final = 5
_BURST_S: Final = 5.0
_IPV6_HOST_BITS: Final = 64
KNOWN_MAX: Final = 10_000
"""Maximum number of known addresses; beyond it, the least recently used one is dropped."""
BUCKETS_MAX: Final = 100_000
"""Maximum number of addresses with a known rate; with a low quota a bucket takes long to refill."""
BUCKETS_PER_CHECK: Final = 5_000
"""Buckets that one check examines, least recently used first, and drops if full; about 2 ms."""
QUOTA: Final = "connection_creation_rate"
"""Kafka's quota for an address."""


@dataclass(frozen=True, slots=True)
class LimitExceeded:
    """Refusal of a connection. ``limit`` is the key in ``[limits]``, or the name of a quota."""

    limit: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Token bucket of an address: ``count`` connections may be opened at ``counted_s``, and
    ``rate`` more in every second."""

    count: float
    counted_s: float
    rate: float

    def saved_up(self, rate: float, now_s: float) -> float:
        """Return the tokens at a time, if they are added at this rate."""
        return min(_burst(rate), self.count + (now_s - self.counted_s) * rate)

    def is_full(self, now_s: float) -> bool:
        """Return whether it equals the bucket of an unknown address."""
        return self.saved_up(self.rate, now_s) >= _burst(self.rate)


def _burst(rate: float) -> float:
    return max(1.0, rate * _BURST_S)


@dataclass(slots=True, eq=False)
class CountedConnection:
    """Counted connection. ``close`` may be called until the connection has left."""

    listener: Listener
    address: str
    began_s: float
    close: Callable[[], None]
    is_known: bool
    """Whether the address was known when this connection was opened."""
    pool: ConnectionPool | None = None
    """None while the connection has no right."""
    principal: str | None = None


@dataclass(slots=True, eq=False)
class ConnectionPool:
    """Connections that share a maximum. ``limit`` is its key in ``[limits]``."""

    name: str
    limit: str
    count_max: int
    per_address_max: int
    per_principal_max: int
    count: int = 0
    by_address: Counter[str] = field(default_factory=Counter)
    by_principal: Counter[str] = field(default_factory=Counter)

    def refusal(self, address: str, principal: str | None = None) -> LimitExceeded | None:
        """Return the refusal of one more connection; None if it is within the limits."""
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
        """Add 1 or -1 to the counts of connections."""
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
        self._strangers: dict[tuple[Listener, bool], dict[CountedConnection, None]] = {}
        """Connections without any right, the oldest first, by whether their addresses are known."""
        self._known: dict[str, None] = {}
        """Known addresses, ordered by when a connection last had a right, the latest at the end."""
        self.rate_of: Callable[[str], float | None] = lambda _: None
        """Returns the quota of an address, in connections per second; None without one."""
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        """By limit and address; the last used one is at the end."""

    @property
    def unprivileged_count(self) -> int:
        """Return the number of connections without any right."""
        return sum(map(len, self._strangers.values()))

    def is_full(self, listener: Listener) -> bool:
        """Return whether a new connection of a listener replaces another one, or is refused."""
        count = sum(len(self._strangers.get((listener, known), ())) for known in (False, True))
        return count >= self._limits.stranger_connections_max

    def enter(
        self,
        listener: Listener,
        host: str,
        close: Callable[[], None],
        now_s: float,
        *,
        may_replace: bool = True,
    ) -> CountedConnection | LimitExceeded:
        """Count a new connection, before its handshake, or return its refusal.

        ``may_replace``: whether a connection of an unknown address may replace another one.
        """
        address = _address_of(host)
        refusal = self._rate_refusal(listener, host, now_s)
        if refusal is None and listener == Listener.CLIENTS:
            refusal = self.clients.refusal(address)
        elif refusal is None and listener == Listener.VOTERS:
            refusal = self.voters.refusal(address)
        if refusal is not None:
            return refusal
        is_known = address in self._known
        if self.is_full(listener):
            oldest = self._replaceable(listener, is_known=is_known)
            is_old = (now_s - oldest.began_s) * _STRANGER_TIME_DIVISOR >= self._handshake_s
            if not (is_old and may_replace) and not (is_known and not oldest.is_known):
                count = self._limits.stranger_connections_max
                reason = f"{count} connections are not authorized yet"
                return LimitExceeded("stranger_connections_max", reason)
            self._remove_unprivileged(oldest)
            oldest.close()
        entered = CountedConnection(listener, address, now_s, close, is_known)
        self._strangers.setdefault((listener, is_known), {})[entered] = None
        return entered

    def _replaceable(self, listener: Listener, *, is_known: bool) -> CountedConnection:
        """Return the connection that a new one replaces in a full pool: if its kind of address
        (known or unknown) uses less than half, the oldest of the other kind, otherwise the oldest
        of its own kind."""
        own, others = (self._strangers.get((listener, one), {}) for one in (is_known, not is_known))
        half = max(1, self._limits.stranger_connections_max // 2)
        return next(iter(others if len(own) < half and others else own))

    def _remove_unprivileged(self, connection: CountedConnection) -> None:
        self._strangers[connection.listener, connection.is_known].pop(connection, None)

    def admit(self, connection: CountedConnection, principal: Principal) -> LimitExceeded | None:
        """Move a connection to the pool of its principal, or return its refusal.

        A connection whose principal has no right stays in the pool of connections without rights. A
        principal that has rights only from ACLs is a client, even at the listener for voters.
        """
        if principal.possible_rights is Rights.NONE:
            return None
        is_voter = principal.node_id is not None or (
            connection.listener == Listener.VOTERS and bool(principal.rights)
        )
        pool = self.voters if is_voter else self.clients
        name = None if principal.name in ("", ANONYMOUS) else principal.name
        refusal = pool.refusal(connection.address, name)
        if refusal is None:
            self._remove_unprivileged(connection)
            self._known.pop(connection.address, None)
            self._known[connection.address] = None
            if len(self._known) > KNOWN_MAX:
                del self._known[next(iter(self._known))]
            connection.pool, connection.principal = pool, name
            pool.count_one(connection.address, name, 1)
        return refusal

    def leave(self, connection: CountedConnection) -> None:
        """Remove a closed connection from the counts."""
        if connection.pool is None:
            self._remove_unprivileged(connection)
        else:
            connection.pool.count_one(connection.address, connection.principal, -1)

    def close_oldest_unprivileged(self) -> bool:
        """Close the oldest connection without any right, preferably of an unknown address; return
        whether there was one."""
        oldest = [next(iter(strangers)) for strangers in self._strangers.values() if strangers]
        if not oldest:
            return False
        found = min(oldest, key=lambda one: (one.is_known, one.began_s))
        self._remove_unprivileged(found)
        found.close()
        return True

    def close_overdue(self, now_s: float) -> None:
        """Close connections that have been without any right for longer than ``handshake_ms``."""
        for strangers in self._strangers.values():
            for one in [at for at in strangers if now_s - at.began_s > self._handshake_s]:
                del strangers[one]
                one.close()
        oldest = list(islice(self._buckets.items(), BUCKETS_PER_CHECK))
        for key in [at for at, one in oldest if one.is_full(now_s)]:
            del self._buckets[key]

    @property
    def _handshake_s(self) -> float:
        return self._limits.handshake_ms / 1000

    def _rate_refusal(self, listener: Listener, host: str, now_s: float) -> LimitExceeded | None:
        """Count a new connection of an address, or return its refusal."""
        address, limit = _address_of(host), "connection_rate_per_address_max"
        rate = float(self._limits.connection_rate_per_address_max)
        quota = self.rate_of(host_text(host)) if listener == Listener.CLIENTS else None
        if quota is not None and quota < rate:
            rate, limit = quota, QUOTA
        key = limit, address  # a client must not use up the connections of a voter on its host
        bucket = self._buckets.pop(key, None)
        count = _burst(rate) if bucket is None else bucket.saved_up(rate, now_s)
        is_refused = rate <= 0 or count < 1
        self._buckets[key] = _Bucket(count if is_refused else count - 1, now_s, rate)
        while len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        if is_refused:
            return LimitExceeded(limit, f"{address} opens connections too fast")
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
