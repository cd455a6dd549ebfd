"""``raftlog node format`` writes the same files as kafka-storage, and Kafka starts from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.cli import run
from tests.support.kafka import dump_log, formatted, kafka_jars, run_java
from tests.support.quorum_processes import free_ports

from raftlog.log.format.directory import parse_meta_properties
from raftlog.node.formatting import random_id

pytestmark = pytest.mark.kafka

BOOTSTRAP = "00000000000000000000-0000000000.checkpoint"


def node_file(home: Path, controller: int, topic: str) -> Path:
    path = home / "node.toml"
    path.write_text(
        f'[node]\nid = 1\ndirectory = "ours"\ntopic = "{topic}"\n'
        f'[listeners.voters]\naddress = "127.0.0.1:{controller}"\n'
    )
    return path


def without_times(lines: list[str]) -> list[str]:
    """Return a dump without times and the checksums over them."""
    pattern = r'(CreateTime: |crc: |"lastContainedLogTimestamp":)\d+'
    return [re.sub(pattern, r"\g<1>X", line) for line in lines]


def test_kafka_storage_writes_the_same_files(tmp_path: Path) -> None:
    jars, (port, other) = kafka_jars(), free_ports(2)
    cluster_id, directories = random_id(), [random_id(), random_id()]
    voters = f"1@127.0.0.1:{port}:{directories[0]},2@127.0.0.1:{other}:{directories[1]}"
    properties = tmp_path / "kafka.properties"
    properties.write_text(
        "process.roles=controller\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
        f"listeners=CONTROLLER://127.0.0.1:{port}\nlog.dirs={tmp_path / 'theirs'}\n"
        f"controller.quorum.bootstrap.servers=127.0.0.1:{port}\n"
    )
    tool = ("format", "--initial-controllers", voters, "-t", cluster_id, "-c", str(properties))
    run_java(jars, "kafka.tools.StorageTool", *tool)
    config = node_file(tmp_path, port, "__cluster_metadata")
    call = ("node", "format", "-c", config, "-t", cluster_id, "--initial-voters", voters)
    assert run(*call)[0] == 0

    dumps, metas = [], []
    for name in ("theirs", "ours"):
        checkpoint = tmp_path / name / "__cluster_metadata-0" / BOOTSTRAP
        dumps.append(without_times(dump_log(jars, checkpoint)))
        meta = tmp_path / name / "meta.properties"
        metas.append(parse_meta_properties(meta.read_bytes(), str(meta)))
        lines = meta.read_text().splitlines()
        assert [line.partition("=")[0] for line in lines[2:]] == [
            "node.id",
            "directory.id",
            "version",
            "cluster.id",
        ]
    assert dumps[0] == dumps[1]
    assert metas[0] == metas[1]


def test_kafka_starts_as_the_only_voter_of_a_directory_formatted_by_raftlog(tmp_path: Path) -> None:
    client, controller = free_ports(2)
    config = node_file(tmp_path, controller, "__cluster_metadata")
    status, out, _ = run("node", "format", "-c", config, "--standalone")
    assert status == 0
    described = dict(line.split("=") for line in out.splitlines())
    with formatted(tmp_path / "ours", client, controller) as node:
        words = ("--bootstrap-controller", node.controller, "describe", "--status")
        text = run_java(node.jars, "org.apache.kafka.tools.MetadataQuorumCommand", *words)
    assert re.search(rf"ClusterId:\s+{re.escape(described['cluster.id'])}", text)
    assert re.search(r"LeaderId:\s+1\b", text)
    assert described["directory.id"] in text
