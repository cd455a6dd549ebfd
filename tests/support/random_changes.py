"""Random changes of a random cluster, most of them valid; a seed always gives the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from raftlog_state.controller import (
    AddAcl,
    AddPartitions,
    AppendConfig,
    ChangeRequest,
    ControllerResult,
    CreateTopic,
    DeleteConfig,
    DeleteTopic,
    ElectLeader,
    FenceBroker,
    ReassignPartition,
    RegisterBroker,
    RemoveAcl,
    RemoveQuota,
    RemoveScram,
    RemoveToken,
    SetConfig,
    SetFeature,
    SetIsr,
    SetQuota,
    SetScram,
    SetToken,
    SubtractConfig,
    UnfenceBroker,
    UnregisterBroker,
    plan_changes,
)
from raftlog_state.errors import InvalidChangesError
from raftlog_state.image import (
    AclRow,
    BrokerRow,
    ConfigRow,
    MetadataImage,
    PartitionRow,
    QuotaRow,
    ScramRow,
    TokenRow,
    TopicRow,
)
from raftlog_state.image.rows import Row
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import DecodedRecord, MetadataRecord
from tests.support.cluster_changes import replayed
from tests.support.metadata_logs import at
from tests.support.random_metadata import RandomLog

R = TypeVar("R", bound=Row)
T = TypeVar("T")


@dataclass
class Job:
    """Sequence of batches of changes, as jobs write them."""

    seed: int
    level: int
    base: Sequence[DecodedRecord] = ()
    image: MetadataImage = field(default_factory=MetadataImage.empty)
    records: list[DecodedRecord] = field(default_factory=list)
    refused_count: int = 0
    applied: list[tuple[MetadataImage, ChangeRequest, MetadataImage]] = field(default_factory=list)
    written: list[tuple[DecodedRecord, ...]] = field(default_factory=list)
    """Records of each change in ``applied``."""

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.level}")
        self.records += self.base
        if self.base:
            loader = MetadataLoader()
            for record in self.base:
                assert isinstance(record.record, MetadataRecord)
                loader.append(at(loader.next_offset, record.record))
            self.image = loader.image
        else:
            self.make(SetFeature(feature="metadata.version", level=self.level))
            for broker_id in range(1, 5):
                self.make(self._registration(broker_id), UnfenceBroker(broker_id=broker_id))

    def make(self, *changes: ChangeRequest) -> None:
        """Apply changes, each of which must be valid."""
        for change in changes:
            self._apply(change, plan_changes(self.image, [change], rng=self.rng))

    def grow(self, change_count: int) -> None:
        """Apply this many more changes, skipping rejected ones."""
        writers = self._writers()
        while change_count:
            change = self.rng.choice(writers)()
            if change is None:
                continue
            try:
                plan = plan_changes(self.image, [change], rng=self.rng)
            except InvalidChangesError:
                self.refused_count += 1
                continue
            self._apply(change, plan)
            change_count -= 1

    def draw(self, image: MetadataImage) -> ChangeRequest:
        """Return a random change of a state, which may be invalid."""
        self.image = image
        while (change := self.rng.choice(self._writers())()) is None:
            pass
        return change

    def _apply(self, change: ChangeRequest, plan: ControllerResult) -> None:
        before = self.image
        self.image = replayed(before, plan.values())
        self.records += plan.change_records
        self.applied.append((before, change, self.image))
        self.written.append(plan.change_records)

    # --- random draws -----------------------------------------------------------------------------

    def _writers(self) -> list[Callable[[], ChangeRequest | None]]:
        topics = [self._create_topic] * 3 + [self._add_partitions] * 2 + [self._delete_topic]
        partitions = [self._reassign] * 5 + [self._set_isr] * 6 + [self._elect] * 2
        brokers = [self._fence, self._unfence, self._unfence, self._register, self._unregister]
        rest = [
            self._set_config,
            self._set_config,
            self._delete_config,
            self._change_list,
            self._add_acl,
            self._remove_acl,
            self._set_quota,
            self._remove_quota,
            self._set_feature,
        ]
        credentials = [self._set_scram, self._remove_scram] if self.level >= 11 else []
        tokens = [self._set_token, self._remove_token] if self.level >= 14 else []
        found: list[Callable[[], ChangeRequest | None]] = []
        return [*found, *topics, *partitions, *brokers, *rest, *credentials, *tokens]

    def _one(self, kind: type[R]) -> R | None:
        rows = self.image.rows_of(kind)
        return self.rng.choice(rows) if rows else None

    def _brokers(self, low: int, high: int) -> tuple[int, ...]:
        ids = [row.broker_id for row in self.image.rows_of(BrokerRow)]
        count = min(self.rng.randint(low, high), len(ids))
        return tuple(self.rng.sample(ids, count))

    def _maybe(self, value: T) -> T | None:
        return value if self.rng.random() < 0.5 else None

    def _create_topic(self) -> ChangeRequest:
        name = f"topic{self.rng.choice('-._')}{self.rng.randint(1, 15)}"
        configs = self._maybe({"retention.ms": f"{self.rng.randint(-1, 99)}"}) or {}
        if self.rng.random() < 0.3:
            configs["min.insync.replicas"] = "2"
        if self.rng.random() < 0.5:
            factor = self.rng.randint(1, 3)
            assignment = tuple(self._brokers(factor, factor) for _ in range(2))
            return CreateTopic(topic=name, assignment=assignment, configs=configs)
        return CreateTopic(
            topic=name,
            partitions=self.rng.randint(1, 3),
            replication_factor=self.rng.randint(1, 3),
            configs=configs,
        )

    def _delete_topic(self) -> ChangeRequest | None:
        row = self._one(TopicRow)
        return None if row is None else DeleteTopic(topic=row.name)

    def _add_partitions(self) -> ChangeRequest | None:
        row = self._one(TopicRow)
        if row is None:
            return None
        return AddPartitions(topic=row.name, partitions=self.rng.randint(2, 5))

    def _reassign(self) -> ChangeRequest | None:
        row = self._one(PartitionRow)
        if row is None:
            return None
        replicas = None if self.rng.random() < 0.2 else self._brokers(1, 3)
        return ReassignPartition(
            topic=row.topic_name, partition=row.partition_id, replicas=replicas
        )

    def _set_isr(self) -> ChangeRequest | None:
        row = self._one(PartitionRow)
        if row is None:
            return None
        alive = {b.broker_id for b in self.image.rows_of(BrokerRow) if not b.fenced}
        isr = [one for one in row.replicas if one in alive and self.rng.random() < 0.8]
        return SetIsr(topic=row.topic_name, partition=row.partition_id, isr=tuple(isr))

    def _elect(self) -> ChangeRequest | None:
        row = self._one(PartitionRow)
        if row is None:
            return None
        election = self.rng.choice(["preferred", "unclean"])
        return ElectLeader(topic=row.topic_name, partition=row.partition_id, election=election)

    def _registration(self, broker_id: int) -> RegisterBroker:
        return RegisterBroker(
            broker_id=broker_id,
            endpoints={"A": f"host{broker_id}:9092", "B": f"SSL://host{broker_id}:9093"},
            rack=self._maybe(f"rack{broker_id % 2}"),
        )

    def _register(self) -> ChangeRequest:
        return self._registration(self.rng.randint(1, 6))

    def _fence(self) -> ChangeRequest | None:
        row = self._one(BrokerRow)
        return None if row is None else FenceBroker(broker_id=row.broker_id)

    def _unfence(self) -> ChangeRequest | None:
        row = self._one(BrokerRow)
        return None if row is None else UnfenceBroker(broker_id=row.broker_id)

    def _unregister(self) -> ChangeRequest | None:
        row = self._one(BrokerRow)
        if row is None or self.rng.random() < 0.7:
            return None
        return UnregisterBroker(broker_id=row.broker_id)

    def _set_config(self) -> ChangeRequest | None:
        topic = self._one(TopicRow)
        number = f"{self.rng.randint(1, 3)}"
        if topic is not None and self.rng.random() < 0.6:
            unclean = "unclean.leader.election.enable"
            name = self.rng.choice(["min.insync.replicas", "retention.ms", unclean])
            number = self.rng.choice(["true", "false"]) if name == unclean else number
            return SetConfig(
                resource_type="TOPIC", resource_name=topic.name, name=name, value=number
            )
        if self.rng.random() < 0.5:
            name = self.rng.choice(["min.insync.replicas", "log.cleaner.threads"])
            return SetConfig(resource_type="BROKER", resource_name="", name=name, value=number)
        return SetConfig(
            resource_type="GROUP", resource_name="g", name="share.session.timeout.ms", value=number
        )

    def _delete_config(self) -> ChangeRequest | None:
        row = self._one(ConfigRow)
        if row is None:
            return None
        return DeleteConfig(
            resource_type=row.resource_type, resource_name=row.resource_name, name=row.name
        )

    def _change_list(self) -> ChangeRequest | None:
        topic = self._one(TopicRow)
        kinds: list[type[AppendConfig | SubtractConfig]] = [AppendConfig, SubtractConfig]
        kind = self.rng.choice(kinds)
        if topic is not None and self.rng.random() < 0.6:
            policies = self.rng.choice(["compact", "delete", "compact,delete"])
            return kind(
                resource_type="TOPIC",
                resource_name=topic.name,
                name="cleanup.policy",
                value=policies,
            )
        return kind(
            resource_type="BROKER",
            resource_name="",
            name=self.rng.choice(["metric.reporters", "sasl.enabled.mechanisms"]),
            value=self.rng.choice(["GSSAPI", "a,b", "c"]),
        )

    def _add_acl(self) -> ChangeRequest:
        return AddAcl(
            resource_type=self.rng.choice(["TOPIC", "GROUP"]),
            resource_name=self.rng.choice(["a", "b"]),
            principal=self.rng.choice(["User:a", "User:b"]),
            operation=self.rng.choice(["READ", "WRITE"]),
            pattern_type=self.rng.choice(["LITERAL", "PREFIXED"]),
        )

    def _remove_acl(self) -> ChangeRequest | None:
        row = self._one(AclRow)
        if row is None:
            return None
        if self.rng.random() < 0.7:
            return RemoveAcl(acl_id=row.acl_id)
        return RemoveAcl(principal=row.principal, operation=row.operation)

    def _set_quota(self) -> ChangeRequest:
        kinds = self.rng.choice([["user"], ["client-id"], ["user", "client-id"]])
        entity = {kind: self._maybe("a") for kind in kinds}
        quota = self.rng.choice(["producer_byte_rate", "request_percentage"])
        return SetQuota(entity=entity, quota=quota, limit=self.rng.randint(1, 9))

    def _remove_quota(self) -> ChangeRequest | None:
        row = self._one(QuotaRow)
        return None if row is None else RemoveQuota(entity=dict(row.entity), quota=row.quota)

    def _set_feature(self) -> ChangeRequest:
        name, level = self.rng.choice(
            [
                ("group.version", 1),
                ("group.version", 0),
                ("transaction.version", 2),
                ("eligible.leader.replicas.version", 1),
                ("eligible.leader.replicas.version", 1),
            ]
        )
        return SetFeature(feature=name, level=level, allow_downgrade=True)

    def _set_scram(self) -> ChangeRequest:
        mechanisms: list[int | str] = [1, "SCRAM-SHA-512"]
        return SetScram(
            user=self.rng.choice("abc"),
            mechanism=self.rng.choice(mechanisms),
            salt=b"salt",
            salted_password=self.rng.randbytes(8),
        )

    def _remove_scram(self) -> ChangeRequest | None:
        row = self._one(ScramRow)
        return None if row is None else RemoveScram(user=row.user, mechanism=row.mechanism)

    def _set_token(self) -> ChangeRequest:
        times_ms = sorted(self.rng.randint(0, 10**13) for _ in range(3))
        row = self._one(TokenRow)
        if row is not None and self.rng.random() < 0.3:
            return SetToken(
                token_id=row.token_id,
                owner=row.owner,
                requester=self._maybe(row.requester),
                renewers=row.renewers,
                issue_timestamp_ms=row.issue_timestamp_ms,
                max_timestamp_ms=row.max_timestamp_ms,
                expiration_timestamp_ms=self.rng.randint(
                    row.issue_timestamp_ms, row.max_timestamp_ms
                ),
            )
        return SetToken(
            owner=self.rng.choice(["User:a", "User:b"]),
            requester=self._maybe("User:c"),
            renewers=("User:d",) * self.rng.randint(0, 1),
            issue_timestamp_ms=times_ms[0],
            expiration_timestamp_ms=times_ms[1],
            max_timestamp_ms=times_ms[2],
        )

    def _remove_token(self) -> ChangeRequest | None:
        row = self._one(TokenRow)
        return None if row is None else RemoveToken(token_id=row.token_id)


def job_on_random_log(seed: int, level: int, record_count: int) -> Job:
    """Return a job that starts from the state of a random log."""
    log = RandomLog(seed, level)
    log.grow(record_count)
    return Job(seed, level, base=log.records)
