"""Replay of brokers, controllers, features, migration state and producer ids.

Fencing or unregistering a broker changes no partition: the controller writes PartitionChangeRecords
for that.

Source: Kafka ``ClusterDelta``, ``BrokerRegistration``, ``ControllerRegistration``,
``FeaturesDelta``, ``ProducerIdsDelta``.
"""

from __future__ import annotations

import binascii
import dataclasses
import struct
from typing import Final

from raftlog_state.delta import MetadataDelta
from raftlog_state.image import (
    BrokerRow,
    ControllerRow,
    Endpoint,
    Entity,
    FeatureRange,
    FeatureRow,
    ProducerIdsRow,
    ZkMigrationRow,
)
from raftlog_state.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
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

from .dispatch import replay
from .position import Position, contradiction

KRAFT_VERSION: Final = "kraft.version"
_SIGNED_LONGS: Final = struct.Struct(">qq")


@replay.register
def register_broker(record: RegisterBrokerRecord, delta: MetadataDelta, at: Position) -> None:
    """Register a broker, replacing an earlier registration of its id."""
    delta.put(
        BrokerRow(
            broker_id=record.broker_id,
            incarnation_id=record.incarnation_id,
            broker_epoch=record.broker_epoch,
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
            log_dirs=_sorted_directories(record.log_dirs),
            cordoned_log_dirs=record.cordoned_log_dirs,
        )
    )


@replay.register
def unregister_broker(record: UnregisterBrokerRecord, delta: MetadataDelta, at: Position) -> None:
    """Unregister a broker, if it exists; its epoch is not compared, as in Kafka's image."""
    delta.delete(Entity.BROKER, (record.broker_id,))


@replay.register
def fence_broker(record: FenceBrokerRecord, delta: MetadataDelta, at: Position) -> None:
    """Fence a broker."""
    row = _broker(record, record.id, record.epoch, delta, at)
    delta.replace(row, dataclasses.replace(row, fenced=True))


@replay.register
def unfence_broker(record: UnfenceBrokerRecord, delta: MetadataDelta, at: Position) -> None:
    """Unfence a broker."""
    row = _broker(record, record.id, record.epoch, delta, at)
    delta.replace(row, dataclasses.replace(row, fenced=False))


@replay.register
def broker_registration_change(
    record: BrokerRegistrationChangeRecord, delta: MetadataDelta, at: Position
) -> None:
    """Change some fields of a broker's registration.

    ``fenced``: 1 fence, 0 no change, -1 unfence. ``in_controlled_shutdown``: 1 set, 0 no change;
    only a new registration unsets it. ``log_dirs``: empty is no change. ``cordoned_log_dirs``: None
    is no change, empty clears.
    """
    row = _broker(record, record.broker_id, record.broker_epoch, delta, at)
    if record.fenced not in (-1, 0, 1):
        raise contradiction(record, at, f"unknown value for fenced field: {record.fenced}")
    if record.in_controlled_shutdown not in (0, 1):
        what = f"unknown value for inControlledShutdown field: {record.in_controlled_shutdown}"
        raise contradiction(record, at, what)
    log_dirs, cordoned = row.log_dirs, row.cordoned_log_dirs
    if record.log_dirs:
        log_dirs = _sorted_directories(record.log_dirs)
    if record.cordoned_log_dirs is not None:
        cordoned = record.cordoned_log_dirs
    delta.replace(
        row,
        dataclasses.replace(
            row,
            fenced=row.fenced if record.fenced == 0 else record.fenced == 1,
            in_controlled_shutdown=row.in_controlled_shutdown or record.in_controlled_shutdown == 1,
            log_dirs=log_dirs,
            cordoned_log_dirs=cordoned,
        ),
    )


@replay.register
def register_controller(
    record: RegisterControllerRecord, delta: MetadataDelta, at: Position
) -> None:
    """Register a controller, replacing an earlier registration of its id."""
    delta.put(
        ControllerRow(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            zk_migration_ready=record.zk_migration_ready,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        )
    )


@replay.register
def unregister_controller(
    record: UnregisterControllerRecord, delta: MetadataDelta, at: Position
) -> None:
    """Unregister a controller, if it exists."""
    delta.delete(Entity.CONTROLLER, (record.controller_id,))


@replay.register
def feature_level(record: FeatureLevelRecord, delta: MetadataDelta, at: Position) -> None:
    """Finalize a feature at a level; 0 removes it.

    kraft.version is ignored: it is in control records. Levels of metadata.version that are newer
    than this release are accepted, since Kafka may be upgraded first.
    """
    if record.name == KRAFT_VERSION:
        return
    if record.feature_level == 0:
        delta.delete(Entity.FEATURE, (record.name,))
    else:
        delta.put(FeatureRow(name=record.name, level=record.feature_level))


@replay.register
def zk_migration_state(record: ZkMigrationStateRecord, delta: MetadataDelta, at: Position) -> None:
    """Set the state of a migration from ZooKeeper (Kafka 3.4 to 3.9; Kafka 4 ignores it)."""
    delta.put(ZkMigrationRow(state=record.zk_migration_state))


@replay.register
def producer_ids(record: ProducerIdsRecord, delta: MetadataDelta, at: Position) -> None:
    """Allocate a block of producer ids."""
    delta.put(
        ProducerIdsRow(
            next_producer_id=record.next_producer_id,
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
        )
    )


@replay.register
def no_op(record: NoOpRecord, delta: MetadataDelta, at: Position) -> None:
    """Change nothing."""


def _broker(
    record: MetadataRecord, broker_id: int, epoch: int, delta: MetadataDelta, at: Position
) -> BrokerRow:
    row = delta.find(BrokerRow, broker_id)
    if row is None:
        raise contradiction(record, at, f"broker {broker_id} is not registered")
    if row.broker_epoch != epoch:
        what = f"broker {broker_id} has epoch {row.broker_epoch}, but the record has {epoch}"
        raise contradiction(record, at, what)
    return row


def _endpoints(
    listeners: tuple[BrokerEndpoint, ...] | tuple[ControllerEndpoint, ...],
) -> tuple[Endpoint, ...]:
    """Sort by name; of equal names keep the last, as in Kafka's map."""
    found = {at.name: Endpoint(at.name, at.host, at.port, at.security_protocol) for at in listeners}
    return tuple(found[name] for name in sorted(found))


def _features(
    supported: tuple[BrokerFeature, ...] | tuple[ControllerFeature, ...],
) -> tuple[FeatureRange, ...]:
    found = {
        of.name: FeatureRange(of.name, of.min_supported_version, of.max_supported_version)
        for of in supported
    }
    return tuple(found[name] for name in sorted(found))


def _sorted_directories(directories: tuple[str, ...]) -> tuple[str, ...]:
    """Sort in the order of Kafka's ``Uuid``: as pairs of signed 64-bit numbers."""
    return tuple(sorted(directories, key=_uuid_order))


def _uuid_order(uuid: str) -> tuple[int, int]:
    raw = binascii.a2b_base64(uuid.replace("-", "+").replace("_", "/") + "==")
    high, low = _SIGNED_LONGS.unpack(raw)
    return high, low
