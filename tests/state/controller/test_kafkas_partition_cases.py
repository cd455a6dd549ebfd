"""Cases of Kafka's ``ReplicationControlManagerTest`` of ISRs, elections, reassignments and eligible
leader replicas; the docstrings name them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.cluster_changes import broker
from tests.support.controller_context import ControllerContext, codes_of, error_of, found

from raftlog.types import ZERO_UUID
from raftlog_state.controller import (
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    ReassignPartition,
    RegisterBroker,
    SetConfig,
    SetIsr,
    UnfenceBroker,
    UnregisterBroker,
)
from raftlog_state.controller.partition_change import RECOVERED, RECOVERING, Election
from raftlog_state.controller.partitions import (
    AlterPartition,
    alter_partition,
    balance_partition_leaders,
    elect_leaders,
    elect_unclean_leaders,
)
from raftlog_state.controller.reassignments import (
    Reassignment,
    alter_partition_reassignments,
    list_partition_reassignments,
)
from raftlog_state.image import BrokerRow, PartitionRow
from raftlog_state.records import (
    ClearElrRecord,
    MetadataRecord,
    PartitionChangeRecord,
    TopicRecord,
)
from raftlog_state.replay.topics import LEADER_UNCHANGED
from raftlog_state.steps import complete

PREFERRED, UNCLEAN = Election.PREFERRED, Election.UNCLEAN
MIN_ISR = "min.insync.replicas"


def context(
    *assignment: tuple[int, ...], brokers: int = 4, fenced: tuple[int, ...] = (), **options: Any
) -> ControllerContext:
    """Return a context of brokers 0 to ``brokers`` with the topic "foo"."""
    level = options.get("level", 30)
    rows = [broker(one, level, fenced=one in fenced) for one in range(brokers + 1)]
    found = ControllerContext(*rows, **options)
    found.apply(CreateTopic(topic="foo", assignment=assignment))
    return found


def request(at: ControllerContext, number: int, *isr: int, **differing: Any) -> AlterPartition:
    row = at.partition("foo", number)
    columns: dict[str, Any] = {
        "topic_id": row.topic_id,
        "partition": number,
        "leader_epoch": row.leader_epoch,
        "partition_epoch": row.partition_epoch,
        "isr": tuple((one, -1) for one in isr),
    }
    return AlterPartition(**columns | differing)


def alter(
    at: ControllerContext, *requests: AlterPartition, broker_id: int | None = None
) -> list[PartitionRow | tuple[int, str]]:
    """Send the requests of the leader of the first one."""
    leader = at.partition("foo", requests[0].partition).leader if broker_id is None else broker_id
    found = at.run(lambda state: alter_partition(leader, leader, requests, state))
    return [one if isinstance(one, PartitionRow) else error_of(one) for one in found]


def set_isr(at: ControllerContext, number: int, *isr: int) -> None:
    (row,) = alter(at, request(at, number, *isr))
    assert isinstance(row, PartitionRow)
    assert row == at.partition("foo", number)


def fence(at: ControllerContext, *ids: int) -> None:
    for one in ids:
        at.apply(FenceBroker(broker_id=one))


def unfence(at: ControllerContext, *ids: int) -> None:
    for one in ids:
        at.apply(UnfenceBroker(broker_id=one))


def set_min_isr(at: ControllerContext, value: int) -> None:
    at.apply(SetConfig(resource_type=2, resource_name="foo", name=MIN_ISR, value=str(value)))


def elect(at: ControllerContext, election: Election, *numbers: int) -> dict[int, int]:
    """Elect leaders of partitions, without numbers of all; return Kafka's error codes."""
    wanted = [("foo", number) for number in numbers] if numbers else None
    found = at.run(lambda state: elect_leaders(election, wanted, state))
    return {number: error_of(refused)[0] for (_, number), refused in found.items()}


def change(at: ControllerContext, number: int, **columns: Any) -> PartitionChangeRecord:
    topic_id = at.partition("foo").topic_id
    return PartitionChangeRecord(topic_id=topic_id, partition_id=number, **columns)


def leaders(at: ControllerContext) -> list[tuple[int, tuple[int, ...]]]:
    count = len(at.state.partition_keys(at.partition("foo").topic_id))
    rows = (at.partition("foo", number) for number in range(count))
    return [(row.leader, row.isr) for row in rows]


# --- AlterPartition -------------------------------------------------------------------------------


def test_an_isr_shrinks_and_expands() -> None:
    """ReplicationControlManagerTest.testShrinkAndExpandIsr"""
    at = context((0, 1, 2))
    for epoch, isr in enumerate(((0, 1), (0, 1, 2)), 1):
        set_isr(at, 0, *isr)
        assert at.written == [change(at, 0, isr=isr)]
        row = at.partition("foo")
        assert (row.isr, row.leader, row.leader_epoch, row.partition_epoch) == (isr, 0, 0, epoch)


@pytest.mark.parametrize(
    ("isr", "differing", "broker_id", "code"),
    [
        ((0, 1), {}, 1, 42),
        ((0, 1), {"leader_epoch": 500}, 0, 41),
        ((0, 1), {"partition_epoch": 500}, 0, 41),
        ((0, 1), {"leader_epoch": 0}, 0, 74),
        ((0, 1), {"partition_epoch": 0}, 0, 95),
        ((0, 1, 3), {}, 0, 42),
        ((1, 2), {}, 0, 42),
        ((0, 0), {}, 0, 42),
        ((0, 1), {"leader_recovery_state": RECOVERING}, 0, 42),
        ((0,), {"leader_recovery_state": RECOVERING}, 0, 42),
        ((0,), {"leader_recovery_state": 7}, 0, 42),
    ],
)
def test_epochs_and_the_isr_must_be_those_of_the_leader(
    isr: tuple[int, ...], differing: dict[str, int], broker_id: int, code: int
) -> None:
    """ReplicationControlManagerTest.testInvalidAlterPartitionRequests"""
    at = context((0, 1, 2))
    fence(at, 0)
    unfence(at, 0)
    set_isr(at, 0, 1, 2, 0)
    elect(at, PREFERRED, 0)
    assert at.partition("foo").leader == 0
    assert at.partition("foo").leader_epoch > 0
    (error,) = alter(at, request(at, 0, *isr, **differing), broker_id=broker_id)
    assert isinstance(error, tuple)
    assert error[0] == code
    assert at.written == []
    code, reason = at.refused(lambda state: alter_partition(0, 99, [], state))
    assert (code, reason) == (77, "Expected broker epoch 0, but got broker epoch 99")


def test_an_unknown_topic_or_partition_is_refused_alone() -> None:
    """ReplicationControlManagerTest.testAlterPartitionHandleUnknownTopicIdOrName"""
    at = context((0, 1, 2))
    known = request(at, 0, 0, 1)
    found = alter(at, known, replace(known, topic_id=ZERO_UUID), replace(known, partition=9))
    assert [one if isinstance(one, tuple) else 0 for one in found] == [
        0,
        (100, "This server does not host this topic ID"),
        (3, "the topic has no such partition"),
    ]
    assert len(at.written) == 1


def test_a_fenced_broker_is_not_in_an_isr() -> None:
    """ReplicationControlManagerTest.testAlterPartitionShouldRejectFencedBrokers"""
    at = context((1, 2, 3, 4))
    fence(at, 4)
    assert alter(at, request(at, 0, 1, 2, 3, 4)) == [(107, "ineligible replicas: 4 (fenced)")]
    unfence(at, 4)
    set_isr(at, 0, 1, 2, 3, 4)


def test_a_broker_of_an_older_epoch_is_not_in_an_isr() -> None:
    """ReplicationControlManagerTest.testAlterPartitionShouldRejectBrokersWithStaleEpoch"""
    at = context((1, 2, 3, 4))
    set_isr(at, 0, 1, 2, 3)
    stale = request(at, 0, isr=((1, 1), (2, 2), (3, 3), (4, 3)))
    mismatch = "4 (broker epoch mismatch: requested=3 VS expected=4)"
    assert alter(at, stale) == [(107, f"ineligible replicas: {mismatch}")]
    (row,) = alter(at, replace(stale, isr=((1, 1), (2, 2), (3, 3), (4, 4))))
    assert isinstance(row, PartitionRow)
    assert row.isr == (1, 2, 3, 4)


def test_a_broker_that_shuts_down_is_not_in_an_isr() -> None:
    """ReplicationControlManagerTest.testAlterPartitionShouldRejectShuttingDownBrokers"""
    at = context((1, 2, 3, 4))
    set_isr(at, 0, 1, 2, 3)
    row = at.state.find(BrokerRow, 4)
    assert row is not None
    at.state.replace(row, replace(row, in_controlled_shutdown=True))
    error = (107, "ineligible replicas: 4 (shutting down)")
    assert alter(at, request(at, 0, 1, 2, 3, 4)) == [error]
    set_isr(at, 0, 1, 2)


def test_a_stale_change_row_is_refused() -> None:
    """A change row with the epoch that it is based on: mission gap 156."""
    at = context((0, 1, 2))
    first = SetIsr(topic="foo", partition=0, isr=(0, 1), partition_epoch=0)
    at.apply(first)
    error = at.refused(lambda state: at.write(first, state))
    assert error == (95, "its partition epoch is 1, not 0")
    move = ReassignPartition(topic="foo", partition=0, replicas=(3,), partition_epoch=0)
    assert at.refused(lambda state: at.write(move, state))[0] == 95
    assert at.apply(replace(move, partition_epoch=1))


def test_a_duplicate_topic_id_is_not_replayed() -> None:
    """ReplicationControlManagerTest.testDuplicateTopicIdReplay"""
    at = context((0, 1, 2))
    topic_id = at.partition("foo").topic_id
    for record in (
        TopicRecord(name="bar", topic_id=topic_id),
        TopicRecord(name="foo", topic_id=ZERO_UUID),
    ):
        with pytest.raises(Exception, match="already exists"):
            at.replay(record)


# --- elections ------------------------------------------------------------------------------------


def test_a_preferred_election_is_never_unclean() -> None:
    """ReplicationControlManagerTest.testPreferredElectionDoesNotTriggerUncleanElection"""
    at = context((1, 2, 3))
    fence(at, 2, 3, 1)
    unfence(at, 2)
    assert leaders(at) == [(-1, (1,))]
    assert elect(at, PREFERRED, 0) == {0: 80}
    assert at.written == []
    unclean = "unclean.leader.election.enable"
    at.apply(SetConfig(resource_type=2, resource_name="foo", name=unclean, value="true"))
    assert elect(at, PREFERRED, 0) == {0: 80}


@pytest.mark.parametrize("all_partitions", [False, True])
def test_unclean_elections(all_partitions: bool) -> None:
    """ReplicationControlManagerTest.testElectUncleanLeaders_WithoutElr"""
    at = context((1, 2, 3), (2, 3, 4), (0, 2, 1), level=13)
    fence(at, 2, 3, 1)
    assert leaders(at) == [(-1, (1,)), (4, (4,)), (0, (0,))]
    numbers = () if all_partitions else (0, 1, 2)
    needless = {} if all_partitions else {1: 84, 2: 84}
    assert elect(at, UNCLEAN, *numbers) == {0: 83} | needless
    assert at.written == []
    unfence(at, 2)
    set_isr(at, 1, 2, 4)
    assert elect(at, UNCLEAN, *numbers) == {0: 0} | needless
    assert at.written == [change(at, 0, leader=2, isr=(2,), leader_recovery_state=RECOVERING)]
    assert leaders(at) == [(2, (2,)), (4, (2, 4)), (0, (0,))]


def test_preferred_elections() -> None:
    """ReplicationControlManagerTest.testElectPreferredLeaders"""
    at = context((1, 2, 3), (2, 3, 4), (0, 2, 1), fenced=(0, 1))
    assert [leader for leader, _ in leaders(at)] == [2, 2, 2]
    assert elect(at, PREFERRED, 0, 1, 2, 9) == {0: 80, 1: 84, 2: 80, 9: 3}
    assert at.written == []
    unfence(at, 1)
    set_isr(at, 0, 1, 2, 3)
    assert elect(at, PREFERRED) == {0: 0, 2: 80}
    assert at.written == [change(at, 0, leader=1)]


def test_leaders_are_balanced() -> None:
    """ReplicationControlManagerTest.testBalancePartitionLeaders"""
    at = context((1, 2, 3), (2, 3, 4), (0, 2, 1), fenced=(0, 1))
    assert [row.partition_id for row in found(at.state.imbalanced_partitions())] == [0, 2]
    for broker_id, number, isr, left in ((1, 0, (1, 2, 3), [2]), (0, 2, (0, 2, 1), [])):
        unfence(at, broker_id)
        set_isr(at, number, *isr)
        assert at.run(balance_partition_leaders) is False
        assert at.written == [change(at, number, leader=broker_id)]
        assert [row.partition_id for row in found(at.state.imbalanced_partitions())] == left


def test_a_limited_number_of_leaders_is_balanced() -> None:
    """QuorumControllerTest.testBalancePartitionLeaders"""
    at = context(*[(1, 2)] * 3)
    fence(at, 1)
    unfence(at, 1)
    for number in range(3):
        set_isr(at, number, 1, 2)
    for more, left in ((True, 1), (False, 0)):
        assert at.run(lambda state: balance_partition_leaders(state, 2)) is more
        assert len(found(at.state.imbalanced_partitions())) == left


def test_leaderless_partitions_of_topics_that_allow_it_have_unclean_elections() -> None:
    """ReplicationControlManagerTest.testMaybeTriggerUncleanLeaderElectionForLeaderlessPartitions"""
    at = context((1, 2), (1, 2), (3, 2))
    fence(at, 2, 1)
    unfence(at, 2)
    assert [leader for leader, _ in leaders(at)] == [-1, -1, 3]
    assert at.run(elect_unclean_leaders) is False
    assert at.written == []
    unclean = "unclean.leader.election.enable"
    at.apply(SetConfig(resource_type=2, resource_name="foo", name=unclean, value="true"))
    assert at.run(lambda state: elect_unclean_leaders(state, 1)) is True
    assert at.run(elect_unclean_leaders) is False
    assert [leader for leader, _ in leaders(at)] == [2, 2, 3]


def test_several_brokers_are_fenced() -> None:
    """ReplicationControlManagerTest.testFenceMultipleBrokers"""
    at = context((1, 2, 3, 4, 0), (0, 1, 2, 3, 4))
    fence(at, 2, 3)
    assert leaders(at) == [(1, (1, 4, 0)), (0, (0, 1, 4))]
    fence(at, 1, 4, 0)
    assert leaders(at) == [(-1, (0,)), (-1, (0,))]
    unfence(at, 0)
    assert leaders(at) == [(0, (0,)), (0, (0,))]


def test_a_broker_loses_all_leaderships() -> None:
    """ReplicationControlManagerTest.testRemoveLeaderships"""
    at = context((0, 1, 2), (1, 2, 3), (2, 3, 0), (0, 2, 1))
    assert complete(at.state.leads_partitions(0))
    assert len(found(at.state.partitions_in_isr(0))) == 3
    at.apply(UnregisterBroker(broker_id=0))
    assert not complete(at.state.leads_partitions(0))
    assert found(at.state.partitions_in_isr(0)) == []
    assert [leader for leader, _ in leaders(at)] == [1, 1, 2, 2]


# --- reassignments --------------------------------------------------------------------------------


def reassign(
    at: ControllerContext, *moves: tuple[int, tuple[int, ...] | None], **options: bool
) -> list[int]:
    wanted = [Reassignment("foo", number, replicas) for number, replicas in moves]
    return codes_of(at.run(lambda state: alter_partition_reassignments(wanted, state, **options)))


def reassigning(at: ControllerContext) -> list[tuple[object, ...]]:
    rows = [at.state.find(PartitionRow, *key) for key in sorted(at.state.reassigning_keys())]
    return [
        (row.partition_id, row.replicas, row.adding_replicas, row.removing_replicas)
        for row in rows
        if row is not None
    ]


def test_partitions_are_reassigned() -> None:
    """ReplicationControlManagerTest.testReassignPartitions"""
    at = context((1, 2, 3, 0), (1, 2, 3, 0), (0, 1, 2, 3), (1, 2, 3, 4))
    assert reassigning(at) == []
    moves = ((0, (1, 2, 4)), (1, (1, 2, 3, 0)), (2, (5, 6)), (3, None), (8, (1,)), (2, ()))
    assert reassign(at, *moves) == [0, 0, 39, 85, 3, 39]
    assert reassigning(at) == [(0, (1, 2, 4, 0, 3), (4,), (0, 3))]
    (record,) = at.written
    assert isinstance(record, PartitionChangeRecord)
    assert (record.replicas, record.isr, record.leader) == ((1, 2, 4, 0, 3), None, LEADER_UNCHANGED)
    for partitions, count in (([("foo", 0), ("foo", 1)], 1), ([("bar", 0)], 0), ([("foo", 9)], 0)):
        assert len(list_partition_reassignments(partitions, at.state)) == count
    set_isr(at, 0, 1, 2, 4, 0, 3)
    assert reassigning(at) == []
    row = at.partition("foo")
    assert (row.replicas, row.isr, row.leader) == ((1, 2, 4), (1, 2, 4), 1)


def test_a_leader_that_its_own_change_removes_is_answered_so() -> None:
    """ReplicationControlManagerTest.testReassignPartitions"""
    at = context((1, 2))
    assert reassign(at, (0, (3, 4))) == [0]
    ((code, _),) = [one for one in alter(at, request(at, 0, 1, 2, 3, 4)) if isinstance(one, tuple)]
    assert code == 108
    assert leaders(at) == [(3, (3, 4))]
    assert len(at.written) == 1, "the change is written"


def test_reassignments_are_cancelled() -> None:
    """ReplicationControlManagerTest.testCancelReassignPartitions"""
    at = context((1, 2, 3, 4), (0, 1, 2, 3))
    assert reassign(at, (0, (1, 2, 4, 0)), (1, (0, 2, 4))) == [0, 0]
    set_isr(at, 1, 4, 0, 2)
    assert [row[0] for row in reassigning(at)] == [0]
    fence(at, 1, 2, 3, 4)
    unfence(at, 0)
    assert reassign(at, (0, None), (1, None)) == [0, 85]
    row = at.partition("foo")
    assert (set(row.replicas), row.adding_replicas, row.removing_replicas) == (
        {1, 2, 3, 4},
        (),
        (),
    )
    assert reassigning(at) == []


def test_a_cancellation_is_not_an_unclean_election() -> None:
    """PartitionReassignmentRevertTest.testIsrSpecialCase"""
    at = context((1, 2), fenced=(0,))
    assert reassign(at, (0, (3, 4))) == [0]
    fence(at, 1)
    set_isr(at, 0, 2, 3)
    fence(at, 2)
    assert leaders(at) == [(3, (3,))]
    wanted = [Reassignment("foo", 0, None)]
    (refused,) = at.run(lambda state: alter_partition_reassignments(wanted, state))
    code, reason = error_of(refused)
    assert code == 39
    assert "because it would require an unclean leader election" in reason
    unclean = "unclean.leader.election.enable"
    at.apply(SetConfig(resource_type=2, resource_name="foo", name=unclean, value="true"))
    assert reassign(at, (0, None)) == [0]


def test_a_reassignment_replaces_one_in_progress() -> None:
    """ReplicationControlManagerTest.testReassignPartitionsHandlesNewReassignmentThatRemovesPreviouslyAddingReplicas"""
    at = context((0, 1))
    assert reassign(at, (0, (2, 3))) == [0]
    assert reassigning(at) == [(0, (2, 3, 0, 1), (2, 3), (0, 1))]
    set_isr(at, 0, 0, 1, 2)
    assert reassign(at, (0, (4, 3))) == [0]
    ((_, replicas, adding, removing),) = reassigning(at)
    assert (replicas, adding, removing) == ((4, 3, 0, 1, 2), (4,), (0, 1, 2))
    ((code, _),) = [one for one in alter(at, request(at, 0, 0, 1, 3, 4)) if isinstance(one, tuple)]
    assert code == 108
    assert leaders(at) == [(4, (3, 4))]
    assert at.partition("foo").replicas == (4, 3)


@pytest.mark.parametrize("is_in_progress", [False, True])
def test_the_replication_factor_may_be_fixed(is_in_progress: bool) -> None:
    """ReplicationControlManagerTest.testAlterPartitionDisallowReplicationFactorChange"""
    at = context((0, 1, 2))
    fixed = {"allow_replication_factor_change": False}
    if is_in_progress:
        assert reassign(at, (0, (0, 1, 3)), **fixed) == [0]
        assert at.partition("foo").replicas == (0, 1, 3, 2)
    wanted = [Reassignment("foo", 0, (0, 1))]
    (refused,) = at.run(lambda state: alter_partition_reassignments(wanted, state, **fixed))
    assert error_of(refused) == (38, "The replication factor is changed from 3 to 2")
    assert reassign(at, (0, (4, 1, 2)), **fixed) == [0]


def test_a_cancellation_may_change_the_replication_factor() -> None:
    """ReplicationControlManagerTest.testDisallowReplicationFactorChangeNoEffectWhenCancelAlterPartition"""
    at = context((0, 1, 2))
    assert reassign(at, (0, (0, 1, 3, 4))) == [0]
    assert reassign(at, (0, None), allow_replication_factor_change=False) == [0]
    assert at.partition("foo").replicas == (0, 1, 2)


# --- eligible leader replicas (KIP-966) -----------------------------------------------------------


def elr(at: ControllerContext) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    row = at.partition("foo")
    return row.isr, row.elr, row.last_known_elr, row.leader


def test_replicas_leave_an_isr_below_the_minimum_for_the_elr() -> None:
    """ReplicationControlManagerTest.testEligibleLeaderReplicas_ShrinkAndExpandIsr"""
    at = context((0, 1, 2), elr=True)
    set_min_isr(at, 2)
    set_isr(at, 0, 0)
    assert elr(at) == ((0,), (1, 2), (), 0)
    set_isr(at, 0, 0, 1)
    assert elr(at) == ((0, 1), (), (), 0)


def test_an_isr_may_be_empty() -> None:
    """ReplicationControlManagerTest.testEligibleLeaderReplicas_ShrinkToEmptyIsr"""
    at = context((0, 1, 2), elr=True)
    set_min_isr(at, 2)
    fence(at, 1, 2, 0)
    assert elr(at) == ((), (0, 2), (0,), -1)
    unfence(at, 0)
    assert elr(at) == ((0,), (2,), (), 0)


def test_fenced_brokers_are_in_the_elr() -> None:
    """ReplicationControlManagerTest.testEligibleLeaderReplicas_BrokerFence"""
    at = context((0, 1, 2, 3), elr=True)
    set_min_isr(at, 3)
    fence(at, 2, 3)
    assert elr(at) == ((0, 1), (3,), (), 0)
    fence(at, 1)
    assert elr(at) == ((0,), (1, 3), (), 0)
    unfence(at, 1)
    assert elr(at) == ((0,), (1, 3), (), 0)


def test_a_deleted_topic_has_no_elr() -> None:
    """ReplicationControlManagerTest.testEligibleLeaderReplicas_DeleteTopic"""
    at = context((0, 1, 2), elr=True)
    set_min_isr(at, 2)
    fence(at, 0, 1)
    assert elr(at) == ((2,), (1,), (), 2)
    assert len(found(at.state.partitions_in_elr(1))) == 1
    at.apply(DeleteTopic(topic="foo"))
    assert found(at.state.partitions_in_elr(1)) == found(at.state.partitions_in_isr(2)) == []


def test_the_minimum_is_at_most_the_replication_factor() -> None:
    """ReplicationControlManagerTest.testEligibleLeaderReplicas_EffectiveMinIsr"""
    at = context((0, 1, 2), elr=True)
    set_min_isr(at, 5)
    fence(at, 2)
    assert elr(at) == ((0, 1), (2,), (), 0)
    unfence(at, 2)
    set_isr(at, 0, 0, 1, 2)
    assert elr(at) == ((0, 1, 2), (), (), 0)


def test_a_leader_is_elected_from_the_elr() -> None:
    """ReplicationControlManagerTest.testEligibleLeaderReplicas_CleanElection"""
    at = context((0, 1, 2, 3), elr=True)
    set_min_isr(at, 3)
    fence(at, 1, 2, 3)
    assert elr(at) == ((0,), (2, 3), (), 0)
    unfence(at, 2)
    fence(at, 0, 1)
    assert elr(at) == ((2,), (0, 3), (), 2)


def test_an_unclean_shutdown_leaves_the_elr() -> None:
    """ReplicationControlManagerTest.testEligibleLeaderReplicas_UncleanShutdown"""
    at = context((0, 1, 2), elr=True)
    set_min_isr(at, 3)
    fence(at, 0, 1)
    assert elr(at) == ((2,), (0, 1), (), 2)
    at.apply(UnregisterBroker(broker_id=1))
    assert elr(at) == ((2,), (0, 1), (), 2), "it may be registered again without a loss"
    at.apply(RegisterBroker(broker_id=0, endpoints={"A": "h:1"}))
    assert elr(at) == ((2,), (1,), (), 2)


@pytest.mark.parametrize("is_cluster", [False, True])
def test_a_new_minimum_clears_the_elr(is_cluster: bool) -> None:
    """ReplicationControlManagerTest.testElrsRemovedOnMinIsrUpdate"""
    at = context((1, 2, 4), (1, 3, 4), elr=True)
    default = SetConfig(resource_type=4, resource_name="", name=MIN_ISR, value="2")
    at.apply(default, CreateTopic(topic="bar", assignment=((1, 2, 4),)))
    fence(at, 4, 1)
    assert [at.partition(name).elr for name in ("foo", "bar")] == [(1,), (1,)]
    own = SetConfig(resource_type=2, resource_name="foo", name=MIN_ISR, value="1")
    at.apply(replace(default, value="1") if is_cluster else own)
    assert [at.partition(name).elr for name in ("foo", "bar")] == [(), () if is_cluster else (1,)]


def test_a_cleared_elr_that_is_empty_is_no_change() -> None:
    """ReplicationControlManagerTest.testElrsRemovedShouldNotBumpPartitionEpochIfNoChange"""
    at = context((1, 2, 4), elr=True)
    records: list[MetadataRecord] = [
        ClearElrRecord(topic_name="foo"),
        ClearElrRecord(topic_name=""),
    ]
    at.replay(*records)
    assert at.partition("foo").partition_epoch == 0
    assert at.partition("foo").leader_recovery_state == RECOVERED
