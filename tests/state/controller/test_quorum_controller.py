"""The active controller and its standbys on a shared log, event by event.

Kafka: ``QuorumControllerTest``; the names of its cases are in docstrings.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.support.controllers import (
    Controllers,
    Listener,
    assert_equals_a_replay,
    bootstrap,
    registration,
    replayed,
    write,
)
from tests.support.one_replica import OneReplica

from raftlog.errors import DiskFullError, StateMachineError
from raftlog.node.raft_client import LeaderNotification, committed_batches
from raftlog_state.controller import (
    ApiException,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    PendingState,
    QuorumController,
    SetConfig,
    Write,
)
from raftlog_state.controller.active import NO_DEADLINE
from raftlog_state.controller.pending_state import Operation
from raftlog_state.errors import (
    ControllerTimeoutError,
    InvalidChangesError,
    InvalidRecordError,
    NotControllerError,
    PolicyViolationError,
    ReplayError,
    UnknownServerError,
)
from raftlog_state.image import BrokerRow, ConfigRow, PartitionRow, TopicRow
from raftlog_state.records import (
    ConfigRecord,
    DecodedRecord,
    NoOpRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    encode,
)
from raftlog_state.replay import Position, replay

TOPIC_ID = "a" * 21 + "A"
NONE_ACTIVE = "No controller appears to be active."


def started(level: int = 30, **options: Any) -> tuple[Controllers, QuorumController]:
    """Return controllers of a new cluster, of which that of node 1 is active."""
    env = Controllers(**options)
    active = env.elect(1)
    done = write(active, *bootstrap(level))
    env.shared.deliver()
    assert done.is_done
    assert done.error is None
    return env, active


def topic(name: str, partitions: int = 1) -> CreateTopic:
    return CreateTopic(topic=name, partitions=partitions, replication_factor=2)


def config(name: str, value: str) -> SetConfig:
    return SetConfig(resource_type="TOPIC", resource_name="a", name=name, value=value)


def topic_names(controller: QuorumController) -> list[str]:
    return sorted(row.name for row in controller.image().rows_of(TopicRow))


def log_records(env: Controllers) -> list[DecodedRecord]:
    batches = (batch for batch in env.shared.batches if not batch.is_control)
    values = (record.value for batch in batches for record in batch.records())
    return [decode(value) for value in values if value is not None]


def assert_not_controller(
    done: Write[int], text: str = "No controller appears to be active."
) -> None:
    assert isinstance(done.error, NotControllerError)
    assert done.error.reason == text


# --- writes ---------------------------------------------------------------------------------------


def test_a_write_is_completed_when_it_is_committed() -> None:
    """QuorumControllerTest.testDelayedConfigurationOperations"""
    env, active = started()
    write(active, topic("a"))
    env.shared.deliver()
    env.hold()
    done = write(active, config("retention.ms", "1"))
    env.shared.deliver()
    assert not done.is_done
    assert active.image().find(ConfigRow, 2, "a", "retention.ms") is None
    env.release()
    assert done.is_done
    assert done.error is None
    for controller in env.all.values():
        row = controller.image().find(ConfigRow, 2, "a", "retention.ms")
        assert row is not None
        assert row.value == "1"
    env.assert_states_equal_a_replay()


def test_several_writes_are_under_way_and_each_sees_the_ones_before() -> None:
    env, active = started()
    env.hold()
    found = [write(active, topic(name)) for name in "abc"]
    found.append(write(active, DeleteTopic(topic="b")))
    refused = write(active, topic("a"))
    assert isinstance(refused.error, InvalidChangesError)
    assert [one.is_done for one in found] == [False] * 4
    assert topic_names(active) == []
    assert found[1].last_offset is not None
    env.shared.committed_max = found[1].last_offset + 1
    env.shared.deliver()
    assert [one.is_done for one in found] == [True, True, False, False]
    assert topic_names(active) == ["a", "b"]
    env.assert_states_equal_a_replay()
    env.release()
    assert topic_names(env.all[3]) == ["a", "c"]
    assert not any(one.error for one in found)
    env.assert_states_equal_a_replay()


def test_a_broker_epoch_is_the_offset_of_its_registration() -> None:
    env, active = started()
    for transaction_name in (None, "t"):
        done = write(active, registration(9), topic("a"), transaction_name=transaction_name)
        env.shared.deliver()
        if transaction_name is None:
            write(active, DeleteTopic(topic="a"))
            env.shared.deliver()
        assert done.error is None
    registrations = [
        record.offset
        for batch in env.shared.batches
        if not batch.is_control
        for record in batch.records()
        if record.value is not None
        and isinstance(decoded := decode(record.value).record, RegisterBrokerRecord)
        and decoded.broker_id == 9
    ]
    for controller in env.all.values():
        row = controller.image().find(BrokerRow, 9)
        assert row is not None
        assert row.broker_epoch == registrations[-1]


def test_a_refused_write_leaves_no_trace() -> None:
    env, active = started()
    end_offset, image = env.shared.end_offset, active.image()
    epochs = active.state.registry.epochs
    refused = write(active, topic("a"), registration(9), topic("a"))
    assert isinstance(refused.error, InvalidChangesError)
    assert env.shared.end_offset == end_offset
    assert active.image() == image
    assert active.state.rows_of(TopicRow) == []
    assert active.state.registry.epochs == epochs
    assert active.active_epoch == env.shared.epoch, "an API error is no reason to fail over"
    assert not env.listeners[1].faults


def test_a_write_without_records_waits_for_the_state_that_it_has_read() -> None:
    """QuorumControllerTest.testEarlyControllerResults"""
    env, active = started()

    def read(pending: PendingState) -> bool:
        return pending.current.topic("a") is not None

    assert active.write("read", read, deadline_us=NO_DEADLINE).is_done
    env.hold()
    write(active, topic("a"))
    found = active.write("read", read, deadline_us=NO_DEADLINE)
    assert not found.is_done
    env.release()
    assert found.is_done
    assert found.response is True
    env.hold()
    expired = write(active, DeleteTopic(topic="a"), deadline_us=env.now_us + 1)
    active.tick(env.now_us + 1)
    assert expired.is_done
    found = active.write("read", read, deadline_us=NO_DEADLINE)
    assert found.response is False
    assert not found.is_done, "the write is not committed, although its caller has an outcome"


def test_a_standby_refuses_writes_and_names_the_active_controller() -> None:
    env, _ = started()
    assert_not_controller(
        write(env.all[2], topic("a")), "The active controller appears to be node 1."
    )
    assert_not_controller(write(Controllers().all[1], topic("a")))


def test_a_write_with_too_many_records_is_a_policy_violation() -> None:
    env, active = started()
    end_offset = env.shared.end_offset

    def operation(pending: PendingState) -> None:
        for number in range(10_001):
            pending.write(ConfigRecord(resource_type=4, name=f"a{number}", value="1"))

    done = active.write("configs", operation, deadline_us=NO_DEADLINE)
    assert isinstance(done.error, PolicyViolationError)
    assert env.shared.end_offset == end_offset
    assert active.state.rows_of(ConfigRow) == []
    assert active.active_epoch == env.shared.epoch
    env.assert_states_equal_a_replay()


def test_a_batch_that_is_too_large_is_reverted() -> None:
    env, active = started()
    env.shared.batch_bytes_max = 30
    done = write(active, topic("a"))
    env.shared.batch_bytes_max = 1_000
    assert isinstance(done.error, PolicyViolationError)
    assert active.state.rows_of(TopicRow) == []
    again = write(active, topic("a"))
    env.shared.deliver()
    assert again.is_done
    assert again.error is None
    env.assert_states_equal_a_replay()


# --- deadlines ------------------------------------------------------------------------------------


def test_a_write_after_its_deadline_is_not_started() -> None:
    """QuorumControllerTest.testTimeouts"""
    env, active = started()
    env.now_us = 10
    done = write(active, topic("a"), deadline_us=10)
    assert isinstance(done.error, ControllerTimeoutError)
    assert active.state.rows_of(TopicRow) == []
    assert env.listeners[1].messages[-1] == (
        "changes: unable to start processing because of ControllerTimeoutError."
    )
    assert active.metrics(0).operations_timed_out_count == 1


def test_a_waiting_write_fails_at_its_deadline_and_may_be_committed() -> None:
    env, active = started()
    env.hold()
    early, late = (write(active, topic(name), deadline_us=at) for name, at in (("a", 5), ("b", 9)))
    env.now_us = 5
    active.tick(4)
    assert not early.is_done
    active.tick(5)
    assert isinstance(early.error, ControllerTimeoutError)
    assert not late.is_done
    assert env.listeners[1].messages[-1] == (
        "changes: failed with ControllerTimeoutError in 5 microseconds."
    )
    env.release()
    assert late.is_done
    assert late.error is None
    assert topic_names(active) == ["a", "b"]


# --- leadership -----------------------------------------------------------------------------------


def test_a_lost_leadership_reverts_what_is_not_committed() -> None:
    env, active = started()
    committed = write(active, topic("a"))
    env.shared.deliver()
    env.hold()
    lost = [write(active, topic("b")), write(active, DeleteTopic(topic="a"), registration(9))]
    assert [row.name for row in active.state.rows_of(TopicRow)] == ["b"]
    env.shared.elect(2)
    env.shared.committed_max = None
    env.shared.deliver()
    assert committed.error is None
    for one in lost:
        assert_not_controller(one)
    assert active.active_epoch is None
    assert topic_names(active) == ["a"]
    env.assert_states_equal_a_replay()
    done = write(env.all[2], topic("c"))
    env.shared.deliver()
    assert done.is_done
    assert [topic_names(one) for one in env.all.values()] == [["a", "c"]] * 3
    env.assert_states_equal_a_replay()


def test_a_write_that_failed_with_the_leadership_may_be_committed_and_is_applied_once() -> None:
    env, active = started()
    env.hold()
    done = write(active, topic("a"), topic("b"))
    env.shared.depose()
    env.shared.deliver()
    assert_not_controller(done)
    env.release()
    env.elect(2)
    assert [topic_names(one) for one in env.all.values()] == [["a", "b"]] * 3
    env.assert_states_equal_a_replay()


def test_the_same_controller_claims_again() -> None:
    env, active = started()
    env.hold()
    write(active, topic("a"))
    env.release()
    env.elect(1)
    assert active.active_epoch == env.shared.epoch
    assert active.metrics(0).new_active_controllers_count == 2
    write(active, topic("b"))
    env.shared.deliver()
    assert topic_names(active) == ["a", "b"]
    env.assert_states_equal_a_replay()


def test_every_controller_counts_the_elections_that_it_learns_of() -> None:
    """Kafka: ``QuorumControllerMetricsIntegrationTest.testFailingOverIncrementsNewActive...``."""
    env, _ = started()
    env.elect(2)
    env.shared.depose()
    env.elect(2)
    counts = [one.metrics(0).new_active_controllers_count for one in env.all.values()]
    assert counts == [3, 3, 3]


def test_a_controller_claims_only_when_it_has_replayed_the_whole_log() -> None:
    env, first = started()
    write(first, topic("a"))
    env.shared.deliver()
    late = Controllers(count=1).all[1]
    batches = list(env.shared.batches)
    late.handle_commit(batches[:2])
    late.handle_leader_change(LeaderNotification(9, 1, batches[-1].next_offset))
    assert late.active_epoch is None
    assert_not_controller(write(late, topic("b")))
    late.handle_commit(batches[2:])
    assert late.active_epoch == 9
    assert late.metrics(0).last_applied_record_offset == batches[-1].next_offset - 1
    assert topic_names(late) == ["a"]


def test_a_claim_that_is_overtaken_by_another_leader_is_dropped() -> None:
    env, _ = started()
    late = Controllers(count=1).all[1]
    late.handle_leader_change(LeaderNotification(9, 1, env.shared.end_offset))
    late.handle_leader_change(LeaderNotification(10, 2, env.shared.end_offset))
    late.handle_commit(list(env.shared.batches))
    assert late.active_epoch is None
    assert_not_controller(write(late, topic("b")), "The active controller appears to be node 2.")


def test_a_claim_is_dropped_if_the_log_has_batches_of_a_later_leader() -> None:
    """Its own leader change may be delivered before that leader is."""
    env, _ = started()
    start = env.shared.end_offset
    env.elect(2)
    late = Controllers(count=1).all[1]
    late.handle_leader_change(LeaderNotification(1, 1, start + 1))
    late.handle_commit(list(env.shared.batches))
    assert late.active_epoch is None
    assert_not_controller(write(late, topic("b")))


def test_a_leader_of_the_next_epoch_stays_active() -> None:
    env, active = started()
    env.hold()
    waiting = write(active, topic("a"))
    env.shared.epoch += 1
    active.handle_leader_change(LeaderNotification(env.shared.epoch, 1, env.shared.end_offset))
    text = "We were the leader in epoch 1, and are still the leader in the new epoch 2."
    assert env.listeners[1].messages[-1] == text
    assert active.active_epoch == 2
    done = write(active, topic("b"))
    env.release()
    assert (waiting.error, done.error) == (None, None)
    assert topic_names(env.all[2]) == ["a", "b"]
    env.assert_states_equal_a_replay()


def test_a_leader_of_the_next_epoch_claims_again_if_the_log_has_other_batches() -> None:
    env, active = started()
    env.hold()
    waiting = write(active, topic("a"))
    env.shared.epoch += 1
    env.shared.append_voters()
    active.handle_leader_change(LeaderNotification(env.shared.epoch, 1, env.shared.end_offset))
    assert active.active_epoch is None
    assert isinstance(waiting.error, NotControllerError)
    env.release()
    assert active.active_epoch == 2
    assert topic_names(active) == ["a"]
    assert write(active, topic("b")).error is None
    env.shared.deliver()
    env.assert_states_equal_a_replay()


def test_messages_of_a_claim_and_of_a_renunciation() -> None:
    env, _ = started()
    last_offset = env.shared.end_offset - 1
    assert env.listeners[1].messages == [
        "Becoming the active controller at epoch 1, last write offset 0."
    ]
    env.elect(2)
    assert env.listeners[1].messages[1:] == [
        "Renouncing the leadership at epoch 1: epoch 2 has begun. Reverting to the last stable "
        f"offset {last_offset}."
    ]


def test_an_unexpected_end_offset_fails_over() -> None:
    """Another writer of the log: the token of the next append prevents a wrong prediction."""
    env, active = started()
    env.hold()
    waiting = write(active, topic("a"))
    env.shared.append(1, env.shared.epoch, [encode(DecodedRecord(0, NoOpRecord()))], None)
    done = write(active, topic("b"))
    assert_not_controller(done, "Unexpected end offset. Controller not known.")
    assert_not_controller(waiting)
    assert active.active_epoch is None
    assert env.shared.leader_id is None, "it resigned"
    assert active.state.rows_of(TopicRow) == []
    offset = active.last_stable_offset
    assert env.listeners[1].messages[-1] == (
        "changes: failed with UnexpectedEndOffsetError (treated as NotControllerError) at epoch 1 "
        "in 0 microseconds. Renouncing leadership and reverting to the last committed offset "
        f"{offset}."
    )
    assert not env.listeners[1].faults
    env.release()
    env.elect(3)
    assert topic_names(env.all[3]) == ["a"]
    env.assert_states_equal_a_replay()


def test_committed_records_of_another_writer_fail_over() -> None:
    env, active = started()
    record = TopicRecord(name="other", topic_id=TOPIC_ID)
    env.shared.append(1, env.shared.epoch, [encode(DecodedRecord(0, record))], None)
    env.shared.deliver()
    assert active.active_epoch is None
    assert topic_names(active) == ["other"]
    env.assert_states_equal_a_replay()


@pytest.mark.parametrize("is_of_later_leader", [False, True])
def test_a_committed_write_succeeds_if_the_next_batch_ends_the_leadership(
    *, is_of_later_leader: bool
) -> None:
    env, active = started()
    delivered = len(env.shared.batches)
    done = write(active, topic("a"))
    if is_of_later_leader:
        env.shared.elect(2)
    else:
        env.shared.append(1, env.shared.epoch, [encode(DecodedRecord(0, NoOpRecord()))], None)
    active.handle_commit(env.shared.batches[delivered:])
    assert active.active_epoch is None
    assert done.is_done
    assert done.error is None
    assert topic_names(active) == ["a"]


def test_control_records_of_the_log_do_not_end_a_leadership() -> None:
    env, active = started()
    env.shared.append_voters()
    env.shared.deliver()
    done = write(active, topic("a"))
    env.shared.deliver()
    assert done.error is None
    assert active.active_epoch == 1
    env.assert_states_equal_a_replay()


def test_a_fault_of_an_operation_reverts_and_fails_over() -> None:
    env, active = started()

    def fail(pending: PendingState) -> None:
        pending.write(TopicRecord(name="a", topic_id=TOPIC_ID))
        raise ZeroDivisionError

    env.now_us = 7
    done = active.write("createTopics", fail, deadline_us=NO_DEADLINE)
    assert isinstance(done.error, UnknownServerError)
    assert isinstance(done.error.__cause__, ZeroDivisionError)
    ((message, error),) = env.listeners[1].faults
    assert message.startswith(
        "createTopics: failed with ZeroDivisionError (treated as UnknownServerError) at epoch 1 in "
    )
    assert error is done.error.__cause__
    assert active.metrics(0).fault_count == 1
    assert active.state.rows_of(TopicRow) == []
    env.elect(2)
    env.assert_states_equal_a_replay()


def test_a_record_of_a_write_that_contradicts_the_state_is_a_fault_with_its_place() -> None:
    env, active = started()
    end_offset = env.shared.end_offset

    def contradict(pending: PendingState) -> None:
        pending.write(TopicRecord(name="a", topic_id=TOPIC_ID))
        pending.write(RemoveTopicRecord(topic_id="B" * 22))

    done = active.write("deleteTopics", contradict, deadline_us=NO_DEADLINE)
    assert isinstance(done.error, UnknownServerError)
    ((message, error),) = env.listeners[1].faults
    assert message.startswith(
        "deleteTopics: Unable to apply RemoveTopicRecord record, which was 2 of at least 2 "
        f"record(s) in the batch following last write offset {end_offset - 1}: failed with "
        "RecordNotAppliedError (treated as UnknownServerError) at epoch 1 in "
    )
    assert isinstance(error.__cause__, ReplayError)
    assert env.shared.end_offset == end_offset
    env.elect(2)
    env.assert_states_equal_a_replay()


@pytest.mark.parametrize(("name", "transaction_name"), [("\ud800", None), ("a", "\ud800")])
def test_a_record_that_cannot_be_encoded_is_refused_without_a_trace(
    name: str, transaction_name: str | None
) -> None:
    env, active = started()
    env.hold()
    waiting = write(active, topic("a"))
    subscription = SetConfig(
        resource_type="CLIENT_METRICS", resource_name=name, name="interval.ms", value="5000"
    )
    done = write(active, subscription, transaction_name=transaction_name)
    assert isinstance(done.error, InvalidRecordError)
    assert active.active_epoch == 1
    assert not env.listeners[1].faults
    assert active.state.rows_of(ConfigRow) == []
    env.release()
    assert waiting.error is None
    env.assert_states_equal_a_replay()


@pytest.mark.parametrize("error", [KeyError("a"), AssertionError(), KeyboardInterrupt()])
@pytest.mark.parametrize("is_snapshot", [False, True])
def test_a_controller_whose_replay_fails_in_between_has_no_state_any_more(
    error: BaseException, is_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, active = started()
    write(active, topic("a", partitions=3))
    if is_snapshot:
        env.shared.deliver()
        env.snapshot(active.image())

    def fail(record: Any, state: Any, at: Position) -> None:
        replay(record, state, at)
        if isinstance(record, PartitionRecord) and record.partition_id == 1:
            raise error

    module = "loader.snapshot_loader" if is_snapshot else "controller.controller_state"
    name = "replay" if is_snapshot else "replay_in_steps"
    monkeypatch.setattr(f"raftlog_state.{module}.{name}", fail)
    late = Controllers(count=1)
    standby = late.all[1] if is_snapshot else env.all[2]
    is_interrupt = isinstance(error, KeyboardInterrupt)

    def deliver() -> None:
        if is_snapshot:
            standby.handle_load_snapshot(env.shared.open_snapshot())
        else:
            standby.handle_commit(env.shared.batches[-1:])

    with pytest.raises(KeyboardInterrupt if is_interrupt else StateMachineError):
        deliver()
    for act in (standby.image, lambda: standby.handle_commit([])):
        with pytest.raises(StateMachineError, match="interrupted" if is_interrupt else None):
            act()
    assert isinstance(write(standby, topic("b")).error, ControllerTimeoutError)
    faults = (late.listeners[1] if is_snapshot else env.listeners[2]).fatal_faults
    assert [found for _, found in faults] == ([] if is_interrupt else [error])


def test_a_full_disk_refuses_a_write_without_a_failover() -> None:
    env, active = started()
    env.shared.appends_left = 0
    done = write(active, topic("a"))
    assert isinstance(done.error, DiskFullError)
    assert active.active_epoch == 1
    assert active.state.rows_of(TopicRow) == []
    env.shared.appends_left = None
    assert write(active, topic("b")).error is None
    env.shared.deliver()
    assert not env.listeners[1].faults
    assert topic_names(env.all[2]) == ["b"]
    env.assert_states_equal_a_replay()


def test_a_leader_whose_full_disk_has_no_room_for_an_abort_resigns() -> None:
    env, active = started(records_per_batch_max=2)
    env.shared.appends_left = 1
    done = write(active, topic("a", partitions=5), transaction_name="large")
    assert isinstance(done.error, DiskFullError)
    assert active.active_epoch is None
    env.shared.appends_left = None
    assert env.elect(2).active_epoch is not None
    assert topic_names(env.all[2]) == []
    assert write(env.all[2], topic("b")).error is None
    env.shared.deliver()
    env.assert_states_equal_a_replay()


@pytest.mark.nightly
def test_a_write_that_is_not_atomic_has_no_limit_of_its_records() -> None:
    """``make test`` has such a write of fewer records in ``test_bounded_steps.py``, and the limit
    of the others in ``test_kafkas_topic_cases.py``."""
    env, active = started(records_per_batch_max=4_000)
    begin = env.shared.end_offset
    done = active.write("many", write_configs(10_001), deadline_us=NO_DEADLINE, is_atomic=False)
    env.shared.deliver()
    assert done.response == 10_001
    counts = [at.next_offset - at.base_offset for at in env.shared.batches]
    assert counts[-3:] == [4_000, 4_000, 2_001]
    assert env.shared.end_offset == begin + 10_001, "without markers"
    done = active.write("many", write_configs(10_001), deadline_us=NO_DEADLINE)
    assert isinstance(done.error, PolicyViolationError)
    env.assert_states_equal_a_replay()


@pytest.mark.parametrize("cause", [DiskFullError, PolicyViolationError])
def test_a_leader_resigns_if_the_log_has_a_part_of_a_write(cause: type[Exception]) -> None:
    """Without a transaction there is nothing to abort, also if the log accepts later appends."""
    env, active = started(records_per_batch_max=2)
    if cause is DiskFullError:
        env.shared.appends_left = 1
    else:
        env.shared.batch_bytes_max = 300
    operation = write_configs(5, large_number=2)
    done = active.write("many", operation, deadline_us=NO_DEADLINE, is_atomic=False)
    assert isinstance(done.error, cause)
    assert active.active_epoch is None
    env.shared.appends_left = None
    env.shared.deliver()
    assert env.elect(2).active_epoch is not None
    names = [row.name for row in env.all[2].state.rows_of(ConfigRow)]
    assert names == ["config0", "config1"], "the first batch"
    assert write(env.all[2], topic("b")).error is None
    env.shared.deliver()
    env.assert_states_equal_a_replay()


def write_configs(count: int, large_number: int | None = None) -> Operation[int]:
    """Return the operation that writes configs of brokers, one of them with 400 bytes."""

    def operation(state: PendingState) -> int:
        for number in range(count):
            value = "1" * (400 if number == large_number else 1)
            state.write(ConfigRecord(resource_type=4, name=f"config{number}", value=value))
        return count

    return operation


def test_a_record_that_contradicts_the_state_is_fatal() -> None:
    """QuorumControllerTest.testFatalMetadataErrorDuringLogLoading"""
    env, _ = started()
    record = RemoveTopicRecord(topic_id=TOPIC_ID)
    env.shared.append(1, env.shared.epoch, [encode(DecodedRecord(0, record))], None)
    with pytest.raises(StateMachineError, match="RemoveTopicRecord at offset"):
        env.shared.deliver()
    ((message, _),) = env.listeners[1].fatal_faults
    assert message.startswith(
        "Unable to apply RemoveTopicRecord record on standby controller, which was 1 of 1 "
        "record(s) in the batch with baseOffset "
    )
    refused = write(env.all[1], topic("a"))
    assert isinstance(refused.error, ControllerTimeoutError)


def test_a_shutdown_fails_waiting_writes_and_refuses_new_ones() -> None:
    env, active = started()
    env.hold()
    waiting = write(active, topic("a"))
    env.shared.nodes[1].shut_down()
    for done in (waiting, write(active, topic("b"))):
        assert isinstance(done.error, ControllerTimeoutError)
        assert done.error.reason == "The controller is shutting down."
    assert active.active_epoch is None
    assert env.shared.leader_id is None
    assert active.state.rows_of(TopicRow) == []


def test_unknown_records_are_counted_and_forbid_writes() -> None:
    env, active = started()
    env.shared.depose()
    env.shared.leader_id = 7
    env.shared.append(7, env.shared.epoch, [bytes([1, 0x7F, 0, 0])], None)
    env.elect(1)
    done = write(active, topic("a"))
    assert isinstance(done.error, ApiException)
    assert done.error.kafka_code == 35
    assert active.active_epoch == env.shared.epoch


# --- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_replaces_the_log_of_a_new_standby() -> None:
    """QuorumControllerTest.testSnapshotSaveAndLoad"""
    env, active = started()
    for name in "abc":
        write(active, topic(name, 3))
    write(active, FenceBroker(broker_id=2))
    env.shared.deliver()
    before = list(env.shared.batches)
    env.snapshot(active.image())
    write(active, DeleteTopic(topic="b"))
    env.shared.deliver()
    new = env.start(4)
    env.shared.deliver()
    expected = replayed([*before, *env.shared.batches])
    assert new.image() == expected == active.image()
    env.elect(4)
    done = write(new, topic("b"))
    env.shared.deliver()
    assert done.is_done
    assert [row.leader for row in new.image().rows_of(PartitionRow)] == [
        row.leader for row in active.image().rows_of(PartitionRow)
    ]
    assert new.image() == env.all[2].image()


def test_an_active_controller_that_the_log_has_overtaken_loads_a_snapshot() -> None:
    env, active = started()
    env.hold()
    waiting = write(active, topic("a"))
    env.shared.committed_max = env.shared.end_offset
    for node_id in (2, 3):
        while env.shared.nodes[node_id].deliver_once():
            pass
    env.snapshot(env.all[2].image())
    env.shared.deliver()
    assert_not_controller(waiting)
    assert active.active_epoch is None
    assert env.shared.leader_id is None
    assert topic_names(active) == ["a"]
    assert active.image() == env.all[2].image()
    env.release()
    env.elect(1)
    done = write(active, topic("b"))
    env.shared.deliver()
    assert done.is_done
    assert topic_names(env.all[2]) == ["a", "b"]


# --- transactions ---------------------------------------------------------------------------------


def test_a_transaction_is_in_several_batches_and_is_applied_as_a_whole() -> None:
    env, active = started(records_per_batch_max=4)
    env.hold()
    base_offset = env.shared.end_offset
    done = write(active, topic("a", 3), topic("b", 3), transaction_name="large")
    assert [batch.next_offset - base_offset for batch in env.shared.batches[-3:]] == [4, 8, 10]
    for part in (4, 8):
        env.shared.committed_max = base_offset + part
        env.shared.deliver()
        assert not done.is_done
        assert [topic_names(one) for one in env.all.values()] == [[]] * 3
        env.assert_states_equal_a_replay()
    env.release()
    assert done.is_done
    assert [topic_names(one) for one in env.all.values()] == [["a", "b"]] * 3
    env.assert_states_equal_a_replay()


@pytest.mark.parametrize("leader", [1, 2])
@pytest.mark.parametrize("committed", [0, 4, 8, 10])
def test_a_transaction_that_a_leader_left_open_is_aborted_upon_a_claim(
    committed: int, leader: int
) -> None:
    """testFailoverDuringMigrationTransaction."""
    env, active = started(records_per_batch_max=4)
    env.hold()
    base_offset = env.shared.end_offset
    done = write(active, topic("a", 3), topic("b", 3), transaction_name="large")
    env.shared.committed_max = base_offset + committed
    env.shared.deliver()
    env.shared.elect(leader)
    env.release()
    is_whole = committed == 10
    assert done.is_done
    assert (done.error is None) is is_whole
    names = ["a", "b"] if is_whole else []
    assert [topic_names(one) for one in env.all.values()] == [names] * 3
    is_open = 0 < committed < 10
    kinds = [type(one.record).__name__ for one in log_records(env)]
    assert kinds.count("AbortTransactionRecord") == is_open
    env.assert_states_equal_a_replay()
    again = write(env.all[leader], topic("c"), transaction_name="next")
    env.shared.deliver()
    assert again.error is None
    assert topic_names(env.all[3]) == [*names, "c"]
    env.assert_states_equal_a_replay()


def test_an_abort_that_is_not_committed_is_reverted_with_the_claim() -> None:
    env, active = started(records_per_batch_max=4)
    env.hold()
    base_offset = env.shared.end_offset
    write(active, topic("a", 3), topic("b", 3), transaction_name="large")
    env.shared.committed_max = base_offset + 8
    env.shared.elect(2)
    env.shared.committed_max = env.shared.end_offset
    env.shared.deliver()
    lost = write(env.all[2], topic("c"))
    assert env.shared.end_offset > env.shared.committed_end + 1, "abort and write are appended"
    env.shared.elect(3)
    env.release()
    assert_not_controller(lost)
    assert [topic_names(one) for one in env.all.values()] == [[]] * 3
    env.assert_states_equal_a_replay()


def test_a_transaction_that_cannot_be_appended_whole_is_aborted() -> None:
    env, active = started(records_per_batch_max=4)
    env.shared.batch_bytes_max = 300
    base_offset = env.shared.end_offset
    large = SetConfig(resource_type="BROKER", resource_name="", name="log.dirs", value="a" * 400)
    done = write(active, topic("a", 3), large, transaction_name="large")
    assert isinstance(done.error, PolicyViolationError)
    later = write(active, topic("c"))
    env.shared.deliver()
    assert later.is_done
    assert active.active_epoch == 1
    parts = [batch.next_offset - base_offset for batch in env.shared.batches][-3:]
    assert parts == [4, 5, 7], "a part of the transaction, the abort marker, the next write"
    assert [topic_names(one) for one in env.all.values()] == [["c"]] * 3
    env.assert_states_equal_a_replay()


def test_a_transaction_needs_a_metadata_version_that_has_them() -> None:
    env, active = started(level=12)
    done = write(active, topic("a"), transaction_name="large")
    assert isinstance(done.error, ApiException)
    assert done.error.kafka_code == 35
    assert active.active_epoch == env.shared.epoch


# --- metrics --------------------------------------------------------------------------------------


def test_metrics() -> None:
    """testControllerMetrics: offsets, lag and activity."""
    env, active = started()
    env.hold()
    write(active, topic("a"))
    end_offset = env.shared.end_offset
    found, standby = active.metrics(now_ms=0), env.all[2].metrics(now_ms=1_700_000_000_250)
    assert found.is_active
    assert found.last_applied_record_offset == end_offset - 1
    assert found.last_committed_record_offset == env.shared.committed_end - 1
    assert found.last_applied_record_lag_ms == 0
    assert (found.operations_started_count, found.operations_waiting_count) == (2, 1)
    assert not standby.is_active
    assert standby.last_applied_record_offset == env.shared.committed_end - 1
    assert standby.last_applied_record_lag_ms == 250
    assert standby.last_applied_record_timestamp_ms == 1_700_000_000_000


# --- a replica ------------------------------------------------------------------------------------


def test_a_controller_on_a_replica_of_a_quorum() -> None:
    """The real log delivers commits and leader changes, also from within an append."""
    one, listener = OneReplica(), Listener()
    controller = QuorumController(
        one.log, rng=random.Random(1), time_us=lambda: 0, listener=listener
    )
    one.register(controller)
    one.elect()
    assert controller.active_epoch == one.replica.core.epoch
    done = [write(controller, *bootstrap())]
    done += [write(controller, topic(name), transaction_name=name) for name in "ab"]
    one.is_held = True
    waiting = write(controller, topic("c"))
    one.poll()
    assert not waiting.is_done
    one.release()
    for each in [*done, waiting]:
        assert each.is_done
        assert each.error is None
    assert topic_names(controller) == ["a", "b", "c"]
    assert not listener.faults
    log = one.replica.log
    assert_equals_a_replay(controller, committed_batches(log, 0, log.end_offset, 1 << 30))
