"""Appends of a healthy client beside hostile connections: latencies with and without them.

A node, the attackers and the healthy client are processes of their own. Slices of time alternate,
so that other load of the machine is in all of them: without attacks, with attacks on another node
of the machine, which take as many processors, and with attacks on this node. The attacks are those
of ``tests/support/hostile_traffic.py``, from a thousand addresses of 127.0.0.0/8 (Linux). Attackers
run at the lowest priority: other hosts would not take the node's processors.

    python -m benchmarks.hostile_traffic --seconds 3600
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.run import Row, print_row, row
from tests.support.hostile_traffic import (
    ACCESS,
    ATTACKERS,
    ATTACKS,
    LOG,
    attack_once,
    healthy_options,
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
LOWEST_PRIORITY: Final = 19
NO_ATTACKS: Final = "no attacks"
ELSEWHERE: Final = "attacks on another node"
HERE: Final = "attacks on this node"


def started_node(home: Path) -> tuple[NodeProcess, int]:
    """Start a node with SCRAM and the limits of the tests; return it and its port for clients."""
    clients, voters = free_ports(2)
    home.mkdir()
    node = NodeProcess(home, 1, voters)
    node.config.write_text(
        '[node]\nid = 1\ndirectory = "data"\n'
        f"{listeners(home, clients, voters)}{ACCESS}{LIMITS}{LOG}"
    )
    node.format(random_id(), initial_voters=node.voter)
    node.start()
    return node, clients


@contextlib.contextmanager
def attackers(port: int, seed: int) -> Iterator[list[int]]:
    """Attack the node from another process; the list has the number of attacks at the end."""
    command = (sys.executable, "-m", "benchmarks.hostile_traffic", "--attack", f"{port}:{seed}")
    found: list[int] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        try:
            yield found
        finally:
            process.stdin.close()
            found.append(int(process.stdout.readline() or b"0"))


async def attack_until_stdin_ends(port: int, seed: int) -> None:
    """Attack without a pause, print the number of attacks that have ended, and end the process."""
    os.nice(LOWEST_PRIORITY)
    count = 0

    async def attack(number: int) -> None:
        nonlocal count
        rng = random.Random(f"{seed}:{number}")
        while True:
            await attack_once(port, rng.choice(ATTACKS), rng)
            count += 1

    attacks = {asyncio.ensure_future(attack(number)) for number in range(ATTACKERS)}
    print(f"{len(attacks)} attackers", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(count, flush=True)
    os._exit(0)  # without a wait for connections in the middle of an attack


def append_for(log: raftlog.ConnectedLog, seconds: float) -> list[float]:
    """Append one record after the other; return the milliseconds of each append."""
    found, end_s = [], time.monotonic() + seconds
    while time.monotonic() < end_s:
        start_s = time.perf_counter()
        log.append(VALUE, timeout_ms=60_000)
        found.append((time.perf_counter() - start_s) * 1_000)
    return found


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(math.ceil(part * len(ordered)), len(ordered)) - 1]


def measure(seconds: float) -> Iterator[Row]:
    attack_count = seed = 0
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as running:
        (node, port), (other, other_port) = (
            started_node(Path(home) / name) for name in ("node", "other")
        )
        for one in (node, other):
            running.callback(one.stop)
        found: dict[str, list[float]] = {NO_ATTACKS: [], ELSEWHERE: [], HERE: []}
        log = raftlog.connect(f"127.0.0.1:{port}", config=healthy_options())
        running.enter_context(log)
        append_for(log, 1)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            seed += 1
            found[NO_ATTACKS] += append_for(log, SLICE_S)
            with attackers(other_port, seed):
                found[ELSEWHERE] += append_for(log, SLICE_S)
            with attackers(port, seed) as counted:
                found[HERE] += append_for(log, SLICE_S)
            attack_count += counted[0]
    per_second = attack_count / (seed * SLICE_S)
    what = f"append beside {per_second:,.0f} attacks/s"
    for other_mode in (NO_ATTACKS, ELSEWHERE):
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
            ms, against_ms = (percentile(found[one], part) for one in (HERE, other_mode))
            yield row(f"{what}, {name}", ms, "ms", against_ms, other_mode)
        yield row(f"{what}, appends", len(found[HERE]), "", len(found[other_mode]), other_mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of the run")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--attack", metavar="PORT:SEED", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack is not None:
        port, _, seed = arguments.attack.partition(":")
        asyncio.run(attack_until_stdin_ends(int(port), int(seed)))
        return
    for found in measure(arguments.seconds):
        print_row(found, as_json=arguments.json, decimals=2)


if __name__ == "__main__":
    main()
