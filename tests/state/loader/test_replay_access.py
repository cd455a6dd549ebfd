"""Effects of records on configs, quotas, ACLs, credentials and tokens, rule by rule."""

from __future__ import annotations

import dataclasses

import pytest
from tests.support.metadata_logs import changes_of, state_after

from raftlog_state.errors import ReplayError
from raftlog_state.image import AclRow, ConfigRow, Entity, QuotaRow, ScramRow, TokenRow
from raftlog_state.image.delta import Op
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EntityData,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

FIRST = "muSNo3lITFSJf4sY_teOaw"
SECOND = "IIzV3j_LQFClOqhX3gQ9wA"

CONFIG = ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1")
ACL = AccessControlEntryRecord(
    id=FIRST,
    resource_type=2,
    resource_name="t",
    pattern_type=3,
    principal="User:a",
    host="*",
    operation=3,
    permission_type=3,
)
SCRAM = UserScramCredentialRecord(
    name="u", mechanism=1, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
)
TOKEN = DelegationTokenRecord(
    owner="User:o",
    requester="User:r",
    renewers=("User:b", "User:a"),
    issue_timestamp=1,
    max_timestamp=3,
    expiration_timestamp=2,
    token_id="id",
)


def quota(*entity: tuple[str, str | None], value: float, remove: bool = False) -> ClientQuotaRecord:
    parts = tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in entity)
    return ClientQuotaRecord(entity=parts, key="rate", value=value, remove=remove)


def test_a_config_is_set_changed_and_deleted_by_null() -> None:
    image = state_after(CONFIG, dataclasses.replace(CONFIG, value="2"))
    row = ConfigRow(resource_type=2, resource_name="t", name="retention.ms", value="2")
    assert image.rows_of(ConfigRow) == [row]
    (change,) = changes_of(image, dataclasses.replace(CONFIG, value=None))
    assert (change.op, change.before, change.after) == (Op.DELETE, row, None)
    absent = dataclasses.replace(CONFIG, name="never.set", value=None)
    assert changes_of(image, absent) == ()


def test_an_empty_config_value_is_a_value() -> None:
    image = state_after(dataclasses.replace(CONFIG, value=""))
    assert [row.value for row in image.rows_of(ConfigRow)] == [""]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(2, "TOPIC"), (4, "BROKER"), (8, "BROKER_LOGGER"), (16, "CLIENT_METRICS"), (99, "99")],
)
def test_configs_of_unknown_names_and_types_are_kept(kind: int, name: str) -> None:
    image = state_after(dataclasses.replace(CONFIG, resource_type=kind, name="nobody.knows"))
    (row,) = image.rows_of(ConfigRow)
    assert (row.name, row.resource_type_name) == ("nobody.knows", name)


def test_a_config_value_is_not_shown_by_repr() -> None:
    (row,) = state_after(dataclasses.replace(CONFIG, value="hunter2")).rows_of(ConfigRow)
    assert "hunter2" not in repr(row)


def test_a_quota_is_of_a_set_of_entities_in_any_order() -> None:
    user, client = ("user", "u"), ("client-id", "c")
    image = state_after(quota(user, client, value=1.0), quota(client, user, value=2.5))
    (row,) = image.rows_of(QuotaRow)
    assert (row.entity, row.quota, row.value) == ((client, user), "rate", 2.5)
    assert row.key == ('{"client-id":"c","user":"u"}', "rate")
    (change,) = changes_of(image, quota(user, client, value=0.0, remove=True))
    assert change.after is None


def test_the_default_entity_differs_from_a_named_one() -> None:
    image = state_after(
        quota(("user", None), value=1.0),
        quota(("user", ""), value=2.0),
        quota(("user", "u"), value=3.0),
    )
    assert {row.key[0]: row.value for row in image.rows_of(QuotaRow)} == {
        '{"user":null}': 1.0,
        '{"user":""}': 2.0,
        '{"user":"u"}': 3.0,
    }


def test_removing_a_missing_quota_is_no_change() -> None:
    assert changes_of(state_after(CONFIG), quota(("ip", "::1"), value=0.0, remove=True)) == ()


def test_equal_acls_with_two_ids_are_two_rows() -> None:
    image = state_after(ACL, dataclasses.replace(ACL, id=SECOND))
    rows = image.rows_of(AclRow)
    assert sorted(row.acl_id for row in rows) == sorted([FIRST, SECOND])
    left = state_after(ACL, dataclasses.replace(ACL, id=SECOND), _without(FIRST))
    assert [row.acl_id for row in left.rows_of(AclRow)] == [SECOND]


def _without(acl_id: str) -> RemoveAccessControlEntryRecord:
    return RemoveAccessControlEntryRecord(id=acl_id)


def test_an_acl_with_a_known_id_replaces_it() -> None:
    (row,) = state_after(ACL, dataclasses.replace(ACL, host="10.0.0.1")).rows_of(AclRow)
    assert row.host == "10.0.0.1"
    assert (row.resource_type_name, row.pattern_type_name) == ("TOPIC", "LITERAL")
    assert (row.operation_name, row.permission_name) == ("READ", "ALLOW")


def test_removing_an_unknown_acl_is_refused() -> None:
    with pytest.raises(ReplayError, match=f"no ACL with id {SECOND}"):
        state_after(ACL, _without(SECOND))
    with pytest.raises(ReplayError, match=f"no ACL with id {FIRST}"):
        state_after(ACL, _without(FIRST), _without(FIRST))


def test_credentials_are_stored_by_user_and_mechanism() -> None:
    stronger = dataclasses.replace(SCRAM, mechanism=2, iterations=8192)
    image = state_after(SCRAM, stronger, dataclasses.replace(SCRAM, salt=b"new"))
    rows = image.rows_of(ScramRow)
    assert [(row.mechanism_name, row.iterations, row.salt) for row in rows] == [
        ("SCRAM-SHA-256", 4096, b"new"),
        ("SCRAM-SHA-512", 8192, b"salt"),
    ]
    (change,) = changes_of(image, RemoveUserScramCredentialRecord(name="u", mechanism=1))
    assert change.key == ("u", 1)
    assert changes_of(image, RemoveUserScramCredentialRecord(name="x", mechanism=1)) == ()


def test_secrets_of_a_credential_are_not_shown_by_repr() -> None:
    (row,) = state_after(SCRAM).rows_of(ScramRow)
    assert not any(secret in repr(row) for secret in ("salt=", "stored", "server"))


def test_tokens_are_created_renewed_and_deleted() -> None:
    renewed = dataclasses.replace(TOKEN, expiration_timestamp=3)
    image = state_after(TOKEN, renewed)
    assert image.rows_of(TokenRow) == [
        TokenRow(
            token_id="id",
            owner="User:o",
            requester="User:r",
            renewers=("User:b", "User:a"),
            issue_timestamp_ms=1,
            max_timestamp_ms=3,
            expiration_timestamp_ms=3,
        )
    ]
    (change,) = changes_of(image, RemoveDelegationTokenRecord(token_id="id"))
    assert change.entity is Entity.TOKEN
    assert changes_of(image, RemoveDelegationTokenRecord(token_id="no")) == ()


def test_a_record_without_effect_still_names_its_row() -> None:
    (change,) = changes_of(state_after(CONFIG), CONFIG)
    assert (change.op, change.changed) == (Op.UPDATE, ())
    assert change.before == change.after
