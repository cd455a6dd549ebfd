"""Requests of clients, with defaults for the fields that a test does not set."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from kio.schema.fetch.v18.request import FetchPartition
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.list_offsets.v11.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.offset_commit.v10.request import OffsetCommitRequestPartition
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import uuid_or_none

from .cluster import TOPIC, TOPIC_ID

READ_COMMITTED: Final = 1
OTHER_ID: Final = "AAAAAAAAAAAAAAAAAAAAaQ"


def _any(value: Any) -> Any:
    """Widen kio's annotated types of numbers and names."""
    return value


def fetch(
    offset: int = 0,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    topic: str = TOPIC,
    topic_id: str = TOPIC_ID,
    partition: int = 0,
    rack: str = "",
) -> latest_schemas.FetchRequest:
    one = FetchPartition(
        partition=_any(partition),
        current_leader_epoch=_any(leader_epoch),
        fetch_offset=_any(offset),
        last_fetched_epoch=_any(last_fetched_epoch),
        partition_max_bytes=_any(partition_max_bytes),
    )
    return latest_schemas.FetchRequest(
        max_wait=_any(timedelta(milliseconds=max_wait_ms)),
        min_bytes=_any(min_bytes),
        max_bytes=_any(max_bytes),
        isolation_level=_any(isolation),
        session_id=_any(session_id),
        session_epoch=_any(session_epoch),
        topics=(
            latest_schemas.FetchTopic(
                topic=_any(topic), topic_id=uuid_or_none(topic_id), partitions=(one,)
            ),
        ),
        forgotten_topics_data=(),
        rack_id=rack,
    )


def list_offsets(
    timestamp: int,
    *,
    isolation: int = 0,
    leader_epoch: int = -1,
    topic: str = TOPIC,
    partition: int = 0,
) -> ListOffsetsRequest:
    one = ListOffsetsPartition(
        partition_index=_any(partition),
        current_leader_epoch=_any(leader_epoch),
        timestamp=_any(timestamp),
    )
    return ListOffsetsRequest(
        replica_id=_any(-1),
        isolation_level=_any(isolation),
        topics=(ListOffsetsTopic(name=_any(topic), partitions=(one,)),),
        timeout=_any(timedelta(0)),
    )


def metadata(
    names: tuple[str, ...] | None = None, ids: tuple[str, ...] = (), **more: Any
) -> latest_schemas.MetadataRequest:
    """Return a request for topics by name or id; None for all."""
    topics = None
    if names is not None:
        topics = tuple(
            MetadataRequestTopic(topic_id=None, name=_any(name)) for name in names
        ) + tuple(MetadataRequestTopic(topic_id=uuid_or_none(one), name=None) for one in ids)
    usual: Any = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}
    return latest_schemas.MetadataRequest(topics=topics, **(usual | more))


def init_producer_id(transactional_id: str | None = None) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=_any(transactional_id), transaction_timeout=_any(timedelta(0))
    )


def epoch_end(epoch: int, *, leader_epoch: int = -1, topic: str = TOPIC) -> Any:
    one = OffsetForLeaderPartition(
        partition=_any(0), current_leader_epoch=_any(leader_epoch), leader_epoch=_any(epoch)
    )
    return OffsetForLeaderEpochRequest(
        topics=(OffsetForLeaderTopic(topic=_any(topic), partitions=(one,)),)
    )


def offset_commit(
    offset: int,
    *,
    group: str = "readers",
    metadata: str | None = "",
    leader_epoch: int = -1,
    member_epoch: int = -1,
    topic: str = TOPIC,
    topic_id: str = TOPIC_ID,
    partition: int = 0,
) -> latest_schemas.OffsetCommitRequest:
    one = OffsetCommitRequestPartition(
        partition_index=_any(partition),
        committed_offset=_any(offset),
        committed_leader_epoch=_any(leader_epoch),
        committed_metadata=metadata,
    )
    return latest_schemas.OffsetCommitRequest(
        group_id=_any(group),
        generation_id_or_member_epoch=_any(member_epoch),
        member_id="" if member_epoch < 0 else "a member",
        topics=(
            latest_schemas.CommittedTopic(
                topic_id=uuid_or_none(topic_id), name=_any(topic), partitions=(one,)
            ),
        ),
    )


def offset_fetch(
    version: int, *groups: str, topic: str = TOPIC, topic_id: str = TOPIC_ID, is_all: bool = False
) -> latest_schemas.OffsetFetchRequest:
    topics: Any = (
        latest_schemas.OffsetFetchTopic(
            topic_id=uuid_or_none(topic_id), name=_any(topic), partition_indexes=(_any(0),)
        ),
    )
    if is_all:
        topics = None
    if version < 8:
        (group,) = groups
        return latest_schemas.OffsetFetchRequest(groups=(), group_id=_any(group), topics=topics)
    return latest_schemas.OffsetFetchRequest(
        groups=tuple(
            latest_schemas.OffsetFetchGroup(group_id=_any(one), topics=topics) for one in groups
        )
    )
