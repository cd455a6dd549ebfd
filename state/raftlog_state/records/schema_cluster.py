"""Record types of brokers, controllers, features and transaction markers.

Source: the message files of Kafka's ``metadata`` module, 4.3.
"""

from __future__ import annotations

from raftlog.types import ZERO_UUID

from .declare import (
    BOOL,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UINT16,
    UUID,
    Array,
    MetadataRecord,
    Struct,
    field,
    record,
    struct,
)


@struct
class BrokerEndpoint(Struct):
    """Listener of a broker. ``security_protocol``: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT,
    3 SASL_SSL."""

    name: str = field(STRING, default="")
    host: str = field(STRING, default="")
    port: int = field(UINT16, default=0)
    security_protocol: int = field(INT16, default=0)


@struct
class BrokerFeature(Struct):
    """Levels of one feature that a broker supports, both inclusive."""

    name: str = field(STRING, default="")
    min_supported_version: int = field(INT16, default=0)
    max_supported_version: int = field(INT16, default=0)


@struct
class ControllerEndpoint(Struct):
    """Listener of a controller."""

    name: str = field(STRING, default="")
    host: str = field(STRING, default="")
    port: int = field(UINT16, default=0)
    security_protocol: int = field(INT16, default=0)


@struct
class ControllerFeature(Struct):
    """Levels of one feature that a controller supports, both inclusive."""

    name: str = field(STRING, default="")
    min_supported_version: int = field(INT16, default=0)
    max_supported_version: int = field(INT16, default=0)


@record(api_key=0, latest_version=4)
class RegisterBrokerRecord(MetadataRecord):
    """Registration of a broker. ``cordoned_log_dirs`` None: unknown."""

    broker_id: int = field(INT32, default=0)
    is_migrating_zk_broker: bool = field(BOOL, since=2, default=False)
    incarnation_id: str = field(UUID, default=ZERO_UUID)
    broker_epoch: int = field(INT64, default=0)
    end_points: tuple[BrokerEndpoint, ...] = field(Array(BrokerEndpoint), default=())
    features: tuple[BrokerFeature, ...] = field(Array(BrokerFeature), default=())
    rack: str | None = field(STRING, nullable=True, default="")
    fenced: bool = field(BOOL, default=True)
    in_controlled_shutdown: bool = field(BOOL, since=1, default=False)
    log_dirs: tuple[str, ...] = field(Array(UUID), since=3, tag=0, default=())
    cordoned_log_dirs: tuple[str, ...] | None = field(
        Array(UUID), since=4, tag=1, nullable=True, default=None
    )


@record(api_key=1)
class UnregisterBrokerRecord(MetadataRecord):
    """Removal of a broker's registration."""

    broker_id: int = field(INT32, default=0)
    broker_epoch: int = field(INT64, default=0)


@record(api_key=7)
class FenceBrokerRecord(MetadataRecord):
    """Fencing of a broker, before BrokerRegistrationChangeRecord replaced it."""

    id: int = field(INT32, default=0)
    epoch: int = field(INT64, default=0)


@record(api_key=8)
class UnfenceBrokerRecord(MetadataRecord):
    """Unfencing of a broker, before BrokerRegistrationChangeRecord replaced it."""

    id: int = field(INT32, default=0)
    epoch: int = field(INT64, default=0)


@record(api_key=12)
class FeatureLevelRecord(MetadataRecord):
    """Finalized level of a feature; level 0 removes it."""

    name: str = field(STRING, default="")
    feature_level: int = field(INT16, default=0)


@record(api_key=17, latest_version=3)
class BrokerRegistrationChangeRecord(MetadataRecord):
    """Partial update of a broker's registration.

    ``fenced``: 1 fence, 0 no change, -1 unfence. ``in_controlled_shutdown``: 1 set, 0 no change.
    ``log_dirs`` empty: no change. ``cordoned_log_dirs`` None: no change; empty: clear.
    """

    broker_id: int = field(INT32, default=0)
    broker_epoch: int = field(INT64, default=0)
    fenced: int = field(INT8, tag=0, default=0)
    in_controlled_shutdown: int = field(INT8, since=1, tag=1, default=0)
    log_dirs: tuple[str, ...] = field(Array(UUID), since=2, tag=2, default=())
    cordoned_log_dirs: tuple[str, ...] | None = field(
        Array(UUID), since=3, tag=3, nullable=True, default=None
    )


@record(api_key=20)
class NoOpRecord(MetadataRecord):
    """Periodic record of the active controller; it changes nothing (KIP-835)."""


@record(api_key=21)
class ZkMigrationStateRecord(MetadataRecord):
    """State of a migration from ZooKeeper (KIP-866); not written since 4.0."""

    zk_migration_state: int = field(INT8, default=0)


@record(api_key=23)
class BeginTransactionRecord(MetadataRecord):
    """Begin marker of a metadata transaction (KIP-868)."""

    name: str | None = field(STRING, tag=0, nullable=True, default=None)


@record(api_key=24)
class EndTransactionRecord(MetadataRecord):
    """End marker: the records since the begin marker are committed (KIP-868)."""


@record(api_key=25)
class AbortTransactionRecord(MetadataRecord):
    """Abort marker: the records since the begin marker are discarded (KIP-868)."""

    reason: str | None = field(STRING, tag=0, nullable=True, default=None)


@record(api_key=27)
class RegisterControllerRecord(MetadataRecord):
    """Registration of a controller (KIP-919)."""

    controller_id: int = field(INT32, default=0)
    incarnation_id: str = field(UUID, default=ZERO_UUID)
    zk_migration_ready: bool = field(BOOL, default=False)
    end_points: tuple[ControllerEndpoint, ...] = field(Array(ControllerEndpoint), default=())
    features: tuple[ControllerFeature, ...] = field(Array(ControllerFeature), default=())


@record(api_key=29)
class UnregisterControllerRecord(MetadataRecord):
    """Removal of a controller's registration, since Kafka 4.4."""

    controller_id: int = field(INT32, default=0)
