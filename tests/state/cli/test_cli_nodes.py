"""``raftlog cat`` and ``raftlog state`` of running nodes, by ``--bootstrap-server``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.support.cli import run
from tests.support.quorum_processes import free_ports
from tests.support.served_node import ServedNode, appended, served_node

from raftlog.append import AppendRequest, Done
from raftlog_state.records import TopicRecord, encode

Printed = tuple[int, list[object], str]


def with_node(
    home: Path,
    log: str,
    check: Callable[[ServedNode, Callable[..., Awaitable[Printed]]], Awaitable[None]],
) -> None:
    async def work() -> None:
        async with served_node(home, f"[log]\n{log}\n") as node:

            async def ask(command: str, *words: str) -> Printed:
                nodes = ("--bootstrap-server", f"127.0.0.1:{node.port}")
                status, out, err = await asyncio.to_thread(run, command, *words, *nodes)
                return status, [json.loads(line) for line in out.splitlines()], err

            await check(node, ask)

    asyncio.run(work())


async def append(node: ServedNode, *values: bytes) -> None:
    for value in values:
        done = await appended(
            node.node.raft_node, AppendRequest(records=(value,), deadline_ms=1e12)
        )
        assert isinstance(done, Done)


def test_records_of_a_quorum_are_printed_as_those_of_its_files(tmp_path: Path) -> None:
    async def check(node: ServedNode, ask: Callable[..., Awaitable[Printed]]) -> None:
        await append(node, b"one", b"two", b"\xff\xfe")
        printed = await ask("cat")
        assert printed[0] == 0
        status, out, _ = run("cat", node.node.raft_node.replica.log.path)
        assert status == 0
        assert printed[1] == [json.loads(line) for line in out.splitlines()]
        assert len(printed[1]) == 3
        status, batches, _ = await ask("cat", "--batches", "--from", "3")
        assert status == 0
        assert len(batches) == 3
        (places,) = {(row["file"], row["position"]) for row in batches if isinstance(row, dict)}
        assert places == (None, None), "there are no files"

    with_node(tmp_path, "", check)


def test_a_quorum_without_metadata_has_no_state(tmp_path: Path) -> None:
    async def check(_node: ServedNode, ask: Callable[..., Awaitable[Printed]]) -> None:
        status, lines, err = await ask("state")
        assert (status, lines) == (2, [])
        assert "not a metadata log" in err

    with_node(tmp_path, "", check)


def test_the_state_of_a_metadata_quorum_is_shown_at_an_offset(tmp_path: Path) -> None:
    async def check(node: ServedNode, ask: Callable[..., Awaitable[Printed]]) -> None:
        names = ("orders", "clicks")
        await append(node, *(encode(TopicRecord(name=name, topic_id=_ids[name])) for name in names))
        status, rows, _ = await ask("state", "topics")
        assert status == 0
        assert [row["name"] for row in rows if isinstance(row, dict)] == list(names)
        end = node.node.raft_node.replica.log.end_offset
        status, rows, _ = await ask("state", "topics", "--at", str(end - 1))
        assert [row["name"] for row in rows if isinstance(row, dict)] == ["orders"]
        status, rows, _ = await ask("diff", "--from", str(end - 1))
        assert status == 0
        assert [(row["entity"], row["op"]) for row in rows if isinstance(row, dict)] == [
            ("topic", "c")
        ]
        status, rows, err = await ask("state", "--at", str(end + 1))
        assert (status, rows) == (1, [])
        assert str(end) in err

    with_node(tmp_path, 'values = "kraft"', check)


_ids = {"orders": "AAAAAAAAAAAAAAAAAAAAAQ", "clicks": "AAAAAAAAAAAAAAAAAAAAAg"}


def test_an_unreachable_server_is_reported_without_a_traceback() -> None:
    (port,) = free_ports(1)
    status, out, err = run("cat", "--bootstrap-server", f"127.0.0.1:{port}", "--timeout-ms", "200")
    assert (status, out) == (1, "")
    assert f"127.0.0.1:{port}" in err
    assert len(err.splitlines()) == 1
