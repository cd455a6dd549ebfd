"""Cases of Kafka's tests of ACLs and client quotas; the docstrings name them.

Kafka's ``ScramControlManager`` has no test of its operations: those cases are its rules.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.support.controller_context import ControllerContext, codes_of, error_of

from raftlog_state.controller import ApiException, RemoveToken, SetToken, write_change
from raftlog_state.controller.acls import (
    ANY,
    LITERAL,
    MATCH,
    PREFIXED,
    AclBinding,
    AclFilter,
    create_acls,
    delete_acls,
    describe_acls,
)
from raftlog_state.controller.pending_state import BoundedListTooLongError, PendingState
from raftlog_state.controller.producer_ids import allocate_producer_ids
from raftlog_state.controller.quotas import (
    QuotaAlteration,
    QuotaComponent,
    QuotaEntity,
    QuotaMatch,
    alter_client_quotas,
    describe_client_quotas,
)
from raftlog_state.controller.scram import (
    ScramDeletion,
    ScramUpsertion,
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from raftlog_state.controller.tokens import DelegationToken, DelegationTokenControl
from raftlog_state.image import AclRow, TokenRow
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

TOPIC, GROUP, READ, ALTER, ALLOW, DENY = 2, 3, 3, 7, 3, 2
UNKNOWN = 0
NO_ERROR = (0, "")


# --- ACLs -----------------------------------------------------------------------------------------


def binding(
    name: str = "orders",
    pattern: int = LITERAL,
    *,
    resource_type: int = TOPIC,
    operation: int = ALTER,
    permission: int = ALLOW,
) -> AclBinding:
    return AclBinding(
        resource_type=resource_type,
        resource_name=name,
        pattern_type=pattern,
        principal="User:ana",
        operation=operation,
        permission=permission,
    )


ACLS = (
    binding("*"),
    binding("ord", PREFIXED),
    binding(operation=READ),
    binding(resource_type=GROUP),
)


def create(at: ControllerContext, *bindings: AclBinding) -> list[tuple[int, str]]:
    return [error_of(one) for one in at.run(lambda state: create_acls(bindings, state))]


def delete(at: ControllerContext, *filters: AclFilter) -> list[object]:
    found = at.run(lambda state: delete_acls(filters, state))
    return [
        sorted((row.resource_name, row.resource_type, row.operation) for row in one)
        if isinstance(one, list)
        else error_of(one)
        for one in found
    ]


@pytest.mark.parametrize(
    ("acl", "reason"),
    [
        (binding("*"), ""),
        (binding(pattern=UNKNOWN), "Invalid patternType UNKNOWN"),
        (binding(pattern=MATCH), "Invalid patternType MATCH"),
        (binding(pattern=ANY), "Invalid patternType ANY"),
        (binding(resource_type=UNKNOWN), "Invalid resourceType UNKNOWN"),
        (binding(resource_type=ANY), "Invalid resourceType ANY"),
        (binding(operation=UNKNOWN), "Invalid operation UNKNOWN"),
        (binding(permission=UNKNOWN), "Invalid permissionType UNKNOWN"),
        (binding(""), "Resource name should not be empty"),
    ],
)
def test_a_new_acl_has_values_that_kafka_knows(acl: AclBinding, reason: str) -> None:
    """AclControlManagerTest.testValidateNewAcl"""
    assert create(ControllerContext(), acl) == [(42 if reason else 0, reason)]


@pytest.mark.parametrize(
    "principal",
    [
        pytest.param("ana", id="AclControlManagerTest.testValidateAclWithBadPrincipal"),
        pytest.param("", id="AclControlManagerTest.testValidateAclWithEmptyPrincipal"),
    ],
)
def test_a_principal_has_a_type(principal: str) -> None:
    ((code, reason),) = create(ControllerContext(), replace(binding(), principal=principal))
    assert code == 42
    assert reason.startswith(f"Could not parse principal from `{principal}` (no colon is present")


def test_a_filter_has_values_that_kafka_knows() -> None:
    """AclControlManagerTest.testValidateFilter"""
    at = ControllerContext()
    AclFilter(resource_name="*", pattern_type=LITERAL).check()
    AclFilter(pattern_type=MATCH).check()
    for wanted, reason in (
        (AclFilter(pattern_type=UNKNOWN), "Unknown patternFilter"),
        (AclFilter(resource_type=UNKNOWN), "Unknown patternFilter"),
        (AclFilter(operation=UNKNOWN), "Unknown entryFilter"),
        (AclFilter(permission=99), "Unknown entryFilter"),
    ):
        assert at.refused(lambda state, asked=wanted: describe_acls(asked, state.current)) == (  # type: ignore[misc]
            42,
            reason,
        )


def test_acls_are_loaded_and_reverted() -> None:
    """AclControlManagerTest.testLoadSnapshot"""
    at = ControllerContext()
    registry = at.state.registry
    registry.get_or_create_snapshot(0)
    assert codes_of(at.run(lambda state: create_acls(ACLS, state))) == [0] * 4
    rows = describe_acls(AclFilter(), at.state)
    assert {row.acl_id for row in rows} == {
        one.id for one in at.written if isinstance(one, AccessControlEntryRecord)
    }
    registry.revert_to_snapshot(0)
    assert describe_acls(AclFilter(), at.state) == []


def test_an_acl_is_added_and_removed() -> None:
    """AclControlManagerTest.testAddAndDelete"""
    at = ControllerContext()
    create(at, binding())
    (row,) = at.state.rows_of(AclRow)
    at.replay(RemoveAccessControlEntryRecord(id=row.acl_id))
    assert at.state.rows_of(AclRow) == []
    assert create(at, binding()) == [NO_ERROR]
    assert len(at.written) == 1


def test_acls_are_created_and_deleted_by_filters() -> None:
    """AclControlManagerTest.testCreateAclDeleteAcl"""
    at = ControllerContext()
    assert create(at, *ACLS, binding(pattern=UNKNOWN)) == [
        *[NO_ERROR] * 4,
        (42, "Invalid patternType UNKNOWN"),
    ]
    assert len(at.written) == 4
    found = delete(at, AclFilter(pattern_type=LITERAL), AclFilter(resource_type=UNKNOWN))
    assert found == [
        [("*", TOPIC, ALTER), ("orders", TOPIC, READ), ("orders", GROUP, ALTER)],
        (42, "Unknown patternFilter"),
    ]
    assert len(at.written) == 3
    assert [row.resource_name for row in at.state.rows_of(AclRow)] == ["ord"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (AclFilter(resource_name="orders", pattern_type=MATCH), ["*", "ord", "orders", "orders"]),
        (AclFilter(resource_name="ord", pattern_type=MATCH), ["*", "ord"]),
        (AclFilter(resource_name="or", pattern_type=MATCH), ["*"]),
        (AclFilter(resource_name="orders", pattern_type=PREFIXED), []),
        (AclFilter(resource_name="ord", pattern_type=ANY), ["ord"]),
        (AclFilter(resource_type=GROUP), ["orders"]),
        (AclFilter(operation=READ), ["orders"]),
        (AclFilter(permission=DENY), []),
        (AclFilter(principal="User:ana", host="*"), ["*", "ord", "orders", "orders"]),
        (AclFilter(host="h"), []),
    ],
)
def test_a_filter_matches_patterns_of_a_resource(wanted: AclFilter, names: list[str]) -> None:
    at = ControllerContext()
    create(at, *ACLS)
    assert sorted(row.resource_name for row in describe_acls(wanted, at.state)) == names


def test_equal_acls_are_created_once() -> None:
    """AclControlManagerTest.testCreateDedupe"""
    at = ControllerContext()
    assert create(at, binding(), binding()) == [NO_ERROR, NO_ERROR]
    assert len(at.written) == 1
    assert create(at, binding()) == [NO_ERROR]
    assert at.written == []


def test_an_acl_is_deleted_once_and_is_in_the_result_of_each_filter() -> None:
    """AclControlManagerTest.testDeleteDedupe"""
    at = ControllerContext()
    create(at, binding())
    content = [("orders", TOPIC, ALTER)]
    exact = AclFilter(resource_name="orders", resource_type=TOPIC)
    assert delete(at, AclFilter(), exact) == [content, content]
    assert len(at.written) == 1
    assert delete(at, exact) == [[]]


def test_an_operation_deletes_a_bounded_number_of_acls() -> None:
    """AclControlManagerTest.testDeleteExceedsMaxRecords"""
    at = ControllerContext()
    create(at, *(binding(f"topic{number}") for number in range(11)))
    with pytest.raises(BoundedListTooLongError):
        at.run(lambda state: delete_acls([AclFilter()], state), limit=10)
    assert len(at.state.rows_of(AclRow)) == 11


# --- quotas ---------------------------------------------------------------------------------------

PRODUCE, CONSUME, PERCENT = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
CONNECTIONS = "connection_creation_rate"
USER: QuotaEntity = (("user", "ana"),)


def alter(
    at: ControllerContext, entity: QuotaEntity, *quotas: tuple[str, float | None]
) -> tuple[int, str]:
    result = at.run(lambda state: alter_client_quotas([QuotaAlteration(entity, quotas)], state))
    (refused,) = result.values()
    return error_of(refused)


@pytest.mark.parametrize(
    "entity",
    [
        (("host", "a"),),
        (("user", "ana"), ("host", "a")),
        (("host", "a"), ("ip", "1.2.3.4")),
        (("user", "ana"), ("ip", "1.2.3.4")),
        (("client-id", "c"), ("ip", "1.2.3.4")),
        (("user", ""),),
        (),
    ],
)
def test_entities_have_known_types_in_known_combinations(entity: QuotaEntity) -> None:
    """ClientQuotaControlManagerTest.testInvalidEntityTypes"""
    at = ControllerContext()
    assert alter(at, entity, (PRODUCE, 10_000.0))[0] == 42
    assert at.written == []


def test_a_wrong_quota_refuses_all_of_its_entity() -> None:
    """ClientQuotaControlManagerTest.testInvalidQuotaKeys"""
    at = ControllerContext()
    assert alter(at, USER, ("no.quota", 1.0), (PERCENT, 99.9))[0] == 42
    assert alter(at, USER, (PERCENT, 99.9), ("no.quota", 1.0))[0] == 42
    assert at.written == []


def test_quotas_are_set_changed_and_removed() -> None:
    """ClientQuotaControlManagerTest.testAlterAndRemove"""
    at = ControllerContext()

    def change(*quotas: tuple[str, float | None]) -> dict[str, float]:
        assert alter(at, USER, *quotas) == NO_ERROR
        return describe_client_quotas([], at.state, strict=False).get(USER, {})

    assert change((PRODUCE, 10_000.0)) == {PRODUCE: 10_000.0}
    both = {PRODUCE: 10_001.0, CONSUME: 20_000.0}
    assert change(*both.items()) == both
    assert change((PRODUCE, None)) == {CONSUME: 20_000.0}
    assert change((PERCENT, None)) == {CONSUME: 20_000.0}
    assert at.written == []
    assert change((CONSUME, None)) == {}
    assert change((CONSUME, None)) == {}
    many = {PERCENT: 99.0, "controller_mutation_rate": None, PRODUCE: 2.0, CONSUME: 1.0}
    assert change(*many.items()) == {PERCENT: 99.0, PRODUCE: 2.0, CONSUME: 1.0}
    assert change(*many.items()) == {PERCENT: 99.0, PRODUCE: 2.0, CONSUME: 1.0}
    assert at.written == []


ENTITIES: tuple[QuotaEntity, ...] = (
    (("client-id", "c1"), ("user", "ana")),
    (("client-id", "c1"), ("user", None)),
    (("client-id", None), ("user", "ana")),
    (("user", "ana"),),
    (("user", None),),
    (("client-id", "c2"),),
    (("ip", "10.0.0.1"),),
)


def test_entities_are_stored_by_all_of_their_names() -> None:
    """ClientQuotaControlManagerTest.testEntityTypes"""
    at = ControllerContext()
    for number, entity in enumerate(ENTITIES, 1):
        quota = CONNECTIONS if entity[0][0] == "ip" else PERCENT
        turned = tuple(reversed(entity))
        assert alter(at, turned, (quota, float(number))) == NO_ERROR
        (record,) = at.written
        assert isinstance(record, ClientQuotaRecord)
        assert {(one.entity_type, one.entity_name) for one in record.entity} == set(entity)
    found = describe_client_quotas([], at.state, strict=False)
    assert {entity: list(quotas.values()) for entity, quotas in found.items()} == {
        entity: [float(number)] for number, entity in enumerate(ENTITIES, 1)
    }


def test_an_entity_or_quota_occurs_once_in_a_request() -> None:
    at = ControllerContext()
    one = QuotaAlteration(USER, [(PERCENT, 1.0)])
    result = at.run(lambda state: alter_client_quotas([one, one], state))
    assert [error_of(refused)[1][:25] for refused in result.values()] == [
        "Ignoring duplicate entity"
    ]
    assert "Duplicate quota key" in alter(at, USER, (PERCENT, 1.0), (PERCENT, 2.0))[1]


@pytest.mark.parametrize(
    ("entity", "quota", "limit", "reason"),
    [
        pytest.param(entity, quota, limit, reason, id=f"ClientQuotaControlManagerTest.{case}")
        for case, entity, quota, limit, reason in (
            ("testIsValidIpEntityWithNull", {"ip": None}, CONNECTIONS, 1, ""),
            ("testIsValidIpEntityWithLocalhost", {"ip": "127.0.0.1"}, CONNECTIONS, 1, ""),
            (
                "testIsValidIpEntityWithUnresolvableHostname",
                {"ip": "a b"},
                CONNECTIONS,
                1,
                "valid IP",
            ),
            ("testConfigKeysForUnresolvableIpEntity", {"ip": "1.2.3"}, CONNECTIONS, 1, "valid IP"),
            ("testConfigKeysForEntityTypeWithUser", {"user": "u"}, PRODUCE, 1, ""),
            ("testConfigKeysForEntityTypeWithClientId", {"client-id": "c"}, CONSUME, 1, ""),
            (
                "testConfigKeysForEntityTypeWithUserAndClientId",
                {"user": "u", "client-id": "c"},
                "controller_mutation_rate",
                0.5,
                "",
            ),
            ("testConfigKeysForEntityTypeWithIp", {"ip": "::1"}, PRODUCE, 1, "Invalid config"),
            ("testConfigKeysForEmptyEntity", {}, PRODUCE, 1, "Invalid empty client quota entity"),
            (
                "testConfigKeysForEntityTypeWithIpAndUser",
                {"ip": "1.1.1.1", "user": "u"},
                CONNECTIONS,
                1,
                "should not be combined with User or ClientId",
            ),
            (
                "testConfigKeysForEntityTypeWithIpAndClientId",
                {"ip": "1.1.1.1", "client-id": "c"},
                CONNECTIONS,
                1,
                "should not be combined with User or ClientId",
            ),
            (
                "testValidateQuotaKeyValueForUnknownQuota",
                {"user": "u"},
                "x",
                1,
                "configuration key x",
            ),
            ("testValidateQuotaKeyValueForZeroQuota", {"user": "u"}, CONSUME, 0, "greater than 0"),
            ("testValidateQuotaKeyValueForNegativeQuota", {"user": "u"}, CONSUME, -1, "than 0"),
            ("testValidateQuotaKeyValueForValidConsumerByteRate", {"user": "u"}, CONSUME, 1234, ""),
            (
                "testValidateQuotaKeyValueForValidConsumerByteRate2",
                {"user": "u"},
                CONSUME,
                2.0**62,
                "",
            ),
            (
                "testValidateQuotaKeyValueForConsumerByteRateTooLarge",
                {"user": "u"},
                CONSUME,
                36893488147419103232.4,
                "too large for a LONG",
            ),
            (
                "testValidateQuotaKeyValueForFractionalConsumerByteRate",
                {"user": "u"},
                CONSUME,
                2.25,
                "cannot be a fractional value",
            ),
            (
                "testValidateQuotaKeyValueForValidRequestPercentage",
                {"user": "u"},
                PERCENT,
                56.62367,
                "",
            ),
        )
    ],
)
def test_quotas_depend_on_the_type_of_their_entity(
    entity: dict[str, str | None], quota: str, limit: float, reason: str
) -> None:
    code, found = alter(ControllerContext(), tuple(entity.items()), (quota, limit))
    assert code == (42 if reason else 0)
    assert reason in found


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, [1, 2, 3, 4, 5, 6]),
        ([QuotaComponent("user", QuotaMatch.EXACT, "ana")], False, [1, 3, 4]),
        ([QuotaComponent("user", QuotaMatch.EXACT, "ana")], True, [4]),
        ([QuotaComponent("user", QuotaMatch.DEFAULT)], False, [2, 5]),
        ([QuotaComponent("user", QuotaMatch.SPECIFIED)], False, [1, 2, 3, 4, 5]),
        (
            [
                QuotaComponent("user", QuotaMatch.SPECIFIED),
                QuotaComponent("client-id", QuotaMatch.DEFAULT),
            ],
            True,
            [3],
        ),
    ],
)
def test_quotas_are_described(
    components: list[QuotaComponent], strict: bool, expected: list[int]
) -> None:
    """Kafka: ``ClientQuotasImage.describe``"""
    at = ControllerContext()
    for number, entity in enumerate(ENTITIES[:-1], 1):
        alter(at, entity, (PERCENT, float(number)))
    found = describe_client_quotas(components, at.state, strict=strict)
    assert sorted(quotas[PERCENT] for quotas in found.values()) == expected


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([QuotaComponent("", QuotaMatch.SPECIFIED)], 42),
        ([QuotaComponent("host", QuotaMatch.SPECIFIED)], 35),
        ([QuotaComponent("user", QuotaMatch.EXACT)], 42),
        ([QuotaComponent("user", QuotaMatch.DEFAULT, "a")], 42),
        ([QuotaComponent("user", QuotaMatch.SPECIFIED, "a")], 42),
        ([QuotaComponent("user", 9)], 42),
        ([QuotaComponent("user", QuotaMatch.SPECIFIED)] * 2, 42),
        ([QuotaComponent(one, QuotaMatch.SPECIFIED) for one in ("ip", "user")], 42),
    ],
)
def test_a_wrong_quota_filter_is_refused(components: list[QuotaComponent], code: int) -> None:
    """Kafka: ``ClientQuotasImage.describe``"""
    at = ControllerContext()

    def describe(state: object) -> object:
        return describe_client_quotas(components, at.state, strict=True)

    assert at.refused(describe)[0] == code


# --- SCRAM ----------------------------------------------------------------------------------------


def upsertion(user: str = "ana", mechanism: int = 1, iterations: int = 4096) -> ScramUpsertion:
    return ScramUpsertion(
        user=user, mechanism=mechanism, iterations=iterations, salt=b"s", salted_password=b"p"
    )


def scram(
    at: ControllerContext, *alterations: ScramDeletion | ScramUpsertion
) -> dict[str, tuple[int, str]]:
    deletions = [one for one in alterations if isinstance(one, ScramDeletion)]
    upsertions = [one for one in alterations if isinstance(one, ScramUpsertion)]
    result = at.run(lambda state: alter_user_scram_credentials(deletions, upsertions, state))
    return {user: error_of(refused) for user, refused in result.items()}


def test_credentials_are_created_described_and_deleted() -> None:
    at = ControllerContext()
    assert scram(at, upsertion(), upsertion("bo", 2, 8192)) == {"ana": NO_ERROR, "bo": NO_ERROR}
    records = at.written
    assert all(isinstance(one, UserScramCredentialRecord) for one in records)
    key = getattr(records[0], "stored_key")  # noqa: B009
    assert len(key) == hashlib.sha256().digest_size
    assert scram(at, upsertion("ana", 2)) == {"ana": NO_ERROR}
    assert describe_user_scram_credentials([], at.state) == {
        "ana": {1: 4096, 2: 4096},
        "bo": {2: 8192},
    }
    assert scram(at, ScramDeletion("ana", 1), upsertion("bo", 1)) == {
        "ana": NO_ERROR,
        "bo": NO_ERROR,
    }
    assert isinstance(at.written[0], RemoveUserScramCredentialRecord)
    found = describe_user_scram_credentials(["ana", "bo", "bo", "cy"], at.state)
    assert found["ana"] == {2: 4096}
    assert error_of(found["bo"])[0] == 92
    assert error_of(found["cy"])[0] == 91


@pytest.mark.parametrize(
    ("alterations", "code", "reason"),
    [
        ([upsertion(""), upsertion("bo")], 93, "Username must not be empty"),
        ([upsertion(mechanism=0)], 33, "Unknown SCRAM mechanism"),
        ([upsertion(iterations=4095)], 93, "Too few iterations"),
        ([upsertion(iterations=16_385)], 93, "Too many iterations"),
        ([ScramDeletion("ana", 1)], 91, "a user credential that does not exist"),
        ([upsertion(), upsertion(mechanism=2)], 92, "altered twice in the same request"),
        ([ScramDeletion("ana", 2), upsertion()], 92, "altered twice in the same request"),
    ],
)
def test_refused_credentials_leave_those_of_other_users(
    alterations: list[ScramDeletion | ScramUpsertion], code: int, reason: str
) -> None:
    at = ControllerContext()
    result = scram(at, *alterations)
    user = alterations[0].user
    assert result[user][0] == code
    assert reason in result[user][1]
    assert len(at.written) == len(result) - 1
    assert "p" not in repr(result).split("'")


def test_credentials_need_a_metadata_version() -> None:
    at = ControllerContext(level=10)
    assert [code for code, _ in scram(at, upsertion(), ScramDeletion("bo", 1)).values()] == [35, 35]


# --- delegation tokens ----------------------------------------------------------------------------

SECRET = "a key of the cluster"
ANA, BO, CY = "User:ana", "User:bo", "User:cy"
DAY_MS = 24 * 3_600_000


def tokens(secret_key: str | None = SECRET) -> DelegationTokenControl:
    return DelegationTokenControl(secret_key, max_lifetime_ms=7 * DAY_MS, renew_lifetime_ms=DAY_MS)


def created(at: ControllerContext, **options: Any) -> DelegationToken:
    named: dict[str, Any] = {"requester": ANA, "now_ms": 0} | options
    return at.run(lambda state: tokens().create(state, **named))


def test_a_token_is_in_the_log_without_its_hmac() -> None:
    at = ControllerContext()
    token = created(at, renewers=[BO], owner=CY, now_ms=5)
    row = token.row
    assert at.written == [
        DelegationTokenRecord(
            owner=CY,
            requester=ANA,
            renewers=(BO,),
            issue_timestamp=5,
            max_timestamp=5 + 7 * DAY_MS,
            expiration_timestamp=5 + DAY_MS,
            token_id=row.token_id,
        )
    ]
    digest = hashlib.sha512
    assert token.hmac == hmac.new(SECRET.encode(), row.token_id.encode(), digest).digest()
    assert SECRET not in repr(token)
    assert repr(token.hmac)[2:20] not in repr(token)
    short = created(at, max_lifetime_ms=1_000)
    assert (short.row.max_timestamp_ms, short.row.expiration_timestamp_ms) == (1_000, 1_000)
    at.refused(lambda state: tokens().create(state, requester=ANA, renewers=["Group:g"], now_ms=0))


def test_a_token_is_renewed_by_its_owner_or_a_renewer_until_its_maximum() -> None:
    at = ControllerContext()
    token = created(at, renewers=[BO])

    def renew(principal: str, now_ms: int, period_ms: int = -1, secret: bytes = token.hmac) -> int:
        return at.run(
            lambda state: tokens().renew(
                state, hmac=secret, principal=principal, renew_period_ms=period_ms, now_ms=now_ms
            )
        )

    assert renew(ANA, 10) == 10 + DAY_MS
    assert renew(BO, 10, 500) == 510
    for now_ms in (510, *(day * DAY_MS for day in range(1, 7))):
        assert renew(BO, now_ms) == now_ms + DAY_MS
    assert renew(ANA, 7 * DAY_MS) == 7 * DAY_MS
    for principal, now_ms, secret, code in (
        (CY, 10, token.hmac, 63),
        (ANA, 8 * DAY_MS, token.hmac, 66),
        (ANA, 10, b"other", 62),
    ):
        with pytest.raises(ApiException) as caught:
            renew(principal, now_ms, secret=secret)
        assert caught.value.kafka_code == code
        assert at.written == []


def test_a_token_of_a_change_row_is_used_with_the_secret_key_and_renewed_and_deleted_by_rows() -> (
    None
):
    at = ControllerContext()
    row = SetToken(
        owner=ANA,
        renewers=(BO,),
        issue_timestamp_ms=0,
        expiration_timestamp_ms=DAY_MS,
        max_timestamp_ms=7 * DAY_MS,
    )
    at.apply(row)
    (token,) = at.state.rows_of(TokenRow)
    assert token == replace(created(at, renewers=[BO]).row, token_id=token.token_id)
    password = hmac.new(SECRET.encode(), token.token_id.encode(), hashlib.sha512).digest()
    renewed_ms = at.run(
        lambda state: tokens().renew(state, hmac=password, principal=BO, now_ms=DAY_MS)
    )
    assert renewed_ms == 2 * DAY_MS
    at.apply(replace(row, token_id=token.token_id, expiration_timestamp_ms=3 * DAY_MS))
    renewed = at.state.find(TokenRow, token.token_id)
    assert renewed == replace(token, expiration_timestamp_ms=3 * DAY_MS)
    at.apply(RemoveToken(token_id=token.token_id))
    assert at.state.find(TokenRow, token.token_id) is None


def test_token_rows_are_refused_before_a_metadata_version_that_has_tokens() -> None:
    at = ControllerContext(level=13)
    row = SetToken(owner=ANA, issue_timestamp_ms=0, expiration_timestamp_ms=1, max_timestamp_ms=1)
    for change in (row, RemoveToken(token_id="A" * 22)):
        code, reason = at.refused(partial(write_change, change))
        assert code == 35
        assert "metadata.version 13 does not support them" in reason


def test_a_token_expires_earlier_or_is_removed() -> None:
    at = ControllerContext()
    token = created(at)

    def expire(period_ms: int, now_ms: int) -> int:
        return at.run(
            lambda state: tokens().expire(
                state, hmac=token.hmac, principal=ANA, expiry_period_ms=period_ms, now_ms=now_ms
            )
        )

    assert expire(100, 1_000) == 1_100
    assert expire(2**63 - 1, 1_000) == 7 * DAY_MS
    assert expire(0, 2_000) == 2_000
    with pytest.raises(ApiException) as caught:
        expire(10, 3_000)
    assert caught.value.kafka_code == 66
    assert expire(-1, 3_000) == 3_000
    assert at.written == [RemoveDelegationTokenRecord(token_id=token.row.token_id)]


def test_tokens_are_described_to_those_that_may_use_them() -> None:
    at = ControllerContext()
    mine, other = created(at, renewers=[BO]), created(at, requester=CY)

    def described(principal: str, owners: list[str] | None = None) -> list[DelegationToken]:
        control = tokens()
        is_described = control.described_to(principal, owners)
        return [control.token_of(row) for row in at.state.rows_of(TokenRow) if is_described(row)]

    assert described(ANA) == described(BO) == [mine]
    assert described(CY) == [other]
    assert described(ANA, [CY]) == described(BO, []) == []
    assert described(BO, [BO]) == [mine], "Kafka: TokenInformation.ownerOrRenewer"


def test_tokens_of_others_are_described_if_that_is_allowed() -> None:
    """Kafka: DelegationTokenManager.filterToken"""
    at = ControllerContext()
    mine, other = created(at), created(at, requester=CY)
    allowed = {other.row.token_id}

    def described(principal: str, owners: list[str] | None = None) -> set[str]:
        is_described = tokens().described_to(
            principal, owners, is_allowed=lambda row: row.token_id in allowed
        )
        return {row.token_id for row in at.state.rows_of(TokenRow) if is_described(row)}

    assert described(ANA) == {mine.row.token_id, other.row.token_id}
    assert described(BO) == described(BO, [CY]) == {other.row.token_id}
    assert described(BO, [BO]) == set()


def test_expired_tokens_are_removed() -> None:
    at = ControllerContext()
    created(at, max_lifetime_ms=10)
    late = created(at)
    assert at.run(lambda state: tokens().remove_expired(state, now_ms=11)) is False
    assert [row.token_id for row in at.state.rows_of(TokenRow)] == [late.row.token_id]


@pytest.mark.parametrize(
    ("secret", "level", "code"), [(None, 30, 61), ("", 30, 61), (SECRET, 13, 35)]
)
def test_tokens_need_a_key_and_a_metadata_version(
    secret: str | None, level: int, code: int
) -> None:
    at = ControllerContext(level=level)
    control = tokens(secret)
    operations: list[Callable[[PendingState], object]] = [
        lambda state: control.create(state, requester=ANA, now_ms=0),
        lambda state: control.renew(state, hmac=b"", principal=ANA, now_ms=0),
        lambda state: control.expire(state, hmac=b"", principal=ANA, expiry_period_ms=1, now_ms=0),
    ]
    assert {at.refused(one)[0] for one in operations} == {code}


# --- producer ids ---------------------------------------------------------------------------------


def allocate(at: ControllerContext, broker_id: int = 1, epoch: int = 1) -> range:
    return at.run(lambda state: allocate_producer_ids(broker_id, epoch, state))


def test_the_first_block_begins_at_0() -> None:
    """ProducerIdControlManagerTest.testInitialResult"""
    at = ControllerContext(brokers=1)
    assert allocate(at) == range(1_000)
    assert at.written == [ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1_000)]


def test_blocks_follow_the_last_record() -> None:
    """ProducerIdControlManagerTest.testMonotonic"""
    at = ControllerContext(brokers=1)
    at.replay(ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=42))
    assert allocate(at) == range(42, 1_042)


def test_a_broker_has_an_epoch() -> None:
    """ProducerIdControlManagerTest.testUnknownBrokerOrEpoch"""
    at = ControllerContext(brokers=1)
    assert at.refused(lambda state: allocate_producer_ids(99, 1, state))[0] == 77
    assert at.refused(lambda state: allocate_producer_ids(1, 99, state))[0] == 77


def test_producer_ids_end() -> None:
    """ProducerIdControlManagerTest.testMaxValue"""
    at = ControllerContext(brokers=1)
    at.replay(ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=2**63 - 1_001))
    assert allocate(at) == range(2**63 - 1_001, 2**63 - 1)
    code, reason = at.refused(lambda state: allocate_producer_ids(1, 1, state))
    assert code == -1
    assert reason.startswith("Exhausted all producerIds")


def test_blocks_of_brokers_are_disjoint() -> None:
    """ProducerIdControlManagerTest.testGenerateProducerIds"""
    at = ControllerContext(brokers=4)
    ids = [
        one
        for _ in range(3)
        for broker_id in range(1, 5)
        for one in allocate(at, broker_id, broker_id)
    ]
    assert ids == list(range(12_000))
