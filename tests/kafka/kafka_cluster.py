"""Controllers and brokers of one Kafka cluster as processes, each with a directory of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.kafka import kafka_jars, run_java
from tests.support.quorum_processes import eventually, free_ports

STARTED = "Kafka Server started"
PATIENCE_S = 240.0
STORAGE = "kafka.tools.StorageTool"
PROPERTIES = """node.id={node_id}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT
log.dirs={log_dir}
"""
CONTROLLER = "process.roles=controller\nlisteners=CONTROLLER://127.0.0.1:{port}\n"
BROKER = """process.roles=broker
listeners=CLIENT://127.0.0.1:{port}
inter.broker.listener.name=CLIENT
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
"""


LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m%n
"""
"""Of Kafka 3, whose jars bind slf4j to log4j; later releases log by slf4j-simple."""


JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC")


class KafkaServer:
    """One controller or broker. Its configuration is written when it is started."""

    def __init__(
        self,
        jars: Path,
        home: Path,
        node_id: int,
        *,
        is_controller: bool,
        java_options: Sequence[str] = JAVA_OPTIONS,
    ) -> None:
        self.node_id = node_id
        self.is_controller = is_controller
        self.home = home
        self.log_dir = home / "data"
        self.config = home / "server.properties"
        self.out = home / "server.out"
        self._jars = jars
        self._java_options = java_options
        (self.port,) = free_ports(1)
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def configure(self, quorum: str) -> None:
        """Write its configuration; ``quorum`` are the lines about the controllers."""
        role = CONTROLLER if self.is_controller else BROKER
        text = (PROPERTIES + role).format(
            node_id=self.node_id, log_dir=self.log_dir, port=self.port
        )
        self.config.write_text(f"{text}{quorum}\n")

    def launch(self) -> None:
        log4j = self.home / "log4j.properties"
        log4j.write_text(LOG4J)
        options = [*self._java_options, f"-Dlog4j.configuration=file:{log4j}"]
        command = ["java", *options, "-cp", f"{self._jars}/*", "kafka.Kafka", str(self.config)]
        with self.out.open("wb") as sink:
            self.process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)

    def wait_until_started(self) -> None:
        def is_started() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.last_lines()
            return STARTED in self.out.read_text()

        eventually(is_started, f"node {self.node_id} starts", patience_s=PATIENCE_S)

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def last_lines(self, count: int = 30) -> str:
        return "\n".join(self.out.read_text().splitlines()[-count:])


class KafkaCluster:
    """Controllers and brokers of one release. As a context manager it kills all processes.

    ``is_dynamic``: the voters are in the log (kraft.version 1), not in the configuration, to which
    the lines ``properties`` are added.
    """

    def __init__(
        self,
        home: Path,
        version: str,
        *,
        is_dynamic: bool,
        properties: str = "",
        java_options: Sequence[str] = JAVA_OPTIONS,
    ) -> None:
        self.jars = kafka_jars(version)
        self.home = home
        self.is_dynamic = is_dynamic
        self._properties = properties
        self._java_options = java_options
        self.cluster_id = run_java(self.jars, STORAGE, "random-uuid").split()[-1]
        self.controllers: list[KafkaServer] = []
        self.brokers: list[KafkaServer] = []

    def new_server(
        self, node_id: int, *, is_controller: bool, java_options: Sequence[str] | None = None
    ) -> KafkaServer:
        name = f"{'controller' if is_controller else 'broker'}-{node_id}"
        home = self.home / f"{name}-{len(self.controllers) + len(self.brokers)}"
        server = KafkaServer(
            self.jars,
            home,
            node_id,
            is_controller=is_controller,
            java_options=self._java_options if java_options is None else java_options,
        )
        (self.controllers if is_controller else self.brokers).append(server)
        return server

    @property
    def voters(self) -> str:
        return ",".join(f"{one.node_id}@{one.address}" for one in self.controllers)

    def configure(self) -> None:
        """Write the configuration of all servers."""
        quorum = f"controller.quorum.voters={self.voters}"
        if self.is_dynamic:
            servers = ",".join(one.address for one in self.controllers)
            quorum = f"controller.quorum.bootstrap.servers={servers}"
        for server in (*self.controllers, *self.brokers):
            server.configure(f"{quorum}\n{self._properties}")

    def format(self, directory_ids: Sequence[str] = ()) -> None:
        """Format all servers; with dynamic voters the controllers have these directory ids."""
        for server in (*self.controllers, *self.brokers):
            ways: list[str] = []
            if self.is_dynamic and server.is_controller:
                ids = zip(self.controllers, directory_ids, strict=True)
                voters = [f"{one.node_id}@{one.address}:{directory}" for one, directory in ids]
                ways = ["--initial-controllers", ",".join(voters)]
            elif self.is_dynamic:
                ways = ["--no-initial-controllers"]
            call = ("format", "-t", self.cluster_id, "-c", str(server.config), *ways)
            run_java(self.jars, STORAGE, *call)

    def start(self) -> None:
        """Start all servers, and wait until they serve."""
        servers = (*self.controllers, *self.brokers)
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_until_started()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in (*self.controllers, *self.brokers):
            server.kill()
            if error is not None and server.out.exists():
                error.add_note(f"--- node {server.node_id}\n{server.last_lines()}")
