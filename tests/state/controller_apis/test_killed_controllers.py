"""Random kills (SIGKILL) of the active controller's process, and of others, under writes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from kio.schema.errors import ErrorCode
from tests.support.cli import rows, run
from tests.support.controller_nodes import CONTROLLER
from tests.support.quorum_processes import NodeProcess, QuorumProcesses
from tests.support.report_lines import REPORT_LINE
from tests.support.request_builder import newest, request, response_class
from tests.support.served_node import RawConnection

from raftlog.wire import ApiKey, decode, encode

KEY = ApiKey.ALTER_CLIENT_QUOTAS
EXTRA = f"{CONTROLLER}[quorum]\nfetch_timeout_ms = 500\nelection_timeout_ms = 300\n"
RESPONSE_S = 5.0
KILLS = 6

pytestmark = pytest.mark.slow


class QuotaWriter:
    """Client that writes one quota after another, and knows which were acknowledged."""

    def __init__(self, quorum: QuorumProcesses) -> None:
        self.attempted: set[str] = set()
        self.acknowledged: set[str] = set()
        self._quorum = quorum

    async def write(self, name: str) -> None:
        """Write a quota, with retries at all nodes until one acknowledges it."""
        self.attempted.add(name)
        while True:
            for node in self._quorum.running():
                if await self._is_written(node, name):
                    self.acknowledged.add(name)
                    return
            await asyncio.sleep(0.01)

    async def _is_written(self, node: NodeProcess, name: str) -> bool:
        entry = {
            "entity": [{"entity_type": "user", "entity_name": name}],
            "ops": [{"key": "producer_byte_rate", "value": 1024.0, "remove": False}],
        }
        version = newest(KEY)
        with contextlib.suppress(OSError, TimeoutError, AssertionError):
            async with asyncio.timeout(RESPONSE_S):
                opened = await asyncio.open_connection("127.0.0.1", node.port)
                async with RawConnection(*opened) as connection:
                    connection.ask(KEY, version, encode(request(KEY, entries=[entry]), version))
                    _, body = await connection.answer(KEY, version)
            found = decode(response_class(KEY), version, body).entries
            return [one.error_code for one in found] == [ErrorCode.none]
        return False

    async def until_written(self, count: int) -> None:
        """Wait until so many more writes are acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            await asyncio.sleep(0.005)

    async def run(self, is_ended: Callable[[], bool]) -> None:
        number = 0
        while not is_ended():
            await self.write(f"user-{number:05}")
            number += 1


def active_epoch(node: NodeProcess) -> int:
    """Return the epoch in which a node was the active controller last; 0: in none."""
    found = (
        re.match(r"Becoming the active controller at epoch (\d+)", line["reason"])
        for line in node.lines()
        if line["event"] == "controller"
    )
    return max((int(match[1]) for match in found if match), default=0)


async def kill_repeatedly(writer: QuotaWriter, quorum: QuorumProcesses, rng: Random) -> list[float]:
    """Kill and restart processes, most often that of the active controller; return the seconds
    from each of its kills to the next acknowledged write."""
    durations = []
    for _ in range(KILLS):
        await writer.until_written(rng.randrange(5, 60))
        active = max(quorum.nodes, key=active_epoch)
        others = [node for node in quorum.nodes if node is not active]
        victim = active if rng.random() < 0.75 else rng.choice(others)
        before_s = time.monotonic()
        await asyncio.to_thread(victim.kill)
        await writer.until_written(2)  # the response to the first one may be older than the kill
        if victim is active:
            durations.append(time.monotonic() - before_s)
        await asyncio.to_thread(victim.start)
    return durations


@pytest.mark.parametrize("seed", [1, 2])
def test_acknowledged_changes_survive_and_all_nodes_replay_the_same_state(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    with QuorumProcesses(tmp_path, extra=EXTRA) as quorum:
        writer = QuotaWriter(quorum)

        async def check() -> list[float]:
            kills = asyncio.create_task(kill_repeatedly(writer, quorum, Random(seed)))
            await writer.run(kills.done)
            return await kills

        durations = asyncio.run(check())
        for node in quorum.nodes:
            assert node.stop() == 0
        pattern = str(tmp_path / "node-*" / "data" / "__cluster_metadata-0")
        status, _, err = run("check", pattern)
        assert status == 0, err
        committed = {row["entity"]["user"] for row in rows("state", pattern, "quotas")}
        assert writer.acknowledged <= committed <= writer.attempted
    record_property(
        REPORT_LINE,
        f"kills of the active controller, seed {seed}: {len(durations)}; the next write after "
        f"{statistics.median(durations):.2f} s (median), {max(durations):.2f} s (longest); "
        f"{len(writer.acknowledged)} writes, none lost",
    )
