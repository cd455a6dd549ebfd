"""ACLs and credentials of the committed image: nothing is allowed that is revoked, or unknown."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from random import Random

from tests.support.controllers import Controllers, Listener, bootstrap, replayed, write
from tests.support.random_acls import Question, random_acl, random_question

from raftlog.types import CLUSTER, Operation, Resource, ResourceType
from raftlog_state.controller import AddAcl, RemoveAcl, RemoveQuota, SetQuota, SetScram
from raftlog_state.image import AclRow
from raftlog_state.publishing import AccessPublisher, AclIndex, PublishingLoader

TOPIC_A = Resource(ResourceType.TOPIC, "a")
HOST = "10.0.0.1"


def has_address(host: str, address: str) -> bool:
    """Return whether the host of an ACL has an address, by its definition."""
    if host in (address, "*"):
        return True
    text = re.sub(r"(?<![0-9a-f])0+(?=[0-9a-f])|[][+-]", "", host.lower())
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text and "ffff:" not in text and ipaddress.ip_address(address) in network


def is_about(row: AclRow, asked: Question) -> bool:
    """Return whether an ACL is about a request, by its definition."""
    kind, name = asked.resource
    if row.pattern_type == 4:
        has_pattern = name.startswith(row.resource_name)
    else:
        has_pattern = row.resource_name in ("*", name)
    implying = {row.operation}
    if row.permission == 3 and row.operation in (3, 4, 6, 7):
        implying.add(8)
    if row.permission == 3 and row.operation == 11:
        implying.add(10)
    return (
        row.resource_type == kind
        and has_pattern
        and row.principal in (asked.principal, "User:*")
        and has_address(row.host, asked.host)
        and (row.operation == 2 or asked.operation in implying)
    )


def expected(rows: list[AclRow], asked: Question) -> bool | None:
    permissions = {row.permission for row in rows if is_about(row, asked)}
    return False if 2 in permissions else True if permissions else None


def test_decisions_are_those_of_the_definition_after_any_changes() -> None:
    rng = Random(7)
    index, rows, number = AclIndex(), [], 0
    found: list[bool | None] = []
    for _ in range(400):
        for _ in range(rng.randrange(4)):
            number += 1
            rows.append(random_acl(rng, number))
            index.add(rows[-1])
        while len(rows) > 40 or (rows and rng.random() < 0.4):
            index.remove(rows.pop(rng.randrange(len(rows))))
        for _ in range(10):
            asked = random_question(rng)
            assert index.authorize(*asked) is expected(rows, asked), asked
            found.append(expected(rows, asked))
        asked = random_question(rng)
        allowed = {
            operation
            for row in rows
            if row.permission == 3
            and row.principal in (asked.principal, "User:*")
            and has_address(row.host, asked.host)
            for operation in (list(Operation) if row.operation == 2 else [row.operation])
        }
        assert index.allowed_operations(asked.principal, asked.host) == allowed
    assert min(found.count(True), found.count(False), found.count(None)) > 100


class Node:
    """Log with a loader and its publisher, and the end of what was committed at its start."""

    def __init__(self, env: Controllers, node_id: int) -> None:
        self.committed_at_start: int | None = None
        self.changed_count = 0
        self.faults = Listener()
        self.loader = PublishingLoader(self.faults)
        self.access = AccessPublisher(
            committed_at_start=lambda: self.committed_at_start,
            has_failed=lambda: self.loader.failure is not None,
            credentials_changed=self._note_change,
        )
        self.loader.install(self.access)
        env.shared.node(node_id).register(self.loader)

    def _note_change(self) -> None:
        self.changed_count += 1

    def may_read(self, principal: str = "User:a") -> bool | None:
        return self.access.authorize(principal, HOST, Operation.READ, TOPIC_A)


READ_A = AddAcl(resource_type="TOPIC", resource_name="a", principal="User:a", operation="READ")
SET_SCRAM = SetScram(user="u", mechanism="SCRAM-SHA-256", password="p" * 9)


def started() -> Controllers:
    env = Controllers(count=2)
    write(env.elect(1), *bootstrap())
    env.shared.deliver()
    return env


def test_acls_have_an_effect_with_their_commit_and_none_before() -> None:
    env = started()
    node = Node(env, 9)
    node.committed_at_start = env.shared.end_offset
    env.shared.deliver()
    assert node.access.is_ready
    assert node.may_read() is None
    env.hold()
    write(env.all[1], READ_A)
    env.shared.deliver()
    assert node.may_read() is None, "it is not committed"
    env.release()
    assert node.may_read() is True
    assert node.may_read("User:b") is None
    denied = AddAcl(
        resource_type="TOPIC",
        resource_name="*",
        principal="User:*",
        operation="ALL",
        permission="DENY",
    )
    write(env.all[1], denied)
    env.shared.deliver()
    assert node.may_read() is False
    write(env.elect(2), RemoveAcl(resource_name="*"), RemoveAcl(principal="User:a"))
    env.shared.deliver()
    assert node.may_read() is None, "another controller has removed them"


def test_everything_is_denied_until_the_image_is_that_of_the_committed_log() -> None:
    env = started()
    write(env.all[1], READ_A)
    env.shared.deliver()
    node = Node(env, 9)
    node.committed_at_start = env.shared.end_offset + 1
    env.shared.deliver()
    assert node.loader.image.find(AclRow, node.loader.image.rows_of(AclRow)[0].acl_id)
    assert not node.access.is_ready
    assert node.may_read() is False, "a later record may revoke it"
    write(env.all[1], RemoveAcl(principal="User:a"))
    env.shared.deliver()
    assert node.access.is_ready
    assert node.may_read() is None


def test_an_image_that_has_all_records_is_ready_as_soon_as_that_is_known() -> None:
    env = started()
    write(env.all[1], READ_A)
    env.shared.deliver()
    env.snapshot(replayed(env.shared.batches))
    node = Node(env, 9)
    env.shared.deliver()
    assert node.may_read() is False, "no leader has stated what is committed"
    node.committed_at_start = env.shared.end_offset
    assert node.may_read() is True, "no later record is needed"


def test_everything_is_denied_once_the_image_has_stopped_to_follow() -> None:
    env = started()
    node = Node(env, 9)
    node.committed_at_start = env.shared.end_offset
    write(env.all[1], READ_A, SET_SCRAM)
    env.shared.deliver()
    assert node.may_read() is True
    assert node.access.find_credential(1, "u") is not None
    node.loader._fail("a test", ValueError())
    assert node.may_read() is False
    assert node.access.find_credential(1, "u") is None


def test_a_snapshot_replaces_all_acls_and_a_failed_update_is_repaired() -> None:
    env = started()
    write(env.all[1], READ_A)
    env.shared.deliver()
    env.snapshot(replayed(env.shared.batches))
    node = Node(env, 9)
    node.committed_at_start = env.shared.end_offset
    env.shared.deliver()
    assert node.may_read() is True
    index, node.access._index = node.access._index, AclIndex()  # as after a bug
    write(env.all[1], RemoveAcl(principal="User:a"), SET_SCRAM)
    env.shared.deliver()
    assert node.faults.faults, "the ACL to remove is absent"
    assert node.may_read() is False, "denied, since the ACLs are incomplete"
    assert node.changed_count == 0, "no credential is in effect"
    write(env.all[1], READ_A)
    env.shared.deliver()
    assert node.may_read() is True
    assert node.changed_count == 1, "its credential is in effect"
    assert index is not node.access._index


def test_credentials_are_those_of_the_image_and_their_changes_are_reported_once() -> None:
    env = started()
    node = Node(env, 9)
    node.committed_at_start = env.shared.end_offset
    env.shared.deliver()
    assert node.access.find_credential(1, "u") is None
    assert node.changed_count == 0
    for count, password in enumerate(("first", "second"), start=1):
        write(env.all[1], SetScram(user="u", mechanism="SCRAM-SHA-512", password=password))
        env.shared.deliver()
        row = node.access.find_credential(2, "u")
        assert row is not None
        assert row.stored_key == replayed(env.shared.batches).rows_of(type(row))[0].stored_key
        assert node.changed_count == count
    write(env.all[1], READ_A)
    env.shared.deliver()
    assert node.changed_count == 2


def test_the_quota_of_an_address_precedes_that_of_all_addresses() -> None:
    env = started()
    node = Node(env, 9)
    node.committed_at_start = env.shared.end_offset
    env.shared.deliver()
    assert node.access.connection_rate(HOST) is None
    for ip, rate in ((HOST, 5.0), ("2001:db8::1", 6.0), (None, 7.0)):
        write(env.all[1], SetQuota(entity={"ip": ip}, quota="connection_creation_rate", limit=rate))
    env.shared.deliver()
    assert node.access.connection_rate(HOST) == 5
    assert node.access.connection_rate("2001:db8:0:0:0:0:0:1") == 6
    assert node.access.connection_rate("10.0.0.9") == node.access.connection_rate("unix") == 7
    write(env.all[1], RemoveQuota(entity={"ip": HOST}, quota="connection_creation_rate"))
    env.shared.deliver()
    assert node.access.connection_rate(HOST) == 7


def test_quotas_of_clients_are_those_of_the_committed_log() -> None:
    env = started()
    node = Node(env, 9)
    env.shared.deliver()
    rate, percentage = "producer_byte_rate", "request_percentage"
    alice: tuple[tuple[str, str | None], ...] = (("client-id", None), ("user", "alice"))
    assert not node.access.has_quota(rate)
    write(env.all[1], SetQuota(entity=dict(alice), quota=rate, limit=5))
    write(env.all[1], SetQuota(entity={"user": None}, quota=rate, limit=6))
    write(env.all[1], SetQuota(entity={"user": None}, quota=rate, limit=7))
    env.shared.deliver()
    assert (node.access.has_quota(rate), node.access.has_quota(percentage)) == (True, False)
    assert node.access.quota_of(alice, rate) == 5
    assert node.access.quota_of((("user", None),), rate) == 7
    assert node.access.quota_of((("user", "alice"),), rate) is None
    write(env.all[1], RemoveQuota(entity=dict(alice), quota=rate))
    env.shared.deliver()
    assert node.access.quota_of(alice, rate) is None
    assert node.access.has_quota(rate)
    write(env.all[1], RemoveQuota(entity={"user": None}, quota=rate))
    env.shared.deliver()
    assert not node.access.has_quota(rate)


def test_a_long_name_costs_no_more_than_the_prefixes_in_use() -> None:
    rng = Random(1)
    acl = replace(
        random_acl(rng, 0),
        resource_type=ResourceType.GROUP,
        pattern_type=4,
        principal="User:a",
        host="*",
        operation=Operation.READ,
        permission=3,
    )
    index = AclIndex(replace(acl, acl_id=f"{n}", resource_name="g" * n) for n in range(1, 4))
    long = Resource(ResourceType.GROUP, "g" * 100_000)
    assert len(list(index._patterns(long))) == 2 + 3
    assert index.authorize("User:a", HOST, Operation.READ, long) is True
    assert index.authorize("User:a", HOST, Operation.READ, CLUSTER) is None


def test_the_acls_of_other_hosts_cost_a_decision_nothing() -> None:
    acl = replace(
        random_acl(Random(1), 0),
        resource_type=ResourceType.TOPIC,
        resource_name="*",
        pattern_type=3,
        principal="User:*",
        operation=Operation.ALL,
        permission=2,
    )
    hosts = [f"10.1.{high}.{low}" for high in range(20) for low in range(200)]
    index = AclIndex(replace(acl, acl_id=host, host=host) for host in hosts)
    assert not list(index._matching("User:a", HOST, TOPIC_A))
    assert [row.host for row in index._matching("User:a", hosts[7], TOPIC_A)] == [hosts[7]]
    assert index.authorize("User:a", HOST, Operation.READ, TOPIC_A) is None
    assert index.authorize("User:a", hosts[7], Operation.READ, TOPIC_A) is False
