"""Differences as Strimzi resources: KafkaTopic, and KafkaUser with ACLs and quotas.

A resource is complete: if anything differs in a topic or user, it is declared as it is in the
second state. The name of a resource must be a DNS subdomain. A topic's name may differ from the
resource's, but a user's name may not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from raftlog_state.enums import (
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    PATTERN_TYPES,
    enum_name,
)
from raftlog_state.image import AclRow, MetadataImage, QuotaRow, ScramRow

from .exported import (
    Declared,
    Exported,
    ExportedTopic,
    acl_text,
    declared,
    distinct_name,
    entity_text,
    operation_name,
)

Value: TypeAlias = "str | int | float | Mapping[str, Value] | Sequence[Value]"
"""Value of a YAML document."""

API_VERSION: Final = "kafka.strimzi.io/v1"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_LENGTH_MAX: Final = 253
_USER: Final = "User:"
_RESOURCES: Final[Mapping[str, str]] = {
    "TOPIC": "topic",
    "GROUP": "group",
    "CLUSTER": "cluster",
    "TRANSACTIONAL_ID": "transactionalId",
}
_PATTERNS: Final[Mapping[str, str]] = {"LITERAL": "literal", "PREFIXED": "prefix"}
_OPERATIONS: Final = frozenset(
    {
        *("Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction"),
        *("AlterConfigs", "DescribeConfigs", "IdempotentWrite", "All"),
    }
)
_RATE: Final = "controllerMutationRate"
_QUOTAS: Final[Mapping[str, str]] = {
    "producer_byte_rate": "producerByteRate",
    "consumer_byte_rate": "consumerByteRate",
    "request_percentage": "requestPercentage",
    "controller_mutation_rate": _RATE,
}
_SCRAM: Final = "SCRAM-SHA-512"
_PLAIN_KEY: Final = re.compile(r"(?!(?:yes|no|on|off|true|false|null)$)[a-z][A-Za-z]+")
"""A key that is a text even without quotes."""


def export_strimzi(before: MetadataImage, after: MetadataImage, *, cluster: str) -> Exported:
    """Return the resources of what differs. ``cluster``: the name of their Kafka resource."""
    found = declared(before, after)
    resources = [*_topics(found, cluster), *_users(found, after, cluster)]
    lines: list[str] = []
    for resource in resources:
        lines.extend(("---", *yaml_lines(resource)))
    found.left_out.extend(f"{what}: deleted; delete its resource" for what in found.deleted)
    return Exported(tuple(lines), tuple(dict.fromkeys(found.left_out)))  # a quota may occur twice


def _resource(kind: str, name: str, cluster: str, spec: Mapping[str, Value]) -> Mapping[str, Value]:
    metadata: Mapping[str, Value] = {"name": name, "labels": {"strimzi.io/cluster": cluster}}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


# --- topics ---------------------------------------------------------------------------------------


def _topics(found: Declared, cluster: str) -> Iterator[Mapping[str, Value]]:
    for topic in found.topics.values():
        name = _resource_name(topic.name)
        yield _resource("KafkaTopic", name, cluster, _topic_spec(topic, name))


def _topic_spec(topic: ExportedTopic, name: str) -> Mapping[str, Value]:
    spec: dict[str, Value] = {} if name == topic.name else {"topicName": topic.name}
    spec |= {"partitions": len(topic.partitions), "replicas": topic.replication_factor}
    if topic.clear_configs:
        spec["config"] = topic.clear_configs
    return spec


def _resource_name(topic: str) -> str:
    """Return the topic's name if a resource can have it, or one with a hash of it."""
    if _NAME.fullmatch(topic) and len(topic) <= _NAME_LENGTH_MAX:
        return topic
    return distinct_name(topic, "a-z0-9", "-", _NAME_LENGTH_MAX)


# --- users ----------------------------------------------------------------------------------------


def _users(found: Declared, after: MetadataImage, cluster: str) -> Iterator[Mapping[str, Value]]:
    names = {name for name in map(_user_of, found.principals) if name is not None}
    left_out = [one for one in found.principals if _user_of(one) is None]
    for entity in found.quotas:
        match entity:
            case (("user", str() as user),):
                names.add(user)
            case _:
                what = f"the quotas of {entity_text(entity)}"
                found.left_out.append(f"{what}: Strimzi declares those of users only")
    for row in found.credentials:
        names.add(row.user)
    rows = _rows_by_user(after, names)
    for name in sorted(names):
        if _NAME.fullmatch(_common_name(name)) is None:
            left_out.append(f"{_USER}{name}")
            continue
        spec = dict(_user_spec(name, rows[name], found.left_out))
        if spec:
            yield _resource("KafkaUser", _common_name(name), cluster, spec)
        else:
            found.left_out.append(
                f"user {name!r}: there is nothing to declare; delete its resource"
            )
    for principal in sorted(left_out):
        what = f"principal {principal!r}"
        found.left_out.append(f"{what}: the name of a KafkaUser is a DNS subdomain")


def _user_of(principal: str) -> str | None:
    """Return the user of a principal; None for principals of another type, and for all users."""
    user = principal.removeprefix(_USER)
    return None if user in (principal, "*") else user


def _common_name(user: str) -> str:
    """Return a user's name; for a certificate that has nothing else, its common name."""
    return user.removeprefix("CN=")


def _rows_by_user(
    after: MetadataImage, names: Iterable[str]
) -> dict[str, list[AclRow | QuotaRow | ScramRow]]:
    """Return all rows of these users, without quotas of a user's client ids."""
    found: dict[str, list[AclRow | QuotaRow | ScramRow]] = {name: [] for name in names}
    for acl in after.rows_of(AclRow):
        found.get(_user_of(acl.principal) or "", []).append(acl)
    for scram in after.rows_of(ScramRow):
        found.get(scram.user, []).append(scram)
    for quota in after.rows_of(QuotaRow):
        match quota.entity:
            case (("user", str() as user),):
                found.get(user, []).append(quota)
    return found


def _user_spec(
    user: str, rows: Sequence[AclRow | QuotaRow | ScramRow], left_out: list[str]
) -> Iterator[tuple[str, Value]]:
    mechanisms = [row.mechanism_name for row in rows if isinstance(row, ScramRow)]
    left_out.extend(
        f"SCRAM credential {one} of user {user!r}: Strimzi has {_SCRAM} only"
        for one in mechanisms
        if one != _SCRAM
    )
    if user != _common_name(user):
        yield "authentication", {"type": "tls-external"}
    elif _SCRAM in mechanisms:
        yield "authentication", {"type": "scram-sha-512"}
    rules = list(_rules([row for row in rows if isinstance(row, AclRow)], left_out))
    if rules:
        yield "authorization", {"type": "simple", "acls": rules}
    quotas = dict(_quotas(user, [row for row in rows if isinstance(row, QuotaRow)], left_out))
    if quotas:
        yield "quotas", quotas


def _rules(acls: Sequence[AclRow], left_out: list[str]) -> Iterator[Mapping[str, Value]]:
    """Yield rules of one or more operations each."""
    operations: dict[tuple[str, str, str, str, str], list[Value]] = {}
    for acl in acls:
        kind = enum_name(ACL_RESOURCE_TYPES, acl.resource_type)
        pattern = enum_name(PATTERN_TYPES, acl.pattern_type)
        operation = operation_name(acl.operation)
        if kind not in _RESOURCES or pattern not in _PATTERNS or operation not in _OPERATIONS:
            left_out.append(f"{acl_text(acl)}: Strimzi has no such rule")
            continue
        permission = enum_name(ACL_PERMISSIONS, acl.permission).lower()
        key = (permission, _RESOURCES[kind], acl.resource_name, _PATTERNS[pattern], acl.host)
        operations.setdefault(key, []).append(operation)
    for (permission, kind, name, pattern, host), names in operations.items():
        resource: dict[str, Value] = {"type": kind}
        if kind != "cluster":
            resource |= {"name": name, "patternType": pattern}
        rule: dict[str, Value] = {} if permission == "allow" else {"type": permission}
        rule |= {"resource": resource, "operations": names}
        yield rule if host == "*" else rule | {"host": host}


def _quotas(
    user: str, rows: Iterable[QuotaRow], left_out: list[str]
) -> Iterator[tuple[str, Value]]:
    for row in rows:
        name = _QUOTAS.get(row.quota)
        if not math.isfinite(row.value):
            left_out.append(f"quota {row.quota} of user {user!r}: it is no finite number")
        elif name is None or (name != _RATE and not row.value.is_integer()):
            left_out.append(f"quota {row.quota} of user {user!r}: Strimzi has integers only")
        else:
            yield name, int(row.value) if row.value.is_integer() else row.value


# --- YAML -----------------------------------------------------------------------------------------


def yaml_lines(value: Mapping[str, Value], indent: str = "") -> Iterator[str]:
    """Yield a mapping as lines of YAML in block style, whose texts are quoted."""
    for key, one in value.items():
        name = key if _PLAIN_KEY.fullmatch(key) else yaml_text(key)
        yield from _entry(f"{indent}{name}:", one, indent)


def _entry(head: str, value: Value, indent: str) -> Iterator[str]:
    match value:
        case str():
            yield f"{head} {yaml_text(value)}"
        case int() | float():
            yield f"{head} {value!r}"
        case Mapping():
            yield head
            yield from yaml_lines(value, f"{indent}  ")
        case Sequence():
            yield head
            for one in value:
                if isinstance(one, Mapping):
                    first, *rest = yaml_lines(one, f"{indent}  ")
                    yield f"{indent}- {first.lstrip(' ')}"
                    yield from rest
                else:
                    yield from _entry(f"{indent}-", one, indent)


def yaml_text(text: str) -> str:
    """Return a text in YAML's double quotes; characters that are not printable are escaped."""
    return '"' + "".join(map(_yaml_character, text)) + '"'


def _yaml_character(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
