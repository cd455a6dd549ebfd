"""Errors of typical mistakes at the command line and in Python, as golden texts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13 import response as metadata

import raftlog
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.log_identity import duration
from raftlog.wire.log_identity import name as topic_name
from raftlog_state import apply_changes, read_changes
from tests.client.remote.test_sasl_client import PLAIN, SaslNode
from tests.golden_errors.golden import HOME, Mistake, call, check, command
from tests.support.certificates import Authority
from tests.support.quorum_processes import QuorumProcesses
from tests.support.scripted_node import ScriptedNode

LOGS = HOME / "tests" / "data" / "kraft-logs"
CLUSTER = LOGS / "three-nodes-4.3.1"
NODE = CLUSTER / "node-100"
TRIMMED = LOGS / "trimmed-3.9.2" / "node-1"
DEAD = "localhost:1"
FAST = ("--timeout-ms", 1000)


def paths(tmp_path: Path) -> Iterator[Mistake]:
    """Yield mistakes with paths and files."""
    yield command("state", "/nope", "topics")
    yield command("state", "https://bucket/metadata", "topics")
    yield command("state", "s3://AKIA:5ecret@bucket/metadata", "topics")
    yield command("state", "dbfs:/metadata", "topics")
    yield command("check", CLUSTER)
    (tmp_path / "empty").mkdir()
    yield command("cat", tmp_path / "empty")
    (tmp_path / "kafka-logs" / "orders-0").mkdir(parents=True)
    yield command("cat", tmp_path / "kafka-logs")
    yield command("state", CLUSTER / "node-1" / "orders-0-0", "topics")
    (tmp_path / "server.properties").write_text("node.id=1\n")
    yield command("cat", tmp_path / "server.properties")
    segment = "00000000000000000000.log"
    data = bytearray((NODE / "__cluster_metadata-0" / segment).read_bytes())
    data[len(data) // 2] ^= 1
    damaged = tmp_path / "damaged"
    shutil.copytree(NODE / "__cluster_metadata-0", damaged / "__cluster_metadata-0")
    (damaged / "__cluster_metadata-0" / segment).write_bytes(data)
    yield call(
        'read_changes("damaged", entity="topic")',
        lambda: list(read_changes(damaged, entity="topic")),
    )
    yield command("state", "--quiet", f"{NODE},{TRIMMED}", "topics")
    yield command("state", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA", NODE, "topics")


def usage() -> Iterator[Mistake]:
    """Yield mistakes with commands, options and their values."""
    yield command()
    yield command("stat", NODE)
    yield command("history", NODE, "topic/orders-0")
    yield command("tail", NODE)
    yield command("rewind", NODE)
    yield command("cat", NODE, CLUSTER / "node-101")
    yield command("state", NODE, CLUSTER / "node-101", "topics")
    yield command("cat", NODE, "--folow")
    yield command("cat", NODE, "--since", "-15m")
    yield command("state", NODE, "tpics")
    yield command("cat", NODE, "--type", "topics")
    yield command("log", NODE, "topik/orders-0")
    yield command("cat", NODE, "--from", "10:02")
    yield command("cat", "--quiet", NODE, "--from", 9_999_999)
    yield command("state", NODE, "--at", 1_795_248_211_254)
    yield command("diff", NODE, "--from", "2026-11-22", "--to", "2026-11-21")
    yield command("state", NODE, "--at", "epoch:77")
    yield command("cat", "--quiet", TRIMMED, "--from", 1)
    yield command("state", "--quiet", TRIMMED, "--at", 3)
    yield command("diff", NODE)
    yield command("diff", "--quiet", NODE, TRIMMED, "--to", 3)
    yield command("state", NODE, "--bootstrap-server", DEAD)
    yield command("snapshot", NODE, "--reveal")


def writes(tmp_path: Path) -> Iterator[Mistake]:
    """Yield mistakes of writers."""
    missing = tmp_path / "no"
    yield command("snapshot", "--quiet", NODE, missing / "state.checkpoint", "--reveal")
    yield command("restore", tmp_path / "backup", missing / "parent-0")
    yield command("repair", NODE)
    yield command("configure", tmp_path / "none-0")
    changes = tmp_path / "changes.json"
    changes.write_text('{"change": "delete_topic", "topic": "orders2-1"}\n')
    yield command("apply", NODE, changes)
    yield command("append", NODE / "__cluster_metadata-0", "--required-end-offset", "end")
    yield command("append", tmp_path / "none-0", "--name", "nightly")
    yield command("bench", NODE / "__cluster_metadata-0", "--records", "1")
    yield command("bench", tmp_path / "none-0", "--clients", "0")
    log = raftlog.open(tmp_path / "decisions-0")
    log.append([b"a"], commit=("job", "run-1", 5))
    yield command("configure", tmp_path / "decisions-0", "retention.hours=1")
    yield call('log.append("text")', lambda: log.append("text"))  # type: ignore[arg-type]
    yield call('log.append([{"k": 1}])', lambda: log.append([{"k": 1}]))
    yield call(
        'log.append([b"b"], required_base_offset=1)',
        lambda: log.append([b"b"], required_base_offset=1),
    )
    yield call('log.append([b"b"], epoch=9)', lambda: log.append([b"b"], epoch=9))
    yield call(
        'log.append([b"b"], commit=("job", "run-1", 4))',
        lambda: log.append([b"b"], commit=("job", "run-1", 4)),
    )
    yield call(
        'log.append([b"b"], commit=("job", "run-2", 6))',
        lambda: log.append([b"b"], commit=("job", "run-2", 6)),
    )
    yield call("list(log.read(99))", lambda: list(log.read(99)))
    yield call('apply_changes(log, [{"change": ...}])', lambda: apply_changes(log, [{}]))
    yield call('apply_changes("cluster-0", ...)', lambda: apply_changes("cluster-0", []))  # type: ignore[arg-type]
    log.close()
    yield call('log.append([b"b"])  # after close()', lambda: log.append([b"b"]))
    yield call(
        'raftlog.open("decisions-0", values="kraft")',
        lambda: raftlog.open(tmp_path / "decisions-0", values="kraft"),
    )
    yield call('raftlog.open("no/parent-0")', lambda: raftlog.open(tmp_path / "no" / "parent-0"))
    kafka = raftlog.open(NODE / "__cluster_metadata-0")
    yield call(
        'raftlog.open("kafka/__cluster_metadata-0").append(...)', lambda: kafka.append([b""])
    )
    yield call(
        'read_changes("node-100", name="orders-0")', lambda: list(read_changes(NODE, name="orders"))
    )
    yield call(
        'read_changes("node-100", entity="topic", since="10:02")',
        lambda: list(read_changes(NODE, entity="topic", since="10:02")),
    )


def addresses() -> Iterator[Mistake]:
    """Yield mistakes with addresses of nodes."""
    yield command("state", "--bootstrap-server", "localhost", "topics")
    yield command("state", "--bootstrap-server", DEAD, *FAST, "topics")
    yield command("state", "--bootstrap-server", DEAD, "--tls-ca", "/nope.pem", "topics")
    yield command("cat", "localhost:9093")
    yield call('raftlog.open("localhost:9093")', lambda: raftlog.open("localhost:9093"))
    yield call('raftlog.connect("localhost")', lambda: raftlog.connect("localhost"))
    yield call(
        'raftlog.connect(..., config={"sasl.mechanism": "GSSAPI"})',
        lambda: raftlog.connect(DEAD, config={"sasl.mechanism": "GSSAPI"}),
    )


def test_each_typical_mistake_has_its_text(tmp_path: Path) -> None:
    mistakes = chain(paths(tmp_path), usage(), writes(tmp_path), addresses())
    check("commands_and_calls.txt", mistakes, {str(tmp_path): "/tmp"})


def metadata_of_a_broker(_version: int, _body: bytes) -> Any:
    """Return the metadata response of a broker with two topics."""
    topics = tuple(
        metadata.MetadataResponseTopic(
            error_code=ErrorCode.none, name=topic_name(text), topic_id=None, partitions=()
        )
        for text in ("orders", "payments")
    )
    return latest_schemas.MetadataResponse(
        throttle_time=duration(0),
        brokers=(),
        cluster_id="cluster",
        topics=topics,
        error_code=ErrorCode.none,
    )


@pytest.mark.slow
def test_each_wrong_connection_has_its_text(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.sign("node-1.example", file_name="of-1")
    extra = f'tls = {{ certificate = "{pair.certificate}", key = "{pair.key}", '
    extra += f'ca = "{authority.path}" }}\n[access.nodes]\n1 = "node-1.example"\n'
    (tmp_path / "tls").mkdir()
    (tmp_path / "plain").mkdir()
    with (
        QuorumProcesses(tmp_path / "tls", 1, extra=extra) as tls,
        QuorumProcesses(tmp_path / "plain", 1) as plain,
        SaslNode(error=33) as sasl,
        SaslNode(refusal=58) as refusing,
        SaslNode(has_sasl=False) as open_node,
        ScriptedNode({ApiKey.METADATA: metadata_of_a_broker}) as broker,
    ):
        ask = ("state", "--bootstrap-server")  # each is answered before the timeout
        other = {"security.protocol": "SSL", "ssl.ca.location": authority.path}
        mistakes = [
            ("# plain text towards TLS", command(*ask, tls.bootstrap)[1]),
            (
                "# TLS towards plain text",
                command(*ask, plain.bootstrap, "--tls-ca", authority.path)[1],
            ),
            (
                "# TLS without the certificate that the node requires",
                call("", lambda: raftlog.connect(tls.bootstrap, config=other, timeout_ms=5_000))[1],
            ),
            ("# SASL is missing", command(*ask, sasl.address)[1]),
            (
                "# the mechanism is not offered",
                call("", lambda: raftlog.follow(sasl.address, config=PLAIN))[1],
            ),
            (
                "# wrong credentials",
                call("", lambda: raftlog.follow(refusing.address, config=PLAIN))[1],
            ),
            (
                "# SASL towards a listener without it",
                call("", lambda: raftlog.follow(open_node.address, config=PLAIN))[1],
            ),
            ("# a broker as bootstrap server", command(*ask, broker.address)[1]),
            (
                "# the nodes of another cluster",
                command(*ask, plain.bootstrap, "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAA")[1],
            ),
        ]
        check("connections.txt", mistakes, {str(tmp_path): "/tmp"})
