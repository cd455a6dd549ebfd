"""Log of Kafka's authorizer, and the join of its requests with the changes of a log.

A metadata log contains what was changed, but not by which principal. The authorizer of brokers and
controllers (logger ``kafka.authorizer.logger``) logs which principal's request was allowed or
denied, but not whether it changed anything. ``join_requests`` combines both: each change with the
requests that may have caused it, and the requests without a change.

A denied request is logged at level INFO and an allowed one at DEBUG, so the join requires DEBUG.
The active controller also logs forwarded requests. Times in the log are in the time zone of its
process.

A change matches a request that is of its kind, names its resource (or the cluster), and was allowed
from ``window_ms`` before to ``skew_ms`` after the change. If there are several, those at the time
nearest before the change are its requests. If they have more than one principal, the result is
ambiguous.

Kafka's layout does not escape line ends, and a client chooses the names of the resources that it
requests. A name of 32,767 characters can contain whole lines of other principals, exactly as Kafka
writes them, and no parser can distinguish them from real ones. However, such lines follow the line
of the request with that name, whose principal and host are real. A line is therefore certain if,
within that many characters before it, each line has the same principal and host, or is a request
about the cluster, whose name no client chooses. Any other line ``may_be_forged``. Because no client
can remove a line, the requests of a change include all that may be forged, back to a certain one.

Source: Kafka ``StandardAuthorizerData.buildAuditMessage``; ``MessageGenerator``, which limits a
string to ``Short.MAX_VALUE``; log4j's pattern ``[%d] %p %m (%c)%n``.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from raftlog.errors import OptionError

from .enums import CONFIG_RESOURCE_TYPES
from .image.rows import ConfigRow, Entity, PartitionRow, Row, TokenRow, TopicRow
from .log_changes import LoggedChange

WINDOW_MS_DEFAULT: Final = 10_000
SKEW_MS_DEFAULT: Final = 1_000
"""Nodes' clocks differ, and a request may be logged after its change is committed."""

_LINE: Final = re.compile(
    r"\[?(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)[.,](?P<ms>\d{3})\]?\s.*?"
    r"Principal = (?P<principal>.*?) is (?P<result>Allowed|Denied) operation = (?P<operation>\w+)"
    r" from host = (?P<host>\S+) on resource = (?P<kind>\w+):(?P<pattern>\w+):(?P<resource>.*)"
    r" for request = (?P<request>\w+) with resourceRefCount = \d+ based on rule (?P<rule>.*?)"
    r"(?: \(kafka\.authorizer\.logger\))?"
)
_SEPARATORS: Final = (
    *("Principal = ", " from host = ", " on resource = ", " for request = "),
    *(" operation = ", " with resourceRefCount = ", " based on rule "),
)
"""Each occurs in a line once, unless a name contains it: such a line is ambiguous."""

NAME_LENGTH_MAX: Final = 2**15 - 1
"""Characters of a name, which is the maximum for a string in Kafka's protocol."""
_CLUSTER: Final = ("Cluster", "kafka-cluster")

_OF_TOPICS: Final = frozenset({Entity.TOPIC, Entity.PARTITION, Entity.CONFIG})
_ENTITIES: Final = {
    **dict.fromkeys(
        (
            *("CreateTopics", "DeleteTopics", "CreatePartitions"),
            *("AlterPartitionReassignments", "ElectLeaders"),
        ),
        _OF_TOPICS,
    ),
    **dict.fromkeys(("AlterConfigs", "IncrementalAlterConfigs"), frozenset({Entity.CONFIG})),
    **dict.fromkeys(("CreateAcls", "DeleteAcls"), frozenset({Entity.ACL})),
    "AlterClientQuotas": frozenset({Entity.QUOTA}),
    "AlterUserScramCredentials": frozenset({Entity.SCRAM}),
    **dict.fromkeys(
        ("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken"),
        frozenset({Entity.TOKEN}),
    ),
    "UpdateFeatures": frozenset({Entity.FEATURE}),
    "UnregisterBroker": frozenset({Entity.BROKER}),
}
"""Requests of clients that change metadata, and the kinds of their changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedRequest:
    """Line of the authorizer: an operation on a resource, and whether it was allowed.

    ``may_be_forged``: whether an earlier request, of another principal or host, may have written
    the line with its resource's name.
    """

    time_ms: int
    principal: str
    host: str
    request: str
    operation: str
    resource_type: str
    resource: str
    is_allowed: bool
    may_be_forged: bool = False

    @property
    def may_change(self) -> bool:
        """Whether it is a client's request that changes metadata."""
        return self.request in _ENTITIES

    def explains(self, row: Row) -> bool:
        """Return whether the request may have changed a row."""
        if row.ENTITY not in _ENTITIES.get(self.request, ()):
            return False
        return self.resource_type == "Cluster" or self.resource == _resource_of(row)


def _resource_of(row: Row) -> str | None:
    """Return the name of a row's resource, unless it is the cluster."""
    match row:
        case TopicRow():
            return row.name
        case PartitionRow():
            return row.topic_name
        case ConfigRow() if CONFIG_RESOURCE_TYPES.get(row.resource_type) != "BROKER":
            return row.resource_name
        case TokenRow():
            return row.owner  # of a token for another principal (KIP-373)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class RequestedChange:
    """Change of a log, and the requests that may have caused it."""

    change: LoggedChange
    requests: tuple[AuthorizedRequest, ...]

    @property
    def principals(self) -> tuple[str, ...]:
        """The principals of the requests, each once."""
        return tuple(dict.fromkeys(one.principal for one in self.requests))


class AuthorizerLog:
    """Requests in the lines of the authorizer's logs, sorted by time.

    The logs must be whole files, which begin with a line of Kafka. An excerpt may begin inside a
    name.

    ``unreadable_count``: lines of the authorizer that are cut off, or that are ambiguous because of
    a principal's or resource's name; they are left out.
    """

    def __init__(
        self,
        lines: Iterable[str],
        *,
        zone: str = "UTC",
        zone_option: str = "zone",
        are_escaped: bool = False,
    ) -> None:
        """``zone``: the name of the lines' time zone. ``are_escaped``: their layout escapes line
        ends, as log4j's ``%enc{%m}{CRLF}`` does, so that no line can be forged.

        Raises ``OptionError`` for ``zone_option``, and the errors of ``lines``.
        """
        try:
            zone_info = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            reason = "must be the name of a time zone, such as UTC or Europe/Paris"
            raise OptionError(option=zone_option, reason=reason) from None
        self.unreadable_count = 0
        found = []
        writers = _NameWriters()
        for line in lines:
            is_request = "Principal = " in line
            request = _parse(line, zone_info) if is_request else None
            may_be_forged = writers.read(line, request) and not are_escaped
            if request is not None:
                found.append(replace(request, may_be_forged=may_be_forged))
            elif is_request:
                self.unreadable_count += 1
        self.requests: Final[Sequence[AuthorizedRequest]] = sorted(
            found, key=lambda one: one.time_ms
        )


class _NameWriters:
    """Peers whose requests may have written the next line with the name of a resource.

    The last line of such a request is kept for the last peer, and for the last different peer
    before it. One of the two differs from the peer of any line.
    """

    def __init__(self) -> None:
        self._position = 0
        self._last: tuple[object, int] = (_Unknown(), -NAME_LENGTH_MAX)
        self._last_other: tuple[object, int] = self._last

    def read(self, line: str, request: AuthorizedRequest | None) -> bool:
        """Read the next line; return whether another peer may have written it."""
        start = self._position
        self._position += len(line)
        peer: object = _Unknown()
        if request is not None:
            peer = request.principal, request.host
        other = self._last_other if peer == self._last[0] else self._last
        if request is None or (request.resource_type, request.resource) != _CLUSTER:
            if peer != self._last[0]:
                self._last_other = self._last
            self._last = peer, self._position
        return start - other[1] < NAME_LENGTH_MAX


class _Unknown:
    """Peer of a line that is not a request. It equals no other peer."""


def _parse(line: str, zone: ZoneInfo) -> AuthorizedRequest | None:
    if any(line.count(one) != 1 for one in _SEPARATORS):
        return None  # before the match, whose time is cubic in their number
    match = _LINE.fullmatch(line.rstrip())
    if match is None:
        return None
    try:
        time = datetime.fromisoformat(match["time"]).replace(tzinfo=zone)
    except ValueError:
        return None
    return AuthorizedRequest(
        time_ms=int(time.timestamp()) * 1_000 + int(match["ms"]),
        principal=match["principal"],
        host=match["host"],
        request=match["request"],
        operation=match["operation"],
        resource_type=match["kind"],
        resource=match["resource"],
        is_allowed=match["result"] == "Allowed",
    )


class RequestJoin:
    """Join of an authorizer's requests with changes, which are passed in log order.

    ``without_change`` is complete after the last change.
    """

    def __init__(
        self,
        log: AuthorizerLog,
        *,
        window_ms: int = WINDOW_MS_DEFAULT,
        skew_ms: int = SKEW_MS_DEFAULT,
    ) -> None:
        self._allowed = [one for one in log.requests if one.is_allowed and one.may_change]
        self._denied = [one for one in log.requests if not one.is_allowed]
        self.unreadable_count: Final = log.unreadable_count
        self._times = [one.time_ms for one in self._allowed]
        self._window_ms = window_ms
        self._skew_ms = skew_ms
        self._used: set[int] = set()

    def requested(self, change: LoggedChange) -> RequestedChange:
        """Return a change with its requests, none if no request matches."""
        at_ms = change.timestamp_ms
        first = bisect_left(self._times, at_ms - self._window_ms)
        end = bisect_right(self._times, at_ms + self._skew_ms)
        rows = [row for row in (change.change.after, change.change.before) if row is not None]
        found = [
            at for at in range(first, end) if any(self._allowed[at].explains(row) for row in rows)
        ]
        certain = [
            at for at in found if self._times[at] <= at_ms and not self._allowed[at].may_be_forged
        ]
        since_ms = self._times[certain[-1]] if certain else None
        chosen = [at for at in found if since_ms is None or self._is_cause(at, since_ms, at_ms)]
        self._used.update(found)
        return RequestedChange(change, tuple(self._allowed[at] for at in chosen))

    def _is_cause(self, at: int, since_ms: int, change_ms: int) -> bool:
        """Return whether a request may be the cause of a change.

        The change's last certain request is of ``since_ms``. The request is of this time, or may be
        forged and hide that request, or be hidden by it.
        """
        is_near = since_ms <= self._times[at] <= change_ms
        return self._times[at] == since_ms or (is_near and self._allowed[at].may_be_forged)

    def without_change(self) -> Iterator[AuthorizedRequest]:
        """Yield, by time, denied requests and allowed ones that should have a change but do not."""
        unused = (one for at, one in enumerate(self._allowed) if at not in self._used)
        yield from sorted((*self._denied, *unused), key=lambda one: one.time_ms)
