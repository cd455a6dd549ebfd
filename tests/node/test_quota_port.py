"""Quotas at a node's port: the response is immediate, then the connection is muted."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

import raftlog
from raftlog.append import AppendRequest, Done
from raftlog.client.remote import leader_client, sender
from raftlog.errors import QuorumUnavailableError
from raftlog.node.client_quotas import QuotaType
from raftlog.node.log_lines import LogLines
from raftlog.node.process import _reload
from raftlog.wire import ApiKey, decode, encode, latest_schemas
from raftlog.wire.log_identity import milliseconds
from tests.node.apis.batches import batch, produce
from tests.node.apis.requests import fetch
from tests.support.node_metrics import metrics_at
from tests.support.quorum_processes import free_ports
from tests.support.request_builder import request
from tests.support.served_node import RawConnection, ServedNode, appended, served_node

VERSION: Final = 9
ONE_RECORD: Final = b"x" * 2_000


def with_quotas(
    home: Path, quotas: str | None, check: Callable[[ServedNode], Awaitable[None]], extra: str = ""
) -> None:
    clients, voters = free_ports(2)
    listeners = (
        f'topic = "orders"\n[listeners.clients]\naddress = "127.0.0.1:{clients}"\n'
        f'[listeners.voters]\naddress = "127.0.0.1:{voters}"\n'
    )

    async def run() -> None:
        tables = extra if quotas is None else f"[[quotas]]\n{quotas}\n{extra}"
        async with served_node(home, tables, listeners=listeners) as node:
            await check(node)

    asyncio.run(run())


async def produced(connection: RawConnection, value: bytes = ONE_RECORD) -> tuple[int, int]:
    """Produce a record; return the error and the throttle time."""
    connection.ask(ApiKey.PRODUCE, VERSION, encode(produce(batch(value)), VERSION))
    _, body = await connection.answer(ApiKey.PRODUCE, VERSION)
    response = decode(latest_schemas.ProduceResponse, VERSION, body)
    error = response.responses[0].partition_responses[0].error_code
    return error, milliseconds(response.throttle_time)


async def appended_batches(node: ServedNode, *sizes: int) -> int:
    """Append a record of each size, in a batch of its own; return the offset of the first one."""
    offset = node.node.raft_node.replica.log.end_offset
    for size in sizes:
        request = AppendRequest(records=(b"x" * size,), deadline_ms=1e12)
        assert isinstance(await appended(node.node.raft_node, request), Done)
    return offset


async def fetched(connection: RawConnection, offset: int, **more: Any) -> tuple[int, int]:
    """Return the bytes of records of a fetch, and the throttle time."""
    connection.ask(ApiKey.FETCH, VERSION, encode(fetch(offset, **more), VERSION))
    _, body = await connection.answer(ApiKey.FETCH, VERSION)
    response = decode(latest_schemas.FetchResponse, VERSION, body)
    records = response.responses[0].partitions[0].records or b""
    return len(records), milliseconds(response.throttle_time)


def pass_throttle_times(node: ServedNode) -> None:
    """Unmute all connections, as at the end of their throttle times."""
    node.node.raft_node.throttled.expire(2**62)


async def is_served(node: ServedNode) -> None:
    """Wait for the responses to two requests on a connection of its own."""
    async with await node.connect() as connection:
        for _ in range(2):
            connection.ask_versions()
            await connection.answer(ApiKey.API_VERSIONS, 3)


def asked_versions(node: ServedNode) -> int:
    return node.node.server.metrics.requests["API_VERSIONS"]


def test_a_producer_beyond_its_quota_gets_its_response_and_is_muted(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            assert await produced(connection, b"small") == (0, 0)
            error, throttle_ms = await produced(connection)
            assert error == 0, "the append is done"
            # 2,000 bytes and the headers beyond 1,000 in 10 s, at 100 a second
            assert 10_000 < throttle_ms < 15_000
            quotas = node.node._apis.quotas
            assert quotas.muted_count == 1
            before = asked_versions(node)
            connection.ask_versions(7)
            await is_served(node)
            await is_served(node)
            assert asked_versions(node) == before + 4, "the request of the muted connection waits"
            pass_throttle_times(node)
            assert (await connection.answer(ApiKey.API_VERSIONS, 3))[0] == 7
            assert quotas.throttled_requests == {QuotaType.PRODUCE: 1}
            assert quotas.throttle_ms == {QuotaType.PRODUCE: throttle_ms}

    with_quotas(tmp_path, 'client_id = "test"\nproducer_byte_rate = 100', check)


def test_requests_that_were_received_before_are_started_after_the_throttle_time(
    tmp_path: Path,
) -> None:
    async def check(node: ServedNode) -> None:
        requests = node.node.server.metrics.requests
        async with await node.connect() as connection:
            body = encode(produce(batch(ONE_RECORD)), VERSION)
            for at in range(3):  # one write, one segment
                connection.ask(ApiKey.PRODUCE, VERSION, body, at)
            for at in range(3):
                assert (await connection.answer(ApiKey.PRODUCE, VERSION))[0] == at
                await is_served(node)
                assert requests["PRODUCE"] == at + 1
                pass_throttle_times(node)

    in_turn = "[limits]\nrequests_in_flight_max = 1\n"
    with_quotas(tmp_path, 'client_id = "test"\nproducer_byte_rate = 1', check, in_turn)


def test_a_muted_connection_that_is_lost_is_not_kept(tmp_path: Path) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            assert (await produced(connection))[1] > 0
            assert node.node._apis.quotas.muted_count == 1
            (lost,) = node.node.server.connections
            lost.abort()
            assert await connection.next_frame() is None
        assert node.node._apis.quotas.muted_count == 0

    with_quotas(tmp_path, 'client_id = "*"\nproducer_byte_rate = 1', check)


def test_a_consumer_beyond_its_quota_gets_no_records_until_the_throttle_time(
    tmp_path: Path,
) -> None:
    async def check(node: ServedNode) -> None:
        offset = await appended_batches(node, 600, 600, 9_000)
        async with await node.connect() as connection:
            first, throttle_ms = await fetched(connection, offset)
            assert 600 < first < 1_000, "no more than the quota allows in 10 s"
            assert throttle_ms == 0
            byte_count, throttle_ms = await fetched(connection, offset)
            assert (byte_count, throttle_ms > 0) == (0, True)
            pass_throttle_times(node)
            node.node._apis.quotas._manager._rates.clear()  # as after the window
            assert (await fetched(connection, offset))[0] == first

    with_quotas(tmp_path, 'user = "*"\nconsumer_byte_rate = 100', check)


def test_a_batch_larger_than_the_quota_is_read_by_a_consumer_that_read_nothing_before(
    tmp_path: Path,
) -> None:
    async def check(node: ServedNode) -> None:
        offset = await appended_batches(node, 9_000)
        async with await node.connect() as connection:
            byte_count, throttle_ms = await fetched(
                connection, offset, min_bytes=5_000, max_wait_ms=60_000
            )
            assert byte_count > 9_000
            assert throttle_ms > 80_000
            pass_throttle_times(node)
            byte_count, throttle_ms = await fetched(connection, offset)
            assert (byte_count, throttle_ms > 80_000) == (0, True)

    with_quotas(tmp_path, 'user = "anonymous"\nconsumer_byte_rate = 100', check)


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_QUORUM])
def test_request_time_beyond_the_quota_is_throttled_for_each_api(
    tmp_path: Path, key: ApiKey
) -> None:
    async def check(node: ServedNode) -> None:
        async with await node.connect() as connection:
            version = {ApiKey.METADATA: 9, ApiKey.API_VERSIONS: 3}.get(key, 1)
            body = encode(request(key), version)
            connection.ask(key, version, body)
            _, found = await connection.answer(key, version)
            quotas = node.node._apis.quotas
            assert quotas.throttled_requests[QuotaType.REQUEST] == 1
            throttle_ms = quotas.throttle_ms[QuotaType.REQUEST]
            assert 0 < throttle_ms <= 1_000
            if key is ApiKey.METADATA:
                response: Any = decode(latest_schemas.MetadataResponse, version, found)
                assert milliseconds(response.throttle_time) == throttle_ms
            elif key is ApiKey.API_VERSIONS:
                assert throttle_ms.to_bytes(4, "big") in found
            assert quotas.muted_count == 1

    with_quotas(tmp_path, 'client_id = "test"\nrequest_percentage = 1e-6', check)


def test_a_stock_producer_receives_the_throttle_time(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    def produce_by_librdkafka(port: int) -> list[float]:
        found: list[float] = []
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "client.id": "jobs",
                "throttle_cb": lambda event: found.append(event.throttle_time),
                "log_level": 0,
            }
        )
        producer.produce("orders", ONE_RECORD)
        assert producer.flush(20) == 0
        while not found:
            producer.poll(0.1)
        return found

    async def check(node: ServedNode) -> None:
        (found,) = await asyncio.to_thread(produce_by_librdkafka, node.port)
        quotas = node.node._apis.quotas
        assert round(found * 1000) == quotas.throttle_ms[QuotaType.PRODUCE] > 0
        figures = await asyncio.to_thread(metrics_at, metrics)
        assert figures["raftlog_throttled_requests_total", QuotaType.PRODUCE] == 1
        assert figures["raftlog_throttle_seconds_total", QuotaType.PRODUCE] == round(found, 3)
        assert figures["raftlog_quota_rates",] == 1

    (metrics,) = free_ports(1)
    extra = f'[metrics]\naddress = "127.0.0.1:{metrics}"\n'
    with_quotas(tmp_path, 'client_id = "jobs"\nproducer_byte_rate = 100', check, extra)


def test_raftlogs_client_waits_for_the_throttle_time_on_the_connection_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "RESPONSE_TIMEOUT_S", 0.7)
    monkeypatch.setattr(leader_client, "RESPONSE_TIMEOUT_S", 0.7)

    async def check(node: ServedNode) -> None:
        requests = node.node.server.metrics.requests
        with await asyncio.to_thread(raftlog.connect, f"127.0.0.1:{node.port}") as log:
            await asyncio.to_thread(log.append, b"small")
            before = set(node.node.server.connections)
            # beyond 50,000 bytes a second in 10 to 11 s by 0.9 to 1.9 s; the second is sent before
            named = log.append_async(b"x" * 595_000, commit=("jobs", "query", 0))
            pending = [named, log.append_async(b"in flight")]
            first, second = await asyncio.to_thread(lambda: [one.result() for one in pending])
            third = await asyncio.to_thread(log.append, b"held back")
            assert await asyncio.to_thread(lambda: log.end_offset) == third.end_offset
            assert [first.was_duplicate, second.was_duplicate] == [False, False]
            assert node.node._apis.quotas.throttle_ms[QuotaType.PRODUCE] > 800
            assert set(node.node.server.connections) == before
            assert requests["PRODUCE"] == 4, "nothing is repeated"

    quota = 'client_id = "raftlog"\nproducer_byte_rate = 50_000'
    with_quotas(tmp_path, quota, check, "[limits]\nrequests_in_flight_max = 1\n")


def test_what_a_client_does_not_send_for_a_throttle_time_has_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(node: ServedNode) -> None:
        requests = node.node.server.metrics.requests
        address = f"127.0.0.1:{node.port}"
        with await asyncio.to_thread(raftlog.connect, address, timeout_ms=2_000) as log:
            last = await asyncio.to_thread(log.append, ONE_RECORD)
            before = dict(requests)
            monkeypatch.setattr(log._quorum, "timeout_ms", 200)
            with pytest.raises(QuorumUnavailableError, match="throttles this client"):
                await asyncio.to_thread(log.append, b"late", timeout_ms=200)
            with pytest.raises(QuorumUnavailableError, match="throttles this client"):
                await asyncio.to_thread(lambda: log.end_offset)
            pass_throttle_times(node)
            await is_served(node)
            assert {**requests, "API_VERSIONS": 0} == {**before, "API_VERSIONS": 0}
            assert node.node.raft_node.replica.log.end_offset == last.end_offset

    with_quotas(tmp_path, 'client_id = "raftlog"\nproducer_byte_rate = 1', check)


def test_quotas_are_reloaded_and_stay_after_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"

    async def check(node: ServedNode) -> None:
        config = replace(node.config, path=str(path))
        text = (
            f'[node]\nid = 1\ndirectory = "{tmp_path / "data"}"\n'
            f'[listeners.both]\naddress = "127.0.0.1:{node.port}"\n'
        )

        def reload(quotas: str) -> None:
            path.write_text(text + quotas)
            _reload(config, node.node._settings, node.node, LogLines(io.StringIO(), 1))

        async with await node.connect() as connection:
            reload('[[quotas]]\nclient_id = "test"\nproducer_byte_rate = 100\n')
            assert (await produced(connection))[1] > 0
            pass_throttle_times(node)
            reload("[[quotas]]\nproducer_byte_rate = 1\n")
            assert (await produced(connection))[1] > 0
            pass_throttle_times(node)
            reload("")
            assert (await produced(connection))[1] == 0
        lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
        changes = [line.get("quotas") for line in lines if line["event"] == "reload"]
        quota = [[["client-id", "test"]], "producer_byte_rate", 100.0]
        assert [one for one in changes if one] == [
            {"old": [], "new": [quota]},
            {"old": [quota], "new": []},
        ]

    audit = f'[audit]\nfile = "{tmp_path / "audit.log"}"\n'
    with_quotas(tmp_path, None, check, audit)
