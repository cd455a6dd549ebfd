"""Cases of Kafka's tests of ACLs and client quotas; the docstrings name them.

Kafka's ``ScramControlManager`` has no test of its operations: those cases are its rules.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from tests.support.controller_context import ControllerContext, codes_of, error_of

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
from raftlog_state.controller.pending_state import BoundedListTooLongError
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
from raftlog_state.image import AclRow
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    RemoveAccessControlEntryRecord,
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
