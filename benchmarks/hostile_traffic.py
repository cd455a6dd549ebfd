"""Appends of a healthy client beside hostile connections: latencies with and without them.

A node, the attackers and the healthy client are processes of their own. Slices of time alternate,
so that other load of the machine is in all of them: without attacks, with attacks on another node
of the machine, which take as many processors, and with attacks on this node. The attacks are those
of ``tests/support/hostile_traffic.py``, from a thousand addresses of 127.0.0.0/8 (Linux). Attackers
use only processors that are idle (``SCHED_IDLE``): other hosts would not take the node's.

A latency without waits for a processor is less by the time in which the node's event loop, or the
healthy client if that is longer, was runnable and did not run: what is left of an attack's effect
is the work of the node. With ``--judge`` the exit code is 1 if a bound is exceeded: that of the
99th percentile, or those of what a node must not accumulate, memory, descriptors and threads.

    python -m benchmarks.hostile_traffic --seconds 3600 --tls --judge
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Final

from benchmarks.resources import Resources
from benchmarks.run import Row, print_row, row
from tests.support.certificates import Authority
from tests.support.hostile_traffic import (
    ACCESS,
    ATTACKERS,
    ATTACKS,
    LOG,
    LOST_PEERS,
    TLS_ATTACKS,
    attack_once,
    healthy_options,
    hostile_context,
    listeners,
)
from tests.support.quorum_processes import NodeProcess, free_ports

import raftlog
from raftlog.node.formatting import random_id

LIMITS: Final = "[limits]\nhandshake_ms = 300\nstalled_ms = 300\n"
"""Those of a node, but for short timeouts, with which an attack is followed by the next one."""
SECONDS: Final = 60.0
SLICE_S: Final = 5.0
VALUE: Final = bytes(100)
NO_ATTACKS: Final = "no attacks"
ELSEWHERE: Final = "attacks on another node"
HERE: Final = "attacks on this node"
RATIO_MAX: Final = 3.0
"""Bound of the 99th percentile, without waits for a processor, by that without attacks."""


# --- nodes and attackers --------------------------------------------------------------------------


def started_node(home: Path, authority: Authority | None = None) -> tuple[NodeProcess, int]:
    """Start a node with SCRAM and the limits of the tests; return it and its port for clients."""
    clients, voters = free_ports(2)
    home.mkdir()
    node = NodeProcess(home, 1, voters)
    node.config.write_text(
        '[node]\nid = 1\ndirectory = "data"\n'
        f"{listeners(home, clients, voters, authority=authority)}{ACCESS}{LIMITS}{LOG}"
    )
    node.format(random_id(), initial_voters=node.voter)
    node.start()
    return node, clients


@dataclass(slots=True)
class Attacked:
    """Attacks of one slice that have ended, and the CPU time of the attackers."""

    count: int = 0
    cpu_s: float = 0.0


@contextlib.contextmanager
def attackers(
    port: int, seed: int, authority: Authority | None = None, count: int = ATTACKERS
) -> Iterator[Attacked]:
    """Attack the node from another process; the result is complete at the end."""
    ca = "" if authority is None else authority.path
    given = f"{port}:{seed}:{count}:{ca}"
    command = (sys.executable, "-m", "benchmarks.hostile_traffic", "--attack", given)
    found = Attacked()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        try:
            yield found
        finally:
            process.stdin.close()
            found.count, found.cpu_s = json.loads(process.stdout.readline() or b"[0, 0]")


async def attack_until_stdin_ends(port: int, seed: int, attacker_count: int, ca: str) -> None:
    """Attack without a pause, print the number of attacks that have ended, and end the process."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    count = 0
    kinds, tls = (TLS_ATTACKS, hostile_context(ca)) if ca else (ATTACKS, None)

    async def attack(number: int) -> None:
        nonlocal count
        rng = random.Random(f"{seed}:{number}")
        while True:
            await attack_once(port, rng.choice(kinds), rng, tls)
            count += 1

    attacks = {asyncio.ensure_future(attack(number)) for number in range(attacker_count)}
    print(f"{len(attacks)} attackers", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps([count, time.process_time()]), flush=True)
    os._exit(0)  # without a wait for connections in the middle of an attack


# --- the healthy client ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Milliseconds of one append: all, and those in which it waited for no processor. With the CPU
    time of the node meanwhile."""

    elapsed_ms: float
    running_ms: float
    node_cpu_ms: float


class Schedule:
    """What Linux has scheduled of this process and the event loop of a node, in nanoseconds."""

    def __init__(self, node_pid: int) -> None:
        self._node: Final = Path(f"/proc/{node_pid}/schedstat")  # of its main thread

    def read(self) -> tuple[int, int, int]:
        """Return CPU time and waits of the node, and waits of this process."""
        cpu_ns, node_wait_ns = _schedule(self._node)
        here = Path(f"/proc/{os.getpid()}/task")
        waits = (_schedule(here / str(one.native_id) / "schedstat")[1] for one in _threads())
        return cpu_ns, node_wait_ns, sum(waits)


def _threads() -> Iterator[threading.Thread]:
    return (one for one in threading.enumerate() if one.native_id is not None)


def _schedule(path: Path) -> tuple[int, int]:
    cpu_ns, wait_ns, _ = path.read_bytes().split()
    return int(cpu_ns), int(wait_ns)


def append_for(log: raftlog.ConnectedLog, seconds: float, schedule: Schedule) -> list[Append]:
    """Append one record after the other."""
    found, end_s = [], time.monotonic() + seconds
    before, before_s = schedule.read(), time.perf_counter()
    while time.monotonic() < end_s:
        log.append(VALUE, timeout_ms=60_000)
        elapsed_ms = (time.perf_counter() - before_s) * 1_000
        after = schedule.read()
        cpu_ms, *waits_ms = ((new - old) / 1e6 for new, old in zip(after, before, strict=True))
        found.append(Append(elapsed_ms, max(0.0, elapsed_ms - max(waits_ms)), cpu_ms))
        before, before_s = after, time.perf_counter()
    return found


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(math.ceil(part * len(ordered)), len(ordered)) - 1]


# --- the run --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """Slices of one run."""

    appends: dict[str, list[Append]] = field(
        default_factory=lambda: {NO_ATTACKS: [], ELSEWHERE: [], HERE: []}
    )
    attacked: Attacked = field(default_factory=Attacked)
    attacked_s: float = 0.0
    node_cpu_s: float = 0.0
    """CPU time of the node while it was attacked."""
    resources: Resources = field(default_factory=Resources)
    errors: list[str] = field(default_factory=list)
    """Log lines of the node that no attack may cause."""

    def ms(self, mode: str, what: str, part: float) -> float:
        return percentile([getattr(one, what) for one in self.appends[mode]], part)

    def rows(self) -> Iterator[Row]:
        here = self.appends[HERE]
        what = f"append beside {self.attacked.count / self.attacked_s:,.0f} attacks/s"
        for other in (NO_ATTACKS, ELSEWHERE):
            for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                for kind, text in (
                    ("elapsed_ms", ""),
                    ("running_ms", ", without waits for a processor"),
                    ("node_cpu_ms", ", CPU time of the node meanwhile"),
                ):
                    ms, other_ms = (self.ms(one, kind, part) for one in (HERE, other))
                    yield row(f"{what}, {name}{text}", ms, "ms", other_ms, other)
            yield row(f"{what}, appends", len(here), "", len(self.appends[other]), other)
        usual_ms = mean(one.node_cpu_ms for one in self.appends[NO_ATTACKS])
        node_ms = self.node_cpu_s * 1_000 - usual_ms * len(here)
        count = max(1, self.attacked.count)
        attackers_ms = self.attacked.cpu_s * 1_000 / count
        yield row("CPU time of the node for an attack", node_ms / count, "ms", attackers_ms, "its")

    def broken_bounds(self) -> Iterator[str]:
        """Return the bounds that the run has exceeded, as text."""
        before, beside = (self.ms(one, "running_ms", 0.99) for one in (NO_ATTACKS, HERE))
        if beside > RATIO_MAX * before:
            yield f"p99 {beside / before:.2f} times that without attacks: at most {RATIO_MAX}"
        yield from self.resources.broken_bounds()
        yield from self.errors


def measure(seconds: float, *, has_tls: bool, attacker_count: int) -> Run:
    run, seed = Run(), 0
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as running:
        authority = Authority(Path(home) / "ca") if has_tls else None
        (node, port), (other, other_port) = (
            started_node(Path(home) / name, authority) for name in ("node", "other")
        )
        for one in (node, other):
            running.callback(one.stop)
        assert node.process is not None
        pid = node.process.pid
        schedule = Schedule(pid)
        log = raftlog.connect(f"127.0.0.1:{port}", config=healthy_options(authority))
        running.enter_context(log)
        append_for(log, 1, schedule)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            seed += 1
            run.appends[NO_ATTACKS] += append_for(log, SLICE_S, schedule)
            run.resources.look(pid)
            with attackers(other_port, seed, authority, attacker_count):
                run.appends[ELSEWHERE] += append_for(log, SLICE_S, schedule)
            with attackers(port, seed, authority, attacker_count) as attacked:
                start_s, (start_ns, *_) = time.monotonic(), schedule.read()
                run.appends[HERE] += append_for(log, SLICE_S, schedule)
                run.node_cpu_s += (schedule.read()[0] - start_ns) / 1e9
                run.attacked_s += time.monotonic() - start_s
            run.attacked.count += attacked.count
            run.attacked.cpu_s += attacked.cpu_s
        for line in node.lines_path.read_text().splitlines():
            found = json.loads(line)
            is_bug = found["event"] == "asyncio" and found["about"] not in LOST_PEERS
            if found["level"] == "error" or is_bug:
                run.errors.append(line)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of the run")
    parser.add_argument("--tls", action="store_true", help="SASL_SSL instead of SASL_PLAINTEXT")
    parser.add_argument("--attackers", type=int, default=ATTACKERS, help="connections at a time")
    parser.add_argument("--judge", action="store_true", help="fail if a bound is exceeded")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--attack", metavar="PORT:SEED:COUNT:CA", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack is not None:
        port, seed, count, ca = arguments.attack.split(":", 3)
        asyncio.run(attack_until_stdin_ends(int(port), int(seed), int(count), ca))
        return
    run = measure(arguments.seconds, has_tls=arguments.tls, attacker_count=arguments.attackers)
    for found in run.rows():
        print_row(found, as_json=arguments.json, decimals=2)
    if arguments.judge:
        print("\n".join(run.resources.lines()))
        broken = list(run.broken_bounds())
        sys.exit("\n".join(broken) if broken else 0)


if __name__ == "__main__":
    main()
