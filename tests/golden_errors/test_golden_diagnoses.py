"""Diagnoses of `raftlog doctor`, as golden texts: what a user reads, and what is next."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import raftlog
from raftlog.client.remote.voters import QuorumInfo, ReplicaState
from raftlog.limits import MIB
from raftlog.types import ReplicaKey
from raftlog_state.check.diagnosis import (
    Diagnosis,
    diagnose_owners,
    diagnose_quorum,
    diagnose_space,
)
from tests.golden_errors.golden import HOME, Mistake, answer, check
from tests.support.log_builder import data_batch

LOGS = HOME / "tests" / "data" / "kraft-logs"
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
SEGMENT = f"{0:020d}.log"
NOW_MS = 1_795_248_298_000


def copy(place: Path, source: Path = NODE) -> Path:
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.gz"))
    return place


def flip(path: Path, position: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def logs_of_kafka(home: Path) -> Iterator[Mistake]:
    """Yield diagnoses of metadata logs and partitions of Kafka."""
    yield answer("a cluster that was shut down", "doctor", NODE)
    damaged = copy(home / "node-1")
    flip(damaged / "__cluster_metadata-0" / SEGMENT, 20_000)
    yield answer("a damaged batch of a controller", "doctor", damaged)
    (only := home / "orders" / "__cluster_metadata-0").mkdir(parents=True)
    shutil.copy(NODE / "__cluster_metadata-0" / SEGMENT, only)
    flip(only / SEGMENT, 20)
    yield answer("a log whose first batch is damaged, without a snapshot", "doctor", only)
    index = copy(home / "node-2") / "__cluster_metadata-0" / f"{0:020d}.index"
    flip(index, 7)
    yield answer("a damaged index", "doctor", index.parent)
    torn = copy(home / "orders-0-0", LOGS / "three-nodes-4.3.1" / "node-1" / "orders-0-0")
    newest = max(torn.glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-9])
    yield answer("a torn tail", "doctor", torn)
    two = copy(home / "node-3"), copy(home / "node-4")
    other = two[1] / "__cluster_metadata-0" / "quorum-state"
    other.chmod(0o600)
    other.write_text("{")
    yield answer("two copies, one with a damaged quorum-state", "doctor", f"{two[0]},{two[1]}")
    meta = two[1] / "meta.properties"
    meta.chmod(0o600)
    meta.write_text("node.id=many\n")
    yield answer("two copies, one with a damaged meta.properties", "doctor", f"{two[0]},{two[1]}")
    yield answer("a snapshot", "doctor", min(NODE.rglob("0*.checkpoint")))


def replicas_that_diverge(home: Path) -> Iterator[Mistake]:
    """Yield the diagnosis of two replicas with different records at one offset."""
    paths = []
    for node_id, value in ((1, b"b"), (2, b"B")):
        directory = home / f"replica-{node_id}" / "orders-0"
        directory.mkdir(parents=True)
        batches = data_batch([b"a"], base_offset=0) + data_batch([value], base_offset=1)
        (directory / SEGMENT).write_bytes(batches)
        (directory.parent / "meta.properties").write_text(
            f"version=1\ncluster.id=c\nnode.id={node_id}\n"
        )
        paths.append(str(directory))
    yield answer("two replicas that diverge", "doctor", ",".join(paths))


def logs_of_raftlog(home: Path) -> Iterator[Mistake]:
    """Yield diagnoses of logs that raftlog wrote."""
    path = home / "decisions-0"
    with raftlog.open(path) as log:
        for value in (b"a", b"b", b"c"):
            log.append([value])
    yield answer("a healthy log", "doctor", path)
    yield answer("the same as JSON", "doctor", "--json", path)
    flip(path / SEGMENT, 100)
    yield answer("a damaged log", "doctor", path)


def diagnoses(title: str, found: Iterator[Diagnosis]) -> Mistake:
    return title, lambda: "\n".join(line for one in found for line in one.lines()) or "(nothing)"


def replica(
    node_id: int, end: int | None, *, fetched_s: float | None, caught_up_s: float | None = 0
) -> ReplicaState:
    """Return a replica that fetched, and was caught up, this many seconds ago."""
    fetched, caught_up = (
        None if age is None else NOW_MS - round(age * 1000) for age in (fetched_s, caught_up_s)
    )
    return ReplicaState(
        key=ReplicaKey(node_id),
        is_voter=node_id < 10,
        end_offset=end,
        fetched_ms=fetched,
        caught_up_ms=caught_up,
    )


def quorum(*replicas: ReplicaState, high_watermark: int | None = 90) -> QuorumInfo:
    return QuorumInfo(
        cluster_id="c",
        topic="orders",
        leader_id=1,
        epoch=4,
        high_watermark=high_watermark,
        replicas=replicas,
        warnings=("its log is not trimmed",) if high_watermark is None else (),
    )


def quorums() -> Iterator[Mistake]:
    """Yield diagnoses of running quorums."""
    leader = replica(1, 90, fetched_s=0)
    healthy = replica(2, 90, fetched_s=0.4)
    for title, found in (
        ("three voters that fetch", quorum(leader, healthy, replica(3, 90, fetched_s=0.2))),
        ("one of three voters is down", quorum(leader, healthy, replica(3, 70, fetched_s=61))),
        (
            "two of three voters are down",
            quorum(leader, *(replica(at, None, fetched_s=None) for at in (2, 3))),
        ),
        (
            "a voter and an observer lag",
            quorum(
                leader,
                healthy,
                replica(3, 40, fetched_s=0.3, caught_up_s=45),
                replica(11, 80, fetched_s=1, caught_up_s=20),
            ),
        ),
        ("one voter, which has committed nothing", quorum(leader, high_watermark=None)),
    ):
        yield diagnoses(title, diagnose_quorum(found, NOW_MS, "--bootstrap-server c1:9093"))


def file_systems() -> Iterator[Mistake]:
    """Yield diagnoses of directories."""
    for title, free, total, files in (
        ("a disk with space", 20_000, 30_000, 5_000_000),
        ("a large disk of which few percent are free", 40_000, 4_000_000, None),
        ("a disk that is nearly full", 9_000, 300_000, None),
        ("a full disk, and no inodes", 90, 300_000, 3),
    ):
        found = diagnose_space(
            "/var/lib/kafka", free_bytes=free * MIB, total_bytes=total * MIB, free_files=files
        )
        yield diagnoses(title, found)
    names = [f"{at:020d}.log" for at in range(5)]
    yield diagnoses(
        "files of another user",
        diagnose_owners("/var/lib/kafka", owner="kafka", of_others=names),
    )


def test_each_diagnosis_has_its_text(tmp_path: Path) -> None:
    found = chain(
        logs_of_kafka(tmp_path),
        replicas_that_diverge(tmp_path),
        logs_of_raftlog(tmp_path),
        quorums(),
        file_systems(),
    )
    check("diagnoses.txt", found, {str(tmp_path): "/tmp"})
