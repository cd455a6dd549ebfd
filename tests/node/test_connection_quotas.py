"""Limits of connections, by listener, address and principal."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raftlog.node.access import ANONYMOUS, Principal, Rights
from raftlog.node.config import LimitsConfig
from raftlog.node.connection_quotas import (
    BUCKETS_MAX,
    BUCKETS_PER_CHECK,
    KNOWN_MAX,
    ConnectionQuotas,
    CountedConnection,
    LimitExceeded,
)
from raftlog.types import Operation, Resource
from raftlog.wire import ApiKey, Listener
from tests.support.quorum_processes import free_ports
from tests.support.served_node import RawConnection, served_node

CLIENTS, VOTERS = Listener.CLIENTS, Listener.VOTERS
BOTH = CLIENTS | VOTERS


class Quotas:
    """Quotas with small limits, and the connections that they closed."""

    def __init__(self, **limits: int) -> None:
        self.quotas = ConnectionQuotas(LimitsConfig(**limits))
        self.closed: list[str] = []

    def enter(
        self, listener: Listener, host: str = "10.0.0.1", now_s: float = 0
    ) -> CountedConnection | LimitExceeded:
        return self.quotas.enter(listener, host, lambda: self.closed.append(host), now_s)

    def let_in(
        self, listener: Listener, *, host: str = "10.0.0.1", **caller: Any
    ) -> CountedConnection | LimitExceeded:
        entered = self.enter(listener, host)
        if isinstance(entered, LimitExceeded):
            return entered
        refusal = self.quotas.admit(entered, caller_on(listener, **caller))
        if refusal is not None:
            self.quotas.leave(entered)
        return refusal or entered


def caller_on(
    listener: Listener,
    name: str = ANONYMOUS,
    node_id: int | None = None,
    rights: Rights = Rights.READ,
) -> Principal:
    return Principal(name=name, node_id=node_id, listener=listener, rights=rights)


def limit_of(found: CountedConnection | LimitExceeded) -> str:
    assert isinstance(found, LimitExceeded), "it was admitted"
    return found.limit


def counted(found: CountedConnection | LimitExceeded) -> CountedConnection:
    assert isinstance(found, CountedConnection), found
    return found


def test_client_connections_leave_slots_to_voters() -> None:
    here = Quotas(connections_max=2, voters_connections_max=4)
    clients = [counted(here.let_in(CLIENTS)) for _ in range(2)]
    assert limit_of(here.let_in(CLIENTS)) == "connections_max"
    for _ in range(4):
        counted(here.let_in(VOTERS))
    assert limit_of(here.let_in(VOTERS)) == "voters_connections_max"
    here.quotas.leave(clients[0])
    counted(here.let_in(CLIENTS))
    assert (here.quotas.clients.count, here.quotas.voters.count) == (2, 4)


def test_a_node_that_proves_its_id_has_a_slot_at_a_listener_for_both() -> None:
    here = Quotas(connections_max=1, voters_connections_max=4)
    counted(here.let_in(BOTH, name="jobs-1"))
    assert limit_of(here.let_in(BOTH, name="jobs-2")) == "connections_max"
    for _ in range(2):
        counted(here.let_in(BOTH, name="node-1", node_id=1))
    assert limit_of(here.let_in(BOTH, name="node-1", node_id=1)) == "connections_per_principal_max"
    counted(here.let_in(BOTH, name="node-2", node_id=2))


@dataclass(frozen=True)
class Allowing:
    """Authorizer whose ACLs allow one operation on every resource."""

    operation: Operation
    is_ready: bool = True

    def authorize(
        self, principal: str, host: str, operation: Operation, resource: Resource
    ) -> bool | None:
        return operation is self.operation or None

    def allowed_operations(self, principal: str, host: str) -> set[Operation]:
        return {self.operation}


def test_clients_with_rights_by_acls_only_take_no_slots_of_voters() -> None:
    here = Quotas(connections_max=3, voters_connections_max=2)
    for number in range(3):
        entered = counted(here.enter(VOTERS))
        client = caller_on(VOTERS, f"client-{number}", rights=Rights.NONE)
        admitted = replace(client, authorizer=Allowing(Operation.DESCRIBE))
        assert admitted.possible_rights
        assert here.quotas.admit(entered, admitted) is None
    assert (here.quotas.clients.count, here.quotas.voters.count) == (3, 0)
    for node_id in (1, 2):
        counted(here.let_in(VOTERS, name=f"node-{node_id}", node_id=node_id, rights=Rights.VOTE))


def test_addresses_and_principals_have_separate_limits_for_clients_and_voters() -> None:
    here = Quotas(connections_per_address_max=2, connections_per_principal_max=3)
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        counted(here.let_in(CLIENTS, host=host, name="jobs-1"))
    assert limit_of(here.let_in(CLIENTS, name="jobs-2")) == "connections_per_address_max"
    found = here.let_in(CLIENTS, host="10.0.0.3", name="jobs-1")
    assert limit_of(found) == "connections_per_principal_max"
    counted(here.let_in(CLIENTS, host="10.0.0.3", name="jobs-2"))
    for _ in range(2):
        counted(here.let_in(VOTERS, name="node-1", node_id=1))
    assert limit_of(here.let_in(VOTERS)) == "connections_per_address_max"


def test_unauthenticated_names_share_no_limit() -> None:
    here = Quotas(connections_per_principal_max=1)
    for host in ("10.0.0.1", "10.0.0.2"):
        counted(here.let_in(CLIENTS, host=host))


def test_hosts_of_one_ipv6_network_are_one_address() -> None:
    here = Quotas(connections_per_address_max=1)
    counted(here.let_in(CLIENTS, host="2001:db8::1"))
    found = here.let_in(CLIENTS, host="2001:db8::ffff:2%eth0")
    assert limit_of(found) == "connections_per_address_max"
    for host in ("2001:db8:0:1::1", "::ffff:10.0.0.1", "::ffff:10.0.0.2"):
        counted(here.let_in(CLIENTS, host=host))
    assert limit_of(here.let_in(CLIENTS, host="10.0.0.1")) == "connections_per_address_max"


def test_connections_without_rights_have_a_small_pool_and_a_short_timeout() -> None:
    here = Quotas(stranger_connections_max=2, handshake_ms=5_000)
    first = counted(here.enter(CLIENTS, "a", 0))
    second = counted(here.enter(CLIENTS, "b", 0.5))
    assert limit_of(here.enter(CLIENTS, "c", 0.9)) == "stranger_connections_max"
    counted(here.enter(VOTERS, "d", 0.9))
    assert here.quotas.unprivileged_count == 3
    counted(here.enter(CLIENTS, "c", 1.0))
    assert here.closed == ["a"], "the oldest has reached its timeout"
    here.quotas.leave(first)
    assert here.quotas.admit(second, caller_on(CLIENTS, "unauthorized", rights=Rights.NONE)) is None
    assert here.quotas.unprivileged_count == 3, "it still has no rights"
    here.quotas.close_overdue(5.0)
    assert here.closed == ["a"]
    here.quotas.close_overdue(5.6)
    assert here.closed == ["a", "b"]
    here.quotas.leave(second)
    assert here.quotas.unprivileged_count == 2
    assert here.quotas.close_oldest_unprivileged()
    assert here.closed == ["a", "b", "d"]


def with_known(*hosts: str, **limits: int) -> Quotas:
    """Return quotas of addresses that had a connection with a right, which is closed."""
    here = Quotas(handshake_ms=5_000, **limits)
    for host in hosts:
        here.quotas.leave(counted(here.let_in(CLIENTS, host=host)))
    return here


def test_a_known_address_replaces_an_unknown_one_and_is_replaced_by_none() -> None:
    here = with_known("known", stranger_connections_max=4)
    for number in range(4):
        counted(here.enter(CLIENTS, f"flood-{number}", 10))
    assert here.quotas.is_full(CLIENTS)
    assert not here.quotas.is_full(VOTERS)
    assert limit_of(here.enter(CLIENTS, "other", 10)) == "stranger_connections_max"
    known = counted(here.enter(CLIENTS, "known", 10))
    assert here.closed == ["flood-0"], "although it has just begun"
    for number in range(4, 400):
        here.enter(CLIENTS, f"flood-{number}", 10 + number / 100)
    assert "known" not in here.closed
    assert here.quotas.admit(known, caller_on(CLIENTS)) is None


def test_known_addresses_leave_half_of_the_connections_to_unknown_ones() -> None:
    here = with_known("known", stranger_connections_max=4)
    for _ in range(4):
        counted(here.enter(CLIENTS, "known", 10))
    assert limit_of(here.enter(CLIENTS, "a", 10.5)) == "stranger_connections_max"
    for host in ("a", "b"):
        counted(here.enter(CLIENTS, host, 11))
    assert here.closed == ["known", "known"]
    for _ in range(20):
        here.enter(CLIENTS, "known", 13)
    assert {"a", "b"}.isdisjoint(here.closed)


def test_one_of_an_unknown_address_replaces_no_other_where_it_may_not() -> None:
    here = with_known("known", stranger_connections_max=2)
    for host in ("a", "b"):
        counted(here.enter(CLIENTS, host, 10))
    found = here.quotas.enter(CLIENTS, "c", lambda: None, 20, may_replace=False)
    assert limit_of(found) == "stranger_connections_max"
    counted(here.quotas.enter(CLIENTS, "known", lambda: None, 20, may_replace=False))
    assert here.closed == ["a"]


def test_for_a_descriptor_an_unknown_address_is_disconnected_first() -> None:
    here = with_known("known")
    counted(here.enter(CLIENTS, "known", 10))
    counted(here.enter(VOTERS, "other", 11))
    assert here.quotas.close_oldest_unprivileged()
    assert here.quotas.close_oldest_unprivileged()
    assert here.closed == ["other", "known"]


def test_known_addresses_are_bounded_and_the_last_ones_are_kept() -> None:
    here = with_known("first", "second")
    for number in range(KNOWN_MAX - 2):
        here.quotas.leave(counted(here.let_in(CLIENTS, host=f"host-{number}")))
    for host in ("first", "one more"):
        here.quotas.leave(counted(here.let_in(CLIENTS, host=host)))
    assert counted(here.enter(CLIENTS, "first")).is_known
    assert not counted(here.enter(CLIENTS, "second")).is_known
    assert len(here.quotas._known) == KNOWN_MAX


def test_a_connection_with_rights_is_kept() -> None:
    here = Quotas(stranger_connections_max=1, handshake_ms=5_000)
    entered = counted(here.let_in(CLIENTS))
    here.quotas.close_overdue(1_000)
    assert here.closed == []
    assert not here.quotas.close_oldest_unprivileged()
    here.quotas.leave(entered)
    assert here.quotas.clients.count == 0
    assert not here.quotas.clients.by_address


def test_an_address_has_a_connection_rate_with_bursts() -> None:
    here = Quotas(connection_rate_per_address_max=10)
    for _ in range(50):
        here.quotas.leave(counted(here.enter(CLIENTS)))
    assert limit_of(here.enter(CLIENTS)) == "connection_rate_per_address_max"
    counted(here.enter(CLIENTS, "10.0.0.2"))
    accepted = sum(isinstance(here.enter(CLIENTS, now_s=1), CountedConnection) for _ in range(50))
    assert accepted == 10
    here.quotas.close_overdue(1_000)
    assert not here.quotas._buckets, "saved connections are not remembered"


def test_the_quota_of_an_address_decides_about_its_clients_if_it_is_lower() -> None:
    here = Quotas(connection_rate_per_address_max=10)
    quotas = {"10.0.0.1": 0.5, "10.0.0.2": 1_000.0, "2001:db8:0:0:0:0:0:1": 0.0}
    here.quotas.rate_of = quotas.get

    def accepted(listener: Listener, host: str, now_s: float) -> int:
        found = [here.enter(listener, host, now_s) for _ in range(80)]
        return sum(isinstance(one, CountedConnection) for one in found)

    assert accepted(CLIENTS, "10.0.0.1", 0) == 2, "a burst of five seconds"
    assert limit_of(here.enter(CLIENTS, "10.0.0.1", 0.5)) == "connection_creation_rate"
    assert accepted(CLIENTS, "10.0.0.1", 4) == 2
    assert accepted(CLIENTS, "10.0.0.2", 4) == 50, "the node's own limit is lower"
    assert accepted(CLIENTS, "2001:db8::1", 4) == 0
    assert accepted(VOTERS, "10.0.0.1", 4) == 50, "voters on the host of a client have no quota"
    quotas["10.0.0.1"] = 2
    assert accepted(CLIENTS, "10.0.0.1", 5) == 2
    here.quotas.close_overdue(1_000)
    assert not here.quotas._buckets


def test_addresses_whose_rates_are_remembered_are_bounded() -> None:
    here = Quotas(stranger_connections_max=1)
    here.quotas.rate_of = lambda _: 1e-9
    for number in range(BUCKETS_MAX + 10):
        here.enter(CLIENTS, f"host-{number}", number * 100.0)
    assert len(here.quotas._buckets) == BUCKETS_MAX


def test_a_check_visits_a_bounded_number_of_addresses() -> None:
    here = Quotas(stranger_connections_max=1)
    for number in range(BUCKETS_PER_CHECK + 10):
        here.enter(CLIENTS, f"host-{number}", 0)
    here.quotas.close_overdue(1_000)
    assert len(here.quotas._buckets) == 10
    here.quotas.close_overdue(1_000)
    assert not here.quotas._buckets


def test_a_voter_is_served_while_clients_use_all_their_slots(tmp_path: Path) -> None:
    clients, voters = free_ports(2)
    listeners = (
        f'[listeners.clients]\naddress = "127.0.0.1:{clients}"\n'
        f'[listeners.voters]\naddress = "127.0.0.1:{voters}"\n'
    )

    async def connect(port: int) -> RawConnection:
        return RawConnection(*await asyncio.open_connection("127.0.0.1", port))

    async def run() -> None:
        extra = "[limits]\nconnections_max = 3\nconnections_per_address_max = 3\n"
        async with served_node(tmp_path, extra, listeners=listeners) as node:
            server = node.node.server
            taken = [await connect(clients) for _ in range(3)]
            async with asyncio.timeout(20):
                while server.quotas.clients.count < 3:
                    await asyncio.sleep(0.01)
            async with await connect(clients) as refused:
                assert await refused.next_frame() is None
            assert server.metrics.refused_connections == {"connections_max": 1}
            assert "3 connections of clients are open" in node.lines("limit")[0]["reason"]
            async with await connect(voters) as voter:
                voter.ask_versions(7)
                assert (await voter.answer(ApiKey.API_VERSIONS, 3))[0] == 7
            for one in taken:
                one.writer.close()
            async with asyncio.timeout(20):
                while server.metrics.connections:
                    await asyncio.sleep(0.01)
            assert (server.quotas.clients.count, server.quotas.voters.count) == (0, 0)

    asyncio.run(run())
