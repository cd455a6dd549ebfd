"""Which log a message is about, and what is answered if it is not ours or makes no sense.

Rules of this file:

1. A node keeps one log: one topic, partition 0, one cluster. Kafka's messages name all three, and
   ``raftlog.quorum`` none of them: they are written and checked here.
2. Helpers turn values of ``raftlog`` into kio's types without looking at them: whether a field
   takes its value is checked once, by ``encoding``, which can say which field it is.
"""

from __future__ import annotations

import base64
import functools
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import Records, i8, i16, i32, i32Timedelta, i64, u16

from raftlog.quorum.messages import LeaderAndEpoch
from raftlog.quorum.voters import Endpoint
from raftlog.types import ZERO_UUID, ReplicaKey

from .apis import ApiKey

PARTITION: Final = 0
PORT_MAX: Final = 65_535
_UUID_CACHE_SIZE: Final = 256
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogIdentity:
    """What names this log in Kafka's messages. Ids are Kafka's base64 text.

    ``listener_name`` is that of the listener for voters: answers tell where a leader listens
    without a name, as they go out on the listener that was asked.
    """

    topic: str
    topic_id: str
    cluster_id: str
    listener_name: str = "CONTROLLER"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestError:
    """A request that is not for this log, or makes no sense; or an answer that says so.

    ``error`` is Kafka's code. At the top level nothing else is answered; else the answer also says
    who leads, about ``topic`` and ``partition`` of the request if they are not ours.
    """

    api_key: ApiKey
    error: int
    reason: str
    is_top_level: bool = True
    topic: str | None = None
    partition: int = PARTITION


@functools.lru_cache(maxsize=_UUID_CACHE_SIZE)
def uuid_or_none(text: str) -> uuid.UUID | None:
    """kio's value of Kafka's text; None for zero."""
    if text == ZERO_UUID:
        return None
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


@functools.lru_cache(maxsize=_UUID_CACHE_SIZE)
def uuid_text(value: uuid.UUID | None) -> str:
    if value is None:
        return ZERO_UUID
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def replica_key(node_id: int, directory_id: uuid.UUID | None) -> ReplicaKey:
    return ReplicaKey(node_id, uuid_text(directory_id))


def replica_key_or_none(node_id: int, directory_id: uuid.UUID | None) -> ReplicaKey | None:
    """None for an id below zero: nobody is named."""
    return None if node_id < 0 else replica_key(node_id, directory_id)


def directory_of(key: ReplicaKey | None) -> uuid.UUID | None:
    return None if key is None else uuid_or_none(key.directory_id)


def leader_endpoint(leader_and_epoch: LeaderAndEpoch, identity: LogIdentity) -> Endpoint | None:
    """Where the leader listens on the listener that was asked; None if it is not known."""
    if leader_and_epoch.leader_id is None:
        return None
    return next(
        (one for one in leader_and_epoch.leader_endpoints if one.name == identity.listener_name),
        None,
    )


def or_minus_one(value: int | None) -> int:
    """What Kafka writes for what is not known."""
    return -1 if value is None else value


def none_below_zero(value: int) -> int | None:
    return None if value < 0 else value


def milliseconds(value: timedelta) -> int:
    return value // _MILLISECOND


def duration(value_ms: int) -> i32Timedelta:
    return cast("i32Timedelta", value_ms * _MILLISECOND)


def node(value: int | None) -> BrokerId:
    """A node id; -1 for none."""
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


def data_bytes(value: bytes) -> Records:
    return cast("Records", value)
