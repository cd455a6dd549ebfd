"""Cluster state at one offset: an immutable image of rows, by entity and key.

Rules of this file:

1. An image never changes. A delta over it gives the next one and shares the maps that it did not
   touch (Kafka: MetadataImage, MetadataDelta).
2. Two images are equal when a checkpoint of them would be: same rows of state, offset, leader
   epoch and quorum. Epochs and transactions are the log's history and take no part.
3. ``digest()`` is over the rows of state alone and does not depend on their order. It covers what
   rows hold, secrets too: where it will be stored, loader redacted records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar, cast

from raftlog.types import SnapshotId

from .rows import (
    ROW_TYPES,
    STATE_ENTITIES,
    AclRow,
    BrokerRow,
    ConfigRow,
    ControllerRow,
    Endpoint,
    Entity,
    EpochRow,
    FeatureRange,
    FeatureRow,
    Key,
    PartitionRow,
    ProducerIdsRow,
    QuotaRow,
    Row,
    ScramRow,
    TokenRow,
    TopicRow,
    TransactionOutcome,
    TransactionRow,
    Voter,
    VoterEndpoint,
    ZkMigrationRow,
    quota_entity_key,
    row_json,
    row_text,
    table_of,
)

R = TypeVar("R", bound=Row)

METADATA_VERSION: Final = "metadata.version"
_DIGEST_MODULUS: Final = 1 << 256
_EMPTY: Final[Mapping[Key, Row]] = MappingProxyType({})

RowMaps = Mapping[Entity, Mapping[Key, Row]]
Group = tuple[Entity, int | str, str]
Groups = Mapping[Group, tuple[Key, ...]]


@dataclass(frozen=True, slots=True)
class Quorum:
    """What the log says of its own quorum: kraft.version 0 knows no voters (KIP-853)."""

    kraft_version: int = 0
    voters: tuple[Voter, ...] = ()


def group_of(row: Row) -> Group | None:
    """The rows that one record may take together: a topic's partitions, its configs, its name."""
    if isinstance(row, PartitionRow):
        return (Entity.PARTITION, row.topic_id, "")
    if isinstance(row, ConfigRow):
        return (Entity.CONFIG, row.resource_type, row.resource_name)
    if isinstance(row, TopicRow):
        return (Entity.TOPIC, row.name, "")
    return None


@dataclass(frozen=True, slots=True, eq=False)
class MetadataImage:
    """State after ``offset`` (inclusive; -1: before the first record), of epoch ``leader_epoch``.

    ``timestamp_ms`` is the append time of the last record applied, -1 if there is none.
    """

    offset: int = -1
    leader_epoch: int = 0
    timestamp_ms: int = -1
    quorum: Quorum = Quorum()
    maps: RowMaps = field(default_factory=dict, repr=False)
    _groups: Groups | None = field(default=None, repr=False)
    _digest_sum: int | None = field(default=None, repr=False)

    @classmethod
    def empty(cls) -> MetadataImage:
        """The state before the first record of a log."""
        return cls()

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Row],
        *,
        offset: int,
        leader_epoch: int,
        timestamp_ms: int = -1,
        quorum: Quorum | None = None,
    ) -> MetadataImage:
        """An image of the given rows, for instance those of tables. Of equal keys the last wins."""
        maps: dict[Entity, dict[Key, Row]] = {}
        for row in rows:
            maps.setdefault(row.ENTITY, {})[row.key] = row
        return cls(
            offset=offset,
            leader_epoch=leader_epoch,
            timestamp_ms=timestamp_ms,
            quorum=quorum or Quorum(),
            maps=maps,
        )

    def map(self, entity: Entity) -> Mapping[Key, Row]:
        """The rows of one entity by key: a read-only view, in no order."""
        return MappingProxyType(self.maps.get(entity, {}))

    def get(self, entity: Entity, key: Key) -> Row | None:
        """One row, or None."""
        return self.maps.get(entity, _EMPTY).get(key)

    def find(self, kind: type[R], *key: int | str) -> R | None:
        """One row by its type, or None: ``image.find(BrokerRow, 1)``."""
        return cast("R | None", self.maps.get(kind.ENTITY, _EMPTY).get(key))

    def rows(self, entity: Entity) -> list[Row]:
        """The rows of one entity, sorted by key."""
        found = self.maps.get(entity, _EMPTY)
        return [found[key] for key in sorted(found)]

    def rows_of(self, kind: type[R]) -> list[R]:
        """The rows of one type, sorted by key: ``image.rows_of(TopicRow)``."""
        return cast("list[R]", self.rows(kind.ENTITY))

    def group(self, group: Group) -> tuple[Key, ...]:
        """The keys of the rows of one group (see ``group_of``), in the order they came."""
        return self.groups().get(group, ())

    def groups(self) -> Groups:
        """All groups; found once for each image."""
        if self._groups is None:
            found: dict[Group, list[Key]] = {}
            for entity in (Entity.PARTITION, Entity.CONFIG, Entity.TOPIC):
                for key, row in self.maps.get(entity, _EMPTY).items():
                    group = group_of(row)
                    assert group is not None
                    found.setdefault(group, []).append(key)
            frozen = {group: tuple(keys) for group, keys in found.items()}
            object.__setattr__(self, "_groups", frozen)  # a cache: the image's value is the same
        assert self._groups is not None
        return self._groups

    def topic(self, name: str) -> TopicRow | None:
        """The topic that has this name now."""
        keys = self.group((Entity.TOPIC, name, ""))
        return self.find(TopicRow, *keys[-1]) if keys else None

    @property
    def metadata_version(self) -> int | None:
        """The finalized metadata.version level, None before the first one."""
        row = self.find(FeatureRow, METADATA_VERSION)
        return None if row is None else row.level

    @property
    def snapshot_id(self) -> SnapshotId:
        """The name that a checkpoint of this image has."""
        return SnapshotId(epoch=self.leader_epoch, end_offset=self.offset + 1)

    def digest(self) -> str:
        """64 hex digits that two images share when their rows of state are the same."""
        if self._digest_sum is None:
            total = sum(row_digest(row) for entity in STATE_ENTITIES for row in self._rows(entity))
            object.__setattr__(self, "_digest_sum", total % _DIGEST_MODULUS)
        assert self._digest_sum is not None
        return f"{self._digest_sum:064x}"

    @property
    def known_digest_sum(self) -> int | None:
        """The digest as a number if it was ever asked for: what the next image builds on."""
        return self._digest_sum

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MetadataImage):
            return NotImplemented
        return (
            (self.offset, self.leader_epoch) == (other.offset, other.leader_epoch)
            and self.quorum == other.quorum
            and self.same_rows(other)
        )

    __hash__ = None  # type: ignore[assignment]  # as large as a cluster: nobody wants it as a key

    def same_rows(self, other: MetadataImage) -> bool:
        """Whether the state is the same, wherever in the log it was reached."""
        return all(
            self.maps.get(entity, _EMPTY) == other.maps.get(entity, _EMPTY)
            for entity in STATE_ENTITIES
        )

    def to_json(self, entities: Iterable[Entity] = tuple(Entity)) -> dict[str, object]:
        """The image as JSON data: where it stands, then a sorted list of rows for each entity."""
        found: dict[str, object] = {
            "offset": self.offset,
            "leader_epoch": self.leader_epoch,
            "timestamp_ms": self.timestamp_ms,
            "kraft_version": self.quorum.kraft_version,
        }
        for entity in entities:
            found[table_of(entity)] = [row_json(row) for row in self.rows(entity)]
        return found

    def at(
        self, *, offset: int, leader_epoch: int, timestamp_ms: int, quorum: Quorum
    ) -> MetadataImage:
        """The same rows, seen at a later offset."""
        return replace(
            self, offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms, quorum=quorum
        )

    def _rows(self, entity: Entity) -> Iterable[Row]:
        return self.maps.get(entity, _EMPTY).values()


def row_digest(row: Row) -> int:
    """A row's share of the digest: SHA-256 of its text, as a number. Shares are added."""
    return int.from_bytes(hashlib.sha256(row_text(row).encode()).digest(), "big")


def next_digest_sum(before: int, removed: Iterable[Row], added: Iterable[Row]) -> int:
    """The digest after some rows went and others came, without looking at the rest."""
    change = sum(map(row_digest, added)) - sum(map(row_digest, removed))
    return (before + change) % _DIGEST_MODULUS


__all__ = [
    "MetadataImage",
    "Quorum",
    "METADATA_VERSION",
    "Entity",
    "STATE_ENTITIES",
    "ROW_TYPES",
    "Key",
    "Row",
    "FeatureRow",
    "ZkMigrationRow",
    "BrokerRow",
    "ControllerRow",
    "TopicRow",
    "PartitionRow",
    "ConfigRow",
    "QuotaRow",
    "ProducerIdsRow",
    "AclRow",
    "ScramRow",
    "TokenRow",
    "EpochRow",
    "TransactionRow",
    "TransactionOutcome",
    "Endpoint",
    "FeatureRange",
    "Voter",
    "VoterEndpoint",
    "Group",
    "Groups",
    "RowMaps",
    "group_of",
    "next_digest_sum",
    "quota_entity_key",
    "row_digest",
    "row_json",
    "table_of",
]
