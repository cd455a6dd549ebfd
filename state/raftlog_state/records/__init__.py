"""Records of Kafka's internal logs: bytes, typed records and Kafka's JSON, and redaction."""

from __future__ import annotations

from .config_types import config_type, is_secret_config
from .declare import FieldSchema, Message, MetadataRecord, RecordSchema, Struct, UnknownTag
from .redaction import MASK, Redactor, is_redacted
from .schema import RECORD_TYPES
from .schema_access import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EntityData,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from .schema_cluster import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    ZkMigrationStateRecord,
)
from .schema_topics import (
    ClearElrRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from .serde import (
    NO_OP_VALUE,
    UNKNOWN_TYPE,
    DecodedRecord,
    UnknownReason,
    UnknownRecord,
    data_json,
    decode,
    encode,
    from_json,
    peek,
    to_json,
    to_json_text,
)

__all__ = [
    # conversion
    "NO_OP_VALUE",
    "UNKNOWN_TYPE",
    "data_json",
    "decode",
    "encode",
    "from_json",
    "peek",
    "to_json",
    "to_json_text",
    # redaction
    "MASK",
    "Redactor",
    "config_type",
    "is_redacted",
    "is_secret_config",
    # the schema
    "RECORD_TYPES",
    "DecodedRecord",
    "FieldSchema",
    "Message",
    "MetadataRecord",
    "RecordSchema",
    "Struct",
    "UnknownReason",
    "UnknownRecord",
    "UnknownTag",
    # topics
    "ClearElrRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "RemoveTopicRecord",
    "TopicRecord",
    # the cluster
    "AbortTransactionRecord",
    "BeginTransactionRecord",
    "BrokerEndpoint",
    "BrokerFeature",
    "BrokerRegistrationChangeRecord",
    "ControllerEndpoint",
    "ControllerFeature",
    "EndTransactionRecord",
    "FeatureLevelRecord",
    "FenceBrokerRecord",
    "NoOpRecord",
    "RegisterBrokerRecord",
    "RegisterControllerRecord",
    "UnfenceBrokerRecord",
    "UnregisterBrokerRecord",
    "UnregisterControllerRecord",
    "ZkMigrationStateRecord",
    # access
    "AccessControlEntryRecord",
    "ClientQuotaRecord",
    "ConfigRecord",
    "DelegationTokenRecord",
    "EntityData",
    "ProducerIdsRecord",
    "RemoveAccessControlEntryRecord",
    "RemoveDelegationTokenRecord",
    "RemoveUserScramCredentialRecord",
    "UserScramCredentialRecord",
]
