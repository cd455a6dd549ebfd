"""Differences as resources of Terraform's provider Mongey/kafka.

A resource is complete: if anything differs in a topic, it is declared as it is in the second state.
Passwords of SCRAM credentials are variables, because the state contains only their hashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from raftlog_state.enums import (
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    PATTERN_TYPES,
    SCRAM_MECHANISMS,
    enum_name,
)
from raftlog_state.image import AclRow, MetadataImage

from .exported import (
    Declared,
    Exported,
    acl_text,
    declared,
    distinct_name,
    entity_text,
    operation_name,
)

Value: TypeAlias = "str | int | Mapping[str, str] | Reference"


class Reference(str):
    """Expression, such as a variable, that is not quoted."""


HEAD: Final = (
    "terraform {",
    "  required_providers {",
    "    kafka = {",
    '      source = "Mongey/kafka"',
    "    }",
    "  }",
    "}",
)
_LABEL_LENGTH_MAX: Final = 80
_LABEL: Final = re.compile(rf"(?!x_)[A-Za-z_][A-Za-z0-9_-]{{0,{_LABEL_LENGTH_MAX - 1}}}")
_RESOURCES: Final[Mapping[str, str]] = {
    "TOPIC": "Topic",
    "GROUP": "Group",
    "CLUSTER": "Cluster",
    "TRANSACTIONAL_ID": "TransactionalID",
}
_OPERATIONS: Final = frozenset(
    {
        *("All", "Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction"),
        *("DescribeConfigs", "AlterConfigs", "IdempotentWrite"),
    }
)


def export_terraform(before: MetadataImage, after: MetadataImage) -> Exported:
    """Return the resources of what differs."""
    found = declared(before, after)
    lines = [*HEAD]
    for block in (
        *_topics(found),
        *_acls(found, after),
        *_quotas(found),
        *_credentials(found),
    ):
        lines.extend(("", *block))
    found.left_out.extend(f"{what}: deleted; remove its resource" for what in found.deleted)
    return Exported(tuple(lines), tuple(found.left_out))


def _topics(found: Declared) -> Iterator[Iterator[str]]:
    for topic in found.topics.values():
        body: dict[str, Value] = {
            "name": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": topic.replication_factor,
        }
        if topic.clear_configs:
            body["config"] = topic.clear_configs
        yield _block("kafka_topic", _label(topic.name), body)


def _acls(found: Declared, after: MetadataImage) -> Iterator[Iterator[str]]:
    for acl in after.rows_of(AclRow):
        if acl.principal not in found.principals:
            continue
        kind = enum_name(ACL_RESOURCE_TYPES, acl.resource_type)
        operation = operation_name(acl.operation)
        if kind not in _RESOURCES or operation not in _OPERATIONS:
            found.left_out.append(f"{acl_text(acl)}: the provider has no such ACL")
            continue
        body: dict[str, Value] = {
            "resource_name": acl.resource_name,
            "resource_type": _RESOURCES[kind],
            "resource_pattern_type_filter": enum_name(PATTERN_TYPES, acl.pattern_type).capitalize(),
            "acl_principal": acl.principal,
            "acl_host": acl.host,
            "acl_operation": operation,
            "acl_permission_type": enum_name(ACL_PERMISSIONS, acl.permission).capitalize(),
        }
        yield _block("kafka_acl", _label("\0".join(map(str, body.values()))), body)


def _quotas(found: Declared) -> Iterator[Iterator[str]]:
    for entity, quotas in found.quotas.items():
        if len(entity) != 1:
            what = f"the quotas of {entity_text(entity)}"
            found.left_out.append(f"{what}: the provider has one entity for each")
        elif quotas:
            ((kind, name),) = entity
            body: dict[str, Value] = {} if name is None else {"entity_name": name}
            body |= {"entity_type": kind, "config": dict(sorted(quotas.items()))}
            label = _label(f"default_{kind}" if name is None else f"{kind}_{name}")
            yield _block("kafka_quota", label, body)
        else:
            found.deleted.append(f"the quotas of {entity_text(entity)}")


def _credentials(found: Declared) -> Iterator[Iterator[str]]:
    for row in found.credentials:
        mechanism = enum_name(SCRAM_MECHANISMS, row.mechanism)
        label = _label(f"{row.user}_{mechanism}")
        variable = f"password_of_{label}"
        attributes = {"type": Reference("string"), "sensitive": Reference("true")}
        yield _lines(f'variable "{variable}"', attributes)
        body: dict[str, Value] = {
            "username": row.user,
            "scram_mechanism": mechanism,
            "scram_iterations": row.iterations,
            "password": Reference(f"var.{variable}"),
        }
        yield _block("kafka_user_scram_credential", label, body)


# --- HCL ------------------------------------------------------------------------------------------


def _label(text: str) -> str:
    """Return an identifier that is unique to the text."""
    if _LABEL.fullmatch(text):
        return text
    return f"x_{distinct_name(text, 'A-Za-z0-9_-', '_', _LABEL_LENGTH_MAX)}"


def _block(kind: str, label: str, body: Mapping[str, Value]) -> Iterator[str]:
    return _lines(f'resource "{kind}" "{label}"', body)


def _lines(head: str, body: Mapping[str, Value]) -> Iterator[str]:
    """Yield a block as ``terraform fmt`` aligns it."""
    yield f"{head} {{"
    width = max(map(len, (name for name, one in body.items() if not isinstance(one, Mapping))))
    for name, value in body.items():
        match value:
            case Reference() | int():
                yield f"  {name.ljust(width)} = {value}"
            case str():
                yield f"  {name.ljust(width)} = {hcl_text(value)}"
            case Mapping():
                keys = [hcl_text(key) for key in value]
                longest = max(map(len, keys))
                yield f"  {name} = {{"
                for key, one in zip(keys, value.values(), strict=True):
                    yield f"    {key.ljust(longest)} = {hcl_text(one)}"
                yield "  }"
    yield "}"


def hcl_text(text: str) -> str:
    """Return a text in HCL's quotes, with unprintable characters and template starts escaped."""
    return '"' + "".join(map(_hcl_character, text, f"{text[1:]} ")) + '"'


def _hcl_character(character: str, following: str) -> str:
    code = ord(character)
    if character in "$%" and following == "{":
        return f"\\u{code:04x}"
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
