"""CPU time of Fetch in a node: delayed fetches of consumers, and one commit of three nodes.

    python -m benchmarks.fetch [--rounds N] [--directory PATH] [--json]

Consumers: a node that leads a quorum of one receives the fetches of 64 connections at the end of
its log, and delays them until one record is appended by another connection. The figure is the CPU
time of the thread of the node's event loop for one fetch, a 64th of the append included.

Commits: three nodes with one event loop in this process; one client appends, one record of 100
bytes in flight. The figure is the CPU time of the event loop for one append: the leader's work and
that of both followers. Syncs run in other threads.

By stage: codec of the messages of that commit, without a socket.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks.produce import produced
from benchmarks.run import Row, print_row, row
from tests.node.apis.requests import fetch
from tests.support.quorum_processes import RARE_ELECTIONS, NodeProcess, free_ports
from tests.support.served_node import served_node

from raftlog.node.config import read_config
from raftlog.node.formatting import random_id, read_identity
from raftlog.node.log_lines import LogLines
from raftlog.node.process import Node
from raftlog.node.settings import ReloadableSettings
from raftlog.quorum.messages import FetchRequest, FetchResponse, LeaderAndEpoch
from raftlog.storage.local import ReservedDescriptorStorage
from raftlog.types import ReplicaKey
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    Listener,
    LogIdentity,
    ReceivedRequest,
    RequestHeader,
    decode_request,
    decode_response,
    encode,
    encode_request,
    encode_request_header,
    encode_response,
    frame,
    receive_request,
)

CONSUMERS: Final = 64
CONSUMER_VERSION: Final = 11
VERSION: Final = 18


# --- consumers ------------------------------------------------------------------------------------


def fetched(offset: int, ordinal: int) -> bytes:
    """Return the frame, with its length, of a consumer's fetch."""
    header = RequestHeader(
        api_key=ApiKey.FETCH,
        api_version=CONSUMER_VERSION,
        correlation_id=ordinal,
        client_id="benchmark",
    )
    body = encode(fetch(offset, max_wait_ms=30_000, topic="raftlog"), CONSUMER_VERSION)
    return frame(encode_request_header(header), body)


class Peer:
    """Blocking connection of a client."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._decoder = FrameDecoder(2**20, "the node")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> None:
        """Receive one response."""
        while True:
            data = self._socket.recv(2**16)
            if not data:
                raise SystemExit("the node closed the connection")
            if self._decoder.feed(data):
                return

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def follow(port: int, offset: int, rounds: int) -> None:
    """Fetch the records of ``rounds`` appends by all consumers."""
    with contextlib.ExitStack() as opened:
        consumers = [opened.enter_context(Peer(port)) for _ in range(CONSUMERS)]
        producer = opened.enter_context(Peer(port))
        for at in range(rounds):
            data = fetched(offset + at, at)
            for one in consumers:
                one.send(data)
            producer.send(produced(ordinal=at))
            for one in (producer, *consumers):
                one.receive()


async def consumer_us(home: Path, rounds: int) -> float:
    """Return the microseconds of CPU time of the event loop for one delayed fetch."""
    home.mkdir()
    async with served_node(home) as served:
        loop, log = asyncio.get_running_loop(), served.node.raft_node.replica.log
        with ThreadPoolExecutor(1) as client:
            for each in (rounds // 4, rounds):  # the first requests are a warm-up
                start = time.thread_time()
                await loop.run_in_executor(client, follow, served.port, log.end_offset, each)
                spent = time.thread_time() - start
        return 1e6 * spent / rounds / CONSUMERS


# --- commits of three nodes -----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def quorum(home: Path) -> AsyncIterator[list[Node]]:
    """Run three nodes on this event loop."""
    ports = free_ports(3)
    configured = [
        NodeProcess(home / f"n{at}", at + 1, port, extra=RARE_ELECTIONS)
        for at, port in enumerate(ports)
    ]
    cluster_id, voters = random_id(), ",".join(one.voter for one in configured)
    for one in configured:
        one.format(cluster_id, initial_voters=voters)
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for one in configured:
            config = read_config(one.config)
            storage = stack.enter_context(ReservedDescriptorStorage())
            node = Node(
                config,
                read_identity(config, storage),
                storage,
                settings=ReloadableSettings(config),
                lines=LogLines(io.StringIO(), config.node_id),
            )
            stack.push_async_callback(node.close)
            await node.start()
            nodes.append(node)
        while not any(one.raft_node.replica.core.is_leader for one in nodes):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        yield nodes


def append_all(port: int, count: int) -> None:
    """Append records one after another."""
    with Peer(port) as producer:
        for at in range(count):
            producer.send(produced(ordinal=at))
            producer.receive()


async def commit_us(home: Path, count: int) -> float:
    """Return the microseconds of CPU time of the event loop for one commit of three nodes."""
    async with quorum(home) as nodes:
        (leader,) = (one for one in nodes if one.raft_node.replica.core.is_leader)
        loop, log = asyncio.get_running_loop(), leader.raft_node.replica.log
        epoch, port = log.epoch, int(leader.server._sockets[0].getsockname()[1])
        with ThreadPoolExecutor(1) as client:
            for each in (count // 4, count):
                start = time.thread_time()
                await loop.run_in_executor(client, append_all, port, each)
                spent = time.thread_time() - start
        if log.epoch != epoch:
            raise SystemExit("another leader was elected")
        return 1e6 * spent / count


# --- by stage -------------------------------------------------------------------------------------


def timed(work: Callable[[], object], count: int) -> float:
    """Return the microseconds of CPU time of one call."""
    start = time.process_time()
    for _ in range(count):
        work()
    return 1e6 * (time.process_time() - start) / count


def stages(count: int) -> dict[str, float]:
    """Return the microseconds of each stage of a follower's fetch that gets one batch."""
    identity = LogIdentity(
        topic="raftlog", topic_id="AQIDBAUGBwgREhMUFRYXGA", cluster_id="AQIDBAUGBwgREhMUFRYXGA"
    )
    request = FetchRequest(
        replica=ReplicaKey(2, "AQIDBAUGBwgREhMUFRYXGA"),
        epoch=3,
        fetch_offset=1_000_000,
        last_fetched_epoch=3,
        max_bytes=8 << 20,
        max_wait_ms=500,
        high_watermark=999_999,
    )
    response = FetchResponse(
        leader_and_epoch=LeaderAndEpoch(epoch=3, leader_id=1),
        high_watermark=1_000_000,
        log_start_offset=0,
        records=bytes(170),
    )
    header = RequestHeader(
        api_key=ApiKey.FETCH, api_version=VERSION, correlation_id=7, client_id="raftlog-2"
    )
    head = encode_request_header(header)
    body = encode_request(request, VERSION, identity)
    received = receive_request(head + body, Listener.VOTERS)
    assert isinstance(received, ReceivedRequest)
    answer = b"".join(encode_response(ApiKey.FETCH, VERSION, response, identity))
    work: dict[str, Callable[[], object]] = {
        "encode the request's header": lambda: encode_request_header(header),
        "encode the request": lambda: encode_request(request, VERSION, identity),
        "decode the request's header": lambda: receive_request(head + body, Listener.VOTERS),
        "decode the request": lambda: decode_request(
            ApiKey.FETCH, VERSION, head + body, identity, start=received.body_start
        ),
        "encode the response": lambda: b"".join(
            encode_response(ApiKey.FETCH, VERSION, response, identity)
        ),
        "decode the response": lambda: decode_response(ApiKey.FETCH, VERSION, answer, identity),
    }
    return {name: timed(one, count) for name, one in work.items()}


def measure(home: Path, rounds: int) -> Iterator[Row]:
    """Yield the rows: medians of three runs."""
    each = [asyncio.run(consumer_us(home / f"consumers-{at}", rounds)) for at in range(3)]
    yield row("Fetch of a consumer, delayed", statistics.median(each), "us CPU")
    each = [asyncio.run(commit_us(home / f"commits-{at}", 8 * rounds)) for at in range(3)]
    total = statistics.median(each)
    yield row("one append on three nodes, event loops together", total, "us CPU")
    stages(rounds)
    found = [stages(10 * rounds) for _ in range(3)]
    for stage in found[0]:
        spent = statistics.median(one[stage] for one in found)
        yield row(f"Fetch of a follower: {stage}", spent, "us CPU", total, "the append")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--directory", type=Path, help="parent of the logs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as home:
        for one in measure(Path(home), options.rounds):
            print_row(one, as_json=options.json, decimals=1)


if __name__ == "__main__":
    main()
