"""Source files, calls and classes that Kafka enters for the operations of ``code_paths``.

``KafkaCodePaths.java`` runs each operation twice in a JVM, and attaches to it as a debugger that
records the methods of Kafka's own packages for the second time. A lambda belongs to the class that
it is written in. A Produce request is received by a broker whose topic has one replica, and counts
the threads of the network and of the request handlers.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.kafka.kafka_cluster import JAVA_OPTIONS, KafkaCluster
from tests.support.jars import KAFKA_VERSION
from tests.support.kafka import kafka_jars
from tests.support.quorum_processes import free_ports

PROGRAM: Final = Path(__file__).with_name("KafkaCodePaths.java")
DEBUGGED: Final = "-agentlib:jdwp=transport=dt_socket,server=y,suspend=n,address=127.0.0.1:{port}"
CLIENT_THREADS: Final = ("main", "kafka-producer-network-thread")
BROKER_THREADS: Final = ("data-plane-kafka-network-thread", "data-plane-kafka-request-handler")
TOPIC: Final = "orders"
_LAMBDA: Final = re.compile(r"\$\$Lambda.*")


class JavaProcess:
    """A run of the program, which waits for a line of input between its steps."""

    def __init__(self, jars: Path, *arguments: str, options: Sequence[str] = ()) -> None:
        command = ["java", *JAVA_OPTIONS, *options, "-cp", f"{jars}/*", str(PROGRAM), *arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait_for(self, line: str) -> None:
        """Read its output up to a line."""
        assert self._process.stdout is not None
        if all(one.strip() != line for one in self._process.stdout):
            raise SystemExit(f"{PROGRAM.name} ended before it was {line}")

    def proceed(self) -> None:
        """Let it continue after a line of its output."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def remaining_lines(self) -> list[str]:
        """Let it continue; return the lines of its output until it ends."""
        return self._process.communicate("\n")[0].splitlines()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(home: Path, log: Path, torn: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Count the operations on a closed log, on two copies of it that are torn, and in a broker."""
    jars = kafka_jars()
    counts = {
        "append to an open log": _count_operation(jars, "append", str(log)),
        "recovery of a torn log": _count_operation(jars, "recover", *map(str, torn)),
    }
    with _broker(home) as (address, port):
        sender = JavaProcess(jars, "send", address, TOPIC)
        try:
            sender.wait_for("ready")
            counts["Produce request in a node"] = _count(
                jars, port, BROKER_THREADS, lambda: _run(sender)
            )
        finally:
            sender.kill()
        counts["connect().append()"] = _count_operation(jars, "send", address, TOPIC)
    return counts


@contextmanager
def _broker(home: Path) -> Iterator[tuple[str, int]]:
    """Run a controller and a broker; yield the address of the broker and its port for debuggers."""
    (port,) = free_ports(1)
    with KafkaCluster(home, KAFKA_VERSION, is_dynamic=False) as cluster:
        cluster.new_server(1, is_controller=True)
        options = (*JAVA_OPTIONS, DEBUGGED.format(port=port))
        broker = cluster.new_server(2, is_controller=False, java_options=options)
        cluster.configure()
        cluster.format()
        cluster.start()
        yield broker.address, port


def _count_operation(jars: Path, *arguments: str) -> dict[str, Any]:
    """Count the second run of an operation in a process of its own."""
    (port,) = free_ports(1)
    process = JavaProcess(jars, *arguments, options=[DEBUGGED.format(port=port)])
    try:
        process.wait_for("ready")
        return _count(jars, port, CLIENT_THREADS, lambda: _run(process))
    finally:
        process.kill()


def _run(process: JavaProcess) -> None:
    process.proceed()
    process.wait_for("done")


def _count(
    jars: Path, port: int, threads: Sequence[str], operation: Callable[[], None]
) -> dict[str, Any]:
    """Count what some threads of a JVM enter during an operation."""
    debugger = JavaProcess(jars, "record", str(port), *threads)
    try:
        debugger.wait_for("ready")
        operation()
        *entered, calls = debugger.remaining_lines()
    finally:
        debugger.kill()
    classes = {_LAMBDA.sub("", one) for one in entered}
    # A source file is named after its outermost class.
    return {
        "files": sorted({one.partition("$")[0] for one in classes}),
        "calls": int(calls),
        "classes": sorted(classes),
    }
