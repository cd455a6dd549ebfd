"""Record types of configs, quotas, ACLs, SCRAM credentials, delegation tokens and producer ids.

Fields that are or may be secret are not in ``repr``.

Source: the message files of Kafka's ``metadata`` module, 4.3.
"""

from __future__ import annotations

from raftlog.types import ZERO_UUID

from .declare import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    UUID,
    Array,
    MetadataRecord,
    Struct,
    field,
    record,
    struct,
)


@record(api_key=4)
class ConfigRecord(MetadataRecord):
    """Value of a config; None removes it.

    ``resource_type``: 2 topic, 4 broker (name empty: the default of all brokers), 8 broker logger,
    16 client metrics, 32 group.
    """

    resource_type: int = field(INT8, default=0)
    resource_name: str = field(STRING, default="")
    name: str = field(STRING, default="")
    value: str | None = field(STRING, nullable=True, default="", shown=False)


@record(api_key=10)
class DelegationTokenRecord(MetadataRecord):
    """Delegation token; timestamps in ms (KIP-900). Its HMAC is never in the log."""

    owner: str = field(STRING, default="")
    requester: str = field(STRING, default="")
    renewers: tuple[str, ...] = field(Array(STRING), default=())
    issue_timestamp: int = field(INT64, default=0)
    max_timestamp: int = field(INT64, default=0)
    expiration_timestamp: int = field(INT64, default=0)
    token_id: str = field(STRING, default="")


@record(api_key=11)
class UserScramCredentialRecord(MetadataRecord):
    """SCRAM credential of a user (KIP-900). ``mechanism``: 1 SHA-256, 2 SHA-512."""

    name: str = field(STRING, default="")
    mechanism: int = field(INT8, default=0)
    salt: bytes = field(BYTES, default=b"", shown=False)
    stored_key: bytes = field(BYTES, default=b"", shown=False)
    server_key: bytes = field(BYTES, default=b"", shown=False)
    iterations: int = field(INT32, default=0)


@struct
class EntityData(Struct):
    """Part of a quota's entity; ``entity_name`` None: the default of that type."""

    entity_type: str = field(STRING, default="")
    entity_name: str | None = field(STRING, nullable=True, default="")


@record(api_key=14)
class ClientQuotaRecord(MetadataRecord):
    """Value of a client quota, or its removal."""

    entity: tuple[EntityData, ...] = field(Array(EntityData), default=())
    key: str = field(STRING, default="")
    value: float = field(FLOAT64, default=0.0)
    remove: bool = field(BOOL, default=False)


@record(api_key=15)
class ProducerIdsRecord(MetadataRecord):
    """Allocation of producer ids: those below ``next_producer_id`` are allocated."""

    broker_id: int = field(INT32, default=0)
    broker_epoch: int = field(INT64, default=-1)
    next_producer_id: int = field(INT64, default=0)


@record(api_key=18)
class AccessControlEntryRecord(MetadataRecord):
    """ACL. The enums are those of Kafka's ACL protocol."""

    id: str = field(UUID, default=ZERO_UUID)
    resource_type: int = field(INT8, default=0)
    resource_name: str = field(STRING, default="")
    pattern_type: int = field(INT8, default=0)
    principal: str = field(STRING, default="")
    host: str = field(STRING, default="")
    operation: int = field(INT8, default=0)
    permission_type: int = field(INT8, default=0)


@record(api_key=19)
class RemoveAccessControlEntryRecord(MetadataRecord):
    """Removal of an ACL."""

    id: str = field(UUID, default=ZERO_UUID)


@record(api_key=22)
class RemoveUserScramCredentialRecord(MetadataRecord):
    """Removal of a user's SCRAM credential."""

    name: str = field(STRING, default="")
    mechanism: int = field(INT8, default=0)


@record(api_key=26)
class RemoveDelegationTokenRecord(MetadataRecord):
    """Removal of a delegation token."""

    token_id: str = field(STRING, default="")
