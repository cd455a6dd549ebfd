"""ACLs and credentials of the committed image, and authorization of requests by ACLs.

The rules are those of Kafka's ``StandardAuthorizer``:

1. An ACL applies to a request if all of these match: its principal is the request's or ``User:*``;
   its host is the client's, ``*`` or a range that contains the client's; and its pattern matches
   the resource, either by the same name or ``*`` (literal), or by a prefix of the name. (For a name
   that begins with an asterisk, Kafka 4.4 does not find the ACLs of ``*``, not even DENY entries.
   Here they apply to every name.)
2. A DENY applies to its own operation, or to all operations if it is for ALL. An ALLOW of READ,
   WRITE, DELETE or ALTER also allows DESCRIBE, and an ALLOW of ALTER_CONFIGS also allows
   DESCRIBE_CONFIGS.
3. A DENY takes precedence over every ALLOW. Without either, there is no decision.

Super users are not known here, because they are in the node's configuration.

Source: Kafka ``StandardAuthorizerData``, ``AclPublisher``, ``ScramPublisher``.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final, TypeVar, cast

from raftlog.types import Operation, Resource
from raftlog_state.image import (
    AclRow,
    Entity,
    Key,
    MetadataImage,
    QuotaRow,
    Row,
    ScramRow,
)
from raftlog_state.image.acl_hosts import WILDCARD, AclHosts
from raftlog_state.image.delta import RowChange
from raftlog_state.steps import CHANGES_PER_STEP, Steps, begin, for_each_in_steps

from .publisher import LogDeltaManifest, Manifest, MetadataUpdate

T = TypeVar("T")

ALLOW: Final = 3
LITERAL: Final = 3
PREFIXED: Final = 4
ROWS_PER_STEP: Final = 3_000
"""ACLs or quotas that are indexed in one step, which takes some 10 ms."""

CONNECTION_RATE: Final = "connection_creation_rate"
WILDCARD_PRINCIPAL: Final = "User:*"

_ALLOWED_BY: Final[Mapping[int, frozenset[int]]] = {
    operation: frozenset((Operation.ALL, operation, *implying))
    for operation, implying in (
        *((one, ()) for one in Operation),
        (
            Operation.DESCRIBE,
            (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        ),
        (Operation.DESCRIBE_CONFIGS, (Operation.ALTER_CONFIGS,)),
    )
}
"""Operations whose ALLOW entries allow an operation."""

_Pattern = tuple[int, int, str, str, str]
"""Resource type, pattern type, name, principal, text of the host in ``AclHosts``."""


class AclIndex:
    """ACLs by pattern, principal and host.

    The time of a decision depends on the number of prefix lengths in use, both of names and of
    address ranges, not on the number of ACLs.
    """

    def __init__(self, rows: Iterable[AclRow] = ()) -> None:
        self._rows: dict[_Pattern, dict[str, AclRow]] = {}
        self._prefix_lengths: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Number of prefixed ACLs by resource type and prefix length."""
        self._allowed: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        """Number of ALLOW entries by principal and text of the host, and by operation."""
        self._hosts: Final = AclHosts()
        for row in rows:
            self.add(row)

    def add(self, row: AclRow) -> None:
        """Add an ACL that is not in the index."""
        host = self._hosts.add(row.host)
        self._rows.setdefault(_pattern(row, host), {})[row.acl_id] = row
        if row.pattern_type == PREFIXED:
            self._prefix_lengths[row.resource_type][len(row.resource_name)] += 1
        if row.permission == ALLOW:
            self._allowed[row.principal, host][row.operation] += 1

    def remove(self, row: AclRow) -> None:
        """Remove an ACL that is in the index."""
        host = self._hosts.remove(row.host)
        pattern = _pattern(row, host)
        rows = self._rows[pattern]
        del rows[row.acl_id]
        if not rows:
            del self._rows[pattern]
        if row.pattern_type == PREFIXED:
            _decrement(self._prefix_lengths[row.resource_type], len(row.resource_name))
        if row.permission == ALLOW:
            _decrement(self._allowed[row.principal, host], row.operation)
            if not self._allowed[row.principal, host]:
                del self._allowed[row.principal, host]

    def authorize(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool | None:
        """Return whether an operation is allowed (True) or denied; None: no ACL applies to it."""
        found: bool | None = None
        for row in self._matching(principal, host, resource):
            if row.permission == ALLOW:
                if row.operation in _ALLOWED_BY[operation]:
                    found = True
            elif row.operation in (Operation.ALL, operation):
                return False
        return found

    def allowed_operations(self, principal: str, host: str) -> set[Operation]:
        """Return the operations that ACLs allow on at least one resource."""
        found: set[Operation] = set()
        for peer in self._peers(principal, host):
            for number in self._allowed.get(peer, ()):
                if number == Operation.ALL:
                    return set(Operation)
                if number in _ALLOWED_BY:
                    found.add(Operation(number))
        return found

    def _matching(self, principal: str, host: str, resource: Resource) -> Iterator[AclRow]:
        kind, peers = resource.kind, self._peers(principal, host)
        for pattern_type, name in self._patterns(resource):
            for peer in peers:
                yield from self._rows.get((kind, pattern_type, name, *peer), {}).values()

    def _peers(self, principal: str, host: str) -> set[tuple[str, str]]:
        """Return the principals and hosts of the ACLs that apply to a client."""
        hosts = tuple(self._hosts.texts_of(host))
        return {(one, at) for one in (principal, WILDCARD_PRINCIPAL) for at in hosts}

    def _patterns(self, resource: Resource) -> Iterator[tuple[int, str]]:
        kind, name = resource
        yield LITERAL, name
        if name != WILDCARD:
            yield LITERAL, WILDCARD
        for length in self._prefix_lengths.get(kind, ()):
            if length <= len(name):
                yield PREFIXED, name[:length]


class QuotaIndex:
    """Quotas by entity and name. ``counts``: number of entities with a quota of each name."""

    def __init__(self) -> None:
        self.values: Final[dict[tuple[tuple[tuple[str, str | None], ...], str], float]] = {}
        self.counts: Final[Counter[str]] = Counter()

    def add(self, row: QuotaRow) -> None:
        """Add a quota that is not in the index."""
        self.values[row.entity, row.quota] = row.value
        self.counts[row.quota] += 1

    def remove(self, row: QuotaRow) -> None:
        """Remove a quota that is in the index."""
        del self.values[row.entity, row.quota]
        self.counts[row.quota] -= 1


class AccessPublisher:
    """Metadata publisher with the ACLs, SCRAM credentials and quotas of the committed image.

    Args:
        committed_at_start: end of the records that were committed when the node started, None while
            it is unknown. The image is ready once it includes them, because an earlier one may
            allow what has been revoked. (A follower's high watermark is too low for this, as it is
            at most the end of its own log.)
        has_failed: returns whether the image has stopped following the log. If so, everything is
            denied, because a revoked right would otherwise remain.
        credentials_changed: called after an update that changes credentials, or with a snapshot
            that does. If an update has failed, it is called with the next one.
    """

    def __init__(
        self,
        *,
        committed_at_start: Callable[[], int | None],
        has_failed: Callable[[], bool],
        credentials_changed: Callable[[], object],
    ) -> None:
        self._index = AclIndex()
        self._quotas = QuotaIndex()
        self._image = MetadataImage.empty()
        self._committed_at_start: Final = committed_at_start
        self._has_failed: Final = has_failed
        self._credentials_changed: Final = credentials_changed
        self._credentials: Mapping[Key, Row] | None = None
        """The credentials when their last change was reported; images share an unchanged map."""
        self._is_complete = True
        """False after a failed update, in which case the next one builds the index again."""

    @property
    def name(self) -> str:
        return "AccessPublisher"

    @property
    def is_ready(self) -> bool:
        """Whether ACLs and credentials are as in the committed log."""
        committed = self._committed_at_start()
        has_caught_up = committed is not None and self._image.offset + 1 >= committed
        return has_caught_up and self._is_complete and not self._has_failed()

    def authorize(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool | None:
        """Return the decision of ``AclIndex.authorize``. Until this is ready, deny everything."""
        if not self.is_ready:
            return False
        return self._index.authorize(principal, host, operation, resource)

    def allowed_operations(self, principal: str, host: str) -> set[Operation]:
        """Return the operations that ACLs allow on at least one resource."""
        return self._index.allowed_operations(principal, host)

    def find_credential(self, mechanism: int, user: str) -> ScramRow | None:
        """Return the credential of a user; None without one, and until this is ready."""
        return self._image.find(ScramRow, user, mechanism) if self.is_ready else None

    def connection_rate(self, host: str) -> float | None:
        """Return how many connections per second an address may open; None without a quota.

        The quota is that of the address, in either form of IPv6, or otherwise that of all
        addresses. Quotas of host names have no effect, because a node does not resolve names.
        """
        try:
            forms = (host, str(ipaddress.ip_address(host)), None)
        except ValueError:
            forms = (host, host, None)
        for ip in forms:
            rate = self.quota_of((("ip", ip),), CONNECTION_RATE)
            if rate is not None:
                return rate
        return None

    def has_quota(self, name: str) -> bool:
        """Return whether any entity has a quota of this name."""
        return self._quotas.counts[name] > 0

    def quota_of(self, entity: tuple[tuple[str, str | None], ...], name: str) -> float | None:
        """Return the quota of exactly this entity, sorted by type; None if it is not set."""
        return self._quotas.values.get((entity, name))

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> Steps:
        """Apply an update's changes, or replace all ACLs and quotas with a snapshot's, in steps.

        Until the last step, decisions are based on the previous image.
        """
        is_delta = self._is_complete and isinstance(manifest, LogDeltaManifest)
        return begin(self._update(image, update.row_changes() if is_delta else None))

    def _update(self, image: MetadataImage, changes: Iterator[RowChange] | None) -> Iterator[None]:
        """Update the indexes. ``changes`` None: build them from the image."""
        try:
            changed = None if changes is None else (yield from _changes_of_index(changes))
            if changed is None:
                index, quotas = AclIndex(), QuotaIndex()
                acls, limits = image.map(Entity.ACL).values(), image.map(Entity.QUOTA).values()
                yield from for_each_in_steps(
                    cast("Iterable[AclRow]", acls), index.add, ROWS_PER_STEP
                )
                yield
                yield from for_each_in_steps(
                    cast("Iterable[QuotaRow]", limits), quotas.add, ROWS_PER_STEP
                )
                self._index, self._quotas = index, quotas
            else:
                for change in changed:
                    if isinstance(change.before, AclRow):
                        self._index.remove(change.before)
                    if isinstance(change.after, AclRow):
                        self._index.add(change.after)
                    if isinstance(change.before, QuotaRow):
                        self._quotas.remove(change.before)
                    if isinstance(change.after, QuotaRow):
                        self._quotas.add(change.after)
        except BaseException:
            self._is_complete, self._image = False, image
            raise
        self._is_complete, self._image = True, image
        credentials = image.maps.get(Entity.SCRAM)
        if credentials is not self._credentials:
            self._credentials = credentials
            self._credentials_changed()

    def on_controller_change(self, leader: object) -> None:
        """Do nothing: committed records do not depend on the leader."""

    def close(self) -> None:
        """Do nothing."""


def _changes_of_index(
    changes: Iterator[RowChange],
) -> Generator[None, None, list[RowChange] | None]:
    """Return the changes of ACLs and quotas; None if there are too many for one step."""
    found: list[RowChange] = []

    def collect(change: RowChange) -> None:
        if change.entity in (Entity.ACL, Entity.QUOTA):
            found.append(change)

    yield from for_each_in_steps(changes, collect, CHANGES_PER_STEP)
    return found if len(found) <= ROWS_PER_STEP else None


def _pattern(row: AclRow, host: str) -> _Pattern:
    return row.resource_type, row.pattern_type, row.resource_name, row.principal, host


def _decrement(counts: Counter[T], key: T) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
