"""Identity of the node's log in Kafka's messages, and conversions between values and kio's types.

A node has one log: partition 0 of one topic of one cluster. Kafka's messages name all three;
``raftlog.quorum`` knows none of them. The conversions do not check values: ``codec`` checks whether
a field can have its value, and reports the field if it cannot.
"""

from __future__ import annotations

import base64
import functools
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64, u16

from raftlog.types import ZERO_UUID, ReplicaKey

from .apis import ApiKey

PARTITION: Final = 0
PORT_MAX: Final = 65_535
COMMIT_GROUP_PREFIX: Final = "raftlog.commit:"
"""Prefix of the group ids that represent application ids. Such a group's offset is that of the
application's last named commit. Consumers cannot commit offsets for such a group."""
_UUID_CACHE_SIZE: Final = 256
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """Topic, topic id and cluster id of the log. Ids are Kafka's base64 text.

    ``listener_name`` is the name of the voters' listener, which the leader endpoints in responses
    belong to without naming it. ``rack`` is this node's rack, empty if it has none.
    """

    topic: str
    topic_id: str
    cluster_id: str
    listener_name: str = "CONTROLLER"
    rack: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestError:
    """Error of a request that is invalid or for another log; or such an error in a response.

    ``error`` is Kafka's error code. If ``is_top_level`` is set, the response has no other content.
    Otherwise it also contains the epoch and the leader, for the request's ``topic`` and
    ``partition`` if these are not this log's.
    """

    api_key: ApiKey
    error: int
    reason: str
    is_top_level: bool = True
    topic: str | None = None
    partition: int = PARTITION


@functools.lru_cache(maxsize=_UUID_CACHE_SIZE)
def uuid_or_none(text: str) -> uuid.UUID | None:
    """Return kio's value for an id in Kafka's base64 text; None for the zero id."""
    if text == ZERO_UUID:
        return None
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


@functools.lru_cache(maxsize=_UUID_CACHE_SIZE)
def uuid_bytes(text: str) -> bytes:
    """Return the 16 bytes of an id in Kafka's base64 text."""
    return base64.urlsafe_b64decode(text + "==")


@functools.lru_cache(maxsize=_UUID_CACHE_SIZE)
def uuid_text(value: uuid.UUID | None) -> str:
    return ZERO_UUID if value is None else id_text(value.bytes)


@functools.lru_cache(maxsize=_UUID_CACHE_SIZE)
def id_text(data: bytes) -> str:
    """Return the base64 text of an id of 16 bytes."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def directory_of(key: ReplicaKey | None) -> uuid.UUID | None:
    return None if key is None else uuid_or_none(key.directory_id)


def or_minus_one(value: int | None) -> int:
    """Return the value, or -1, which Kafka's messages use for unknown values."""
    return -1 if value is None else value


def milliseconds(value: timedelta) -> int:
    return value // _MILLISECOND


def duration(value_ms: int) -> i32Timedelta:
    return cast("i32Timedelta", value_ms * _MILLISECOND)


def node(value: int | None) -> BrokerId:
    """Return a node id as kio's type; -1 for None."""
    return cast("BrokerId", or_minus_one(value))


def int8(value: int) -> i8:
    return cast("i8", value)


def int16(value: int) -> i16:
    return cast("i16", value)


def int32(value: int) -> i32:
    return cast("i32", value)


def int64(value: int) -> i64:
    return cast("i64", value)


def port(value: int) -> u16:
    return cast("u16", value)


def name(value: str) -> TopicName:
    return cast("TopicName", value)
