"""Count the source files, calls and classes that one operation enters.

    python -m benchmarks.code_paths [--json] [--files] [--kafka] [--lines]

A profile function records every Python function of the three source packages that runs in any
thread during one operation. Each operation runs once before it is counted, so that imports and
caches do not count. "Jumps" are calls from a function of one file to a function of another;
"classes" are the distinct classes whose methods ran. Files and calls are counts of what ran, not
of what exists: they are equal on every machine, for the same implementation of the core, which
``raftlog --version`` prints (``RAFTLOG_NATIVE=0`` disables the compiled one).

`--files` lists the files of each operation, `--kafka` counts the same operations of Apache Kafka,
whose jars it downloads once, `--lines` the modules and lines of each package.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import struct
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from benchmarks.quorum import PRODUCE_VERSION, produced
from tests.support.served_node import ServedNode, served_node

import raftlog
from pyspark_raftlog.options import RaftlogOptions
from pyspark_raftlog.reader import RaftlogReader
from raftlog.client.location import open_reader
from raftlog.log.writing.single_voter_log import SingleVoterLog
from raftlog.records import BatchBuilder
from raftlog.storage.local import WritableLocalStorage
from raftlog.wire import ApiKey, RequestHeader, encode_request_header, frame

HOME: Final = Path(__file__).parents[1]
PACKAGES: Final = tuple(
    (root, HOME / root)
    for root in ("connector/raftlog", "state/raftlog_state", "python_datasource/pyspark_raftlog")
)
LOOP_THREAD: Final = "code-paths-node"
NODE_THREADS: Final = (LOOP_THREAD, "raftlog-sync", "raftlog-executor")
TIMEOUT_S: Final = 20.0


@dataclass(slots=True)
class CodePath:
    """Functions that ran between two points of time, by thread."""

    calls: Counter[tuple[str, CodeType]] = field(default_factory=Counter)
    jumps: Counter[str] = field(default_factory=Counter)

    def figures(self, *, threads: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
        """Return the counts of the threads whose names are accepted."""
        codes = Counter[CodeType]()
        for (thread, code), count in self.calls.items():
            if threads(thread):
                codes[code] += count
        names = {code.co_qualname.rpartition(".")[0] for code in codes}
        return {
            "files": sorted({code.co_filename for code in codes}),
            "calls": codes.total(),
            "jumps": sum(count for thread, count in self.jumps.items() if threads(thread)),
            "classes": sorted(name for name in names if name and "<" not in name),
        }


class Recorder:
    """The profile function of all threads; it counts only while a `CodePath` is being recorded."""

    def __init__(self) -> None:
        self._roots = tuple(f"{path}/" for _, path in PACKAGES)
        self._is_counted: dict[CodeType, bool] = {}
        self._path: CodePath | None = None

    def install(self) -> None:
        """Profile this thread and those that are started from now on."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    @contextmanager
    def record(self) -> Iterator[CodePath]:
        """Record what runs in the block."""
        self._path = path = CodePath()
        try:
            yield path
        finally:
            self._path = None

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        path, code = self._path, frame.f_code
        if path is None or event != "call" or not self._belongs(code):
            return
        thread = threading.current_thread().name
        path.calls[thread, code] += 1
        caller = frame.f_back
        while caller is not None and not self._belongs(caller.f_code):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != code.co_filename:
            path.jumps[thread] += 1

    def _belongs(self, code: CodeType) -> bool:
        known = self._is_counted.get(code)
        if known is None:
            # A comprehension is part of the function that it is written in.
            is_function = not code.co_name.startswith("<") or code.co_name == "<lambda>"
            known = is_function and code.co_filename.startswith(self._roots)
            self._is_counted[code] = known
        return known


def measure_local(recorder: Recorder, home: Path) -> dict[str, dict[str, Any]]:
    """Count the operations that need no node."""
    path = home / "log"
    with raftlog.open(path, create=True) as log:
        log.append([b"first"])
        log.append([b"second"])
        with recorder.record() as appended:
            log.append([b"third"])
    columns = ("offset", "timestamp", "key", "value")
    options = RaftlogOptions.parse({"path": str(path)})
    partition = RaftlogReader(options, columns).partitions()[0]

    def read() -> int:
        reader = RaftlogReader(options, columns)
        return sum(batch.num_rows for batch in reader.read(partition))

    assert read() == 3
    with recorder.record() as scanned:
        read()

    def open_and_find_the_end() -> int:
        return open_reader(options, options.kind).log_end_offset

    open_and_find_the_end()
    with recorder.record() as opened:
        open_and_find_the_end()
    reader = open_reader(options, options.kind)

    def scan() -> int:
        return sum(len(one.records) for one in reader.scan(0, reader.log_end_offset))

    assert scan() >= 3
    with recorder.record() as columns_built:
        scan()
    for number in range(2):
        torn = torn_copy(path, home / f"torn-{number}", reader.log_end_offset)
        with recorder.record() as recovered:
            SingleVoterLog.open(WritableLocalStorage(), str(torn), now_ms=0)
    return {
        "open a log and find its end": opened.figures(),
        "scan of an open log, bytes to Arrow": columns_built.figures(),
        "one partition of a Spark read": scanned.figures(),
        "append to an open log": appended.figures(),
        "recovery of a torn log": recovered.figures(),
    }


def torn_copy(path: Path, torn: Path, end_offset: int) -> Path:
    """Copy a log as a crash leaves it: no mark of a clean end, and half a batch after its end."""
    shutil.copytree(path, torn)
    for mark in torn.rglob(".kafka_cleanshutdown"):
        mark.unlink()
    segment = max(torn.rglob("*.log"))
    batch = BatchBuilder(base_timestamp_ms=0)
    batch.append([b"torn"])
    data = batch.build(end_offset, 1).data
    segment.write_bytes(segment.read_bytes() + data[: len(data) // 2])
    return torn


def measure_node(recorder: Recorder, home: Path) -> dict[str, dict[str, Any]]:
    """Count one Produce request in a node of one voter, and one append of a client."""
    ready, done = threading.Event(), threading.Event()
    served: list[ServedNode] = []

    async def serve() -> None:
        async with served_node(home) as node:
            served.append(node)
            ready.set()
            await asyncio.to_thread(done.wait)

    loop_thread = threading.Thread(target=lambda: asyncio.run(serve()), name=LOOP_THREAD)
    loop_thread.start()
    try:
        if not ready.wait(TIMEOUT_S):
            raise SystemExit("the node has no leader")
        (node,) = served
        with socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S) as connection:
            request = produce_request(b"value")
            exchange(connection, request)
            with recorder.record() as produced:
                exchange(connection, request)
        with raftlog.connect(f"127.0.0.1:{node.port}") as log:
            log.append([b"first"])
            with recorder.record() as appended:
                log.append([b"second"])
    finally:
        done.set()
        loop_thread.join()
    return {
        "Produce request in a node": produced.figures(threads=lambda name: name == LOOP_THREAD),
        "connect().append()": appended.figures(
            threads=lambda name: not name.startswith(NODE_THREADS)
        ),
    }


def produce_request(value: bytes) -> bytes:
    """Return the frame of one Produce request with one record."""
    header = RequestHeader(api_key=ApiKey.PRODUCE, api_version=PRODUCE_VERSION, correlation_id=1)
    return frame(encode_request_header(header), produced(value))


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """Send a frame and read one."""
    connection.sendall(request)
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
        data += connection.recv(2**16)
    return data


def package_sizes() -> list[dict[str, Any]]:
    """Return modules and lines of each package, and of each source root."""
    sizes = []
    for name, path in PACKAGES:
        for package in [path, *sorted(one.parent for one in path.glob("*/__init__.py"))]:
            files = [one.read_text() for one in package.rglob("*.py")]
            label = name if package == path else f"{name}/{package.name}"
            lines = sum(text.count("\n") for text in files)
            sizes.append({"package": label, "modules": len(files), "lines": lines})
    return sizes


def measure() -> dict[str, dict[str, Any]]:
    """Count every operation."""
    recorder = Recorder()
    recorder.install()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        return measure_local(recorder, home) | measure_node(recorder, home)


def measure_kafka() -> dict[str, dict[str, Any]]:
    """Count the operations that Kafka has, on a log with the same records."""
    from benchmarks.kafka_code_paths import measure as measure_operations

    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        path = home / "orders-0"
        with raftlog.open(path, create=True) as log:
            log.append([b"first"])
            end_offset = log.append([b"second"]).end_offset
        torn = [torn_copy(path, home / name / path.name, end_offset) for name in ("one", "two")]
        return measure_operations(home / "broker", path, torn)


def main() -> None:
    """Print the counts as a table, or with ``--json`` a line each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.code_paths")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--files", action="store_true", help="list the files of each operation")
    parser.add_argument("--kafka", action="store_true", help="count Apache Kafka's, too")
    parser.add_argument("--lines", action="store_true", help="modules and lines of the packages")
    chosen = parser.parse_args()
    if chosen.lines:
        for size in package_sizes():
            print(
                json.dumps(size)
                if chosen.json
                else "{package:45} {modules:4} {lines:7,}".format(**size)
            )
        return
    if not chosen.json:
        print(f"{'operation':42} {'files':>5} {'calls':>6} {'jumps':>6} {'classes':>7}")
    found = measure()
    if chosen.kafka:
        found |= {f"Kafka: {what}": counts for what, counts in measure_kafka().items()}
    for what, one in found.items():
        counts = {"calls": one["calls"], "jumps": one.get("jumps", "")}
        counts |= {"files": len(one["files"]), "classes": len(one["classes"])}
        if chosen.json:
            print(json.dumps({"what": what, **counts}))
            continue
        print("{what:42} {files:5} {calls:6} {jumps:6} {classes:7}".format(what=what, **counts))
        if chosen.files:
            print("\n".join(f"    {name.removeprefix(f'{HOME}/')}" for name in one["files"]))
            print("    classes: " + ", ".join(one["classes"]))


if __name__ == "__main__":
    main()
