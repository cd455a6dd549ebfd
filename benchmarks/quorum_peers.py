"""Appends to three nodes on this machine: raftlog, etcd over gRPC, and NATS JetStream.

    python -m benchmarks.quorum_peers [--rounds N] [--clients 1,8,64,256] [--json]

All three have three processes, sync before they acknowledge (JetStream: `sync_interval: always`),
and get records of 100 bytes from one program in Go, `peers/load`: each client has a connection
and one append in flight. raftlog receives prebuilt frames of Produce requests, so that its client
is not what is measured; etcd and NATS are asked by their own clients. A round measures every row,
the systems in turn; a figure is the median of the rounds after the first. The processor time of
the three processes of a system has its own rows: compare these if the machine is busy.

- plain: Produce without a producer id; etcd: a put of a new key; JetStream: a publish.
- idempotent: each client has a producer id and sequences.
- named: each client has an application id, and a version with each append.
- conditional: with the end offset that the batch requires, so on one connection with as many
  requests in flight as there are clients; etcd: a transaction that requires a new key.

The programs are built from `benchmarks/peers` into `build/peers`, if `go` is found and the modules
can be downloaded; otherwise the benchmark is skipped, and prints why.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.quorum import Etcd, RaftlogQuorum
from benchmarks.run import HOME, Row, print_row, row
from tests.support.quorum_processes import eventually, free_ports

import raftlog
from raftlog.client.remote.messages import TopicIdentity, produce_request
from raftlog.log.reading.transactions import CommitName, commit_header
from raftlog.records.builder import NO_PRODUCER, BatchBuilder, ProducerStamp
from raftlog.records.record import NewRecord
from raftlog.wire import ApiKey, RequestHeader, encode_produce_request, encode_request_header, frame

SOURCES: Final = HOME / "benchmarks" / "peers"
PROGRAMS: Final = HOME / "build" / "peers"
LIMITS: Final = "[limits]\nstranger_connections_max = 500\n"
"""All clients connect before the first request, which shows that one has rights."""
ATTEMPTS_MAX: Final = 5
BUILD_TIMEOUT_S: Final = 1800
VERSION: Final = 11
VALUE: Final = bytes(range(100))
LOG: Final = TopicIdentity("raftlog", topic_id=None, cluster_id=None, is_controller=False)
APPENDS: Final = {1: 200, 8: 1_600, 64: 6_400, 256: 10_240}
CPU_CLIENTS: Final = 64
KINDS: Final = ("plain", "idempotent", "named", "conditional")
ETCD: Final = "etcd, gRPC"
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
            api_key=ApiKey.PRODUCE, api_version=VERSION, correlation_id=number, client_id="load"
        )
        body = encode_produce_request(VERSION, produce_request(LOG, data, timeout_ms=30_000))
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


def cpu_s(process_ids: Sequence[int]) -> float:
    """Return the processor time of processes, their threads included."""
    ticks = 0
    for process_id in process_ids:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def load_etcd(etcd: Etcd, what: str, clients: int, count: int) -> dict[str, float]:
    """Put new keys, or do so in a transaction, at the leader."""
    system = "txn" if what == "txn" else "etcd"
    return load(system, etcd.leader_address(), clients, count, f"{what}-{time.time_ns()}")


# --- measuring ------------------------------------------------------------------------------------


def measure(home: Path, client_counts: list[int], rounds: int) -> Iterator[Row]:
    """Measure all systems in each round; yield the rows of the medians."""
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    with (
        RaftlogQuorum(home / "raftlog", LIMITS) as quorum,
        Etcd(home / "etcd", str(PROGRAMS / "etcd")) as etcd,
        Nats(home / "nats") as nats,
    ):
        for at in range(rounds + 1):
            for clients in client_counts:
                system: System
                count = max(APPENDS[clients] // clients, 2)
                for what in (*KINDS, "put", "txn", "publish"):
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

    def median(what: str, clients: int, figure: str = "per_s") -> float:
        return statistics.median(one[figure] for one in found[what, clients])

    for clients in client_counts:
        of = f"three nodes, {clients} client{'s' * (clients > 1)}"
        for kind in KINDS:
            other = "txn" if kind == "conditional" else "put"
            against = median(other, clients)
            yield row(f"{kind} appends, {of}", median(kind, clients), "appends/s", against, ETCD)
        published = median("publish", clients)
        yield row(f"plain appends, {of}", median("plain", clients), "appends/s", published, NATS)
        for kind in KINDS if clients == CPU_CLIENTS else ():
            other = "txn" if kind == "conditional" else "put"
            against = median(other, clients, "cpu_us")
            what = f"CPU of all nodes, a {kind} append, {of}"
            yield row(what, median(kind, clients, "cpu_us"), "us", against, ETCD)
            if kind == "plain":
                published = median("publish", clients, "cpu_us")
                yield row(what, median(kind, clients, "cpu_us"), "us", published, NATS)
    if 1 in client_counts:
        measured, against = (median(what, 1, "median_ms") for what in ("plain", "put"))
        yield row("one append, three nodes, 1 client, median", measured, "ms", against, ETCD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default=",".join(map(str, APPENDS)))
    parser.add_argument("--directory", default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reason = build()
    if reason is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return
    client_counts = [int(one) for one in options.clients.split(",")]
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        for one in measure(Path(name), client_counts, options.rounds):
            print_row(one, as_json=options.json, decimals=2 if one["unit"] == "ms" else 0)


if __name__ == "__main__":
    main()
