"""Bytecodes, calls and CPU time of an append to three nodes, which run in this process.

    python -m benchmarks.append_path [--clients N] [--appends N] [--rounds N] [--functions N]

Three nodes and the clients share one event loop; syncs do nothing. Bytecodes and calls are those of
the nodes and asyncio, without the clients, by module and function. Fetches without records, which
only take a high watermark, are delayed and a follower waits long for its leader, so that tracing,
which slows all down, adds no step: for one client the counts are equal in each run. CPU time is
that of the whole process for an append, the lowest and a tenth of many short chunks, because a busy
machine only adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final
from unittest.mock import patch

from benchmarks.produce import produced
from tests.support.served_node import served_quorum

import raftlog
from raftlog.node.event_loop import NodeEventLoop
from raftlog.wire import FrameDecoder

LIMITS: Final = "[limits]\nstranger_connections_max = 500\nconnection_rate_per_address_max = 1000\n"
NO_OTHER_STEPS: Final = "[quorum]\nfetch_hw_delay_ms = 400\nfetch_timeout_ms = 20000\n"
PACKAGE: Final = str(Path(raftlog.__file__).parent)
CHUNK: Final = 20
WARM_UP: Final = 400


class Client(asyncio.Protocol):
    """Connection with one request in flight, the same one again and again."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._decoder = FrameDecoder(2**20, "the leader")
        self._transport: asyncio.Transport | None = None
        self._left = 0
        self._done: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def start(self, count: int, done: Callable[[], None]) -> None:
        """Append so many times, then call ``done``."""
        self._left, self._done = count, done
        self._send()

    def _send(self) -> None:
        assert self._transport is not None, "it is connected"
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        for _ in self._decoder.feed(data):
            self._left -= 1
            if self._left:
                self._send()
            elif self._done is not None:
                self._done()


class Clients:
    """Clients of one leader."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients

    @classmethod
    async def connect(cls, port: int, count: int) -> Clients:
        loop, request = asyncio.get_running_loop(), produced()
        return cls(
            [
                (await loop.create_connection(lambda: Client(request), "127.0.0.1", port))[1]
                for _ in range(count)
            ]
        )

    async def append(self, count: int) -> int:
        """Append about so many times; return how often."""
        each, left = max(count // len(self._clients), 1), len(self._clients)
        ended = asyncio.get_running_loop().create_future()

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                ended.set_result(None)

        for client in self._clients:
            client.start(each, done)
        await ended
        return each * len(self._clients)


async def cpu_us(clients: Clients, count: int) -> tuple[float, float]:
    """Return the lowest CPU time of an append, and what a tenth of the chunks stay below."""
    found = []
    for _ in range(max(count // CHUNK, 1)):
        start_ns = time.process_time_ns()
        appended = await clients.append(CHUNK)
        found.append((time.process_time_ns() - start_ns) / 1000 / appended)
    found.sort()
    return found[0], found[len(found) // 10]


async def bytecodes(clients: Clients, count: int) -> tuple[Counter[CodeType], int]:
    """Return the bytecodes of each function, and the number of appends."""
    counts: Counter[CodeType] = Counter()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            counts[frame.f_code] += 1
        return local

    def trace(frame: FrameType, _event: str, _: Any) -> Any:
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    sys.settrace(trace)
    try:
        appended = await clients.append(count)
    finally:
        sys.settrace(None)
    return counts, appended


async def calls(clients: Clients, count: int) -> tuple[Counter[CodeType], int]:
    """Return the calls of each function, and the number of appends."""
    counts: Counter[CodeType] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename != __file__:
            counts[frame.f_code] += 1

    sys.setprofile(profile)
    try:
        appended = await clients.append(count)
    finally:
        sys.setprofile(None)
    return counts, appended


def module_of(code: CodeType) -> str:
    """Return the module of a function, relative to the package, or its file's name."""
    path = Path(code.co_filename)
    if path.is_relative_to(PACKAGE):
        return str(path.relative_to(PACKAGE))
    return "/".join(path.parts[-2:])


def print_counts(what: str, counts: Counter[CodeType], appended: int, functions: int) -> None:
    """Print what an append takes: of all, of modules, and of the first functions."""
    print(f"{what} of an append: {sum(counts.values()) / appended:,.0f}")
    modules: Counter[str] = Counter()
    for code, count in counts.items():
        modules[module_of(code)] += count
    for module, count in modules.most_common(functions):
        print(f"{count / appended:10,.1f}  {module}")
    for code, count in counts.most_common(functions):
        print(f"{count / appended:10,.1f}  {module_of(code)}: {code.co_qualname}")


async def measure(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.directory) as home:
        async with served_quorum(Path(home), LIMITS + NO_OTHER_STEPS) as nodes:
            clients = await Clients.connect(nodes[0].port, options.clients)
            await clients.append(WARM_UP)
            gc.collect()
            gc.freeze()
            for _ in range(options.rounds):
                lowest, tenth = await cpu_us(clients, options.appends)
                print(f"CPU of an append: {lowest:.0f} us at least, a tenth below {tenth:.0f} us")
            for what, counted in (("bytecodes", bytecodes), ("calls", calls)):
                counts, appended = await counted(clients, options.appends)
                print_counts(what, counts, appended, options.functions)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--appends", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--functions", type=int, default=30)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    without_syncs = patch.object(os, "fdatasync", lambda _file: None)
    with without_syncs, asyncio.Runner(loop_factory=NodeEventLoop) as runner:
        runner.run(measure(options))


if __name__ == "__main__":
    main()
