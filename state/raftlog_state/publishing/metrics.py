"""Metrics of a cluster's metadata, updated with each change.

Source: Kafka ``ControllerMetadataMetricsPublisher``, ``ControllerMetricsChanges``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from raftlog_state.image import BrokerRow, Entity, MetadataImage, PartitionRow, Row, TopicRow
from raftlog_state.image.delta import RowChange
from raftlog_state.steps import CHANGES_PER_STEP, Steps, begin, for_each_in_steps

from .publisher import LeaderAndEpoch, LogDeltaManifest, Manifest, MetadataUpdate

_COUNTED: Final = frozenset({Entity.BROKER, Entity.TOPIC, Entity.PARTITION})
_NO_LEADER: Final = -1


@dataclass(slots=True, kw_only=True)
class ControllerMetadataMetrics:
    """Kafka's metrics of kafka.controller:type=KafkaController, by their names there.

    ``unclean_leader_elections`` counts since the publisher was created (Kafka: a meter,
    ``UncleanLeaderElectionsPerSec``).
    """

    fenced_broker_count: int = 0
    active_broker_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    unclean_leader_elections: int = 0


class ControllerMetadataMetricsPublisher:
    """Publisher that counts brokers, topics and partitions. ``metrics`` has the current values."""

    def __init__(self) -> None:
        self.metrics = ControllerMetadataMetrics()

    @property
    def name(self) -> str:
        return "ControllerMetadataMetricsPublisher"

    def on_metadata_update(
        self, update: MetadataUpdate, image: MetadataImage, manifest: Manifest
    ) -> Steps:
        """Count the rows that changed, in steps; the metrics change with the last one."""
        del image
        return begin(self._count_changes(update, isinstance(manifest, LogDeltaManifest)))

    def _count_changes(self, update: MetadataUpdate, is_of_log: bool) -> Iterator[None]:
        counted = replace(self.metrics)

        def count(change: RowChange) -> None:
            if change.entity in _COUNTED:
                _count(counted, change.before, -1)
                _count(counted, change.after, 1)
                if is_of_log and _is_unclean(change):
                    counted.unclean_leader_elections += 1

        yield from for_each_in_steps(update.row_changes(), count, CHANGES_PER_STEP)
        self.metrics = counted

    def on_controller_change(self, leader: LeaderAndEpoch) -> None:
        """Do nothing: the metrics are the same on every replica."""

    def close(self) -> None:
        """Do nothing: the metrics remain."""


def _count(metrics: ControllerMetadataMetrics, row: Row | None, by: int) -> None:
    if isinstance(row, PartitionRow):
        metrics.global_partition_count += by
        metrics.offline_partitions_count += by * (row.leader == _NO_LEADER)
        metrics.preferred_replica_imbalance_count += by * (row.replicas[:1] != (row.leader,))
    elif isinstance(row, TopicRow):
        metrics.global_topic_count += by
    elif isinstance(row, BrokerRow) and row.fenced:
        metrics.fenced_broker_count += by
    elif isinstance(row, BrokerRow):
        metrics.active_broker_count += by


def _is_unclean(change: RowChange) -> bool:
    """Return whether a partition has a leader that was not in its ISR."""
    row, before = change.after, change.before
    if not isinstance(row, PartitionRow) or row.leader == _NO_LEADER:
        return False
    isr = before.isr if isinstance(before, PartitionRow) else row.replicas
    return row.leader not in isr
