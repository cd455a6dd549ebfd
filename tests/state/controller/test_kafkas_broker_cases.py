"""Cases of Kafka's tests of registrations, heartbeats and sessions of brokers; the docstrings name
them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.support.cluster_changes import broker, directory
from tests.support.controller_context import ControllerContext, codes_of

from raftlog_state.controller import CreateTopic, RegisterBroker, UnregisterBroker
from raftlog_state.controller.broker_control import BrokerControl, BrokerHeartbeatReply
from raftlog_state.controller.brokers import BrokerRegistration, register_controller
from raftlog_state.controller.directories import DirectoryAssignment, assign_replicas_to_dirs
from raftlog_state.controller.heartbeats import (
    BrokerControlState,
    BrokerHeartbeat,
    BrokerHeartbeatManager,
    BrokerHeartbeatTracker,
)
from raftlog_state.controller.partitions import DIRECTORY_LOST
from raftlog_state.controller.pending_state import PendingState
from raftlog_state.controller.topics import DIRECTORY_UNASSIGNED, default_directory
from raftlog_state.image import BrokerRow
from raftlog_state.image.rows import DIRECTORY_MIGRATING
from raftlog_state.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)

CLUSTER = "pjvUwj3ZTEeSVQmUiH3IJw"
FENCED, UNFENCED, SHUTTING_DOWN, SHUT_DOWN = BrokerControlState
SESSION_US = 1_000
NEW = directory(9, 8)
UNKNOWN_TOPIC = directory(7, 7)


class Brokers(ControllerContext):
    """Context with an active ``BrokerControl``. ``now_us``: its clock."""

    def __init__(self, *rows: BrokerRow, **options: Any) -> None:
        super().__init__(*rows, **options)
        self.control = BrokerControl(cluster_id=CLUSTER, session_timeout_us=SESSION_US)
        self.now_us = 0
        self.fence_stale()

    @property
    def heartbeats(self) -> BrokerHeartbeatManager:
        assert self.control.heartbeats is not None
        return self.control.heartbeats

    def row(self, broker_id: int = 1) -> BrokerRow:
        found = self.state.find(BrokerRow, broker_id)
        assert found is not None
        return found

    def register(self, registration: BrokerRegistration, **options: Any) -> int:
        named = {"cluster_id": CLUSTER} | options
        return self.run(
            lambda state: self.control.register(registration, state, now_us=self.now_us, **named)
        )

    def refuse(self, registration: BrokerRegistration, **options: Any) -> tuple[int, str]:
        named = {"cluster_id": CLUSTER} | options
        return self.refused(
            lambda state: self.control.register(registration, state, now_us=self.now_us, **named)
        )

    def beat(self, broker_id: int, offset: int = 10**6, **wants: Any) -> BrokerHeartbeatReply:
        heartbeat = BrokerHeartbeat(
            broker_id=broker_id,
            broker_epoch=self.row(broker_id).broker_epoch,
            current_metadata_offset=offset,
            **wants,
        )
        return self.run(lambda state: self.control.heartbeat(heartbeat, state, now_us=self.now_us))

    def fence_stale(self) -> bool:
        return self.run(
            lambda state: self.control.fence_one_stale_broker(state, now_us=self.now_us)
        )


def registration(broker_id: int = 1, **differing: Any) -> BrokerRegistration:
    columns: dict[str, Any] = {
        "broker_id": broker_id,
        "incarnation_id": NEW,
        "endpoints": (BrokerEndpoint(name="CLIENT", host="h", port=9092),),
        "features": {"metadata.version": (7, 30), "eligible.leader.replicas.version": (0, 1)},
        "log_dirs": (directory(broker_id),),
    }
    return BrokerRegistration(**columns | differing)


# --- registrations --------------------------------------------------------------------------------


def test_a_registration_is_replayed_and_changed() -> None:
    """ClusterControlManagerTest.testReplay"""
    at = Brokers(level=14)
    at.register(registration(log_dirs=()))
    assert not at.state.is_active(1)
    epoch = at.row().broker_epoch
    at.replay(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, fenced=-1))
    assert at.state.is_active(1)
    assert not at.state.is_active(2)


def test_an_offset_of_a_registration_is_that_of_its_record() -> None:
    """ClusterControlManagerTest.testReplayRegisterBrokerRecord"""
    at = Brokers()
    epoch = at.register(registration())
    assert epoch == at.next_offset - 1 == at.state.registration_offset(1)
    (record,) = at.written
    assert isinstance(record, RegisterBrokerRecord)
    at.replay(replace(record, rack="b"))
    assert at.row().broker_epoch == epoch
    assert at.state.registration_offset(1) == epoch + 1


def test_fencing_and_controlled_shutdown_are_changed_apart() -> None:
    """ClusterControlManagerTest.testReplayBrokerRegistrationChangeRecord"""
    at = Brokers(broker(1))
    for columns, expected in (
        ({"in_controlled_shutdown": 1}, (False, True)),
        ({"fenced": 1}, (True, True)),
        ({"fenced": -1}, (False, True)),
        ({"log_dirs": (directory(1, 1),)}, (False, True)),
    ):
        at.replay(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, **columns))
        assert (at.row().fenced, at.row().in_controlled_shutdown) == expected
    assert at.row().log_dirs == (directory(1, 1),)


def test_a_broker_of_another_cluster_is_refused() -> None:
    """ClusterControlManagerTest.testRegistrationWithIncorrectClusterId"""
    reason = f"Expected cluster ID {CLUSTER}, but got cluster ID other"
    assert Brokers().refuse(registration(), cluster_id="other") == (104, reason)


@pytest.mark.parametrize(("level", "version"), [(7, 1), (8, 2), (17, 3), (30, 4)])
def test_a_registration_has_the_version_of_the_level(level: int, version: int) -> None:
    """ClusterControlManagerTest.testRegisterBrokerRecordVersion"""
    at = Brokers(level=level)
    log_dirs = (directory(1), directory(1, 1)) if level >= 17 else ()
    epoch = at.register(registration(log_dirs=log_dirs))
    (decoded,) = at.decoded
    assert decoded.version == version
    record = decoded.record
    assert isinstance(record, RegisterBrokerRecord)
    assert (record.broker_epoch, record.fenced, record.log_dirs) == (epoch, True, log_dirs)


def test_a_broker_is_unregistered() -> None:
    """ClusterControlManagerTest.testUnregister"""
    at = Brokers(broker(1))
    at.run(lambda state: at.control.unregister(1, state, now_us=0))
    assert at.written == [UnregisterBrokerRecord(broker_id=1, broker_epoch=1)]
    assert at.state.find(BrokerRow, 1) is None
    error = at.refused(lambda state: at.control.unregister(1, state, now_us=0))
    assert error == (102, "Broker ID 1 is not currently registered")


@pytest.mark.parametrize(
    ("features", "options", "name", "level"),
    [
        pytest.param(
            {"metadata.version": (7, 30)},
            {},
            "group.version",
            1,
            id="ClusterControlManagerTest.testRegistrationWithUnsupportedFeature",
        ),
        pytest.param(
            {"metadata.version": (7, 30), "group.version": (0, 1)},
            {"kraft_version": 1},
            "kraft.version",
            1,
            id="ClusterControlManagerTest.testRegistrationWithUnsupportedKraftVersion",
        ),
        pytest.param(
            {"metadata.version": (7, 29), "group.version": (0, 1)},
            {},
            "metadata.version",
            30,
            id="ClusterControlManagerTest.testRegistrationWithUnsupportedMetadataVersion",
        ),
    ],
)
def test_a_broker_supports_every_finalized_level(
    features: dict[str, tuple[int, int]], options: dict[str, int], name: str, level: int
) -> None:
    at = Brokers()
    at.apply_feature("group.version", 1)
    low, high = features.get(name, (0, 0))
    reason = (
        f"Unable to register because the broker does not support finalized version {level} of "
        f"{name}. The broker wants a version between {low} and {high}, inclusive"
    )
    assert at.refuse(registration(features=features), **options) == (35, reason)
    full = {"metadata.version": (30, 30), "group.version": (1, 1), "kraft.version": (1, 1)}
    assert at.register(registration(features=full), **options | {"kraft_version": 1})


def test_a_registration_has_a_range_of_metadata_versions() -> None:
    """QuorumControllerTest.testRegisterBrokerKRaftVersions"""
    code, reason = Brokers().refuse(registration(features={}))
    assert (code, reason) == (119, "Request features do not contain 'metadata.version'")


@pytest.mark.parametrize("level", [14, 15])
def test_a_controller_registers_at_a_metadata_version_that_has_it(level: int) -> None:
    """ClusterControlManagerTest.testRegisterControlWithUnsupportedMetadataVersion"""
    at = ControllerContext(level=level)
    endpoint = ControllerEndpoint(name="CONTROLLER", host="h", port=9093, security_protocol=0)
    record = RegisterControllerRecord(controller_id=1, incarnation_id=NEW, end_points=(endpoint,))
    if level == 15:
        at.run(lambda state: register_controller(record, state))
        assert at.written == [record]
    else:
        assert at.refused(lambda state: register_controller(record, state))[0] == 35


@pytest.mark.parametrize(
    ("log_dirs", "reason"),
    [
        ((), "No directories specified in request"),
        ((DIRECTORY_UNASSIGNED,), "Reserved directory ID in request"),
        ((directory(1), directory(1)), "Duplicate directory ID in request"),
        ((directory(2),), f"Broker 2 is already registered with directory {directory(2)}"),
    ],
)
def test_log_directories_belong_to_one_broker(log_dirs: tuple[str, ...], reason: str) -> None:
    """ClusterControlManagerTest.testRegisterWithDuplicateDirectoryId"""
    at = Brokers(broker(2))
    assert at.refuse(registration(log_dirs=log_dirs)) == (119, reason)
    assert at.register(registration(2, incarnation_id=at.row(2).incarnation_id))


def test_directories_are_online_while_their_broker_is_registered_with_them() -> None:
    """ClusterControlManagerTest.testHasOnlineDir"""
    at = ControllerContext(broker(1, log_dirs=(directory(1), directory(1, 1))), broker(2))
    at.apply(CreateTopic(topic="a", assignment=((1, 2),)))
    row = at.partition("a")
    for wanted, leader in ((directory(1, 1), 1), (DIRECTORY_MIGRATING, 1), (DIRECTORY_LOST, 2)):
        assignment = DirectoryAssignment(wanted, row.topic_id, 0)
        result = at.run(partial(assign_replicas_to_dirs, 1, 1, [assignment]))
        assert codes_of(result) == [0]
        assert at.partition("a").leader == leader


@pytest.mark.parametrize(
    ("log_dirs", "expected"),
    [
        ((), DIRECTORY_MIGRATING),
        ((directory(1),), directory(1)),
        ((directory(1), directory(1, 1)), DIRECTORY_UNASSIGNED),
    ],
)
def test_a_new_replica_has_the_only_directory_of_its_broker(
    log_dirs: tuple[str, ...], expected: str
) -> None:
    """ClusterControlManagerTest.testDefaultDir"""
    at = ControllerContext(broker(1, log_dirs=log_dirs))
    assert at.run(lambda state: default_directory(1, state)) == expected
    assert at.run(lambda state: default_directory(2, state)) == DIRECTORY_UNASSIGNED


@pytest.mark.parametrize("is_new", [False, True])
def test_a_new_incarnation_has_a_new_epoch(is_new: bool) -> None:
    """ClusterControlManagerTest.testReRegistrationAndBrokerEpoch"""
    at = Brokers()
    first = at.register(registration())
    again = registration(incarnation_id=directory(9, 7) if is_new else NEW, rack="r")
    epoch = at.register(again)
    assert epoch == (first + 1 if is_new else first)
    row = at.row()
    assert (row.broker_epoch, row.incarnation_id, row.rack) == (epoch, again.incarnation_id, "r")
    assert at.state.registration_offset(1) == first + 1


@pytest.mark.parametrize("is_clean", [False, True])
def test_an_unclean_shutdown_removes_a_broker_from_the_elr(is_clean: bool) -> None:
    """ClusterControlManagerTest.testReRegistrationWithCleanShutdownDetection"""
    at = Brokers(broker(1), broker(2), elr=True)
    at.apply(CreateTopic(topic="a", assignment=((1, 2),), configs={"min.insync.replicas": "2"}))
    at.beat(1, want_shut_down=True)
    assert at.partition("a").elr == (1,)
    at.now_us = 10 * SESSION_US
    at.register(registration(previous_broker_epoch=1 if is_clean else 0))
    assert at.partition("a").elr == ((1,) if is_clean else ())
    assert not at.row().in_controlled_shutdown
    assert len(at.written) == (1 if is_clean else 2)


def test_unfenced_brokers_have_a_session_after_a_claim() -> None:
    """ClusterControlManagerTest.testBrokerContactTimesAreUpdatedOnClusterControlActivation"""
    at = Brokers(broker(1), broker(2, fenced=True))
    tracker = at.heartbeats.tracker
    assert [tracker.contact_time(1, epoch) for epoch in (1, 2)] == [0, None]
    assert tracker.contact_time(2, 2) is None
    assert not at.fence_stale()


def test_a_broker_id_of_a_live_broker_is_refused() -> None:
    """ClusterControlManagerTest.testDuplicateBrokerRegistrationWithActiveOldBroker"""
    at = Brokers(broker(1))
    at.now_us = SESSION_US // 2
    code, reason = at.refuse(registration())
    assert code == 101
    assert reason.startswith("Another broker is registered with that broker id.")
    at.now_us = 2 * SESSION_US
    assert at.register(registration())


def test_a_broker_id_of_a_fenced_broker_is_free() -> None:
    """ClusterControlManagerTest.testDuplicateBrokerRegistrationWithInactiveBroker"""
    at = Brokers(broker(1, fenced=True))
    assert at.register(registration())


def test_a_broker_that_migrates_from_zookeeper_is_refused() -> None:
    code, reason = Brokers().refuse(registration(), is_migrating_zk_broker=True)
    assert (code, reason) == (102, "Controller does not support registering ZK brokers")


# --- heartbeats -----------------------------------------------------------------------------------


def test_a_session_is_of_one_epoch() -> None:
    """BrokerHeartbeatManagerTest.testHasValidSession"""
    tracker = BrokerHeartbeatTracker(10)
    tracker.update_contact_time(0, 100, 0)
    tracker.update_contact_time(1, 100, 5)
    tracker.update_contact_time(2, 200, 5)
    sessions = [(0, 100), (0, 200), (1, 100), (2, 200), (3, 300)]
    found = [tracker.has_valid_session(*one, 10) for one in sessions]
    assert found == [True, False, True, True, False]


@pytest.mark.parametrize(
    ("known", "asked", "now_us", "expected"),
    [
        pytest.param(known, asked, now_us, expected, id=f"BrokerHeartbeatTrackerTest.{case}")
        for case, known, asked, now_us, expected in (
            ("testHasValidSessionIsTrueForKnownBroker", (1, 456), (1, 456), 100, True),
            ("testHasValidSessionIsFalseForUnknownBroker", (1, 456), (2, 456), 100, False),
            ("testHasValidSessionIsFalseForUnknownBrokerEpoch", (1, 456), (1, 457), 100, False),
            ("testIsExpiredIsFalseForTheCurrentTime", (1, 456), (1, 456), 100, True),
            ("testIsExpiredIsFalseForTenNanosecondsAfter", (1, 456), (1, 456), 110, True),
            ("testIsExpiredIsTrueAfterExpirationTime", (1, 456), (1, 456), 111, False),
            ("testIsExpiredIsFalseForPreviousTime", (1, 456), (1, 456), 90, True),
        )
    ],
)
def test_a_session_ends_after_its_timeout(
    known: tuple[int, int], asked: tuple[int, int], now_us: int, expected: bool
) -> None:
    tracker = BrokerHeartbeatTracker(10)
    tracker.update_contact_time(*known, 100)
    assert tracker.has_valid_session(*asked, now_us) is expected


def test_expired_brokers_are_removed_one_by_one() -> None:
    """BrokerHeartbeatTrackerTest.testMaybeRemoveExpiredWithAllExpired"""
    tracker = BrokerHeartbeatTracker(10)
    assert tracker.expired(10**6) == [], (
        "BrokerHeartbeatTrackerTest.testMaybeRemoveExpiredWithEmptyTracker"
    )
    for broker_id in range(3):
        tracker.update_contact_time(broker_id, 7, broker_id)
    assert tracker.expired(10) == [], (
        "BrokerHeartbeatTrackerTest.testMaybeRemoveExpiredWithAllUpToDate"
    )
    assert tracker.expired(12) == [(0, 7), (1, 7)]
    tracker.remove(0, 7)
    assert tracker.expired(100) == [(1, 7), (2, 7)]


def test_a_contact_replaces_the_one_before() -> None:
    """BrokerHeartbeatTrackerTest.testUpdateContactTime"""
    tracker = BrokerHeartbeatTracker(10)
    for now_us in (2, 5):
        tracker.update_contact_time(1, 7, now_us)
        assert tracker.contact_time(1, 7) == now_us


def heartbeats(*fenced: bool) -> BrokerHeartbeatManager:
    found = BrokerHeartbeatManager(10)
    for broker_id, is_fenced in enumerate(fenced):
        found.register(broker_id, is_fenced)
    return found


def test_the_lowest_offset_of_active_brokers() -> None:
    """BrokerHeartbeatManagerTest.testMetadataOffsetComparator"""
    found = heartbeats(False, False, False)
    assert found.lowest_active_offset() == -1
    for broker_id, offset in enumerate((800, 400, 100)):
        found.touch(broker_id, False, offset)
    assert found.lowest_active_offset() == 100
    found.fence(2)
    assert found.lowest_active_offset() == 400
    found.remove(1)
    assert found.lowest_active_offset() == 800


def test_fenced_brokers_enter_no_controlled_shutdown() -> None:
    """BrokerHeartbeatManagerTest.testUsableBrokerIterator"""
    found = heartbeats(*[True] * 4)
    for broker_id, is_fenced, offset in ((0, False, 100), (1, False, 98), (2, True, 100)):
        found.touch(broker_id, is_fenced, offset)
    assert found.lowest_active_offset() == 98
    found.maybe_update_controlled_shutdown_offset(1, 0)
    assert found.lowest_active_offset() == 100
    with pytest.raises(AssertionError, match="Fenced brokers cannot enter controlled shutdown"):
        found.maybe_update_controlled_shutdown_offset(2, 0)
    found.touch(2, False, 100)
    found.maybe_update_controlled_shutdown_offset(2, 0)
    assert found.lowest_active_offset() == 100


def test_the_offset_of_a_controlled_shutdown_is_that_of_its_begin() -> None:
    """BrokerHeartbeatManagerTest.testControlledShutdownOffsetIsOnlyUpdatedOnce"""
    found = heartbeats(False, False)
    assert found.controlled_shutdown_offset(0) is None
    for offset in (98, 99):
        found.maybe_update_controlled_shutdown_offset(0, offset)
        assert found.controlled_shutdown_offset(0) == 98
    assert found.controlled_shutdown_offset(1) is None


@pytest.mark.parametrize(
    ("broker_id", "wants", "leads", "expected"),
    [
        (0, {"want_shut_down": True}, False, SHUT_DOWN),
        (0, {"current_metadata_offset": 100}, False, UNFENCED),
        (0, {"current_metadata_offset": 50}, False, FENCED),
        (0, {"want_fence": True, "current_metadata_offset": 100}, False, FENCED),
        (1, {"want_shut_down": True}, True, SHUTTING_DOWN),
        (1, {"want_shut_down": True}, False, SHUT_DOWN),
        (1, {"want_shut_down": True, "want_fence": True}, True, SHUT_DOWN),
        (1, {"want_fence": True}, True, FENCED),
        (1, {}, True, UNFENCED),
        (2, {"want_shut_down": True}, True, SHUTTING_DOWN),
        (2, {"want_shut_down": True}, False, SHUTTING_DOWN),
    ],
)
def test_the_next_state_of_a_broker(
    broker_id: int, wants: dict[str, Any], leads: bool, expected: BrokerControlState
) -> None:
    """BrokerHeartbeatManagerTest.testCalculateNextBrokerState"""
    found = heartbeats(True, True, True)
    found.touch(0, True, 100)
    found.touch(1, False, 98)
    found.touch(2, False, 99)
    found.maybe_update_controlled_shutdown_offset(2, 99)
    heartbeat = BrokerHeartbeat(broker_id=broker_id, broker_epoch=0, **wants)
    assert found.next_state(heartbeat, 100, leads) is expected


def test_a_broker_shuts_down_when_all_active_ones_have_replayed_that() -> None:
    found = heartbeats(False, False)
    found.touch(0, False, 98)
    found.maybe_update_controlled_shutdown_offset(1, 99)
    heartbeat = BrokerHeartbeat(broker_id=1, broker_epoch=0, want_shut_down=True)
    assert found.next_state(heartbeat, 0, False) is SHUTTING_DOWN
    found.touch(0, False, 99)
    assert found.next_state(heartbeat, 0, True) is SHUTTING_DOWN
    assert found.next_state(heartbeat, 0, False) is SHUT_DOWN


def test_an_unknown_broker_has_no_heartbeat() -> None:
    """BrokerHeartbeatManagerTest.testTouchThrowsExceptionUnlessRegistered"""
    found = heartbeats()
    with pytest.raises(KeyError):
        found.touch(4, False, 0)


def test_a_broker_is_unfenced_after_it_has_replayed_its_registration() -> None:
    """QuorumControllerTest.testFenceMultipleBrokers"""
    at = Brokers()
    epoch = at.register(registration())
    reply = at.beat(1, epoch - 1)
    assert (reply.is_caught_up, reply.is_fenced, at.written) == (False, True, [])
    reply = at.beat(1, epoch)
    assert (reply.is_caught_up, reply.is_fenced) == (True, False)
    assert at.written == [
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, fenced=-1)
    ]
    at.register(registration(rack="other"))
    assert not at.beat(1, epoch).is_caught_up, "its registration has changed since"
    assert at.state.is_active(1)
    for broker_id in (2, 3):
        at.beat(broker_id, at.register(registration(broker_id, log_dirs=(directory(broker_id),))))
    at.apply(CreateTopic(topic="a", assignment=((1, 2, 3),)))
    at.now_us = 2 * SESSION_US
    at.beat(3)
    fenced = []
    while at.fence_stale():
        fenced += [
            one.broker_id for one in at.written if isinstance(one, BrokerRegistrationChangeRecord)
        ]
    assert fenced == [1, 2]
    assert at.partition("a").isr == (3,)


def test_a_heartbeat_of_another_epoch_is_stale() -> None:
    at = Brokers(broker(1))
    heartbeat = BrokerHeartbeat(broker_id=1, broker_epoch=5)
    error = at.refused(lambda state: at.control.heartbeat(heartbeat, state, now_us=0))
    assert error == (77, "Expected broker epoch 1, but got broker epoch 5")
    unknown = replace(heartbeat, broker_id=8)
    error = at.refused(lambda state: at.control.heartbeat(unknown, state, now_us=0))
    assert error == (77, "No broker registration found for broker id 8")


def test_a_controlled_shutdown_elects_other_leaders_first() -> None:
    """ReplicationControlManagerTest.testProcessBrokerHeartbeatInControlledShutdown"""
    at = Brokers(broker(1), broker(2), broker(3), level=7)
    at.apply(CreateTopic(topic="a", assignment=((1, 2, 3),)))
    reply = at.beat(1, want_shut_down=True)
    assert (reply.in_controlled_shutdown, reply.should_shut_down) == (True, False)
    row = at.partition("a")
    assert at.written == [
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=1),
        PartitionChangeRecord(topic_id=row.topic_id, partition_id=0, isr=(2, 3), leader=2),
    ]
    assert [one.version for one in at.decoded] == [1, 0]
    shutdown_offset = at.next_offset - 1
    at.beat(2, shutdown_offset)
    at.beat(3, shutdown_offset - 1)
    assert not at.beat(1, want_shut_down=True).should_shut_down
    at.beat(3, shutdown_offset)
    reply = at.beat(1, want_shut_down=True)
    assert (reply.is_fenced, reply.should_shut_down) == (True, True)
    assert at.row(1).fenced


def test_sessions_begin_again_in_a_new_epoch() -> None:
    at = Brokers(broker(1), broker(2))
    at.now_us = 2 * SESSION_US
    at.leader_epoch += 1
    assert not at.fence_stale()
    at.now_us = 4 * SESSION_US
    assert at.fence_stale()


def test_a_broker_that_another_operation_unregistered_is_forgotten() -> None:
    at = Brokers(broker(1), broker(2), broker(3))
    at.apply(CreateTopic(topic="a", assignment=((1, 2),)))
    at.beat(2)
    at.beat(1, want_shut_down=True)
    at.apply(UnregisterBroker(broker_id=3))
    at.now_us = 2 * SESSION_US
    at.beat(1)
    at.beat(2)
    assert at.beat(1, want_shut_down=True).should_shut_down, "broker 3 is not waited for"
    assert not at.fence_stale()
    assert at.written == []


def test_a_heartbeat_that_was_reverted_is_repeated() -> None:
    at = Brokers(broker(1), broker(2), broker(3, fenced=True))
    at.apply(CreateTopic(topic="a", assignment=((1, 2),)))

    class NotWrittenError(Exception):
        pass

    def fail(operation: Callable[[PendingState], Generator[None, None, object]]) -> None:
        def failing(state: PendingState) -> Generator[None]:
            yield from operation(state)
            raise NotWrittenError

        with pytest.raises(NotWrittenError):
            at.run(failing)

    stopping = BrokerHeartbeat(broker_id=1, broker_epoch=1, want_shut_down=True)
    starting = BrokerHeartbeat(broker_id=3, broker_epoch=3, current_metadata_offset=10**6)
    for one in (stopping, starting):
        fail(lambda state, one=one: at.control.heartbeat(one, state, now_us=0))  # type: ignore[misc]
    assert at.beat(1, want_shut_down=True).in_controlled_shutdown
    assert at.row(1).in_controlled_shutdown
    assert at.partition("a").leader == 2
    assert not at.beat(3).is_fenced
    assert at.state.is_active(3)
    at.now_us = 2 * SESSION_US
    at.beat(3)
    fail(lambda state: at.control.fence_one_stale_broker(state, now_us=at.now_us))
    assert at.fence_stale()
    assert at.fence_stale()
    assert not at.fence_stale()
    assert [at.row(one).fenced for one in (1, 2, 3)] == [True, True, False]


def test_an_unclean_shutdown_leaves_the_isr_without_elr() -> None:
    """QuorumControllerTest.testUncleanShutdownElrDisabled"""
    at = Brokers(broker(1), broker(2))
    at.apply(CreateTopic(topic="a", assignment=((1, 2),)))
    at.now_us = 2 * SESSION_US
    at.register(registration())
    assert at.partition("a").isr == (2,)
    assert at.partition("a").leader == 2


def test_an_unclean_shutdown_leaves_isr_and_elr() -> None:
    """QuorumControllerTest.testUncleanShutdownBrokerElrEnabled"""
    at = Brokers(broker(1), broker(2), elr=True)
    at.apply(CreateTopic(topic="a", assignment=((1, 2),), configs={"min.insync.replicas": "2"}))
    at.now_us = 2 * SESSION_US
    for broker_id, elr in ((1, (1,)), (2, (1, 2))):
        assert at.fence_stale()
        assert at.partition("a").elr == elr, broker_id
    at.register(registration(2, log_dirs=(directory(2),)))
    row = at.partition("a")
    assert (row.isr, row.elr, row.leader, row.last_known_elr) == ((), (1,), -1, (2,))


# --- directories ----------------------------------------------------------------------------------


def test_directories_need_a_metadata_version() -> None:
    """ReplicationControlManagerTest.testHandleAssignReplicasToDirsFailsOnOlderMv"""
    at = ControllerContext(brokers=1, level=15)
    error = at.refused(lambda state: assign_replicas_to_dirs(1, 1, [], state))
    assert error == (35, "Directory assignment is not supported yet")


def test_replicas_are_assigned_to_directories() -> None:
    """ReplicationControlManagerTest.testHandleAssignReplicasToDirs"""
    both = (directory(1), directory(1, 1))
    at = ControllerContext(broker(1, log_dirs=both), broker(2), broker(3))
    at.apply(CreateTopic(topic="a", assignment=((1, 2), (2, 3), (1, 2))))
    topic_id = at.partition("a").topic_id
    assignments = [
        DirectoryAssignment(both[0], topic_id, 0),
        DirectoryAssignment(both[1], topic_id, 1),
        DirectoryAssignment(NEW, topic_id, 2),
        DirectoryAssignment(both[1], topic_id, 9),
        DirectoryAssignment(both[1], UNKNOWN_TOPIC, 0),
    ]
    result = at.run(lambda state: assign_replicas_to_dirs(1, 1, assignments, state))
    assert codes_of(result) == [0, 6, 0, 3, 100]
    assert at.partition("a", 0).directories == (both[0], directory(2))
    assert at.partition("a", 0).isr == (1, 2)
    offline = at.partition("a", 2)
    assert offline.directories == (NEW, directory(2))
    assert (offline.isr, offline.leader) == ((2,), 2)
    assert len(at.written) == 3
    error = at.refused(lambda state: assign_replicas_to_dirs(1, 9, [], state))
    assert error[0] == 77


def test_replicas_in_offline_directories_leave_the_isr() -> None:
    """ReplicationControlManagerTest.testHandleDirectoriesOffline"""
    both = (directory(1), directory(1, 1))
    at = Brokers(broker(1, log_dirs=both), broker(2))
    at.apply(CreateTopic(topic="a", assignment=((1, 2), (1, 2), (2, 1))))
    topic_id = at.partition("a").topic_id
    for number, one in ((0, both[0]), (1, both[1]), (2, both[1])):
        assignment = DirectoryAssignment(one, topic_id, number)
        at.run(partial(assign_replicas_to_dirs, 1, 1, [assignment]))
    at.beat(1, offline_log_dirs=(both[1], NEW))
    assert [at.partition("a", number).isr for number in range(3)] == [(1, 2), (2,), (2,)]
    assert at.partition("a", 1).leader == 2
    assert at.row().log_dirs == both[:1]
    assert at.decoded[-1].version == 2
    at.beat(1, offline_log_dirs=(both[1],))
    assert at.written == []


def test_cordoned_directories_are_noted() -> None:
    """ReplicationControlManagerTest.testHandleDirectoriesCordoned"""
    both = (directory(1), directory(1, 1))
    at = Brokers(broker(1, log_dirs=both))
    at.beat(1)
    assert at.written == []
    for cordoned, is_written in ((both[:1], True), (both[:1], False), ((), True), ((), False)):
        at.beat(1, cordoned_log_dirs=cordoned)
        assert bool(at.written) is is_written
        assert at.row().cordoned_log_dirs == cordoned
    old = Brokers(broker(1, level=29), level=29)
    old.beat(1, cordoned_log_dirs=both)
    assert old.written == []


def test_epochs_are_tokens_of_change_rows() -> None:
    at = ControllerContext(brokers=2)
    stale = UnregisterBroker(broker_id=1, broker_epoch=7)
    assert at.refused(lambda state: at.write(stale, state))[0] == 77
    at.apply(UnregisterBroker(broker_id=1, broker_epoch=1))
    assert at.apply(
        RegisterBroker(broker_id=1, endpoints={"A": "h:1"}, previous_broker_epoch=2**40)
    )
