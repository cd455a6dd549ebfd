"""Metrics of a node over HTTP."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from raftlog.append import AppendRequest, Done
from raftlog.limits import KIB
from raftlog.wire import ApiKey
from tests.support.node_metrics import Figures, metrics_at
from tests.support.quorum_processes import QuorumProcesses, eventually, free_ports
from tests.support.served_node import ServedNode, appended, served_node


def with_metrics(
    home: Path, check: Callable[[ServedNode, Callable[[], Awaitable[Figures]]], Awaitable[None]]
) -> None:
    (port,) = free_ports(1)

    async def run() -> None:
        extra = f'[metrics]\naddress = "127.0.0.1:{port}"\n'
        async with served_node(home, extra) as node:
            await check(node, lambda: asyncio.to_thread(metrics_at, port))

    asyncio.run(run())


def test_metrics_describe_the_log_and_the_quorum(tmp_path: Path) -> None:
    async def check(node: ServedNode, ask: Callable[[], Awaitable[Figures]]) -> None:
        before = await ask()
        result = await appended(
            node.node.raft_node, AppendRequest(records=(b"a", b"b", b"c"), deadline_ms=1e12)
        )
        assert isinstance(result, Done)
        after = await ask()
        end = after["raftlog_log_end_offset",]
        assert (
            end
            == before["raftlog_log_end_offset",] + 3
            == node.node.raft_node.replica.log.end_offset
        )
        assert after["raftlog_synced_end_offset",] == after["raftlog_high_watermark",] == end
        assert after["raftlog_log_start_offset",] == 0
        assert after["raftlog_syncs_total",] > before["raftlog_syncs_total",] > 0
        assert after["raftlog_epoch",] == node.node.raft_node.replica.core.epoch
        assert (after["raftlog_leader_id",], after["raftlog_voters",]) == (1, 1)
        assert after["raftlog_elections_total",] == 1
        assert after["raftlog_sync_seconds_count",] >= after["raftlog_syncs_total",] - 1 > 0
        assert after["raftlog_sync_seconds_sum",] > before["raftlog_sync_seconds_sum",] > 0
        assert after["raftlog_sync_seconds_bucket", "+Inf"] == after["raftlog_sync_seconds_count",]
        assert after["raftlog_append_seconds_count",] == 1
        assert after["raftlog_append_seconds_bucket", "+Inf"] == 1
        assert after["raftlog_append_seconds_sum",] > 0
        assert (after["raftlog_ready",], after["raftlog_stalled_on_disk_full",]) == (1, 0)
        assert after["raftlog_withdrawn",] == after["raftlog_appends_waiting",] == 0
        roles = {labels[1]: count for labels, count in after.items() if labels[0] == "raftlog_role"}
        assert {role for role, count in roles.items() if count} == {"leader"}
        assert len(roles) == 6

    with_metrics(tmp_path, check)


@pytest.mark.slow
def test_a_node_without_a_majority_is_healthy_and_not_ready(tmp_path: Path) -> None:
    quorum, (port,) = QuorumProcesses(tmp_path), free_ports(1)
    with quorum.nodes[0].config.open("a") as file:
        file.write(f'[metrics]\naddress = "127.0.0.1:{port}"\n')

    def answer(path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    with quorum:
        eventually(lambda: answer("/ready") == (200, "ok\n"), "it is ready", patience_s=90)
        for other in quorum.nodes[1:]:
            other.kill()
        eventually(lambda: answer("/ready")[0] == 503, "it is not ready")
        status, reasons = eventually(
            lambda: found if "it has no leader" in (found := answer("/ready"))[1] else None,
            "the reason is a missing leader",
            patience_s=90,
        )
        assert (status, len(reasons.splitlines())) == (503, 1)
        assert answer("/health") == (200, "ok\n")
        quorum.nodes[1].start()
        eventually(lambda: answer("/ready") == (200, "ok\n"), "ready again", patience_s=90)


def test_metrics_describe_requests_and_the_memory_they_hold(tmp_path: Path) -> None:
    async def check(node: ServedNode, ask: Callable[[], Awaitable[Figures]]) -> None:
        before = await ask()
        assert before["raftlog_connections",] == 0
        async with await node.connect() as connection:
            connection.ask_versions(1)
            await connection.answer(ApiKey.API_VERSIONS, 3)
            during = await ask()
            assert during["raftlog_connections",] == 1
            assert during["raftlog_requests_total", "api_versions"] == 1
            connection.writer.write((50 * KIB).to_bytes(4, "big") + bytes(40 * KIB))
            async with asyncio.timeout(20):
                while (figures := await ask())["raftlog_held_bytes", "voters"] < 40 * KIB:
                    await asyncio.sleep(0.01)
            assert figures["raftlog_held_bytes", "clients"] == 0, (
                "clients of this listener may vote"
            )
            assert figures["raftlog_waiting_for_memory", "voters"] == 0
            node.node.server.metrics.closed_connections["memory"] += 3
            assert (await ask())["raftlog_connections_closed_total", "memory"] == 3
        async with asyncio.timeout(20):
            while (figures := await ask())["raftlog_connections",]:
                await asyncio.sleep(0.01)
        assert figures["raftlog_held_bytes", "voters"] == 0

    with_metrics(tmp_path, check)
