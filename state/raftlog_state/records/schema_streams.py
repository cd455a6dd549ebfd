"""Records of streams groups in ``__consumer_offsets`` (KIP-1071, since Kafka 4.1).

Source: the message files of Kafka's ``group-coordinator`` module, 4.3.
"""

from __future__ import annotations

from .declare import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    Array,
    Message,
    Nested,
    Struct,
    field,
    key,
    record,
    struct,
)
from .schema_groups import GroupKey, GroupMemberKey


@key(api_key=17)
class StreamsGroupMetadataKey(GroupKey):
    """Key of a streams group."""


@struct
class LastAssignmentConfig(Struct):
    """Config of the assignor, as of the last assignment."""

    key: str = field(STRING, default="")
    value: str = field(STRING, default="")


@record(api_key=17)
class StreamsGroupMetadataValue(Message):
    """Streams group. ``metadata_hash``: of the topics that it reads.
    Descriptions of topologies are kept by brokers of Kafka 4.4 and later."""

    epoch: int = field(INT32, default=0)
    metadata_hash: int = field(INT64, default=0)
    validated_topology_epoch: int = field(INT32, tag=0, default=-1)
    last_assignment_configs: tuple[LastAssignmentConfig, ...] | None = field(
        Array(LastAssignmentConfig), tag=1, nullable=True, default=()
    )
    stored_description_topology_epoch: int = field(INT32, tag=2, default=-1)
    failed_description_topology_epoch: int = field(INT32, tag=3, default=-1)


@key(api_key=19)
class StreamsGroupMemberMetadataKey(GroupMemberKey):
    """Key of a streams group's member."""


@struct
class Endpoint(Struct):
    """Address at which a member answers interactive queries."""

    host: str = field(STRING, default="", of_client=True)
    port: int = field(UINT16, default=0)


@struct
class ClientTag(Struct):
    """Tag of a client, by which standby tasks are distributed."""

    key: str = field(STRING, default="", of_client=True)
    value: str = field(STRING, default="", of_client=True)


@record(api_key=19)
class StreamsGroupMemberMetadataValue(Message):
    """Member of a streams group."""

    instance_id: str | None = field(STRING, nullable=True, default="")
    rack_id: str | None = field(STRING, nullable=True, default="")
    client_id: str = field(STRING, default="")
    client_host: str = field(STRING, default="", of_client=True)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    topology_epoch: int = field(INT32, default=0)
    process_id: str = field(STRING, default="")
    user_endpoint: Endpoint | None = field(Nested(Endpoint), nullable=True, default=None)
    client_tags: tuple[ClientTag, ...] = field(Array(ClientTag), default=())


@key(api_key=20)
class StreamsGroupTargetAssignmentMetadataKey(GroupKey):
    """Key of a streams group's target assignment."""


@record(api_key=20)
class StreamsGroupTargetAssignmentMetadataValue(Message):
    """Target assignment of a streams group."""

    assignment_epoch: int = field(INT32, default=0)
    assignment_timestamp: int = field(INT64, tag=0, default=0)


@key(api_key=21)
class StreamsGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of a member's part of the target assignment."""


@struct
class TargetTasks(Struct):
    """Tasks of a subtopology in a target assignment."""

    subtopology_id: str = field(STRING, default="")
    partitions: tuple[int, ...] = field(Array(INT32), default=())


@record(api_key=21)
class StreamsGroupTargetAssignmentMemberValue(Message):
    """A member's part of the target assignment."""

    active_tasks: tuple[TargetTasks, ...] = field(Array(TargetTasks), default=())
    standby_tasks: tuple[TargetTasks, ...] = field(Array(TargetTasks), default=())
    warmup_tasks: tuple[TargetTasks, ...] = field(Array(TargetTasks), default=())


@key(api_key=22)
class StreamsGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of a member's current assignment."""


@struct
class AssignedTasks(Struct):
    """Tasks of a subtopology in a current assignment, and the epochs in which they were
    assigned."""

    subtopology_id: str = field(STRING, default="")
    partitions: tuple[int, ...] = field(Array(INT32), default=())
    assignment_epochs: tuple[int, ...] | None = field(
        Array(INT32), tag=0, nullable=True, default=()
    )


_TASKS = Array(AssignedTasks)


@record(api_key=22)
class StreamsGroupCurrentMemberAssignmentValue(Message):
    """Current assignment of a member."""

    member_epoch: int = field(INT32, default=0)
    previous_member_epoch: int = field(INT32, default=0)
    state: int = field(INT8, default=0)
    active_tasks: tuple[AssignedTasks, ...] = field(_TASKS, default=())
    standby_tasks: tuple[AssignedTasks, ...] = field(_TASKS, default=())
    warmup_tasks: tuple[AssignedTasks, ...] = field(_TASKS, default=())
    active_tasks_pending_revocation: tuple[AssignedTasks, ...] = field(_TASKS, default=())
    standby_tasks_pending_revocation: tuple[AssignedTasks, ...] = field(_TASKS, default=())
    warmup_tasks_pending_revocation: tuple[AssignedTasks, ...] = field(_TASKS, default=())


@key(api_key=23)
class StreamsGroupTopologyKey(GroupKey):
    """Key of a streams group's topology."""


@struct
class TopicConfig(Struct):
    """Config of a topic that the group creates."""

    key: str = field(STRING, default="")
    value: str = field(STRING, default="")


@struct
class InternalTopic(Struct):
    """Changelog or repartition topic (Kafka: ``TopicInfo``)."""

    name: str = field(STRING, default="")
    partitions: int = field(INT32, default=0)
    replication_factor: int = field(INT16, default=0)
    topic_configs: tuple[TopicConfig, ...] = field(Array(TopicConfig), default=())


@struct
class CopartitionGroup(Struct):
    """Topics that must have as many partitions: indexes into those of the subtopology."""

    source_topics: tuple[int, ...] = field(Array(INT16), default=())
    source_topic_regex: tuple[int, ...] = field(Array(INT16), default=())
    repartition_source_topics: tuple[int, ...] = field(Array(INT16), default=())


@struct
class Subtopology(Struct):
    """Part of a topology: the topics that its tasks read and write."""

    subtopology_id: str = field(STRING, default="")
    source_topics: tuple[str, ...] = field(Array(STRING), default=())
    source_topic_regex: tuple[str, ...] = field(Array(STRING), default=())
    state_changelog_topics: tuple[InternalTopic, ...] = field(Array(InternalTopic), default=())
    repartition_sink_topics: tuple[str, ...] = field(Array(STRING), default=())
    repartition_source_topics: tuple[InternalTopic, ...] = field(Array(InternalTopic), default=())
    copartition_groups: tuple[CopartitionGroup, ...] = field(Array(CopartitionGroup), default=())


@record(api_key=23)
class StreamsGroupTopologyValue(Message):
    """Topology of a streams group."""

    epoch: int = field(INT32, default=0)
    subtopologies: tuple[Subtopology, ...] = field(Array(Subtopology), default=())
