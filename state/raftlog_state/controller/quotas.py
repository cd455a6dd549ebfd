"""Changes of client quotas, and the quotas that match a filter.

Source: Kafka 4.3 ``ClientQuotaControlManager``, ``QuotaConfig``, ``ClientQuotasImage``.
"""

from __future__ import annotations

import enum
import ipaddress
import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from raftlog.limits import INT32_MAX, INT64_MAX
from raftlog_state.image import QuotaRow, quota_entity_key
from raftlog_state.records import ClientQuotaRecord, EntityData

from .api_exception import INVALID_REQUEST, UNSUPPORTED_VERSION, ApiException
from .change_requests import RemoveQuota, SetQuota
from .controller_state import ControllerState
from .pending_state import PendingState, write_in_steps

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types (user, client-id, ip) with names, None for the default, sorted by type."""

_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.?")
_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_CLIENT_QUOTAS: Final[Mapping[str, float | None]] = {
    "producer_byte_rate": INT64_MAX,
    "consumer_byte_rate": INT64_MAX,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_QUOTAS: Final[Mapping[str, float | None]] = {"connection_creation_rate": INT32_MAX}
"""Quotas by name, with the maximum of integral quotas; None for quotas of type double."""


class QuotaMatch(enum.IntEnum):
    """How a component of a quota filter matches (Kafka: ``DescribeClientQuotasRequest``)."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """Quotas of an entity to set or, if None, to remove. ``entity`` may be in any order."""

    entity: QuotaEntity
    quotas: Sequence[tuple[str, float | None]]


@dataclass(frozen=True, slots=True)
class QuotaComponent:
    """Component of a quota filter; ``name`` is set for an exact match."""

    entity_type: str
    match: int
    name: str | None = None


def alter_client_quotas(
    alterations: Sequence[QuotaAlteration], state: PendingState
) -> Generator[None, None, dict[QuotaEntity, ApiException | None]]:
    """Set and remove client quotas; return the refusal of each entity, whose quotas then stay.

    As in Kafka, an entity that occurs twice is refused, although its first alteration is written.
    """
    found: dict[QuotaEntity, ApiException | None] = {}
    for alteration in alterations:
        entity = _sorted(alteration.entity)
        counts = Counter(name for name, _ in alteration.quotas)
        twice = next((name for name, count in counts.items() if count > 1), None)
        what = f"quotas of {quota_entity_key(entity)}"
        if entity in found:
            reason = f"Ignoring duplicate entity {quota_entity_key(entity)}"
            found[entity] = ApiException(what, reason, "alter each entity once")
        elif twice is not None:
            reason = (
                f"Duplicate quota key {twice} not updating quota for this entity "
                f"{quota_entity_key(entity)}"
            )
            found[entity] = ApiException(what, reason, "alter each quota once")
        else:
            found[entity] = state.attempt(partial(_alter, entity, alteration.quotas, state))
        yield from state.pause()
    return found


class QuotaFilter:
    """Filter of the quotas whose entities match all components.

    ``strict``: exclude entities that also have other types. Raises ``ApiException``.
    """

    def __init__(self, components: Sequence[QuotaComponent], *, strict: bool) -> None:
        self._exact, self._types = _parse_filter(components)
        self._strict = strict

    def matches(self, row: QuotaRow) -> bool:
        """Return whether a quota matches."""
        parts = dict(row.entity)
        if self._strict and len(parts) != len(self._exact) + len(self._types):
            return False
        return self._exact.items() <= parts.items() and self._types <= parts.keys()


def quotas_by_entity(rows: Iterable[QuotaRow]) -> dict[QuotaEntity, dict[str, float]]:
    """Return the values of quotas by entity and name."""
    found: dict[QuotaEntity, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row.entity, {})[row.quota] = row.value
    return found


def describe_client_quotas(
    components: Sequence[QuotaComponent], state: ControllerState, *, strict: bool
) -> dict[QuotaEntity, dict[str, float]]:
    """Return the quotas of the entities that a filter matches, sorted by entity.

    Raises ``ApiException``.
    """
    wanted = QuotaFilter(components, strict=strict)
    return quotas_by_entity(filter(wanted.matches, state.rows_of(QuotaRow)))


@write_in_steps.register
def set_quota(change: SetQuota, state: PendingState) -> None:
    """Set a client quota; an equal value is not written."""
    _alter(_sorted(change.entity.items()), [(change.quota, change.limit)], state)


@write_in_steps.register
def remove_quota(change: RemoveQuota, state: PendingState) -> None:
    """Remove a client quota, if it is set, as in Kafka."""
    _alter(_sorted(change.entity.items()), [(change.quota, None)], state)


# --- helpers --------------------------------------------------------------------------------------


def _sorted(entity: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    return tuple(sorted(dict(entity).items()))


def _alter(
    entity: QuotaEntity, quotas: Sequence[tuple[str, float | None]], state: PendingState
) -> None:
    _check_entity(entity)
    parts = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    for name, limit in quotas:
        row = state.current.find(QuotaRow, quota_entity_key(entity), name)
        if limit is None:
            if row is not None:
                state.write(ClientQuotaRecord(entity=parts, key=name, remove=True))
            continue
        _check_limit(entity, name, limit)
        if row is None or row.value != limit:
            state.write(ClientQuotaRecord(entity=parts, key=name, value=limit))


def _check_limit(entity: QuotaEntity, name: str, limit: float) -> None:
    quotas = _IP_QUOTAS if "ip" in dict(entity) else _CLIENT_QUOTAS
    reason = None
    if name not in quotas:
        reason = f"Invalid configuration key {name}; valid keys are {', '.join(quotas)}"
    elif not limit > 0 or math.isinf(limit):
        reason = f"Quota {name} must be greater than 0 and finite"
    else:
        high = quotas[name]
        if high is not None and limit > high:
            kind = "an INT" if high == INT32_MAX else "a LONG"
            reason = f"Proposed value for {name} is too large for {kind}: the maximum is {high}"
        elif high is not None and abs(limit % 1.0) > 1e-6:
            reason = f"{name} cannot be a fractional value"
    if reason is not None:
        what = f"quota {name!r} of {quota_entity_key(entity)}"
        raise ApiException(what, reason, "correct the quota")


def _check_entity(entity: QuotaEntity) -> None:
    parts = dict(entity)
    unknown = sorted(parts.keys() - set(_ENTITY_TYPES))
    empty = sorted(kind for kind, name in entity if name == "")
    ip = parts.get("ip")
    reason = None
    if not entity:
        reason = "Invalid empty client quota entity"
    elif unknown:
        reason = (
            f"Unhandled client quota entity type: {unknown[0]}; known types are "
            f"{', '.join(_ENTITY_TYPES)}"
        )
    elif empty:
        reason = f"Empty {empty[0]} not supported; null is the default entity"
    elif "ip" in parts and len(parts) > 1:
        reason = (
            "Invalid quota entity combination, IP entity should not be combined with User or "
            "ClientId"
        )
    elif ip is not None and not _is_host(ip):
        reason = f"{ip} is not a valid IP or resolvable host"
    if reason is not None:
        what = f"quotas of {quota_entity_key(entity)}"
        raise ApiException(what, reason, "correct the entity")


def _is_host(text: str) -> bool:
    """Return whether ``text`` is an IP address or a valid host name. Kafka also resolves it."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None and not text.replace(".", "").isdigit()
    return True


def _parse_filter(
    components: Sequence[QuotaComponent],
) -> tuple[dict[str, str | None], set[str]]:
    """Return the names that must be equal, and the types with any name. Raises ``ApiException``."""
    exact: dict[str, str | None] = {}
    types: set[str] = set()
    for one in components:
        reason, code = None, INVALID_REQUEST
        if not one.entity_type:
            reason = "Invalid empty entity type"
        elif one.entity_type in exact or one.entity_type in types:
            reason = f"Entity type {one.entity_type} cannot appear more than once in the filter"
        elif one.entity_type not in _ENTITY_TYPES:
            reason, code = f"Unsupported entity type {one.entity_type}", UNSUPPORTED_VERSION
        elif one.match not in tuple(QuotaMatch):
            reason = f"Unknown match type {one.match}"
        elif one.match == QuotaMatch.EXACT and one.name is None:
            reason = "Request specified MATCH_TYPE_EXACT, but set match string to null"
        elif one.match != QuotaMatch.EXACT and one.name is not None:
            word = QuotaMatch(one.match).name
            reason = f"Request specified MATCH_TYPE_{word}, but also specified a match string"
        if reason is not None:
            raise ApiException("the quota filter", reason, "correct the filter", code)
        if one.match == QuotaMatch.SPECIFIED:
            types.add(one.entity_type)
        else:
            exact[one.entity_type] = one.name
    asked = types | exact.keys()
    if "ip" in asked and len(asked) > 1:
        reason = (
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component"
        )
        raise ApiException("the quota filter", reason, "correct the filter")
    return exact, types
