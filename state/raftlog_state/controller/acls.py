"""Changes of ACLs, client quotas and SCRAM credentials.

Source: Kafka 4.3 ``AclControlManager``, ``ClientQuotaControlManager``, ``ScramControlManager``,
``QuotaConfig``, ``ScramFormatter``.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
from collections.abc import Mapping
from typing import Final

from raftlog_state.enums import (
    ACL_OPERATIONS,
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    PATTERN_TYPES,
    SCRAM_MECHANISMS,
)
from raftlog_state.image import AclRow, QuotaRow, ScramRow, quota_entity_key
from raftlog_state.image.record_versions import LEVEL_SCRAM
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    EntityData,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

from .api_exception import (
    RESOURCE_NOT_FOUND,
    UNACCEPTABLE_CREDENTIAL,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
    ApiException,
    check_uuid,
    enum_number,
)
from .change_requests import AddAcl, RemoveAcl, RemoveQuota, RemoveScram, SetQuota, SetScram
from .dispatch import write
from .pending_state import PendingState

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
SALT_BYTES: Final = 24

_HASHES: Final = {1: "sha256", 2: "sha512"}
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63})*\.?")
_LONG_MAX: Final = 2**63 - 1
_INT_MAX: Final = 2**31 - 1
_ENTITY_TYPES: Final = ("user", "client-id", "ip")
_CLIENT_QUOTAS: Final[Mapping[str, float | None]] = {
    "producer_byte_rate": _LONG_MAX,
    "consumer_byte_rate": _LONG_MAX,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
_IP_QUOTAS: Final[Mapping[str, float | None]] = {"connection_creation_rate": _INT_MAX}
"""Quotas by name, with the maximum of integral ones; None for quotas of type double."""


# --- ACLs -----------------------------------------------------------------------------------------


@write.register
def add_acl(change: AddAcl, state: PendingState) -> None:
    """Add an ACL, unless there is one with equal content."""
    what = f"ACL for {change.principal!r} on {change.resource_name!r}"
    resource_type = enum_number(ACL_RESOURCE_TYPES, change.resource_type, what)
    pattern_type = enum_number(PATTERN_TYPES, change.pattern_type, what)
    operation = enum_number(ACL_OPERATIONS, change.operation, what)
    permission = enum_number(ACL_PERMISSIONS, change.permission, what)
    reason = None
    if not change.resource_name:
        reason = "Resource name should not be empty"
    elif ":" not in change.principal:
        reason = (
            f"Could not parse principal from `{change.principal}` (no colon is present separating "
            "the principal type from the principal name)"
        )
    elif not change.host:
        reason = "Host should not be empty"
    if reason is not None:
        raise ApiException(what, reason, "correct the ACL")
    content = (
        resource_type,
        change.resource_name,
        pattern_type,
        change.principal,
        change.host,
        operation,
        permission,
    )
    if state.current.has_acl(content):
        return
    acl_id = change.acl_id
    if acl_id is None:
        acl_id = state.random_uuid()
    else:
        check_uuid(acl_id, what)
        if state.current.find(AclRow, acl_id) is not None:
            raise ApiException(what, f"ACL id {acl_id} already exists", "leave acl_id out")
    state.write(
        AccessControlEntryRecord(
            id=acl_id,
            resource_type=resource_type,
            resource_name=change.resource_name,
            pattern_type=pattern_type,
            principal=change.principal,
            host=change.host,
            operation=operation,
            permission_type=permission,
        )
    )


@write.register
def remove_acl(change: RemoveAcl, state: PendingState) -> None:
    """Remove the ACL with an id, or all that match the columns that are set."""
    what = "ACLs" if change.acl_id is None else f"ACL {change.acl_id}"
    wanted = _acl_filter(change, what)
    if not wanted:
        reason = "without a filter all ACLs would be removed"
        raise ApiException(what, reason, "set acl_id, or at least one column of the ACL")
    if change.acl_id is not None:
        row = state.current.find(AclRow, change.acl_id)
        rows = [] if row is None else [row]
    else:
        rows = state.current.rows_of(AclRow)
    found = [row for row in rows if all(getattr(row, name) == at for name, at in wanted.items())]
    if not found:
        raise ApiException(
            what, "no ACL matches the filter", "correct the filter", RESOURCE_NOT_FOUND
        )
    for row in found:
        state.write(RemoveAccessControlEntryRecord(id=row.acl_id))


def _acl_filter(change: RemoveAcl, what: str) -> dict[str, str | int]:
    enums = {
        "resource_type": ACL_RESOURCE_TYPES,
        "pattern_type": PATTERN_TYPES,
        "operation": ACL_OPERATIONS,
        "permission": ACL_PERMISSIONS,
    }
    found: dict[str, str | int] = {}
    for name in ("acl_id", "resource_name", "principal", "host", *enums):
        value = getattr(change, name)
        if value is not None:
            found[name] = enum_number(enums[name], value, what) if name in enums else value
    return found


# --- quotas ---------------------------------------------------------------------------------------


@write.register
def set_quota(change: SetQuota, state: PendingState) -> None:
    """Set a client quota; an equal value is not written."""
    entity, what = _validate_entity(change.entity, change.quota)
    quotas = _IP_QUOTAS if "ip" in change.entity else _CLIENT_QUOTAS
    reason = None
    if change.quota not in quotas:
        reason = f"Invalid configuration key {change.quota}; valid keys are {', '.join(quotas)}"
    elif not change.limit > 0 or math.isinf(change.limit):
        reason = f"Quota {change.quota} must be greater than 0 and finite"
    else:
        high = quotas[change.quota]
        if high is not None and change.limit > high:
            reason = f"Proposed value for {change.quota} is too large: the maximum is {high}"
        elif high is not None and abs(change.limit % 1.0) > 1e-6:
            reason = f"{change.quota} cannot be a fractional value"
    if reason is not None:
        raise ApiException(what, reason, "correct the quota")
    row = state.current.find(QuotaRow, quota_entity_key(entity), change.quota)
    if row is None or row.value != change.limit:
        parts = _entity_data(entity)
        state.write(ClientQuotaRecord(entity=parts, key=change.quota, value=change.limit))


@write.register
def remove_quota(change: RemoveQuota, state: PendingState) -> None:
    """Remove a client quota, if it is set, as in Kafka."""
    entity, _ = _validate_entity(change.entity, change.quota)
    if state.current.find(QuotaRow, quota_entity_key(entity), change.quota) is not None:
        state.write(ClientQuotaRecord(entity=_entity_data(entity), key=change.quota, remove=True))


def _validate_entity(
    given: Mapping[str, str | None], quota: str
) -> tuple[tuple[tuple[str, str | None], ...], str]:
    what = f"quota {quota!r} of {quota_entity_key(tuple(given.items()))}"
    unknown = sorted(set(given) - set(_ENTITY_TYPES))
    ip = given.get("ip")
    reason = None
    if not given:
        reason = "Invalid empty client quota entity"
    elif unknown:
        reason = (
            f"Unhandled client quota entity type: {unknown[0]}; known types are "
            f"{', '.join(_ENTITY_TYPES)}"
        )
    elif "" in given.values():
        reason = "Empty entity name not supported; null is the default entity"
    elif "ip" in given and len(given) > 1:
        reason = (
            "Invalid quota entity combination, IP entity should not be combined with User or "
            "ClientId"
        )
    elif ip is not None and not _is_host(ip):
        reason = f"{ip} is not a valid IP or resolvable host"
    if reason is not None:
        raise ApiException(what, reason, "correct the entity")
    return tuple(sorted(given.items())), what


def _is_host(text: str) -> bool:
    """Return whether ``text`` is an IP address or a valid host name. Kafka also resolves it."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None and not text.replace(".", "").isdigit()
    return True


def _entity_data(entity: tuple[tuple[str, str | None], ...]) -> tuple[EntityData, ...]:
    return tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity)


# --- credentials ----------------------------------------------------------------------------------


@write.register
def set_scram(change: SetScram, state: PendingState) -> None:
    """Create or replace a user's SCRAM credential."""
    what = f"SCRAM credential of {change.user!r}"
    mechanism = _validate_mechanism(change.user, change.mechanism, what, state)
    reason = None
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        reason = f"Too few or too many iterations: not in {ITERATIONS_MIN} to {ITERATIONS_MAX}"
    elif (change.password is None) == (change.salted_password is None):
        reason = "exactly one of password and salted_password must be set"
    elif change.password == "":
        reason = "the password is empty"
    elif change.salted_password is not None and not change.salt:
        reason = "salted_password is set without salt"
    if reason is not None:
        raise ApiException(what, reason, "correct the credential", UNACCEPTABLE_CREDENTIAL)
    name = _HASHES[mechanism]
    salt = change.salt or state.rng.randbytes(SALT_BYTES)
    salted = change.salted_password
    if salted is None:
        assert change.password is not None
        salted = hashlib.pbkdf2_hmac(name, change.password.encode(), salt, change.iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    state.write(
        UserScramCredentialRecord(
            name=change.user,
            mechanism=mechanism,
            salt=salt,
            stored_key=hashlib.new(name, client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", name),
            iterations=change.iterations,
        )
    )


@write.register
def remove_scram(change: RemoveScram, state: PendingState) -> None:
    """Delete a user's SCRAM credential; it must exist."""
    what = f"SCRAM credential of {change.user!r}"
    mechanism = _validate_mechanism(change.user, change.mechanism, what, state)
    if state.current.find(ScramRow, change.user, mechanism) is None:
        reason = "Attempt to delete a user credential that does not exist"
        raise ApiException(what, reason, "correct user and mechanism", RESOURCE_NOT_FOUND)
    state.write(RemoveUserScramCredentialRecord(name=change.user, mechanism=mechanism))


def _validate_mechanism(user: str, word: str | int, what: str, state: PendingState) -> int:
    if state.current.level < LEVEL_SCRAM:
        reason = f"The current metadata.version {state.current.level} does not support SCRAM"
        remedy = f"upgrade metadata.version to {LEVEL_SCRAM} or higher first"
        raise ApiException(what, reason, remedy, UNSUPPORTED_VERSION)
    if not user:
        raise ApiException(what, "Username must not be empty", "set user", UNACCEPTABLE_CREDENTIAL)
    try:
        return enum_number(SCRAM_MECHANISMS, word, what)
    except ApiException as refused:
        refused.kafka_code = UNSUPPORTED_SASL_MECHANISM
        raise
