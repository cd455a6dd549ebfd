"""Large requests are answered in steps of bounded work, between which the event loop is free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from kio.schema.errors import ErrorCode
from tests.state.controller_apis.test_rights import Asked, principal
from tests.support.controller_context import ControllerContext
from tests.support.controller_nodes import controller_nodes
from tests.support.controllers import hosted_on
from tests.support.request_builder import newest, request
from tests.support.shared_log import SharedLog

from raftlog.node.access import Rights
from raftlog.wire import ApiKey
from raftlog_state.controller import Operation, OperationInSteps, PendingState
from raftlog_state.controller.acls import (
    COMPARISONS_PER_STEP,
    FILTERS_PER_STEP,
    AclBinding,
    AclFilter,
    AclSearch,
    create_acls,
    delete_acls,
    remove_found_acls,
)
from raftlog_state.controller.pending_state import in_one_step
from raftlog_state.controller_apis import HANDLERS
from raftlog_state.controller_apis.acls import handle_delete_acls
from raftlog_state.controller_apis.configs import DESCRIBED_MAX, DESCRIBED_PER_STEP
from raftlog_state.controller_apis.hosted_controller import ROWS_PER_STEP
from raftlog_state.image import AclRow, Entity
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    EntityData,
    PartitionRecord,
    TopicRecord,
    UserScramCredentialRecord,
)

T = TypeVar("T")
TOPIC: Final = 2
ALTER, ALLOW = 7, 3
EVERYONE: Final = principal(~Rights.NONE)


@dataclass
class Hosted:
    """Active controller on a log that commits everything."""

    shared: SharedLog = field(default_factory=SharedLog)
    token_secret: str | None = None

    def __post_init__(self) -> None:
        self.controller = hosted_on(
            self.shared.node(1),
            session_timeout_ms=10**9,  # no writes of the maintenance during a test
            token_secret=self.token_secret,
        )
        self.shared.elect(1)
        self.shared.deliver()

    async def write(self, operation: Operation[object]) -> None:
        """Write and commit the records of an operation."""
        await self.write_in_steps(in_one_step(operation))

    async def write_in_steps(self, operation: OperationInSteps[object]) -> None:
        """Write and commit the records of an operation."""
        write = self.controller.write_in_steps("test", operation, is_atomic=False)
        await in_steps(self, write, self.read_count)

    def read_count(self) -> int:
        return self.controller.controller.metrics(0).operations_started_count

    async def ask(self, key: ApiKey, **values: Any) -> Any:
        asked = Asked(request(key, **values), newest(key), EVERYONE)
        return await HANDLERS[key].respond(self.controller, asked)


async def in_steps(
    hosted: Hosted, answer: Awaitable[T], work_count: Callable[[], int]
) -> tuple[T, int]:
    """Return a response, and the most work between two iterations of the event loop."""
    task = asyncio.ensure_future(answer)
    before, most = work_count(), 0
    while not task.done():
        await asyncio.sleep(0)
        hosted.shared.deliver()
        now = work_count()
        before, most = now, max(most, now - before)
    return task.result(), most


def run(check: Callable[[Hosted], Awaitable[None]], token_secret: str | None = None) -> None:
    async def in_loop() -> None:
        hosted = Hosted(token_secret=token_secret)
        await check(hosted)
        hosted.controller.begin_shutdown()

    asyncio.run(in_loop())


# --- DescribeConfigs ------------------------------------------------------------------------------


def described(*names: str) -> dict[str, Any]:
    one = {"resource_type": TOPIC, "configuration_keys": None}
    return {"resources": [one | {"resource_name": name} for name in names]}


def test_many_topics_are_described_in_steps() -> None:
    count = 2 * DESCRIBED_PER_STEP + 1
    names = [f"t{number}" for number in range(count)]

    def create(state: PendingState) -> None:
        for name in names:
            state.write(TopicRecord(name=name, topic_id=state.random_uuid()))

    async def check(hosted: Hosted) -> None:
        await hosted.write(create)
        before = hosted.read_count()
        answer = hosted.ask(ApiKey.DESCRIBE_CONFIGS, **described(*names))
        response, most = await in_steps(hosted, answer, hosted.read_count)
        assert [one.resource_name for one in response.results] == names
        assert {one.error_code for one in response.results} == {ErrorCode.none}
        assert hosted.read_count() - before == 3
        assert most == 1

    run(check)


def test_a_request_that_describes_too_much_is_refused() -> None:
    async def check(hosted: Hosted) -> None:
        names = [str(number) for number in range(DESCRIBED_MAX + 1)]
        response = await hosted.ask(ApiKey.DESCRIBE_CONFIGS, **described(*names))
        assert {one.error_code for one in response.results} == {ErrorCode.policy_violation}
        assert len(response.results) == len(names)
        assert "10001 resources, but at most 10000" in response.results[0].error_message

    run(check)


def test_large_responses_are_encoded_outside_the_event_loop(tmp_path: Path) -> None:
    def is_executor_used() -> bool:
        return any(one.name.startswith("raftlog-executor") for one in threading.enumerate())

    async def check() -> None:
        async with controller_nodes(tmp_path) as nodes:
            await nodes.admin(ApiKey.ALTER_CLIENT_QUOTAS)
            assert not is_executor_used()
            response = await nodes.admin(ApiKey.DESCRIBE_CONFIGS, **described("a"))
            assert is_executor_used()
            assert [one.resource_name for one in response.results] == ["a"]

    asyncio.run(check())


# --- DescribeClientQuotas and DescribeUserScramCredentials ----------------------------------------


@pytest.mark.parametrize(
    "key", [ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS]
)
def test_many_rows_are_searched_in_steps(key: ApiKey) -> None:
    count = 2 * ROWS_PER_STEP + 1

    def create(state: PendingState) -> None:
        for number in range(count):
            name = f"u{number}"
            if key is ApiKey.DESCRIBE_CLIENT_QUOTAS:
                parts = (EntityData(entity_type="user", entity_name=name),)
                state.write(ClientQuotaRecord(entity=parts, key="producer_byte_rate", value=7.0))
            else:
                state.write(
                    UserScramCredentialRecord(
                        name=name,
                        mechanism=1,
                        salt=b"s",
                        stored_key=b"k",
                        server_key=b"k",
                        iterations=4096,
                    )
                )

    async def check(hosted: Hosted) -> None:
        await hosted.write(create)
        before = hosted.read_count()
        response, most = await in_steps(hosted, hosted.ask(key), hosted.read_count)
        found = response.entries if key is ApiKey.DESCRIBE_CLIENT_QUOTAS else response.results
        assert len(found) == count
        assert hosted.read_count() - before == 4, "the keys, and three steps"
        assert most <= 2

    run(check)


# --- DescribeDelegationToken and ListPartitionReassignments ---------------------------------------


def test_many_delegation_tokens_are_described_in_steps() -> None:
    count = 2 * ROWS_PER_STEP + 1

    def create(state: PendingState) -> None:
        for number in range(count):
            owner = f"User:{EVERYONE.name}" if number % 2 else "User:another"
            state.write(
                DelegationTokenRecord(
                    owner=owner,
                    requester=owner,
                    renewers=(),
                    issue_timestamp=0,
                    max_timestamp=1,
                    expiration_timestamp=1,
                    token_id=f"t{number}",
                )
            )

    async def check(hosted: Hosted) -> None:
        await hosted.write(create)
        before = hosted.read_count()
        answer = hosted.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, owners=None)
        response, most = await in_steps(hosted, answer, hosted.read_count)
        assert {one.token_id for one in response.tokens} == {
            f"t{number}" for number in range(1, count, 2)
        }
        assert len({one.hmac for one in response.tokens}) == count // 2
        assert hosted.read_count() - before == 4, "the keys, and three steps"
        assert most <= 2

    run(check, token_secret="secret")


@pytest.mark.parametrize("is_named", [True, False])
def test_many_reassignments_are_listed_in_steps(is_named: bool) -> None:
    count = 2 * ROWS_PER_STEP + 1
    ids = {name: f"AAAAAAAAAAAAAAAAAAAA{name}Q" for name in "xy"}

    def create(state: PendingState) -> None:
        for name, topic_id in ids.items():
            state.write(TopicRecord(name=name, topic_id=topic_id))
        for number in range(count):
            for name, topic_id in ids.items():
                state.write(
                    PartitionRecord(
                        partition_id=number,
                        topic_id=topic_id,
                        replicas=(1, 2),
                        adding_replicas=(2,) if name == "x" else (),
                        isr=(1,),
                        leader=1,
                    )
                )

    async def check(hosted: Hosted) -> None:
        await hosted.write(create)
        before = hosted.read_count()
        topics = [{"name": name, "partition_indexes": range(count)} for name in (*ids, "none")]
        answer = hosted.ask(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, topics=topics if is_named else None
        )
        response, most = await in_steps(hosted, answer, hosted.read_count)
        (topic,) = response.topics
        assert topic.name == "x"
        assert sorted(one.partition_index for one in topic.partitions) == list(range(count))
        assert topic.partitions[0].adding_replicas == (2,)
        assert hosted.read_count() - before == (7 if is_named else 4)
        assert most <= 2

    run(check)


# --- DeleteAcls and DescribeAcls ------------------------------------------------------------------


class CountedText(str):
    """Text that counts its comparisons with other texts."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedText.comparisons += isinstance(other, str)
        return super().__eq__(other)

    __hash__ = str.__hash__


def acl_of(number: int) -> AclBinding:
    return AclBinding(
        resource_type=TOPIC,
        resource_name=f"t{number}",
        principal="User:ana",
        operation=ALTER,
        permission=ALLOW,
    )


def filters_of(count: int, principal: str) -> list[dict[str, Any]]:
    return [
        {
            "resource_type_filter": TOPIC,
            "resource_name_filter": None,
            "pattern_type_filter": 1,
            "principal_filter": principal,
            "host_filter": None,
            "operation": 1,
            "permission_type": 1,
        }
    ] * count


def test_the_acls_of_many_filters_are_searched_in_steps() -> None:
    acl_count, filter_count = 300, 250

    async def check(hosted: Hosted) -> None:
        bindings = [acl_of(number) for number in range(acl_count)]
        await hosted.write_in_steps(partial(create_acls, bindings))
        CountedText.comparisons = 0
        filters = filters_of(filter_count, CountedText("User:unknown"))
        body = request(ApiKey.DELETE_ACLS, filters=filters + filters_of(1, "User:ana"))
        asked = Asked(body, newest(ApiKey.DELETE_ACLS), EVERYONE)
        answer = handle_delete_acls(hosted.controller, asked)
        response, most = await in_steps(hosted, answer, lambda: CountedText.comparisons)
        counts = [len(one.matching_acls) for one in response.filter_results]
        assert counts == [0] * filter_count + [acl_count]
        assert CountedText.comparisons == acl_count * filter_count > 3 * COMPARISONS_PER_STEP
        assert COMPARISONS_PER_STEP // 2 < most <= COMPARISONS_PER_STEP
        assert not hosted.controller.controller.state.keys(Entity.ACL)

    run(check)


def test_acls_named_in_full_are_found_without_a_comparison() -> None:
    at = ControllerContext()
    count = 2 * FILTERS_PER_STEP
    at.run(lambda state: create_acls([acl_of(number) for number in range(count)], state))
    filters = [
        AclFilter(
            resource_type=TOPIC,
            resource_name=f"t{number}",
            pattern_type=3,
            principal="User:ana",
            host="*",
            operation=ALTER,
            permission=ALLOW,
        )
        for number in range(count)
    ]
    search = AclSearch(filters)
    steps = 0
    for step in search.steps(at.state.keys(Entity.ACL)):
        step(at.state)
        steps += 1
    assert steps == 2
    names = [[row.resource_name for row in one] for one in search.found if isinstance(one, list)]
    assert names == [[f"t{number}"] for number in range(count)]


def test_acls_that_are_removed_during_a_search_are_not_in_its_response() -> None:
    at = ControllerContext()
    at.run(lambda state: create_acls([acl_of(number) for number in range(3)], state))
    search = AclSearch([AclFilter()])
    for step in search.steps(at.state.keys(Entity.ACL)):
        step(at.state)
    at.run(lambda state: delete_acls([AclFilter(resource_name="t1")], state))
    at.run(lambda state: create_acls([acl_of(9)], state))
    (found,) = at.run(lambda state: remove_found_acls(search.found, state))
    assert isinstance(found, list)
    assert sorted(row.resource_name for row in found) == ["t0", "t2"]
    assert [row.resource_name for row in at.state.rows_of(AclRow)] == ["t9"]


@pytest.mark.parametrize("filter_count", [1, 3])
def test_a_request_that_deletes_too_many_acls_deletes_none(filter_count: int) -> None:
    acl_count = 10_001 if filter_count == 1 else 3_400

    def create(state: PendingState) -> None:
        for number in range(acl_count):
            acl = acl_of(number)
            state.write(
                AccessControlEntryRecord(
                    id=state.random_uuid(),
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
            )

    async def check(hosted: Hosted) -> None:
        await hosted.write(create)
        answer = hosted.ask(ApiKey.DELETE_ACLS, filters=filters_of(filter_count, "User:ana"))
        response, _ = await in_steps(hosted, answer, lambda: 0)
        assert {one.error_code for one in response.filter_results} == {ErrorCode.policy_violation}
        assert len(hosted.controller.controller.state.keys(Entity.ACL)) == acl_count
        asked = filters_of(1, "User:ana")[0]
        described, _ = await in_steps(hosted, hosted.ask(ApiKey.DESCRIBE_ACLS, **asked), lambda: 0)
        assert len(described.resources) == acl_count

    run(check)
