"""Changes from one state to another: applied to the first, they give the second.

Equal means: in everything that a writer can choose.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.support.cluster_changes import replayed
from tests.support.random_changes import Job
from tests.support.sweep_size import nightly_except

from raftlog_state.controller import (
    ChangeRequest,
    CreateTopic,
    SetConfig,
    SetScram,
    SetToken,
    plan_changes,
)
from raftlog_state.controller.controller_state import ControllerState
from raftlog_state.controller.pending_state import PendingState
from raftlog_state.controller.tokens import DelegationToken, DelegationTokenControl
from raftlog_state.desired_state import PlannedChanges, plan, target_replicas
from raftlog_state.image import (
    AclRow,
    BrokerRow,
    ConfigRow,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    QuotaRow,
    Row,
    ScramRow,
    TokenRow,
    TopicRow,
    acl_content,
)
from raftlog_state.records import encode


class RegisteredJob(Job):
    """Job that unregisters no brokers: a partition of such a broker cannot be created."""

    def _writers(self) -> list[Callable[[], ChangeRequest | None]]:
        return [one for one in super()._writers() if one.__name__ != "_unregister"]


def chosen(image: MetadataImage) -> dict[str, object]:
    """Return what a writer can choose of a state."""
    partitions = image.rows_of(PartitionRow)
    return {
        "features": {row.name: row.level for row in image.rows_of(FeatureRow)},
        "brokers": {
            row.broker_id: (row.rack, row.fenced, row.endpoints, row.features)
            for row in image.rows_of(BrokerRow)
        },
        "topics": {row.name for row in image.rows_of(TopicRow)},
        "partitions": {
            (row.topic_name, row.partition_id): target_replicas(row) for row in partitions
        },
        "configs": {row.key: row.value for row in image.rows_of(ConfigRow)},
        "quotas": {row.key: row.value for row in image.rows_of(QuotaRow)},
        "acls": {acl_content(row) for row in image.rows_of(AclRow)},
        "tokens": image.rows_of(TokenRow),
    }


def applied(image: MetadataImage, changes: tuple[ChangeRequest, ...], seed: int) -> MetadataImage:
    return replayed(image, plan_changes(image, changes, rng=random.Random(seed)).values())


@pytest.mark.parametrize("level", [7, 14, 17, 30])
@pytest.mark.parametrize("seed", nightly_except(range(2), range(6)))
def test_random_states_are_reached_from_each_other(seed: int, level: int) -> None:
    jobs = [RegisteredJob(2 * seed + number, level) for number in range(2)]
    for job in jobs:
        job.grow(60)
    for actual, desired in ((jobs[0], jobs[1]), (jobs[1], jobs[0])):
        planned = plan(actual.image, desired.image, complete_reassignments=True)
        assert planned.changes
        found = applied(actual.image, planned.changes, seed)
        assert chosen(found) == chosen(desired.image)
        if not left_in_progress(planned):
            assert reassigned(found) <= reassigned(desired.image) | reassigned(actual.image)
            again = plan(found, desired.image, complete_reassignments=True)
            assert again.changes == (), "it is a fixed point"


def reassigned(image: MetadataImage) -> set[tuple[str, int]]:
    rows = image.rows_of(PartitionRow)
    return {(row.topic_name, row.partition_id) for row in rows if row.adding_replicas}


def left_in_progress(planned: PlannedChanges) -> list[str]:
    """Return what was left out because there is no leader; nothing else may be, but credentials."""
    found = [one for one in planned.left_out if not one.startswith("SCRAM")]
    assert all(one.startswith(("elect_leader", "set_isr")) for one in found), found
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_state_is_built_from_an_empty_one(seed: int) -> None:
    job = RegisteredJob(seed, 30)
    job.grow(60)
    planned = plan(MetadataImage.empty(), job.image)
    found = applied(MetadataImage.empty(), planned.changes, seed)
    assert chosen(found) == chosen(job.image)


def test_equal_states_need_no_changes() -> None:
    job = Job(1, 30)
    job.grow(60)
    assert plan(job.image, job.image).changes == ()
    topics, partitions = job.image.rows_of(TopicRow), job.image.rows_of(PartitionRow)
    rows: list[Row] = [replace(row, topic_id=row.topic_id[::-1]) for row in topics]
    rows += [replace(row, topic_id=row.topic_id[::-1]) for row in partitions]
    for kind in (FeatureRow, BrokerRow, ConfigRow, QuotaRow, AclRow, ScramRow, TokenRow):
        rows += job.image.rows_of(kind)
    other_ids = MetadataImage.from_rows(rows, offset=1, leader_epoch=1)
    assert plan(job.image, other_ids).changes == ()


def test_without_completion_the_brokers_copy_the_partitions() -> None:
    job = RegisteredJob(3, 30)
    job.make(CreateTopic(topic="moved", assignment=((1, 2),)))
    desired = RegisteredJob(3, 30)
    desired.make(CreateTopic(topic="moved", assignment=((3, 2),)))
    found = applied(job.image, plan(job.image, desired.image).changes, 0)
    (row,) = found.rows_of(PartitionRow)
    assert (row.replicas, row.adding_replicas, row.removing_replicas) == ((3, 2, 1), (3,), (1,))
    assert plan(found, desired.image).changes == (), "it is in progress"


def test_a_topic_with_fewer_partitions_is_created_again_with_its_configs() -> None:
    actual, desired = RegisteredJob(4, 30), RegisteredJob(4, 30)
    config = SetConfig(resource_type=2, resource_name="t", name="retention.ms", value="1")
    actual.make(CreateTopic(topic="t", assignment=((1,), (2,))), config)
    desired.make(CreateTopic(topic="t", assignment=((1,),)), config)
    found = applied(actual.image, plan(actual.image, desired.image).changes, 0)
    assert chosen(found) == chosen(desired.image)


def test_credentials_that_differ_are_left_out() -> None:
    actual, desired = Job(1, 30), Job(1, 30)
    scram = SetScram(user="eve", mechanism="SCRAM-SHA-256", password="secret")
    desired.make(scram)
    planned = plan(actual.image, desired.image)
    assert planned.changes == ()
    assert planned.left_out == ("SCRAM credential SCRAM-SHA-256 of user 'eve': set its password",)
    (removed,) = plan(desired.image, actual.image).changes
    assert (removed.KIND, plan(desired.image, actual.image).left_out) == ("remove_scram", ())


def tokens_of_requests(seed: int) -> MetadataImage:
    """Return tokens after requests to controllers whose clocks differ."""
    rng, image = random.Random(seed), Job(1, 30).image
    control = DelegationTokenControl("secret", max_lifetime_ms=900, renew_lifetime_ms=300)
    state = PendingState(
        ControllerState.from_image(image),
        first_offset=image.offset + 1,
        leader_epoch=image.leader_epoch,
        rng=rng,
    )
    found: list[DelegationToken] = []
    for _ in range(40):
        now_ms = rng.randrange(1_000)
        if rng.randrange(3) or not found:
            owner, period_ms = rng.choice(["User:ana", "Group:dev"]), rng.choice([-1, 5, 2_000])
            token = control.create(
                state,
                requester="User:eve",
                owner=owner,
                renewers=rng.sample(["User:", "User:ben", "User:eve"], 2),
                max_lifetime_ms=period_ms,
                now_ms=now_ms,
            )
            found.append(token)
            continue
        token = rng.choice(found)
        change = partial(
            rng.choice(
                [
                    partial(control.renew, renew_period_ms=rng.choice([-1, 50])),
                    partial(control.expire, expiry_period_ms=rng.choice([-1, 0, 50])),
                ]
            ),
            hmac=token.hmac,
            principal=token.row.owner,
            now_ms=now_ms,
        )
        state.attempt(partial(change, state))
    return replayed(image, [encode(record) for record in state.records])


@pytest.mark.parametrize("seed", range(4))
def test_all_tokens_of_requests_can_be_planned(seed: int) -> None:
    states = [tokens_of_requests(2 * seed), tokens_of_requests(2 * seed + 1)]
    rows = [row for state in states for row in state.rows_of(TokenRow)]
    assert any(row.expiration_timestamp_ms < row.issue_timestamp_ms for row in rows)
    for actual, desired in (states, reversed(states)):
        planned = plan(actual, desired)
        assert chosen(applied(actual, planned.changes, seed)) == chosen(desired)
        assert planned.left_out == ()


def test_delegation_tokens_are_created_renewed_and_deleted() -> None:
    actual, desired = Job(1, 30), Job(1, 30)
    times: dict[str, Any] = {
        "issue_timestamp_ms": 1,
        "expiration_timestamp_ms": 2,
        "max_timestamp_ms": 9,
    }
    renewed, new, old = (
        SetToken(owner="User:ana", token_id=name.ljust(22, "A"), renewers=("User:eve",), **times)
        for name in ("renewed", "new", "old")
    )
    actual.make(renewed, old)
    desired.make(replace(renewed, expiration_timestamp_ms=7), new)
    planned = plan(actual.image, desired.image)
    assert sorted(one.KIND for one in planned.changes) == ["remove_token", "set_token", "set_token"]
    assert planned.left_out == ()
    assert chosen(applied(actual.image, planned.changes, 0)) == chosen(desired.image)
