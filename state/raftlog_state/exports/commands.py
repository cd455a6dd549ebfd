"""Changes as a shell script of Kafka's tools: kafka-topics, kafka-configs, kafka-acls, and others.

Each command is one line, quoted for a POSIX shell. ``"$@"`` is the connection, passed as the
script's arguments. A text is first quoted for the tool: ``kafka-topics --delete`` takes a regular
expression, and ``kafka-configs --add-config`` separates values at commas and removes brackets and
spaces.

Changes of one resource are one command, because each command starts a JVM.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

from raftlog_state.controller import (
    AddAcl,
    AddPartitions,
    ChangeRequest,
    CreateTopic,
    DeleteConfig,
    DeleteTopic,
    ReassignPartition,
    RemoveAcl,
    RemoveQuota,
    RemoveScram,
    RemoveToken,
    SetConfig,
    SetQuota,
    SetToken,
)
from raftlog_state.desired_state import target_replicas
from raftlog_state.enums import (
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    CONFIG_RESOURCE_TYPES,
    PATTERN_TYPES,
    SCRAM_MECHANISMS,
    enum_name,
)
from raftlog_state.image import BrokerRow, Entity, FeatureRow, MetadataImage, PartitionRow
from raftlog_state.image.differences import differences
from raftlog_state.records import is_redacted

from .exported import (
    Exported,
    acl_of,
    config_text,
    number_text,
    operation_name,
    planned_changes,
    token_text,
)

Words: TypeAlias = tuple[str, ...]
"""Arguments of a tool that name the object to be changed."""


class Syntax(str):
    """Word of a line that is not quoted. Names in a state may have the same characters."""


HEAD: Final = (
    "#!/bin/sh",
    "# Run it with the connection: sh FILE --bootstrap-server HOST:PORT [--command-config FILE]",
    "set -eu",
)
CONNECTION: Final = Syntax('"$@"')
PIPE: Final = Syntax("|")
_ACL_RESOURCES: Final[Mapping[str, str]] = {
    "TOPIC": "--topic",
    "GROUP": "--group",
    "CLUSTER": "--cluster",
    "TRANSACTIONAL_ID": "--transactional-id",
    "DELEGATION_TOKEN": "--delegation-token",
    "USER": "--user-principal",
}
_CLUSTER_RESOURCE: Final = "kafka-cluster"
_ENTITY_TYPES: Final[Mapping[str, str]] = {
    "TOPIC": "topics",
    "BROKER": "brokers",
    "CLIENT_METRICS": "client-metrics",
    "GROUP": "groups",
    "user": "users",
    "client-id": "clients",
    "ip": "ips",
}
_PLAIN_VALUE: Final = re.compile(r"(?!\s)[^\[\]\n\r]*(?<!\s)")
"""A value that kafka-configs keeps within brackets."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def export_commands(before: MetadataImage, after: MetadataImage) -> Exported:
    """Return the script that changes one state to another."""
    planned = planned_changes(before, after)
    writer = _Writer(before, after, [*planned.left_out])
    if before.offset >= 0:
        writer.write_features()
    writer.write(planned.changes)
    return Exported((*HEAD, *writer.lines), tuple(writer.left_out))


class _Writer:
    """Writer of the commands of planned changes, in their order."""

    def __init__(self, before: MetadataImage, after: MetadataImage, left_out: list[str]) -> None:
        self.lines: list[str] = []
        self.left_out = left_out
        self._before = before
        self._after = after

    def write_features(self) -> None:
        """Write the features that differ."""
        for change in differences(self._before, self._after, Entity.FEATURE):
            was, now = (
                row.level if isinstance(row, FeatureRow) else 0
                for row in (change.before, change.after)
            )
            verb = "upgrade" if now > was else "downgrade"
            feature = f"{change.key[0]}={now}"
            self._command("kafka-features.sh", verb, CONNECTION, "--feature", feature)

    def write(self, changes: Sequence[ChangeRequest]) -> None:
        """Write all changes."""
        configs: defaultdict[Words, dict[str, str | None]] = defaultdict(dict)
        acls: defaultdict[Words, list[str]] = defaultdict(list)
        moved: list[ReassignPartition] = []
        for change in changes:
            match change:
                case CreateTopic():
                    self._topic(change)
                case AddPartitions():
                    self._more_partitions(change)
                case DeleteTopic():
                    name = _regular_expression(change.topic)
                    self._command("kafka-topics.sh", CONNECTION, "--delete", "--topic", name)
                case ReassignPartition():
                    moved.append(change)
                case SetConfig() | DeleteConfig():
                    self._config(change, configs)
                case SetQuota() | RemoveQuota():
                    value = number_text(change.limit) if isinstance(change, SetQuota) else None
                    configs[_quota_entity(change.entity)][change.quota] = value
                case AddAcl() | RemoveAcl():
                    self._acl(change, acls)
                case RemoveScram():
                    mechanism = enum_name(SCRAM_MECHANISMS, int(change.mechanism))
                    configs[_quota_entity({"user": change.user})][mechanism] = None
                case SetToken() | RemoveToken():
                    self.left_out.append(token_text(change))
                case _:
                    raise AssertionError(f"no plan has {change.KIND}")
        if moved:
            self._reassignment(moved)
        for words, values in configs.items():
            self._alter(words, values)
        for words, operations in acls.items():
            found = [word for name in operations for word in ("--operation", name)]
            self._command("kafka-acls.sh", CONNECTION, *words, *found)

    def _command(self, *words: str) -> None:
        """Write a command, or report it if a line cannot contain one of its words."""
        if all(map(str.isprintable, words)):
            self.lines.append(" ".join(map(_quoted, words)))
        else:
            self.left_out.append(f"{words!r}: it has characters that are not printable")

    # --- topics -----------------------------------------------------------------------------------

    def _topic(self, change: CreateTopic) -> None:
        replicas = change.assignment or ()
        tool = ("kafka-topics.sh", CONNECTION, "--create", "--topic", change.topic)
        if self._is_registered(replicas, change.topic):
            self._command(*tool, "--replica-assignment", _assignment(replicas))
        else:
            factor = ("--replication-factor", str(len(replicas[0])))
            self._command(*tool, "--partitions", str(len(replicas)), *factor)

    def _is_registered(self, replicas: Iterable[Sequence[int]], topic: str) -> bool:
        """Return whether all of these brokers are registered in the second state; report others."""
        missing = sorted(
            number
            for number in set(chain.from_iterable(replicas))
            if self._after.find(BrokerRow, number) is None
        )
        if missing:
            numbers = ", ".join(map(str, missing))
            what = f"the assignment of replicas of topic {topic!r}"
            self.left_out.append(f"{what}: it has unregistered brokers ({numbers})")
        return not missing

    def _more_partitions(self, change: AddPartitions) -> None:
        topic = self._before.topic(change.topic)
        assert topic is not None, "partitions are added to topics that exist"
        known = self._before.group((Entity.PARTITION, topic.topic_id, ""))
        rows = [self._before.find(PartitionRow, *key) for key in known]
        replicas = [target_replicas(row) for row in rows if row is not None]
        added = change.assignment or ()
        words = ["kafka-topics.sh", CONNECTION, "--alter"]
        words += ["--topic", _regular_expression(change.topic)]
        words += ["--partitions", str(change.partitions)]
        if self._is_registered(added, change.topic):
            words += ["--replica-assignment", _assignment((*replicas, *added))]
        self._command(*words)

    def _reassignment(self, changes: Iterable[ReassignPartition]) -> None:
        partitions = [
            {"topic": one.topic, "partition": one.partition, "replicas": list(one.replicas or ())}
            for one in changes
            if self._is_registered([one.replicas or ()], one.topic)
        ]
        if partitions:
            text = json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))
            options = ("--reassignment-json-file", "/dev/stdin", "--execute")
            self._piped([text], "kafka-reassign-partitions.sh", CONNECTION, *options)

    def _piped(self, lines: Iterable[str], *words: str) -> None:
        """Write a command that reads lines from its standard input."""
        self._command("printf", "%s\\n", *lines, PIPE, *words)

    # --- configs ----------------------------------------------------------------------------------

    def _config(
        self,
        change: SetConfig | DeleteConfig,
        configs: defaultdict[Words, dict[str, str | None]],
    ) -> None:
        value = change.value if isinstance(change, SetConfig) else None
        if value is not None and is_redacted(value):
            self.left_out.append(f"{config_text(change)}: it requires --reveal")
            return
        kind = enum_name(CONFIG_RESOURCE_TYPES, int(change.resource_type))
        entity = _ENTITY_TYPES.get(kind)
        if entity is None or _PLAIN_NAME.fullmatch(change.name) is None:
            self.left_out.append(f"{config_text(change)}: kafka-configs cannot name it")
            return
        words = _entity(entity, change.resource_name or None)
        configs[words][change.name] = value  # a config that is deleted and set again is set

    def _alter(self, words: Words, values: Mapping[str, str | None]) -> None:
        tool = ("kafka-configs.sh", CONNECTION, "--alter", *words)
        deleted = ",".join(name for name, value in values.items() if value is None)
        added = {name: value for name, value in values.items() if value is not None}
        options = ("--delete-config", deleted) if deleted else ()
        if all(_PLAIN_VALUE.fullmatch(one) and one.isprintable() for one in added.values()):
            pairs = ",".join(f"{name}={_bracketed(value)}" for name, value in added.items())
            options = ("--add-config", pairs, *options) if added else options
            self._command(*tool, *options)
            return
        if deleted:
            self._command(*tool, *options)
        lines = [f"{name}={_property(value)}" for name, value in added.items()]
        self._piped(lines, *tool, "--add-config-file", "/dev/stdin")

    # --- ACLs -------------------------------------------------------------------------------------

    def _acl(self, change: AddAcl | RemoveAcl, acls: defaultdict[Words, list[str]]) -> None:
        acl = change if isinstance(change, AddAcl) else acl_of(self._before, change)
        kind = enum_name(ACL_RESOURCE_TYPES, int(acl.resource_type))
        permission = enum_name(ACL_PERMISSIONS, int(acl.permission)).lower()
        pattern = enum_name(PATTERN_TYPES, int(acl.pattern_type)).lower()
        option = _ACL_RESOURCES.get(kind)
        is_other_cluster = kind == "CLUSTER" and acl.resource_name != _CLUSTER_RESOURCE
        if option is None or is_other_cluster or permission not in ("allow", "deny"):
            what = f"ACL of {acl.principal!r} on {kind} {acl.resource_name!r}"
            self.left_out.append(f"{what}: kafka-acls cannot name it")
            return
        words = ["--add"] if isinstance(change, AddAcl) else ["--remove", "--force"]
        words += [f"--{permission}-principal", acl.principal]
        words += [f"--{permission}-host", acl.host] if acl.host != "*" else []
        words += [option] if kind == "CLUSTER" else [option, acl.resource_name]
        words += ["--resource-pattern-type", pattern] if pattern != "literal" else []
        acls[tuple(words)].append(operation_name(int(acl.operation)))


_NOT_BARE: Final = re.compile(r"[,=\s]")
"""Characters for which kafka-configs needs brackets around a value."""


def _bracketed(value: str) -> str:
    return f"[{value}]" if _NOT_BARE.search(value) else value


def _quoted(word: str) -> str:
    """Return a word of a command, quoted for the shell."""
    return word if isinstance(word, Syntax) else shlex.quote(word)


def _regular_expression(topic: str) -> str:
    """Return the regular expression of one topic.

    Of the characters in topic names, only the dot is special.
    """
    return topic.replace(".", "\\.")


def _assignment(replicas: Iterable[Sequence[int]]) -> str:
    return ",".join(":".join(map(str, one)) for one in replicas)


def _entity(kind: str, name: str | None) -> Words:
    named = ("--entity-default",) if name is None else ("--entity-name", name)
    return ("--entity-type", kind, *named)


def _quota_entity(entity: Mapping[str, str | None]) -> Words:
    """Return the options of an entity; kafka-configs requires users before clients."""
    ordered = sorted(entity.items(), key=lambda pair: pair[0] != "user")
    return tuple(word for kind, name in ordered for word in _entity(_ENTITY_TYPES[kind], name))


def _property(value: str) -> str:
    """Return a value as in a Java ``Properties`` file: ASCII, with other characters escaped."""
    units = value.encode("utf-16-be", "surrogatepass")
    found = []
    for high, low in zip(units[::2], units[1::2], strict=True):
        unit = high << 8 | low
        is_plain = 0x20 < unit < 0x7F and unit != 0x5C
        found.append(chr(unit) if is_plain else f"\\u{unit:04x}")
    return "".join(found)
