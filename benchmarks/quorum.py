"""Appends to three nodes on this machine: a raftlog quorum compared with etcd.

    python -m benchmarks.quorum [--appends N] [--rounds N] [--kills N] [--etcd PATH] [--json]

1 or 64 clients, each with one connection and one append in flight: 100 random bytes, acknowledged
when a majority has synced them. raftlog receives Produce requests, etcd puts of new keys through
its HTTP gateway, both from the same asyncio code in one process; the rounds of the two alternate
on the same disk. etcd is the binary given by `--etcd` or found in PATH (Debian's package
`etcd-server`), and is skipped if not found. Members of etcd sync what they write, as raftlog's
nodes do.

Failover: the leader is killed (SIGKILL) while a client appends; the time is from the kill to the
next acknowledged append. Both use their defaults: raftlog a fetch timeout and election timeout of
1 s, etcd an election timeout of 1 s.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from benchmarks.run import Row, row
from tests.support.quorum_processes import (
    NodeProcess,
    QuorumProcesses,
    eventually,
    free_ports,
)

from raftlog.client.remote.messages import TopicIdentity, produce_request
from raftlog.records import BatchBuilder
from raftlog.wire import (
    ApiKey,
    FrameDecoder,
    RequestHeader,
    decode,
    decode_response_header,
    encode_produce_request,
    encode_request_header,
    frame,
    latest_schemas,
)

VALUE_BYTES = 100
APPENDERS = 64
LOG = TopicIdentity("raftlog", topic_id=None, cluster_id=None, is_controller=False)
PRODUCE_VERSION = 11
ETCD = "etcd, three members, HTTP gateway"


class System(Protocol):
    """Three nodes that accept appends."""

    name: str

    async def connect(self) -> Callable[[bytes], Awaitable[bool]]:
        """Return a function that appends a value and returns whether it was acknowledged."""
        ...

    def kill_leader(self) -> Callable[[], None]:
        """Kill the leader's process; return a function that restarts it."""
        ...


# --- raftlog --------------------------------------------------------------------------------------


class RaftlogQuorum:
    """Three nodes of raftlog."""

    name = "raftlog"

    def __init__(self, home: Path, extra: str = "") -> None:
        """``extra`` is added to the configuration of the nodes."""
        self._nodes = QuorumProcesses(home, extra=extra)

    def __enter__(self) -> RaftlogQuorum:
        self._nodes.__enter__()
        eventually(lambda: self._leader(), "a leader")
        return self

    def __exit__(self, *error: Any) -> None:
        self._nodes.__exit__(*error)

    @property
    def process_ids(self) -> list[int]:
        return [node.process.pid for node in self._nodes.nodes if node.process is not None]

    @property
    def bootstrap(self) -> str:
        return self._nodes.bootstrap

    def leader_address(self) -> str:
        """Return the address of the leader, once there is one."""
        return eventually(self._leader, "a leader").address

    def _leader(self) -> NodeProcess | None:
        """Return the node that became leader last, if its process runs."""
        found = [
            (line["epoch"], line["node"])
            for node in self._nodes.nodes
            for line in node.lines()
            if line["event"] == "role" and line["new"] == "leader"
        ]
        if not found:
            return None
        node = self._nodes.node(max(found)[1])
        return node if node.is_running else None

    async def connect(self) -> Callable[[bytes], Awaitable[bool]]:
        leader = self._leader()
        if leader is None:
            raise ConnectionError("there is no leader")
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port)
        splitter = FrameDecoder(2**24, "the node")

        async def append(value: bytes) -> bool:
            header = RequestHeader(
                api_key=ApiKey.PRODUCE, api_version=PRODUCE_VERSION, correlation_id=1
            )
            writer.write(frame(encode_request_header(header), produced(value)))
            frames: list[bytes] = []
            while not frames:
                data = await reader.read(2**16)
                if not data:
                    raise ConnectionError("closed")
                frames = splitter.feed(data)
            _, start = decode_response_header(frames[0], ApiKey.PRODUCE, PRODUCE_VERSION)
            answer = decode(latest_schemas.ProduceResponse, PRODUCE_VERSION, frames[0], start=start)
            return int(answer.responses[0].partition_responses[0].error_code) == 0

        return append

    def kill_leader(self) -> Callable[[], None]:
        leader = eventually(self._leader, "a leader")
        leader.kill()
        return leader.start


def produced(value: bytes) -> bytes:
    """Return the body of a Produce request with one record."""
    builder = BatchBuilder(base_timestamp_ms=time.time_ns() // 1_000_000, byte_count_max=2**20)
    builder.append([value])
    request = produce_request(LOG, builder.build(0, -1).data, timeout_ms=30_000)
    return encode_produce_request(PRODUCE_VERSION, request)


# --- etcd -----------------------------------------------------------------------------------------


class Etcd:
    """Three members of etcd."""

    name = ETCD

    def __init__(self, home: Path, program: str) -> None:
        self._program = program
        self._home = home
        ports = free_ports(6)
        self._clients, self._peers = ports[:3], ports[3:]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * 3
        self._next_key = 0

    def __enter__(self) -> Etcd:
        for at in range(3):
            self._start(at)
        eventually(lambda: asyncio.run(self._leader()) is not None, "etcd has a leader")
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()

    def _start(self, at: int) -> None:
        peers = ",".join(f"m{n}=http://127.0.0.1:{port}" for n, port in enumerate(self._peers))
        client, peer = (f"http://127.0.0.1:{ports[at]}" for ports in (self._clients, self._peers))
        self._home.mkdir(parents=True, exist_ok=True)
        with (self._home / f"m{at}.log").open("ab") as lines:
            self._processes[at] = subprocess.Popen(
                [
                    self._program,
                    *("--name", f"m{at}", "--data-dir", str(self._home / f"m{at}")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                    *("--initial-cluster", peers, "--initial-cluster-state", "new"),
                    *("--log-level", "error"),
                ],
                stdout=lines,
                stderr=lines,
            )

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes if process is not None]

    def leader_address(self) -> str:
        """Return the address of the leader, once there is one."""
        found = eventually(lambda: [one for one in [_run(self._leader())] if one is not None], "it")
        return f"127.0.0.1:{self._clients[found[0]]}"

    async def _leader(self) -> int | None:
        """Return the leader, as a running member reports it."""
        for at, port in enumerate(self._clients):
            process = self._processes[at]
            if process is None or process.poll() is not None:
                continue
            with contextlib.suppress(OSError, KeyError, ValueError, EOFError):
                post = await _http(port)
                said = json.loads(await post("/v3/maintenance/status", b"{}"))
                if said.get("leader") == said["header"]["member_id"]:
                    return at
        return None

    async def connect(self) -> Callable[[bytes], Awaitable[bool]]:
        at = await self._leader()
        if at is None:
            raise ConnectionError("there is no leader")
        post = await _http(self._clients[at])

        async def append(value: bytes) -> bool:
            self._next_key += 1
            key = base64.b64encode(b"%012d" % self._next_key).decode()
            body = json.dumps({"key": key, "value": base64.b64encode(value).decode()}).encode()
            return b'"revision"' in await post("/v3/kv/put", body)

        return append

    def kill_leader(self) -> Callable[[], None]:
        at = eventually(lambda: [one for one in [_run(self._leader())] if one is not None], "a")[0]
        process = self._processes[at]
        assert process is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        return lambda: self._start(at)


def _run(work: Any) -> Any:
    """Run a coroutine in a thread of its own, because a loop may run in this one."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _http(port: int) -> Callable[[str, bytes], Awaitable[bytes]]:
    """Persistent connection: posts a body and returns that of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def post(path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return await reader.readexactly(length)

    return post


# --- measuring ------------------------------------------------------------------------------------


async def rate_of(system: System, appenders: int, count: int, seed: int) -> tuple[float, float]:
    """Return appends per second of this many clients, and the median latency in milliseconds."""
    chance = random.Random(seed)
    connections = [await system.connect() for _ in range(appenders)]
    times: list[float] = []

    async def work(append: Callable[[bytes], Awaitable[bool]], each: int) -> None:
        for _ in range(each):
            start = time.perf_counter()
            if not await append(chance.randbytes(VALUE_BYTES)):
                raise SystemExit(f"{system.name} refused an append")
            times.append(1000 * (time.perf_counter() - start))

    start = time.perf_counter()
    await asyncio.gather(*(work(one, count // appenders) for one in connections))
    elapsed = time.perf_counter() - start
    return len(times) / elapsed, statistics.median(times)


async def failover_s(system: System) -> float:
    """Return the seconds from killing the leader to the next acknowledged append."""
    append = await system.connect()
    await append(b"before")
    start_again = await asyncio.to_thread(system.kill_leader)
    start = time.perf_counter()
    while True:
        try:
            append = await asyncio.wait_for(system.connect(), 1)
            if await asyncio.wait_for(append(b"after"), 1):
                break
        except (OSError, EOFError, TimeoutError, ValueError, IndexError):
            await asyncio.sleep(0.005)
    elapsed = time.perf_counter() - start
    await asyncio.to_thread(start_again)
    return elapsed


def measure_rates(systems: list[System], count: int, rounds: int) -> Iterator[Row]:
    figures: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for at in range(rounds + 1):
        for system in systems:
            for appenders in (1, APPENDERS):
                appends = count if appenders > 1 else max(count // 20, 100)
                found = asyncio.run(rate_of(system, appenders, appends, at))
                if at:  # the first round is a warm-up
                    figures.setdefault((system.name, appenders), []).append(found)

    def median(name: str, appenders: int, which: int) -> float | None:
        found = figures.get((name, appenders))
        return statistics.median(one[which] for one in found) if found else None

    for appenders in (1, APPENDERS):
        measured, compared = (median(name, appenders, 0) for name in (RaftlogQuorum.name, ETCD))
        plural = "" if appenders == 1 else "s"
        what = f"durable appends on three nodes, {appenders} client{plural}"
        yield row(what, measured or 0, "appends/s", compared, ETCD)
    measured, compared = (median(name, 1, 1) for name in (RaftlogQuorum.name, ETCD))
    yield row("an append on three nodes, 1 client, median", measured or 0, "ms", compared, ETCD)


def measure_failovers(systems: list[System], kills: int) -> Iterator[Row]:
    found = {
        system.name: sorted(asyncio.run(failover_s(system)) for _ in range(kills))
        for system in systems
    }
    for words, at in (("median", kills // 2), ("longest", kills - 1)):
        measured = found[RaftlogQuorum.name][at]
        compared = found[ETCD][at] if ETCD in found else None
        yield row(
            f"failover after SIGKILL of the leader, {words} of {kills}",
            measured,
            "s",
            compared,
            ETCD,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--appends", type=int, default=6_400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--etcd", default=shutil.which("etcd"))
    parser.add_argument("--directory", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from benchmarks.append import measure_disk

    with (
        tempfile.TemporaryDirectory(dir=options.directory) as name,
        contextlib.ExitStack() as stack,
    ):
        home = Path(name)
        systems: list[System] = [stack.enter_context(RaftlogQuorum(home / "raftlog"))]
        if options.etcd:
            systems.append(stack.enter_context(Etcd(home / "etcd", options.etcd)))
        rows = [*measure_disk(home)]
        rows += measure_rates(systems, options.appends, options.rounds)
        if options.kills:
            rows += measure_failovers(systems, options.kills)
        for one in rows:
            print(json.dumps(one) if options.json else f"{one['what']}: {one}")


if __name__ == "__main__":
    main()
