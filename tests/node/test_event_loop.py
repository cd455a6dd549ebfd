"""Sockets of peers without any right are served after all others, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path

import pytest

from raftlog.node.connection import DIRECT_PER_ITERATION, REQUESTS_PER_TURN
from raftlog.node.event_loop import NodeEventLoop, PrivilegedFirstSelector, RestrictedSocket
from raftlog.node.server import ACCEPTED_PER_TURN
from raftlog.wire import ApiKey
from tests.node.test_connections import versions_requests
from tests.support.hostile_traffic import ACCESS, GREEDY, HEALTHY, MECHANISM, listeners
from tests.support.quorum_processes import free_ports
from tests.support.sasl_client import authenticate
from tests.support.served_node import RawConnection, ServedNode, served_node

STEP_S = 2**-10
WAITING = 0.0
"""Timeout of asyncio's call while callbacks wait."""


class Sockets:
    """Ready sockets of a selector, and its time."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        self._opened = opened
        self.now_s = 0.0
        self.selector = opened.enter_context(PrivilegedFirstSelector(lambda: self.now_s))
        self.restricted: dict[str, RestrictedSocket] = {}

    def ready(self, name: str, group: str | None = None, address: str | None = None) -> int:
        """Add a socket that is ready, with a group a restricted one."""
        here, there = socket.socketpair()
        for one in (here, there):
            self._opened.enter_context(one)
        there.send(b"x")
        if group is not None:
            self.restricted[name] = self.selector.restrict(here.fileno(), group, address)
        self.selector.register(here.fileno(), selectors.EVENT_READ, name)
        return here.fileno()

    def select(self, timeout: float | None = None, taking_s: float = STEP_S) -> list[str]:
        """Return the names of the sockets that are returned, whose work takes some time."""
        found = [key.data for key, _ in self.selector.select(timeout)]
        self.now_s += taking_s
        return found


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with contextlib.ExitStack() as opened:
        yield Sockets(opened)


def test_without_restricted_sockets_all_are_returned(sockets: Sockets) -> None:
    for name in "abc":
        sockets.ready(name)
    assert sorted(sockets.select()) == ["a", "b", "c"]


def test_one_restricted_socket_is_returned_while_there_is_no_other_work(sockets: Sockets) -> None:
    for name in "abc":
        sockets.ready(name, "port")
    assert [sockets.select() for _ in range(4)] == [["a"], ["b"], ["c"], ["a"]]


def test_other_work_is_first(sockets: Sockets) -> None:
    sockets.ready("stranger", "port")
    sockets.now_s = STEP_S
    assert sockets.select() == ["stranger"]
    assert sockets.select(WAITING) == [], "callbacks wait"
    sockets.ready("client")
    assert sockets.select() == ["client"]


def test_beside_endless_work_restricted_sockets_have_a_share_of_the_time(sockets: Sockets) -> None:
    sockets.ready("stranger", "port")
    sockets.ready("client")
    found = [sockets.select() for _ in range(100)]
    assert found[0] == ["client", "stranger"], "after the others"
    with_stranger = [at for at, names in enumerate(found) if len(names) > 1]
    assert with_stranger == list(range(0, 100, 5)), "a fifth of the time"


def test_after_a_long_step_restricted_sockets_wait_for_a_bounded_time(sockets: Sockets) -> None:
    sockets.ready("stranger", "port")
    sockets.ready("client")
    assert sockets.select(taking_s=10) == ["client", "stranger"]
    found = [sockets.select() for _ in range(20)]
    assert ["client", "stranger"] in found


def test_a_group_is_not_delayed_by_the_number_of_addresses_of_another(sockets: Sockets) -> None:
    for at in range(250):
        sockets.ready(f"flood {at}", "unknown", f"10.0.0.{at}")
    sockets.ready("listener", "listener")
    sockets.select()
    sockets.ready("client", "known", "10.1.0.1")
    found = [sockets.select()[0] for _ in range(30)]
    for name in ("listener", "client"):
        steps = [step for step, one in enumerate(found) if one == name]
        assert steps[0] < 3
        pauses = [after - before for before, after in itertools.pairwise(steps)]
        assert pauses == [3] * (len(steps) - 1)


def test_listeners_take_turns(sockets: Sockets) -> None:
    for name in "abc":
        sockets.ready(name, "clients")
    sockets.ready("voter", "voters")
    found = [sockets.select() for _ in range(6)]
    assert found == [["a"], ["voter"], ["b"], ["voter"], ["c"], ["voter"]]


def test_addresses_of_a_listener_take_turns_and_so_does_the_listener(sockets: Sockets) -> None:
    sockets.ready("listener", "clients")
    for name in "abc":
        sockets.ready(name, "clients", "10.0.0.1")
    sockets.ready("other", "clients", "10.0.0.2")
    found = [sockets.select()[0] for _ in range(9)]
    assert found == ["listener", "a", "other", "listener", "b", "other", "listener", "c", "other"]
    for one in sockets.restricted.values():
        sockets.selector.release(one)
    assert len(sockets.select()) == 5


def test_a_released_socket_is_returned_with_all_others(sockets: Sockets) -> None:
    sockets.ready("one", "port")
    sockets.ready("other")
    sockets.select()
    sockets.selector.release(sockets.restricted["one"])
    assert sorted(sockets.select()) == ["one", "other"]
    sockets.selector.release(sockets.restricted["one"])


def test_descriptors_that_are_used_again_are_restricted_once(sockets: Sockets) -> None:
    one = sockets.ready("one", "clients")
    again = sockets.selector.restrict(one, "voters")
    assert [sockets.select() for _ in range(2)] == [["one"], ["one"]]
    sockets.selector.release(again)
    sockets.ready("other")
    assert sorted(sockets.select()) == ["one", "other"]


def test_a_closed_socket_does_not_release_the_next_one_with_its_descriptor(
    sockets: Sockets,
) -> None:
    """asyncio closes the socket of a TLS connection before the protocol knows that."""
    one = sockets.ready("one", "port")
    sockets.ready("other", "port")
    sockets.selector.restrict(one, "port")
    sockets.selector.release(sockets.restricted["one"])
    assert len(sockets.select()) == 1, "both are restricted"


def run_on_node_loop(work: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=NodeEventLoop) as runner:
        runner.run(work)


@contextlib.asynccontextmanager
async def node_with_connections(
    path: Path,
) -> AsyncIterator[tuple[ServedNode, contextlib.AsyncExitStack]]:
    """Yield a node, and what closes connections to it."""
    tables = listeners(path, *free_ports(2))
    async with (
        served_node(path, ACCESS, listeners=tables) as node,
        contextlib.AsyncExitStack() as opened,
    ):
        yield node, opened


def test_a_client_is_answered_before_peers_without_rights_that_sent_earlier(tmp_path: Path) -> None:
    """All are ready in one iteration: peers before their authentication, and the client."""
    stranger_count = 20

    async def check() -> None:
        async with node_with_connections(tmp_path) as (node, opened):
            received = node.node.server.metrics.requests
            client = await opened.enter_async_context(await node.connect())
            await authenticate(client, MECHANISM, HEALTHY, "healthy")
            strangers = []
            for _ in range(stranger_count):
                one = await opened.enter_async_context(await node.connect())
                one.ask_versions()
                await one.answer(ApiKey.API_VERSIONS, 3)
                strangers.append(one)
            before = received["API_VERSIONS"]
            for one in strangers:
                one.writer.write(versions_requests(1))
            client.ask_versions()
            await client.answer(ApiKey.API_VERSIONS, 3)
            before += 1
            assert received["API_VERSIONS"] - before < stranger_count // 2, "the others wait"
            for one in strangers:
                await one.answer(ApiKey.API_VERSIONS, 3)
            assert received["API_VERSIONS"] == before + stranger_count

    run_on_node_loop(check())


def test_connections_leave_no_restricted_sockets(tmp_path: Path) -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, NodeEventLoop)
        tables = listeners(tmp_path, *free_ports(2))
        async with served_node(tmp_path, ACCESS, listeners=tables) as node:
            before = 2  # the listeners
            async with await node.connect() as stranger, await node.connect() as client:
                stranger.ask_versions()
                await stranger.answer(ApiKey.API_VERSIONS, 3)
                assert loop.restricted_count == before + 2
                await authenticate(client, MECHANISM, HEALTHY, "healthy")
                assert loop.restricted_count == before + 1
            while node.node.server.connections:
                await asyncio.sleep(0)
            assert loop.restricted_count == before

    run_on_node_loop(check())


async def peer_at(
    opened: contextlib.AsyncExitStack, node: ServedNode, address: str
) -> RawConnection:
    """Open a connection from an address."""
    streams = await asyncio.open_connection("127.0.0.1", node.port, local_addr=(address, 0))
    return await opened.enter_async_context(RawConnection(*streams))


async def answered_before_last(node: ServedNode, peers: list[RawConnection]) -> int:
    """Return how many requests were answered up to that of the last peer, if all have one."""
    received = node.node.server.metrics.requests
    before = received["API_VERSIONS"]
    for one in peers:
        one.writer.write(versions_requests(1))
    await peers[-1].answer(ApiKey.API_VERSIONS, 3)
    found = received["API_VERSIONS"] - before
    for one in peers[:-1]:
        await one.answer(ApiKey.API_VERSIONS, 3)
    return found


def test_sockets_are_restricted_by_their_address(tmp_path: Path) -> None:
    """A peer is answered before those of an address that has many connections."""
    stranger_count = 20

    async def check() -> None:
        async with node_with_connections(tmp_path) as (node, opened):
            peers = []
            for at in range(stranger_count + 1):
                address = "127.0.0.1" if at < stranger_count else "127.0.0.2"
                one = await peer_at(opened, node, address)
                one.ask_versions()
                await one.answer(ApiKey.API_VERSIONS, 3)
                peers.append(one)
            found = await answered_before_last(node, peers)
            assert found < stranger_count // 2, "the others wait"

    run_on_node_loop(check())


async def make_known(node: ServedNode, address: str) -> None:
    """Authenticate from an address, and disconnect."""
    async with contextlib.AsyncExitStack() as opened:
        client = await peer_at(opened, node, address)
        await authenticate(client, MECHANISM, HEALTHY, "healthy")
    while node.node.server.connections:
        await asyncio.sleep(0)


def test_a_known_address_is_served_before_those_of_many_others(tmp_path: Path) -> None:
    stranger_count = 40

    async def check() -> None:
        async with node_with_connections(tmp_path) as (node, opened):
            await make_known(node, "127.0.0.2")
            peers = []
            for at in range(stranger_count + 1):
                address = f"127.0.1.{at + 1}" if at < stranger_count else "127.0.0.2"
                one = await peer_at(opened, node, address)
                one.ask_versions()
                await one.answer(ApiKey.API_VERSIONS, 3)
                peers.append(one)
            found = await answered_before_last(node, peers)
            assert found < 8, "it takes turns with all of the others"

    run_on_node_loop(check())


def test_a_known_address_does_not_wait_for_a_turn_of_each_refused_connection(
    tmp_path: Path,
) -> None:
    """Peers without rights use all of their connections; more of them connect before the client."""
    refused_count = 3 * ACCEPTED_PER_TURN
    limits = "[limits]\nstranger_connections_max = 4\nhandshake_ms = 60000\n"

    async def check(node: ServedNode, opened: contextlib.AsyncExitStack) -> None:
        server = node.node.server
        await make_known(node, "127.0.0.2")
        for at in range(4):
            await peer_at(opened, node, f"127.0.1.{at + 1}")
        while server.quotas.unprivileged_count < 4:
            await asyncio.sleep(0)
        waiting = [("127.0.2.1", at) for at in range(refused_count)] + [("127.0.0.2", 0)]
        for address, _ in waiting:  # the loop does not turn: all wait to be accepted
            one = opened.enter_context(contextlib.closing(socket.socket()))
            one.bind((address, 0))
            one.connect(("127.0.0.1", node.port))
        refused = server.metrics.refused_connections
        turns = before = 0
        while not any(one.where.startswith("127.0.0.2:") for one in server.connections):
            await asyncio.sleep(0)
            turns += refused["stranger_connections_max"] > before
            before = refused["stranger_connections_max"]
        assert before == refused_count
        assert turns == refused_count // ACCEPTED_PER_TURN

    async def run() -> None:
        tables = listeners(tmp_path, *free_ports(2))
        async with (
            served_node(tmp_path, ACCESS + limits, listeners=tables) as node,
            contextlib.AsyncExitStack() as opened,
        ):
            await check(node, opened)

    run_on_node_loop(run())


def test_all_connections_of_a_principal_share_the_requests_that_do_not_wait(
    tmp_path: Path,
) -> None:
    """Each has received as many as it may start before those of its other connections."""
    peer_count = 3 * DIRECT_PER_ITERATION // REQUESTS_PER_TURN

    async def check() -> None:
        async with node_with_connections(tmp_path) as (node, opened):
            requests = node.node.server.metrics.requests
            peers = []
            for _ in range(peer_count):
                peers.append(await opened.enter_async_context(await node.connect()))
                await authenticate(peers[-1], MECHANISM, GREEDY, "greedy")
            of_peers = node.node.server.connections
            client = await opened.enter_async_context(await node.connect())
            await authenticate(client, MECHANISM, HEALTHY, "healthy")
            (of_client,) = set(node.node.server.connections) - set(of_peers)
            before = requests["API_VERSIONS"]
            for one in of_peers:
                one.data_received(versions_requests(REQUESTS_PER_TURN))
            assert requests["API_VERSIONS"] == before + DIRECT_PER_ITERATION
            of_client.data_received(versions_requests(REQUESTS_PER_TURN))
            assert requests["API_VERSIONS"] == before + DIRECT_PER_ITERATION + REQUESTS_PER_TURN
            for peer in (*peers, client):
                for number in range(REQUESTS_PER_TURN):
                    assert (await peer.answer(ApiKey.API_VERSIONS, 3))[0] == number
            before = requests["API_VERSIONS"]
            of_peers[0].data_received(versions_requests(1))
            assert requests["API_VERSIONS"] == before + 1, "in another iteration"

    run_on_node_loop(check())
