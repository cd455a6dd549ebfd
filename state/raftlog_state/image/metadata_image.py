"""Immutable cluster state at one offset: rows by entity and key.

A ``MetadataDelta`` over an image produces the next one, which shares the maps that did not change
(Kafka: MetadataImage, MetadataDelta).

Two images are equal if their snapshots would be equal: same rows of state, offset, leader epoch and
quorum. Epochs and transactions are history of the log and are not compared.

``digest()`` covers the rows of state in any order, including their secrets. If you store a digest,
load redacted records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar, cast

from raftlog.types import SnapshotId

from .layered_map import LayeredMap
from .rows import (
    METADATA_ENTITIES,
    STATE_ENTITIES,
    ConfigRow,
    Entity,
    FeatureRow,
    Key,
    PartitionRow,
    Row,
    TopicRow,
    Voter,
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
    """Quorum as recorded in the log's control records. kraft.version 0 has no voters (KIP-853)."""

    kraft_version: int = 0
    voters: tuple[Voter, ...] = ()


def group_of(row: Row) -> Group | None:
    """Return the group by which a row is indexed, or None.

    Partitions are indexed by topic, configs by resource, topics by name.
    """
    if isinstance(row, PartitionRow):
        return (Entity.PARTITION, row.topic_id, "")
    if isinstance(row, ConfigRow):
        return (Entity.CONFIG, row.resource_type, row.resource_name)
    if isinstance(row, TopicRow):
        return (Entity.TOPIC, row.name, "")
    return None


@dataclass(frozen=True, slots=True, eq=False)
class MetadataImage:
    """Cluster state after the record at ``offset`` (inclusive; -1: before the first record).

    ``leader_epoch`` and ``timestamp_ms`` (append time) are those of the last record applied;
    ``timestamp_ms`` is -1 without records.
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
        """Return the state before the first record of a log."""
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
        """Build an image from rows, for example of tables. If keys are equal, the last row wins."""
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

    @classmethod
    def from_maps(
        cls,
        maps: RowMaps,
        groups: Groups,
        *,
        offset: int,
        leader_epoch: int,
        timestamp_ms: int,
        quorum: Quorum,
    ) -> MetadataImage:
        """Build an image over maps that never change, which later images share.

        ``groups`` contains the keys of their rows by ``group_of``.
        """
        return cls(
            offset=offset,
            leader_epoch=leader_epoch,
            timestamp_ms=timestamp_ms,
            quorum=quorum,
            maps={entity: LayeredMap(rows) for entity, rows in maps.items()},
            _groups=LayeredMap(groups),
        )

    def map(self, entity: Entity) -> Mapping[Key, Row]:
        """Return the rows of one entity by key: a read-only view in no particular order."""
        return MappingProxyType(self.maps.get(entity, {}))

    def get(self, entity: Entity, key: Key) -> Row | None:
        """Return one row, or None."""
        return self.maps.get(entity, _EMPTY).get(key)

    def find(self, kind: type[R], *key: int | str) -> R | None:
        """Return one row by its type, or None: ``image.find(BrokerRow, 1)``."""
        return cast("R | None", self.maps.get(kind.ENTITY, _EMPTY).get(key))

    def rows(self, entity: Entity) -> list[Row]:
        """Return the rows of one entity, sorted by key."""
        found = self.maps.get(entity, _EMPTY)
        return [found[key] for key in sorted(found)]

    def rows_of(self, kind: type[R]) -> list[R]:
        """Return the rows of one type, sorted by key: ``image.rows_of(TopicRow)``."""
        return cast("list[R]", self.rows(kind.ENTITY))

    def group(self, group: Group) -> tuple[Key, ...]:
        """Return the keys of the rows of one group (see ``group_of``), in order of creation."""
        return self.groups().get(group, ())

    def groups(self) -> Groups:
        """Return all groups; computed once for each image."""
        if self._groups is None:
            found: dict[Group, list[Key]] = {}
            for entity in (Entity.PARTITION, Entity.CONFIG, Entity.TOPIC):
                for key, row in self.maps.get(entity, _EMPTY).items():
                    group = group_of(row)
                    assert group is not None
                    found.setdefault(group, []).append(key)
            frozen = {group: tuple(keys) for group, keys in found.items()}
            object.__setattr__(self, "_groups", frozen)  # a cache, not part of the value
        assert self._groups is not None
        return self._groups

    def topic(self, name: str) -> TopicRow | None:
        """Return the topic of this name, or None."""
        keys = self.group((Entity.TOPIC, name, ""))
        return self.find(TopicRow, *keys[-1]) if keys else None

    @property
    def metadata_version(self) -> int | None:
        """Finalized level of metadata.version; None before the first FeatureLevelRecord."""
        row = self.find(FeatureRow, METADATA_VERSION)
        return None if row is None else row.level

    @property
    def snapshot_id(self) -> SnapshotId:
        """Id of a snapshot of this image, which is its file name."""
        return SnapshotId(epoch=self.leader_epoch, end_offset=self.offset + 1)

    def digest(self) -> str:
        """Return 64 hex digits that are equal for images with equal rows of state."""
        if self._digest_sum is None:
            total = sum(row_digest(row) for entity in STATE_ENTITIES for row in self._rows(entity))
            object.__setattr__(self, "_digest_sum", total % _DIGEST_MODULUS)
        assert self._digest_sum is not None
        return f"{self._digest_sum:064x}"

    @property
    def known_digest_sum(self) -> int | None:
        """Digest as a number, if it is already computed. The next image's digest starts from it."""
        return self._digest_sum

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MetadataImage):
            return NotImplemented
        return (
            (self.offset, self.leader_epoch) == (other.offset, other.leader_epoch)
            and self.quorum == other.quorum
            and self.same_rows(other)
        )

    __hash__ = None  # type: ignore[assignment]  # hashing would visit every row

    def same_rows(self, other: MetadataImage) -> bool:
        """Return whether the rows of state are equal, regardless of the offsets."""
        return all(
            self.maps.get(entity, _EMPTY) == other.maps.get(entity, _EMPTY)
            for entity in STATE_ENTITIES
        )

    def to_json(self, entities: Iterable[Entity] = METADATA_ENTITIES) -> dict[str, object]:
        """Return the image as JSON data: its offset, then a sorted list of rows for each entity."""
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
        """Return an image of the same rows at a later offset."""
        return replace(
            self, offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms, quorum=quorum
        )

    def _rows(self, entity: Entity) -> Iterable[Row]:
        return self.maps.get(entity, _EMPTY).values()


def row_digest(row: Row) -> int:
    """Return a row's summand of the digest: SHA-256 of its text, as a number."""
    return int.from_bytes(hashlib.sha256(row_text(row).encode()).digest(), "big")


def next_digest_sum(before: int, removed: Iterable[Row], added: Iterable[Row]) -> int:
    """Update a digest sum for removed and added rows, without visiting the others."""
    change = sum(map(row_digest, added)) - sum(map(row_digest, removed))
    return (before + change) % _DIGEST_MODULUS
