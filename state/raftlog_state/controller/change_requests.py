"""Changes of a cluster's metadata: one dataclass for each kind.

Field names are the columns of a table of changes; the column ``change`` is the kind. A table can
contain all kinds; columns that a kind does not have are null.

Enums can be names (``TOPIC``, ``scram-sha-256``) or Kafka's numbers. Topics are identified by name.
Values are validated against the state when the change is applied. Defaults are Kafka's; None means
"not set".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias

Assignment: TypeAlias = tuple[tuple[int, ...], ...]
"""Replicas of each partition, in order; the first is the preferred leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic with ``partitions`` x ``replication_factor`` replicas, assigned to racks and
    brokers at random, or with a manual ``assignment``. ``topic_id`` None: a random id.
    """

    KIND: ClassVar[str] = "create_topic"
    topic: str
    partitions: int | None = None
    replication_factor: int | None = None
    assignment: Assignment | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Delete a topic with its partitions and configs; with ``topic_id``, only if the id matches."""

    KIND: ClassVar[str] = "delete_topic"
    topic: str
    topic_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Increase a topic's number of partitions to ``partitions`` (Kafka: CreatePartitions).
    ``assignment``: replicas of the new partitions.
    """

    KIND: ClassVar[str] = "add_partitions"
    topic: str
    partitions: int
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignPartition:
    """Reassign a partition to ``replicas``; None cancels the reassignment in progress.

    It completes when the new replicas are in sync (see ``SetIsr``), as in Kafka.
    """

    KIND: ClassVar[str] = "reassign_partition"
    topic: str
    partition: int
    replicas: tuple[int, ...] | None = None
    allow_replication_factor_change: bool = True
    partition_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetIsr:
    """Set the ISR of a partition (Kafka: AlterPartition), and its leader recovery state to
    RECOVERED.

    ``partition_epoch``: partition epoch of the state on which the change is based. If the epoch has
    changed, the change is rejected.
    """

    KIND: ClassVar[str] = "set_isr"
    topic: str
    partition: int
    isr: tuple[int, ...]
    partition_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeader:
    """Elect the preferred leader of a partition; with ``election`` ``unclean``, elect any live
    replica, which loses the records that this replica lacks.
    """

    KIND: ClassVar[str] = "elect_leader"
    topic: str
    partition: int
    election: str = "preferred"
    partition_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfig:
    """Set a config of a TOPIC, BROKER (name "": all brokers), GROUP or CLIENT_METRICS.

    The value may be a secret and is not part of ``repr``.
    """

    KIND: ClassVar[str] = "set_config"
    resource_type: str | int
    resource_name: str
    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConfig:
    """Delete a config, which then has its default value."""

    KIND: ClassVar[str] = "delete_config"
    resource_type: str | int
    resource_name: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendConfig:
    """Append the comma-separated elements of ``value`` to a config that is a list, except those
    that it already contains. If the config is not set, the list begins with its default.
    """

    KIND: ClassVar[str] = "append_config"
    resource_type: str | int
    resource_name: str
    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtractConfig:
    """Remove the comma-separated elements of ``value`` from a config that is a list."""

    KIND: ClassVar[str] = "subtract_config"
    resource_type: str | int
    resource_name: str
    name: str
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAcl:
    """Add an ACL, unless one with equal content exists."""

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
    """Remove the ACL with ``acl_id``, or all ACLs that match every column that is set."""

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
    """Set a quota of an entity: ``user``, ``client-id`` or both, or ``ip``. None: the default."""

    KIND: ClassVar[str] = "set_quota"
    entity: Mapping[str, str | None]
    quota: str
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveQuota:
    """Remove a quota."""

    KIND: ClassVar[str] = "remove_quota"
    entity: Mapping[str, str | None]
    quota: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeature:
    """Finalize a feature, for instance ``metadata.version``, at a level; 0 removes it."""

    KIND: ClassVar[str] = "set_feature"
    feature: str
    level: int
    allow_downgrade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScram:
    """Set a user's SCRAM credential from ``password`` (``salt`` None: random), or from ``salt`` and
    ``salted_password`` as Kafka's clients send them. None of them is part of ``repr``.
    """

    KIND: ClassVar[str] = "set_scram"
    user: str
    mechanism: str | int
    iterations: int = 4096
    password: str | None = field(default=None, repr=False)
    salt: bytes | None = field(default=None, repr=False)
    salted_password: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveScram:
    """Delete a user's SCRAM credential for one mechanism."""

    KIND: ClassVar[str] = "remove_scram"
    user: str
    mechanism: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetToken:
    """Create or replace a delegation token; a later expiration renews it. Principals include their
    type, such as ``User:ana``. ``requester`` None: the owner.

    The token's HMAC, which is its password, is not in the log: brokers compute it with HMAC-SHA-512
    from ``token_id`` (None: random) and their secret key.
    """

    KIND: ClassVar[str] = "set_token"
    owner: str
    issue_timestamp_ms: int
    expiration_timestamp_ms: int
    max_timestamp_ms: int
    token_id: str | None = None
    requester: str | None = None
    renewers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveToken:
    """Delete a delegation token."""

    KIND: ClassVar[str] = "remove_token"
    token_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """Register a broker. A new incarnation is fenced until it is unfenced, as in Kafka; with the
    current ``incarnation_id``, a broker's registration is updated.

    ``endpoints``: listener names mapped to ``host:port``, prefixed by ``protocol://`` if it is not
    PLAINTEXT. ``features``: names mapped to the lowest and highest level; None: those of Kafka
    4.3.1. ``log_dirs`` and ``incarnation_id`` None: those of the current incarnation, or random
    ones. The epoch of a new incarnation is the offset of its record. ``previous_broker_epoch``:
    epoch of an incarnation that was shut down cleanly, and therefore stays among the eligible
    leader replicas.
    """

    KIND: ClassVar[str] = "register_broker"
    broker_id: int
    endpoints: Mapping[str, str]
    rack: str | None = None
    features: Mapping[str, tuple[int, ...]] | None = None
    log_dirs: tuple[str, ...] | None = None
    incarnation_id: str | None = None
    previous_broker_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """Unregister a broker and remove it from every ISR.

    ``broker_epoch``: epoch of the registration on which the change is based. If the epoch has
    changed, the change is rejected.
    """

    KIND: ClassVar[str] = "unregister_broker"
    broker_id: int
    broker_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker:
    """Fence a broker: remove it from every ISR and elect other leaders.

    ``broker_epoch``: epoch of the registration on which the change is based. If the epoch has
    changed, the change is rejected.
    """

    KIND: ClassVar[str] = "fence_broker"
    broker_id: int
    broker_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker:
    """Unfence a broker and elect it for leaderless partitions that it may lead.

    ``broker_epoch``: epoch of the registration on which the change is based. If the epoch has
    changed, the change is rejected.
    """

    KIND: ClassVar[str] = "unfence_broker"
    broker_id: int
    broker_epoch: int | None = None


ChangeRequest: TypeAlias = (
    CreateTopic
    | DeleteTopic
    | AddPartitions
    | ReassignPartition
    | SetIsr
    | ElectLeader
    | SetConfig
    | DeleteConfig
    | AppendConfig
    | SubtractConfig
    | AddAcl
    | RemoveAcl
    | SetQuota
    | RemoveQuota
    | SetFeature
    | SetScram
    | RemoveScram
    | SetToken
    | RemoveToken
    | RegisterBroker
    | UnregisterBroker
    | FenceBroker
    | UnfenceBroker
)
"""Any change."""

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
        AppendConfig,
        SubtractConfig,
        AddAcl,
        RemoveAcl,
        SetQuota,
        RemoveQuota,
        SetFeature,
        SetScram,
        RemoveScram,
        SetToken,
        RemoveToken,
        RegisterBroker,
        UnregisterBroker,
        FenceBroker,
        UnfenceBroker,
    )
}
"""Change types by the value of the column ``change``."""
