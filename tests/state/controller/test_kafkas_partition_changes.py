"""Cases of Kafka's ``PartitionChangeBuilderTest``, ``PartitionReassignmentReplicasTest``,
``PartitionReassignmentRevertTest``, ``BrokersToIsrsTest``; ids and docstrings name them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tests.support.cluster_changes import broker, directory
from tests.support.controller_context import ControllerContext, codes_of, found

from raftlog_state.controller import (
    CreateTopic,
    FenceBroker,
    ReassignPartition,
    SetIsr,
    UnfenceBroker,
)
from raftlog_state.controller.controller_state import NO_LEADER, is_reassigning
from raftlog_state.controller.partition_change import (
    RECOVERING,
    Election,
    ElectionContext,
    Target,
    partition_change,
)
from raftlog_state.controller.partitions import DIRECTORY_LOST
from raftlog_state.controller.reassignments import Reassignment, alter_partition_reassignments
from raftlog_state.controller.topics import DIRECTORY_UNASSIGNED
from raftlog_state.image import PartitionRow
from raftlog_state.image.record_versions import RecordVersions
from raftlog_state.records import PartitionChangeRecord
from raftlog_state.steps import complete

TOPIC_ID = directory(1, 1)
PREFERRED, ONLINE, UNCLEAN = Election
EPOCH_BUMP, DIRECTORIES, ELR = 11, 17, 23
"""Levels: an ISR shrink bumps the leader epoch until 11."""


def row(
    replicas: tuple[int, ...], isr: tuple[int, ...], leader: int, **columns: Any
) -> PartitionRow:
    named: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "partition_id": 0,
        "topic_name": "foo",
        "replicas": replicas,
        "isr": isr,
        "directories": tuple(directory(one) for one in replicas),
        "leader": leader,
        "leader_epoch": 10,
        "partition_epoch": 20,
    }
    return PartitionRow(**named | columns)


def change(
    before: PartitionRow,
    target: Target,
    dead: Iterable[int] = (),
    level: int = 30,
    elr: bool = False,
) -> dict[str, Any] | None:
    """Return the fields of the record that are set; None: no record."""
    unavailable = set(dead)
    context = ElectionContext(
        versions=RecordVersions(level, elr),
        is_acceptable_leader=lambda one: one not in unavailable,
        default_directory=lambda _: DIRECTORY_UNASSIGNED,
        min_isr=3 if elr else 2,
    )
    record = partition_change(before, target, context)
    if record is None:
        return None
    nothing = PartitionChangeRecord()
    names = (
        field for field in record.__dataclass_fields__ if field not in ("topic_id", "partition_id")
    )
    return {
        name: getattr(record, name)
        for name in names
        if getattr(record, name) != getattr(nothing, name)
    }


FOO = row((6, 5, 7), (6, 5, 7), 5)
MOVED = row((5, 6, 7, 8), (5, 6, 7), 5, adding_replicas=(8,), removing_replicas=(5,))
BAZ = row((6, 5, 7), (5, 7), 7)
STOPPED = row((6, 7, 4, 5), (4, 5), 4, adding_replicas=(6, 7), removing_replicas=(4, 5))
OFFLINE = row((6, 5, 7), (7,), NO_LEADER)
EVERYONE = (4, 5, 6, 7, 8)
FOUR = (5, 6, 7, 8)


def target(isr: tuple[int, ...] | None = None, **columns: Any) -> Target:
    return Target(isr=isr, **columns)


@pytest.mark.parametrize(
    ("before", "wanted", "dead", "leader"),
    [
        (FOO, target(election=PREFERRED), (7,), 6),
        (FOO, target(), (7,), None),
        (FOO, target(election=UNCLEAN), (7,), None),
        (FOO, target((5, 7)), (7,), None),
        (FOO, target((7,)), (7,), NO_LEADER),
        (FOO, target((7,), election=UNCLEAN), (7,), 6),
        (FOO, target((8,), election=UNCLEAN, replicas=(6, 5, 7, 8)), (7,), 8),
        (BAZ, target(election=PREFERRED), (), None),
        (BAZ, target(election=UNCLEAN), (), None),
        (BAZ, target(election=PREFERRED), (7,), 5),
        (OFFLINE, target(), (7,), None),
        (OFFLINE, target(), (), 7),
    ],
)
def test_the_elected_leader(
    before: PartitionRow, wanted: Target, dead: tuple[int, ...], leader: int | None
) -> None:
    """PartitionChangeBuilderTest.testElectLeader"""
    found = change(before, wanted, dead) or {}
    assert found.get("leader") == leader


SIMPLE_CASES: list[
    tuple[str, PartitionRow, Target, tuple[int, ...], int, dict[str, Any] | None]
] = [
    ("testNoChange", FOO, target(), (7,), 30, None),
    ("testNoChange", FOO, target(election=UNCLEAN), (7,), 30, None),
    ("testNoChange", BAZ, target(election=PREFERRED), (), 30, None),
    ("testNoChange", MOVED, target(), (), 30, None),
    ("testChangeRecordIsNoOp", FOO, target((6, 5, 7), replicas=(6, 5, 7)), (), 30, None),
    ("testNoLeaderEpochBumpIfNothingChanged", FOO, target(), (7,), EPOCH_BUMP, None),
    ("testNoLeaderEpochBumpOnIsrShrink", FOO, target((6, 5)), (7,), 12, {"isr": (6, 5)}),
    ("testIsrChangeDoesntBumpLeaderEpoch", FOO, target((5, 6)), (), 30, {"isr": (5, 6)}),
    ("testLeaderEpochBumpOnIsrShrink", FOO, target((6, 5)), (7,), 11, {"isr": (6, 5), "leader": 5}),
    ("testNoLeaderEpochBumpOnIsrExpansion", BAZ, target((5, 7, 6)), (), 11, {"isr": (5, 7, 6)}),
    (
        "testLeaderEpochBumpOnNewReplicaSetDisjoint",
        FOO,
        target(replicas=(6, 5, 8)),
        (),
        EPOCH_BUMP,
        {"replicas": (6, 5, 8), "leader": 5},
    ),
    (
        "testTriggerLeaderEpochBumpIfNeeded",
        FOO,
        target((6, 5), replicas=(6, 5)),
        (),
        EPOCH_BUMP,
        {"replicas": (6, 5), "isr": (6, 5), "leader": 5},
    ),
    (
        "testNoLeaderEpochBumpOnEmptyTargetIsr",
        row((6,), (6,), 6),
        target(()),
        (6,),
        EPOCH_BUMP,
        {"leader": NO_LEADER},
    ),
    ("testIsrChangeAndLeaderChange", FOO, target((6, 7)), (7,), 30, {"isr": (6, 7), "leader": 6}),
    (
        "testReassignmentRearrangesReplicas",
        FOO,
        target(replicas=(7, 6, 5)),
        (),
        EPOCH_BUMP,
        {"replicas": (7, 6, 5)},
    ),
    (
        "testIsrEnlargementCompletesReassignment",
        MOVED,
        target(FOUR),
        (),
        EPOCH_BUMP,
        {
            "replicas": (6, 7, 8),
            "isr": (6, 7, 8),
            "leader": 6,
            "removing_replicas": (),
            "adding_replicas": (),
        },
    ),
    (
        "testRevertReassignment",
        MOVED,
        target((5, 6, 7), replicas=(5, 6, 7), removing=(), adding=()),
        (),
        EPOCH_BUMP,
        {"replicas": (5, 6, 7), "leader": 5, "removing_replicas": (), "adding_replicas": ()},
    ),
    (
        "testRemovingReplicaReassignment",
        FOO,
        target(replicas=(5, 6, 7), removing=(7,)),
        (),
        EPOCH_BUMP,
        {"replicas": (5, 6), "isr": (6, 5), "leader": 5},
    ),
    (
        "testAddingReplicaReassignment",
        FOO,
        target(replicas=FOUR, adding=(8,)),
        (),
        DIRECTORIES,
        {
            "replicas": FOUR,
            "adding_replicas": (8,),
            "directories": (*(directory(one) for one in (5, 6, 7)), DIRECTORY_UNASSIGNED),
        },
    ),
    (
        "testUncleanLeaderElection",
        FOO,
        target((7,), election=UNCLEAN),
        (7,),
        30,
        {"isr": (6,), "leader": 6, "leader_recovery_state": RECOVERING},
    ),
    (
        "testUncleanSetsLeaderRecoveringState",
        row((5, 6, 7), (6, 7), NO_LEADER),
        target(election=UNCLEAN),
        (6, 7),
        7,
        {"isr": (5,), "leader": 5, "leader_recovery_state": RECOVERING},
    ),
    (
        "testChangeInLeadershipDoesNotChangeRecoveryState",
        row((5, 6, 7), (5,), 5, leader_recovery_state=RECOVERING),
        target(()),
        (5,),
        7,
        {"leader": NO_LEADER},
    ),
    (
        "testChangeInLeadershipDoesNotChangeRecoveryState",
        row((5, 6, 7), (5,), NO_LEADER, leader_recovery_state=RECOVERING),
        target(),
        (),
        7,
        {"leader": 5},
    ),
    (
        "testStoppedLeaderIsDemotedAfterReassignmentCompletesEvenIfNoNewEligibleLeaders",
        STOPPED,
        target((4, 5, 6, 7)),
        EVERYONE,
        7,
        {
            "replicas": (6, 7),
            "isr": (6, 7),
            "removing_replicas": (),
            "adding_replicas": (),
            "leader": NO_LEADER,
        },
    ),
    (
        "testKeepsDirectoriesAfterReassignment",
        row((6, 5, 7), (6, 5, 7), 5),
        target(replicas=(7, 5, 9, 8), directory=(9, directory(9, 3))),
        (),
        DIRECTORIES,
        {
            "replicas": (7, 5, 9, 8),
            "leader": 5,
            "directories": (directory(7), directory(5), directory(9, 3), DIRECTORY_UNASSIGNED),
        },
    ),
    (
        "testUpdateDirectories",
        FOO,
        target(directory=(5, DIRECTORY_LOST)),
        (),
        30,
        {"directories": (directory(6), DIRECTORY_LOST, directory(7))},
    ),
]


@pytest.mark.parametrize(
    ("before", "wanted", "dead", "level", "expected"),
    [
        pytest.param(*case, id=f"PartitionChangeBuilderTest.{name}-{number}")
        for number, (name, *case) in enumerate(SIMPLE_CASES)
    ],
)
def test_the_record_of_a_change(
    before: PartitionRow,
    wanted: Target,
    dead: tuple[int, ...],
    level: int,
    expected: dict[str, Any] | None,
) -> None:
    assert change(before, wanted, dead, level) == expected


ELR_CASES: list[tuple[str, PartitionRow, Target, tuple[int, ...], dict[str, Any] | None]] = [
    (
        "IsrShrinkBelowMinISR",
        row(FOUR, FOUR, 5),
        target((5, 6), election=PREFERRED),
        (7,),
        {"isr": (5, 6), "eligible_leader_replicas": (7, 8)},
    ),
    (
        "lastKnownElrShouldBePopulatedWhenNoLeader",
        row((5, 6, 7), (5,), 5, elr=(6,)),
        target(),
        EVERYONE,
        {"leader": NO_LEADER, "last_known_elr": (5,)},
    ),
    (
        "IsrExpandAboveMinISR",
        row(FOUR, (5, 6), 5, elr=(7,)),
        target((5, 6, 7), election=PREFERRED),
        (7,),
        {"isr": (5, 6, 7), "eligible_leader_replicas": ()},
    ),
    (
        "IsrAddNewMemberNotInELR",
        row(FOUR, (5,), 5, elr=(7,)),
        target((5, 8), election=PREFERRED),
        (7,),
        {"isr": (5, 8)},
    ),
    (
        "RemoveUncleanShutdownReplicasFromElr",
        row(FOUR, (5,), 5, elr=(6, 7)),
        target(unclean_shutdown=(7,)),
        (7,),
        {"eligible_leader_replicas": (6,)},
    ),
    (
        "ElrCanBeElected",
        row(FOUR, (5,), 5, elr=(7,)),
        target((), election=PREFERRED),
        (5,),
        {"isr": (7,), "leader": 7, "eligible_leader_replicas": (5,)},
    ),
    (
        "IsrCanShrinkToZero",
        row(FOUR, FOUR, 5),
        target((), election=PREFERRED),
        EVERYONE,
        {
            "isr": (),
            "leader": NO_LEADER,
            "eligible_leader_replicas": FOUR,
            "last_known_elr": (5,),
        },
    ),
    (
        "ElectLastKnownLeader",
        row(FOUR, (), NO_LEADER, last_known_elr=(5,)),
        target((), election=PREFERRED),
        (),
        {"isr": (5,), "leader": 5, "leader_recovery_state": RECOVERING, "last_known_elr": ()},
    ),
    (
        "ElectLastKnownLeaderShouldFail",
        row(FOUR, (), NO_LEADER, elr=(7,), last_known_elr=(5,)),
        target((), election=PREFERRED),
        (7,),
        None,
    ),
    (
        "NotEligibleLastKnownLeader",
        row(FOUR, (), NO_LEADER, last_known_elr=(5,)),
        target((), election=PREFERRED),
        (5,),
        None,
    ),
]


@pytest.mark.parametrize(
    ("before", "wanted", "dead", "expected"),
    [
        pytest.param(*case, id=f"PartitionChangeBuilderTest.testEligibleLeaderReplicas_{name}")
        for name, *case in ELR_CASES
    ],
)
def test_eligible_leader_replicas(
    before: PartitionRow, wanted: Target, dead: tuple[int, ...], expected: dict[str, Any] | None
) -> None:
    assert change(before, wanted, dead, ELR, elr=True) == expected


def test_a_last_known_leader_that_has_no_replica_any_more_is_not_elected() -> None:
    """Kafka 4.3.1 fails here: its managers raise IllegalArgumentException."""
    before = row((6, 7, 8), (), NO_LEADER, last_known_elr=(5,))
    assert change(before, target(), (), ELR, elr=True) is None
    found = change(before, target(election=UNCLEAN), (6,), ELR, elr=True)
    assert found == {
        "isr": (7,),
        "leader": 7,
        "leader_recovery_state": RECOVERING,
        "last_known_elr": (),
    }


# --- reassignments --------------------------------------------------------------------------------


def moving(replicas: tuple[int, ...], wanted: tuple[int, ...]) -> ControllerContext:
    """Return a context whose partition with these replicas is reassigned to others."""
    at = ControllerContext(*(broker(one) for one in range(10)))
    at.apply(CreateTopic(topic="foo", assignment=(replicas,)))
    move = [Reassignment("foo", 0, wanted)]
    assert codes_of(at.run(lambda state: alter_partition_reassignments(move, state))) == [0]
    return at


def parts(at: ControllerContext) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    found = at.partition("foo")
    return found.replicas, found.adding_replicas, found.removing_replicas


@pytest.mark.parametrize(
    ("replicas", "wanted", "expected"),
    [
        pytest.param(*case, id=f"PartitionReassignmentReplicasTest.{name}")
        for name, *case in (
            ("testNoneAddedOrRemoved", (3, 2, 1), (3, 2, 1), ((3, 2, 1), (), ())),
            ("testAdditions", (3, 2, 1), (3, 6, 2, 1, 5), ((3, 6, 2, 1, 5), (5, 6), ())),
            ("testRemovals", (3, 2, 1, 0), (3, 1), ((3, 1), (), ())),
            (
                "testAdditionsAndRemovals",
                (3, 2, 1, 0),
                (7, 3, 1, 9),
                ((7, 3, 1, 9, 0, 2), (7, 9), (0, 2)),
            ),
            ("testRearrangement", (3, 2, 1, 0), (0, 1, 3, 2), ((0, 1, 3, 2), (), ())),
        )
    ],
)
def test_the_replicas_of_a_reassignment(
    replicas: tuple[int, ...], wanted: tuple[int, ...], expected: tuple[tuple[int, ...], ...]
) -> None:
    at = moving(replicas, wanted)
    assert parts(at) == expected
    assert is_reassigning(at.partition("foo")) is bool(expected[1] or expected[2])


@pytest.mark.parametrize(
    ("replicas", "wanted", "isr", "completes"),
    [
        pytest.param(*case, id=f"PartitionReassignmentReplicasTest.{name}")
        for name, *case in (
            ("testDoesNotCompleteReassignment", (0, 1, 2), (3, 4, 5), (0, 1, 2, 3, 4), False),
            ("testCanCompleteReassignmentAllNewReplicas", (0, 1, 2), (3, 4, 5), (0, 3, 4, 5), True),
            ("testCanCompleteReassignmentSomeNewReplicas", (0, 1, 2), (0, 1, 3), (0, 1, 3), True),
            (
                "testCanCompleteReassignmentIfIsrDoesNotHaveAnExistingTargetReplica",
                (0, 1, 2),
                (0, 1, 3),
                (0, 3),
                True,
            ),
            (
                "testCanCompleteReassignmentIfIsrDoesNotHaveBothExistingTargetReplica",
                (0, 1, 2),
                (1, 2, 3),
                (0, 3),
                True,
            ),
            (
                "testDoesNotCompleteReassignmentIfIsrDoesNotHaveAnAddingTargetReplica",
                (0, 1, 2),
                (0, 1, 3),
                (0, 1, 2),
                False,
            ),
            (
                "testDoesNotCompleteReassignmentWhenReplicationFactorDecreasesAndMissingAnExistingTargetReplicaFromIsr",
                (0, 1, 2, 3),
                (2, 3, 4),
                (0, 3, 4),
                False,
            ),
            (
                "testDoesNotCompleteReassignmentWhenReplicationFactorDecreasesAndMissingAnAddingReplicasFromISR",
                (0, 1, 2, 3),
                (2, 3, 4),
                (0, 2, 3),
                False,
            ),
            (
                "testCanCompleteReassignmentWhenReplicationFactorIncreasesAndMissingAnExistingTargetReplicaFromIsr",
                (0, 1, 2),
                (0, 1, 2, 3),
                (0, 1, 3),
                True,
            ),
            (
                "testDoesNotCompleteReassignmentWhenReplicationFactorIncreasesAndMissingAnAddingReplicaFromIsr",
                (0, 1, 2),
                (0, 1, 2, 3, 4),
                (0, 1, 2, 3),
                False,
            ),
        )
    ],
)
def test_a_reassignment_completes_with_its_isr(
    replicas: tuple[int, ...], wanted: tuple[int, ...], isr: tuple[int, ...], completes: bool
) -> None:
    at = moving(replicas, wanted)
    assert is_reassigning(at.partition("foo")), (
        "PartitionReassignmentReplicasTest.testIsReassignmentInProgress"
    )
    at.apply(SetIsr(topic="foo", partition=0, isr=isr))
    found = at.partition("foo")
    assert is_reassigning(found) is not completes
    if completes:
        assert set(found.replicas) == set(wanted)
        assert set(found.isr) <= set(wanted)
        assert found.leader in found.isr


@pytest.mark.parametrize(
    ("replicas", "wanted", "isr"),
    [
        pytest.param(*case, id=f"PartitionReassignmentRevertTest.{name}")
        for name, *case in (
            ("testSomeRemoving", (3, 2, 1), (4, 2), (3, 2)),
            ("testSomeAdding", (3, 2, 1), (4, 5, 3, 2, 1), (3, 2, 5)),
            ("testSomeRemovingAndAdding", (3, 2, 1), (4, 5, 3), (3, 2, 4)),
        )
    ],
)
def test_a_cancelled_reassignment_has_the_original_replicas(
    replicas: tuple[int, ...], wanted: tuple[int, ...], isr: tuple[int, ...]
) -> None:
    at = moving(replicas, wanted)
    at.apply(SetIsr(topic="foo", partition=0, isr=isr))
    assert is_reassigning(at.partition("foo"))
    at.apply(ReassignPartition(topic="foo", partition=0))
    assert set(parts(at)[0]) == set(replicas), (
        "PartitionReassignmentReplicasTest.testOriginalReplicas"
    )
    assert parts(at)[1:] == ((), ())
    assert set(at.partition("foo").isr) == set(isr) & set(replicas)


# --- partitions of brokers ------------------------------------------------------------------------


def test_the_partitions_of_a_broker() -> None:
    """BrokersToIsrsTest.testIterator"""
    at = ControllerContext(*(broker(one) for one in range(5)))
    at.apply(
        CreateTopic(topic="foo", assignment=((1, 2, 3), (2, 3, 4))),
        CreateTopic(topic="bar", assignment=((1, 4),)),
    )

    def partitions(broker_id: int) -> set[tuple[str, int]]:
        return {
            (one.topic_name, one.partition_id)
            for one in found(at.state.partitions_in_isr(broker_id))
        }

    assert partitions(1) == {("foo", 0), ("bar", 0)}
    assert partitions(4) == {("foo", 1), ("bar", 0)}
    at.apply(SetIsr(topic="foo", partition=1, isr=(2, 3)))
    assert partitions(4) == {("bar", 0)}
    assert partitions(0) == set()


def test_the_partitions_that_a_broker_leads() -> None:
    """BrokersToIsrsTest.testLeadersOnlyIterator"""
    at = ControllerContext(*(broker(one) for one in range(1, 4)))
    at.apply(CreateTopic(topic="foo", assignment=((1, 2, 3), (2, 3, 1))))
    assert [complete(at.state.leads_partitions(one)) for one in (1, 2, 3)] == [True, True, False]
    at.apply(FenceBroker(broker_id=1))
    assert [complete(at.state.leads_partitions(one)) for one in (1, 2, 3)] == [False, True, False]


def test_the_partitions_without_a_leader() -> None:
    """BrokersToIsrsTest.testNoLeader"""
    at = ControllerContext(*(broker(one) for one in range(1, 3)))
    at.apply(CreateTopic(topic="foo", assignment=((1,), (2,))))
    assert found(at.state.leaderless_partitions()) == []
    at.apply(FenceBroker(broker_id=1))
    assert [one.partition_id for one in found(at.state.leaderless_partitions())] == [0]
    at.apply(UnfenceBroker(broker_id=1))
    assert found(at.state.leaderless_partitions()) == []


def test_the_partitions_that_a_broker_may_lead() -> None:
    """BrokerToElrsTest.testIterator"""
    configs = {"min.insync.replicas": "2"}
    at = ControllerContext(*(broker(one) for one in range(1, 4)), elr=True)
    at.apply(CreateTopic(topic="foo", assignment=((1, 2), (2, 3)), configs=configs))
    at.apply(FenceBroker(broker_id=2))
    assert [one.partition_id for one in found(at.state.partitions_in_elr(2))] == [0, 1]
    at.apply(UnfenceBroker(broker_id=2), SetIsr(topic="foo", partition=1, isr=(2, 3)))
    assert [one.partition_id for one in found(at.state.partitions_in_elr(2))] == [0]
