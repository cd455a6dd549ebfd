"""Three nodes as processes that authenticate by certificates, and stock clients over mTLS."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.support.certificates import Authority, KeyPair
from tests.support.quorum_processes import NodeProcess, QuorumProcesses, eventually

pytestmark = pytest.mark.slow

TLS = """tls = { certificate = "node.pem", key = "node.key", ca = "../ca.pem" }
[access]
read = ["reports-*"]
append = ["jobs-*"]
[access.nodes]
1 = "node-1.example"
2 = "node-2.example"
3 = "node-3.example"
"""


def install_certificate(node: NodeProcess, authority: Authority, name: str) -> None:
    """Install this certificate at a node."""
    pair = authority.sign(name, file_name=f"of-{node.node_id}")
    shutil.copy(pair.certificate, node.home / "node.pem")
    shutil.copy(pair.key, node.home / "node.key")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("quorum"))


@pytest.fixture(scope="module")
def quorum(
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[QuorumProcesses]:
    """Start the third node with a certificate that another CA signed for its name."""
    failed_before = request.session.testsfailed
    home = Path(authority.path).parent
    other = Authority(tmp_path_factory.mktemp("other"), "another CA")
    nodes = QuorumProcesses(home, extra=TLS)
    for node in nodes.nodes:
        issuer = other if node.node_id == 3 else authority
        install_certificate(node, issuer, f"node-{node.node_id}.example")
    with nodes:
        yield nodes
        if request.session.testsfailed > failed_before:
            for node in nodes.nodes:
                sys.stderr.write(f"node {node.node_id} said last\n{node.last_lines()}\n")


def client(quorum: QuorumProcesses, authority: Authority, pair: KeyPair | None) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": quorum.bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": authority.path,
        "ssl.endpoint.identification.algorithm": "none",
        "message.timeout.ms": 30_000,
    }
    if pair is not None:
        settings["ssl.certificate.location"] = pair.certificate
        settings["ssl.key.location"] = pair.key
    return settings


def sent(settings: dict[str, Any], value: bytes) -> KafkaError | None:
    """Produce one record; return the producer's error."""
    errors: list[KafkaError | None] = []
    producer = Producer({**settings, "log_level": 0})
    producer.produce("raftlog", value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(35)
    assert errors, "no delivery report"
    return errors[0]


def log_bytes(node: NodeProcess) -> bytes:
    return (node.directory / "raftlog-0" / f"{0:020d}.log").read_bytes()


def test_nodes_that_authenticate_replicate_a_log_and_another_gets_none_of_it(
    quorum: QuorumProcesses, authority: Authority
) -> None:
    assert sent(client(quorum, authority, authority.sign("jobs-1")), b"decided") is None
    assert b"decided" in log_bytes(quorum.node(1))
    assert b"decided" in log_bytes(quorum.node(2))

    second, third = quorum.node(2), quorum.node(3)
    words = "certificate_verify_failed"
    eventually(lambda: said(second, "refused", words), "node 2 rejects node 3")
    assert not log_bytes(third)


def said(node: NodeProcess, event: str, words: str) -> bool:
    return any(
        line["event"] == event and words in line.get("reason", "").lower() for line in node.lines()
    )


def test_a_new_certificate_is_used_without_a_restart(
    quorum: QuorumProcesses, authority: Authority
) -> None:
    assert sent(client(quorum, authority, authority.sign("jobs-2")), b"while it was away") is None
    third = quorum.node(3)
    assert third.process is not None
    install_certificate(third, authority, "node-3.example")
    third.process.send_signal(signal.SIGHUP)
    eventually(lambda: b"while it was away" in log_bytes(third), "node 3 catches up")
    assert said(third, "reload", "reloaded")


def test_an_unreadable_certificate_changes_nothing(
    quorum: QuorumProcesses, authority: Authority
) -> None:
    first = quorum.node(1)
    assert first.process is not None
    (first.home / "node.pem").write_text("not a certificate")
    first.process.send_signal(signal.SIGHUP)
    eventually(lambda: said(first, "reload", "nothing is reloaded"), "node 1 logs it")
    assert sent(client(quorum, authority, authority.sign("jobs-3")), b"still there") is None
    eventually(lambda: b"still there" in log_bytes(first), "node 1 continues")


def test_stock_clients_have_the_rights_of_their_name_over_mtls(
    quorum: QuorumProcesses, authority: Authority
) -> None:
    def refusal(name: str) -> int | None:
        error = sent(client(quorum, authority, authority.sign(name)), b"by " + name.encode())
        return None if error is None else error.code()

    assert refusal("jobs-7") is None
    assert refusal("reports-7") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refusal("node-2.example") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refusal("unauthorized") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    impatient = {**client(quorum, authority, None), "message.timeout.ms": 2_000}
    error = sent(impatient, b"by who shows nothing")
    assert error is not None
    assert error.code() == KafkaError._MSG_TIMED_OUT

    consumer = Consumer(
        {**client(quorum, authority, authority.sign("reports-7")), "group.id": "unused"}
    )
    consumer.assign([TopicPartition("raftlog", 0, 0)])
    values: list[bytes] = []

    def has_read_all() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            value = message.value()
            assert value is not None
            values.append(value)
        return b"by jobs-7" in values

    eventually(has_read_all, "the consumer reads what jobs appended")
    consumer.close()
    assert not [value for value in values if value in (b"by reports-7", b"by nobody")]
