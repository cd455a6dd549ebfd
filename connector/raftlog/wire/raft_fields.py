"""Mapping between attributes of the quorum's messages and fields of Kafka's messages.

1. The tables in ``raft_codec`` list the fields of each attribute. Two entries of a Vote request:

       "epoch": ".replica_epoch",
       "candidate": (KEY, ".replica_id", ".replica_directory_id"),

   ``epoch`` is the value of one field. The ``Type`` ``KEY`` converts ``candidate`` to two fields,
   and back.
2. A path names a field of Kafka's message. A path that starts with a dot names a field of the only
   partition of the only topic (``topics[0].partitions[0].replica_epoch``). kio's classes determine
   the order and types of the fields.
3. A field without an attribute has its default. A field that the version lacks is omitted, as in
   Kafka; if that would change the meaning of a request, encoding raises ``UnsupportedFieldError``.
4. None is encoded as -1 or as the zero id. The leader's endpoint in a response has no listener
   name; it is decoded with the name of the voters' listener.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, NoReturn, TypeAlias, cast
from uuid import UUID

from kio.schema.errors import ErrorCode as WireCode

from raftlog.quorum.messages import ErrorCode, LeaderAndEpoch
from raftlog.quorum.voters import Endpoint, Voter, is_host
from raftlog.types import ReplicaKey, SnapshotId

from .apis import ApiKey
from .codec import encode
from .errors import MalformedMessageError, UnsupportedFieldError
from .fields import LeaderEndpoint
from .log_identity import (
    PARTITION,
    PORT_MAX,
    LogIdentity,
    RequestError,
    directory_of,
    duration,
    milliseconds,
    or_minus_one,
    uuid_text,
)
from .schema import StructPlan, message_plan


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """API, version and log of the response being decoded; ``end`` is its size in bytes."""

    api_key: ApiKey
    version: int
    identity: LogIdentity
    end: int

    def fail(self, reason: str) -> NoReturn:
        raise MalformedMessageError(
            api=f"{self.api_key.name} response",
            version=self.version,
            position=self.end,
            reason=reason,
        )

    def request_error(self, code: int, reason: str, *, is_top_level: bool) -> RequestError:
        return RequestError(
            api_key=self.api_key, error=code, reason=reason, is_top_level=is_top_level
        )


# --- Types ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Type:
    """Conversion between an attribute and the values of its fields.

    The arguments of ``to_wire`` are the attribute, its message and the log; those of ``from_wire``
    are the context of a response, or None, and the values of the fields. Without a function the
    value is not converted. The value of a structure is any object with its fields.
    """

    to_wire: Callable[[Any, Any, LogIdentity], tuple[Any, ...]] | None
    from_wire: Callable[..., Any] | None


CODES: Final = {int(one): one for one in ErrorCode}
SAME: Final = Type(None, None)
MILLISECONDS: Final = Type(
    lambda number, *_: (duration(number),), lambda _, value: milliseconds(value)
)


def _key_to_wire(key: ReplicaKey | None, *_: object) -> tuple[Any, ...]:
    return -1 if key is None else key.node_id, directory_of(key)


def _key(_: object, node_id: int, directory_id: UUID | None) -> ReplicaKey:
    return ReplicaKey(node_id, uuid_text(directory_id))


KEY: Final = Type(_key_to_wire, _key)
OPTIONAL_KEY: Final = Type(
    _key_to_wire, lambda _, node_id, uuid: None if node_id < 0 else _key(_, node_id, uuid)
)
NODE_IDS: Final = Type(
    lambda keys, *_: (tuple(key.node_id for key in keys),),
    lambda _, ids: tuple(map(ReplicaKey, ids)),
)
CANDIDATES: Final = Type(
    lambda keys, *_: (
        tuple(
            SimpleNamespace(candidate_id=key.node_id, candidate_directory_id=directory_of(key))
            for key in keys
        ),
    ),
    lambda _, infos: tuple(_key(_, one.candidate_id, one.candidate_directory_id) for one in infos),
)


def _endpoints(_: object, listeners: Sequence[Any]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port) for one in listeners)


def _voter_to_wire(voter: Voter, *_: object) -> tuple[Any, ...]:
    levels = (voter.kraft_version_min, voter.kraft_version_max)
    return (*_key_to_wire(voter.key), voter.endpoints, *levels)


def _voter(
    _: object, node_id: int, directory_id: UUID | None, listeners: Sequence[Any], *levels: int
) -> Voter:
    """Return a voter. ``levels``: minimum and maximum of kraft.version if the message has them."""
    names = ("kraft_version_min", "kraft_version_max")
    return Voter(
        key=_key(_, node_id, directory_id),
        endpoints=_endpoints(_, listeners),
        **dict(zip(names, levels, strict=False)),
    )


ENDPOINTS: Final = Type(None, _endpoints)
VOTER: Final = Type(lambda voter, *_: _voter_to_wire(voter)[:3], _voter)
VOTER_AND_LEVELS: Final = Type(_voter_to_wire, _voter)


def leader_to_wire(
    leader: LeaderAndEpoch, identity: LogIdentity
) -> tuple[int, int, tuple[LeaderEndpoint, ...]]:
    """Return the leader's id, its epoch and its endpoint on the voters' listener."""
    leader_id = or_minus_one(leader.leader_id)
    if leader.leader_id is not None:
        for one in leader.leader_endpoints:
            if one.name == identity.listener_name:
                endpoint = LeaderEndpoint(leader_id, one.host, one.port)
                return leader_id, leader.epoch, (endpoint,)
    return leader_id, leader.epoch, ()


def _leader_at_to_wire(leader: LeaderAndEpoch, _: object, identity: LogIdentity) -> tuple[Any, ...]:
    """Return the leader's id, epoch, host and port."""
    leader_id, epoch, endpoints = leader_to_wire(leader, identity)
    return leader_id, epoch, *((endpoints[0].host, endpoints[0].port) if endpoints else ("", 0))


def leader_from_wire(
    context: ResponseContext, leader_id: int, epoch: int, endpoints: Sequence[Any]
) -> LeaderAndEpoch:
    for one in endpoints:
        if one.node_id == leader_id:
            return _leader_at(context, leader_id, epoch, one.host, one.port)
    return _leader_at(context, leader_id, epoch, "", 0)


def _leader_at(
    context: ResponseContext, leader_id: int, epoch: int, host: str, port: int
) -> LeaderAndEpoch:
    """Return the leader, without an endpoint if the host is empty."""
    if leader_id < 0:
        return LeaderAndEpoch(epoch=max(epoch, 0))
    if not host:
        return LeaderAndEpoch(epoch=max(epoch, 0), leader_id=leader_id)
    if not 0 <= port <= PORT_MAX:
        context.fail("the leader's port is out of range")
    if not is_host(host):
        context.fail("the leader's host is not a host name or an IP address")
    endpoint = Endpoint(context.identity.listener_name, host, port)
    return LeaderAndEpoch(epoch=max(epoch, 0), leader_id=leader_id, leader_endpoints=(endpoint,))


LEADER: Final = Type(lambda leader, _, identity: leader_to_wire(leader, identity), leader_from_wire)
LEADER_AT: Final = Type(_leader_at_to_wire, _leader_at)
NO_LEADER: Final = Type(lambda *_: (), lambda _: LeaderAndEpoch(epoch=0))
ERROR: Final = Type(None, lambda _, code: CODES[code])


SNAPSHOT_ID: Final = Type(
    None, lambda _, one: SnapshotId(epoch=one.epoch, end_offset=one.end_offset)
)


# --- Messages -------------------------------------------------------------------------------------

Fields: TypeAlias = str | tuple[Type | str, ...]
"""Path of the field with the attribute's value, or a type and the paths of its fields."""


def only_partition(topics: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the topic and the partition of a message; None if there is not exactly one."""
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    return topics[0], topics[0].partitions[0]


@dataclass(frozen=True, slots=True)
class PartitionFields:
    """Names of the fields for the topics, a topic's name and a partition's index."""

    topics: str
    topic: str
    index: str

    def full(self, path: str) -> str:
        """Return the path that starts at the message."""
        return f"{self.topics}.partitions{path}" if path.startswith(".") else path

    def find(self, message: Any) -> tuple[str, int, Any] | None:
        """Return topic, index and partition; None if there is not exactly one partition."""
        found = only_partition(getattr(message, self.topics))
        if found is None:
            return None
        topic, partition = found
        return getattr(topic, self.topic), getattr(partition, self.index), partition

    def expected(self, identity: LogIdentity) -> tuple[str, int]:
        """Return topic and index of the log."""
        return identity.topic, PARTITION


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """Request or response: its class, Kafka's newest class, and the fields of its attributes.

    If an attribute's fields differ between versions, they are keyed by the first version that has
    them. ``must_keep`` maps the fields without which a request would have another meaning to a
    description of that meaning. ``not_negative`` maps the numbers of a request that must not be
    negative to the error if one is. ``problem`` returns what else is invalid in a request or
    response.
    """

    kind: type[Any]
    schema: type[Any]
    partition: PartitionFields | None
    attributes: Mapping[str, Fields | Mapping[int, Fields]]
    must_keep: Mapping[str, str] = field(default_factory=dict)
    not_negative: Mapping[str, WireCode] = field(default_factory=dict)
    problem: Callable[[Any, LogIdentity], str | None] = lambda *_: None
    layouts: dict[int, Layout] = field(default_factory=dict)

    def layout(self, version: int) -> Layout:
        """Return the layout of a version, cached."""
        layout = self.layouts.get(version)
        if layout is None:
            layout = self.layouts[version] = Layout(self, version)
        return layout


class Layout:
    """Encoder and decoder of a message in one version.

    The encoder converts a message to a list of field values: the log's topic, partition and cluster
    id, then the fields of each attribute, in the order of the table.
    """

    def __init__(self, message: Message, version: int) -> None:
        self._schema, self._version = message.schema, version
        rows = [(name, *_in_version(one, version)) for name, one in message.attributes.items()]
        paths = [path for _, _, own in rows for path in own]
        log = message.partition or PartitionFields("", "", "")
        of_the_log = (f"{log.topics}.{log.topic}", log.full(f".{log.index}"), "cluster_id")
        indexes = {path: index for index, path in enumerate([*of_the_log, *map(log.full, paths)])}
        plan = message_plan(message.schema, version)
        absent = dict(_absent_fields(plan))
        must_keep = {log.full(path): reason for path, reason in message.must_keep.items()}
        self._build = _builder(plan, indexes)
        self._attributes = tuple((attrgetter(name), type_.to_wire) for name, type_, _ in rows)
        # fields of ``must_keep`` that this version lacks: only their defaults can be encoded
        self._lost = tuple(
            (indexes[path], path.rpartition(".")[2], absent[path], reason)
            for path, reason in must_keep.items()
            if path in absent
        )
        self._errors = tuple(message.not_negative.values())
        self._numbers = attrgetter(*message.not_negative) if self._errors else None
        self.read = _reader(message.kind, rows)

    def encode(
        self, message: Any, identity: LogIdentity, topic: str | None = None, index: int = PARTITION
    ) -> bytes:
        """Return the body of a message. ``topic`` and ``index`` are set if they are not the log's.

        Raises ``UnsupportedFieldError``.
        """
        values = [identity.topic if topic is None else topic, index, identity.cluster_id]
        for get, convert in self._attributes:
            if convert is None:
                values.append(get(message))
            else:
                values += convert(get(message), message, identity)
        for at, name, default, reason in self._lost:
            if values[at] != default:
                raise UnsupportedFieldError(
                    api=self._schema.__name__, version=self._version, field=name, reason=reason
                )
        return encode(self._build(values), self._version, self._schema)

    @functools.cached_property
    def _build_error(self) -> Callable[[Sequence[Any]], Any]:
        plan = message_plan(self._schema, self._version)
        return _builder(plan, {"error_code": 0, "error_message": 1})

    def encode_top_level_error(self, error: int, reason: str) -> bytes:
        """Return the body of a response that has only an error and, if possible, its reason."""
        return encode(self._build_error((error, reason)), self._version, self._schema)

    def negative_error(self, request: Any) -> WireCode | None:
        """Return the error of the first negative number; None if no number is negative."""
        if self._numbers is None or min(numbers := self._numbers(request)) >= 0:
            return None
        return next(
            error for number, error in zip(numbers, self._errors, strict=True) if number < 0
        )


def _in_version(
    fields: Fields | Mapping[int, Fields], version: int
) -> tuple[Type, tuple[str, ...]]:
    """Return an attribute's type and paths in a version."""
    if isinstance(fields, Mapping):
        fields = fields[max(first for first in fields if first <= version)]
    if isinstance(fields, str):
        return SAME, (fields,)
    return cast("tuple[Type, tuple[str, ...]]", (fields[0], fields[1:]))


def _reader(
    kind: type[Any], rows: Sequence[tuple[str, Type, tuple[str, ...]]]
) -> Callable[[Any, Any, ResponseContext | None], Any]:
    """Return a function that converts Kafka's message, its partition and the context to a message.

    The function is one generated expression, ``kind(epoch=partition.leader_epoch, ...)``, because a
    loop over the attributes takes twice as long.
    """
    names: dict[str, Any] = {"kind": kind}
    arguments = []
    for name, type_, paths in rows:
        values = [f"partition{one}" if one.startswith(".") else f"message.{one}" for one in paths]
        if type_.from_wire is None:
            arguments.append(f"{name}={values[0]}")
        else:
            names[f"read_{name}"] = type_.from_wire
            arguments.append(f"{name}=read_{name}({', '.join(['context', *values])})")
    source = f"lambda message, partition, context: kind({', '.join(arguments)})"
    return cast("Callable[[Any, Any, ResponseContext | None], Any]", eval(source, names))


def _absent_fields(plan: StructPlan, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the paths of the fields that a version lacks, with their defaults."""
    yield from ((prefix + name, default) for name, default in plan.absent.items())
    for one in (*plan.fields, *plan.tagged):
        if one.struct is not None:
            yield from _absent_fields(one.struct, f"{prefix}{one.name}.")


def _builder(plan: StructPlan, indexes: Mapping[str, int]) -> Callable[[Sequence[Any]], Any]:
    """Return a function from values to Kafka's message; ``indexes`` maps paths to their indexes.

    As in ``_reader``, it is one generated expression instead of a loop:
    ``fields(voter_id=values[4], topics=(fields(...),))``.
    """
    defaults: dict[str, object] = {}
    source = f"lambda values: {_structure(plan, indexes, defaults, '')}"
    names = {"fields": SimpleNamespace, "defaults": defaults}
    return cast("Callable[[Sequence[Any]], Any]", eval(source, names))


def _structure(
    plan: StructPlan, indexes: Mapping[str, int], defaults: dict[str, object], prefix: str
) -> str:
    """Return the expression of a structure. An array on the path to a value has one element."""
    arguments = []
    for one in (*plan.fields, *plan.tagged):
        path = prefix + one.name
        if path in indexes:
            value = f"values[{indexes[path]}]"
        elif one.struct is not None and any(found.startswith(f"{path}.") for found in indexes):
            value = _structure(one.struct, indexes, defaults, f"{path}.")
            value = f"({value},)" if one.is_array else value
        elif one.is_kept and one.tag is None:
            defaults[path] = one.default
            value = f"defaults[{path!r}]"
        else:
            continue
        arguments.append(f"{one.name}={value}")
    return f"fields({', '.join(arguments)})"
