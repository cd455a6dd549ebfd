"""The state while changes are being made: an image, and the records that have been put over it.

Rules of this file:

1. Every record that is written is replayed at once, at the offset that it will have, so that the
   next change sees it (Kafka: ``QuorumController``, "each record is replayed at its exact offset").
2. A change that is refused halfway is taken back whole.
3. Chance is drawn from the source that the caller gives, in the order of the changes: equal images,
   changes and sources give equal records.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from raftlog_state.delta import MetadataDelta
from raftlog_state.image import (
    METADATA_VERSION,
    AclRow,
    BrokerRow,
    ConfigRow,
    Entity,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    R,
    TopicRow,
)
from raftlog_state.record_versions import ELR_FEATURE, LEVEL_MIN, RecordVersions
from raftlog_state.records import DecodedRecord, MetadataRecord
from raftlog_state.replay import Position, replay

TOPIC: Final = 2
BROKER: Final = 4
CLIENT_METRICS: Final = 16
GROUP: Final = 32


class Random(Protocol):
    """Where ids and placement come from: ``random.Random`` or ``random.SystemRandom``."""

    def randbytes(self, n: int, /) -> bytes: ...

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, x: list[Any], /) -> None: ...


AclContent = tuple[int, str, int, str, str, int, int]


class PendingState:
    """State that changes are made in. ``records``: what to append, without transaction markers."""

    def __init__(self, image: MetadataImage, *, first_offset: int, rng: Random) -> None:
        self.records: list[DecodedRecord] = []
        self.rng = rng
        self._delta = MetadataDelta(image)
        self._first_offset = first_offset
        self._leader_epoch = image.leader_epoch
        self._colliding: dict[str, set[str]] | None = None
        self._acls: dict[AclContent, set[str]] | None = None

    # --- what is there now ------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset that the next record will have."""
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
        """All rows of a type, sorted by key: costs as much as there are."""
        found = (self._delta.get(kind.ENTITY, key) for key in sorted(self._delta.keys(kind.ENTITY)))
        return [row for row in found if isinstance(row, kind)]

    def topic(self, name: str) -> TopicRow | None:
        keys = self._delta.group((Entity.TOPIC, name, ""))
        return self.find(TopicRow, *keys[-1]) if keys else None

    def partitions(self, topic_id: str) -> list[PartitionRow]:
        """The partitions of a topic, by number."""
        keys = sorted(self._delta.group((Entity.PARTITION, topic_id, "")))
        found = (self.find(PartitionRow, *key) for key in keys)
        return [row for row in found if row is not None]

    def config(self, resource_type: int, resource_name: str, name: str) -> str | None:
        row = self.find(ConfigRow, resource_type, resource_name, name)
        return None if row is None else row.value

    def topic_config(self, topic: str, name: str) -> str | None:
        """What a topic is kept by: its own config, else that of all brokers."""
        own = self.config(TOPIC, topic, name)
        return self.config(BROKER, "", name) if own is None else own

    def is_active(self, broker_id: int) -> bool:
        """Whether a broker may lead and be in sync (Kafka: ``ClusterControlManager.isActive``)."""
        row = self.find(BrokerRow, broker_id)
        return row is not None and not row.fenced and not row.in_controlled_shutdown

    def colliding_topics(self, name: str) -> set[str]:
        """The topics whose names are the same where ``.`` and ``_`` are one letter.

        Metrics cannot tell them apart (Kafka: ``Topic.hasCollision``).
        """
        if self._colliding is None:
            self._colliding = {}
            for row in self.rows_of(TopicRow):
                self._colliding.setdefault(_unify_collision_chars(row.name), set()).add(row.name)
        return {
            one for one in self._colliding.get(_unify_collision_chars(name), ()) if self.topic(one)
        }

    def has_acl(self, content: AclContent) -> bool:
        """Whether there is an access rule with this content, under whatever id."""
        if self._acls is None:
            self._acls = {}
            for row in self.rows_of(AclRow):
                self.add_acl_content(acl_content(row), row.acl_id)
        return any(self.find(AclRow, found) for found in self._acls.get(content, ()))

    # --- what is made -----------------------------------------------------------------------------

    def write(self, record: MetadataRecord, version: int | None = None) -> None:
        """Append a record, in the version of the level unless its use says another."""
        offset = self.next_offset
        if version is None:
            version = self.versions.of(type(record))
        replay(record, self._delta, Position(offset, offset, self._leader_epoch, -1))
        self.records.append(DecodedRecord(version, record))

    def add_topic_name(self, name: str) -> None:
        """A topic has come: later names are compared with its."""
        if self._colliding is not None:
            self._colliding.setdefault(_unify_collision_chars(name), set()).add(name)

    def add_acl_content(self, content: AclContent, acl_id: str) -> None:
        """A rule has come: the same content again is no change."""
        if self._acls is not None:
            self._acls.setdefault(content, set()).add(acl_id)

    def random_uuid(self) -> str:
        """A random uuid as Kafka draws them: version 4, not reserved, no leading dash in its text.

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
        """Keep what is written inside, or nothing of it if it is refused."""
        count = len(self.records)
        self._delta.take_changes()
        try:
            yield
        except BaseException:
            self._delta.undo(reversed(self._delta.take_changes()))
            del self.records[count:]
            raise


def acl_content(row: AclRow) -> AclContent:
    """What makes two rules the same, whatever their ids."""
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
    """Those that are no registered broker's."""
    return [one for one in ids if state.find(BrokerRow, one) is None]


def _unify_collision_chars(name: str) -> str:
    return name.replace(".", "_")
