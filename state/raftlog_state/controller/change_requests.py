"""What can be asked of a cluster's metadata: a closed set of changes, as plain columns.

Rules of this file:

1. A change is a row: its field names are the columns of a DataFrame of changes, beside ``change``,
   which names the kind. One table may hold all kinds: what a kind does not know stays null.
2. Values are as people write them. Enums may be words (``TOPIC``, ``scram-sha-256``) or Kafka's
   numbers, topics are named, not numbered. What they mean is checked against the state, later.
3. Defaults are Kafka's own. None is "not said", never a value.
4. Delegation tokens are left out: who makes one must hold the cluster's secret key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

Assignment: TypeAlias = tuple[tuple[int, ...], ...]
"""The replicas of each partition, in order; the first one of each is preferred to lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """A topic with ``partitions`` x ``replication_factor``, placed on racks by chance, or with an
    explicit ``assignment``. ``topic_id``: drawn if it is not given."""

    KIND: ClassVar[str] = "create_topic"
    topic: str
    partitions: int | None = None
    replication_factor: int | None = None
    assignment: Assignment | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """A topic goes with its partitions and configs. ``topic_id``: only if it still has that id."""

    KIND: ClassVar[str] = "delete_topic"
    topic: str
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """A topic gets more partitions, up to ``partitions`` in all (Kafka: CreatePartitions).
    ``assignment`` is for the new ones."""

    KIND: ClassVar[str] = "add_partitions"
    topic: str
    partitions: int
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartition:
    """A partition shall move to ``replicas``; None cancels what is under way.

    It is done when the new replicas are in sync (see ``SetIsr``), as in Kafka.
    """

    KIND: ClassVar[str] = "reassign_partition"
    topic: str
    partition: int
    replicas: tuple[int, ...] | None = None
    allow_replication_factor_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SetIsr:
    """The leader of a partition says which replicas are in sync (Kafka: AlterPartition). A leader
    that was still recovering has recovered."""

    KIND: ClassVar[str] = "set_isr"
    topic: str
    partition: int
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeader:
    """A partition is led by its preferred replica, or, ``election`` ``unclean``, by any that lives:
    what only the others have is then lost."""

    KIND: ClassVar[str] = "elect_leader"
    topic: str
    partition: int
    election: str = "preferred"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfig:
    """A config of a TOPIC, BROKER (name "": all brokers), GROUP or CLIENT_METRICS.

    The value may be a secret: no repr shows it.
    """

    KIND: ClassVar[str] = "set_config"
    resource_type: str | int
    resource_name: str
    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConfig:
    """A config goes back to its default."""

    KIND: ClassVar[str] = "delete_config"
    resource_type: str | int
    resource_name: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAcl:
    """An access rule. One that is there already is not written again."""

    KIND: ClassVar[str] = "add_acl"
    resource_type: str | int
    resource_name: str
    principal: str
    operation: str | int
    permission: str | int = "ALLOW"
    pattern_type: str | int = "LITERAL"
    host: str = "*"
    acl_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAcl:
    """The access rule with this id, or every one that has all of what is given."""

    KIND: ClassVar[str] = "remove_acl"
    acl_id: str | None = None
    resource_type: str | int | None = None
    resource_name: str | None = None
    principal: str | None = None
    operation: str | int | None = None
    permission: str | int | None = None
    pattern_type: str | int | None = None
    host: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuota:
    """A quota of an entity: ``user``, ``client-id`` or both, or ``ip``; name None: the default."""

    KIND: ClassVar[str] = "set_quota"
    entity: Mapping[str, str | None]
    quota: str
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveQuota:
    """A quota goes."""

    KIND: ClassVar[str] = "remove_quota"
    entity: Mapping[str, str | None]
    quota: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeature:
    """A feature is finalized at a level; 0 removes it. ``metadata.version`` is one."""

    KIND: ClassVar[str] = "set_feature"
    feature: str
    level: int
    allow_downgrade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScram:
    """A user's SCRAM credential, from a ``password`` (the salt is drawn if it is not given), or
    from salt and ``salted_password`` as Kafka's clients send them. No repr shows any of it."""

    KIND: ClassVar[str] = "set_scram"
    user: str
    mechanism: str | int
    iterations: int = 4096
    password: str | None = field(default=None, repr=False)
    salt: bytes | None = field(default=None, repr=False)
    salted_password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveScram:
    """A user's credential for one mechanism goes."""

    KIND: ClassVar[str] = "remove_scram"
    user: str
    mechanism: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker registers: a new incarnation, fenced until it is unfenced, as in Kafka. With the
    incarnation that it has it amends its registration.

    ``endpoints``: listener name to ``host:port``, with ``protocol://`` before it where that is not
    PLAINTEXT. ``features``: name to the lowest and highest level; None: those of Kafka 4.3.1.
    Ids that are not given are drawn, unless the incarnation has them; a new one's epoch is the
    offset of its record.
    """

    KIND: ClassVar[str] = "register_broker"
    broker_id: int
    endpoints: Mapping[str, str]
    rack: str | None = None
    features: Mapping[str, tuple[int, ...]] | None = None
    log_dirs: tuple[str, ...] | None = None
    incarnation_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """A broker goes, and leaves every ISR."""

    KIND: ClassVar[str] = "unregister_broker"
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """A broker may serve nothing: it leaves every ISR, and others lead."""

    KIND: ClassVar[str] = "fence_broker"
    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """A broker may serve, and leads what nobody leads and it may."""

    KIND: ClassVar[str] = "unfence_broker"
    broker_id: int


ChangeRequest: TypeAlias = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | ReassignPartition
    | SetIsr
    | ElectLeader
    | SetConfig
    | DeleteConfig
    | AddAcl
    | RemoveAcl
    | SetQuota
    | RemoveQuota
    | SetFeature
    | SetScram
    | RemoveScram
    | RegisterBroker
    | UnregisterBroker
    | FenceBroker
    | UnfenceBroker
)
"""Any change: a closed union."""

CHANGE_TYPES: Final[Mapping[str, type[ChangeRequest]]] = {
    kind.KIND: kind
    for kind in (
        CreateTopic,
        DeleteTopic,
        AddPartitions,
        ReassignPartition,
        SetIsr,
        ElectLeader,
        SetConfig,
        DeleteConfig,
        AddAcl,
        RemoveAcl,
        SetQuota,
        RemoveQuota,
        SetFeature,
        SetScram,
        RemoveScram,
        RegisterBroker,
        UnregisterBroker,
        FenceBroker,
        UnfenceBroker,
    )
}
"""By the word in the column ``change``."""
