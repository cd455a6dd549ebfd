"""Replay of configs, client quotas, ACLs, SCRAM credentials and delegation tokens.

Source: Kafka ``ConfigurationsDelta``, ``ClientQuotasDelta``, ``AclsDelta``, ``ScramDelta``,
``DelegationTokenDelta``.
"""

from __future__ import annotations

from raftlog_state.image import (
    AclRow,
    ConfigRow,
    Entity,
    QuotaRow,
    ScramRow,
    TokenRow,
)
from raftlog_state.image.row_schema import row_reader
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

from .dispatch import Position, ReplayState, contradiction, replay

_config_row = row_reader(ConfigRow, ConfigRecord)
_quota_row = row_reader(QuotaRow, ClientQuotaRecord)
_acl_row = row_reader(AclRow, AccessControlEntryRecord)
_scram_row = row_reader(ScramRow, UserScramCredentialRecord)
_token_row = row_reader(TokenRow, DelegationTokenRecord)


@replay.register
def config(record: ConfigRecord, state: ReplayState, at: Position) -> None:
    """Set a config, or delete it if the value is None. Names that Kafka does not know are kept."""
    if record.value is None:
        key = (record.resource_type, record.resource_name, record.name)
        state.delete(Entity.CONFIG, key)
        return
    state.put(_config_row(record))


@replay.register
def client_quota(record: ClientQuotaRecord, state: ReplayState, at: Position) -> None:
    """Set or remove a client quota; the entity's parts may be in any order."""
    row = _quota_row(record)
    if record.remove:
        state.delete(Entity.QUOTA, row.key)
    else:
        state.put(row)


@replay.register
def access_control_entry(
    record: AccessControlEntryRecord, state: ReplayState, at: Position
) -> None:
    """Add an ACL by its id: equal content with another id is another ACL."""
    state.put(_acl_row(record))


@replay.register
def remove_access_control_entry(
    record: RemoveAccessControlEntryRecord, state: ReplayState, at: Position
) -> None:
    """Remove an ACL; it must exist."""
    if not state.delete(Entity.ACL, (record.id,)):
        raise contradiction(record, at, f"there is no ACL with id {record.id}")


@replay.register
def user_scram_credential(
    record: UserScramCredentialRecord, state: ReplayState, at: Position
) -> None:
    """Set a user's SCRAM credential for one mechanism."""
    state.put(_scram_row(record))


@replay.register
def remove_user_scram_credential(
    record: RemoveUserScramCredentialRecord, state: ReplayState, at: Position
) -> None:
    """Remove a SCRAM credential, if it exists."""
    state.delete(Entity.SCRAM, (record.name, record.mechanism))


@replay.register
def delegation_token(record: DelegationTokenRecord, state: ReplayState, at: Position) -> None:
    """Create or renew a delegation token."""
    state.put(_token_row(record))


@replay.register
def remove_delegation_token(
    record: RemoveDelegationTokenRecord, state: ReplayState, at: Position
) -> None:
    """Remove a delegation token, if it exists."""
    state.delete(Entity.TOKEN, (record.token_id,))
