"""Random valid metadata logs: every kind of change, in an order that Kafka could write.

A seed always gives the same log. A loader decides what is valid next; other tests check the loader.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from raftlog_state.image import (
    AclRow,
    BrokerRow,
    ConfigRow,
    ControllerRow,
    MetadataImage,
    PartitionRow,
    QuotaRow,
    ScramRow,
    TokenRow,
    TopicRow,
)
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    DecodedRecord,
    DelegationTokenRecord,
    EntityData,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from tests.support.metadata_logs import at

T = TypeVar("T")
MIGRATING = "A" * 22
CONFIGS = {
    2: ("retention.ms", "cleanup.policy", "min.insync.replicas", "segment.bytes"),
    4: ("log.cleaner.threads", "message.max.bytes", "anything.at.all"),
    16: ("interval.ms", "metrics"),
    32: ("consumer.session.timeout.ms", "share.record.lock.duration.ms"),
}


class RandomLog:
    """Log at one metadata.version that grows record by record."""

    def __init__(self, seed: int, level: int) -> None:
        self.level = level
        self.records: list[DecodedRecord] = []
        self._chance = random.Random(f"{seed} {level}")
        self._loader = MetadataLoader()
        self._write(FeatureLevelRecord(name="metadata.version", feature_level=level))
        if level >= 23:
            self._write(
                FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)
            )
        for broker_id in range(1, 5):
            self._write(self._register_broker(broker_id))

    def grow(self, record_count: int) -> None:
        """Append this many more records."""
        writers = self._writers()
        while record_count:
            record = self._chance.choice(writers)()
            if record is not None:
                self._write(record)
                record_count -= 1

    def truncate(self, image: MetadataImage) -> None:
        """Continue from an earlier state, with other records."""
        del self.records[image.offset + 1 :]
        self._loader = MetadataLoader(image)

    def _write(self, record: MetadataRecord) -> None:
        self._loader.append(at(len(self.records), record))
        self.records.append(DecodedRecord(self._version(record), record))

    def _version(self, record: MetadataRecord) -> int:
        if isinstance(record, RegisterBrokerRecord):
            level = self.level
            return 4 if level >= 30 else 3 if level >= 17 else 2 if level >= 8 else 1
        if isinstance(record, PartitionRecord | PartitionChangeRecord):
            return 2 if self.level >= 23 else 1 if self.level >= 17 else 0
        if isinstance(record, BrokerRegistrationChangeRecord):
            return 3 if self.level >= 30 else 2 if self.level >= 17 else 1
        return 0

    def _writers(self) -> list[Callable[[], MetadataRecord | None]]:
        often = [self._change_partition] * 12 + [self._make_partition] * 3 + [self._set_config] * 3
        some: list[Callable[[], MetadataRecord | None]] = [
            self._make_topic,
            self._remove_topic,
            self._change_broker,
            self._change_broker,
            self._fence_broker,
            self._unregister_broker,
            lambda: self._register_broker(self._chance.randint(1, 6)),
            self._set_quota,
            self._make_acl,
            self._remove_acl,
            self._set_feature,
            lambda: ProducerIdsRecord(
                broker_id=1, next_producer_id=1_000 * self._chance.randint(1, 99)
            ),
        ]
        if self.level >= 11:
            some += [self._make_scram, self._remove_scram]
        if self.level >= 14:
            some += [self._make_token, self._remove_token]
        if self.level >= 15:
            some.append(self._register_controller)
        if self.level >= 23:
            some.append(self._clear_elr)
        return [*often, *some]

    # --- random draws ---

    def _uuid(self) -> str:
        raw = self._chance.randbytes(16)
        return base64.urlsafe_b64encode(raw).decode("ascii")[:22]

    def _ids(self, count_max: int = 4) -> tuple[int, ...]:
        count = self._chance.randint(0, count_max)
        return tuple(self._chance.sample(range(1, 7), count))

    def _directories(self, count: int) -> tuple[str, ...]:
        return tuple(self._uuid() for _ in range(count))

    def _maybe(self, value: T, chance: float = 0.5) -> T | None:
        return value if self._chance.random() < chance else None

    # --- topics ---

    def _topics(self) -> Sequence[TopicRow]:
        return self._loader.image.rows_of(TopicRow)

    def _make_topic(self) -> MetadataRecord | None:
        name = f"topic-{self._chance.randint(1, 30)}"
        if self._loader.image.topic(name) is not None:
            return None
        return TopicRecord(name=name, topic_id=self._uuid())

    def _remove_topic(self) -> MetadataRecord | None:
        topics = self._topics()
        if len(topics) < 3:
            return None
        return RemoveTopicRecord(topic_id=self._chance.choice(topics).topic_id)

    def _make_partition(self) -> MetadataRecord | None:
        topics = self._topics()
        if not topics:
            return None
        replicas = self._ids(3) or (1,)
        directories: tuple[str, ...] = ()
        if self.level >= 17:
            directories = self._maybe(self._directories(len(replicas)), 0.8) or ()
        has_elr = self.level >= 23
        return PartitionRecord(
            topic_id=self._chance.choice(topics).topic_id,
            partition_id=self._chance.randint(0, 5),
            replicas=replicas,
            isr=replicas,
            removing_replicas=self._maybe(self._ids(1), 0.2) or (),
            adding_replicas=self._maybe(self._ids(1), 0.2) or (),
            leader=replicas[0],
            leader_recovery_state=self._chance.randint(0, 1),
            leader_epoch=self._chance.randint(0, 9),
            partition_epoch=self._chance.randint(0, 9),
            directories=directories,
            eligible_leader_replicas=self._maybe(self._ids(2)) if has_elr else None,
            last_known_elr=self._maybe(self._ids(2)) if has_elr else None,
        )

    def _change_partition(self) -> MetadataRecord | None:
        rows = self._loader.image.rows_of(PartitionRow)
        if not rows:
            return None
        row = self._chance.choice(rows)
        replicas = self._maybe(self._ids(3) or (2,), 0.3)
        directories = None
        if self.level >= 17:
            count = len(row.replicas if replicas is None else replicas)
            known = set(row.directories) != {MIGRATING}
            if replicas is not None and known:
                directories = self._directories(count)
            else:
                directories = self._maybe(self._directories(count), 0.2)
        has_elr = self.level >= 23
        return PartitionChangeRecord(
            topic_id=row.topic_id,
            partition_id=row.partition_id,
            isr=self._maybe(self._ids()),
            leader=self._chance.choice([-2, -2, -1, row.leader, 1, 2, 3]),
            replicas=replicas,
            removing_replicas=self._maybe(self._ids(2), 0.3),
            adding_replicas=self._maybe(self._ids(2), 0.3),
            leader_recovery_state=self._chance.choice([-1, -1, 0, 1]),
            directories=directories,
            eligible_leader_replicas=self._maybe(self._ids(2)) if has_elr else None,
            last_known_elr=self._maybe(self._ids(2)) if has_elr else None,
        )

    def _clear_elr(self) -> MetadataRecord | None:
        names = [row.name for row in self._topics()]
        return ClearElrRecord(topic_name=self._chance.choice([*names, ""]))

    # --- the cluster ---

    def _register_broker(self, broker_id: int) -> MetadataRecord:
        features = self._chance.sample(["group.version", "kraft.version", "share.version"], 2)
        log_dirs = self._directories(self._chance.randint(1, 3)) if self.level >= 17 else ()
        cordoned = self._maybe(log_dirs[:2]) if self.level >= 30 else None
        return RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=self._uuid(),
            broker_epoch=len(self.records),
            end_points=tuple(
                BrokerEndpoint(name=name, host=f"host{broker_id}", port=9092, security_protocol=p)
                for p, name in enumerate(self._chance.sample(["A", "B", "C", "D"], 2))
            ),
            features=tuple(
                BrokerFeature(name=name, min_supported_version=0, max_supported_version=1)
                for name in features
            ),
            rack=self._maybe("rack"),
            fenced=self._chance.random() < 0.5,
            in_controlled_shutdown=self._chance.random() < 0.2,
            log_dirs=log_dirs,
            cordoned_log_dirs=cordoned,
        )

    def _broker(self) -> BrokerRow | None:
        rows = self._loader.image.rows_of(BrokerRow)
        return self._chance.choice(rows) if rows else None

    def _change_broker(self) -> MetadataRecord | None:
        row = self._broker()
        if row is None:
            return None
        log_dirs = self._directories(2) if self.level >= 17 else ()
        cordoned = self._maybe(self._chance.choice([(), log_dirs[:1], log_dirs]))
        return BrokerRegistrationChangeRecord(
            broker_id=row.broker_id,
            broker_epoch=row.broker_epoch,
            fenced=self._chance.choice([-1, 0, 1]),
            in_controlled_shutdown=self._chance.choice([0, 0, 1]),
            log_dirs=self._maybe(log_dirs) or (),
            cordoned_log_dirs=cordoned if self.level >= 30 else None,
        )

    def _fence_broker(self) -> MetadataRecord | None:
        row = self._broker()
        if row is None:
            return None
        kind = self._chance.choice([FenceBrokerRecord, UnfenceBrokerRecord])
        return kind(id=row.broker_id, epoch=row.broker_epoch)

    def _unregister_broker(self) -> MetadataRecord | None:
        row = self._broker()
        if row is None or self._chance.random() < 0.7:
            return None
        return UnregisterBrokerRecord(broker_id=row.broker_id, broker_epoch=row.broker_epoch)

    def _register_controller(self) -> MetadataRecord:
        known = len(self._loader.image.rows_of(ControllerRow))
        return RegisterControllerRecord(
            controller_id=self._chance.randint(100, 101 + known),
            incarnation_id=self._uuid(),
            end_points=(ControllerEndpoint(name="C", host="h", port=9093, security_protocol=3),),
            features=(
                ControllerFeature(name="f", min_supported_version=0, max_supported_version=2),
            ),
        )

    def _set_feature(self) -> MetadataRecord:
        name = self._chance.choice(["group.version", "transaction.version", "share.version"])
        return FeatureLevelRecord(name=name, feature_level=self._chance.randint(0, 2))

    # --- access ---

    def _set_config(self) -> MetadataRecord | None:
        kind = self._chance.choice([2, 2, 2, *CONFIGS])
        topics = [row.name for row in self._topics()]
        names = {2: topics, 4: ["", "1"], 16: ["metrics-a"], 32: ["group-a"]}[kind]
        if not names:
            return None
        known = [row.name for row in self._loader.image.rows_of(ConfigRow)]
        value = f"{self._chance.randint(1, 99)}"
        return ConfigRecord(
            resource_type=kind,
            resource_name=self._chance.choice(names),
            name=self._chance.choice(CONFIGS[kind]),
            value=self._maybe(value, 0.8 if known else 1.0),
        )

    def _set_quota(self) -> MetadataRecord:
        kinds = self._chance.choice([["user"], ["client-id"], ["user", "client-id"], ["ip"]])
        self._chance.shuffle(kinds)
        known = bool(self._loader.image.rows_of(QuotaRow))
        return ClientQuotaRecord(
            entity=tuple(
                EntityData(
                    entity_type=kind, entity_name=self._maybe(f"n{self._chance.randint(1, 2)}")
                )
                for kind in kinds
            ),
            key=self._chance.choice(["producer_byte_rate", "request_percentage"]),
            value=self._chance.randint(1, 1_000) / 8,
            remove=known and self._chance.random() < 0.3,
        )

    def _make_acl(self) -> MetadataRecord:
        ids = [row.acl_id for row in self._loader.image.rows_of(AclRow)]
        return AccessControlEntryRecord(
            id=self._chance.choice([*ids, self._uuid(), self._uuid()]),
            resource_type=self._chance.randint(2, 7),
            resource_name="name",
            pattern_type=self._chance.choice([3, 4]),
            principal="User:a",
            host="*",
            operation=self._chance.randint(2, 14),
            permission_type=self._chance.choice([2, 3]),
        )

    def _remove_acl(self) -> MetadataRecord | None:
        ids = [row.acl_id for row in self._loader.image.rows_of(AclRow)]
        return RemoveAccessControlEntryRecord(id=self._chance.choice(ids)) if ids else None

    def _make_scram(self) -> MetadataRecord:
        return UserScramCredentialRecord(
            name=f"user-{self._chance.randint(1, 3)}",
            mechanism=self._chance.choice([1, 2]),
            salt=self._chance.randbytes(4),
            stored_key=self._chance.randbytes(4),
            server_key=self._chance.randbytes(4),
            iterations=self._chance.randint(4096, 9999),
        )

    def _remove_scram(self) -> MetadataRecord | None:
        rows = self._loader.image.rows_of(ScramRow)
        if not rows:
            return None
        row = self._chance.choice(rows)
        return RemoveUserScramCredentialRecord(name=row.user, mechanism=row.mechanism)

    def _make_token(self) -> MetadataRecord:
        return DelegationTokenRecord(
            owner="User:o",
            requester="User:r",
            renewers=self._maybe(("User:b", "User:a")) or (),
            issue_timestamp=1,
            max_timestamp=3,
            expiration_timestamp=self._chance.randint(1, 99),
            token_id=f"token-{self._chance.randint(1, 3)}",
        )

    def _remove_token(self) -> MetadataRecord | None:
        rows = self._loader.image.rows_of(TokenRow)
        if not rows:
            return None
        return RemoveDelegationTokenRecord(token_id=self._chance.choice(rows).token_id)
