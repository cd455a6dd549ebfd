"""``raftlog doctor``: what is examined, and exit codes. Texts are in ``tests/golden_errors``."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import rows, run
from tests.support.log_builder import data_batch
from tests.support.quorum_processes import free_ports
from tests.support.served_node import appended, served_node
from tests.support.small_logs import NO_OP, LogWriter, copy_log

import raftlog
from raftlog.append import AppendRequest, Done
from raftlog.client.remote.voters import NodeAddress, QuorumInfo, ReplicaState
from raftlog.types import ReplicaKey
from raftlog_state.check.diagnosis import diagnose_quorum, diagnose_silence, leader_time_ms
from raftlog_state.image import ControllerRow, MetadataImage
from raftlog_state.records import PartitionRecord, RegisterBrokerRecord, TopicRecord, encode

NODE = Path(__file__).parents[2] / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-1"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
NOW_MS = 1_795_248_298_000


def examine(*argv: str | Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the diagnoses; both must agree."""
    status, out, err = run("doctor", "--json", *argv)
    assert err == ""
    *found, last = map(json.loads, out.splitlines())
    levels = {one["level"] for one in found}
    assert status == (1 if "problem" in levels else 3 if "warning" in levels else 0)
    assert sum(last["summary"].values()) == len(found)
    assert all(one["meaning"] for one in found)
    return status, found


@pytest.fixture
def decisions(tmp_path: Path) -> Path:
    """Log of raftlog.open with three records."""
    with raftlog.open(tmp_path / "decisions-0") as log:
        log.append([b"a", b"b", b"c"])
    return tmp_path / "decisions-0"


def test_a_healthy_log_has_no_diagnosis(decisions: Path) -> None:
    assert examine(decisions) == (0, [])


def test_of_many_findings_of_a_kind_the_first_is_explained_and_the_rest_are_counted(
    tmp_path: Path,
) -> None:
    damaged = bytearray()
    for offset in range(0, 40, 2):
        damaged += data_batch([b"a"], base_offset=offset)
        wrong = bytearray(data_batch([b"b"], base_offset=offset + 1))
        wrong[-1] ^= 1
        damaged += wrong
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / f"{0:020d}.log").write_bytes(damaged + data_batch([b"a"], base_offset=40))
    status, found = examine(directory)
    assert status == 1
    (batch,) = [one for one in found if "CRC" in one["found"]]
    assert "19 more of this kind" in batch["found"]


def test_partitions_of_a_node_that_are_not_checked_are_named() -> None:
    _, found = examine(NODE)
    (note,) = [one for one in found if one["level"] == "note"]
    assert "__consumer_offsets-1" in note["found"]
    assert "and 3 more" in note["found"]
    command = note["next"].split()
    assert run(*command[1:])[0] == 0, "the named command works"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
def test_a_file_of_another_user_is_a_warning(decisions: Path) -> None:
    os.chown(decisions / f"{0:020d}.log", 12_345, -1)
    status, found = examine(decisions)
    assert status == 3
    assert [f"{0:020d}.log" in one["found"] for one in found] == [True]


def test_the_state_that_is_examined_is_that_of_raftlog_state() -> None:
    _, found = examine(NODE.parent / "node-100")
    partitions = rows("state", "--quiet", NODE.parent / "node-100", "partitions")
    leaderless = sum(row["leader"] < 0 for row in partitions)
    text = f"partitions without a leader: {leaderless} of {len(partitions)}"
    assert leaderless
    assert any(text in one["found"] for one in found)


def test_of_a_snapshot_that_ends_after_the_log_the_state_is_examined(tmp_path: Path) -> None:
    metadata = NODE.parent / "node-100" / "__cluster_metadata-0"
    log = copy_log(metadata, tmp_path / "__cluster_metadata-0", end_offset=2232)
    (newest,) = metadata.glob("*3128-*.checkpoint")
    shutil.copy(newest, log / newest.name)
    _, found = examine(log)
    _, expected = examine(newest)
    note, *state = (one for one in found if "not checked" not in one["found"])
    assert f"{newest.name}, offset 3128: it ends after the log" in note["found"]
    assert "continues after the snapshot" in note["meaning"]
    assert [one["found"] for one in state] == [one["found"] for one in expected]


def test_a_contradiction_after_unsupported_records_keeps_its_other_cause(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    topic = encode(TopicRecord(name="a", topic_id="muSNo3lITFSJf4sY_teOaw"))
    writer.append(NO_OP, b"\x01\x63\x00\x00", topic, topic)
    status, found = examine(tmp_path)
    assert status == 1
    (damage,) = (one for one in found if one["level"] == "problem")
    assert "does not support 1 records of type 99 version 0" in damage["found"]
    assert "use a newer release" in damage["meaning"]
    assert "files of two clusters were mixed" in damage["meaning"]


def test_files_that_cannot_be_read_are_a_problem_not_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    segment = directory / f"{0:020d}.log"
    segment.symlink_to(segment)
    status, found = examine(directory)
    assert status == 1
    assert "cannot be read" in found[0]["found"]


def test_damaged_properties_of_a_node_are_a_problem_and_the_log_is_examined(
    tmp_path: Path,
) -> None:
    source = NODE / "__cluster_metadata-0"
    log = copy_log(source, tmp_path / "node" / source.name, end_offset=436)
    (log.parent / "meta.properties").unlink()
    expected = [one["found"] for one in examine(log.parent)[1]]
    (log.parent / "meta.properties").write_text("version=1\nnode.id=one\ncluster.id=c\n")
    status, out, _ = run("doctor", log.parent)
    assert status == 1
    assert out.startswith(f"{log.parent}: metadata log of Kafka\n")
    first, *rest = examine(log.parent)[1]
    assert "meta.properties: node.id is 'one', not a number" in first["found"]
    assert [one["found"] for one in rest] == expected


def test_a_damaged_quorum_state_does_not_end_the_check_of_several_copies(tmp_path: Path) -> None:
    copies = [tmp_path / f"node-{at}" for at in (1, 2)]
    for copy in copies:
        shutil.copytree(
            NODE.parent / f"node-10{copy.name[-1]}", copy, ignore=shutil.ignore_patterns("*.gz")
        )
    state = copies[1] / "__cluster_metadata-0" / "quorum-state"
    state.chmod(0o600)
    state.write_text("{")
    source = ",".join(map(str, copies))
    status, found = examine(source)
    assert status == 1
    assert str(state) in found[0]["found"]
    status, out, err = run("check", source)
    assert (status, err) == (1, "")
    assert "quorum-state" in out


def test_what_is_no_log_is_a_wrong_argument(tmp_path: Path) -> None:
    assert run("doctor", tmp_path / "none")[0] == 2
    assert run("doctor")[0] == 2
    assert run("doctor", NODE, "--bootstrap-server", "localhost:1")[0] == 2


# --- nodes ----------------------------------------------------------------------------------------


def test_a_quorum_that_does_not_answer_is_a_problem() -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    status, (found,) = examine("--bootstrap-server", address, "--timeout-ms", "200")
    assert status == 1
    assert address in found["found"]


def test_a_running_node_is_examined_by_its_address_its_directory_and_its_configuration(
    tmp_path: Path,
) -> None:
    broker = RegisterBrokerRecord(broker_id=3, fenced=True)
    topic = TopicRecord(name="orders", topic_id=TOPIC_ID)
    partition = PartitionRecord(
        partition_id=0, topic_id=TOPIC_ID, replicas=(3,), isr=(3,), leader=-1, directories=()
    )

    async def work() -> None:
        async with served_node(tmp_path, '[log]\nvalues = "kraft"\n') as node:
            done = await appended(
                node.node.raft_node,
                AppendRequest(
                    records=tuple(map(encode, (broker, topic, partition))), deadline_ms=1e12
                ),
            )
            assert isinstance(done, Done)
            address = ("--bootstrap-server", f"127.0.0.1:{node.port}")
            status, found = await asyncio.to_thread(examine, *address)
            assert status == 1
            texts = [one["found"] for one in found]
            assert "the quorum has 1 voter" in texts
            assert "partitions without a leader: 1 of 1: orders-0" in texts
            assert "fenced brokers: 3, of 1 registered" in texts
            log = next(one["next"] for one in found if "without a leader" in one["found"])
            status, out, _ = await asyncio.to_thread(run, *log.split()[1:])
            assert status == 0, "the named command works"
            assert "partition/orders/0" in out
            config = tmp_path / "node.toml"
            config.write_text(
                f'[node]\nid = 1\ndirectory = "{tmp_path / "data"}"\n'
                f'[listeners.both]\naddress = "127.0.0.1:{node.port}"\n'
            )
            log_path = node.node.raft_node.replica.log.path
            offline = await asyncio.to_thread(examine, log_path)
            assert {one["found"] for one in offline[1]} < set(texts)
            for path in (tmp_path, config):
                assert await asyncio.to_thread(examine, path) == offline

    asyncio.run(work())


def replica(node_id: int, fetched_ms: int | None) -> ReplicaState:
    return ReplicaState(
        key=ReplicaKey(node_id),
        is_voter=True,
        end_offset=9,
        fetched_ms=fetched_ms,
        caught_up_ms=fetched_ms,
        addresses=(NodeAddress(listener="both", host="h", port=1),),
    )


def test_ages_are_those_of_the_clock_of_the_leader() -> None:
    quorum = QuorumInfo(
        cluster_id="c",
        topic="orders",
        leader_id=1,
        epoch=1,
        high_watermark=9,
        replicas=tuple(replica(at, NOW_MS - at) for at in (1, 2, 3)),
    )
    now_ms = leader_time_ms(quorum, NOW_MS + 3_600_000)
    assert now_ms == NOW_MS - 1
    assert list(diagnose_quorum(quorum, now_ms, "x")) == []
    assert len(list(diagnose_quorum(quorum, NOW_MS + 3_600_000, "x"))) == 3


def test_a_controller_that_writes_no_records_is_reported() -> None:
    image = MetadataImage(offset=9, timestamp_ms=NOW_MS)
    assert list(diagnose_silence(image, NOW_MS + 900, "x", is_raftlog=False)) == []
    (found,) = diagnose_silence(image, NOW_MS + 45_000, "x", is_raftlog=False)
    assert "45 s old" in found.found


def test_a_quorum_of_raftlog_without_a_controller_may_be_idle() -> None:
    idle = MetadataImage(offset=9, timestamp_ms=NOW_MS)
    assert list(diagnose_silence(idle, NOW_MS + 45_000, "x", is_raftlog=True)) == []
    registered = MetadataImage.from_rows(
        [
            ControllerRow(
                controller_id=1,
                incarnation_id=TOPIC_ID,
                zk_migration_ready=False,
                endpoints=(),
                features=(),
            )
        ],
        offset=9,
        leader_epoch=1,
        timestamp_ms=NOW_MS,
    )
    assert len(list(diagnose_silence(registered, NOW_MS + 45_000, "x", is_raftlog=True))) == 1
