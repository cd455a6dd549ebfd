"""Names of entities, as users write them: ``topic/orders``, ``config/topic/orders/retention.ms``.

=====================================  =========================================================
``topic/NAME``                         a topic and its configs; optionally its partitions
``partition/TOPIC/ID``                 one partition, in all topics that had this name
``broker/ID``                          a registration and the broker's configs
``controller/ID``                      a registration
``config/TYPE/RESOURCE/NAME``          one config; TYPE is topic, broker, client_metrics or group.
                                       RESOURCE is empty for the default of all brokers
``acl/PRINCIPAL``                      the ACLs of a principal, such as ``acl/User:alice``
``quota/TYPE/ENTITY``                  quotas; TYPE is user, client-id or ip, ENTITY may be
                                       ``<default>``; separate several pairs by commas
``scram/USER``, ``token/ID``           credentials of a user; a delegation token
``feature/NAME``, ``epoch/N``, ...     a row of any other entity, by its key
=====================================  =========================================================

Fewer parts select more: ``config/topic/orders`` is all configs of a topic, ``acl`` all ACLs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from raftlog.errors import OptionError
from raftlog.printable import did_you_mean
from raftlog_state.enums import CONFIG_RESOURCE_TYPES

from .delta import RecordChanges, RowChange
from .rows import (
    METADATA_ENTITIES,
    AclRow,
    ConfigRow,
    Entity,
    PartitionRow,
    ProducerIdsRow,
    QuotaRow,
    Row,
    ScramRow,
    TokenRow,
    TopicRow,
    ZkMigrationRow,
)

_PARTS: Final[Mapping[Entity, tuple[str, ...]]] = {
    Entity.FEATURE: ("name",),
    Entity.BROKER: ("broker_id",),
    Entity.CONTROLLER: ("controller_id",),
    Entity.TOPIC: ("name",),
    Entity.PARTITION: ("topic_name", "partition_id"),
    Entity.CONFIG: ("resource_type", "resource_name", "name"),
    Entity.ACL: ("principal",),
    Entity.SCRAM: ("user",),
    Entity.TOKEN: ("token_id",),
    Entity.EPOCH: ("leader_epoch",),
    Entity.TRANSACTION: ("begin_offset",),
}
"""Columns whose values are the parts of a name."""
_NUMBERS: Final = frozenset(
    {"broker_id", "controller_id", "partition_id", "leader_epoch", "begin_offset"}
)
_RESOURCE_TYPES: Final = {name.lower(): number for number, name in CONFIG_RESOURCE_TYPES.items()}
_TOPIC: Final = _RESOURCE_TYPES["topic"]
_BROKER: Final = _RESOURCE_TYPES["broker"]

_DEFAULT_QUOTA: Final = "<default>"
_NEXT_QUOTA_PAIR: Final = re.compile(",(?=(?:client-id|ip|user)/)")
"""Separator of two pairs in a quota's name: a comma may also be part of a user's name."""

Values = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Rows of an entity that have these values in these columns.

    ``quota_of``: what a quota's ``entity_key`` contains.
    """

    entity: Entity
    values: Values = ()
    quota_of: str = ""

    def matches(self, row: Row) -> bool:
        """Return whether a row is one of them."""
        if row.ENTITY is not self.entity:
            return False
        if isinstance(row, QuotaRow):
            return self.quota_of in row.entity_key
        return all(getattr(row, name) == value for name, value in self.values)


def matching(
    records: Iterable[RecordChanges], filters: Sequence[RowFilter] | None
) -> Iterator[RecordChanges]:
    """Yield the changes whose row after, or else before, matches any of the filters; None: all."""

    def matches(change: RowChange) -> bool:
        row = change.after or change.before
        assert row is not None, "a change has a row"
        return any(one.matches(row) for one in filters or ())

    for record in records:
        changes = record.changes if filters is None else tuple(filter(matches, record.changes))
        if changes:
            yield (
                record if len(changes) == len(record.changes) else replace(record, changes=changes)
            )


def row_filters(
    entity: str | None,
    name: str | None,
    *,
    partitions: bool = False,
    text_option: str | None = None,
) -> tuple[RowFilter, ...]:
    """Return filters of the rows that a name selects; a row is selected if one of them matches.

    Args:
        entity: an entity, such as ``topic``; None: all of them.
        name: the parts after the entity; None: all of its rows.
        partitions: whether the partitions of topics are selected, too.
        text_option: the option, for errors, in which a user passed both as one text
            (``split_name``); None: they are arguments of a call.

    Raises ``OptionError`` if there is no such entity or name.
    """
    option = text_option or "name"
    if entity is None:
        if name is not None:
            reason = f"a name requires an entity, such as {_arguments(name)}"
            raise OptionError(option="entity", reason=reason)
        chosen = (one for one in METADATA_ENTITIES if partitions or one is not Entity.PARTITION)
        return tuple(RowFilter(one) for one in chosen)
    kind = _entity(entity, text_option, is_whole_name=name is None)
    if kind is Entity.QUOTA and name:
        # Pairs of a JSON object: quotes in a value are escaped, so no value contains them.
        pairs = map(_quota_pair, _NEXT_QUOTA_PAIR.split(name))
        return (RowFilter(kind, quota_of=",".join(pairs)),)
    own = RowFilter(kind, () if name is None else _values(kind, name, option))
    if kind is Entity.TOPIC:
        values = dict(own.values)
        of_topic = (("topic_name", values["name"]),) if values else ()
        configs = RowFilter(Entity.CONFIG, _configs(_TOPIC, values.get("name")))
        of_partitions = RowFilter(Entity.PARTITION, of_topic)
        return (own, configs, of_partitions) if partitions else (own, configs)
    if kind is Entity.BROKER:
        return own, RowFilter(Entity.CONFIG, _configs(_BROKER, dict(own.values).get("broker_id")))
    return (own,)


def split_name(text: str) -> tuple[str, str | None]:
    """Return entity and name of a text such as ``topic/orders``."""
    entity, slash, name = text.partition("/")
    return entity, name if slash else None


def name_of(row: Row) -> str:
    """Return the name of a row, which ``row_filters`` accepts."""
    match row:
        case TopicRow(name=name):
            return f"topic/{name}"
        case PartitionRow():
            return f"partition/{row.topic_name}/{row.partition_id}"
        case ConfigRow():
            kind = row.resource_type_name.lower()
            return f"config/{kind}/{row.resource_name}/{row.name}"
        case AclRow():
            return f"acl/{row.principal}"
        case QuotaRow():
            pairs = [
                f"{kind}/{_DEFAULT_QUOTA if name is None else name}" for kind, name in row.entity
            ]
            return f"quota/{','.join(pairs)}"
        case ScramRow():
            return f"scram/{row.user}"
        case TokenRow():
            return f"token/{row.token_id}"
        case ProducerIdsRow() | ZkMigrationRow():
            return str(row.ENTITY)
    return "/".join([str(row.ENTITY), *map(str, row.key)])


def _quota_pair(text: str) -> str:
    """Return a part of a quota's name as in its ``entity_key``."""
    quota_type, slash, name = text.partition("/")
    found = json.dumps(quota_type, ensure_ascii=False) + ":"
    if not slash:
        return found
    return found + json.dumps(None if name == _DEFAULT_QUOTA else name, ensure_ascii=False)


def _configs(resource_type: int, resource_name: str | int | None) -> Values:
    found: Values = (("resource_type", resource_type),)
    return found if resource_name is None else (*found, ("resource_name", str(resource_name)))


def _arguments(text: str) -> str:
    """Return the arguments of a call for a text; a text without a slash is a topic."""
    entity, name = split_name(text)
    if name is None:
        entity, name = str(Entity.TOPIC), text
    return f"entity={entity!r}, name={name!r}"


def _entity(text: str, text_option: str | None, *, is_whole_name: bool) -> Entity:
    """Parse an entity; ``is_whole_name``: no name follows it, so it may be one."""
    wanted = text.lower().replace("-", "_")
    names = [str(entity) for entity in METADATA_ENTITIES]
    for plain in (wanted, wanted.removesuffix("s")):
        if plain in names:
            return Entity(plain)
    near = did_you_mean(wanted, names)
    hint = near or f"entities are {', '.join(names)}"
    if near is None and is_whole_name:
        of_text = f"follows its entity, such as topic/{text}"
        of_call = f"is an argument of its own, such as {_arguments(text)}"
        hint = f"a name {of_call if text_option is None else of_text}; {hint}"
    raise OptionError(option=text_option or "entity", reason=f"unknown entity {text!r}; {hint}")


def _values(kind: Entity, name: str, option: str) -> Values:
    """Return the columns and values that a name's parts select."""
    columns = _PARTS.get(kind, ())
    if not columns:
        raise OptionError(option=option, reason=f"{kind} is one row: it has no name")
    parts = name.split("/", len(columns) - 1)
    if kind is Entity.CONFIG and len(parts) == len(columns):
        # A resource may contain a slash, but the name of a config does not.
        parts = [parts[0], *"/".join(parts[1:]).rsplit("/", 1)]
    return tuple(
        (column, _value(column, part, option)) for column, part in zip(columns, parts, strict=False)
    )


def _value(column: str, text: str, option: str) -> str | int:
    if column == "resource_type":
        number = _RESOURCE_TYPES.get(text.lower().replace("-", "_"))
        if number is None:
            known = ", ".join(_RESOURCE_TYPES)
            reason = f"unknown resource type {text!r} of configs; known are {known}"
            raise OptionError(option=option, reason=reason)
        return number
    if column in _NUMBERS:
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise OptionError(option=option, reason=f"{text!r} is not a number")
        return int(text)
    return text
