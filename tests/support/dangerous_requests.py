"""Every request that a node serves, in a harmful and a harmless form.

The harmful form would change the node if its sender were trusted: a record, a vote in a later
epoch, an added or removed voter. The harmless form is well-formed and answered with ``codes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from raftlog.node.access import Rights
from raftlog.records.builder import BatchBuilder
from raftlog.records.record import NewRecord
from raftlog.wire import ApiKey, Listener
from raftlog.wire.log_identity import uuid_or_none

from .served_node import ServedNode

OTHER_DIRECTORY: Final = "CrUad84nR8KvMEpDpKrwbw"
RECORD: Final = b"a record"
DESCRIBE: Final = Rights.DESCRIBE


@dataclass(frozen=True)
class Claim:
    """Claimed sender of a message. ``is_harmless``: the request has no effect."""

    node: ServedNode
    port: Listener
    speaker: int
    cluster_id: str
    is_harmless: bool

    @property
    def epoch(self) -> int:
        """Return a stale epoch, or one that would depose the leader."""
        return 0 if self.is_harmless else self.node.node.raft_node.replica.core.epoch + 10

    @property
    def topic_id(self) -> Any:
        return uuid_or_none(self.node.node.log_identity.topic_id)

    @property
    def endpoint(self) -> dict[str, Any]:
        return {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}


def batch() -> bytes:
    builder = BatchBuilder(base_timestamp_ms=0)
    builder.append([NewRecord(None, RECORD)])
    return builder.build(0, 0).data


def _produce(claim: Claim) -> dict[str, Any]:
    partition = {"index": 0, "records": batch()}
    topic = {"topic_id": claim.topic_id, "partition_data": [partition]}
    return {"acks": -1, "timeout": timedelta(seconds=20), "topic_data": [topic]}


def _fetch(claim: Claim, replica_id: int) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 10_000}
    partition["current_leader_epoch"] = claim.node.node.raft_node.replica.core.epoch
    if replica_id >= 0:
        # An acknowledgement of all records, and more.
        partition["fetch_offset"] = claim.node.node.raft_node.replica.log.end_offset
        partition["last_fetched_epoch"] = partition["current_leader_epoch"]
    return {
        "cluster_id": claim.cluster_id,
        "max_bytes": 10_000,
        "replica_state": {"replica_id": replica_id},
        "topics": [{"topic_id": claim.topic_id, "partitions": [partition]}],
    }


def _vote(claim: Claim) -> dict[str, Any]:
    partition = {
        "partition_index": 0,
        "replica_epoch": max(claim.epoch, 1),  # in the first one this node has voted
        "replica_id": claim.speaker,
        "last_offset_epoch": claim.epoch,
        "last_offset": 0 if claim.is_harmless else 10**9,
        "pre_vote": False,
    }
    topics = [{"topic_name": "raftlog", "partitions": [partition]}]
    return {"cluster_id": claim.cluster_id, "voter_id": 1, "topics": topics}


def _begin(claim: Claim) -> dict[str, Any]:
    partition = {"partition_index": 0, "leader_id": claim.speaker, "leader_epoch": claim.epoch}
    topics = [{"topic_name": "raftlog", "partitions": [partition]}]
    return {
        "cluster_id": claim.cluster_id,
        "voter_id": 1,
        "topics": topics,
        "leader_endpoints": [claim.endpoint],
    }


def _end(claim: Claim) -> dict[str, Any]:
    partition = {"partition_index": 0, "leader_id": claim.speaker, "leader_epoch": claim.epoch}
    topics = [{"topic_name": "raftlog", "partitions": [partition]}]
    return {
        "cluster_id": claim.cluster_id,
        "topics": topics,
        "leader_endpoints": [claim.endpoint],
    }


def _fetch_snapshot(claim: Claim) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": claim.node.node.raft_node.replica.core.epoch,
        "snapshot_id": {"end_offset": 0, "epoch": 0},
    }
    return {
        "cluster_id": claim.cluster_id,
        "replica_id": claim.speaker,
        "max_bytes": 10_000,
        "topics": [{"name": "raftlog", "partitions": [partition]}],
    }


def _add_voter(claim: Claim) -> dict[str, Any]:
    return {
        "cluster_id": claim.cluster_id,
        "timeout": timedelta(seconds=20),
        "voter_id": 1 if claim.is_harmless else 3,  # 1 is one already
        "voter_directory_id": uuid_or_none(OTHER_DIRECTORY),
        "listeners": [claim.endpoint],
    }


def _remove_voter(claim: Claim) -> dict[str, Any]:
    own = claim.node.node.raft_node.replica.core.voters.find(1)
    assert own is not None
    directory_id = OTHER_DIRECTORY if claim.is_harmless else own.key.directory_id
    return {
        "cluster_id": claim.cluster_id,
        "voter_id": 1,
        "voter_directory_id": uuid_or_none(directory_id),
    }


def _update_voter(claim: Claim) -> dict[str, Any]:
    own = claim.node.node.raft_node.replica.core.voters.find(1)
    assert own is not None
    return {
        "cluster_id": claim.cluster_id,
        "current_leader_epoch": claim.node.node.raft_node.replica.core.epoch,
        "voter_id": claim.speaker,
        "voter_directory_id": uuid_or_none(own.key.directory_id),
        "listeners": [claim.endpoint],
        "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
    }


def _topics(claim: Claim, **partition: Any) -> list[dict[str, Any]]:
    return [{"name": "raftlog", "partitions": [{"partition_index": 0, **partition}]}]


@dataclass(frozen=True)
class Kind:
    """Kind of request: the rights it needs (any one of them), and its content."""

    name: str
    key: ApiKey
    right: Rights
    values: Callable[[Claim], dict[str, Any]]
    names_speaker: bool = False
    codes: tuple[int, ...] = ()
    """Expected error codes of the harmless form."""

    @property
    def names_cluster(self) -> bool:
        without = (ApiKey.UPDATE_FEATURES, ApiKey.DELETE_GROUPS, ApiKey.OFFSET_DELETE)
        return self.right in (Rights.VOTE, Rights.ADMIN) and self.key not in without


def kinds() -> list[Kind]:
    key = ApiKey
    return [
        Kind("Produce", key.PRODUCE, Rights.APPEND, _produce),
        Kind("Fetch of a consumer", key.FETCH, Rights.READ, lambda claim: _fetch(claim, -1)),
        Kind("ListOffsets", key.LIST_OFFSETS, DESCRIBE, lambda c: {"topics": _topics(c)}),
        Kind("Metadata", key.METADATA, DESCRIBE, lambda _: {"topics": [{"name": "raftlog"}]}),
        Kind(
            "OffsetFetch",
            key.OFFSET_FETCH,
            Rights.READ | Rights.APPEND | Rights.ADMIN,
            lambda _: {"groups": [{"group_id": "raftlog.commit:app", "topics": None}]},
        ),
        Kind("OffsetCommit", key.OFFSET_COMMIT, Rights.READ, _offset_commit, codes=(12,)),
        Kind(
            "DescribeGroups",
            key.DESCRIBE_GROUPS,
            DESCRIBE,
            lambda _: {"groups": ["g"]},
            codes=(69,),
        ),
        Kind("ListGroups", key.LIST_GROUPS, DESCRIBE, lambda _: {}),
        Kind(
            "DeleteGroups",
            key.DELETE_GROUPS,
            Rights.ADMIN,
            lambda _: {"groups_names": ["g"]},
            codes=(69,),
        ),
        Kind(
            "OffsetDelete",
            key.OFFSET_DELETE,
            Rights.ADMIN,
            lambda claim: {"group_id": "g", "topics": _topics(claim)},
            codes=(69,),
        ),
        Kind(
            "FindCoordinator", key.FIND_COORDINATOR, DESCRIBE, lambda _: {"coordinator_keys": "a"}
        ),
        Kind("InitProducerId", key.INIT_PRODUCER_ID, Rights.APPEND, _init_producer_id),
        Kind(
            "OffsetForLeaderEpoch",
            key.OFFSET_FOR_LEADER_EPOCH,
            DESCRIBE,
            lambda _: {"topics": [{"topic": "raftlog", "partitions": [{"leader_epoch": 1}]}]},
        ),
        Kind(
            "DescribeConfigs",
            key.DESCRIBE_CONFIGS,
            DESCRIBE,
            lambda _: {"resources": [{"resource_type": 2, "resource_name": "raftlog"}]},
        ),
        Kind("DescribeQuorum", key.DESCRIBE_QUORUM, DESCRIBE, _describe_quorum),
        Kind("DescribeCluster", key.DESCRIBE_CLUSTER, DESCRIBE, _describe_cluster),
        Kind(
            "DescribeTopicPartitions",
            key.DESCRIBE_TOPIC_PARTITIONS,
            DESCRIBE,
            lambda _: {"topics": [{"name": "raftlog"}]},
        ),
        Kind("Vote", key.VOTE, Rights.VOTE, _vote, True),
        Kind("BeginQuorumEpoch", key.BEGIN_QUORUM_EPOCH, Rights.VOTE, _begin, True, (74,)),
        Kind("EndQuorumEpoch", key.END_QUORUM_EPOCH, Rights.VOTE, _end, True, (74,)),
        Kind(
            "Fetch of a replica",
            key.FETCH,
            Rights.VOTE,
            lambda claim: _fetch(claim, claim.speaker),
            names_speaker=True,
        ),
        Kind("FetchSnapshot", key.FETCH_SNAPSHOT, Rights.VOTE, _fetch_snapshot, True, (98,)),
        Kind("UpdateRaftVoter", key.UPDATE_RAFT_VOTER, Rights.VOTE, _update_voter, True, (127,)),
        Kind("DeleteRecords", key.DELETE_RECORDS, Rights.ADMIN, _delete_records, codes=(1,)),
        Kind("UpdateFeatures", key.UPDATE_FEATURES, Rights.ADMIN, _update_features, codes=(95,)),
        Kind("AddRaftVoter", key.ADD_RAFT_VOTER, Rights.ADMIN, _add_voter, codes=(126,)),
        Kind("RemoveRaftVoter", key.REMOVE_RAFT_VOTER, Rights.ADMIN, _remove_voter, codes=(127,)),
    ]


def _offset_commit(claim: Claim) -> dict[str, Any]:
    metadata = "too long " * 1_000 if claim.is_harmless else ""
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": metadata}
    topics = [{"topic_id": claim.topic_id, "partitions": [partition]}]
    return {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics}


def _delete_records(claim: Claim) -> dict[str, Any]:
    partition = {"partition_index": 0, "offset": 10**9 if claim.is_harmless else -1}
    topics = [{"name": "raftlog", "partitions": [partition]}]
    return {"timeout": timedelta(seconds=20), "topics": topics}


def _update_features(_: Claim) -> dict[str, Any]:
    return {"feature_updates": [{"feature": "kraft.version", "max_version_level": 0}]}


def _init_producer_id(_: Claim) -> dict[str, Any]:
    return {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}


def _describe_cluster(claim: Claim) -> dict[str, Any]:
    return {"endpoint_type": 2 if claim.port is Listener.VOTERS else 1}


def _describe_quorum(_: Claim) -> dict[str, Any]:
    partitions = [{"partition_index": 0}]
    return {"topics": [{"topic_name": "raftlog", "partitions": partitions}]}
