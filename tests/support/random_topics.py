"""Random records of topics, their partitions and configs, which a loader accepts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from raftlog_state.records import (
    ClearElrRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)
from raftlog_state.replay.topics import CONFIG_OF_TOPIC
from tests.support.log_builder import begin
from tests.support.small_logs import ABORT_TRANSACTION, END_TRANSACTION

DIRECTORIES = [f"{number:021d}Q" for number in range(4)]


class Topics:
    """Random records of topics, which a loader accepts."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._created = 0
        self._removed: list[str] = []
        self._partitions: dict[str, dict[int, int]] = {}
        """Replicas of each partition, by topic id."""
        self._names: dict[str, str] = {}
        self._has_directories: dict[tuple[str, int], bool] = {}

    def values(self, count: int) -> Iterator[bytes]:
        """Yield encoded records, some of them in transactions."""
        while count > 0:
            size = self._chance.randint(1, 8)
            count -= size
            roll = self._chance.random()
            if roll < 0.1:
                yield begin("t")
                yield from (self._value() for _ in range(size))
                yield END_TRANSACTION
            elif roll < 0.15:
                yield begin()
                self._created += 1
                yield encode(TopicRecord(name="aborted", topic_id=f"{self._created:021d}w"))
                yield ABORT_TRANSACTION
            else:
                yield from (self._value() for _ in range(size))

    def _value(self) -> bytes:
        return encode(self._record())

    def _record(self) -> MetadataRecord:
        roll = self._chance.random()
        if roll < 0.08 or not self._partitions:
            return self._create()
        topic_id = self._chance.choice(list(self._partitions))
        partitions = self._partitions[topic_id]
        if roll < 0.12:
            del self._partitions[topic_id]
            self._names.pop(topic_id)
            self._removed.append(topic_id)
            return RemoveTopicRecord(topic_id=topic_id)
        if roll < 0.16:
            return ClearElrRecord(topic_name=self._names[topic_id])
        if roll < 0.3:
            return self._config()
        if roll < 0.5 or not partitions:
            return self._partition(topic_id)
        return self._change(topic_id, self._chance.choice(list(partitions)))

    def _new_id(self) -> str:
        """Return an id, perhaps one that a removed topic had."""
        if self._removed and self._chance.random() < 0.5:
            return self._removed.pop(self._chance.randrange(len(self._removed)))
        self._created += 1
        return f"{self._created:021d}w"

    def _create(self) -> MetadataRecord:
        topic_id = self._new_id()
        free = {f"topic-{number}" for number in range(6)} - set(self._names.values())
        name = self._chance.choice([*sorted(free), f"other-{topic_id}"])
        self._partitions[topic_id] = {}
        self._names[topic_id] = name
        return TopicRecord(name=name, topic_id=topic_id)

    def _config(self) -> MetadataRecord:
        return ConfigRecord(
            resource_type=CONFIG_OF_TOPIC,
            resource_name=f"topic-{self._chance.randrange(6)}",
            name=self._chance.choice(("retention.ms", "cleanup.policy", "unknown.é", "a.b")),
            value=self._chance.choice((None, "", "1", "2", "[redacted]")),
        )

    def _partition(self, topic_id: str) -> MetadataRecord:
        number = self._chance.randrange(4)
        replicas = self._brokers(0)
        self._partitions[topic_id][number] = len(replicas)
        has = self._chance.random() < 0.5
        self._has_directories[topic_id, number] = has
        return PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=replicas,
            isr=self._brokers(0),
            adding_replicas=self._brokers(0),
            removing_replicas=self._brokers(0),
            leader=self._chance.randint(-1, 3),
            leader_epoch=self._chance.randint(0, 9),
            partition_epoch=self._chance.randint(0, 9),
            leader_recovery_state=self._chance.randint(0, 1),
            directories=self._directories(len(replicas)) if has else (),
            eligible_leader_replicas=self._chance.choice((None, (), (1, 2))),
            last_known_elr=self._chance.choice((None, (), (3,))),
        )

    def _change(self, topic_id: str, number: int) -> MetadataRecord:
        replicas, directories = self._maybe(self._brokers(0)), None
        has = self._has_directories[topic_id, number]
        count = self._partitions[topic_id][number] if replicas is None else len(replicas)
        if (has and replicas is not None) or self._chance.random() < 0.1:
            directories, has = self._directories(count), True
        self._partitions[topic_id][number] = count
        self._has_directories[topic_id, number] = has
        return PartitionChangeRecord(
            partition_id=number,
            topic_id=topic_id,
            isr=self._maybe(self._brokers(0)),
            leader=self._chance.randint(-2, 3),
            replicas=replicas,
            removing_replicas=self._maybe(self._brokers(0)),
            adding_replicas=self._maybe(self._brokers(0)),
            leader_recovery_state=self._chance.randint(-1, 1),
            directories=directories,
            eligible_leader_replicas=self._maybe(self._brokers(0)),
            last_known_elr=self._maybe(self._brokers(0)),
        )

    def _brokers(self, least: int) -> tuple[int, ...]:
        return tuple(range(1, 1 + self._chance.randint(least, 3)))

    def _directories(self, count: int) -> tuple[str, ...]:
        return tuple(self._chance.choice(DIRECTORIES) for _ in range(count))

    def _maybe(self, value: tuple[int, ...]) -> tuple[int, ...] | None:
        return self._chance.choice((None, value))
