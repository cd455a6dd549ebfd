"""Application ids belong to principals: others cannot commit to, take over, read or evict them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from raftlog.node.access import AccessTable, Principal, Rights, principal_of
from raftlog.records.batch import Header, NewRecord
from raftlog.wire import ApiKey, Listener, latest_schemas
from raftlog.wire.log_identity import COMMIT_GROUP_PREFIX
from raftlog.wire.produce_codec import parse_appended_message
from tests.node.config.test_access import certificate, listener_for

from .batches import batch, commit_header, produce
from .cluster import TIME_MS, Cluster, Node, run
from .requests import offset_fetch

TABLE = AccessTable(
    describe=("monitoring",),
    read=("reports-*",),
    append=("jobs-*",),
    admin=("operator",),
    nodes={1: "node-1.example"},
    commits={"jobs-a": ("nightly-*",), "jobs-*": ("{name}", "{name}.*")},
    commit_names_max=3,
)
TAKE_OVER = Header("raftlog.take-over", b"run-7")


def principal(name: str, table: AccessTable = TABLE) -> Principal:
    return principal_of(certificate(name), listener_for(Listener.CLIENTS), table)


async def commit(
    node: Node, caller: Principal, app: str, query: str, version: int, *more: Header
) -> Any:
    """Produce one named commit; return the answer for its partition."""
    header = commit_header(app, query, version)
    data = batch(NewRecord(None, b"by " + caller.name.encode(), TIME_MS, (header, *more)))
    answer = await node.ask_client(
        ApiKey.PRODUCE, 13, produce(data), latest_schemas.ProduceResponse, caller
    )
    return answer.responses[0].partition_responses[0]


async def asked(node: Node, caller: Principal, app: str) -> Any:
    answer = await node.ask_client(
        ApiKey.OFFSET_FETCH,
        9,
        offset_fetch(9, COMMIT_GROUP_PREFIX + app),
        latest_schemas.OffsetFetchResponse,
        caller,
    )
    return answer.groups[0]


def test_a_malformed_append_under_anothers_name_does_not_replace_its_commit() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, principal("jobs-a"), "nightly-job", "run-7", 41)
        junk = await commit(leader, principal("jobs-b"), "nightly-job", "run-7", 42)
        assert junk.error_code is ErrorCode.transactional_id_authorization_failed
        assert "'jobs-b' may not commit under application id 'nightly-job'" in junk.error_message
        real = await commit(leader, principal("jobs-a"), "nightly-job", "run-7", 42)
        appended = parse_appended_message(real.error_message)
        assert appended is not None
        assert not appended.was_duplicate
        assert real.base_offset == leader.replica.log.end_offset - 1

    run(work())


@pytest.mark.parametrize("name", ["jobs-b", "jobs-aa", "jobs-"])
def test_only_an_owner_takes_over_a_name(name: str) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, principal("jobs-a"), "nightly-job", "run-7", 41)
        refused = await commit(leader, principal(name), "nightly-job", "mine", 0, TAKE_OVER)
        assert refused.error_code is ErrorCode.transactional_id_authorization_failed
        taken = await commit(leader, principal("jobs-a"), "nightly-job", "run-8", 0, TAKE_OVER)
        assert taken.error_code is ErrorCode.none

    run(work())


def test_an_admin_that_may_append_takes_over_any_name() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, principal("jobs-a"), "nightly-job", "run-7", 41)
        both = AccessTable(append=("operator",), admin=("operator",), commits={})
        admin = principal("operator", both)
        taken = await commit(leader, admin, "nightly-job", "mine", 0, TAKE_OVER)
        assert taken.error_code is ErrorCode.none
        refused = await commit(leader, principal("operator"), "nightly-job", "mine", 1)
        assert refused.error_code is ErrorCode.topic_authorization_failed  # no APPEND

    run(work())


@pytest.mark.parametrize(
    ("name", "is_returned"),
    [
        ("jobs-a", True),
        ("reports-1", True),
        ("operator", True),
        ("jobs-b", False),
        ("monitoring", False),
    ],
)
def test_only_owners_and_readers_can_query_a_commit(name: str, is_returned: bool) -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, principal("jobs-a"), "nightly-job", "run-7", 41)
        group = await asked(leader, principal(name), "nightly-job")
        if is_returned:
            (partition,) = group.topics[0].partitions
            assert (partition.committed_offset, partition.metadata) == (41, "run-7")
        else:
            assert group.error_code is ErrorCode.group_authorization_failed
            assert group.topics == ()

    run(work())


def test_each_of_several_groups_has_its_own_answer() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, principal("jobs-b"), "jobs-b.etl", "q", 1)
        request = offset_fetch(
            9, COMMIT_GROUP_PREFIX + "nightly-job", COMMIT_GROUP_PREFIX + "jobs-b.etl"
        )
        answer = await leader.ask_client(
            ApiKey.OFFSET_FETCH, 9, request, latest_schemas.OffsetFetchResponse, principal("jobs-b")
        )
        refused, appended = answer.groups
        assert refused.error_code is ErrorCode.group_authorization_failed
        assert appended.topics[0].partitions[0].committed_offset == 1

    run(work())


def test_names_per_principal_are_bounded_and_those_of_others_are_kept() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        await commit(leader, principal("jobs-a"), "nightly-job", "run-7", 41)
        for at in range(3):
            junk = await commit(leader, principal("jobs-b"), f"jobs-b.{at}", "q", 1)
            assert junk.error_code is ErrorCode.none
        refused = await commit(leader, principal("jobs-b"), "jobs-b.3", "q", 1)
        assert refused.error_code is ErrorCode.policy_violation
        assert "has 3 application ids of 'jobs-b', the maximum" in refused.error_message
        again = await commit(
            leader, principal("jobs-b"), "jobs-b.0", "q", 2
        )  # a name that is stored
        assert again.error_code is ErrorCode.none
        other = await commit(leader, principal("jobs-a"), "nightly-2", "q", 1)
        assert other.error_code is ErrorCode.none
        assert [one.name.application_id for one in leader.replica.log.producer_state.commits] == [
            "nightly-job",
            "jobs-b.1",
            "jobs-b.2",
            "jobs-b.0",
            "nightly-2",
        ]

    run(work())


def test_an_access_table_may_grant_application_ids_to_all_that_append() -> None:
    async def work() -> None:
        leader = Cluster().elect()
        table = AccessTable(append=("jobs-*",), nodes=TABLE.nodes, commits={"*": ("*",)})
        for at, name in enumerate(("jobs-a", "jobs-b")):
            answer = await commit(leader, principal(name, table), "nightly-job", "run-7", at)
            assert answer.error_code is ErrorCode.none
            group = await asked(leader, principal(name, table), "nightly-job")
            assert group.topics[0].partitions[0].committed_offset == at

    run(work())


@pytest.mark.parametrize(
    ("name", "application_id", "is_owner"),
    [
        ("jobs-b", "jobs-b", True),
        ("jobs-b", "jobs-b.x", True),
        ("jobs-b", "jobs-b.x\ny", True),
        ("jobs-b", "jobs-bx", False),
        ("jobs-b", "jobs-c.x", False),
        ("jobs-b", "nightly-x", False),
        ("jobs-a", "nightly-x", True),
        ("jobs-a", "jobs-a", True),
        ("jobs-a", "Nightly-x", False),
        ("jobs-a", "my-nightly-x", False),
        ("jobs-{name}", "jobs-{name}.1", True),
        ("jobs-{name}", "jobs-b.1", False),
        ("jobs-*", "jobs-b.1", False),
        ("jobs-.*", "jobs-b.1", False),
    ],
)
def test_patterns_match_names(name: str, application_id: str, is_owner: bool) -> None:
    assert principal(name).may_commit(application_id) is is_owner


@pytest.mark.parametrize(
    ("name", "application_id", "is_owner"),
    [
        ("jobs-a", "jobs-a", True),
        ("jobs-a", "jobs-a:nightly", True),
        ("jobs-a", "jobs-ab", False),
        ("jobs-a", "jobs-b", False),
        ("jobs-a", "nightly-job", False),
        ("operator", "operator", False),
        ("reports-1", "reports-1", False),
    ],
)
def test_without_an_access_table_principals_own_the_application_ids_with_their_names(
    name: str, application_id: str, is_owner: bool
) -> None:
    table = replace(TABLE, commits=None)
    assert principal(name, table).may_commit(application_id) is is_owner


def test_the_only_principal_that_may_append_owns_all_application_ids_without_an_access_table() -> (
    None
):
    table = AccessTable(append=("jobs-a",))
    assert principal("jobs-a", table).may_commit("nightly-job")
    pattern = AccessTable(append=("jobs-*",))
    assert not principal("jobs-a", pattern).may_commit("nightly-job")


def test_a_principal_that_may_not_append_owns_nothing() -> None:
    table = AccessTable(read=("reports",), commits={"*": ("*",)}, nodes=TABLE.nodes)
    assert not principal("reports", table).may_commit("x")
    assert principal("reports", table).rights == Rights.READ | Rights.DESCRIBE
    anonymous = principal_of(None, listener_for(Listener.CLIENTS), table)
    assert not anonymous.may_read_commit("x")


def test_without_tls_nothing_is_refused() -> None:
    caller = principal_of(None, listener_for(Listener.CLIENTS, None), AccessTable())
    assert caller.commits is None
    assert caller.may_commit("any")
