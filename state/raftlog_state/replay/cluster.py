"""Brokers, controllers, features and what concerns the cluster as a whole.

Fencing or unregistering a broker changes no partition: the controller writes partition changes
beside it.

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
    """The whole of a broker's registration; what was known of that id before is gone."""
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
    """A broker goes. Neither its absence nor its epoch matters, as in Kafka's image."""
    delta.delete(Entity.BROKER, (record.broker_id,))


@replay.register
def fence_broker(record: FenceBrokerRecord, delta: MetadataDelta, at: Position) -> None:
    """A broker may serve nothing."""
    row = _broker(record, record.id, record.epoch, delta, at)
    delta.replace(row, dataclasses.replace(row, fenced=True))


@replay.register
def unfence_broker(record: UnfenceBrokerRecord, delta: MetadataDelta, at: Position) -> None:
    """A broker may serve again."""
    row = _broker(record, record.id, record.epoch, delta, at)
    delta.replace(row, dataclasses.replace(row, fenced=False))


@replay.register
def broker_registration_change(
    record: BrokerRegistrationChangeRecord, delta: MetadataDelta, at: Position
) -> None:
    """Some fields of a broker.

    Fenced: 1 fence, 0 keep, -1 unfence. In controlled shutdown: 1 set, 0 keep; only a new
    registration unsets it. Log directories: empty keeps. Cordoned ones: None keeps, empty clears.
    """
    row = _broker(record, record.broker_id, record.broker_epoch, delta, at)
    if record.fenced not in (-1, 0, 1):
        raise contradiction(record, at, f"{record.fenced} is no change of fencing")
    if record.in_controlled_shutdown not in (0, 1):
        what = f"{record.in_controlled_shutdown} is no change of controlled shutdown"
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
    """The whole of a controller's registration."""
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
    """A controller goes; its absence is no error."""
    delta.delete(Entity.CONTROLLER, (record.controller_id,))


@replay.register
def feature_level(record: FeatureLevelRecord, delta: MetadataDelta, at: Position) -> None:
    """A feature is finalized at a level; 0 removes it.

    kraft.version lives in control records and is left alone here. A level of metadata.version that
    is newer than this program is taken as it is: a reader has to outlive upgrades.
    """
    if record.name == KRAFT_VERSION:
        return
    if record.feature_level == 0:
        delta.delete(Entity.FEATURE, (record.name,))
    else:
        delta.put(FeatureRow(name=record.name, level=record.feature_level))


@replay.register
def zk_migration_state(record: ZkMigrationStateRecord, delta: MetadataDelta, at: Position) -> None:
    """How far the migration from ZooKeeper is. Kafka 4 ignores it, 3.4 to 3.9 keep it."""
    delta.put(ZkMigrationRow(state=record.zk_migration_state))


@replay.register
def producer_ids(record: ProducerIdsRecord, delta: MetadataDelta, at: Position) -> None:
    """A block of producer ids was handed out."""
    delta.put(
        ProducerIdsRow(
            next_producer_id=record.next_producer_id,
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
        )
    )


@replay.register
def no_op(record: NoOpRecord, delta: MetadataDelta, at: Position) -> None:
    """Nothing."""


def _broker(
    record: MetadataRecord, broker_id: int, epoch: int, delta: MetadataDelta, at: Position
) -> BrokerRow:
    row = delta.find(BrokerRow, broker_id)
    if row is None:
        raise contradiction(record, at, f"broker {broker_id} is not registered")
    if row.broker_epoch != epoch:
        what = f"broker {broker_id} has epoch {row.broker_epoch}, the record says {epoch}"
        raise contradiction(record, at, what)
    return row


def _endpoints(
    listeners: tuple[BrokerEndpoint, ...] | tuple[ControllerEndpoint, ...],
) -> tuple[Endpoint, ...]:
    """By name, and of equal names the last, as in Kafka's map."""
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
    """In Kafka's order of uuids: by two signed 64-bit numbers."""
    return tuple(sorted(directories, key=_uuid_order))


def _uuid_order(uuid: str) -> tuple[int, int]:
    raw = binascii.a2b_base64(uuid.replace("-", "+").replace("_", "/") + "==")
    high, low = _SIGNED_LONGS.unpack(raw)
    return high, low
