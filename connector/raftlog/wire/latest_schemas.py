"""Message classes with the fields of all served versions, based on kio's newest classes.

Each class adds to kio's newest class the fields that newer versions dropped, with kio's names and
types and a default. It is the target of ``decode`` where old versions are served. A message to
encode has both the old and the new fields set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.alter_partition.v3 import request as alter_partition
from kio.schema.delete_topics.v6 import request as delete_topics
from kio.schema.end_quorum_epoch.v1 import request as end_quorum_epoch
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import request as fetch
from kio.schema.fetch.v18 import response as fetch_response
from kio.schema.find_coordinator.v6 import request as find_coordinator
from kio.schema.find_coordinator.v6 import response as find_coordinator_response
from kio.schema.metadata.v13 import request as metadata
from kio.schema.metadata.v13 import response as metadata_response
from kio.schema.offset_commit.v10 import request as offset_commit
from kio.schema.offset_commit.v10 import response as offset_commit_response
from kio.schema.offset_fetch.v10 import request as offset_fetch
from kio.schema.offset_fetch.v10 import response as offset_fetch_response
from kio.schema.produce.v13 import request as produce
from kio.schema.produce.v13 import response as produce_response
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.schema.update_features.v1 import response as update_features_response_v1
from kio.schema.update_features.v2 import request as update_features
from kio.schema.update_features.v2 import response as update_features_response
from kio.static.primitive import i32, i64, i64Timedelta

from .log_identity import duration
from .schema import OF_RAFTLOG

_INT32 = {"kafka_type": "int32"}
_STRING = {"kafka_type": "string"}
_ERROR = {"kafka_type": "error_code"}
_BOOL = {"kafka_type": "bool"}
_DURATION = {"kafka_type": "timedelta_i64"}
COMPACTED_OFFSET_TAG = 100
TOMBSTONE_START_TAG = 101
REMOTE_STORE_TAG = 102
"""Tags of raftlog's own fields in the partitions of a Fetch response. Kafka's tags are small."""
_COMPACTED_OFFSET = {"kafka_type": "int64", "tag": COMPACTED_OFFSET_TAG, OF_RAFTLOG: True}
_TOMBSTONE_START = {"kafka_type": "int64", "tag": TOMBSTONE_START_TAG, OF_RAFTLOG: True}
_REMOTE_STORE = {"kafka_type": "int64", "tag": REMOTE_STORE_TAG, OF_RAFTLOG: True}
_NO_DURATION = i64Timedelta.parse(timedelta(milliseconds=-1))

# --- EndQuorumEpoch: successors without directory ids until version 0 -----------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPartition(end_quorum_epoch.PartitionData):
    preferred_successors: tuple[i32, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTopic(end_quorum_epoch.TopicData):
    partitions: tuple[EndedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest(end_quorum_epoch.EndQuorumEpochRequest):
    topics: tuple[EndedTopic, ...]


# --- Fetch: topic names until version 12, replica_id outside of replica_state until 14 ------------
# A partition of a response has three fields of raftlog's nodes: the offset up to which the log was
# compacted, the offset up to which tombstones were removed, and the number of the object store.


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTopic(fetch.FetchTopic):
    topic: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenTopic(fetch.ForgottenTopic):
    topic: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest(fetch.FetchRequest):
    topics: tuple[FetchTopic, ...]
    forgotten_topics_data: tuple[ForgottenTopic, ...]
    replica_id: BrokerId = field(metadata=_INT32, default=BrokerId(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition(fetch_response.PartitionData):
    compacted_offset: i64 = field(metadata=_COMPACTED_OFFSET, default=i64(0))
    tombstone_start_offset: i64 = field(metadata=_TOMBSTONE_START, default=i64(0))
    remote_store_id: i64 = field(metadata=_REMOTE_STORE, default=i64(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedTopic(fetch_response.FetchableTopicResponse):
    partitions: tuple[FetchedPartition, ...]
    topic: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse(fetch_response.FetchResponse):
    responses: tuple[FetchedTopic, ...]


# --- Produce: topic names until version 12 --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceTopic(produce.TopicProduceData):
    name: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest(produce.ProduceRequest):
    topic_data: tuple[ProduceTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedTopic(produce_response.TopicProduceResponse):
    name: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse(produce_response.ProduceResponse):
    responses: tuple[ProducedTopic, ...]


# --- Metadata: authorized operations of the cluster in versions 8 to 10 ---------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(metadata.MetadataRequest):
    include_cluster_authorized_operations: bool = field(metadata=_BOOL, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(metadata_response.MetadataResponse):
    cluster_authorized_operations: i32 = field(metadata=_INT32, default=i32(-(2**31)))


# --- FindCoordinator: one key until version 3 -----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorRequest(find_coordinator.FindCoordinatorRequest):
    key: str = field(metadata=_STRING, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class FindCoordinatorResponse(find_coordinator_response.FindCoordinatorResponse):
    error_code: ErrorCode = field(metadata=_ERROR, default=ErrorCode.none)
    error_message: str | None = field(metadata=_STRING, default=None)
    node_id: BrokerId = field(metadata=_INT32, default=BrokerId(-1))
    host: str = field(metadata=_STRING, default="")
    port: i32 = field(metadata=_INT32, default=i32(-1))


# --- OffsetCommit: topic names until version 9, a retention time until 4 --------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopic(offset_commit.OffsetCommitRequestTopic):
    name: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(offset_commit.OffsetCommitRequest):
    topics: tuple[CommittedTopic, ...]
    retention_time: i64Timedelta = field(metadata=_DURATION, default=_NO_DURATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedTopicResult(offset_commit_response.OffsetCommitResponseTopic):
    name: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse(offset_commit_response.OffsetCommitResponse):
    topics: tuple[CommittedTopicResult, ...]


# --- OffsetFetch: one group until version 7, topic names until 9 ----------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchTopic(offset_fetch.OffsetFetchRequestTopics):
    name: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchGroup(offset_fetch.OffsetFetchRequestGroup):
    topics: tuple[OffsetFetchTopic, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest(offset_fetch.OffsetFetchRequest):
    groups: tuple[OffsetFetchGroup, ...]
    group_id: GroupId = field(metadata=_STRING, default=GroupId(""))
    topics: tuple[OffsetFetchTopic, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffsetsTopic(offset_fetch_response.OffsetFetchResponseTopics):
    name: TopicName = field(metadata=_STRING, default=TopicName(""))


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffsetsGroup(offset_fetch_response.OffsetFetchResponseGroup):
    topics: tuple[FetchedOffsetsTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse(offset_fetch_response.OffsetFetchResponse):
    groups: tuple[FetchedOffsetsGroup, ...]
    topics: tuple[FetchedOffsetsTopic, ...] = ()
    error_code: ErrorCode = field(metadata=_ERROR, default=ErrorCode.none)


# --- DeleteTopics: topic names until version 5 ----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopicsRequest(delete_topics.DeleteTopicsRequest):
    topic_names: tuple[TopicName, ...] = field(metadata=_STRING, default=())


# --- AlterPartition: an ISR without broker epochs in version 2 ------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredPartition(alter_partition.PartitionData):
    new_isr: tuple[BrokerId, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredTopic(alter_partition.TopicData):
    partitions: tuple[AlteredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionRequest(alter_partition.AlterPartitionRequest):
    topics: tuple[AlteredTopic, ...]


# --- UpdateFeatures: a flag for downgrades in version 0, results until version 1 ------------------

_DOWNGRADE_FLAG_UNTIL = 0
_FEATURE_RESULTS_UNTIL = 1
FEATURE_UPGRADE = 1
FEATURE_SAFE_DOWNGRADE = 2
"""Kafka's ``FeatureUpdate.UpgradeType``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate(update_features.FeatureUpdateKey):
    allow_downgrade: bool = field(metadata=_BOOL, default=False)

    def kind(self, version: int) -> int:
        """Return the upgrade type (Kafka: ``FeatureUpdate.UpgradeType``) of an update in a request
        of this version."""
        if version > _DOWNGRADE_FLAG_UNTIL:
            return int(self.upgrade_type)
        return FEATURE_SAFE_DOWNGRADE if self.allow_downgrade else FEATURE_UPGRADE


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest(update_features.UpdateFeaturesRequest):
    feature_updates: tuple[FeatureUpdate, ...]

    def updates(self) -> tuple[FeatureUpdate, ...]:
        """Return one update per feature: the last one if there are several, as in Kafka."""
        return tuple({update.feature: update for update in self.feature_updates}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesResponse(update_features_response.UpdateFeaturesResponse):
    results: tuple[update_features_response_v1.UpdatableFeatureResult, ...] = ()

    @classmethod
    def to(
        cls, request: UpdateFeaturesRequest, version: int, code: ErrorCode, message: str | None
    ) -> UpdateFeaturesResponse:
        """Return the response to a request of this version: all of its features, or an error."""
        has_results = version <= _FEATURE_RESULTS_UNTIL and code is ErrorCode.none
        return cls(
            throttle_time=duration(0),
            error_code=code,
            error_message=message,
            results=tuple(
                update_features_response_v1.UpdatableFeatureResult(
                    feature=update.feature, error_code=ErrorCode.none, error_message=None
                )
                for update in (request.updates() if has_results else ())
            ),
        )
