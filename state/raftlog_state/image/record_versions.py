"""Record versions for each level of metadata.version, and the level that a record type requires.

Source: Kafka ``MetadataVersion``, ``PartitionRegistration.toRecord``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog_state.errors import UnsupportedVersionError
from raftlog_state.records import (
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)

from .metadata_image import MetadataImage
from .row_schema import row_writer
from .rows import DIRECTORY_MIGRATING, FeatureRow, PartitionRow

LEVEL_MIN: Final = 7
"""3.3-IV3: assumed for a log without metadata.version."""

LEVEL_MAX: Final = 33
"""4.4-IV2: the newest of Kafka 4.4.0."""

LEVEL_NEW_CLUSTER: Final = 30
"""4.3-IV0: brokers of Kafka 4.3 cannot register with a cluster whose level is later."""

LEVEL_ZK_MIGRATION: Final = 8
LEVEL_SCRAM: Final = 11
LEVEL_NO_EPOCH_BUMP: Final = 12
"""3.6-IV0: an ISR shrink alone no longer bumps the leader epoch (KAFKA-15021)."""
LEVEL_TRANSACTIONS: Final = 13
LEVEL_TOKENS: Final = 14
LEVEL_CONTROLLERS: Final = 15
LEVEL_DIRECTORIES: Final = 17
LEVEL_ZK_MIGRATION_LAST: Final = 21
"""3.9-IV0: later levels have no migration state."""
LEVEL_ELR: Final = 23
LEVEL_CORDONED: Final = 30
LEVEL_CIDR_ACLS: Final = 32

ELR_FEATURE: Final = "eligible.leader.replicas.version"


class RecordVersions:
    """Record versions of one level. ``elr_enabled``: eligible.leader.replicas.version is set."""

    def __init__(self, level: int, elr_enabled: bool) -> None:
        self.level = level
        self.elr = elr_enabled and level >= LEVEL_ELR
        self.directories = level >= LEVEL_DIRECTORIES
        self.partition = 2 if level >= LEVEL_ELR else 1 if self.directories else 0
        if level >= LEVEL_CORDONED:
            self.register_broker, self.broker_change = 4, 3
        elif self.directories:
            self.register_broker, self.broker_change = 3, 2
        else:
            self.register_broker = 2 if level >= LEVEL_ZK_MIGRATION else 1
            self.broker_change = 1

    @classmethod
    def of_image(cls, image: MetadataImage) -> RecordVersions:
        """Return the record versions for an image's metadata.version."""
        level = image.metadata_version
        elr_enabled = image.find(FeatureRow, ELR_FEATURE) is not None
        return cls(LEVEL_MIN if level is None else level, elr_enabled)

    def of(self, kind: type[MetadataRecord]) -> int:
        """Return the version in which the level writes a record type."""
        if kind in (PartitionRecord, PartitionChangeRecord):
            return self.partition
        if kind is RegisterBrokerRecord:
            return self.register_broker
        if kind is BrokerRegistrationChangeRecord:
            return self.broker_change
        return 0

    def require(self, level: int, kind: type[MetadataRecord], what: str) -> None:
        """Raise ``UnsupportedVersionError`` if metadata.version is below ``level``."""
        if self.level < level:
            reason = f"{what}, and metadata.version {self.level} is below {level}"
            raise UnsupportedVersionError(record=kind.schema.name, version=0, reason=reason)


_partition_record: Final[Callable[[PartitionRow, tuple[str, ...]], PartitionRecord]] = row_writer(
    PartitionRow, PartitionRecord, "directories"
)


def partition_record(row: PartitionRow, versions: RecordVersions) -> PartitionRecord:
    """Return the PartitionRecord of ``row``, with the fields of the level."""
    directories = row.directories
    if not versions.directories and set(directories) <= {DIRECTORY_MIGRATING}:
        directories = ()
    # Kafka writes the ELR's tagged fields only while its feature is enabled.
    return _partition_record(row if versions.elr else row.without_elr(), directories)
