"""Random kills (SIGKILL) of the active controller's process, and of others, under writes.

Each attempt of a write has a value of its own, so that the log shows which were appended, and how
often.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.support.cli import rows, run
from tests.support.controller_connections import ControllerConnections
from tests.support.controller_nodes import CONTROLLER
from tests.support.quorum_processes import PATIENCE_S, NodeProcess, QuorumProcesses
from tests.support.report_lines import REPORT_LINE
from tests.support.sweep_size import nightly_except

from raftlog.records import iter_batches
from raftlog.wire import ApiKey
from raftlog_state.records import ClientQuotaRecord
from raftlog_state.records import decode as decode_record

KEY = ApiKey.ALTER_CLIENT_QUOTAS
EXTRA = f"{CONTROLLER}[quorum]\nfetch_timeout_ms = 500\nelection_timeout_ms = 300\n"
RESPONSE_S = 5.0

pytestmark = pytest.mark.slow


class QuotaWriter:
    """Client that writes one quota after another, now and then an invalid one.

    ``attempted`` and ``acknowledged`` have the values of the attempts by user, ``refused`` the
    users of invalid quotas.
    """

    def __init__(self, quorum: QuorumProcesses) -> None:
        self.attempted: dict[str, list[float]] = {}
        self.acknowledged: dict[str, float] = {}
        self.refused: set[str] = set()
        self._quorum = quorum
        self._count = 0

    async def write(self, name: str) -> None:
        """Write a quota, with retries at all nodes until one acknowledges it."""
        while True:
            for node in self._quorum.running():
                self._count += 1
                value = float(self._count)
                self.attempted.setdefault(name, []).append(value)
                if await self._alter(node, name, [quota(value)]) is ErrorCode.none:
                    self.acknowledged[name] = value
                    return
            await asyncio.sleep(0.01)

    async def write_invalid(self, name: str) -> None:
        """Write a valid quota and an invalid one of a user, until a node refuses both."""
        self.refused.add(name)
        quotas = [quota(1.0), quota(2.0, "no_quota")]
        while True:
            for node in self._quorum.running():
                code = await self._alter(node, name, quotas)
                assert code is not ErrorCode.none
                if code is ErrorCode.invalid_request:
                    return
            await asyncio.sleep(0.01)

    async def _alter(
        self, node: NodeProcess, name: str, quotas: list[dict[str, Any]]
    ) -> ErrorCode | None:
        """Return the error code of a response; None without one."""
        entry = {"entity": [{"entity_type": "user", "entity_name": name}], "ops": quotas}
        response = await ask(node, KEY, entries=[entry])
        return None if response is None else response.entries[0].error_code

    async def until_written(self, count: int) -> None:
        """Wait until so many more writes are acknowledged."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted:
            await asyncio.sleep(0.005)

    async def run(self, is_ended: Callable[[], bool]) -> None:
        number = 0
        while not is_ended():
            await self.write(f"user-{number:05}")
            if not number % 10:
                await self.write_invalid(f"refused-{number:05}")
            number += 1


def quota(value: float, name: str = "producer_byte_rate") -> dict[str, Any]:
    return {"key": name, "value": value, "remove": False}


async def ask(node: NodeProcess, key: ApiKey, **values: Any) -> Any:
    """Return the response of a node; None without one."""
    async with ControllerConnections(RESPONSE_S) as connections:
        return await connections.ask(node.port, key, **values)


async def quotas_of_leader(quorum: QuorumProcesses) -> dict[str, float]:
    """Return the quotas that the active controller describes, by user.

    A node that is a standby then, or does not respond in time, is no answer: a busy machine elects
    another leader at any time.
    """
    async with asyncio.timeout(PATIENCE_S):
        while True:
            leader = max(quorum.nodes, key=active_epoch)
            epoch = active_epoch(leader)
            found = await ask(leader, ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False)
            is_newest = epoch == max(map(active_epoch, quorum.nodes))
            if found is not None and found.error_code is ErrorCode.none and is_newest:
                return {one.entity[0].entity_name: one.values[0].value for one in found.entries}
            await asyncio.sleep(0.01)


def appended_quotas(directory: Path) -> Counter[tuple[str, float]]:
    """Return the users and values of the records of a log, and how often each is there."""
    found: Counter[tuple[str, float]] = Counter()
    for path in sorted(directory.glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            for record in () if batch.is_control else batch.records():
                quotas = decode_record(record.value or b"").record
                if isinstance(quotas, ClientQuotaRecord):
                    found[quotas.entity[0].entity_name or "", quotas.value] += 1
    return found


def active_epoch(node: NodeProcess) -> int:
    """Return the epoch in which a node was the active controller last; 0: in none."""
    found = (
        re.match(r"Becoming the active controller at epoch (\d+)", line["reason"])
        for line in node.lines()
        if line["event"] == "controller"
    )
    return max((int(match[1]) for match in found if match), default=0)


async def kill_repeatedly(
    writer: QuotaWriter, quorum: QuorumProcesses, rng: Random, kill_count: int
) -> list[float]:
    """Kill and restart processes, most often that of the active controller; return the seconds
    from each of its kills to the next acknowledged write."""
    durations = []
    for _ in range(kill_count):
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


@pytest.mark.parametrize(("seed", "kill_count"), nightly_except([(1, 2)], [(1, 2), (1, 6), (2, 6)]))
def test_acknowledged_changes_survive_and_all_nodes_replay_the_same_state(
    tmp_path: Path, seed: int, kill_count: int, record_property: Callable[[str, object], None]
) -> None:
    with QuorumProcesses(tmp_path, extra=EXTRA) as quorum:
        writer = QuotaWriter(quorum)

        async def check() -> tuple[list[float], dict[str, float]]:
            kills = asyncio.create_task(kill_repeatedly(writer, quorum, Random(seed), kill_count))
            await writer.run(kills.done)
            return await kills, await quotas_of_leader(quorum)

        durations, described = asyncio.run(check())
        for node in quorum.nodes:
            assert node.stop() == 0
        pattern = str(tmp_path / "node-*" / "data" / "__cluster_metadata-0")
        status, _, err = run("check", pattern)
        assert status == 0, err
        committed = {
            row["entity"]["user"]: row["value"] for row in rows("state", pattern, "quotas")
        }
        assert described == committed, "the state of the last leader is that of a replay"
        assert writer.acknowledged.items() <= committed.items()
        for directory in tmp_path.glob("node-*/data/__cluster_metadata-0"):
            appended = appended_quotas(directory)
            assert set(appended.values()) == {1}, "no attempt is in the log twice"
            assert not writer.refused & {user for user, _ in appended}
            assert all(value in writer.attempted[user] for user, value in appended)
        assert writer.refused
    record_property(
        REPORT_LINE,
        f"kills of the active controller, seed {seed}: {len(durations)}; the next write after "
        f"{statistics.median(durations):.2f} s (median), {max(durations):.2f} s (longest); "
        f"{len(writer.acknowledged)} writes, none lost",
    )
