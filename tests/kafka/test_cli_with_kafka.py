"""Commands of raftlog with a running controller of Kafka: log --follow, diff, doctor, report."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import rows, run, start_follower
from tests.support.kafka import KafkaNode, running_node

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNode]:
    with running_node(tmp_path_factory.mktemp("kafka")) as node:
        yield node


def test_a_follower_prints_each_change_of_a_running_controller_once(node: KafkaNode) -> None:
    source = ("--bootstrap-server", node.controller)
    with start_follower("log", *source, "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        for action in ("create", "change"):
            node.admin(action)
        expected = rows("log", *source, "--json")
        assert expected[0] == first
        assert {row["name"].partition("/")[0] for row in expected} >= {"topic", "config", "acl"}
        found = [first, *(json.loads(process.stdout.readline()) for _ in expected[1:])]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 128 + signal.SIGINT
    assert found == expected


def test_a_running_controller_has_the_state_of_its_directory(node: KafkaNode) -> None:
    node.admin("describe")
    sides = (node.log_dir, "--other-bootstrap-server", node.controller)
    status, out, err = run("diff", *sides, "--reveal")
    assert (status, out) == (0, ""), err
    status, out, _ = run("diff", *sides, "--from", "epoch:1", "--ignore", "ids,epochs,leaders")
    assert status == 1
    assert {json.loads(line)["entity"] for line in out.splitlines()} >= {"topic", "acl"}


def test_a_running_kafka_is_healthy_but_for_its_single_voter(node: KafkaNode) -> None:
    status, out, err = run("doctor", "--json", "--bootstrap-server", node.controller)
    assert (status, err) == (0, ""), out
    (note, _) = map(json.loads, out.splitlines())
    assert note["found"] == "the quorum has 1 voter"
    status, out, _ = run("doctor", node.log_dir)
    assert status == 0, out


def test_a_report_on_a_running_kafka_has_what_its_directory_has(
    node: KafkaNode, tmp_path: Path
) -> None:
    sources = (("--bootstrap-server", node.controller), (node.log_dir,))
    charts = []
    for source in sources:
        path = tmp_path / "cluster.html"
        status, _, err = run("report", *source, "-o", path, "--to", "25")
        assert status == 0, err
        found = re.search(r'id="charts-data">(.*)</script>', path.read_text())
        assert found is not None
        charts.append(json.loads(found.group(1)))
    assert charts[0] == charts[1]
    assert len(charts[0]["vconcat"]) >= 3
