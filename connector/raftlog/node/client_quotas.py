"""Quotas of clients: bytes produced and fetched per second, and share of the node's time.

A quota is set for a user, for a client id, or for a user with a client id. A default applies to
every user or client id, each with its own rate. The most specific quota applies (``PRECEDENCE``, as
in Kafka). Without a quota nothing is counted.

1. A rate is the sum of the last 11 one-second samples, divided by the time since the oldest one
   began or by 10 seconds, whichever is longer. So a client may use the bytes of 10 seconds in one
   moment.
2. A request that exceeds a quota is answered immediately, with the time until the rate is within
   the quota again. Its connection is muted for that time: nothing is read from it (KIP-219). The
   response to such a fetch has no records, unless nothing was fetched before. So even a batch
   larger than the quota of 10 seconds is returned, which Kafka's consumers never get.
3. Requests of nodes are never throttled: neither the quorum's requests, nor any request of a
   principal that a certificate identifies as a node.
4. Request time is the time used on the node's event loop and executor, in percent of one processor.
   It leads to a throttle time of at most a second. The write and the sync of an append are not
   counted, because they serve several requests.
5. At most ``RATES_MAX`` rates are in memory. A rate without a value for 11 seconds equals a new
   one.

Kafka: ``ClientQuotaManager``, ``ClientRequestQuotaManager``, ``Rate``, ``SampledStat``; KIP-13, 55,
124 and 219.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from raftlog.wire import APIS, CONTROLLER_APIS, ApiKey

from .access import ANONYMOUS, KAFKA_ANONYMOUS
from .config_table import ConfigTable

if TYPE_CHECKING:
    from .raft_node import RaftNode
    from .request import Request

SAMPLES: Final = 11
"""Kafka: ``quota.window.num``."""
SAMPLE_MS: Final = 1_000
"""Kafka: ``quota.window.size.seconds``."""
_WINDOW_MS: Final = SAMPLES * SAMPLE_MS
RATES_MAX: Final = 10_000
"""Maximum number of rates in memory, which should be those of the last 11 seconds' clients."""
_NAME_LENGTH_MAX: Final = 256
"""A longer name is replaced by its hash in a rate's key, because a client id may have 32 KiB."""
_THROTTLE_MS_MAX: Final = 2**31 - 1
"""Largest throttle time in a response."""

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types (client-id, user) with names, which are None for the default, sorted by type."""


class QuotaType(enum.StrEnum):
    """Kind of a quota, with Kafka's name for it."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"


class QuotaLimits(Protocol):
    """Quotas that are set in a node's file or in a controller's log."""

    def has_quota(self, name: str) -> bool:
        """Return whether any entity has a quota of this name."""

    def quota_of(self, entity: QuotaEntity, name: str) -> float | None:
        """Return the quota of exactly this entity; None if it is not set."""


class ClientQuota(NamedTuple):
    """Quota of an entity."""

    entity: QuotaEntity
    name: str
    value: float


class QuotaTable:
    """Quotas by entity and name."""

    def __init__(self, quotas: Iterable[ClientQuota]) -> None:
        self.quotas: Final = tuple(quotas)
        self._values: Final = {(entity, name): value for entity, name, value in self.quotas}
        self._names: Final = {name for _, name in self._values}

    def has_quota(self, name: str) -> bool:
        return name in self._names

    def quota_of(self, entity: QuotaEntity, name: str) -> float | None:
        return self._values.get((entity, name))


NO_QUOTAS: Final = QuotaTable(())


ANY_NAME: Final = "*"
"""Name in a quota that is the default for every user or client id."""


def parse_quotas(root: ConfigTable) -> tuple[ClientQuota, ...]:
    """Return the quotas in a node's file: the tables ``[[quotas]]``. Raises ``ConfigError``."""
    found: list[ClientQuota] = []
    for table in root.tables("quotas"):
        entity: list[tuple[str, str | None]] = []
        for key, kind in (("client_id", "client-id"), ("user", "user")):
            if table.has(key):
                name = table.text(key)
                if kind == "user" and name == ANONYMOUS:
                    name = KAFKA_ANONYMOUS
                entity.append((kind, None if name == ANY_NAME else name))
        if not entity:
            raise table.wrong("user", "missing: a quota is for a user, a client_id, or both")
        quotas = {one: table.decimal(one) for one in QuotaType if table.has(one)}
        table.finish()
        if not quotas:
            raise table.wrong("producer_byte_rate", f"missing: set {', '.join(QuotaType)}, or some")
        twice = [one.name for one in found if one.entity == tuple(entity) and one.name in quotas]
        if twice:
            raise table.wrong(twice[0], "another [[quotas]] of the same names has it, too")
        found += [ClientQuota(tuple(entity), name, value) for name, value in quotas.items()]
    return tuple(found)


class QuotaClient(NamedTuple):
    """User (Kafka's name of the principal) and client id of a request."""

    user: str
    client_id: str


class _Names(enum.Enum):
    """Names of a type that a quota applies to."""

    EXACT = enum.auto()
    DEFAULT = enum.auto()
    ABSENT = enum.auto()


PRECEDENCE: Final = (
    (_Names.EXACT, _Names.EXACT),
    (_Names.EXACT, _Names.DEFAULT),
    (_Names.EXACT, _Names.ABSENT),
    (_Names.DEFAULT, _Names.EXACT),
    (_Names.DEFAULT, _Names.DEFAULT),
    (_Names.DEFAULT, _Names.ABSENT),
    (_Names.ABSENT, _Names.EXACT),
    (_Names.ABSENT, _Names.DEFAULT),
)
"""User and client id of the entities whose quotas are for a client; the first one applies."""


@dataclass(slots=True)
class _Sample:
    start_ms: int
    last_ms: int
    value: float = 0.0

    def reset(self, now_ms: int) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class SampledRate:
    """Rate of the recorded values per second. Methods take the current time.

    Kafka: ``Rate`` with a ``WindowedSum``. It has one sample more than the window, because a sample
    that began before the window counts if it has a value in it.
    """

    __slots__ = ("_current", "_samples", "recorded_ms")

    def __init__(self, now_ms: int) -> None:
        self._samples: Final = [_Sample(now_ms, now_ms)]
        self._current = 0
        self.recorded_ms = now_ms
        """Time of the last value."""

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        sample = self._samples[self._current]
        if now_ms - sample.start_ms >= SAMPLE_MS:
            self._current = (self._current + 1) % (SAMPLES + 1)
            if self._current == len(self._samples):
                self._samples.append(_Sample(now_ms, now_ms))
            sample = self._samples[self._current]
            sample.reset(now_ms)
        sample.value += value
        sample.last_ms = self.recorded_ms = now_ms

    def is_zero(self, now_ms: int) -> bool:
        """Return whether the rate is 0."""
        return all(one.value == 0 or now_ms - one.last_ms >= _WINDOW_MS for one in self._samples)

    def throttle_time_ms(self, limit: float, now_ms: int) -> float:
        """Return in how many milliseconds the rate will be within a limit; 0 if it is now."""
        for one in self._samples:
            if now_ms - one.last_ms >= _WINDOW_MS:
                one.reset(now_ms)
        window_ms = now_ms - min(one.start_ms for one in self._samples)
        window_ms += max(0, SAMPLES - 1 - window_ms // SAMPLE_MS) * SAMPLE_MS
        rate = sum(one.value for one in self._samples) / (window_ms / 1000)
        if not rate > limit:
            return 0
        return math.inf if limit <= 0 else (rate - limit) / limit * window_ms


class ClientQuotaManager:
    """Rates of the clients that have quotas in ``limits``. ``now_ms`` returns the time."""

    def __init__(self, limits: QuotaLimits, now_ms: Callable[[], int]) -> None:
        self.limits = limits
        self._now_ms: Final = now_ms
        self._rates: Final[dict[tuple[QuotaType, str | None, str | None], SampledRate]] = {}
        """By quota, user and client id (None for all of them); the last used one is at the end."""

    @property
    def rate_count(self) -> int:
        """Return the number of rates in memory."""
        return len(self._rates)

    def has_quota(self, quota: QuotaType | None) -> bool:
        """Return whether any client has this quota, or a quota on request time."""
        limits = self.limits
        return limits.has_quota(QuotaType.REQUEST) or (
            quota is not None and limits.has_quota(quota)
        )

    def record(self, quota: QuotaType, client: QuotaClient, value: float) -> int:
        """Add a value to the rate of a client; return the throttle time in milliseconds."""
        found = self._find(quota, client)
        if found is None:
            return 0
        limit, rate, now_ms = found
        rate.record(value, now_ms)
        longest_ms = SAMPLE_MS if quota is QuotaType.REQUEST else _THROTTLE_MS_MAX
        return math.floor(min(rate.throttle_time_ms(limit, now_ms), longest_ms) + 0.5)

    def unrecord(self, quota: QuotaType, client: QuotaClient, value: float) -> None:
        """Remove a value that was just recorded, for a response that is not sent."""
        found = self._find(quota, client)
        if found is not None:
            _, rate, now_ms = found
            rate.record(-value, now_ms)

    def is_zero(self, quota: QuotaType, client: QuotaClient) -> bool:
        """Return whether nothing is recorded in the window."""
        found = self._find(quota, client)
        return found is None or found[1].is_zero(found[2])

    def value_max(self, quota: QuotaType, client: QuotaClient) -> float:
        """Return the largest value that is not throttled if nothing else is recorded."""
        found = self._limit_of(quota, client)
        return math.inf if found is None else found[0] * (SAMPLES - 1) * SAMPLE_MS / 1000

    def _find(self, quota: QuotaType, client: QuotaClient) -> tuple[float, SampledRate, int] | None:
        """Return the limit and rate of a client, and the time; None if it has no quota."""
        found = self._limit_of(quota, client)
        if found is None:
            return None
        limit, user, client_id = found
        now_ms, key = self._now_ms(), (quota, _key_of(user), _key_of(client_id))
        rate = self._rates.pop(key, None) or SampledRate(now_ms)
        for oldest in list(islice(self._rates, 2)):
            is_old = now_ms - self._rates[oldest].recorded_ms >= _WINDOW_MS
            if is_old or len(self._rates) >= RATES_MAX:
                del self._rates[oldest]
        self._rates[key] = rate
        return limit, rate, now_ms

    def _limit_of(
        self, quota: QuotaType, client: QuotaClient
    ) -> tuple[float, str | None, str | None] | None:
        """Return the limit of a client, and the user and client id that share its rate."""
        limits = self.limits
        if not limits.has_quota(quota):
            return None
        for user_names, client_names in PRECEDENCE:
            entity = (
                *_part("client-id", client_names, client.client_id),
                *_part("user", user_names, client.user),
            )
            limit = limits.quota_of(entity, quota)
            if limit is not None:
                user = None if user_names is _Names.ABSENT else client.user
                client_id = None if client_names is _Names.ABSENT else client.client_id
                return limit, user, client_id
        return None


def _part(kind: str, names: _Names, name: str) -> QuotaEntity:
    if names is _Names.ABSENT:
        return ()
    return ((kind, name if names is _Names.EXACT else None),)


def _key_of(name: str | None) -> str | None:
    if name is None or len(name) <= _NAME_LENGTH_MAX:
        return name
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


# --- requests -------------------------------------------------------------------------------------

_NODE_APIS: Final = frozenset(
    key
    for key, api in {**APIS, **CONTROLLER_APIS}.items()
    if api.clients is None and key != ApiKey.FETCH_SNAPSHOT
)
"""APIs that only nodes use, unlike FetchSnapshot. Nodes' own requests are not passed here."""


class ClientQuotas:
    """Quotas on the requests to one node, on its event loop."""

    def __init__(self, raft_node: RaftNode, limits: QuotaLimits) -> None:
        self._raft_node: Final = raft_node
        self._manager: Final = ClientQuotaManager(limits, raft_node.now_ms)
        self.use(limits)
        self.throttled_requests: Final[Counter[str]] = Counter()
        self.throttle_ms: Final[Counter[str]] = Counter()
        """Both by quota."""

    def use(self, limits: QuotaLimits) -> None:
        """Replace the quotas."""
        self._manager.limits = limits
        self.may_throttle = not isinstance(limits, QuotaTable) or bool(limits.quotas)
        """Whether there are quotas, or a controller's log may set some; most nodes have neither."""

    @property
    def rate_count(self) -> int:
        """Return the number of rates in memory."""
        return self._manager.rate_count

    @property
    def muted_count(self) -> int:
        """Return the number of muted connections."""
        return len(self._raft_node.throttled)

    def throttle(
        self, request: Request[Any], quota: QuotaType | None = None, byte_count: int = 0
    ) -> int:
        """Record a request's time until now and the bytes that count towards a quota; mute the
        connection if a quota is exceeded. Return the throttle time in milliseconds for the
        response."""
        if not self.may_throttle or not self._manager.has_quota(quota):
            return 0  # as on nearly all nodes
        client = _client_of(request)
        if client is None:
            return 0
        time_ms = self._record_time(request, client)
        bytes_ms = 0 if quota is None else self._manager.record(quota, client, byte_count)
        return self._mute(request, time_ms, bytes_ms, quota)

    def throttle_fetch(self, request: Request[Any], byte_count: int) -> tuple[int, bool]:
        """Do the same for a fetch; also return whether its response may have records."""
        client = _client_of(request) if self.may_throttle else None
        if client is None:
            return 0, True
        is_first = self._manager.is_zero(QuotaType.FETCH, client)
        time_ms = self._record_time(request, client)
        bytes_ms = self._manager.record(QuotaType.FETCH, client, byte_count)
        has_records = not time_ms and (not bytes_ms or is_first)
        if not has_records:
            self._manager.unrecord(QuotaType.FETCH, client, byte_count)
        return self._mute(request, time_ms, bytes_ms, QuotaType.FETCH), has_records

    def fetch_bytes_max(self, request: Request[Any]) -> float:
        """Return the largest response to a fetch that is not throttled if it is the only one."""
        client = _client_of(request) if self.may_throttle else None
        return math.inf if client is None else self._manager.value_max(QuotaType.FETCH, client)

    def record_rest(self, request: Request[Any]) -> None:
        """Record the time that a request took after its throttle time was computed."""
        client = _client_of(request) if self.may_throttle else None
        if client is not None:
            self._record_time(request, client)

    def _record_time(self, request: Request[Any], client: QuotaClient) -> int:
        return self._manager.record(QuotaType.REQUEST, client, request.take_busy_s() * 100)

    def _mute(
        self, request: Request[Any], time_ms: int, bytes_ms: int, quota: QuotaType | None
    ) -> int:
        throttle_ms = max(time_ms, bytes_ms)
        if throttle_ms:
            name = quota if quota is not None and bytes_ms > time_ms else QuotaType.REQUEST
            self.throttled_requests[name] += 1
            self.throttle_ms[name] += throttle_ms
            self._raft_node.throttle(request.connection, throttle_ms)
        return throttle_ms


def _client_of(request: Request[Any]) -> QuotaClient | None:
    """Return the client whose quotas a request uses; None if it is never throttled."""
    principal = request.principal
    if principal.node_id is not None or request.header.api_key in _NODE_APIS or not principal.name:
        return None
    return QuotaClient(principal.kafka_name, request.header.client_id or "")
