"""The upgrade of kraft.version by the active controller: control records before those of the write.

Kafka: ``QuorumController.updateFeatures``, ``LeaderState.maybeAppendUpgradedKRaftVersion``.
"""

from __future__ import annotations

import pytest
from tests.support.controllers import Controllers, bootstrap, write
from tests.support.one_replica import OneReplica

from raftlog.errors import DiskFullError, InvalidUpdateVersionError
from raftlog_state.controller import (
    ApiException,
    CreateTopic,
    PendingState,
    QuorumController,
    Write,
)
from raftlog_state.controller.active import NO_DEADLINE
from raftlog_state.controller.features import FeatureUpdate, update_features
from raftlog_state.errors import NotControllerError
from raftlog_state.image import FeatureRow


def started() -> tuple[Controllers, QuorumController]:
    """Return controllers of a new cluster, of which that of node 1 is active."""
    env = Controllers()
    active = env.elect(1)
    assert write(active, *bootstrap()).error is None
    env.shared.deliver()
    return env, active


def topic(name: str) -> CreateTopic:
    return CreateTopic(topic=name, partitions=1, replication_factor=2)


def upgrade(
    active: QuorumController, *others: FeatureUpdate, validate_only: bool = False
) -> Write[None]:
    """Raise kraft.version to 1, and update other features."""

    def operation(pending: PendingState) -> None:
        def update(state: PendingState) -> None:
            update_features([FeatureUpdate("kraft.version", 1), *others], state)

        if validate_only:
            pending.validate_only(update)
        else:
            update(pending)

    return active.write("updateFeatures", operation, deadline_us=NO_DEADLINE)


def test_kraft_version_is_raised_by_control_records_before_those_of_the_write() -> None:
    env, active = started()
    end_offset = env.shared.end_offset
    assert upgrade(active, validate_only=True).error is None
    assert (env.shared.end_offset, active.kraft_version) == (end_offset, 0)
    env.hold()
    first = upgrade(active, FeatureUpdate("group.version", 1))
    then = write(active, topic("a"))
    assert not first.is_done
    head, body, after = env.shared.batches[-3:]
    assert (head.base_offset, head.record_count, head.is_control) == (end_offset, 2, True)
    assert (body.base_offset, body.record_count) == (end_offset + 2, 2)
    assert then.response == after.next_offset
    env.release()
    assert (first.error, then.error, active.active_epoch) == (None, None, 1)
    assert active.image().quorum.kraft_version == 1
    assert active.image().quorum.voters
    env.assert_states_equal_a_replay()
    again = upgrade(active)
    env.shared.deliver()
    assert again.error is None
    assert env.shared.batches[-1].record_count == 1, "a NoOp alone"
    env.assert_states_equal_a_replay()


def test_an_upgrade_that_another_update_or_the_log_refuses_writes_nothing() -> None:
    env, active = started()
    batches = list(env.shared.batches)
    refused = upgrade(active, FeatureUpdate("group.version", 9))
    assert isinstance(refused.error, ApiException)
    env.shared.appends_left = 0
    assert isinstance(upgrade(active).error, DiskFullError)
    env.shared.appends_left = None
    assert env.shared.batches == batches
    assert (active.active_epoch, active.kraft_version) == (1, 0)
    assert write(active, topic("a")).error is None
    env.shared.deliver()
    env.assert_states_equal_a_replay()


def test_a_write_that_fails_after_its_upgrade_reverts_its_records_alone() -> None:
    env, active = started()
    env.shared.appends_left = 1
    failed = upgrade(active, FeatureUpdate("group.version", 1))
    assert isinstance(failed.error, DiskFullError)
    env.shared.appends_left = None
    env.shared.deliver()
    assert (active.active_epoch, active.kraft_version) == (1, 1)
    assert active.state.find(FeatureRow, "group.version") is None
    assert write(active, topic("a")).error is None
    env.shared.deliver()
    env.assert_states_equal_a_replay()


def test_an_upgrade_at_an_unexpected_offset_fails_over() -> None:
    env, active = started()
    env.hold()
    env.shared.append_voters()
    failed = upgrade(active)
    assert isinstance(failed.error, NotControllerError)
    assert active.active_epoch is None
    env.release()
    env.assert_states_equal_a_replay()


def test_a_quorum_of_one_voter_is_upgraded_and_stays_so() -> None:
    directory_id = "A" * 21 + "g"
    with pytest.raises(InvalidUpdateVersionError, match="not all of the voters support it"):
        raised_kraft_version(OneReplica())
    one = OneReplica(directory_id=directory_id)
    raised_kraft_version(one)
    assert one.log.kraft_version == 1
    reopened = OneReplica(one.disk, directory_id=directory_id)
    assert reopened.log.kraft_version == 1
    assert [voter.key.directory_id for voter in reopened.replica.core.voters] == [directory_id]
    reopened.elect()
    end_offset = reopened.replica.log.end_offset
    reopened.snapshot(end_offset)
    snapshot = reopened.replica.log.open_snapshot(reopened.replica.log.snapshots[-1])
    assert snapshot.kraft_version == 1
    assert snapshot.voters is not None


def raised_kraft_version(one: OneReplica) -> int:
    """Raise the kraft.version of a replica that is the only voter; return the end of its log."""
    one.elect()
    end_offset = one.log.upgrade_kraft_version(
        one.replica.core.epoch,
        1,
        required_base_offset=one.replica.log.end_offset,
        validate_only=False,
    )
    one.disk.kill()
    return end_offset
