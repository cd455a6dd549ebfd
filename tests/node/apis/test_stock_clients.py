"""Stock clients of Kafka, unmodified, on three real processes: librdkafka, aiokafka, Java's tools.

Every client bootstraps from each of the nodes once, so also from two that do not lead: librdkafka's
producer and consumer with the codecs of ``make nightly``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raftlog.errors import ForeignCommitError
from raftlog.limits import MIB
from raftlog.node.formatting import random_id
from tests.support.kafka import kafka_jars, run_java
from tests.support.quorum_processes import RARE_ELECTIONS, QuorumProcesses, eventually

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = "raftlog"
COUNT = 200
PATIENCE_S = 30.0


def slow_or_nightly(first: object, *others: object) -> list[object]:
    """Return parameters, of which ``make test`` has the first one."""
    return [
        pytest.param(first, marks=pytest.mark.slow),
        *(pytest.param(one, marks=pytest.mark.nightly) for one in others),
    ]


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuorumProcesses]:
    home = tmp_path_factory.mktemp("quorum")
    with QuorumProcesses(home, extra=RARE_ELECTIONS) as processes:
        eventually(lambda: _agree(processes), "all nodes know the leader")
        yield processes


def _agree(quorum: QuorumProcesses) -> bool:
    """Return whether all nodes last logged the same leader."""
    said = [
        [(line["epoch"], line["leader"]) for line in node.lines() if line["event"] == "leader"]
        for node in quorum.nodes
    ]
    last = {lines[-1] if lines else (0, None) for lines in said}
    return len(last) == 1 and last.pop()[1] is not None


def _values(prefix: str) -> list[bytes]:
    return [f"{prefix}-{at}".encode() * 5 for at in range(COUNT)]


# --- librdkafka -----------------------------------------------------------------------------------


def _produce(bootstrap: str, codec: str, values: list[bytes], **more: Any) -> list[int]:
    """Return the offsets of the delivered records."""
    from confluent_kafka import Producer

    offsets: list[int] = []
    problems: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        problems.append(str(error)) if error else offsets.append(message.offset())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
            "log_level": 0,
            **more,
        }
    )
    for at, value in enumerate(values):
        producer.produce(
            TOPIC,
            key=b"k%d" % at,
            value=value,
            headers={"codec": codec.encode()},
            timestamp=1_700_000_000_000 + at,
            on_delivery=delivered,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert problems == []
    return offsets


def _consume(bootstrap: str, start_offset: int, count: int, **more: Any) -> list[Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": random_id(),
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
            **more,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, start_offset)])
    found: list[Any] = []
    until_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < until_s:
        messages = consumer.consume(count - len(found), 1.0)
        assert not [one.error() for one in messages if one.error()]
        found += messages
    consumer.close()
    return found


@pytest.mark.parametrize("codec", slow_or_nightly("snappy", "none", "gzip", "lz4", "zstd"))
def test_librdkafka_produces_idempotently_and_consumes_with_every_codec(
    quorum: QuorumProcesses, codec: str
) -> None:
    node = quorum.nodes[CODECS.index(codec) % 3]
    values = _values(codec)
    offsets = _produce(node.address, codec, values)
    assert offsets == sorted(set(offsets))
    found = _consume(node.address, offsets[0], COUNT)
    assert [one.value() for one in found] == values
    assert [one.offset() for one in found] == offsets
    assert found[-1].key() == b"k%d" % (COUNT - 1)
    assert found[-1].headers() == [("codec", codec.encode())]
    assert found[-1].timestamp() == (1, 1_700_000_000_000 + COUNT - 1)


@pytest.mark.parametrize("codec", slow_or_nightly("zstd", "none"))
def test_librdkafkas_large_batches_keep_their_order_among_small_ones(
    quorum: QuorumProcesses, codec: str
) -> None:
    """A node decodes large batches in an executor; later ones of the same producer wait."""
    chance = random.Random(7)
    values = [
        chance.randbytes(300_000)
        if at % 7 == 0
        else chance.randbytes(10) * chance.randint(1, 9_000)
        for at in range(COUNT)
    ]
    more = {"batch.size": 4 * MIB, "message.max.bytes": 4 * MIB, "linger.ms": 1}
    _, end = _watermarks(quorum.bootstrap)
    offsets = _produce(quorum.bootstrap, codec, values, **more)
    assert offsets == sorted(set(offsets)), "offsets of control records may be between"
    found = _consume(quorum.bootstrap, end, COUNT)
    assert [one.value() for one in found] == values


@pytest.mark.slow
def test_librdkafkas_consumer_with_a_large_fetch_min_bytes_gets_the_last_records(
    quorum: QuorumProcesses,
) -> None:
    values = [b"%d" % at * 2_000 for at in range(COUNT)]
    waiting = {"fetch.min.bytes": 300_000, "fetch.wait.max.ms": 300}
    _, end = _watermarks(quorum.bootstrap)
    with ThreadPoolExecutor(1) as beside:
        found = beside.submit(_consume, quorum.nodes[0].address, end, COUNT, **waiting)
        _produce(quorum.bootstrap, "none", values, **{"batch.size": 20_000})
        assert [one.value() for one in found.result()] == values


@pytest.mark.parametrize("acks", slow_or_nightly(0, 1))
def test_librdkafka_produces_with_fewer_acks(quorum: QuorumProcesses, acks: int) -> None:
    marker = f"acks {acks} {random_id()}".encode()
    more = {"enable.idempotence": False, "acks": acks}
    _, end = _watermarks(quorum.bootstrap)
    _produce(quorum.bootstrap, "none", [marker] * 10, **more)
    assert [one.value() for one in _consume(quorum.bootstrap, end, 10)] == [marker] * 10


def _watermarks(bootstrap: str) -> tuple[int, int]:
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    topic = TopicPartition(TOPIC, 0)

    def look() -> Any:
        with contextlib.suppress(KafkaException):  # while no node leads
            return consumer.get_watermark_offsets(topic, timeout=PATIENCE_S)
        return None

    low, high = eventually(look, "a leader is elected")
    consumer.close()
    return low, high


@pytest.mark.slow
def test_librdkafka_finds_offsets_by_timestamp_and_committed_offsets_by_group(
    quorum: QuorumProcesses,
) -> None:
    from confluent_kafka import Consumer, TopicPartition

    import raftlog

    offsets = _produce(quorum.bootstrap, "none", _values("time"))
    with raftlog.connect(quorum.bootstrap) as log:
        log.append([b"x"], commit=("an application", "a query", 41))
        with pytest.raises(ForeignCommitError):
            log.append([b"x"], commit=("an application", "another", 42))
    low, high = _watermarks(quorum.nodes[1].address)
    assert low == 0
    assert high > offsets[-1]
    consumer = Consumer(
        {
            "bootstrap.servers": quorum.bootstrap,
            "group.id": "raftlog.commit:an application",
            "log_level": 0,
        }
    )
    asked = TopicPartition(TOPIC, 0, 1_700_000_000_000)
    (by_time,) = consumer.offsets_for_times([asked], timeout=PATIENCE_S)
    assert 0 <= by_time.offset <= offsets[0]
    (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=PATIENCE_S)
    assert (committed.offset, committed.metadata) == (41, "a query")
    consumer.close()


@pytest.mark.slow
def test_librdkafkas_admin_client_lists_nodes_topic_and_configs(quorum: QuorumProcesses) -> None:
    from confluent_kafka import admin as admins

    for node in quorum.nodes:
        admin = admins.AdminClient({"bootstrap.servers": node.address, "log_level": 0})

        def has_seen_all_nodes(admin: Any = admin) -> Any:
            seen = admin.list_topics(timeout=PATIENCE_S)
            return seen if sorted(seen.brokers) == [1, 2, 3] else None

        seen = eventually(has_seen_all_nodes, "voters have registered their client listeners")
        assert seen.cluster_id == quorum.cluster_id
        assert list(seen.topics[TOPIC].partitions) == [0]
        resource: Any = admins.ConfigResource("topic", TOPIC)
        settings = admin.describe_configs([resource])[resource].result(PATIENCE_S)
        assert settings["raftlog.values"].value == "bytes"
        cluster: Any = admin.describe_cluster()
        assert cluster.result(PATIENCE_S).cluster_id == quorum.cluster_id


@pytest.mark.slow
def test_joining_a_consumer_group_is_refused_explicitly(quorum: QuorumProcesses) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": quorum.bootstrap, "group.id": "g", "log_level": 0})
    consumer.subscribe([TOPIC])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert "JoinGroup" in str(message.error())
    assert "not supported" in str(message.error())
    consumer.close()


@pytest.mark.slow
def test_a_transactional_producer_is_refused_fatally(quorum: QuorumProcesses) -> None:
    from confluent_kafka import KafkaException, Producer

    producer = Producer(
        {"bootstrap.servers": quorum.bootstrap, "transactional.id": "t", "log_level": 0}
    )
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(PATIENCE_S)
    assert refused.value.args[0].fatal()
    assert "transactions are not supported" in refused.value.args[0].str()


# --- aiokafka -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_aiokafka_produces_idempotently_and_consumes(quorum: QuorumProcesses) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    values = _values("aio")

    async def work() -> None:
        for node in quorum.nodes:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=node.address, enable_idempotence=True, compression_type="gzip"
            )
            await producer.start()
            sent = [await producer.send(TOPIC, value) for value in values]
            offsets = [(await one).offset for one in sent]
            await producer.stop()
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=node.address, isolation_level="read_committed"
            )
            await consumer.start()
            at = aiokafka.TopicPartition(TOPIC, 0)
            consumer.assign([at])
            consumer.seek(at, offsets[0])
            found = [(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value for _ in values]
            assert found == values
            assert (await consumer.beginning_offsets([at]))[at] == 0
            await consumer.stop()

    asyncio.run(work())


# --- Java -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


@pytest.mark.kafka
@pytest.mark.parametrize("codec", CODECS)
def test_javas_console_producer_and_consumer_work(
    quorum: QuorumProcesses, jars: Path, codec: str
) -> None:
    node = quorum.nodes[CODECS.index(codec) % 3]
    lines = [f"{codec}-{random_id()}-{at}" for at in range(COUNT)]
    _, end = _watermarks(node.address)
    produced = subprocess.run(
        [
            "java",
            "-Xmx256m",
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.tools.ConsoleProducer",
            "--bootstrap-server",
            node.address,
            "--topic",
            TOPIC,
            "--compression-codec",
            codec,
            "--command-property",
            "enable.idempotence=true",
        ],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert produced.returncode == 0, produced.stderr
    assert "ERROR" not in produced.stderr + produced.stdout
    consumed = run_java(
        jars,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        node.address,
        "--topic",
        TOPIC,
        "--partition",
        "0",
        "--offset",
        str(end),
        "--max-messages",
        str(COUNT),
        "--timeout-ms",
        "30000",
    )
    assert consumed.splitlines() == lines


@pytest.mark.kafka
def test_javas_tools_list_offsets_topics_and_the_quorum(
    quorum: QuorumProcesses, jars: Path
) -> None:
    _produce(quorum.bootstrap, "none", _values("tools"))
    _, end = _watermarks(quorum.bootstrap)
    quorum_tool = "org.apache.kafka.tools.MetadataQuorumCommand"
    for node in quorum.nodes:
        at = ("--bootstrap-server", node.address)
        status = run_java(jars, quorum_tool, *at, "describe", "--status")
        assert re.search(rf"ClusterId: +{re.escape(quorum.cluster_id)}", status)
        high_watermark = re.search(r"HighWatermark: +(\d+)", status)
        assert high_watermark is not None
        assert int(high_watermark[1]) >= end  # a new leader appends a record first
    at = ("--bootstrap-server", quorum.nodes[0].address)
    replicas = run_java(jars, quorum_tool, *at, "describe", "--replication")
    assert re.findall(r"^([123])\s.*(?:Leader|Follower)", replicas, re.MULTILINE) != []
    assert len(re.findall(r"^[123]\s", replicas, re.MULTILINE)) == 3, replicas
    offsets = "org.apache.kafka.tools.GetOffsetShell"
    match = re.search(rf"{TOPIC}:0:(\d+)", run_java(jars, offsets, *at, "--topic", TOPIC))
    assert match is not None
    assert int(match[1]) >= end
    topics = run_java(jars, "org.apache.kafka.tools.TopicCommand", *at, "--describe")
    assert f"Topic: {TOPIC}" in topics


# --- DeleteRecords, last: it deletes the records of the tests above -------------------------------


@pytest.mark.slow
def test_librdkafkas_admin_client_deletes_records(quorum: QuorumProcesses) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    _produce(quorum.bootstrap, "none", _values("deleted"))
    _, end = _watermarks(quorum.bootstrap)
    admin = AdminClient({"bootstrap.servers": quorum.bootstrap})
    (future,) = admin.delete_records([TopicPartition(TOPIC, 0, end)]).values()
    assert future.result(60).low_watermark == end
    assert _watermarks(quorum.bootstrap)[0] == end


@pytest.mark.kafka
def test_kafka_delete_records_deletes_records(
    quorum: QuorumProcesses, jars: Path, tmp_path: Path
) -> None:
    _produce(quorum.bootstrap, "none", _values("deleted by a tool"))
    start, end = _watermarks(quorum.bootstrap)
    assert start < end
    partitions = [{"topic": TOPIC, "partition": 0, "offset": end}]
    offsets = tmp_path / "offsets.json"
    offsets.write_text(json.dumps({"version": 1, "partitions": partitions}))
    tool = "org.apache.kafka.tools.DeleteRecordsCommand"
    at = ("--bootstrap-server", quorum.nodes[0].address)
    printed = run_java(jars, tool, *at, "--offset-json-file", str(offsets))
    assert f"partition: {TOPIC}-0\tlow_watermark: {end}" in printed, printed
    assert _watermarks(quorum.bootstrap)[0] == end
