"""``ControllerState``: the rows of a controller, at present and at registered offsets.

The collections of a state share one ``SnapshotRegistry``, whose epochs are offsets. The state at a
registered offset can be read as an image, and the whole state can revert to it in time linear in
what was written since.

Indexes are timeline collections, too, so that the cost of a change depends on what it changes and
never requires a scan:

    index                               rows                                     Kafka
    topic name, colliding topic name    topics                                   topicsByName, ...
    topic id                            partitions                               TopicControlInfo
    broker in the ISR, no leader        partitions                               BrokersToIsrs
    broker in the ELR                   partitions                               BrokersToElrs
    not led by the preferred leader     partitions                               imbalanced...
    reassignment in progress            partitions                               reassigningTopics
    resource                            configs                                  configData
    content                             ACLs                                     existingAcls

Sets that may be large (partitions) are ``TimelineSet`` objects. Small ones are tuples, which take
less memory.

Source: Kafka ``ReplicationControlManager``, ``BrokersToIsrs`` and the other control managers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from typing import Final, TypeAlias, TypeVar, cast

from raftlog_state.image import (
    METADATA_VERSION,
    STATE_ENTITIES,
    AclContent,
    AclRow,
    BrokerRow,
    ConfigRow,
    Entity,
    FeatureRow,
    Group,
    Key,
    MetadataImage,
    PartitionRow,
    Quorum,
    Row,
    TopicRow,
    acl_content,
    group_of,
)
from raftlog_state.image.record_versions import ELR_FEATURE, LEVEL_MIN, RecordVersions
from raftlog_state.records import MetadataRecord, RegisterBrokerRecord
from raftlog_state.replay import Position, replay_in_steps
from raftlog_state.steps import complete, for_each_in_steps, sorted_in_steps
from raftlog_state.timeline import SnapshotRegistry, TimelineDict, TimelineSet

R = TypeVar("R", bound=Row)

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32
"""Types of resources with configs (Kafka: ``ConfigResource.Type``)."""

NO_LEADER: Final = -1

INDEXED_PER_STEP: Final = 5_000
"""Rows of an image whose index keys are collected in one step, which takes some 10 ms."""

SEARCHED_PER_STEP: Final = 50_000
"""Partitions of a broker whose leaders are compared in one step, which takes some 10 ms."""

KEYS_PER_STEP: Final = 100_000
KEYS_LIKE_A_SET: Final = 40
"""Partition keys added to sets in one step, some 15 ms; and keys that take as long as a new set."""

_IndexKey: TypeAlias = tuple[object, ...]

PartitionsInSteps: TypeAlias = Generator[None, None, Iterator[PartitionRow]]
"""Steps that find keys in the first one and return their current rows, sorted by key."""

_ISR: Final = "isr"
_ELR: Final = "elr"
_LEADERLESS: Final[_IndexKey] = ("leaderless",)
_IMBALANCED: Final[_IndexKey] = ("imbalanced",)
_REASSIGNING: Final[_IndexKey] = ("reassigning",)
_COLLIDING: Final = "colliding"
_SMALL_ENTITIES: Final = frozenset({Entity.TOPIC, Entity.CONFIG, Entity.ACL})
_ACL: Final = "acl"
_NO_KEYS: Final[frozenset[_IndexKey]] = frozenset()


class ControllerState:
    """Rows of a cluster's metadata. Not thread-safe.

    The epochs of ``registry`` are offsets, inclusive; its user creates and deletes the snapshots.
    """

    def __init__(self) -> None:
        self.registry: Final = SnapshotRegistry()
        self._rows: Final[Mapping[Entity, TimelineDict[Key, Row]]] = {
            entity: TimelineDict(self.registry) for entity in STATE_ENTITIES
        }
        self._partitions: Final[TimelineDict[_IndexKey, TimelineSet[Key]]] = TimelineDict(
            self.registry
        )
        self._small: Final[TimelineDict[_IndexKey, tuple[Key, ...]]] = TimelineDict(self.registry)
        self._registration_offsets: Final[TimelineDict[int, int]] = TimelineDict(self.registry)

    @classmethod
    def from_image(cls, image: MetadataImage) -> ControllerState:
        """Return a state with the rows of an image, without snapshots."""
        return complete(cls.from_image_in_steps(image))

    @classmethod
    def from_image_in_steps(cls, image: MetadataImage) -> Generator[None, None, ControllerState]:
        """Return a state with the rows of an image, indexed in steps."""
        state = cls()
        partitions: defaultdict[_IndexKey, list[Key]] = defaultdict(list)
        small: dict[_IndexKey, tuple[Key, ...]] = {}

        def index_partition(element: tuple[Key, Row]) -> None:
            for index_key in _partition_index_keys(cast("PartitionRow", element[1])):
                partitions[index_key].append(element[0])

        def index(element: tuple[Key, Row]) -> None:
            for index_key in _small_index_keys(element[1]):
                small[index_key] = (*small.get(index_key, ()), element[0])

        for entity in STATE_ENTITIES:
            rows = image.maps.get(entity, {})  # not a view, which would be copied row by row
            state._rows[entity].load(rows)
            if entity is Entity.PARTITION:
                yield from for_each_in_steps(rows.items(), index_partition, INDEXED_PER_STEP)
            elif entity in _SMALL_ENTITIES:
                yield from for_each_in_steps(rows.items(), index, INDEXED_PER_STEP)
        work = 0
        for index_key, keys in partitions.items():
            found = state._partitions[index_key] = TimelineSet(state.registry)
            found.load(keys)
            work += KEYS_LIKE_A_SET + len(keys)
            if work >= KEYS_PER_STEP:
                yield
                work = 0
        state._small.load(small)
        state._registration_offsets.load(
            {row.broker_id: image.offset for row in state.rows_of(BrokerRow)}
        )
        return state

    def image_at(
        self, offset: int, *, leader_epoch: int, timestamp_ms: int, quorum: Quorum
    ) -> MetadataImage:
        """Return the image at a registered offset, in time linear in the number of rows.

        Raises ``SnapshotEpochError`` if the offset is not registered.
        """
        return MetadataImage(
            offset=offset,
            leader_epoch=leader_epoch,
            timestamp_ms=timestamp_ms,
            quorum=quorum,
            maps={entity: rows.copy_at(offset) for entity, rows in self._rows.items()},
        )

    # --- rows -------------------------------------------------------------------------------------

    def find(self, kind: type[R], *key: int | str) -> R | None:
        """Return the current row by its type, or None."""
        return cast("R | None", self._rows[kind.ENTITY].get(key))

    def rows_of(self, kind: type[R]) -> list[R]:
        """Return all rows of a type, sorted by key."""
        found = self._rows[kind.ENTITY]
        return cast("list[R]", [found[key] for key in sorted(found)])

    def rows_at(self, kind: type[R], epoch: int) -> list[R]:
        """Return all rows of a type in the in-memory snapshot of an epoch, sorted by key."""
        found = self._rows[kind.ENTITY].at(epoch)
        return cast("list[R]", [found[key] for key in sorted(found)])

    def keys(self, entity: Entity) -> list[Key]:
        """Return all current keys of an entity, in time linear in their number."""
        return list(self._rows[entity])

    def group(self, group: Group) -> tuple[Key, ...]:
        """Return the current keys of a group's rows (see ``image.group_of``)."""
        if group[0] is Entity.PARTITION:
            return tuple(self._partitions.get(group, ()))
        return self._small.get(group, ())

    def put(self, row: Row) -> None:
        """Create or replace a row."""
        key = row.key
        rows = self._rows[row.ENTITY]
        self._update_indexes(key, rows.get(key), row)
        rows[key] = row

    def replace(self, before: R, after: R) -> None:
        """Replace the current row ``before`` by another with the same key."""
        key = after.key
        self._update_indexes(key, before, after)
        self._rows[after.ENTITY][key] = after

    def delete(self, entity: Entity, key: Key) -> bool:
        """Delete a row; return False if there was none."""
        before = self._rows[entity].pop(key, None)
        if before is None:
            return False
        self._update_indexes(key, before, None)
        return True

    def replay_in_steps(self, record: MetadataRecord, at: Position) -> Generator[None, None, None]:
        """Apply a record. Raises ``ReplayError``."""
        yield from replay_in_steps(record, self, at) or ()
        if isinstance(record, RegisterBrokerRecord):
            self._registration_offsets[record.broker_id] = at.offset

    # --- queries ----------------------------------------------------------------------------------

    @property
    def metadata_version(self) -> int | None:
        row = self.find(FeatureRow, METADATA_VERSION)
        return None if row is None else row.level

    @property
    def level(self) -> int:
        """The level of metadata.version, or the lowest if it is not set."""
        found = self.metadata_version
        return LEVEL_MIN if found is None else found

    @property
    def versions(self) -> RecordVersions:
        return RecordVersions(self.level, self.find(FeatureRow, ELR_FEATURE) is not None)

    def topic(self, name: str) -> TopicRow | None:
        keys = self.group((Entity.TOPIC, name, ""))
        return self.find(TopicRow, *keys[-1]) if keys else None

    def partition_keys(self, topic_id: str) -> tuple[Key, ...]:
        """Return the keys of the partitions of a topic, in no particular order."""
        return self.group((Entity.PARTITION, topic_id, ""))

    def partitions_in_isr(self, broker_id: int) -> PartitionsInSteps:
        """Find the partitions with a broker in the ISR."""
        return self._indexed_partitions((_ISR, broker_id))

    def partitions_in_elr(self, broker_id: int) -> PartitionsInSteps:
        """Find the partitions with a broker among the eligible leader replicas."""
        return self._indexed_partitions((_ELR, broker_id))

    def leaderless_partitions(self) -> PartitionsInSteps:
        """Find the partitions without a leader."""
        return self._indexed_partitions(_LEADERLESS)

    def imbalanced_partitions(self) -> PartitionsInSteps:
        """Find the partitions that their preferred leader does not lead."""
        return self._indexed_partitions(_IMBALANCED)

    def reassigning_keys(self) -> list[Key]:
        """Return the keys of the partitions with a reassignment in progress."""
        return list(self._partitions.get(_REASSIGNING, ()))

    def config(self, resource_type: int, resource_name: str, name: str) -> str | None:
        row = self.find(ConfigRow, resource_type, resource_name, name)
        return None if row is None else row.value

    def topic_config(self, topic: str, name: str) -> str | None:
        """Return a topic's effective config: its own, or the cluster default."""
        own = self.config(TOPIC, topic, name)
        return self.config(BROKER, "", name) if own is None else own

    def registration_offset(self, broker_id: int) -> int:
        """Return the offset of a broker's last registration, or of the snapshot that contains it.

        The broker is not unfenced before it has replayed this offset.
        """
        return self._registration_offsets[broker_id]

    def leads_partitions(self, broker_id: int) -> Generator[None, None, bool]:
        """Find whether a broker leads a partition."""
        rows = self._rows[Entity.PARTITION]
        for number, key in enumerate(self._partitions.get((_ISR, broker_id), ()), start=1):
            if cast("PartitionRow", rows[key]).leader == broker_id:
                return True
            if not number % SEARCHED_PER_STEP:
                yield
        return False

    def is_active(self, broker_id: int) -> bool:
        """Return whether a broker may lead and be in an ISR.

        Kafka: ``ClusterControlManager.isActive``.
        """
        row = self.find(BrokerRow, broker_id)
        return row is not None and not row.fenced and not row.in_controlled_shutdown

    def colliding_topics(self, name: str) -> list[str]:
        """Return the topics whose names are equal except for ``.`` and ``_``, sorted.

        Their metrics have the same names (Kafka: ``Topic.hasCollision``).
        """
        keys = self._small.get((_COLLIDING, _unify_collision_chars(name)), ())
        found = (self.find(TopicRow, *key) for key in keys)
        return sorted(row.name for row in found if row is not None)

    def has_acl(self, content: AclContent) -> bool:
        """Return whether there is an ACL with this content, regardless of its id."""
        return (_ACL, *content) in self._small

    def acls_with(self, content: AclContent) -> list[AclRow]:
        """Return the ACLs with this content, sorted by id."""
        keys = sorted(self._small.get((_ACL, *content), ()))
        return [cast("AclRow", self._rows[Entity.ACL][key]) for key in keys]

    # --- indexes ----------------------------------------------------------------------------------

    def _indexed_partitions(self, index_key: _IndexKey) -> PartitionsInSteps:
        rows = self._rows[Entity.PARTITION]
        keys = yield from sorted_in_steps(self._partitions.get(index_key, ()))
        return (cast("PartitionRow", rows[key]) for key in keys)

    def _update_indexes(self, key: Key, before: Row | None, after: Row | None) -> None:
        row = before if after is None else after
        if isinstance(row, PartitionRow):
            was = (
                _NO_KEYS if before is None else _partition_index_keys(cast("PartitionRow", before))
            )
            now = _NO_KEYS if after is None else _partition_index_keys(cast("PartitionRow", after))
            for index_key in was - now:
                self._remove_partition(index_key, key)
            for index_key in now - was:
                self._add_partition(index_key, key)
        elif row is not None and row.ENTITY in _SMALL_ENTITIES:
            was = _NO_KEYS if before is None else _small_index_keys(before)
            now = _NO_KEYS if after is None else _small_index_keys(after)
            for index_key in was - now:
                self._remove_small(index_key, key)
            for index_key in now - was:
                self._small[index_key] = (*self._small.get(index_key, ()), key)

    def _add_partition(self, index_key: _IndexKey, key: Key) -> None:
        keys = self._partitions.get(index_key)
        if keys is None:
            keys = self._partitions[index_key] = TimelineSet(self.registry)
        keys.add(key)

    def _remove_partition(self, index_key: _IndexKey, key: Key) -> None:
        keys = self._partitions[index_key]
        keys.discard(key)
        if not keys:
            del self._partitions[index_key]

    def _remove_small(self, index_key: _IndexKey, key: Key) -> None:
        left = tuple(one for one in self._small[index_key] if one != key)
        if left:
            self._small[index_key] = left
        else:
            del self._small[index_key]


def is_reassigning(row: PartitionRow) -> bool:
    """Return whether a reassignment of a partition is in progress."""
    return bool(row.adding_replicas or row.removing_replicas)


def _partition_index_keys(row: PartitionRow) -> set[_IndexKey]:
    found: set[_IndexKey] = {(_ISR, one) for one in row.isr}
    found.add((Entity.PARTITION, row.topic_id, ""))
    if row.elr:
        found.update((_ELR, one) for one in row.elr)
    if row.leader == NO_LEADER:
        found.add(_LEADERLESS)
    if row.replicas and row.leader != row.replicas[0]:
        found.add(_IMBALANCED)
    if is_reassigning(row):
        found.add(_REASSIGNING)
    return found


def _small_index_keys(row: Row) -> frozenset[_IndexKey]:
    if isinstance(row, AclRow):
        return frozenset({(_ACL, *acl_content(row))})
    group = group_of(row)
    assert group is not None, "topics and configs have groups"
    if isinstance(row, TopicRow) and ("." in row.name or "_" in row.name):
        return frozenset({group, (_COLLIDING, _unify_collision_chars(row.name))})
    return frozenset({group})


def _unify_collision_chars(name: str) -> str:
    return name.replace(".", "_")
