"""Replay of brokers, controllers, features, migration state and producer ids.

Fencing or unregistering a broker changes no partition: the controller writes PartitionChangeRecords
for that.

Source: Kafka ``ClusterDelta``, ``BrokerRegistration``, ``ControllerRegistration``,
``FeaturesDelta``, ``ProducerIdsDelta``.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from raftlog_state.image import (
    BrokerRow,
    ControllerRow,
    Entity,
    FeatureRow,
    ProducerIdsRow,
    ZkMigrationRow,
)
from raftlog_state.image.row_schema import row_reader, row_updater
from raftlog_state.records import (
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    ZkMigrationStateRecord,
)

from .dispatch import Position, ReplayState, contradiction, replay

KRAFT_VERSION: Final = "kraft.version"

_broker_row = row_reader(BrokerRow, RegisterBrokerRecord)
_changed_broker = row_updater(BrokerRow, BrokerRegistrationChangeRecord)
_controller_row = row_reader(ControllerRow, RegisterControllerRecord)
_feature_row = row_reader(FeatureRow, FeatureLevelRecord)
_zk_migration_row = row_reader(ZkMigrationRow, ZkMigrationStateRecord)
_producer_ids_row = row_reader(ProducerIdsRow, ProducerIdsRecord)


@replay.register
def register_broker(record: RegisterBrokerRecord, state: ReplayState, at: Position) -> None:
    """Register a broker, replacing an earlier registration of its id."""
    state.put(_broker_row(record))


@replay.register
def unregister_broker(record: UnregisterBrokerRecord, state: ReplayState, at: Position) -> None:
    """Unregister a broker, if it exists; its epoch is not compared, as in Kafka's image."""
    state.delete(Entity.BROKER, (record.broker_id,))


@replay.register
def fence_broker(record: FenceBrokerRecord, state: ReplayState, at: Position) -> None:
    """Fence a broker."""
    row = _broker(record, record.id, record.epoch, state, at)
    state.replace(row, dataclasses.replace(row, fenced=True))


@replay.register
def unfence_broker(record: UnfenceBrokerRecord, state: ReplayState, at: Position) -> None:
    """Unfence a broker."""
    row = _broker(record, record.id, record.epoch, state, at)
    state.replace(row, dataclasses.replace(row, fenced=False))


@replay.register
def broker_registration_change(
    record: BrokerRegistrationChangeRecord, state: ReplayState, at: Position
) -> None:
    """Change some fields of a broker's registration.

    Only a new registration unsets ``in_controlled_shutdown``.
    """
    row = _broker(record, record.broker_id, record.broker_epoch, state, at)
    if record.fenced not in (-1, 0, 1):
        raise contradiction(record, at, f"unknown value for fenced field: {record.fenced}")
    if record.in_controlled_shutdown not in (0, 1):
        what = f"unknown value for inControlledShutdown field: {record.in_controlled_shutdown}"
        raise contradiction(record, at, what)
    state.replace(row, _changed_broker(row, record))


@replay.register
def register_controller(record: RegisterControllerRecord, state: ReplayState, at: Position) -> None:
    """Register a controller, replacing an earlier registration of its id."""
    state.put(_controller_row(record))


@replay.register
def unregister_controller(
    record: UnregisterControllerRecord, state: ReplayState, at: Position
) -> None:
    """Unregister a controller, if it exists."""
    state.delete(Entity.CONTROLLER, (record.controller_id,))


@replay.register
def feature_level(record: FeatureLevelRecord, state: ReplayState, at: Position) -> None:
    """Finalize a feature at a level; 0 removes it.

    kraft.version is ignored, because it is in control records. Levels of metadata.version that are
    newer than this release are accepted, because Kafka may be upgraded first.
    """
    if record.name == KRAFT_VERSION:
        return
    if record.feature_level == 0:
        state.delete(Entity.FEATURE, (record.name,))
    else:
        state.put(_feature_row(record))


@replay.register
def zk_migration_state(record: ZkMigrationStateRecord, state: ReplayState, at: Position) -> None:
    """Set the state of a migration from ZooKeeper (Kafka 3.4 to 3.9; Kafka 4 ignores it)."""
    state.put(_zk_migration_row(record))


@replay.register
def producer_ids(record: ProducerIdsRecord, state: ReplayState, at: Position) -> None:
    """Allocate a block of producer ids."""
    state.put(_producer_ids_row(record))


@replay.register
def no_op(record: NoOpRecord, state: ReplayState, at: Position) -> None:
    """Change nothing."""


def _broker(
    record: MetadataRecord, broker_id: int, epoch: int, state: ReplayState, at: Position
) -> BrokerRow:
    row = state.find(BrokerRow, broker_id)
    if row is None:
        raise contradiction(record, at, f"broker {broker_id} is not registered")
    if row.broker_epoch != epoch:
        what = f"broker {broker_id} has epoch {row.broker_epoch}, but the record has {epoch}"
        raise contradiction(record, at, what)
    return row
