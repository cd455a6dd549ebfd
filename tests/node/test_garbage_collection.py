"""In a node's process a full collection visits what was created since the last one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.node import garbage_collection
from raftlog.node.config import parse_config
from raftlog.node.formatting import format_directory, random_id
from raftlog.node.garbage_collection import SURVIVORS_MIN, survivors_frozen
from raftlog.node.process import run_node
from raftlog.node.service import NodeContext, Service
from tests.support.quorum_processes import free_ports
from tests.support.served_node import PATIENCE_S, served_node

OLDEST = 2


class Link:
    """Object that may be in a cycle."""

    link: Link | None = None


class CollectedError(Exception):
    """End of a node that was started for its process alone."""


@pytest.fixture(autouse=True)
def explicit_collections() -> Iterator[None]:
    """Run no collection of Python's own; freeze what was frozen before the test."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def test_many_survivors_of_a_collection_are_not_visited_by_the_next() -> None:
    with survivors_frozen():
        frozen_count = gc.get_freeze_count()
        rows: list[list[int]] = [[] for _ in range(SURVIVORS_MIN)]
        gc.collect()
        assert gc.get_freeze_count() - frozen_count >= len(rows)
        assert len(gc.get_objects(OLDEST)) < SURVIVORS_MIN // 10


def test_a_large_dictionary_is_not_visited_by_the_next_collection() -> None:
    with survivors_frozen():
        rows = [dict.fromkeys(map(str, range(SURVIVORS_MIN)), Link())]
        gc.collect()
        assert not any(one is rows[0] for one in gc.get_objects(OLDEST))


def test_an_object_that_is_frozen_is_freed_with_its_last_reference() -> None:
    with survivors_frozen():
        rows = [Link() for _ in range(SURVIVORS_MIN)]
        gc.collect()
        freed = weakref.ref(rows[0])
        rows[0] = rows[1]
        assert freed() is None


def test_few_survivors_are_visited_again_and_their_cycles_are_freed() -> None:
    with survivors_frozen():
        one = Link()
        one.link = one
        gc.collect()
        freed = weakref.ref(one)
        del one
        gc.collect()
        assert freed() is None


def test_many_connections_are_not_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would keep its transport, which is in a cycle, after it is closed."""
    few, connection_count = 1_000, 50
    monkeypatch.setattr(garbage_collection, "SURVIVORS_MIN", few)

    async def check() -> None:
        async with served_node(tmp_path) as served, asyncio.timeout(PATIENCE_S):
            with survivors_frozen(), contextlib.ExitStack() as clients:
                frozen_count = gc.get_freeze_count()
                for _ in range(connection_count):
                    clients.enter_context(socket.create_connection(("127.0.0.1", served.port)))
                while len(served.node.server.connections) < connection_count:
                    await asyncio.sleep(0)
                gc.collect()
                assert gc.get_freeze_count() <= frozen_count
                assert len(gc.get_objects(OLDEST)) > 2 * few

    asyncio.run(check())


def test_nothing_is_frozen_after_the_block() -> None:
    with pytest.raises(CollectedError), survivors_frozen():
        raise CollectedError
    rows: list[list[int]] = [[] for _ in range(SURVIVORS_MIN)]
    gc.collect()
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects(OLDEST)) >= len(rows)


def test_the_process_of_a_node_freezes_survivors(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = parse_config(
        f'[node]\nid = 1\ndirectory = "{tmp_path}/data"\n'
        f'static_voters = ["1@127.0.0.1:{port}"]\n[listeners.both]\naddress = "127.0.0.1:{port}"\n',
        "node.toml",
    )
    format_directory(config, cluster_id=random_id(), initial_voters=None)
    found = []

    def collect(context: NodeContext) -> Service:
        rows: list[list[int]] = [[] for _ in range(SURVIVORS_MIN)]
        gc.collect()
        found.append((len(gc.get_objects(OLDEST)), len(rows)))
        raise CollectedError

    with pytest.raises(CollectedError):
        run_node(config, services=[collect])
    ((visited_count, row_count),) = found
    assert visited_count < row_count
