"""Appends to three nodes on this machine: raftlog, etcd and NATS JetStream.

    python -m benchmarks.quorum [--rounds N] [--clients 1,8,64,256] [--kills N] [--json]

All three have three processes, sync before they acknowledge (JetStream: `sync_interval: always`),
and get records of 100 bytes from one program in Go, `peers/load`: each client has a connection
and one append in flight. raftlog receives prebuilt frames of Produce requests, so that its client
is not what is measured; etcd and NATS are asked by their own clients, and etcd through its HTTP
gateway too. A round measures every row, the systems in turn; a figure is the median of the rounds
after the first. The processor time of the three processes of a system has its own rows: compare
these if the machine is busy.

- plain: Produce without a producer id; etcd: a put of a new key; JetStream: a publish.
- idempotent: each client has a producer id and sequences.
- named: each client has an application id, and a version with each append.
- conditional: with the end offset that the batch requires, so on one connection with as many
  requests in flight as there are clients; etcd: a transaction that requires a new key.

Failover: the leader is killed (SIGKILL) while a client appends; the time is from the kill to the
next acknowledged append. Both use their defaults: raftlog a fetch timeout and election timeout of
1 s, etcd an election timeout of 1 s.

The programs are built from `benchmarks/peers` into `build/peers`, if `go` is found and the modules
can be downloaded; otherwise the benchmark is skipped, and prints why.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.append import measure_disk
from benchmarks.run import HOME, Row, print_row, row
from tests.support.quorum_processes import (
    NodeProcess,
    QuorumProcesses,
    eventually,
    free_ports,
)

import raftlog
from raftlog.client.remote.messages import TopicIdentity, produce_request
from raftlog.log.reading.transactions import CommitName, commit_header
from raftlog.records.builder import NO_PRODUCER, BatchBuilder, ProducerStamp
from raftlog.records.record import NewRecord
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

SOURCES: Final = HOME / "benchmarks" / "peers"
PROGRAMS: Final = HOME / "build" / "peers"
LIMITS: Final = "[limits]\nstranger_connections_max = 500\n"
"""All clients connect before the first request, which shows that one has rights."""
ATTEMPTS_MAX: Final = 5
BUILD_TIMEOUT_S: Final = 1800
PRODUCE_VERSION: Final = 11
VALUE: Final = bytes(range(100))
LOG: Final = TopicIdentity("raftlog", topic_id=None, cluster_id=None, is_controller=False)
APPENDS: Final = {1: 200, 8: 1_600, 64: 6_400, 256: 10_240}
CPU_CLIENTS: Final = 64
KINDS: Final = ("plain", "idempotent", "named", "conditional")
PUTS: Final = ("etcd", "txn", "gateway")
"""Puts of new keys in etcd: over gRPC, under the condition that the key is new, over HTTP."""
ETCD: Final = "etcd, gRPC"
GATEWAY: Final = "etcd, HTTP gateway"
NATS: Final = "JetStream, sync always"


def build() -> str | None:
    """Build the programs; return why that is not possible, None if they are built."""
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if go is None:
        return "go is not installed"
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    command = [go, "build", "-p", "2", "-o", f"{PROGRAMS}/", "./etcd", "./nats", "./load"]
    try:
        subprocess.run(
            command,
            cwd=SOURCES,
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"go build took more than {BUILD_TIMEOUT_S} s"
    except subprocess.CalledProcessError as failed:
        return f"go build failed: {failed.stderr.strip().splitlines()[-1]}"
    return None


# --- raftlog --------------------------------------------------------------------------------------


class RaftlogQuorum:
    """Three nodes of raftlog."""

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

    def __init__(self, home: Path) -> None:
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
                    str(PROGRAMS / "etcd"),
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


# --- NATS -----------------------------------------------------------------------------------------


class Nats:
    """Three servers of NATS with JetStream."""

    def __init__(self, home: Path) -> None:
        self._home = home
        ports = free_ports(6)
        self._clients, self._routes = ports[:3], ports[3:]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._clients[0]}"

    def __enter__(self) -> Nats:
        self._home.mkdir(parents=True)
        routes = ", ".join(f"nats-route://127.0.0.1:{port}" for port in self._routes)
        for at, (client, route) in enumerate(zip(self._clients, self._routes, strict=True)):
            config = self._home / f"n{at}.conf"
            config.write_text(
                f"server_name: n{at}\nlisten: 127.0.0.1:{client}\n"
                f'jetstream {{ store_dir: "{self._home}/n{at}", sync_interval: always }}\n'
                f"cluster {{ name: c, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n"
            )
            with (self._home / f"n{at}.log").open("wb") as lines:
                command = [str(PROGRAMS / "nats"), "-c", str(config)]
                self._processes.append(subprocess.Popen(command, stdout=lines, stderr=lines))
        eventually(lambda: self._is_ready(), "JetStream has a leader")
        return self

    def _is_ready(self) -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            load("nats", self.address, 1, 2, "ready")
            return True
        return False

    def __exit__(self, *_: Any) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


System: TypeAlias = RaftlogQuorum | Etcd | Nats


def repeated(
    measure_once: Callable[[], dict[str, float]], system: System, count: int
) -> dict[str, float]:
    """Measure, and again after an election: on a busy machine any system may lose its leader.

    Adds the processor time of an append, of ``count``.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        before_s = cpu_s(system.process_ids)
        try:
            result = measure_once()
        except subprocess.CalledProcessError as failed:
            print(f"measured again: {failed}", file=sys.stderr)
            if attempt == ATTEMPTS_MAX:
                raise
        else:
            result["cpu_us"] = 1e6 * (cpu_s(system.process_ids) - before_s) / count
            return result
    raise AssertionError("the last attempt returns or raises")


def load(system: str, address: str, clients: int, count: int, last: str) -> dict[str, float]:
    """Let clients append, ``count`` each; return appends per second and median milliseconds."""
    command = [str(PROGRAMS / "load"), system, address, str(clients), str(count), last]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


# --- frames of raftlog ----------------------------------------------------------------------------


class Frames:
    """Frames of Produce requests. ``round_id`` makes producers and names unique."""

    def __init__(self, kind: str, round_id: int, base_offset: int, epoch: int) -> None:
        self._kind = kind
        self._round_id = round_id
        self._base_offset = base_offset
        self._epoch = epoch

    def of(self, clients: int, count: int) -> bytes:
        """Return the frames of all clients, those of each one together."""
        return b"".join(
            self._frame(client, number, client * count + number)
            for client in range(clients)
            for number in range(count)
        )

    def _frame(self, client: int, number: int, ordinal: int) -> bytes:
        stamp, record = NO_PRODUCER, NewRecord(None, VALUE)
        if self._kind == "idempotent":
            stamp = ProducerStamp((self._round_id << 16) + client, 0, number)
        elif self._kind == "named":
            name = CommitName(f"app-{self._round_id}-{client}", "query", number)
            record = NewRecord(None, VALUE, None, (commit_header(name),))
        builder = BatchBuilder(base_timestamp_ms=time.time_ns() // 1_000_000, producer=stamp)
        builder.append([record])
        data = builder.build(0, 0).data
        if self._kind == "conditional":
            base_offset = struct.pack(">q", self._base_offset + ordinal)
            data = base_offset + data[8:12] + struct.pack(">i", self._epoch) + data[16:]
        header = RequestHeader(
            api_key=ApiKey.PRODUCE,
            api_version=PRODUCE_VERSION,
            correlation_id=number,
            client_id="load",
        )
        body = encode_produce_request(
            PRODUCE_VERSION, produce_request(LOG, data, timeout_ms=30_000)
        )
        return frame(encode_request_header(header), body)


def append_to_raftlog(
    quorum: RaftlogQuorum, kind: str, clients: int, count: int, path: Path
) -> dict[str, float]:
    """Append prebuilt frames to the leader."""
    with raftlog.connect(quorum.bootstrap) as log:
        before = log.append(b"before")
    frames = Frames(kind, time.time_ns() // 1000 % 2**40, before.end_offset, before.epoch)
    if kind == "conditional":
        path.write_bytes(frames.of(1, clients * count))
        return load("window", quorum.leader_address(), clients, count, str(path))
    path.write_bytes(frames.of(clients, count))
    return load("raftlog", quorum.leader_address(), clients, count, str(path))


# --- measuring ------------------------------------------------------------------------------------


def cpu_s(process_ids: Sequence[int]) -> float:
    """Return the processor time of processes, their threads included."""
    ticks = 0
    for process_id in process_ids:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def load_etcd(etcd: Etcd, what: str, clients: int, count: int) -> dict[str, float]:
    """Put new keys at the leader."""
    return load(what, etcd.leader_address(), clients, count, f"{what}-{time.time_ns()}")


def measure_rates(
    quorum: RaftlogQuorum, etcd: Etcd, nats: Nats, client_counts: list[int], rounds: int, home: Path
) -> Iterator[Row]:
    """Measure all systems in each round; yield the rows of the medians."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for at in range(rounds + 1):
        for clients in client_counts:
            system: System
            count = max(APPENDS[clients] // clients, 2)
            for what in (*KINDS, *PUTS, "publish"):
                if what in KINDS:
                    system, path = quorum, home / "frames"
                    once = partial(append_to_raftlog, quorum, what, clients, count, path)
                elif what == "publish":
                    system = nats
                    once = partial(load, "nats", nats.address, clients, count, "log")
                else:
                    system, once = etcd, partial(load_etcd, etcd, what, clients, count)
                result = repeated(once, system, clients * count)
                if at:  # the first round is a warm-up
                    found.setdefault((what, clients), []).append(result)

    def rows_of(
        what: str, of: str, clients: int, unit: str, figure: str, others: dict[str, str]
    ) -> Iterator[Row]:
        """Yield the rows of one kind of append, compared with each of the others by name."""
        measured, *compared = (
            statistics.median(one[figure] for one in found[each, clients])
            for each in (what, *others.values())
        )
        for name, against in zip(others, compared, strict=True):
            yield row(of, measured, unit, against, name)

    for clients in client_counts:
        of = f"three nodes, {clients} client{'s' * (clients > 1)}"
        for kind in KINDS:
            others = {ETCD: "txn" if kind == "conditional" else "etcd"}
            if kind == "plain":
                others |= {GATEWAY: "gateway", NATS: "publish"}
            yield from rows_of(kind, f"{kind} appends, {of}", clients, "appends/s", "per_s", others)
            if clients == CPU_CLIENTS:
                name = f"CPU of all nodes, {kind} appends, {of}"
                yield from rows_of(kind, name, clients, "us", "cpu_us", others)
    if 1 in client_counts:
        name, others = "one append, three nodes, 1 client, median", {ETCD: "etcd"}
        yield from rows_of("plain", name, 1, "ms", "median_ms", others)


async def failover_s(system: RaftlogQuorum | Etcd) -> float:
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


def measure_failovers(quorum: RaftlogQuorum, etcd: Etcd, kills: int) -> Iterator[Row]:
    measured, compared = (
        sorted(asyncio.run(failover_s(system)) for _ in range(kills)) for system in (quorum, etcd)
    )
    for words, at in (("median", kills // 2), ("longest", kills - 1)):
        what = f"failover after SIGKILL of the leader, {words} of {kills}"
        yield row(what, measured[at], "s", compared[at], GATEWAY)


def measure(home: Path, client_counts: list[int], rounds: int, kills: int) -> Iterator[Row]:
    yield from measure_disk(home)
    with (
        RaftlogQuorum(home / "raftlog", LIMITS) as quorum,
        Etcd(home / "etcd") as etcd,
        Nats(home / "nats") as nats,
    ):
        yield from measure_rates(quorum, etcd, nats, client_counts, rounds, home)
        if kills:
            yield from measure_failovers(quorum, etcd, kills)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default=",".join(map(str, APPENDS)))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reason = build()
    if reason is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return
    client_counts = [int(one) for one in options.clients.split(",")]
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        for one in measure(Path(name), client_counts, options.rounds, options.kills):
            print_row(one, as_json=options.json, decimals=2 if one["unit"] in ("ms", "s") else 0)


if __name__ == "__main__":
    main()
