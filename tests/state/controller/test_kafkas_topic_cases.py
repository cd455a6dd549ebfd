"""Cases of Kafka's tests of topics, placement and features; the docstrings name them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from tests.support.cluster_changes import broker, directory
from tests.support.controller_context import ControllerContext, error_of

from raftlog_state.controller import (
    AddPartitions,
    ApiException,
    ChangeRequest,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    PendingState,
)
from raftlog_state.controller.features import FeatureUpdate, UpgradeType, update_features
from raftlog_state.controller.pending_state import BoundedListTooLongError
from raftlog_state.controller.placement import place_partitions
from raftlog_state.controller.topics import DIRECTORY_UNASSIGNED, check_new_partitions
from raftlog_state.image import BrokerRow, FeatureRow, Row, TopicRow
from raftlog_state.image.rows import DIRECTORY_MIGRATING
from raftlog_state.records import (
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

NO_ERROR = (0, "")


def outcome(
    at: ControllerContext, change: ChangeRequest, *, limit: int | None = None
) -> tuple[int, str]:
    """Apply a change; return Kafka's error code and message."""
    refused = at.run(lambda state: state.attempt(lambda: at.write(change, state)), limit=limit)
    return error_of(refused)


def shut_down(row: BrokerRow) -> BrokerRow:
    return replace(row, in_controlled_shutdown=True)


# --- topics ---------------------------------------------------------------------------------------


def test_topics_are_created() -> None:
    """ReplicationControlManagerTest.testCreateTopics"""
    at = ControllerContext(*(broker(one, fenced=True) for one in range(3)))
    foo = CreateTopic(topic="foo", partitions=-1, replication_factor=-1)
    factor = replace(foo, replication_factor=3)
    code, reason = outcome(at, factor)
    assert code == 38
    assert reason == (
        "Unable to replicate the partition 3 time(s): All brokers are currently fenced or in "
        "controlled shutdown"
    )
    at = ControllerContext(brokers=3)
    assert outcome(at, factor) == NO_ERROR
    topic, partition = at.written
    assert isinstance(topic, TopicRecord)
    assert isinstance(partition, PartitionRecord)
    row = at.partition("foo")
    assert (row.topic_id, row.leader, row.leader_epoch) == (topic.topic_id, row.isr[0], 0)
    assert sorted(row.replicas) == sorted(row.isr) == [1, 2, 3]
    assert outcome(at, foo) == (36, "Topic 'foo' already exists")
    assert at.written == []


def test_topics_are_created_with_configs() -> None:
    """ReplicationControlManagerTest.testCreateTopicsWithConfigs"""
    at = ControllerContext(brokers=1)
    foo = CreateTopic(topic="foo", partitions=1, configs={"retention.ms": "1", "segment.ms": "2"})
    assert outcome(at, foo) == NO_ERROR
    assert [type(one) for one in at.written] == [
        TopicRecord,
        ConfigRecord,
        ConfigRecord,
        PartitionRecord,
    ]
    assert at.state.topic_config("foo", "segment.ms") == "2"
    bar = CreateTopic(topic="bar", partitions=1, configs={"retention.ms": "1", "nope": "2"})
    assert outcome(at, bar) == (40, "Unknown config name: nope")
    assert at.state.topic("bar") is None


@pytest.mark.parametrize(
    ("factor", "code"),
    [
        pytest.param(1, 0, id="ReplicationControlManagerTest.testCreateTopicsWithValidateOnlyFlag"),
        pytest.param(
            4, 38, id="ReplicationControlManagerTest.testInvalidCreateTopicsWithValidateOnlyFlag"
        ),
    ],
)
def test_topics_are_validated_only(factor: int, code: int) -> None:
    at = ControllerContext(brokers=3)
    foo = CreateTopic(topic="foo", partitions=1, replication_factor=factor)

    def attempt(state: PendingState) -> ApiException | None:
        return state.attempt(lambda: at.write(foo, state))

    refused = at.run(lambda state: state.validate_only(attempt))
    assert error_of(refused)[0] == code
    assert at.written == []
    assert at.state.topic("foo") is None


def test_replicas_on_inactive_brokers_are_not_in_the_isr() -> None:
    """ReplicationControlManagerTest.testCreateTopicsISRInvariants"""
    rows = (broker(0), broker(1, fenced=True), shut_down(broker(2)))
    at = ControllerContext(*rows)
    foo = CreateTopic(topic="foo", assignment=((1, 0, 2), (2, 1, 0)))
    assert outcome(at, foo) == NO_ERROR
    for number in (0, 1):
        row = at.partition("foo", number)
        assert (row.isr, row.leader) == ((0,), 0)
        assert len(row.replicas) == 3
    code, reason = outcome(at, CreateTopic(topic="bar", assignment=((1, 2),)))
    assert code == 39
    assert "are fenced or in controlled shutdown" in reason


def test_a_manual_assignment_needs_an_active_broker() -> None:
    """ReplicationControlManagerTest.testManualPartitionAssignmentOnAllFencedBrokers"""
    at = ControllerContext(*(broker(one, fenced=True) for one in range(3)))
    code, reason = outcome(at, CreateTopic(topic="foo", assignment=((0, 1, 2),)))
    assert code == 39
    assert reason == (
        "All brokers [0, 1, 2] specified in the manual partition assignment for partition 0 are "
        "fenced or in controlled shutdown"
    )


def test_names_collide() -> None:
    """ReplicationControlManagerTest.testCreateTopicWithCollisionChars"""
    at = ControllerContext(brokers=1)
    at.apply(CreateTopic(topic="foo.bar", partitions=1))
    collision = (17, "Topic 'foo_bar' collides with existing topic: foo.bar")
    assert outcome(at, CreateTopic(topic="foo_bar", partitions=1)) == collision
    at.apply(DeleteTopic(topic="foo.bar"))
    assert outcome(at, CreateTopic(topic="foo_bar", partitions=1)) == NO_ERROR


def test_a_collision_names_the_first_topic() -> None:
    """ReplicationControlManagerTest.testTopicNameCollision"""
    at = ControllerContext(brokers=1)
    at.apply(
        CreateTopic(topic="woo.bar.foo", partitions=1), CreateTopic(topic="fo_o", partitions=1)
    )
    for name, first in (("woo.bar_foo", "woo.bar.foo"), ("fo.o", "fo_o")):
        reason = f"Topic '{name}' collides with existing topic: {first}"
        assert outcome(at, CreateTopic(topic=name, partitions=1)) == (17, reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        ("a b", "contains one or more characters other than ASCII"),
        ("a" * 250, "is longer than the max allowed length 249"),
    ],
)
def test_names_are_valid(name: str, reason: str) -> None:
    """ReplicationControlManagerTest.testValidateNewTopicNames"""
    code, found = outcome(ControllerContext(brokers=1), CreateTopic(topic=name, partitions=1))
    assert code == 17
    assert reason in found


def test_a_request_creates_a_bounded_number_of_partitions() -> None:
    """ReplicationControlManagerTest.testExcessiveNumberOfTopicsCannotBeCreated"""
    at = ControllerContext(brokers=1)
    check_new_partitions([5_000, 4_999, -1])
    code, reason = at.refused(lambda _: check_new_partitions([5_000, 5_000, -1]))
    assert code == 44
    assert reason.startswith("Excessively large number of partitions per request")
    assert outcome(at, CreateTopic(topic="foo", partitions=10_001))[0] == 44


def test_a_request_assigns_a_bounded_number_of_partitions() -> None:
    """ReplicationControlManagerTest.testExcessiveNumberOfTopicsCannotBeCreatedWithAssignments"""
    at = ControllerContext(brokers=1)
    check_new_partitions([10_000])
    assert at.refused(lambda _: check_new_partitions([10_001]))[0] == 44
    assigned = CreateTopic(topic="foo", assignment=((1,),) * 10_001)
    with pytest.raises(BoundedListTooLongError):
        outcome(at, assigned, limit=10_000)


def test_an_operation_has_a_bounded_number_of_records() -> None:
    """QuorumController: ``MAX_RECORDS_PER_USER_OP``"""
    at = ControllerContext(brokers=1)
    with pytest.raises(BoundedListTooLongError):
        outcome(at, CreateTopic(topic="foo", partitions=10), limit=10)
    assert at.state.topic("foo") is None
    assert outcome(at, CreateTopic(topic="foo", partitions=9), limit=10) == NO_ERROR


def test_topics_are_deleted() -> None:
    """ReplicationControlManagerTest.testDeleteTopics"""
    at = ControllerContext(brokers=3)
    at.apply(CreateTopic(topic="foo", partitions=3, configs={"retention.ms": "1"}))
    row = at.state.topic("foo")
    assert row is not None
    wrong = directory(9)
    for change, error in (
        (DeleteTopic(topic="bar"), (3, "The topic 'bar' does not exist")),
        (
            DeleteTopic(topic="foo", topic_id=wrong),
            (100, f"its topic id is {row.topic_id}, not {wrong}"),
        ),
    ):
        assert outcome(at, change) == error
    assert outcome(at, DeleteTopic(topic="foo", topic_id=row.topic_id)) == NO_ERROR
    assert at.written == [RemoveTopicRecord(topic_id=row.topic_id)]
    assert at.state.rows_of(TopicRow) == []
    assert at.state.partition_keys(row.topic_id) == ()
    assert at.state.topic_config("foo", "retention.ms") is None


def test_partitions_are_added() -> None:
    """ReplicationControlManagerTest.testCreatePartitions"""
    both = (directory(1), directory(1, 1))
    at = ControllerContext(broker(0, log_dirs=()), broker(1, log_dirs=both), broker(3))
    for name, count in (("foo", 3), ("bar", 4), ("quux", 2), ("foo2", 2)):
        at.apply(CreateTopic(topic=name, partitions=count, replication_factor=2))
    added = AddPartitions(topic="foo", partitions=5)
    shrink = "The topic bar currently has 4 partition(s); 3 would not be an increase"
    uneven = (
        "The manual partition assignment includes a partition with 1 replica(s), but this is not "
        "consistent with previous partitions, which have 2 replica(s)"
    )
    few = "Attempted to add 2 additional partition(s), but 1 assignment(s) were specified"
    unknown = "The manual partition assignment includes broker 2, but no such broker is registered"
    for change, error in (
        (added, NO_ERROR),
        (replace(added, topic="bar", partitions=3), (37, shrink)),
        (replace(added, topic="baz"), (3, "The topic 'baz' does not exist")),
        (replace(added, topic="quux", partitions=2), (37, "Topic already has 2 partition(s)")),
        (replace(added, partitions=6, assignment=((1, 3),)), NO_ERROR),
        (replace(added, topic="bar", assignment=((1,),)), (39, uneven)),
        (replace(added, topic="quux", partitions=4, assignment=((1, 0),)), (39, few)),
        (replace(added, topic="foo2", partitions=3, assignment=((2, 0),)), (39, unknown)),
    ):
        assert outcome(at, change) == error
    row = at.partition("foo", 5)
    assert row.directories == (DIRECTORY_UNASSIGNED, directory(3))


def test_partitions_need_an_active_broker() -> None:
    """ReplicationControlManagerTest.testCreatePartitionsFailsWhenAllBrokersAreFencedOrInControlledShutdown"""
    at = ControllerContext(brokers=2)
    at.apply(CreateTopic(topic="foo", partitions=1, replication_factor=2))
    at.apply(FenceBroker(broker_id=1))
    row = at.state.find(BrokerRow, 2)
    assert row is not None
    at.state.replace(row, shut_down(row))
    code, reason = outcome(at, AddPartitions(topic="foo", partitions=2))
    assert code == 38
    assert "All brokers are currently fenced or in controlled shutdown" in reason


def test_assigned_partitions_need_an_active_broker() -> None:
    """ReplicationControlManagerTest.testCreatePartitionsFailsWithManualAssignmentWithAllFenced"""
    at = ControllerContext(*(broker(one, fenced=one > 2) for one in range(1, 6)))
    at.apply(CreateTopic(topic="foo", assignment=((1, 2, 3),)))
    code, reason = outcome(at, AddPartitions(topic="foo", partitions=2, assignment=((3, 4, 5),)))
    assert code == 39
    assert "partition 1 are fenced or in controlled shutdown" in reason
    assert len(at.state.partition_keys(at.partition("foo").topic_id)) == 1


def test_added_partitions_have_active_replicas_in_the_isr() -> None:
    """ReplicationControlManagerTest.testCreatePartitionsISRInvariants"""
    at = ControllerContext(broker(0), broker(1, fenced=True), shut_down(broker(2)))
    at.apply(CreateTopic(topic="foo", assignment=((0, 1, 2),)))
    at.apply(AddPartitions(topic="foo", partitions=2, assignment=((1, 2, 0),)))
    row = at.partition("foo", 1)
    assert (row.replicas, row.isr, row.leader) == ((1, 2, 0), (0,), 0)


@pytest.mark.parametrize("assignment", [(1,), (1, 2, 3), (3, 1, 2)])
def test_good_assignments(assignment: tuple[int, ...]) -> None:
    """ReplicationControlManagerTest.testValidateGoodManualPartitionAssignments"""
    at = ControllerContext(brokers=3)
    assert outcome(at, CreateTopic(topic="foo", assignment=(assignment,))) == NO_ERROR


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        (((),), "includes an empty replica list"),
        (((1, 2, 1),), "includes a broker more than once"),
        (((1, 7),), "includes broker 7, but no such broker is registered"),
        (((1, 2), (1,)), "a partition with 1 replica(s), but this is not consistent"),
    ],
)
def test_bad_assignments(assignment: tuple[tuple[int, ...], ...], reason: str) -> None:
    """ReplicationControlManagerTest.testValidateBadManualPartitionAssignments"""
    at = ControllerContext(brokers=3)
    code, found = outcome(at, CreateTopic(topic="foo", assignment=assignment))
    assert code == 39
    assert reason in found


def test_replicas_have_the_directories_of_their_brokers() -> None:
    """ReplicationControlManagerTest.testKRaftClusterDescriber"""
    both = (directory(3), directory(3, 1))
    at = ControllerContext(broker(1, log_dirs=()), broker(2), broker(3, log_dirs=both))
    at.apply(CreateTopic(topic="foo", assignment=((1, 2, 3),)))
    expected = (DIRECTORY_MIGRATING, directory(2), DIRECTORY_UNASSIGNED)
    assert at.partition("foo").directories == expected


# --- placement ------------------------------------------------------------------------------------


def place(*rows: Row, count: int = 1, factor: int = 1, seed: int = 1) -> list[tuple[int, ...]]:
    at = ControllerContext(*rows, seed=seed)
    return at.run(lambda state: list(place_partitions(state, "topic 'foo'", count, factor)))


def placement_refused(*rows: Row, factor: int) -> tuple[int, str]:
    at = ControllerContext(*rows)
    return at.refused(lambda state: place_partitions(state, "topic 'foo'", 1, factor))


def live(*ids: int, rack: str | None = None) -> list[BrokerRow]:
    return [broker(one, rack=rack) for one in ids]


def fenced(*ids: int, rack: str | None = None) -> list[BrokerRow]:
    return [broker(one, rack=rack, fenced=True) for one in ids]


def test_brokers_of_a_rack_are_in_cyclic_order() -> None:
    """StripedReplicaPlacerTest.testBrokerList"""
    found = place(*live(0, 1, 2, 3), count=4, factor=2)
    leaders = [one[0] for one in found]
    assert sorted(leaders) == [0, 1, 2, 3]
    assert all((b - a) % 4 == 1 for a, b in pairwise(leaders))
    assert all((second - first) % 4 == 1 for first, second in found)


def test_a_fenced_broker_is_the_last_choice() -> None:
    """StripedReplicaPlacerTest.testAvoidFencedReplicaIfPossibleOnSingleRack"""
    for seed in range(5):
        (found,) = place(*live(0, 1, 2), *fenced(3, 4), factor=3, seed=seed)
        assert sorted(found) == [0, 1, 2]
        (found,) = place(*live(0, 1, 2), *fenced(3, 4), factor=4, seed=seed)
        assert set(found[:3]) == {0, 1, 2}
        assert found[3] in (3, 4)


def test_a_fenced_broker_never_leads() -> None:
    """StripedReplicaPlacerTest.testPlacementOnFencedReplicaOnSingleRack"""
    found = place(*live(3), *fenced(1, 2), count=3, factor=3)
    assert [one[0] for one in found] == [3, 3, 3]
    assert all(sorted(one) == [1, 2, 3] for one in found)


def test_one_unfenced_broker_leads_all_partitions() -> None:
    """StripedReplicaPlacerTest.testMultiPartitionTopicPlacementOnSingleUnfencedBroker"""
    assert place(*live(0), *fenced(1, 2), count=3) == [(0,)] * 3


def test_replicas_alternate_between_racks() -> None:
    """StripedReplicaPlacerTest.testRackListWithMultipleRacks"""
    rows = [*live(10, 30, rack="1"), *live(20, rack="2"), *live(40, 11, rack="3")]
    racks = {row.broker_id: row.rack for row in rows}
    for one in place(*rows, *fenced(21, rack="2"), count=5, factor=3):
        assert {racks[replica] for replica in one} == {"1", "2", "3"}
    for one in place(*rows, count=5, factor=5):
        assert sorted(one) == [10, 11, 20, 30, 40]


def test_a_rack_without_unfenced_brokers_does_not_lead() -> None:
    """StripedReplicaPlacerTest.testRackListWithInvalidRacks"""
    rows = [*live(11, rack="1"), *fenced(21, 22, rack="2"), *live(31, rack="3")]
    for one in place(*rows, count=6, factor=3):
        assert one[0] in (11, 31)
        assert {replica // 10 for replica in one} == {1, 2, 3}


@pytest.mark.parametrize(
    ("rows", "factor", "reason"),
    [
        pytest.param(
            fenced(11, 10),
            1,
            "All brokers are currently fenced or in controlled shutdown",
            id="StripedReplicaPlacerTest.testAllBrokersFenced",
        ),
        pytest.param(
            live(11, 10),
            3,
            "replication factor of 3 cannot be reached because only 2 broker(s)",
            id="StripedReplicaPlacerTest.testNotEnoughBrokers",
        ),
        pytest.param(
            [*fenced(1, rack="a"), *fenced(2, rack="b")],
            1,
            "All brokers are currently fenced or in controlled shutdown",
            id="StripedReplicaPlacerTest.testRackListAllBrokersFenced",
        ),
        pytest.param(
            [*live(1, rack="a"), *live(2, rack="b")],
            3,
            "replication factor of 3 cannot be reached because only 2 broker(s)",
            id="StripedReplicaPlacerTest.testRackListNotEnoughBrokers",
        ),
    ],
)
def test_impossible_placements(rows: list[BrokerRow], factor: int, reason: str) -> None:
    code, found = placement_refused(*rows, factor=factor)
    assert code == 38
    assert reason in found


@pytest.mark.parametrize("factor", [0, -2])
def test_a_replication_factor_is_positive(factor: int) -> None:
    """StripedReplicaPlacerTest.testNonPositiveReplicationFactor"""
    at = ControllerContext(brokers=2)
    change = CreateTopic(topic="foo", partitions=1, replication_factor=factor)
    assert outcome(at, change)[0] == 38


def test_a_successful_placement() -> None:
    """StripedReplicaPlacerTest.testSuccessfulPlacement"""
    found = place(*live(3, 1, 2), count=5, factor=3)
    assert all(sorted(one) == [1, 2, 3] for one in found)
    assert {one[0] for one in found} == {1, 2, 3}


def test_leaderships_and_replica_sets_are_even() -> None:
    """StripedReplicaPlacerTest.testEvenDistribution"""
    found = place(*live(0, 1, 2, 3, 4, 5), count=200, factor=3)
    leaders = Counter(one[0] for one in found)
    assert max(leaders.values()) - min(leaders.values()) <= 2
    assert len(set(found)) > 30, "replica sets do not repeat after each round"


# --- features -------------------------------------------------------------------------------------

VERSION = "metadata.version"
SAFE, UNSAFE = UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE
TRANSACTION = "transaction.version"


class Quorum:
    """Quorum that has a kraft.version, or refuses it."""

    def __init__(self, kraft_version: int, *, refusal: str | None = None) -> None:
        self.kraft_version = kraft_version
        self.refusal = refusal

    def upgrade_kraft_version(self, version: int, *, validate_only: bool) -> int:
        if self.refusal is not None:
            raise ApiException("kraft.version", self.refusal, "-", 95)
        if not validate_only:
            self.kraft_version = version
        return 1_000


def update(
    at: ControllerContext, *updates: tuple[Any, ...], quorum: Quorum | None = None
) -> tuple[int, str]:
    wanted = [FeatureUpdate(*one) for one in updates]

    def operation(state: PendingState) -> ApiException | None:
        return state.attempt(lambda: update_features(wanted, state))

    return error_of(at.run(operation, quorum=quorum))


def levels(at: ControllerContext) -> dict[str, int]:
    return {row.name: row.level for row in at.state.rows_of(FeatureRow)}


def test_all_features_of_a_request_are_updated_or_none() -> None:
    """FeatureControlManagerTest.testUpdateFeatures"""
    at = ControllerContext()
    refused = "Invalid update version"
    code, reason = update(at, (TRANSACTION, 3, SAFE))
    assert (code, reason) == (
        95,
        f"{refused} 3 for feature {TRANSACTION}. This release only supports versions 0-2",
    )
    code, reason = update(at, (TRANSACTION, 1), ("bar", 1))
    assert code == 95
    assert reason.startswith(f"{refused} 1 for feature bar. Feature bar not found")
    assert at.written == []
    assert update(at, (TRANSACTION, 1)) == NO_ERROR
    assert at.written == [FeatureLevelRecord(name=TRANSACTION, feature_level=1)]


def test_every_broker_supports_a_level() -> None:
    """FeatureControlManagerTest.testUpdateFeaturesErrorCases"""
    at = ControllerContext(brokers=1)
    code, reason = update(at, ("share.version", 1))
    assert (code, reason) == (
        95,
        "Invalid update version 1 for feature share.version. Broker 1 does not support this "
        "feature",
    )
    assert update(at, ("group.version", 1)) == NO_ERROR
    code, reason = update(at, ("group.version", 0))
    assert code == 95
    assert "without setting the upgrade type to either safe or unsafe downgrade" in reason
    assert update(at, ("group.version", 0, SAFE)) == NO_ERROR
    assert "group.version" not in levels(at)


def test_levels_are_replayed() -> None:
    """FeatureControlManagerTest.testReplayRecords"""
    at = ControllerContext()
    assert update(at, (TRANSACTION, 2), ("group.version", 1)) == NO_ERROR
    assert levels(at) == {VERSION: 30, TRANSACTION: 2, "group.version": 1}
    at.apply_feature(TRANSACTION, 0)
    assert levels(at) == {VERSION: 30, "group.version": 1}


def test_a_level_of_an_unknown_feature_is_replayed() -> None:
    """FeatureControlManagerTest.testReplay"""
    at = ControllerContext()
    at.apply_feature("foo", 2)
    assert levels(at) == {VERSION: 30, "foo": 2}


def test_kraft_version_is_not_in_records_of_features() -> None:
    """FeatureControlManagerTest.testReplayKraftVersionFeatureLevel"""
    at = ControllerContext()
    at.apply_feature("kraft.version", 1)
    assert levels(at) == {VERSION: 30}
    assert levels(at) == {VERSION: 30}


def test_a_version_that_the_quorum_has_is_an_upgrade_without_effect() -> None:
    at, quorum = ControllerContext(), Quorum(1)
    assert update(at, ("kraft.version", 1), quorum=quorum) == NO_ERROR
    assert at.written == [NoOpRecord()]
    assert update(at, ("kraft.version", 1, SAFE), quorum=quorum) == NO_ERROR
    assert at.written == []


def test_an_upgrade_of_the_quorum_precedes_the_records_of_the_request() -> None:
    at, quorum = ControllerContext(), Quorum(0)
    assert update(at, ("group.version", 1), ("kraft.version", 1), quorum=quorum) == NO_ERROR
    assert quorum.kraft_version == 1
    assert at.written == [NoOpRecord(), FeatureLevelRecord(name="group.version", feature_level=1)]
    assert at.next_offset == 1_002, "the control records end at 1000"


def test_the_quorum_is_not_upgraded_if_another_update_is_refused_or_only_validated() -> None:
    at, quorum = ControllerContext(), Quorum(0)
    code, reason = update(at, ("kraft.version", 1), ("group.version", 9), quorum=quorum)
    assert code == 95
    assert "group.version" in reason
    dry = [FeatureUpdate("kraft.version", 1)]
    at.run(lambda state: state.validate_only(partial(update_features, dry)), quorum=quorum)
    assert quorum.kraft_version == 0
    assert at.written == []


@pytest.mark.parametrize(
    ("level", "kind", "reason"),
    [
        (0, SAFE, "Can't downgrade the version of this feature."),
        (0, UNSAFE, "Can't downgrade the version of this feature."),
        (
            0,
            UpgradeType.UPGRADE,
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade.",
        ),
    ],
)
def test_the_quorum_is_not_downgraded(level: int, kind: UpgradeType, reason: str) -> None:
    at = ControllerContext()
    refused = f"Invalid update version {level} for feature kraft.version. {reason}"
    assert update(at, ("kraft.version", level, kind), quorum=Quorum(1)) == (95, refused)


def test_a_refusal_of_the_quorum_is_that_of_the_request() -> None:
    at = ControllerContext()
    assert update(at, ("kraft.version", 1), quorum=Quorum(0, refusal="busy")) == (95, "busy")
    code, reason = update(at, ("kraft.version", 1))
    assert code == 95
    assert "only the leader of a quorum can write" in reason


def test_a_metadata_version_is_replayed() -> None:
    """FeatureControlManagerTest.testApplyMetadataVersionChangeRecord"""
    at = ControllerContext(level=8)
    at.apply_feature(VERSION, 9)
    assert at.state.metadata_version == 9


@pytest.mark.parametrize(
    ("current", "level", "kind", "reason"),
    [
        pytest.param(*case, id=f"FeatureControlManagerTest.{name}")
        for name, *case in (
            (
                "testCannotDowngradeToHigherVersion",
                8,
                9,
                SAFE,
                "Can't downgrade to a newer version",
            ),
            ("testCannotUnsafeDowngradeToHigherVersion", 8, 9, UNSAFE, "to a newer version"),
            ("testCannotUpgradeToLowerVersion", 10, 9, 1, "either safe or unsafe downgrade"),
            ("testCanUpgradeToHigherVersion", 8, 9, 1, ""),
            (
                "testCannotUseSafeDowngradeIfMetadataChanged",
                8,
                7,
                SAFE,
                "Unsupported metadata.version downgrade from 8 to 7. Refusing to perform the "
                "requested downgrade because it might delete metadata information",
            ),
            (
                "testUnsafeDowngradeIsTemporarilyDisabled",
                8,
                7,
                UNSAFE,
                "Unsafe metadata downgrade is not supported in this version",
            ),
            ("testCanUseSafeDowngradeIfMetadataDidNotChange", 9, 8, SAFE, ""),
            ("testCannotDowngradeBeforeMinimumKraftVersion", 7, 6, UNSAFE, "versions 7-33"),
        )
    ],
)
def test_metadata_versions(current: int, level: int, kind: int, reason: str) -> None:
    at = ControllerContext(level=current)
    code, found = update(at, (VERSION, level, kind))
    assert code == (95 if reason else 0)
    assert reason in found
    assert at.state.metadata_version == (current if reason else level)


def test_a_feature_is_enabled_and_disabled() -> None:
    """FeatureControlManagerTest.testCreateFeatureLevelRecords"""
    at = ControllerContext(brokers=1)
    for level, kind in ((1, UpgradeType.UPGRADE), (0, UNSAFE)):
        assert update(at, ("group.version", level, kind)) == NO_ERROR
        assert at.written == [FeatureLevelRecord(name="group.version", feature_level=level)]


def test_a_feature_and_the_metadata_version_that_it_needs_are_updated_together() -> None:
    """FeatureControlManagerTest.testUpgradeElrFeatureLevel"""
    elr = "eligible.leader.replicas.version"
    at = ControllerContext(brokers=1, level=22)
    code, reason = update(at, (elr, 1))
    assert code == 95
    assert "depends on metadata.version level 23" in reason
    assert update(at, (elr, 1), (VERSION, 23)) == NO_ERROR
    assert levels(at) == {elr: 1, VERSION: 23}
    assert at.state.config(4, "", "min.insync.replicas") == "1"


def test_an_unknown_upgrade_type_is_refused() -> None:
    code, reason = update(ControllerContext(), (TRANSACTION, 1, 0))
    assert code == 95
    assert reason.endswith("The controller does not support the given upgrade type.")
