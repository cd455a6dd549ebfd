"""Replay of configs, client quotas, ACLs, SCRAM credentials and delegation tokens.

Source: Kafka ``ConfigurationsDelta``, ``ClientQuotasDelta``, ``AclsDelta``, ``ScramDelta``,
``DelegationTokenDelta``.
"""

from __future__ import annotations

from raftlog_state.delta import MetadataDelta
from raftlog_state.image import (
    AclRow,
    ConfigRow,
    Entity,
    QuotaRow,
    ScramRow,
    TokenRow,
    quota_entity_key,
)
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

from .dispatch import replay
from .position import Position, contradiction


@replay.register
def config(record: ConfigRecord, delta: MetadataDelta, at: Position) -> None:
    """Set a config, or delete it if the value is None. Names unknown to Kafka are kept."""
    if record.value is None:
        key = (record.resource_type, record.resource_name, record.name)
        delta.delete(Entity.CONFIG, key)
        return
    delta.put(
        ConfigRow(
            resource_type=record.resource_type,
            resource_name=record.resource_name,
            name=record.name,
            value=record.value,
        )
    )


@replay.register
def client_quota(record: ClientQuotaRecord, delta: MetadataDelta, at: Position) -> None:
    """Set or remove a client quota; the entity's parts may be in any order."""
    named = {part.entity_type: part.entity_name for part in record.entity}
    entity = tuple((kind, named[kind]) for kind in sorted(named))
    if record.remove:
        delta.delete(Entity.QUOTA, (quota_entity_key(entity), record.key))
    else:
        delta.put(QuotaRow(entity=entity, quota=record.key, value=record.value))


@replay.register
def access_control_entry(
    record: AccessControlEntryRecord, delta: MetadataDelta, at: Position
) -> None:
    """Add an ACL by its id: equal content with another id is another ACL."""
    delta.put(
        AclRow(
            acl_id=record.id,
            resource_type=record.resource_type,
            resource_name=record.resource_name,
            pattern_type=record.pattern_type,
            principal=record.principal,
            host=record.host,
            operation=record.operation,
            permission=record.permission_type,
        )
    )


@replay.register
def remove_access_control_entry(
    record: RemoveAccessControlEntryRecord, delta: MetadataDelta, at: Position
) -> None:
    """Remove an ACL; it must exist."""
    if not delta.delete(Entity.ACL, (record.id,)):
        raise contradiction(record, at, f"there is no ACL with id {record.id}")


@replay.register
def user_scram_credential(
    record: UserScramCredentialRecord, delta: MetadataDelta, at: Position
) -> None:
    """Set a user's SCRAM credential for one mechanism."""
    delta.put(
        ScramRow(
            user=record.name,
            mechanism=record.mechanism,
            iterations=record.iterations,
            salt=record.salt,
            stored_key=record.stored_key,
            server_key=record.server_key,
        )
    )


@replay.register
def remove_user_scram_credential(
    record: RemoveUserScramCredentialRecord, delta: MetadataDelta, at: Position
) -> None:
    """Remove a SCRAM credential, if it exists."""
    delta.delete(Entity.SCRAM, (record.name, record.mechanism))


@replay.register
def delegation_token(record: DelegationTokenRecord, delta: MetadataDelta, at: Position) -> None:
    """Create or renew a delegation token."""
    delta.put(
        TokenRow(
            token_id=record.token_id,
            owner=record.owner,
            requester=record.requester,
            renewers=record.renewers,
            issue_timestamp_ms=record.issue_timestamp,
            max_timestamp_ms=record.max_timestamp,
            expiration_timestamp_ms=record.expiration_timestamp,
        )
    )


@replay.register
def remove_delegation_token(
    record: RemoveDelegationTokenRecord, delta: MetadataDelta, at: Position
) -> None:
    """Remove a delegation token, if it exists."""
    delta.delete(Entity.TOKEN, (record.token_id,))
