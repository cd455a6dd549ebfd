"""Impossible changes are refused by row: what, why, a remedy, and Kafka's error code."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from tests.support.cluster_changes import broker, cluster, planned, records_of

from raftlog_state.controller import CHANGE_TYPES, CreateTopic, parse_change
from raftlog_state.errors import InvalidChangesError, RefusedChange
from raftlog_state.image import MetadataImage
from raftlog_state.image.record_versions import LEVEL_CIDR_ACLS
from raftlog_state.records import AccessControlEntryRecord

ORDERS = {"change": "create_topic", "topic": "orders", "assignment": [[1, 2], [2, 3]]}
TOPIC = {"resource_type": "topic", "resource_name": "orders"}


def refusals(*changes: dict[str, Any], image: MetadataImage | None = None) -> list[RefusedChange]:
    with pytest.raises(InvalidChangesError) as caught:
        planned(cluster() if image is None else image, *changes)
    return list(caught.value.refused)


def isr(*replicas: int) -> dict[str, Any]:
    return {"change": "set_isr", "topic": "orders", "partition": 0, "isr": list(replicas)}


def config(**columns: Any) -> dict[str, Any]:
    return {"change": "set_config", **TOPIC, **columns}


def topic(name: str, **columns: Any) -> dict[str, Any]:
    return {"change": "create_topic", "topic": name, **columns}


def acl(**columns: Any) -> dict[str, Any]:
    row = {"change": "add_acl", **TOPIC, "principal": "User:a", "operation": "READ"}
    return row | columns


def quota(entity: dict[str, str | None], name: str, limit: float) -> dict[str, Any]:
    return {"change": "set_quota", "entity": entity, "quota": name, "limit": limit}


def scram(**columns: Any) -> dict[str, Any]:
    row = {"change": "set_scram", "user": "a", "mechanism": "SCRAM-SHA-256", "password": "p"}
    return row | columns


def token(**columns: Any) -> dict[str, Any]:
    row = {"change": "set_token", "owner": "User:ana", "issue_timestamp_ms": 1}
    return row | {"expiration_timestamp_ms": 2, "max_timestamp_ms": 3} | columns


def feature(name: str, level: int) -> dict[str, Any]:
    return {"change": "set_feature", "feature": name, "level": level}


def registered(**columns: Any) -> dict[str, Any]:
    return {"change": "register_broker", "broker_id": 9, "endpoints": {"A": "h:1"}} | columns


CASES: list[tuple[str, dict[str, Any], str, int]] = [
    # topics
    ("a topic that exists", topic("orders"), "Topic 'orders' already exists", 36),
    ("a name with a space", topic("a b"), "ASCII alphanumerics", 17),
    ("no name", topic(""), "the empty string is not allowed", 17),
    (
        "the metadata log's name",
        topic("__cluster_metadata"),
        "internal topic __cluster_metadata is prohibited",
        17,
    ),
    ("no partitions", topic("t", partitions=0), "invalid non-positive value", 37),
    ("no replicas", topic("t", replication_factor=0), "must be larger than 0", 38),
    ("more replicas than brokers", topic("t", replication_factor=4), "only 3 broker(s)", 38),
    ("an unknown broker", topic("t", assignment=[[1, 7]]), "broker 7, but no such broker", 39),
    ("a broker twice", topic("t", assignment=[[1, 1]]), "more than once", 39),
    ("an empty assignment", topic("t", assignment=[[1], []]), "includes an empty replica list", 39),
    (
        "uneven assignments",
        topic("t", assignment=[[1], [1, 2]]),
        "with 2 replica(s), but this is not consistent",
        39,
    ),
    ("no assignment", topic("t", assignment=[]), "assignment is empty", 37),
    (
        "both forms",
        topic("t", assignment=[[1]], partitions=1),
        "A manual partition assignment was specified, but",
        42,
    ),
    ("an id that is none", topic("t", topic_id="x"), "not a uuid of 22 base64url", 42),
    ("a config that is none", topic("t", configs={"x": "1"}), "Unknown config name: x", 40),
    (
        "an unknown topic",
        {"change": "delete_topic", "topic": "x"},
        "The topic 'x' does not exist",
        3,
    ),
    (
        "another topic's id",
        {"change": "delete_topic", "topic": "orders", "topic_id": "B" * 22},
        f", not {'B' * 22}",
        100,
    ),
    (
        "fewer partitions",
        {"change": "add_partitions", "topic": "orders", "partitions": 1},
        "would not be an increase",
        37,
    ),
    (
        "too few assignments",
        {"change": "add_partitions", "topic": "orders", "partitions": 4, "assignment": [[1, 2]]},
        "add 2 additional partition(s), but 1",
        39,
    ),
    (
        "another replication factor",
        {"change": "add_partitions", "topic": "orders", "partitions": 3, "assignment": [[1]]},
        "which have 2 replica(s)",
        39,
    ),
    # partitions
    ("an ISR outside the replicas", isr(1, 3), "not among the replicas [1, 2]", 42),
    ("an ISR without the leader", isr(2), "not include the leader 1", 42),
    ("a replica twice in the ISR", isr(1, 1), "more than once", 42),
    ("an unknown partition", isr(1) | {"partition": 5}, "Unable to find partition orders:5", 3),
    (
        "nothing to cancel",
        {"change": "reassign_partition", "topic": "orders", "partition": 0},
        "No partition reassignment is in progress",
        85,
    ),
    (
        "a move to nobody",
        {"change": "reassign_partition", "topic": "orders", "partition": 0, "replicas": []},
        "an empty replica list",
        39,
    ),
    (
        "another number of replicas",
        {
            "change": "reassign_partition",
            "topic": "orders",
            "partition": 0,
            "replicas": [1],
            "allow_replication_factor_change": False,
        },
        "The replication factor is changed from 2 to 1",
        38,
    ),
    (
        "an election that is not needed",
        {"change": "elect_leader", "topic": "orders", "partition": 0},
        "Leader election not needed",
        84,
    ),
    (
        "an election of another kind",
        {"change": "elect_leader", "topic": "orders", "partition": 0, "election": "fair"},
        "Unknown election type 'fair'",
        42,
    ),
    # configs
    ("an unknown config", config(name="x", value="1"), "Unknown config name: x", 40),
    (
        "text for a number",
        config(name="retention.ms", value="long"),
        "Not a number of type LONG",
        40,
    ),
    ("a number too large", config(name="segment.bytes", value=str(2**31)), "32 bits", 40),
    ("a number too low", config(name="min.insync.replicas", value="0"), "must be in [1,...]", 40),
    ("no boolean", config(name="preallocate", value="yes"), "either true or false", 40),
    ("no choice", config(name="cleanup.policy", value="keep"), "[compact, delete]", 40),
    (
        "an element for no list",
        config(name="retention.ms", value="1") | {"change": "append_config"},
        "Can't APPEND to key retention.ms because its type is not LIST",
        40,
    ),
    (
        "an element from no list",
        config(name="retention.ms", value="1") | {"change": "subtract_config"},
        "Can't SUBTRACT to key retention.ms",
        40,
    ),
    (
        "a config of Kafka 3",
        config(name="message.format.version", value="3.0"),
        "removed in Kafka 4.0",
        40,
    ),
    (
        "an unknown topic's config",
        config(resource_name="x", name="retention.ms", value="1"),
        "The topic 'x' does not exist",
        3,
    ),
    (
        "an unknown broker's config",
        config(resource_type="BROKER", resource_name="7", name="a", value="1"),
        "No node with id 7 found",
        102,
    ),
    (
        "a broker that is no number",
        config(resource_type="BROKER", resource_name="one", name="a", value="1"),
        "as a base 10 number",
        42,
    ),
    (
        "a logger's level",
        config(resource_type="BROKER_LOGGER", resource_name="1", name="a", value="INFO"),
        "not a known value",
        42,
    ),
    (
        "a group without a name",
        config(resource_type="GROUP", resource_name="", name="a", value="1"),
        "Default group resources are not allowed",
        42,
    ),
    # access
    ("an operation that is none", acl(operation="LOOK"), "'LOOK' is not a known value", 42),
    ("a principal without a type", acl(principal="ana"), "no colon is present", 42),
    ("a rule for nothing", acl(resource_name=""), "Resource name should not be empty", 42),
    ("a rule for no host", acl(host=""), "Host pattern cannot be null or empty", 42),
    ("a range before 4.4", acl(host="10.0.0.0/8"), "requires metadata.version 32 or higher", 35),
    ("all rules", {"change": "remove_acl"}, "all ACLs would be removed", 42),
    (
        "a rule that is not there",
        {"change": "remove_acl", "principal": "User:x"},
        "no ACL matches",
        91,
    ),
    ("a quota for nobody", quota({}, "producer_byte_rate", 1), "empty client quota entity", 42),
    ("a quota for a host", quota({"host": "a"}, "producer_byte_rate", 1), "entity type: host", 42),
    (
        "a quota for an empty name",
        quota({"user": ""}, "producer_byte_rate", 1),
        "Empty user not supported",
        42,
    ),
    (
        "an ip's wrong quota",
        quota({"ip": "::1"}, "producer_byte_rate", 1),
        "Invalid configuration key",
        42,
    ),
    ("no ip", quota({"ip": "1.2.3"}, "connection_creation_rate", 1), "not a valid IP", 42),
    ("a quota of 0", quota({"user": "a"}, "producer_byte_rate", 0), "greater than 0", 42),
    ("a fraction", quota({"user": "a"}, "producer_byte_rate", 1.5), "a fractional value", 42),
    ("no number", quota({"user": "a"}, "request_percentage", float("nan")), "greater than 0", 42),
    ("few iterations", scram(iterations=1), "not in 4096 to 16384", 93),
    ("no password", scram(password=None), "exactly one of password", 93),
    ("another mechanism", scram(mechanism="PLAIN"), "not a known value", 33),
    (
        "a credential that is not there",
        {"change": "remove_scram", "user": "a", "mechanism": 2},
        "a user credential that does not exist",
        91,
    ),
    (
        "a token of a user without a name",
        token(owner="User:"),
        "'User:' has no type or no name",
        67,
    ),
    ("a requester without a type", token(requester="eve"), "'eve' has no type or no name", 67),
    ("a renewer that is no user", token(renewers=["Group:a"]), "principalType is not supp", 67),
    ("a token issued too late", token(issue_timestamp_ms=10**6), "are not in order", 42),
    ("a token that expires too late", token(max_timestamp_ms=1), "are not in order", 42),
    ("a token before 1970", token(issue_timestamp_ms=-1), "are not in order", 42),
    ("a token with another id", token(token_id="a"), "not a uuid", 42),
    (
        "a token that is not there",
        {"change": "remove_token", "token_id": "A" * 21 + "Q"},
        "There is no token with the id",
        62,
    ),
    # features and brokers
    ("an unknown feature", feature("beauty.version", 1), "beauty.version not found", 95),
    (
        "the quorum's feature",
        feature("kraft.version", 1),
        "Broker 1 does not support this feature",
        95,
    ),
    (
        "a level that is not known",
        feature("metadata.version", 99),
        "only supports versions 7-33",
        95,
    ),
    (
        "a downgrade",
        feature("metadata.version", 29),
        "Can't downgrade the version of this feature without",
        95,
    ),
    (
        "a downgrade that loses records",
        feature("metadata.version", 25) | {"allow_downgrade": True},
        "metadata information of version 30",
        95,
    ),
    ("a level that no broker knows", feature("share.version", 1), "Broker 1 does not", 95),
    (
        "an unknown broker fenced",
        {"change": "fence_broker", "broker_id": 7},
        "not currently registered",
        102,
    ),
    ("a broker without a listener", registered(endpoints={}), "No endpoints", 119),
    (
        "an endpoint without a port",
        registered(endpoints={"A": "h"}),
        "not [protocol://]host:port",
        42,
    ),
    (
        "a broker of another release",
        registered(features={"metadata.version": [7, 29]}),
        "version 30 of metadata.version. The broker wants a version between 7 and 29",
        35,
    ),
]


@pytest.mark.parametrize(
    ("change", "reason", "kafka_code"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_an_impossible_change_is_refused(
    change: dict[str, Any], reason: str, kafka_code: int
) -> None:
    (refused,) = refusals(ORDERS, change)
    assert refused.row == 1
    assert refused.change == change["change"]
    assert reason in refused.reason
    assert refused.kafka_code == kafka_code
    assert refused.what
    assert refused.remedy


def test_all_refused_rows_are_in_one_error() -> None:
    with pytest.raises(InvalidChangesError) as caught:
        planned(cluster(), topic("a b"), topic("fine"), *[topic("")] * 12)
    error = caught.value
    assert [one.row for one in error.refused] == [0, *range(2, 14)]
    text = str(pickle.loads(pickle.dumps(error)))
    assert text.startswith("[RAFTLOG_INVALID_CHANGES] 13 of 14 changes were rejected, nothing")
    assert "\n  row 0 (create_topic), topic 'a b': Topic name is invalid: 'a b' contains" in text
    assert text.endswith("\n  and 3 more")


def test_a_refused_row_has_no_effect_on_later_rows() -> None:
    half = topic("t", assignment=[[1]], configs={"retention.ms": "1", "x": "1"})
    first, second = refusals(half, config(resource_name="t", name="retention.ms", value="1"))
    assert "Unknown config name: x" in first.reason
    assert second.reason == "The topic 't' does not exist"
    (again,) = refusals(half, topic("t", assignment=[[1]]))
    assert again.row == 0


def test_brokers_that_are_fenced_or_shut_down_are_not_in_sync() -> None:
    image = cluster(broker(4, fenced=True), broker(5, in_controlled_shutdown=True), brokers=1)
    (refused,) = refusals(topic("t", assignment=[[4, 5]]), image=image)
    assert "All brokers [4, 5] specified" in refused.reason
    (refused,) = refusals(
        topic("t", assignment=[[1, 4, 5]]), isr(1, 4) | {"topic": "t"}, image=image
    )
    assert "ineligible replicas: 4 (fenced)" in refused.reason
    assert refused.kafka_code == 107
    no_entity = cluster(broker(4, fenced=True), brokers=0)
    (refused,) = refusals(topic("t"), image=no_entity)
    assert refused.kafka_code == 38


def test_names_that_collide_in_metrics_are_refused() -> None:
    first, second = topic("a.b"), topic("a_b")
    (refused,) = refusals(first, second)
    assert "collides with existing topic: a.b" in refused.reason
    assert refused.kafka_code == 17
    assert records_of(cluster(), first, {"change": "delete_topic", "topic": "a.b"}, second)


def test_a_log_without_a_metadata_version_accepts_nothing_else_first() -> None:
    empty = MetadataImage.empty()
    (refused,) = refusals(feature("group.version", 1), image=empty)
    assert "no metadata.version yet" in refused.reason
    assert records_of(empty, feature("metadata.version", 30), feature("group.version", 1))


@pytest.mark.parametrize(
    ("host", "is_valid"),
    [
        ("10.0.0.7/8", True),
        ("::/0", True),
        ("00000fe80::0010.0.0.1/-0", True),
        ("::1/0000000000064", True),
        ("10.0.0.0/33", False),
        ("::1/129", False),
        ("::1/-1", False),
        ("::0000000010.0.0.1/64", False),
        ("::0ffff:10.0.0.1/104", False),
        ("/", False),
    ],
)
def test_an_acl_may_have_a_valid_range_of_addresses(host: str, is_valid: bool) -> None:
    image = cluster(level=LEVEL_CIDR_ACLS)
    if is_valid:
        (record,) = records_of(image, acl(host=host))
        assert isinstance(record.record, AccessControlEntryRecord)
        assert record.record.host == host
        return
    (refused,) = refusals(acl(host=host), image=image)
    assert refused.reason.startswith(f"Invalid CIDR notation '{host}'")
    assert refused.kafka_code == 42


@pytest.mark.parametrize("level", [6, 34])
def test_an_unsupported_metadata_version_is_refused(level: int) -> None:
    (refused,) = refusals(topic("t"), image=cluster(level=level))
    assert (refused.kafka_code, refused.what) == (35, "the log")
    assert f"{level} is not supported: this release supports 7 to 33" in refused.reason


def test_values_that_are_no_rows_are_refused() -> None:
    (refused,) = refusals("create_topic")  # type: ignore[arg-type]
    assert refused.reason == "it is of type str, neither a mapping nor a change object"


def test_features_missing_in_a_metadata_version_are_refused() -> None:
    (refused,) = refusals(scram(), image=cluster(level=8))
    assert (refused.kafka_code, refused.reason) == (
        35,
        "The current metadata.version 8 does not support SCRAM",
    )
    (refused,) = refusals(registered(log_dirs=["B" * 22]), image=cluster(level=15))
    assert "Directory assignment is not supported" in refused.reason
    (refused,) = refusals(
        config(resource_type="BROKER", resource_name="1", name="cordoned.log.dirs", value="/a"),
        image=cluster(level=29),
    )
    assert "requires metadata.version 30 or higher" in refused.reason
    old = {"message.format.version": "3.0"}
    assert records_of(cluster(level=21), topic("t", configs=old))


def test_with_eligible_leader_replicas_no_broker_has_its_own_min_isr() -> None:
    image = cluster(elr=True)
    own = config(resource_type=4, resource_name="1", name="min.insync.replicas", value="2")
    (refused,) = refusals(own, image=image)
    assert "Broker-level min.insync.replicas cannot be altered" in refused.reason
    deletion = {"change": "delete_config", "resource_type": 4, "resource_name": ""}
    (refused,) = refusals(deletion | {"name": "min.insync.replicas"}, image=image)
    assert "cannot be removed while ELR is enabled" in refused.reason


def test_no_refusal_shows_a_secret() -> None:
    secret = "opensesame"
    rows = [
        scram(password=secret, iterations=1),
        config(name="retention.ms", value=secret),
        config(name="x", value=secret),
        scram(salt=secret),
        scram(salted_password=secret.encode(), password=None),
    ]
    found = refusals(ORDERS, *rows)
    assert len(found) == len(rows)
    assert secret not in str(InvalidChangesError(refused=tuple(found), row_count=6))
    assert all(secret not in repr(parse_change(row)) for row in rows[:3])


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "what", "reason"),
    [
        ({}, "the row", "column 'change' is missing"),
        ({"change": "paint_topic"}, "the row", "unknown change 'paint_topic'"),
        ({"change": "create_topic"}, "column 'topic'", "create_topic requires it"),
        ({"change": "create_topic", "topic": 5}, "column 'topic'", "int, not text"),
        (topic("t", partitions="3"), "column 'partitions'", "str, not a whole number"),
        (topic("t", partitions=True), "column 'partitions'", "bool, not a whole number"),
        (topic("t", partitions=2**31), "column 'partitions'", "32 bits"),
        (topic("t", assignment=[1]), "column 'assignment'", "int, not a list"),
        (topic("t", configs=["a"]), "column 'configs'", "not a map"),
        (topic("t", configs=[("a", "1"), ("a", "2")]), "column 'configs'", "twice"),
        (topic("t", configs={"a": None}), "column 'configs'", "NoneType, not text"),
        (topic("t", replicas=[1]), "column 'replicas'", "create_topic has no such column"),
        (topic("t", colour=None), "column 'colour'", "no change has this column"),
        (topic("\ud800"), "column 'topic'", "not text in Unicode"),
        (quota({"user": "a"}, "q", True), "column 'limit'", "bool, not a number"),
    ],
)
def test_an_unknown_kind_of_row_is_refused(row: dict[str, Any], what: str, reason: str) -> None:
    (refused,) = refusals(row)
    assert refused.what == what
    assert reason in refused.reason


def test_a_row_may_have_nulls_in_the_fields_of_other_kinds() -> None:
    row = topic("t", partitions=2, replicas=None, entity=None, isr=None, limit=None)
    assert parse_change(row) == CreateTopic(topic="t", partitions=2)


def test_every_kind_of_change_has_a_refused_case() -> None:
    kinds = {case[1]["change"] for case in CASES} | {"unfence_broker", "unregister_broker"}
    assert kinds | {"delete_config", "remove_quota"} == set(CHANGE_TYPES)
