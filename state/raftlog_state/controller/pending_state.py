"""State while changes are validated: an image with the records written over it.

A record is replayed when it is written, at the offset that it will have, so that the next change
is validated against it (Kafka: ``QuorumController``). A refused change is undone completely.

Random values are drawn from the caller's ``rng`` in the order of the changes: equal images, changes
and seeds produce equal records.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

from raftlog_state.image import (
    METADATA_VERSION,
    AclRow,
    BrokerRow,
    ConfigRow,
    Entity,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    Row,
    TopicRow,
)
from raftlog_state.image.delta import MetadataDelta
from raftlog_state.image.record_versions import ELR_FEATURE, LEVEL_MIN, RecordVersions
from raftlog_state.records import DecodedRecord, MetadataRecord
from raftlog_state.replay import Position, replay

R = TypeVar("R", bound=Row)

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32


class Random(Protocol):
    """Source of random ids and placement: ``random.Random`` or ``random.SystemRandom``."""

    def randbytes(self, n: int, /) -> bytes: ...

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, x: list[Any], /) -> None: ...


AclContent = tuple[int, str, int, str, str, int, int]


class PendingState:
    """Image and pending records. ``records``: to append, without transaction markers."""

    def __init__(self, image: MetadataImage, *, first_offset: int, rng: Random) -> None:
        self.records: list[DecodedRecord] = []
        self.rng = rng
        self._delta = MetadataDelta(image)
        self._first_offset = first_offset
        self._leader_epoch = image.leader_epoch
        self._colliding: dict[str, set[str]] | None = None
        self._acls: dict[AclContent, set[str]] | None = None

    # --- current state ----------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Offset that the next record will have."""
        return self._first_offset + len(self.records)

    @property
    def metadata_version(self) -> int | None:
        row = self.find(FeatureRow, METADATA_VERSION)
        return None if row is None else row.level

    @property
    def level(self) -> int:
        found = self.metadata_version
        return LEVEL_MIN if found is None else found

    @property
    def versions(self) -> RecordVersions:
        return RecordVersions(self.level, self.find(FeatureRow, ELR_FEATURE) is not None)

    def find(self, kind: type[R], *key: int | str) -> R | None:
        return self._delta.find(kind, *key)

    def rows_of(self, kind: type[R]) -> list[R]:
        """Return all rows of a type, sorted by key."""
        found = (self._delta.get(kind.ENTITY, key) for key in sorted(self._delta.keys(kind.ENTITY)))
        return [row for row in found if isinstance(row, kind)]

    def topic(self, name: str) -> TopicRow | None:
        keys = self._delta.group((Entity.TOPIC, name, ""))
        return self.find(TopicRow, *keys[-1]) if keys else None

    def partitions(self, topic_id: str) -> list[PartitionRow]:
        """Return the partitions of a topic, sorted by id."""
        keys = sorted(self._delta.group((Entity.PARTITION, topic_id, "")))
        found = (self.find(PartitionRow, *key) for key in keys)
        return [row for row in found if row is not None]

    def config(self, resource_type: int, resource_name: str, name: str) -> str | None:
        row = self.find(ConfigRow, resource_type, resource_name, name)
        return None if row is None else row.value

    def topic_config(self, topic: str, name: str) -> str | None:
        """Return the effective config of a topic: its own, else the cluster default."""
        own = self.config(TOPIC, topic, name)
        return self.config(BROKER, "", name) if own is None else own

    def is_active(self, broker_id: int) -> bool:
        """Return whether a broker may lead and be in an ISR (Kafka:
        ``ClusterControlManager.isActive``)."""
        row = self.find(BrokerRow, broker_id)
        return row is not None and not row.fenced and not row.in_controlled_shutdown

    def colliding_topics(self, name: str) -> set[str]:
        """Return the topics whose names are equal except for ``.`` and ``_``.

        Their metrics have the same names (Kafka: ``Topic.hasCollision``).
        """
        if self._colliding is None:
            self._colliding = {}
            for row in self.rows_of(TopicRow):
                self._colliding.setdefault(_unify_collision_chars(row.name), set()).add(row.name)
        return {
            one for one in self._colliding.get(_unify_collision_chars(name), ()) if self.topic(one)
        }

    def has_acl(self, content: AclContent) -> bool:
        """Return whether there is an ACL with this content, whatever its id."""
        if self._acls is None:
            self._acls = {}
            for row in self.rows_of(AclRow):
                self.add_acl_content(acl_content(row), row.acl_id)
        return any(self.find(AclRow, found) for found in self._acls.get(content, ()))

    # --- writes -----------------------------------------------------------------------------------

    def write(self, record: MetadataRecord, version: int | None = None) -> None:
        """Replay and append a record, by default in the version of metadata.version."""
        offset = self.next_offset
        if version is None:
            version = self.versions.of(type(record))
        replay(record, self._delta, Position(offset, offset, self._leader_epoch, -1))
        self.records.append(DecodedRecord(version, record))

    def add_topic_name(self, name: str) -> None:
        """Add a new topic to the index of colliding names."""
        if self._colliding is not None:
            self._colliding.setdefault(_unify_collision_chars(name), set()).add(name)

    def add_acl_content(self, content: AclContent, acl_id: str) -> None:
        """Add an ACL to the index of contents."""
        if self._acls is not None:
            self._acls.setdefault(content, set()).add(acl_id)

    def random_uuid(self) -> str:
        """Return a random uuid as Kafka's: version 4, not reserved, no leading dash in its text.

        Source: Kafka ``Uuid.randomUuid``, ``DirectoryId.reserved``.
        """
        while True:
            raw = bytearray(self.rng.randbytes(16))
            raw[6] = raw[6] & 0x0F | 0x40
            raw[8] = raw[8] & 0x3F | 0x80
            text = base64.urlsafe_b64encode(raw).decode("ascii")[:22]
            if not text.startswith("-"):
                return text

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Undo the records written inside if an exception is raised."""
        count = len(self.records)
        self._delta.take_changes()
        try:
            yield
        except BaseException:
            self._delta.undo(reversed(self._delta.take_changes()))
            del self.records[count:]
            raise


def acl_content(row: AclRow) -> AclContent:
    """Return the content of an ACL without its id."""
    return (
        row.resource_type,
        row.resource_name,
        row.pattern_type,
        row.principal,
        row.host,
        row.operation,
        row.permission,
    )


def unregistered_brokers(ids: Sequence[int], state: PendingState) -> list[int]:
    """Return the ids that are not those of registered brokers."""
    return [one for one in ids if state.find(BrokerRow, one) is None]


def _unify_collision_chars(name: str) -> str:
    return name.replace(".", "_")
