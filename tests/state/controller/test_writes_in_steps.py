"""Large writes are generated in steps, between other events of the log; they stay atomic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.controller_nodes import controller_nodes, hosted
from tests.support.controllers import Controllers, bootstrap, write

from raftlog.errors import UnexpectedEndOffsetError
from raftlog_state.controller import (
    ApiException,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    OperationInSteps,
    PendingState,
    QuorumController,
    UnfenceBroker,
    Write,
    controller_state,
    write_change,
    write_change_in_steps,
)
from raftlog_state.controller.active import NO_DEADLINE, RECORDS_PER_OPERATION_MAX
from raftlog_state.controller.broker_control import BrokerControl
from raftlog_state.controller.heartbeats import BrokerHeartbeat
from raftlog_state.controller.pending_state import WORK_PER_STEP
from raftlog_state.errors import (
    ControllerTimeoutError,
    NotControllerError,
    PolicyViolationError,
    UnknownServerError,
)
from raftlog_state.image import BrokerRow, Entity, PartitionRow, TopicRow
from raftlog_state.records import PartitionRecord, decode

PARTITIONS = 3 * WORK_PER_STEP


def started(**options: int) -> tuple[Controllers, QuorumController]:
    env = Controllers(in_steps=True, **options)
    active = env.elect(1)
    assert write(active, *bootstrap()).error is None
    env.shared.deliver()
    return env, active


def large(name: str = "large", partitions: int = PARTITIONS) -> CreateTopic:
    return CreateTopic(topic=name, partitions=partitions, replication_factor=1)


def write_large(
    active: QuorumController, change: CreateTopic | None = None, *, deadline_us: int = NO_DEADLINE
) -> Write[None]:
    operation = partial(write_change_in_steps, change or large())
    return active.write_in_steps("large", operation, deadline_us=deadline_us)


def between_steps(env: Controllers, active: QuorumController) -> Write[None]:
    """Begin a large write, and return it when it has run two steps."""
    done = write_large(active)
    env.run_step(1)
    assert env.scheduled[1], "it has more steps"
    assert 0 < len(active.state.keys(Entity.PARTITION)) < PARTITIONS
    return done


def error_of(done: Write[Any]) -> str:
    assert done.is_done
    return str(done.error)


def partition_count(controller: QuorumController) -> int:
    return len(controller.image().rows_of(PartitionRow))


def assert_nothing_is_written(env: Controllers, active: QuorumController) -> None:
    """Check that the state has no part of the large write, and the log neither."""
    env.run_steps()
    env.shared.deliver()
    assert active.state.keys(Entity.PARTITION) == []
    env.assert_states_equal_a_replay()
    values = [
        one.value or b"" for of in env.shared.batches if not of.is_control for one in of.records()
    ]
    assert not [one for one in values if isinstance(decode(one).record, PartitionRecord)]


# --- steps ----------------------------------------------------------------------------------------


def test_a_step_writes_a_bounded_number_of_records() -> None:
    env, active = started()
    end_offset, counts = env.shared.end_offset, [0]
    done = write_large(active)
    while env.scheduled[1]:
        counts.append(len(active.state.keys(Entity.PARTITION)))
        assert partition_count(active) == 0, "the committed state has none of them"
        env.run_step(1)
        env.shared.deliver()
    assert done.is_done
    assert done.error is None
    written = [after - before for before, after in pairwise(counts)]
    assert len([one for one in written if one]) > PARTITIONS // WORK_PER_STEP
    assert max(written) <= WORK_PER_STEP
    assert env.shared.batches[-1].base_offset == end_offset
    assert env.shared.batches[-1].record_count == 1 + PARTITIONS, "one batch, or nothing"
    assert partition_count(active) == PARTITIONS
    env.assert_states_equal_a_replay()


def test_parts_of_an_operation_that_are_refused_are_work_of_a_step() -> None:
    env, active = started()

    def operation(state: PendingState) -> Generator[None, None, int]:
        def refuse() -> None:
            raise ApiException("the part", "it is refused", "leave it out")

        return len((yield from state.attempt_each([refuse] * (2 * WORK_PER_STEP + 1))))

    done = active.write_in_steps("refused", operation, deadline_us=NO_DEADLINE)
    steps = 0
    while env.scheduled[1]:
        env.run_step(1)
        steps += 1
    assert (steps, done.response) == (2, 2 * WORK_PER_STEP + 1)


def test_the_partitions_of_a_fenced_broker_are_changed_in_steps() -> None:
    env, active = started()
    write_large(active)
    env.run_steps()
    env.shared.deliver()
    led = [one for one in active.image().rows_of(PartitionRow) if one.leader == 1]
    assert len(led) > WORK_PER_STEP // 2
    for change in (FenceBroker(broker_id=1), UnfenceBroker(broker_id=1)):
        done = active.write_in_steps(
            "fence", partial(write_change_in_steps, change), deadline_us=NO_DEADLINE
        )
        assert env.scheduled[1], "it has more than one step"
        env.run_steps()
        env.shared.deliver()
        assert done.is_done
        assert done.error is None
    assert [one for one in active.image().rows_of(PartitionRow) if one.leader < 0] == []


def test_the_leaders_of_a_brokers_partitions_are_compared_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a broker that requests to shut down, and leads none of them."""
    monkeypatch.setattr(controller_state, "SEARCHED_PER_STEP", 10)
    env, active = started()
    write(active, CreateTopic(topic="followed", assignment=((1, 2),) * 25))
    env.run_steps()
    row = active.state.find(BrokerRow, 2)
    assert row is not None
    heartbeat = BrokerHeartbeat(
        broker_id=2, broker_epoch=row.broker_epoch, want_shut_down=True, current_metadata_offset=9
    )
    operation = partial(BrokerControl(cluster_id="c").heartbeat, heartbeat, now_us=0)
    done = active.write_in_steps("heartbeat", operation, deadline_us=NO_DEADLINE)
    steps = 1
    while env.scheduled[1]:
        env.run_step(1)
        steps += 1
    env.shared.deliver()
    assert done.error is None
    assert done.response is not None
    assert done.response.should_shut_down
    assert steps == 3
    assert {one.isr for one in active.image().rows_of(PartitionRow)} == {(1,)}


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_topic_is_deleted_in_steps_that_a_lost_leadership_reverts(is_lost: bool) -> None:
    env, active = started()
    write_large(active)
    env.run_steps()
    env.shared.deliver()
    done = active.write_in_steps(
        "delete",
        partial(write_change_in_steps, DeleteTopic(topic="large")),
        deadline_us=NO_DEADLINE,
    )
    assert 0 < len(active.state.keys(Entity.PARTITION)) < PARTITIONS
    assert partition_count(active) == PARTITIONS, "the committed state has all"
    if is_lost:
        env.shared.elect(2)
    env.shared.deliver()
    env.run_steps()
    env.shared.deliver()
    assert isinstance(done.error, NotControllerError) is is_lost
    assert len(active.state.keys(Entity.PARTITION)) == (PARTITIONS if is_lost else 0)
    env.assert_states_equal_a_replay()


def test_without_a_schedule_a_write_has_one_step() -> None:
    env = Controllers()
    active = env.elect(1)
    write(active, *bootstrap())
    assert write_large(active).last_offset == env.shared.end_offset - 1


# --- other events between the steps ---------------------------------------------------------------


def test_later_writes_wait_and_are_appended_in_order() -> None:
    env, active = started()
    done = between_steps(env, active)
    later = [write(active, CreateTopic(topic=name, partitions=1)) for name in "ab"]
    writes: list[Write[Any]] = [done, *later]
    assert active.metrics(0).operations_waiting_count == 3
    env.shared.deliver()
    assert not any(one.is_done for one in writes)
    env.run_steps()
    env.shared.deliver()
    assert [one.error for one in writes] == [None] * 3
    lengths = accumulate([1 + PARTITIONS, 2, 2], initial=env.shared.batches[-3].base_offset - 1)
    assert [one.last_offset for one in writes] == list(lengths)[1:]
    env.assert_states_equal_a_replay()


def test_writes_that_waited_are_executed_between_other_events() -> None:
    """Each in a step of its own: they may be many, and heartbeats and fetches wait for a step."""
    env, active = started()
    done = between_steps(env, active)
    started_names: list[str] = []

    def note(name: str, _: PendingState) -> None:
        started_names.append(name)

    for name in "abc":
        active.write(name, partial(note, name), deadline_us=NO_DEADLINE)
    while env.scheduled[1]:
        before = len(started_names) + done.is_done
        env.run_step(1)
        env.shared.deliver()
        assert len(started_names) + done.is_done <= before + 1
    assert started_names == ["a", "b", "c"]


def test_a_later_write_is_validated_against_the_large_one() -> None:
    env, active = started()
    between_steps(env, active)
    again = write(active, large(partitions=1))
    env.run_steps()
    assert "Topic 'large' already exists" in error_of(again)


def test_earlier_writes_are_completed_between_the_steps() -> None:
    env, active = started()
    env.hold()
    earlier = [write(active, CreateTopic(topic=name, partitions=1)) for name in "ab"]
    done = between_steps(env, active)
    env.release()
    assert [one.error for one in earlier if one.is_done] == [None] * 2
    env.assert_states_equal_a_replay()
    assert not done.is_done
    env.run_steps()
    env.shared.deliver()
    assert done.error is None
    assert partition_count(active) == PARTITIONS + 2
    env.assert_states_equal_a_replay()


@pytest.mark.parametrize("leader_id", [2, None])
def test_a_leadership_lost_between_the_steps_reverts_the_write(leader_id: int | None) -> None:
    env, active = started()
    done = between_steps(env, active)
    later = write(active, CreateTopic(topic="later", partitions=1))
    if leader_id is None:
        env.shared.depose()
    else:
        env.shared.elect(leader_id)
    env.shared.deliver()
    assert isinstance(done.error, NotControllerError)
    assert_nothing_is_written(env, active)
    assert isinstance(later.error, NotControllerError)
    again = write_large(env.elect(3))
    env.run_steps()
    env.shared.deliver()
    assert again.error is None
    env.assert_states_equal_a_replay()


def test_the_same_node_elected_between_the_steps_claims_again() -> None:
    env, active = started()
    done = between_steps(env, active)
    env.elect(1)
    assert isinstance(done.error, NotControllerError)
    assert_nothing_is_written(env, active)
    assert active.active_epoch == env.shared.epoch


def test_a_leadership_that_the_log_has_lost_already_reverts_the_write() -> None:
    """The controller has not received the leader change when it appends."""
    env, active = started()
    done = between_steps(env, active)
    env.shared.elect(2)
    env.run_steps()
    assert isinstance(done.error, NotControllerError)
    assert_nothing_is_written(env, active)


def test_control_records_between_the_steps_take_the_offsets_of_the_write() -> None:
    """It was replayed at offsets that it cannot have: the controller fails over."""
    env, active = started()
    done = between_steps(env, active)
    epoch = active.active_epoch
    env.shared.append_voters()
    env.shared.deliver()
    assert isinstance(done.error, NotControllerError)
    assert active.active_epoch is None
    assert any(UnexpectedEndOffsetError.__name__ in one for one in env.listeners[1].messages)
    assert_nothing_is_written(env, active)
    assert env.shared.epoch != epoch


def test_control_records_that_are_not_committed_yet_are_found_by_the_append() -> None:
    env, active = started()
    done = between_steps(env, active)
    env.hold()
    env.shared.append_voters()
    env.run_steps()
    assert "Unexpected end offset. Controller not known." in error_of(done)
    env.release()
    assert_nothing_is_written(env, active)


def test_a_shutdown_between_the_steps_reverts_the_write() -> None:
    env, active = started()
    done = between_steps(env, active)
    later = write(active, CreateTopic(topic="later", partitions=1))
    env.shared.nodes[1].shut_down()
    for one in (done, later):
        assert isinstance(one.error, ControllerTimeoutError)
    env.run_steps()
    assert active.state.keys(Entity.PARTITION) == []


def test_a_deadline_that_is_reached_between_the_steps_fails_the_write() -> None:
    env, active = started()
    env.hold()
    done = write_large(active, deadline_us=100)
    late = active.write("late", lambda _: None, deadline_us=100)
    env.now_us = 100
    active.tick(100)
    env.run_steps()
    for one in (done, late):
        assert isinstance(one.error, ControllerTimeoutError)
    env.release()
    assert partition_count(active) == PARTITIONS, "its records stay in the log"
    env.assert_states_equal_a_replay()


def test_an_error_in_a_later_step_reverts_the_write() -> None:
    cases: list[tuple[OperationInSteps[None], type[Exception]]] = [
        (failing(ApiException("the end", "it is refused", "do not")), ApiException),
        (failing(ZeroDivisionError()), UnknownServerError),
        (
            partial(write_change_in_steps, large(partitions=RECORDS_PER_OPERATION_MAX)),
            PolicyViolationError,
        ),
    ]
    for operation, expected in cases:
        env, active = started()
        done = active.write_in_steps("large", operation, deadline_us=NO_DEADLINE)
        env.run_steps()
        assert isinstance(done.error, expected)
        assert_nothing_is_written(env, active)


def failing(error: Exception) -> OperationInSteps[None]:
    def operation(state: PendingState) -> Generator[None, None, None]:
        yield from write_change_in_steps(large(), state)
        raise error

    return operation


def test_a_validated_write_is_reverted_after_its_steps() -> None:
    env, active = started()

    def validate(state: PendingState) -> Generator[None, None, None]:
        return state.validate_only_in_steps(partial(write_change_in_steps, large()))

    done = active.write_in_steps("validated", validate, deadline_us=NO_DEADLINE)
    assert env.scheduled[1], "it has more than one step"
    env.run_steps()
    env.shared.deliver()
    assert done.is_done
    assert done.error is None
    assert_nothing_is_written(env, active)


# --- on nodes -------------------------------------------------------------------------------------


def test_followers_are_served_between_the_steps(tmp_path: Path) -> None:
    """A write that is appended before the steps of another is committed between them: the leader
    answers the fetches of its followers. Then the leadership is lost."""

    async def until(is_true: Callable[[], bool]) -> None:
        while not is_true():
            await asyncio.sleep(0)

    async def check() -> None:
        async with controller_nodes(tmp_path, 3) as nodes:
            await nodes.add_brokers(1)
            node = await nodes.until_active()
            controller, is_released = hosted(node), False

            def wait(name: str, state: PendingState) -> Generator[None, None, None]:
                write_change(large(name, partitions=10), state)
                while not is_released:
                    yield

            small = partial(write_change, large("small", partitions=1))
            earlier = asyncio.create_task(controller.write("small", small))
            slow = asyncio.create_task(controller.write_in_steps("slow", partial(wait, "slow")))
            await earlier
            assert not slow.done()
            assert len(controller.controller.image().rows_of(TopicRow)) == 1
            is_released = True
            await slow

            is_released = False
            lost = asyncio.create_task(controller.write_in_steps("lost", partial(wait, "lost")))
            await until(lambda: controller.controller.metrics(0).operations_waiting_count == 1)
            node.node.raft_node.raft_client.resign(controller.controller.active_epoch or 0)
            with pytest.raises(NotControllerError):
                await lost
            await nodes.until_active()
            await nodes.until_equal()
            for one in nodes.nodes:
                image = hosted(one).controller.image()
                assert {row.name for row in image.rows_of(TopicRow)} == {"small", "slow"}
                assert len(image.rows_of(BrokerRow)) == 1

    asyncio.run(check())
