"""Scripted brokers of one cluster, with groups, their offsets and the ends of partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5 import response as list_groups
from kio.schema.list_offsets.v11 import request as list_offsets_request
from kio.schema.list_offsets.v11 import response as list_offsets
from kio.schema.metadata.v13 import response as metadata
from kio.schema.offset_fetch.v10 import response as offset_fetch
from kio.schema.types import GroupId

from raftlog.wire import ApiKey, decode, latest_schemas
from raftlog.wire.log_identity import duration, int32, int64, node
from raftlog.wire.log_identity import name as topic_name
from tests.support.scripted_node import Answer, ScriptedNode

TOPIC_ID = uuid.UUID(int=7)
NOT_LEADER = ErrorCode.not_leader_or_follower


@dataclass
class Script:
    """State of a cluster of brokers, numbered from 0. Lists of errors are used up by responses."""

    groups: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Coordinator and type by group."""
    commits: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    leaders: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    list_errors: list[ErrorCode] = field(default_factory=list)
    group_errors: dict[str, list[ErrorCode]] = field(default_factory=dict)
    partition_errors: dict[tuple[str, int], list[ErrorCode]] = field(default_factory=dict)
    cluster_ids: dict[int, str] = field(default_factory=dict)
    versions: list[tuple[str, int]] = field(default_factory=list)


def pop(errors: list[ErrorCode] | None) -> ErrorCode:
    return errors.pop(0) if errors else ErrorCode.none


class Broker:
    """One broker of a script."""

    def __init__(self, script: Script, number: int, nodes: list[ScriptedNode]) -> None:
        self.script, self.number, self.nodes = script, number, nodes

    def node(self) -> ScriptedNode:
        answers: dict[ApiKey, Answer] = {
            ApiKey.METADATA: self.answer_metadata,
            ApiKey.LIST_GROUPS: self.answer_list_groups,
            ApiKey.OFFSET_FETCH: self.answer_offset_fetch,
            ApiKey.LIST_OFFSETS: self.answer_list_offsets,
        }
        return ScriptedNode(answers)

    def answer_metadata(self, version: int, body: bytes) -> Any:
        request = decode(latest_schemas.MetadataRequest, version, body)
        assert request.topics is not None
        assert not request.allow_auto_topic_creation
        names = [str(one.name) for one in request.topics]
        brokers = tuple(
            metadata.MetadataResponseBroker(
                node_id=node(number), host="127.0.0.1", port=int32(one.port)
            )
            for number, one in enumerate(self.nodes)
        )
        return latest_schemas.MetadataResponse(
            throttle_time=duration(0),
            brokers=brokers,
            cluster_id=self.script.cluster_ids.get(self.number, "c"),
            controller_id=node(0),
            error_code=ErrorCode.none,
            topics=tuple(map(self._topic, names)),
        )

    def _topic(self, name: str) -> metadata.MetadataResponseTopic:
        led = {at: leader for at, leader in self.script.leaders.items() if at[0] == name}
        return metadata.MetadataResponseTopic(
            error_code=ErrorCode.none if led else ErrorCode.unknown_topic_or_partition,
            name=topic_name(name),
            topic_id=TOPIC_ID,
            partitions=tuple(
                metadata.MetadataResponsePartition(
                    error_code=ErrorCode.none if leader >= 0 else ErrorCode.leader_not_available,
                    partition_index=int32(number),
                    leader_id=node(leader),
                    replica_nodes=(),
                    isr_nodes=(),
                    offline_replicas=(),
                )
                for (_, number), leader in led.items()
            ),
        )

    def answer_list_groups(self, version: int, body: bytes) -> Any:
        return list_groups.ListGroupsResponse(
            throttle_time=duration(0),
            error_code=pop(self.script.list_errors),
            groups=tuple(
                list_groups.ListedGroup(
                    group_id=GroupId(group),
                    protocol_type="consumer",
                    group_state="Stable",
                    group_type=kind,
                )
                for group, (coordinator, kind) in self.script.groups.items()
                if coordinator == self.number
            ),
        )

    def answer_offset_fetch(self, version: int, body: bytes) -> Any:
        request = decode(latest_schemas.OffsetFetchRequest, version, body)
        self.script.versions.append(("OffsetFetch", version))
        return latest_schemas.OffsetFetchResponse(
            throttle_time=duration(0),
            groups=tuple(self._offsets(one) for one in request.groups),
        )

    def _offsets(
        self, group: latest_schemas.OffsetFetchGroup
    ) -> latest_schemas.FetchedOffsetsGroup:
        assert group.topics is None
        name = str(group.group_id)
        coordinator, kind = self.script.groups[name]
        assert coordinator == self.number
        assert kind != "Share"
        error = pop(self.script.group_errors.get(name))
        commits = {} if error else self.script.commits.get(name, {})
        return latest_schemas.FetchedOffsetsGroup(
            group_id=group.group_id,
            error_code=error,
            topics=tuple(
                latest_schemas.FetchedOffsetsTopic(
                    topic_id=None,
                    name=topic_name(topic),
                    partitions=(
                        offset_fetch.OffsetFetchResponsePartitions(
                            partition_index=int32(number),
                            committed_offset=int64(offset),
                            metadata="",
                            error_code=ErrorCode.none,
                        ),
                    ),
                )
                for (topic, number), offset in commits.items()
            ),
        )

    def answer_list_offsets(self, version: int, body: bytes) -> Any:
        request = decode(list_offsets_request.ListOffsetsRequest, version, body)
        return list_offsets.ListOffsetsResponse(
            throttle_time=duration(0),
            topics=tuple(
                list_offsets.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=tuple(self._end(str(topic.name), one) for one in topic.partitions),
                )
                for topic in request.topics
            ),
        )

    def _end(self, topic: str, asked: Any) -> list_offsets.ListOffsetsPartitionResponse:
        at = topic, int(asked.partition_index)
        is_start = asked.timestamp == -2
        error = ErrorCode.none if self.script.leaders[at] == self.number else NOT_LEADER
        error = pop(self.script.partition_errors.get(at)) or error
        return list_offsets.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=error,
            offset=int64(-1 if error else self.script.ends[at][0 if is_start else 1]),
        )


@contextmanager
def scripted_brokers(script: Script, *, broker_count: int = 2) -> Iterator[str]:
    """Run the brokers; yield the address of the first one."""
    nodes: list[ScriptedNode] = []
    for number in range(broker_count):
        nodes.append(Broker(script, number, nodes).node())
    with ExitStack() as stack:
        for one in nodes:
            stack.enter_context(one)
        yield nodes[0].address
