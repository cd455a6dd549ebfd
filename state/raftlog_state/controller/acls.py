"""Changes of ACLs, and the search for ACLs that match a filter.

A search for the ACLs of many filters compares each filter with each ACL. ``AclSearch`` divides the
search into steps, between which the state may change.

Source: Kafka 4.4 ``AclControlManager``, ``AclBindingFilter``, ``ResourcePatternFilter``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from raftlog_state.enums import (
    ACL_OPERATIONS,
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    PATTERN_TYPES,
)
from raftlog_state.image import AclContent, AclRow, Entity, Key, acl_content
from raftlog_state.image.acl_hosts import WILDCARD, invalid_range_reason, is_range
from raftlog_state.image.record_versions import LEVEL_CIDR_ACLS
from raftlog_state.records import AccessControlEntryRecord, RemoveAccessControlEntryRecord

from .api_exception import (
    POLICY_VIOLATION,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    ApiException,
    check_uuid,
    enum_number,
)
from .change_requests import AddAcl, RemoveAcl
from .controller_state import ControllerState
from .pending_state import PendingState, write_in_steps

ANY: Final = 1
MATCH: Final = 2
"""Values of Kafka's ACL enums that only filters may have.

MATCH is a pattern type. It matches literal, prefixed and wildcard patterns that match a resource
with the filter's name.
"""

LITERAL: Final = 3
PREFIXED: Final = 4

COMPARISONS_PER_STEP: Final = 20_000
"""Pairs of a filter and an ACL that one step of a search compares."""
FILTERS_PER_STEP: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AclBinding:
    """ACL of a request, with the numbers of Kafka's enums."""

    resource_type: int
    resource_name: str
    principal: str
    operation: int
    permission: int
    pattern_type: int = LITERAL
    host: str = WILDCARD

    @property
    def content(self) -> AclContent:
        """The content as ``ControllerState`` indexes it."""
        return acl_content(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Filter of ACLs, with the numbers of Kafka's enums. ANY and None match everything."""

    resource_type: int = ANY
    resource_name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    @property
    def content(self) -> AclContent | None:
        """The content that an ACL must have to match; None if other contents may match, too."""
        if (
            ANY in (self.resource_type, self.operation, self.permission)
            or self.pattern_type in (ANY, MATCH)
            or self.resource_name is None
            or self.principal is None
            or self.host is None
        ):
            return None
        return acl_content(self)

    def matches(self, row: AclRow) -> bool:
        """Return whether an ACL matches the filter, which must be valid."""
        return (
            self.resource_type in (ANY, row.resource_type)
            and self.principal in (None, row.principal)
            and self.host in (None, row.host)
            and self.operation in (ANY, row.operation)
            and self.permission in (ANY, row.permission)
            and self._matches_pattern(row)
        )

    def _matches_pattern(self, row: AclRow) -> bool:
        if self.pattern_type not in (ANY, MATCH, row.pattern_type):
            return False
        if self.resource_name is None or self.resource_name == row.resource_name:
            return True
        if self.pattern_type != MATCH:
            return False
        if row.pattern_type == LITERAL:
            return row.resource_name == WILDCARD
        return self.resource_name.startswith(row.resource_name)

    def check(self) -> None:
        """Raise ``ApiException`` if the filter has a value that Kafka does not know."""
        reason = None
        if not (
            _is_known(self.resource_type, ACL_RESOURCE_TYPES)
            and (_is_known(self.pattern_type, PATTERN_TYPES) or self.pattern_type == MATCH)
        ):
            reason = "Unknown patternFilter"
        elif not (
            _is_known(self.operation, ACL_OPERATIONS)
            and _is_known(self.permission, ACL_PERMISSIONS)
        ):
            reason = "Unknown entryFilter"
        if reason is not None:
            raise ApiException("the ACL filter", reason, "use values that this release knows")


def create_acls(
    bindings: Sequence[AclBinding], state: PendingState
) -> Generator[None, None, list[ApiException | None]]:
    """Add ACLs unless ACLs with equal content exist; return the refusal of each one."""
    found: list[ApiException | None] = []
    for binding in bindings:
        try:
            _write_acl(binding, None, state)
            found.append(None)
        except ApiException as refused:
            found.append(refused)
        yield from state.pause()
    return found


Matches: TypeAlias = list[list[AclRow] | ApiException]
"""ACLs that match each filter, or its refusal."""


class AclSearch:
    """Search, in steps, for the ACLs that match each of several filters.

    ``found`` contains each filter's result, complete after the last step. ``count_max`` limits the
    number of ACLs in all results together; None: no limit.
    """

    def __init__(self, filters: Sequence[AclFilter], *, count_max: int | None = None) -> None:
        self.found: Final[Matches] = [[] for _ in filters]
        self._filters: Final = filters
        self._left = count_max

    def steps(self, keys: Sequence[Key]) -> Iterator[Callable[[ControllerState], None]]:
        """Yield the steps of a search among the ACLs with these keys; run each before the next one.

        A step raises ``ApiException`` if there are more ACLs than ``count_max``.
        """
        for start in range(0, len(self._filters), FILTERS_PER_STEP):
            numbers = range(start, min(start + FILTERS_PER_STEP, len(self._filters)))
            open_numbers: list[int] = []
            yield partial(self._begin, numbers, open_numbers)
            if open_numbers:
                size = COMPARISONS_PER_STEP // len(open_numbers)
                for at in range(0, len(keys), size):
                    yield partial(self._compare, open_numbers, keys[at : at + size])

    def _begin(
        self, numbers: Iterable[int], open_numbers: list[int], state: ControllerState
    ) -> None:
        """Check filters, and look up those of one content; append others to ``open_numbers``."""
        for number in numbers:
            wanted = self._filters[number]
            try:
                wanted.check()
            except ApiException as refused:
                self.found[number] = refused
                continue
            content = wanted.content
            if content is None:
                open_numbers.append(number)
            else:
                self._add(number, state.acls_with(content))

    def _compare(self, numbers: Sequence[int], keys: Sequence[Key], state: ControllerState) -> None:
        rows = [row for key in keys if (row := state.find(AclRow, *key)) is not None]
        for number in numbers:
            matches = self._filters[number].matches
            self._add(number, [row for row in rows if matches(row)])

    def _add(self, number: int, rows: Sequence[AclRow]) -> None:
        found = self.found[number]
        assert isinstance(found, list), "a refused filter has no matches"
        found += rows
        if self._left is None:
            return
        self._left -= len(rows)
        if self._left < 0:
            reason = "Unable to perform excessively large batch operation."
            raise ApiException("the ACL filters", reason, "use fewer filters", POLICY_VIOLATION)


def delete_acls(
    filters: Sequence[AclFilter], state: PendingState
) -> Generator[None, None, Matches]:
    """Remove the ACLs that match each filter; return them sorted by id, or the filter's refusal.

    All filters match the state before the request.
    """
    return remove_found_acls(_search(filters, state.current), state)


def remove_found_acls(found: Matches, state: PendingState) -> Generator[None, None, Matches]:
    """Remove the ACLs that a search has found; return those that still existed."""
    remaining: Matches = []
    removed: dict[str, None] = {}
    for one in found:
        if isinstance(one, ApiException):
            remaining.append(one)
            continue
        rows = [row for row in one if state.current.find(AclRow, row.acl_id) is not None]
        removed.update((row.acl_id, None) for row in rows)
        remaining.append(rows)
    for acl_id in removed:
        state.write(RemoveAccessControlEntryRecord(id=acl_id))
        yield from state.pause()
    return remaining


def describe_acls(wanted: AclFilter, state: ControllerState) -> list[AclRow]:
    """Return the ACLs that match a filter, sorted by id. Raises ``ApiException``."""
    (found,) = _search([wanted], state)
    if isinstance(found, ApiException):
        raise found
    return found


def _search(filters: Sequence[AclFilter], state: ControllerState) -> Matches:
    search = AclSearch(filters)
    for step in search.steps(sorted(state.keys(Entity.ACL))):
        step(state)
    return search.found


@write_in_steps.register
def add_acl(change: AddAcl, state: PendingState) -> None:
    """Add an ACL unless one with equal content exists."""
    what = f"ACL for {change.principal!r} on {change.resource_name!r}"
    binding = AclBinding(
        resource_type=enum_number(ACL_RESOURCE_TYPES, change.resource_type, what),
        resource_name=change.resource_name,
        pattern_type=enum_number(PATTERN_TYPES, change.pattern_type, what),
        principal=change.principal,
        host=change.host,
        operation=enum_number(ACL_OPERATIONS, change.operation, what),
        permission=enum_number(ACL_PERMISSIONS, change.permission, what),
    )
    _write_acl(binding, change.acl_id, state)


@write_in_steps.register
def remove_acl(change: RemoveAcl, state: PendingState) -> None:
    """Remove the ACL with an id, or all that match the columns that are set."""
    what = "ACLs" if change.acl_id is None else f"ACL {change.acl_id}"
    wanted = AclFilter(
        resource_type=_number_or_any(ACL_RESOURCE_TYPES, change.resource_type, what),
        resource_name=change.resource_name,
        pattern_type=_number_or_any(PATTERN_TYPES, change.pattern_type, what),
        principal=change.principal,
        host=change.host,
        operation=_number_or_any(ACL_OPERATIONS, change.operation, what),
        permission=_number_or_any(ACL_PERMISSIONS, change.permission, what),
    )
    if change.acl_id is not None:
        row = state.current.find(AclRow, change.acl_id)
        rows = [] if row is None else [row]
    elif wanted == AclFilter():
        reason = "without a filter all ACLs would be removed"
        raise ApiException(what, reason, "set acl_id, or at least one column of the ACL")
    else:
        rows = state.current.rows_of(AclRow)
    found = [row for row in rows if wanted.matches(row)]
    if not found:
        raise ApiException(
            what, "no ACL matches the filter", "correct the filter", RESOURCE_NOT_FOUND
        )
    for row in found:
        state.write(RemoveAccessControlEntryRecord(id=row.acl_id))


# --- helpers --------------------------------------------------------------------------------------


def _write_acl(binding: AclBinding, acl_id: str | None, state: PendingState) -> None:
    """Write the record of an ACL unless an equal one exists. ``acl_id`` None: a random one."""
    what = f"ACL for {binding.principal!r} on {binding.resource_name!r}"
    _check_binding(binding, what)
    _check_host(binding.host, state.current.level, what)
    if state.current.has_acl(binding.content):
        return
    if acl_id is None:
        acl_id = state.random_uuid()
    else:
        check_uuid(acl_id, what)
        if state.current.find(AclRow, acl_id) is not None:
            raise ApiException(what, f"ACL id {acl_id} already exists", "leave acl_id out")
    state.write(
        AccessControlEntryRecord(
            id=acl_id,
            resource_type=binding.resource_type,
            resource_name=binding.resource_name,
            pattern_type=binding.pattern_type,
            principal=binding.principal,
            host=binding.host,
            operation=binding.operation,
            permission_type=binding.permission,
        )
    )


def _check_binding(binding: AclBinding, what: str) -> None:
    reason = None
    if binding.resource_type not in ACL_RESOURCE_TYPES:
        reason = f"Invalid resourceType {_filter_name(binding.resource_type)}"
    elif binding.pattern_type not in PATTERN_TYPES:
        is_match = binding.pattern_type == MATCH
        word = "MATCH" if is_match else _filter_name(binding.pattern_type)
        reason = f"Invalid patternType {word}"
    elif binding.operation not in ACL_OPERATIONS:
        reason = f"Invalid operation {_filter_name(binding.operation)}"
    elif binding.permission not in ACL_PERMISSIONS:
        reason = f"Invalid permissionType {_filter_name(binding.permission)}"
    elif not binding.resource_name:
        reason = "Resource name should not be empty"
    elif ":" not in binding.principal:
        reason = (
            f"Could not parse principal from `{binding.principal}` (no colon is present separating "
            "the principal type from the principal name)"
        )
    if reason is not None:
        raise ApiException(what, reason, "correct the ACL")


def _check_host(host: str, level: int, what: str) -> None:
    """Refuse address ranges below the metadata.version level that they require.

    An authorizer of an earlier release takes a range for the text of an address, so a DENY would
    have no effect.
    """
    if not host:
        raise ApiException(what, "Host pattern cannot be null or empty", "correct the ACL")
    if not is_range(host):
        return
    if level < LEVEL_CIDR_ACLS:
        reason = f"a range of addresses requires metadata.version {LEVEL_CIDR_ACLS}"
        remedy = "upgrade metadata.version, or name single addresses"
        raise ApiException(what, f"{reason} or higher, not {level}", remedy, UNSUPPORTED_VERSION)
    invalid = invalid_range_reason(host)
    if invalid is not None:
        raise ApiException(what, invalid, "correct the host")


def _filter_name(number: int) -> str:
    return "ANY" if number == ANY else "UNKNOWN"


def _is_known(number: int, names: Mapping[int, str]) -> bool:
    return number == ANY or number in names


def _number_or_any(names: Mapping[int, str], word: str | int | None, what: str) -> int:
    return ANY if word is None else enum_number(names, word, what)
