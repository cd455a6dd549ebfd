"""Consumers that assign partitions keep their place: OffsetCommit, OffsetFetch, groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

import pytest
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListGroupsResponse
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse

from raftlog.limits import GROUP_ID_BYTES_MAX, GROUP_OFFSET_REWRITE_MS, OFFSET_METADATA_BYTES_MAX
from raftlog.node.access import Principal, Rights
from raftlog.node.apis.group_offsets import CONFIRM_MS
from raftlog.records.batch import NewRecord
from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire import ApiKey, Listener, latest_schemas
from raftlog.wire.log_identity import COMMIT_GROUP_PREFIX

from .batches import batch, commit_header, produce
from .cluster import TIME_MS, TOPIC, Acls, Cluster, Node, answer_of, caller, run, settle
from .requests import OTHER_ID, offset_commit, offset_fetch

NONE: Final = ErrorCode.none


async def commit(node: Node, offset: int, version: int = 10, **more: Any) -> ErrorCode:
    principal = more.pop("principal", None)
    request = offset_commit(offset, **more)
    answer = await node.ask_client(
        ApiKey.OFFSET_COMMIT, version, request, latest_schemas.OffsetCommitResponse, principal
    )
    ((one,),) = (topic.partitions for topic in answer.topics)
    return ErrorCode(one.error_code)


async def committed(node: Node, group: str = "readers", **more: Any) -> Any:
    """Return the partition of a group in a response to OffsetFetch."""
    answer = await node.ask_client(
        ApiKey.OFFSET_FETCH,
        9,
        offset_fetch(9, group),
        latest_schemas.OffsetFetchResponse,
        more.get("principal"),
    )
    assert answer.groups[0].error_code is NONE
    ((one,),) = (topic.partitions for topic in answer.groups[0].topics)
    return one


async def append(node: Node, count: int = 1) -> int:
    """Append records; return the end of the log."""
    for _ in range(count):
        answer = await node.ask_client(
            ApiKey.PRODUCE, 9, produce(batch(b"x")), latest_schemas.ProduceResponse
        )
        assert answer.responses[0].partition_responses[0].error_code is NONE
    return node.replica.log.end_offset


@pytest.mark.parametrize("version", range(2, 11))
def test_an_offset_is_fetched_as_it_was_committed(version: int) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await append(leader, 3)
        epoch = leader.replica.core.epoch
        found = await commit(leader, 2, version, metadata="a note", leader_epoch=epoch)
        assert found is NONE
        one = await committed(leader)
        assert (one.committed_offset, one.metadata) == (2, "a note")
        assert one.committed_leader_epoch == (epoch if version >= 6 else -1)
        assert (await committed(leader, "another")).committed_offset == -1
        assert await commit(leader, 1, version, metadata=None) is NONE
        one = await committed(leader)
        assert (one.committed_offset, one.metadata) == (1, "")

    run(work())


def test_a_committed_offset_survives_a_failover() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        await append(leader, 3)
        assert await commit(leader, 2) is NONE
        new = cluster.change_leader()
        assert new is not leader
        assert (await committed(new)).committed_offset == 2

    run(work())


def test_a_commit_succeeds_when_a_majority_has_it() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        await append(leader, 3)
        for node in cluster.nodes:
            node.is_sync_held = node is not leader
        first = leader.start(ApiKey.OFFSET_COMMIT, 9, offset_commit(2), caller())
        again = leader.start(ApiKey.OFFSET_COMMIT, 9, offset_commit(2), caller())
        await settle()
        assert not first.done()
        assert not again.done(), "it changes nothing, but the first one is not committed"
        end = leader.replica.log.end_offset
        cluster.follower.release_syncs()
        await settle()
        for task in (first, again):
            answer = answer_of(task, latest_schemas.OffsetCommitResponse, 9)
            assert answer.topics[0].partitions[0].error_code is NONE
        assert leader.replica.log.end_offset == end

    run(work())


def test_a_commit_that_is_not_committed_in_time_is_to_be_repeated() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        leader.is_sync_held = cluster.follower.is_sync_held = True
        task = leader.start(ApiKey.OFFSET_COMMIT, 9, offset_commit(0), caller())
        await settle()
        cluster.pass_time(CONFIRM_MS)
        await settle()
        answer = answer_of(task, latest_schemas.OffsetCommitResponse, 9)
        error = ErrorCode(answer.topics[0].partitions[0].error_code)
        assert error is ErrorCode.coordinator_not_available
        assert error.retriable

    run(work())


def test_a_reader_of_all_records_has_no_lag_and_does_not_commit_its_own_commits() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        read_all = await append(leader, 3)
        assert await commit(leader, read_all) is NONE
        end = leader.replica.log.end_offset
        assert end == read_all + 1
        for position in (read_all, end):
            assert (await committed(leader)).committed_offset == end
            assert await commit(leader, position) is NONE
            assert leader.replica.log.end_offset == end
        leader = cluster.change_leader()
        one, end = await committed(leader), leader.replica.log.end_offset
        assert one.committed_offset == end
        assert one.committed_leader_epoch == leader.replica.core.epoch
        assert await commit(leader, end) is NONE
        assert leader.replica.log.end_offset == end
        await append(leader)
        assert (await committed(leader)).committed_offset == read_all, "the record is not read"

    run(work())


def test_an_unchanged_offset_is_written_once_a_day() -> None:
    async def work() -> None:
        cluster = Cluster()
        leader = cluster.elect()
        await commit(leader, 1)
        end = leader.replica.log.end_offset
        cluster.now_ms += GROUP_OFFSET_REWRITE_MS - 1
        await commit(leader, 1)
        assert leader.replica.log.end_offset == end
        cluster.now_ms += 1
        await commit(leader, 1)
        assert leader.replica.log.end_offset == end + 1

    run(work())


@pytest.mark.parametrize(
    ("version", "is_known", "error"),
    [
        (8, False, ErrorCode.illegal_generation),
        (9, False, ErrorCode.group_id_not_found),
        (8, True, ErrorCode.unknown_member_id),
        (9, True, ErrorCode.unknown_member_id),
    ],
)
def test_a_member_of_a_group_is_fenced(version: int, is_known: bool, error: ErrorCode) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        if is_known:
            await commit(leader, 0)
        end = leader.replica.log.end_offset
        assert await commit(leader, 1, version, member_epoch=0) is error
        assert leader.replica.log.end_offset == end

    run(work())


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"group": COMMIT_GROUP_PREFIX + "app"}, ErrorCode.invalid_group_id),
        ({"group": "g" * (GROUP_ID_BYTES_MAX + 1)}, ErrorCode.invalid_group_id),
        ({"topic": "strange"}, ErrorCode.unknown_topic_or_partition),
        ({"partition": 1}, ErrorCode.unknown_topic_or_partition),
        ({"topic_id": OTHER_ID, "version": 10}, ErrorCode.unknown_topic_id),
        ({"partition": 1, "version": 10}, ErrorCode.unknown_topic_or_partition),
        (
            {"metadata": "m" * (OFFSET_METADATA_BYTES_MAX + 1)},
            ErrorCode.offset_metadata_too_large,
        ),
        ({"offset": -1}, ErrorCode.invalid_request),
    ],
)
def test_an_invalid_commit_is_refused_and_leaves_no_trace(
    more: dict[str, Any], error: ErrorCode
) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        end = leader.replica.log.end_offset
        assert await commit(leader, **({"offset": 0, "version": 9} | more)) is error
        assert leader.replica.log.end_offset == end

    run(work())


def test_the_longest_metadata_and_group_are_accepted() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        group, metadata = "g" * GROUP_ID_BYTES_MAX, "m" * OFFSET_METADATA_BYTES_MAX
        assert await commit(leader, 0, group=group, metadata=metadata) is NONE
        assert (await committed(leader, group)).metadata == metadata

    run(work())


def test_named_commits_and_offsets_of_a_group_of_the_same_name_are_apart() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        header = commit_header("app", "query", 41)
        data = batch(NewRecord(None, b"x", TIME_MS, (header,)))
        await leader.ask_client(ApiKey.PRODUCE, 9, produce(data), latest_schemas.ProduceResponse)
        assert (await committed(leader, "app")).committed_offset == -1
        assert await commit(leader, 0, group="app", metadata="query") is NONE
        assert (await committed(leader, "app")).committed_offset == 0
        assert (await committed(leader, COMMIT_GROUP_PREFIX + "app")).committed_offset == 41

    run(work())


def test_only_the_leader_commits() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        cluster.elect()
        assert await commit(cluster.follower, 0) is ErrorCode.not_coordinator

    run(work())


GROUP: Final = Resource(ResourceType.GROUP, "readers")
TOPIC_RESOURCE: Final = Resource(ResourceType.TOPIC, TOPIC)


@pytest.mark.parametrize(
    ("allowed", "error"),
    [
        ([(Operation.READ, GROUP)], ErrorCode.topic_authorization_failed),
        ([(Operation.READ, TOPIC_RESOURCE)], ErrorCode.group_authorization_failed),
        ([(Operation.READ, GROUP), (Operation.READ, TOPIC_RESOURCE)], NONE),
    ],
)
def test_acls_of_group_and_topic_are_required_to_commit(allowed: Any, error: ErrorCode) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        client = replace(caller(Rights.NONE, Listener.CLIENTS), authorizer=Acls(*allowed))
        assert await commit(leader, 0, 9, principal=client) is error

    run(work())


def test_acls_of_group_and_topic_are_required_to_fetch() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, 0, metadata="a secret")
        stranger = caller(Rights.NONE, Listener.CLIENTS)
        both = [(Operation.DESCRIBE, GROUP), (Operation.DESCRIBE, TOPIC_RESOURCE)]
        one = await committed(leader, principal=replace(stranger, authorizer=Acls(*both)))
        assert (one.error_code, one.metadata) == (NONE, "a secret")
        one = await committed(leader, principal=replace(stranger, authorizer=Acls(both[0])))
        assert ErrorCode(one.error_code) is ErrorCode.topic_authorization_failed
        assert (one.committed_offset, one.metadata) == (-1, "")
        for version in (1, 9):
            answer = await leader.ask_client(
                ApiKey.OFFSET_FETCH,
                version,
                offset_fetch(version, "readers"),
                latest_schemas.OffsetFetchResponse,
                replace(stranger, authorizer=Acls(both[1])),
            )
            if version == 9:
                (group,) = answer.groups
                assert ErrorCode(group.error_code) is ErrorCode.group_authorization_failed
                assert group.topics == ()
                continue
            (one,) = answer.topics[0].partitions
            assert ErrorCode(one.error_code) is ErrorCode.group_authorization_failed
            assert (one.committed_offset, one.metadata) == (-1, "")

    run(work())


@pytest.mark.parametrize(
    ("rights", "error"),
    [
        (Rights.NONE, ErrorCode.group_authorization_failed),
        (Rights.DESCRIBE, ErrorCode.group_authorization_failed),
        (Rights.APPEND | Rights.ADMIN, ErrorCode.group_authorization_failed),
        (Rights.READ, NONE),
    ],
)
def test_a_commit_requires_read(rights: Rights, error: ErrorCode) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        assert await commit(leader, 0, principal=caller(rights)) is error

    run(work())


def test_groups_are_listed_and_described_as_empty_ones() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        await commit(leader, 0, group="a")
        await commit(leader, 0, group="b")
        for version in range(6):
            request = ListGroupsRequest()
            listed = await leader.ask_client(
                ApiKey.LIST_GROUPS, version, request, ListGroupsResponse
            )
            assert [one.group_id for one in listed.groups] == ["a", "b"]
            if version >= 4:
                assert {one.group_state for one in listed.groups} == {"Empty"}
        none = await leader.ask_client(
            ApiKey.LIST_GROUPS, 5, ListGroupsRequest(states_filter=("Stable",)), ListGroupsResponse
        )
        assert none.groups == ()
        elsewhere = await cluster.follower.ask_client(
            ApiKey.LIST_GROUPS, 5, ListGroupsRequest(), ListGroupsResponse
        )
        assert (elsewhere.error_code, elsewhere.groups) == (NONE, ())
        for version in range(7):
            names: Any = ("a", "none")
            described = await leader.ask_client(
                ApiKey.DESCRIBE_GROUPS,
                version,
                DescribeGroupsRequest(groups=names, include_authorized_operations=False),
                DescribeGroupsResponse,
            )
            states = [(one.group_state, ErrorCode(one.error_code)) for one in described.groups]
            missing = ErrorCode.group_id_not_found if version >= 6 else NONE
            assert states == [("Empty", NONE), ("Dead", missing)]
            assert [one.members for one in described.groups] == [(), ()]

    run(work())


async def deleted(
    leader: Node, *groups: str, principal: Principal | None = None
) -> list[ErrorCode]:
    names: Any = groups
    answer = await leader.ask_client(
        ApiKey.DELETE_GROUPS,
        2,
        DeleteGroupsRequest(groups_names=names),
        DeleteGroupsResponse,
        principal,
    )
    return [ErrorCode(one.error_code) for one in answer.results]


async def offsets_deleted(leader: Node, group: str, topic: str, **more: Any) -> list[ErrorCode]:
    """Return the errors of the group and of the partition, if that has one."""
    partition: Any = OffsetDeleteRequestPartition(partition_index=cast("Any", 0))
    request = OffsetDeleteRequest(
        group_id=cast("Any", group),
        topics=(OffsetDeleteRequestTopic(name=cast("Any", topic), partitions=(partition,)),),
    )
    answer = await leader.ask_client(ApiKey.OFFSET_DELETE, 0, request, OffsetDeleteResponse, **more)
    found = [one.error_code for topic in answer.topics for one in topic.partitions]
    return [ErrorCode(one) for one in (answer.error_code, *found)]


def test_deleted_groups_have_no_offset_on_any_node_and_after_a_restart() -> None:
    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        for group in ("a", "b", "c"):
            await commit(leader, 0, group=group)
        missing, invalid = ErrorCode.group_id_not_found, ErrorCode.invalid_group_id
        names = ("a", "none", "raftlog.commit:app")
        assert await deleted(leader, *names) == [NONE, missing, invalid]
        assert await deleted(leader, "a") == [missing]
        assert await offsets_deleted(leader, "none", TOPIC) == [missing]
        unknown = ErrorCode.unknown_topic_or_partition
        assert await offsets_deleted(leader, "b", "another") == [NONE, unknown]
        assert await offsets_deleted(leader, "b", TOPIC) == [NONE, NONE]
        assert await deleted(cluster.follower, "c") == [ErrorCode.not_coordinator]
        cluster.pass_time(1_000)
        for node in cluster.nodes:
            state = node.replica.log.producer_state
            assert [one.commit.group for one in state.group_offsets.values()] == ["c"]
            again = state.decode_snapshot(state.encode_snapshot(), "", state.end_offset)
            assert again.group_offsets.values() == state.group_offsets.values()
        await commit(leader, 0, group="a")
        assert await deleted(leader, "a", "c") == [NONE, NONE]

    run(work())


@pytest.mark.parametrize("rights", [Rights.READ | Rights.APPEND, Rights.ADMIN, ~Rights.NONE])
def test_a_deletion_requires_the_rights_of_an_administrator(rights: Rights) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, 0, group="a")
        denied, principal = ErrorCode.group_authorization_failed, caller(rights)
        if Rights.ADMIN not in rights:
            assert await offsets_deleted(leader, "a", TOPIC, principal=principal) == [denied]
            assert await deleted(leader, "a", principal=principal) == [denied]
        elif Rights.READ not in rights:
            found = await offsets_deleted(leader, "a", TOPIC, principal=principal)
            assert found == [NONE, ErrorCode.topic_authorization_failed]
            assert await deleted(leader, "a", principal=principal) == [NONE]
        else:
            assert await offsets_deleted(leader, "a", TOPIC, principal=principal) == [NONE, NONE]

    run(work())


def test_a_principal_creates_a_limited_number_of_groups() -> None:
    """Also after a failover, and after commits of another principal; deletions make room."""

    async def work() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        await append(leader, 3)
        one, other = (replace(caller(), name=name, groups_max=2) for name in ("one", "other"))
        for group in ("a", "b"):
            assert await commit(leader, 1, group=group, principal=one) is NONE
        assert await commit(leader, 2, group="a", principal=other) is NONE
        leader = cluster.change_leader()
        refused = await commit(leader, 1, group="c", principal=one)
        assert refused is ErrorCode.policy_violation
        assert await commit(leader, 2, group="b", principal=one) is NONE, "it has this group"
        assert await commit(leader, 1, group="c", principal=other) is NONE
        assert await commit(leader, 1, group="d", principal=replace(one, groups_max=None)) is NONE
        assert await deleted(leader, "a", "b", "d") == [NONE] * 3
        assert await commit(leader, 1, group="e", principal=one) is NONE

    run(work())
