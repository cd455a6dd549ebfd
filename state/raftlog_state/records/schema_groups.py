"""Records of the group coordinator in ``__consumer_offsets``.

They are offset commits, classic groups, consumer groups (KIP-848) and share groups (KIP-932).
Records of streams groups are in ``schema_streams``.

Fields marked ``of_client`` contain addresses of clients and data that clients store for themselves.

Source: the message files of Kafka's ``group-coordinator`` module, 4.3; ``ConsumerProtocol``.
"""

from __future__ import annotations

from raftlog.types import ZERO_UUID

from .declare import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NEVER,
    STRING,
    UUID,
    Array,
    Message,
    Nested,
    Struct,
    field,
    key,
    record,
    struct,
)


@struct
class GroupKey(Message):
    """Key of a record about a group."""

    group_id: str = field(STRING, default="")


@struct
class GroupMemberKey(GroupKey):
    """Key of a record about a member of a group."""

    member_id: str = field(STRING, default="")


# --- Offset commits -------------------------------------------------------------------------------


@struct
class CommittedPartitionKey(Message):
    """Key of an offset commit."""

    group: str = field(STRING, default="")
    topic: str = field(STRING, default="")
    partition: int = field(INT32, default=0)


@key(api_key=0)
class LegacyOffsetCommitKey(CommittedPartitionKey):
    """Key of an offset commit, as written before Kafka 0.9."""


@record(api_key=0, flexible_since=NEVER)
class LegacyOffsetCommitValue(Message):
    """Offset commit, as written before Kafka 0.9."""

    offset: int = field(INT64, default=0)
    metadata: str = field(STRING, default="", of_client=True)
    commit_timestamp: int = field(INT64, default=0)


@key(api_key=1)
class OffsetCommitKey(CommittedPartitionKey):
    """Key of an offset commit."""


@record(api_key=1, latest_version=4, flexible_since=4)
class OffsetCommitValue(Message):
    """Offset commit; timestamps in ms. ``expire_timestamp`` was written with a retention time."""

    offset: int = field(INT64, default=0)
    leader_epoch: int = field(INT32, since=3, default=-1)
    metadata: str = field(STRING, default="", of_client=True)
    commit_timestamp: int = field(INT64, default=0)
    expire_timestamp: int = field(INT64, since=1, until=1, default=-1)
    topic_id: str = field(UUID, since=4, tag=0, default=ZERO_UUID)


# --- Classic groups -------------------------------------------------------------------------------


@key(api_key=2)
class GroupMetadataKey(Message):
    """Key of a classic group."""

    group: str = field(STRING, default="")


@struct
class MemberMetadata(Struct):
    """Member of a classic group; timeouts in ms.

    The group's ``protocol_type`` determines the encoding of ``subscription`` and ``assignment``.
    """

    member_id: str = field(STRING, default="")
    group_instance_id: str | None = field(STRING, since=3, nullable=True, default=None)
    client_id: str = field(STRING, default="")
    client_host: str = field(STRING, default="", of_client=True)
    rebalance_timeout: int = field(INT32, since=1, default=-1)
    session_timeout: int = field(INT32, default=0)
    subscription: bytes = field(BYTES, default=b"", of_client=True)
    assignment: bytes = field(BYTES, default=b"", of_client=True)


@record(api_key=2, latest_version=4, flexible_since=4)
class GroupMetadataValue(Message):
    """Classic group; without members it is empty."""

    protocol_type: str = field(STRING, default="")
    generation: int = field(INT32, default=0)
    protocol: str | None = field(STRING, nullable=True, default="")
    leader: str | None = field(STRING, nullable=True, default="")
    current_state_timestamp: int = field(INT64, since=2, default=-1)
    members: tuple[MemberMetadata, ...] = field(Array(MemberMetadata), default=())


@struct
class OwnedPartitions(Struct):
    """Partitions of a topic, in a subscription or an assignment."""

    topic: str = field(STRING, default="")
    partitions: tuple[int, ...] = field(Array(INT32), default=())


@record(api_key=-1, latest_version=3, flexible_since=NEVER)
class ConsumerProtocolSubscription(Message):
    """``MemberMetadata.subscription`` in a group of consumers, after the version."""

    topics: tuple[str, ...] = field(Array(STRING), default=())
    user_data: bytes | None = field(BYTES, nullable=True, default=None, of_client=True)
    owned_partitions: tuple[OwnedPartitions, ...] = field(
        Array(OwnedPartitions), since=1, default=()
    )
    generation_id: int = field(INT32, since=2, default=-1)
    rack_id: str | None = field(STRING, since=3, nullable=True, default=None)


@record(api_key=-1, latest_version=3, flexible_since=NEVER)
class ConsumerProtocolAssignment(Message):
    """``MemberMetadata.assignment`` in a group of consumers, after the version."""

    assigned_partitions: tuple[OwnedPartitions, ...] = field(Array(OwnedPartitions), default=())
    user_data: bytes | None = field(BYTES, nullable=True, default=None, of_client=True)


# --- Consumer groups ------------------------------------------------------------------------------


@key(api_key=3)
class ConsumerGroupMetadataKey(GroupKey):
    """Key of a consumer group."""


@record(api_key=3)
class ConsumerGroupMetadataValue(Message):
    """Consumer group. ``metadata_hash``: of the topics that it is subscribed to."""

    epoch: int = field(INT32, default=0)
    metadata_hash: int = field(INT64, tag=0, default=0)


@key(api_key=4)
class ConsumerGroupPartitionMetadataKey(GroupKey):
    """Key of a consumer group's subscribed topics, as written before Kafka 4.1."""


@struct
class PartitionMetadata(Struct):
    """Racks of a partition's replicas."""

    partition: int = field(INT32, default=0)
    racks: tuple[str, ...] = field(Array(STRING), default=())


@struct
class TopicMetadata(Struct):
    """Topic that a consumer group is subscribed to."""

    topic_id: str = field(UUID, default=ZERO_UUID)
    topic_name: str = field(STRING, default="")
    num_partitions: int = field(INT32, default=0)
    partition_metadata: tuple[PartitionMetadata, ...] = field(Array(PartitionMetadata), default=())


@record(api_key=4)
class ConsumerGroupPartitionMetadataValue(Message):
    """Topics that a consumer group is subscribed to, as written before Kafka 4.1."""

    topics: tuple[TopicMetadata, ...] = field(Array(TopicMetadata), default=())


@key(api_key=5)
class ConsumerGroupMemberMetadataKey(GroupMemberKey):
    """Key of a consumer group's member."""


@struct
class ClassicProtocol(Struct):
    """Protocol that a classic member supports; ``metadata`` is its subscription."""

    name: str = field(STRING, default="")
    metadata: bytes = field(BYTES, default=b"", of_client=True)


@struct
class ClassicMemberMetadata(Struct):
    """What a consumer group stores for a member that uses the classic protocol."""

    session_timeout_ms: int = field(INT32, default=0)
    supported_protocols: tuple[ClassicProtocol, ...] = field(Array(ClassicProtocol), default=())


@record(api_key=5)
class ConsumerGroupMemberMetadataValue(Message):
    """Member of a consumer group; ``classic_member_metadata`` is None if it uses KIP-848."""

    instance_id: str | None = field(STRING, nullable=True, default="")
    rack_id: str | None = field(STRING, nullable=True, default="")
    client_id: str = field(STRING, default="")
    client_host: str = field(STRING, default="", of_client=True)
    subscribed_topic_names: tuple[str, ...] = field(Array(STRING), default=())
    subscribed_topic_regex: str | None = field(STRING, nullable=True, default="")
    rebalance_timeout_ms: int = field(INT32, default=-1)
    server_assignor: str | None = field(STRING, nullable=True, default="")
    classic_member_metadata: ClassicMemberMetadata | None = field(
        Nested(ClassicMemberMetadata), tag=0, nullable=True, default=ClassicMemberMetadata()
    )


@key(api_key=6)
class ConsumerGroupTargetAssignmentMetadataKey(GroupKey):
    """Key of a consumer group's target assignment."""


@record(api_key=6)
class ConsumerGroupTargetAssignmentMetadataValue(Message):
    """Target assignment of a consumer group."""

    assignment_epoch: int = field(INT32, default=0)
    assignment_timestamp: int = field(INT64, tag=0, default=0)


@key(api_key=7)
class ConsumerGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of a member's part of the target assignment."""


@struct
class TargetPartitions(Struct):
    """Partitions of a topic in a target assignment."""

    topic_id: str = field(UUID, default=ZERO_UUID)
    partitions: tuple[int, ...] = field(Array(INT32), default=())


@record(api_key=7)
class ConsumerGroupTargetAssignmentMemberValue(Message):
    """A member's part of the target assignment."""

    topic_partitions: tuple[TargetPartitions, ...] = field(Array(TargetPartitions), default=())


@key(api_key=8)
class ConsumerGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of a member's current assignment."""


@struct
class AssignedPartitions(Struct):
    """Partitions of a topic in a current assignment, and the epochs in which they were assigned."""

    topic_id: str = field(UUID, default=ZERO_UUID)
    partitions: tuple[int, ...] = field(Array(INT32), default=())
    assignment_epochs: tuple[int, ...] | None = field(
        Array(INT32), tag=0, nullable=True, default=()
    )


@record(api_key=8)
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """Current assignment of a member."""

    member_epoch: int = field(INT32, default=0)
    previous_member_epoch: int = field(INT32, default=0)
    state: int = field(INT8, default=0)
    assigned_partitions: tuple[AssignedPartitions, ...] = field(
        Array(AssignedPartitions), default=()
    )
    partitions_pending_revocation: tuple[AssignedPartitions, ...] = field(
        Array(AssignedPartitions), default=()
    )


@key(api_key=16)
class ConsumerGroupRegularExpressionKey(GroupKey):
    """Key of a regular expression that members are subscribed to."""

    regular_expression: str = field(STRING, default="")


@record(api_key=16)
class ConsumerGroupRegularExpressionValue(Message):
    """Topics that a regular expression matched; ``version`` is that of the cluster's metadata."""

    topics: tuple[str, ...] = field(Array(STRING), default=())
    version: int = field(INT64, default=0)
    timestamp: int = field(INT64, default=0)


# --- Share groups ---------------------------------------------------------------------------------


@key(api_key=10)
class ShareGroupMemberMetadataKey(GroupMemberKey):
    """Key of a share group's member."""


@record(api_key=10)
class ShareGroupMemberMetadataValue(Message):
    """Member of a share group."""

    rack_id: str | None = field(STRING, nullable=True, default="")
    client_id: str = field(STRING, default="")
    client_host: str = field(STRING, default="", of_client=True)
    subscribed_topic_names: tuple[str, ...] = field(Array(STRING), default=())


@key(api_key=11)
class ShareGroupMetadataKey(GroupKey):
    """Key of a share group."""


@record(api_key=11)
class ShareGroupMetadataValue(Message):
    """Share group. ``metadata_hash``: of the topics that it is subscribed to."""

    epoch: int = field(INT32, default=0)
    metadata_hash: int = field(INT64, default=0)


@key(api_key=12)
class ShareGroupTargetAssignmentMetadataKey(GroupKey):
    """Key of a share group's target assignment."""


@record(api_key=12)
class ShareGroupTargetAssignmentMetadataValue(Message):
    """Target assignment of a share group."""

    assignment_epoch: int = field(INT32, default=0)
    assignment_timestamp: int = field(INT64, tag=0, default=0)


@key(api_key=13)
class ShareGroupTargetAssignmentMemberKey(GroupMemberKey):
    """Key of a member's part of the target assignment."""


@record(api_key=13)
class ShareGroupTargetAssignmentMemberValue(Message):
    """A member's part of the target assignment."""

    topic_partitions: tuple[TargetPartitions, ...] = field(Array(TargetPartitions), default=())


@key(api_key=14)
class ShareGroupCurrentMemberAssignmentKey(GroupMemberKey):
    """Key of a member's current assignment."""


@record(api_key=14)
class ShareGroupCurrentMemberAssignmentValue(Message):
    """Current assignment of a member."""

    member_epoch: int = field(INT32, default=0)
    previous_member_epoch: int = field(INT32, default=0)
    state: int = field(INT8, default=0)
    assigned_partitions: tuple[TargetPartitions, ...] = field(Array(TargetPartitions), default=())


@key(api_key=15)
class ShareGroupStatePartitionMetadataKey(GroupKey):
    """Key of the topics whose share state a group has."""


@struct
class SharedTopicPartitions(Struct):
    """Partitions of a topic for which share state is or will be stored."""

    topic_id: str = field(UUID, default=ZERO_UUID)
    topic_name: str = field(STRING, default="")
    partitions: tuple[int, ...] = field(Array(INT32), default=())


@struct
class SharedTopic(Struct):
    """Topic whose share state is being deleted."""

    topic_id: str = field(UUID, default=ZERO_UUID)
    topic_name: str = field(STRING, default="")


@record(api_key=15)
class ShareGroupStatePartitionMetadataValue(Message):
    """Topics whose share state is being initialized, is initialized, or is being deleted."""

    initializing_topics: tuple[SharedTopicPartitions, ...] = field(
        Array(SharedTopicPartitions), default=()
    )
    initialized_topics: tuple[SharedTopicPartitions, ...] = field(
        Array(SharedTopicPartitions), default=()
    )
    deleting_topics: tuple[SharedTopic, ...] = field(Array(SharedTopic), default=())
