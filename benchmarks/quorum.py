"""Appends to three nodes on this machine: raftlog, etcd and NATS JetStream.

    python -m benchmarks.quorum [--rounds N] [--clients 1,8,64,256] [--kills N] [--json]
        [--only idle,rates,records,five,failovers,controllers]

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

`records`: values of 2,000 and 3,000 bytes, and of 3,000 bytes of text that the producer compresses
(lz4, which is not the codec of the log). `five`: five nodes. `idle`: memory and processor time of
a node without requests.

Failover: the leader is killed (SIGKILL) while a client appends; the time is from the kill to the
next acknowledged append. Both use their defaults: raftlog a fetch timeout and election timeout of
1 s, etcd an election timeout of 1 s. `controllers`: failover of changes of metadata, beside Apache
Kafka's controllers (`benchmarks.killed_controllers`). `--kills 2` is quick.

The programs are built from `benchmarks/peers` into `build/peers`, if `go` is found and the modules
can be downloaded; otherwise the parts except `controllers` are skipped. Those need Java, and
the jars of Kafka or Maven. The benchmark prints why a part is skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from benchmarks.append import measure_disk
from benchmarks.killed_controllers import failover_rows, measure_controllers, why_not
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
from raftlog.records.compression import Compression
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
LIMITS: Final = "[limits]\nstranger_connections_max = 500\nconnection_rate_per_address_max = 1000\n"
"""All clients connect before the first request, which shows that one has rights."""
ATTEMPTS_MAX: Final = 5
BUILD_TIMEOUT_S: Final = 1800
PRODUCE_VERSION: Final = 11
VALUE_BYTES: Final = 100
LOG: Final = TopicIdentity("raftlog", topic_id=None, cluster_id=None, is_controller=False)
APPENDS: Final = {1: 200, 8: 1_600, 64: 6_400, 256: 10_240}
CPU_CLIENTS: Final = 64
LARGE_VALUES: Final = (("plain", 2_000), ("plain", 3_000), ("compressed", 3_000))
"""Kind of appends, and bytes of a value, of 64 clients."""
FIVE_CLIENTS: Final = (1, 64)
IDLE_S: Final = 10
PARTS: Final = ("idle", "rates", "records", "five", "failovers", "controllers")
KINDS: Final = ("plain", "idempotent", "named", "conditional")
PUTS: Final = ("etcd", "txn", "gateway")
"""Puts of new keys in etcd: over gRPC, under the condition that the key is new, over HTTP."""
ETCD: Final = "etcd, gRPC"
GATEWAY: Final = "etcd, HTTP gateway"
NATS: Final = "JetStream, sync always"


K = TypeVar("K")


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
    """Nodes of raftlog."""

    def __init__(self, home: Path, extra: str = "", *, node_count: int = 3) -> None:
        """``extra`` is added to the configuration of the nodes."""
        self._nodes = QuorumProcesses(home, node_count, extra=extra)

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
    """Members of etcd."""

    def __init__(self, home: Path, *, member_count: int = 3) -> None:
        self._home = home
        ports = free_ports(2 * member_count)
        self._clients, self._peers = ports[:member_count], ports[member_count:]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * member_count
        self._next_key = 0

    def __enter__(self) -> Etcd:
        for at in range(len(self._processes)):
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


def load(
    system: str, address: str, clients: int, count: int, last: str, value_bytes: int = VALUE_BYTES
) -> dict[str, float]:
    """Let clients append, ``count`` each; return appends per second and median milliseconds."""
    numbers = (str(clients), str(count))
    command = [str(PROGRAMS / "load"), system, address, *numbers, last, str(value_bytes)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


# --- frames of raftlog ----------------------------------------------------------------------------


class Frames:
    """Frames of Produce requests. ``round_id`` makes producers and names unique."""

    def __init__(
        self, kind: str, round_id: int, base_offset: int, epoch: int, value_bytes: int = VALUE_BYTES
    ) -> None:
        self._value = value_of(value_bytes, is_text=kind == "compressed")
        self._codec = Compression.LZ4 if kind == "compressed" else Compression.NONE
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
        stamp, record = NO_PRODUCER, NewRecord(None, self._value)
        if self._kind == "idempotent":
            stamp = ProducerStamp((self._round_id << 16) + client, 0, number)
        elif self._kind == "named":
            name = CommitName(f"app-{self._round_id}-{client}", "query", number)
            record = NewRecord(None, self._value, None, (commit_header(name),))
        builder = BatchBuilder(
            base_timestamp_ms=time.time_ns() // 1_000_000, producer=stamp, compression=self._codec
        )
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


def value_of(byte_count: int, *, is_text: bool) -> bytes:
    """Return a value that compresses as JSON does, or bytes that hardly compress."""
    if is_text:
        lines = (f'{{"id": {7919 * at}, "state": "running"}}' for at in range(byte_count // 8))
        return "\n".join(lines).encode()[:byte_count]
    return random.Random(byte_count).randbytes(byte_count)


def append_to_raftlog(
    quorum: RaftlogQuorum,
    kind: str,
    clients: int,
    count: int,
    path: Path,
    value_bytes: int = VALUE_BYTES,
) -> dict[str, float]:
    """Append prebuilt frames to the leader."""
    with raftlog.connect(quorum.bootstrap) as log:
        before = log.append(b"before")
    round_id = time.time_ns() // 1000 % 2**40
    frames = Frames(kind, round_id, before.end_offset, before.epoch, value_bytes)
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


def load_etcd(
    etcd: Etcd, what: str, clients: int, count: int, value_bytes: int = VALUE_BYTES
) -> dict[str, float]:
    """Put new keys at the leader."""
    prefix = f"{what}-{time.time_ns()}"
    return load(what, etcd.leader_address(), clients, count, prefix, value_bytes)


Measured: TypeAlias = Callable[[], dict[str, float]]


def medians(runs: Mapping[K, Measured], rounds: int) -> dict[K, dict[str, float]]:
    """Measure all in turn in each round; return the medians of the rounds after the first."""
    found: dict[K, list[dict[str, float]]] = {key: [] for key in runs}
    for at in range(rounds + 1):
        for key, measure_once in runs.items():
            result = measure_once()
            if at:  # the first round is a warm-up
                found[key].append(result)
    return {
        key: {name: statistics.median(one[name] for one in results) for name in results[0]}
        for key, results in found.items()
    }


def raftlog_run(
    quorum: RaftlogQuorum, kind: str, clients: int, home: Path, value_bytes: int = VALUE_BYTES
) -> Measured:
    """Return a measurement of appends to raftlog."""
    count = appends_of_one(clients)
    path = home / "frames"
    once = partial(append_to_raftlog, quorum, kind, clients, count, path, value_bytes)
    return partial(repeated, once, quorum, clients * count)


def etcd_run(etcd: Etcd, what: str, clients: int, value_bytes: int = VALUE_BYTES) -> Measured:
    """Return a measurement of puts in etcd."""
    count = appends_of_one(clients)
    once = partial(load_etcd, etcd, what, clients, count, value_bytes)
    return partial(repeated, once, etcd, clients * count)


def appends_of_one(clients: int) -> int:
    """Return the number of appends of each client."""
    return max(APPENDS[clients] // clients, 2)


def measure_rates(
    quorum: RaftlogQuorum, etcd: Etcd, nats: Nats, client_counts: list[int], rounds: int, home: Path
) -> Iterator[Row]:
    """Measure all systems in each round; yield the rows of the medians."""
    runs: dict[tuple[str, int], Measured] = {}
    for clients in client_counts:
        for kind in KINDS:
            runs[kind, clients] = raftlog_run(quorum, kind, clients, home)
        for what in PUTS:
            runs[what, clients] = etcd_run(etcd, what, clients)
        count = appends_of_one(clients)
        once = partial(load, "nats", nats.address, clients, count, "log")
        runs["publish", clients] = partial(repeated, once, nats, clients * count)
    found = medians(runs, rounds)

    def rows_of(
        what: str, of: str, clients: int, unit: str, figure: str, others: dict[str, str]
    ) -> Iterator[Row]:
        """Yield the rows of one kind of append, compared with each of the others by name."""
        measured, *compared = (found[each, clients][figure] for each in (what, *others.values()))
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


def measure_records(quorum: RaftlogQuorum, etcd: Etcd, rounds: int, home: Path) -> Iterator[Row]:
    """Measure larger values of 64 clients, also compressed."""
    clients = CPU_CLIENTS
    runs: dict[tuple[str, int], Measured] = {}
    for kind, value_bytes in LARGE_VALUES:
        runs[kind, value_bytes] = raftlog_run(quorum, kind, clients, home, value_bytes)
        runs["etcd", value_bytes] = etcd_run(etcd, "etcd", clients, value_bytes)
    found = medians(runs, rounds)
    for kind, value_bytes in LARGE_VALUES:
        of = f"{kind} appends of {value_bytes:,} bytes, three nodes, {clients} clients"
        yield from beside_etcd(of, found[kind, value_bytes], found["etcd", value_bytes])


def measure_five(rounds: int, home: Path) -> Iterator[Row]:
    """Measure five nodes."""
    with (
        RaftlogQuorum(home / "raftlog-5", LIMITS, node_count=5) as quorum,
        Etcd(home / "etcd-5", member_count=5) as etcd,
    ):
        runs: dict[tuple[str, int], Measured] = {}
        for clients in FIVE_CLIENTS:
            runs["plain", clients] = raftlog_run(quorum, "plain", clients, home)
            runs["etcd", clients] = etcd_run(etcd, "etcd", clients)
        found = medians(runs, rounds)
    for clients in FIVE_CLIENTS:
        of = f"plain appends, five nodes, {clients} client{'s' * (clients > 1)}"
        yield from beside_etcd(of, found["plain", clients], found["etcd", clients])


def beside_etcd(of: str, measured: dict[str, float], etcd: dict[str, float]) -> Iterator[Row]:
    """Yield rate and processor time beside those of etcd over gRPC."""
    yield row(of, measured["per_s"], "appends/s", etcd["per_s"], ETCD)
    yield row(f"CPU of all nodes, {of}", measured["cpu_us"], "us", etcd["cpu_us"], ETCD)


def measure_idle(quorum: RaftlogQuorum, etcd: Etcd) -> Iterator[Row]:
    """Measure nodes that have elected a leader, before their first request."""
    systems: tuple[System, ...] = (quorum, etcd)
    before = [cpu_s(system.process_ids) for system in systems]
    time.sleep(IDLE_S)
    cores = [
        100 * (cpu_s(system.process_ids) - start) / IDLE_S / len(system.process_ids)
        for system, start in zip(systems, before, strict=True)
    ]
    own, compared = (statistics.median(map(resident_mib, system.process_ids)) for system in systems)
    yield row("idle node of three: memory", own, "MiB", compared, "etcd")
    yield row("idle node of three: processor time", cores[0], "% of a core", cores[1], "etcd")


def resident_mib(process_id: int) -> float:
    """Return the resident memory of a process."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith("VmRSS:"))
    return int(found.split()[1]) / 1024


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
    yield from failover_rows("failover after SIGKILL of the leader", measured, compared, GATEWAY)


def measure(
    home: Path, client_counts: list[int], rounds: int, kills: int, parts: set[str]
) -> Iterator[Row]:
    yield from measure_disk(home)
    if parts & {"idle", "rates", "records", "failovers"}:
        yield from measure_three(home, client_counts, rounds, kills, parts)
    if "five" in parts:
        yield from measure_five(rounds, home)
    if "controllers" in parts and kills:
        yield from measure_controllers(home, kills)


def measure_three(
    home: Path, client_counts: list[int], rounds: int, kills: int, parts: set[str]
) -> Iterator[Row]:
    """Measure the parts with three nodes of each system."""
    with (
        RaftlogQuorum(home / "raftlog", LIMITS) as quorum,
        Etcd(home / "etcd") as etcd,
        Nats(home / "nats") as nats,
    ):
        if "idle" in parts:
            yield from measure_idle(quorum, etcd)
        if "rates" in parts:
            yield from measure_rates(quorum, etcd, nats, client_counts, rounds, home)
        if "records" in parts:
            yield from measure_records(quorum, etcd, rounds, home)
        if "failovers" in parts and kills:
            yield from measure_failovers(quorum, etcd, kills)


def possible_parts(wanted: set[str]) -> set[str]:
    """Return the parts whose peers are there; print why others are skipped."""
    found = set(wanted)
    for parts, reason_of in ((set(PARTS) - {"controllers"}, build), ({"controllers"}, why_not)):
        reason = reason_of() if found & parts else None
        if reason is not None:
            print(f"skipped {', '.join(sorted(found & parts))}: {reason}", file=sys.stderr)
            found -= parts
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default=",".join(map(str, APPENDS)))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--directory", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = set(options.only.split(","))
    if not wanted <= set(PARTS):
        parser.error(f"--only is a list of {', '.join(PARTS)}")
    parts = possible_parts(wanted)
    if not parts:
        return
    client_counts = [int(one) for one in options.clients.split(",")]
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        for one in measure(Path(name), client_counts, options.rounds, options.kills, parts):
            decimals = 2 if one["unit"] in ("ms", "s", "% of a core") else 0
            print_row(one, as_json=options.json, decimals=decimals)


if __name__ == "__main__":
    main()
