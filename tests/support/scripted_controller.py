"""Kafka controller whose responses are scripted: a real peer on a real socket."""

from __future__ import annotations

import threading

from kio.schema.describe_cluster.v2 import response as described
from kio.schema.describe_quorum.v2 import response as partition_response
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v18 import response as fetched

from raftlog.log.format.epoch_cache import EpochCache, EpochValidation
from raftlog.types import (
    CLUSTER_METADATA_TOPIC,
    CLUSTER_METADATA_TOPIC_ID,
    Diverging,
    OffsetAndEpoch,
    SnapshotId,
    SnapshotNeeded,
    Valid,
    ValidOffsetAndEpoch,
)
from raftlog.wire import ApiKey, Listener, decode, latest_schemas
from raftlog.wire.log_identity import duration, int32, int64, name, node, port, uuid_or_none
from tests.support.scripted_node import ScriptedNode


class Controller:
    """Single Kafka controller, with a log of the given bytes and the given high watermark."""

    def __init__(
        self,
        data: bytes = b"",
        high_watermark: int = 1,
        *,
        cluster_id: str = "cluster",
        knows_leader: bool = True,
        leader_epoch: int = 1,
        epochs: EpochCache | None = None,
        snapshots: tuple[SnapshotId, ...] = (),
        is_often_busy: bool = False,
        error: ErrorCode = ErrorCode.coordinator_load_in_progress,
    ) -> None:
        """``epochs`` are those of ``data``, which begins at the end of the oldest snapshot.

        ``is_often_busy``: every second fetch fails with ``error``.
        """
        self._error = error
        self._fails_always = False
        self.is_often_busy = is_often_busy
        self.held_at: int | None = None
        """Number of fetches after which each one waits until it is released."""
        self.released = threading.Event()
        self.fetch_count = 0
        self.data = data
        self.leader_epoch = leader_epoch
        self.log_start_offset = snapshots[0].end_offset if snapshots else 0
        self.validation = EpochValidation(
            log_start_offset=self.log_start_offset,
            log_end_offset=high_watermark,
            epochs=EpochCache() if epochs is None else epochs,
            snapshots=snapshots,
        )
        self.cluster_id = cluster_id
        self.knows_leader = knows_leader
        self.high_watermark = high_watermark
        self.node = ScriptedNode(
            {
                ApiKey.DESCRIBE_CLUSTER: self._cluster,
                ApiKey.DESCRIBE_QUORUM: self._quorum,
                ApiKey.FETCH: self._fetch,
            },
            listener=Listener.VOTERS,
        )

    def fail_every_fetch(self, error: ErrorCode) -> None:
        """Answer each fetch with an error."""
        self._error, self._fails_always = error, True

    def _cluster(self, version: int, body: bytes) -> object:
        me = described.DescribeClusterBroker(
            broker_id=node(1), host="127.0.0.1", port=int32(self.node.port), is_fenced=False
        )
        return described.DescribeClusterResponse(
            throttle_time=duration(0),
            error_code=ErrorCode.none,
            cluster_id=self.cluster_id,
            controller_id=node(1),
            brokers=(me,),
        )

    def _quorum(self, version: int, body: bytes) -> object:
        partition = partition_response.PartitionData(
            partition_index=int32(0),
            error_code=ErrorCode.none,
            error_message=None,
            leader_id=node(1 if self.knows_leader else -1),
            leader_epoch=int32(self.leader_epoch),
            high_watermark=int64(self.high_watermark),
            current_voters=(),
            observers=(),
        )
        topic = partition_response.TopicData(
            topic_name=name(CLUSTER_METADATA_TOPIC), partitions=(partition,)
        )
        listener = partition_response.Listener(
            name="C", host="127.0.0.1", port=port(self.node.port)
        )
        return partition_response.DescribeQuorumResponse(
            error_code=ErrorCode.none,
            error_message=None,
            topics=(topic,),
            nodes=(partition_response.Node(node_id=node(1), listeners=(listener,)),),
        )

    def _fetch(self, version: int, body: bytes) -> object:
        ((asked,),) = (
            one.partitions for one in decode(latest_schemas.FetchRequest, version, body).topics
        )
        valid: ValidOffsetAndEpoch = Valid()
        if self.validation.snapshots:
            valid = self.validation.validate(
                offset=asked.fetch_offset, epoch=asked.last_fetched_epoch
            )
        diverging = (
            valid.end if isinstance(valid, Diverging) else OffsetAndEpoch(epoch=-1, offset=-1)
        )
        snapshot_id = valid.snapshot_id if isinstance(valid, SnapshotNeeded) else None
        self.fetch_count += 1
        if self.held_at is not None and self.fetch_count > self.held_at:
            assert self.released.wait(60), "the test releases it"
        is_busy = self._fails_always or (self.is_often_busy and self.fetch_count % 2 == 1)
        partition = latest_schemas.FetchedPartition(
            partition_index=int32(0),
            error_code=self._error if is_busy else ErrorCode.none,
            high_watermark=int64(self.high_watermark),
            log_start_offset=int64(self.log_start_offset),
            diverging_epoch=fetched.EpochEndOffset(
                epoch=int32(diverging.epoch), end_offset=int64(diverging.offset)
            ),
            snapshot_id=fetched.SnapshotId(
                end_offset=int64(-1 if snapshot_id is None else snapshot_id.end_offset),
                epoch=int32(-1 if snapshot_id is None else snapshot_id.epoch),
            ),
            aborted_transactions=None,
            records=self.data if isinstance(valid, Valid) else b"",  # type: ignore[arg-type]
        )
        topic = latest_schemas.FetchedTopic(
            topic_id=uuid_or_none(CLUSTER_METADATA_TOPIC_ID), partitions=(partition,)
        )
        return latest_schemas.FetchResponse(
            throttle_time=duration(0), error_code=ErrorCode.none, responses=(topic,)
        )
