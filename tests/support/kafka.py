"""Apache Kafka on this machine: its jars, one combined node, its tools.

Nothing is simulated. Every wait is for an event of the process (a line of its output, its end),
never for a time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer

from .jars import KAFKA_VERSION, kafka, tiered_storage, verified
from .quorum_processes import eventually, free_ports

HOME = Path(__file__).parents[2]
Listeners = Mapping[str, tuple[str, str]]
"""Name to security protocol and address."""
NO_LISTENERS: Final[Listeners] = {}


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Return the directory of a release's verified jars, downloaded by Maven once (120 MB)."""
    return verified(kafka(version))


def tiered_storage_jar() -> Path:
    """Return the jar with Kafka's ``LocalTieredStorage``, which is one of its tests."""
    return verified(tiered_storage()) / f"kafka-storage-{KAFKA_VERSION}-test.jar"


def run_java(jars: Path, main: str, *arguments: str, memory: str = "256m") -> str:
    """Run one of Kafka's tools, or a single-file Java program; return its output."""
    command = ["java", f"-Xmx{memory}", "-XX:+UseSerialGC", "-cp", f"{jars}/*", main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{main} {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def dump_log(jars: Path, *files: Path) -> list[str]:
    """Return the output of kafka-dump-log for metadata files, without its first line."""
    names = ",".join(str(file) for file in files)
    text = run_java(
        jars,
        "org.apache.kafka.tools.DumpLogSegments",
        "--cluster-metadata-decoder",
        "--files",
        names,
    )
    return text.splitlines()[1:]


def read_values(consumer: Consumer, count: int, *, patience_s: float) -> list[str]:
    """Return the values of the next ``count`` records, and close the consumer."""
    values: list[str] = []

    def poll() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            values.append(value.decode())
        return len(values) >= count

    try:
        eventually(poll, f"{count} records", patience_s=patience_s)
    finally:
        consumer.close()
    return values


@dataclass(frozen=True)
class KafkaNode:
    """Running combined node: bootstrap address, data directory, jars, and controller address."""

    bootstrap: str
    log_dir: Path
    jars: Path
    controller: str

    def admin(self, *actions: str) -> Any:
        """Run actions of Admin.java against the node; return the JSON response of the last one."""
        program = HOME / "tests" / "kafka" / "Admin.java"
        text = run_java(self.jars, str(program), self.bootstrap, *actions)
        return json.loads(text.splitlines()[-1])


def _properties(
    log_dir: Path, client: int, controller: int, *more: str, listeners: Listeners = NO_LISTENERS
) -> str:
    at = {"CLIENT": f"127.0.0.1:{client}", "CONTROLLER": f"127.0.0.1:{controller}"}
    at |= {name: address for name, (_, address) in listeners.items()}
    protocols = dict.fromkeys(at, "PLAINTEXT")
    protocols |= {name: protocol for name, (protocol, _) in listeners.items()}
    lines = [
        "process.roles=broker,controller",
        "node.id=1",
        "listeners=" + ",".join(f"{name}://{address}" for name, address in at.items()),
        "controller.listener.names=" + ",".join(name for name in at if name != "CLIENT"),
        "listener.security.protocol.map="
        + ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "inter.broker.listener.name=CLIENT",
        f"log.dirs={log_dir}",
        "offsets.topic.replication.factor=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
        "num.partitions=1",
        *more,
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def running_node(
    directory: Path,
    *extra: str,
    format_with: tuple[str, ...] = (),
    listeners: Listeners = NO_LISTENERS,
    version: str = KAFKA_VERSION,
) -> Iterator[KafkaNode]:
    """Run a node with its own log directory below `directory`; stop it when the block ends.

    `extra` are lines of its configuration, `format_with` arguments of kafka-storage,
    `listeners` further ones of the controller, `version` the release.
    """
    jars = kafka_jars(version)
    client, controller = free_ports(2)
    log_dir, config = directory / "data", directory / "server.properties"
    quorum = f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}"
    lines = _properties(log_dir, client, controller, quorum, *extra, listeners=listeners)
    config.write_text(lines)
    cluster_id = run_java(jars, "kafka.tools.StorageTool", "random-uuid").split()[-1]
    run_java(
        jars,
        "kafka.tools.StorageTool",
        "format",
        "--standalone",
        "-t",
        cluster_id,
        "-c",
        str(config),
        *format_with,
    )
    here = KafkaNode(f"127.0.0.1:{client}", log_dir, jars, f"127.0.0.1:{controller}")
    with _started(config, here) as node:
        yield node


@contextmanager
def booted(data: Path) -> Iterator[KafkaNode]:
    """Run a combined node with static voters on an existing data directory."""
    client, controller = free_ports(2)
    config = data.parent / "server.properties"
    quorum = f"controller.quorum.voters=1@127.0.0.1:{controller}"
    config.write_text(_properties(data, client, controller, quorum))
    here = KafkaNode(f"127.0.0.1:{client}", data, kafka_jars(), f"127.0.0.1:{controller}")
    with _started(config, here) as node:
        yield node


@contextmanager
def formatted(
    data: Path, client: int, controller: int, *, version: str = KAFKA_VERSION
) -> Iterator[KafkaNode]:
    """Run a combined node on a directory formatted for a dynamic quorum, at these ports."""
    config = data.parent / "server.properties"
    quorum = f"controller.quorum.bootstrap.servers=127.0.0.1:{controller}"
    config.write_text(_properties(data, client, controller, quorum))
    here = KafkaNode(f"127.0.0.1:{client}", data, kafka_jars(version), f"127.0.0.1:{controller}")
    with _started(config, here) as node:
        yield node


@contextmanager
def _started(config: Path, node: KafkaNode) -> Iterator[KafkaNode]:
    """Start the node of a configuration; yield it once it responds, stop it when the block ends."""
    memory = ["-Xmx384m", "-XX:+UseSerialGC"]
    command = ["java", *memory, "-cp", f"{node.jars}/*", "kafka.Kafka", str(config)]
    with (config.parent / "server.out").open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        # The admin program waits for the node: its own retries end in a time-out of its client.
        node.admin("wait")
        yield node
    finally:
        process.terminate()
        process.wait()
