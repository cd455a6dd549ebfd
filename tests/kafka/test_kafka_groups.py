"""Groups, offset commits and transactions of a running Kafka: its tools and admin client judge."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from tests.kafka.internal_dumps import DECODERS, assert_printed_as_by_dump_log
from tests.support.cli import rows, run
from tests.support.jars import KAFKA_VERSION
from tests.support.kafka import HOME, KafkaNode, formatted, kafka_jars, run_java, running_node

from raftlog_state.image.rows import ShareBatch
from raftlog_state.internal.loader import combined
from raftlog_state.tables.reader import ArrowView, open_tables

pytestmark = pytest.mark.kafka

SETTINGS = (
    "offsets.topic.num.partitions=4",
    "transaction.state.log.num.partitions=2",
    "share.coordinator.state.topic.num.partitions=2",
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "group.initial.rebalance.delay.ms=0",
)


RELEASES = {
    KAFKA_VERSION: (),
    # New consumer groups are early access in it.
    "3.9.2": (
        "group.coordinator.new.enable=true",
        "group.coordinator.rebalance.protocols=classic,consumer",
        "unstable.api.versions.enable=true",
    ),
}
"""Releases, and the settings with which they have groups of both protocols."""
TOPICS = [(KAFKA_VERSION, topic) for topic in DECODERS]
TOPICS += [("3.9.2", topic) for topic in ("__consumer_offsets", "__transaction_state")]

CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
SHARES = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


class Cluster(NamedTuple):
    """Node with members and an open transaction, and what its admin client saw."""

    node: KafkaNode
    admin: dict[str, Any]


@pytest.fixture(scope="module", params=RELEASES)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    release = str(request.param)
    home = tmp_path_factory.mktemp(f"groups-{release}")
    with running_node(home, *SETTINGS, *RELEASES[release], version=release) as node:
        # The clients are of one release, the tools of the node's.
        classes = f"{kafka_jars()}/*"
        program = str(HOME / "tests" / "kafka" / "Groups.java")
        command = ["java", "-Xmx256m", "-cp", classes, program, node.bootstrap, release]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as clients:
            yield Cluster(node, first_object(clients))
            assert clients.stdin is not None
            clients.stdin.close()
            clients.wait()


def first_object(clients: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the JSON that the clients print once they have done everything."""
    assert clients.stdout is not None
    for line in clients.stdout:
        if line.startswith(b"{"):
            seen: dict[str, Any] = json.loads(line)
            return seen
    raise AssertionError("the clients failed")


def segments(node: KafkaNode, topic: str) -> list[Path]:
    return sorted(node.log_dir.glob(f"{topic}-*/*.log"))


@pytest.mark.parametrize(("cluster", "topic"), TOPICS, indirect=["cluster"])
def test_records_are_printed_as_by_dump_log(cluster: Cluster, topic: str) -> None:
    """Kafka 3.9 has a text of its own for transactions, so the tool is of one release."""
    found = segments(cluster.node, topic)
    assert sum(assert_printed_as_by_dump_log(kafka_jars(), one) for one in found)


def test_offsets_groups_and_transactions_are_those_of_the_admin_client(cluster: Cluster) -> None:
    offsets: dict[str, list[Any]] = {}
    for row in rows("state", cluster.node.log_dir, "consumer_offsets"):
        offsets.setdefault(row["group"], []).append(
            [row["topic"], row["partition"], row["offset"], row["metadata"]]
        )
    assert offsets == {group: sorted(one) for group, one in cluster.admin["offsets"].items()}
    groups = rows("state", cluster.node.log_dir, "groups")
    assert {row["type"] for row in groups} >= {"classic", "consumer"}
    assert {
        row["group"]: [row["type"].capitalize(), row["protocol_type"], row["state"]]
        for row in groups
    } == cluster.admin["groups"]
    members = {
        row["group"]: [
            [one["member_id"], one["instance_id"] or "", one["client_id"], one["client_host"]]
            for one in row["members"]
        ]
        for row in groups
        if row["group"] in cluster.admin["members"]
    }
    assert members == {
        group: [one[:4] for one in found] for group, found in cluster.admin["members"].items()
    }
    transactions = rows("state", f"{cluster.node.log_dir}/__transaction_state-*", "transactions")
    assert {
        row["transactional_id"]: [row["producer_id"], row["state"]] for row in transactions
    } == cluster.admin["transactions"]


def views_of(node: KafkaNode, tables: Path) -> list[ArrowView]:
    """Follow the partitions of ``__consumer_offsets`` into tables; return the state of each."""
    pattern = f"{node.log_dir}/__consumer_offsets-*"
    status, _, err = run("tables", "follow", pattern, tables, "--once", "--tail-holdback-ms", "0")
    assert status == 0, err
    return [
        open_tables(str(tables), cluster_id=str(one["cluster_id"])).latest()
        for one in rows("tables", "status", tables)
    ]


def in_tables(views: list[ArrowView], name: str) -> list[dict[str, Any]]:
    return [row for view in views for row in view.table(name).to_pylist()]


def described_by(node: KafkaNode, *what: str) -> list[list[str]]:
    """Return the words of each line that kafka-consumer-groups prints of all groups."""
    arguments = ("--bootstrap-server", node.bootstrap, "--describe", "--all-groups", *what)
    text = run_java(node.jars, CONSUMER_GROUPS, *arguments)
    return [line.split() for line in text.splitlines()]


def test_groups_and_members_in_tables_are_those_that_kafkas_tool_prints(
    cluster: Cluster, tmp_path: Path
) -> None:
    views = views_of(cluster.node, tmp_path)
    groups = in_tables(views, "groups")
    assert {
        row["group"]: [row["type"].capitalize(), row["protocol_type"], row["state"]]
        for row in groups
    } == cluster.admin["groups"]
    names = {row["group"] for row in groups if row["type"] in ("classic", "consumer")}
    printed: list[tuple[str, ...]] = [
        (words[0], words[-2], words[-1])
        for words in described_by(cluster.node, "--state")
        if words and words[0] in names and words[-1].isdigit()
    ]
    assert sorted(printed) == sorted(
        (row["group"], row["state"], str(row["member_count"]))
        for row in groups
        if row["group"] in names
    )
    printed = [
        (words[0], words[1], *words[-3:])
        for words in described_by(cluster.node, "--members")
        if len(words) in (5, 6) and words[0] in names
    ]
    members = [row for row in in_tables(views, "group_members") if row["group"] in names]
    assert len(printed) == len(cluster.admin["members"])
    assert sorted(printed) == sorted(
        (
            *(row[name] for name in ("group", "member_id", "client_host", "client_id")),
            str(sum(len(one["partitions"]) for one in row["assignment"])),
        )
        for row in members
    )


def test_offsets_and_transactions_are_those_that_kafkas_tools_print(
    cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.node
    described = sorted(
        words[:6] for words in described_by(node) if len(words) == 9 and words[2].isdigit()
    )
    offsets = rows("state", node.log_dir, "consumer_offsets")
    names: tuple[str, ...] = ("group", "topic", "partition", "offset")
    assert [row[:4] for row in described] == sorted(
        [str(row[name]) for name in names] for row in offsets
    )
    assert [row[3] for row in described if row[0].startswith("after-")] == ["6", "5"]
    assert [row[3] for row in described if row[0] == "atomic"] == ["3", "6"]
    views = views_of(node, tmp_path)
    followed = [[str(row[name]) for name in names] for row in in_tables(views, "consumer_offsets")]
    assert sorted(followed) == [row[:4] for row in described]
    assert [row["offset"] for row in in_tables(views, "pending_offsets")] == [99]
    lags = rows("state", node.log_dir, "lag")
    names = (*names, "log_end_offset", "lag")
    assert described == sorted([str(row[name]) for name in names] for row in lags)
    assert {row["topic_state"] for row in lags} == {"Current"}
    assert rows("state", "--bootstrap-server", node.bootstrap, "lag") == lags
    text = run_java(node.jars, TRANSACTIONS, "--bootstrap-server", node.bootstrap, "list")
    listed = sorted(
        (words[0], words[2], words[3])
        for line in text.splitlines()
        if len(words := line.split()) == 4 and words[1] == "1"
    )
    transactions = rows("state", f"{node.log_dir}/__transaction_state-*", "transactions")
    assert listed == sorted(
        (row["transactional_id"], str(row["producer_id"]), row["state"]) for row in transactions
    )
    assert [one[0] for one in listed if one[2] == "Ongoing"] == ["t-open"]


@pytest.mark.parametrize("cluster", [KAFKA_VERSION], indirect=True)
def test_share_groups_have_the_offsets_and_the_lag_that_kafkas_tool_prints(
    cluster: Cluster,
) -> None:
    node = cluster.node
    arguments = ("--describe", "--all-groups", "--offsets")
    text = run_java(node.jars, SHARES, "--bootstrap-server", node.bootstrap, *arguments)
    described = sorted(
        words
        for line in text.splitlines()
        if len(words := line.split()) == 5 and words[2].isdigit()
    )
    names = ("group", "topic", "partition", "start_offset", "lag")
    found = rows("state", node.log_dir, "share_lag")
    assert sorted([str(row[name]) for name in names] for row in found) == described
    assert {row[0] for row in described} == {"picky", "shared"}
    shares = rows("state", node.log_dir, "share_partitions")
    states = {one["delivery_state_name"] for row in shares for one in row["state_batches"]}
    assert states >= {"Acknowledged", "Archived"}


def test_delivery_states_are_combined_as_by_the_share_coordinator() -> None:
    program = HOME / "tests" / "kafka" / "ShareBatches.java"
    cases = run_java(kafka_jars(), str(program), "20", "5000").splitlines()
    assert len(cases) == 5000
    for case in cases:
        start, before, later, expected = case.split("\t")
        given = [*delivery_batches(before), *delivery_batches(later)]
        assert combined(given, int(start)) == (*delivery_batches(expected),), case


def delivery_batches(text: str) -> list[ShareBatch]:
    """Return the batches that the program printed."""
    return [ShareBatch(*map(int, one.split(","))) for one in text.split(";") if one]


def found_hanging(node: KafkaNode) -> list[tuple[str, ...]]:
    """Return what find-hanging prints of the transactions that are open at the moment."""
    arguments = ("find-hanging", "--broker-id", "1", "--max-transaction-timeout", "0")
    text = run_java(node.jars, TRANSACTIONS, "--bootstrap-server", node.bootstrap, *arguments)
    lines = [line.split() for line in text.splitlines()]
    # Topic, Partition, ProducerId, ProducerEpoch, CoordinatorEpoch, StartOffset, LastTimestamp, ...
    return sorted(
        (*words[:4], *words[5:7]) for words in lines if len(words) == 8 and words[1].isdigit()
    )


def hanging(node: KafkaNode) -> list[tuple[str, ...]]:
    """Return the same of ``raftlog state``. The tool searches no internal topics."""
    words = ("hanging_transactions", "--max-transaction-timeout", "0")
    names = ("topic", "partition", "producer_id", "producer_epoch", "start_offset")
    return sorted(
        tuple(str(row[name]) for name in (*names, "last_timestamp_ms"))
        for row in rows("state", node.log_dir, *words)
        if not row["topic"].startswith("__")
    )


def begin_transaction(node: KafkaNode, transactional_id: str, topic: str) -> None:
    """Begin a transaction with two batches, and leave it open."""
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 600_000,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in (b"1", b"2"):
        producer.produce(topic, value)
        assert producer.flush(60) == 0


@pytest.mark.parametrize("release", RELEASES)
def test_transactions_hang_whose_coordinator_has_lost_them(tmp_path: Path, release: str) -> None:
    """As find-hanging prints them: the log of the coordinator is deleted while the node is down."""
    with running_node(tmp_path, *SETTINGS, version=release) as node:
        begin_transaction(node, "t-lost", "bills")
        assert hanging(node) == found_hanging(node) == []
    for path in node.log_dir.glob("__transaction_state-*"):
        shutil.rmtree(path)
    ports = (int(address.rpartition(":")[2]) for address in (node.bootstrap, node.controller))
    with formatted(node.log_dir, *ports, version=release) as node:
        begin_transaction(node, "t-known", "bills")
        found = hanging(node)
        assert [one[0] for one in found] == ["bills"]
        assert found == found_hanging(node)
