"""Kafka's own control managers write the same records for random changes of the same state."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka import kafka_jars
from tests.support.random_changes import Job

from raftlog_state.controller import AddPartitions, ChangeRequest
from raftlog_state.image import MetadataImage, PartitionRow
from raftlog_state.records import DecodedRecord, PartitionRecord, encode

pytestmark = pytest.mark.kafka

PROGRAM = Path(__file__).parent / "KafkaManagers.java"
ASKED = {
    "fence_broker",
    "unfence_broker",
    "unregister_broker",
    "reassign_partition",
    "elect_leader",
    "set_isr",
    "add_partitions",
    "set_config",
    "delete_config",
}
RESOURCES = {"TOPIC": 2, "BROKER": 4, "GROUP": 32}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program: it must be in the managers' package to access them."""
    target = tmp_path_factory.mktemp("classes")
    command = ["javac", "-cp", f"{kafka_jars()}/*", "-d", str(target), str(PROGRAM)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def is_comparable(before: MetadataImage, change: ChangeRequest) -> bool:
    """Return False for partitions with differing replication factors, where Kafka's answer depends
    on the order of a map.
    """
    if isinstance(change, AddPartitions):
        rows = [row for row in before.rows_of(PartitionRow) if row.topic_name == change.topic]
        return len({len(row.replicas) for row in rows}) == 1
    return change.KIND in ASKED


def question(change: ChangeRequest, records: tuple[DecodedRecord, ...]) -> dict[str, Any]:
    found = {"change": change.KIND, **dataclasses.asdict(change)}
    if "resource_type" in found:
        word = found["resource_type"]
        found["resource_type"] = RESOURCES.get(word, word)
    if change.KIND == "add_partitions":  # placement is random; the rest of the record is not
        found["assignment"] = [
            one.record.replicas for one in records if isinstance(one.record, PartitionRecord)
        ]
    return found


def ask(classes: Path, job: Job, file: Path) -> list[str]:
    lines = []
    for (before, change, _), records in zip(job.applied, job.written, strict=True):
        if is_comparable(before, change):
            lines.append(json.dumps(question(change, records)))
        lines += [f"replay {encode(record).hex()}" for record in records]
    file.write_text("\n".join(lines))
    main = "org.apache.kafka.controller.KafkaManagers"
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    command += ["-cp", f"{classes}:{kafka_jars()}/*", main, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("level", [7, 12, 17, 23, 30])
def test_kafkas_managers_write_the_same_records(
    classes: Path, level: int, seed: int, tmp_path: Path
) -> None:
    job = Job(seed, level)
    job.grow(1_500)
    answers = iter(ask(classes, job, tmp_path / "questions"))
    compared: Counter[str] = Counter()
    for (before, change, _), records in zip(job.applied, job.written, strict=True):
        if not is_comparable(before, change):
            continue
        theirs = next(answers).split()
        if theirs == ["?"]:
            compared["kafka fails"] += 1
            continue
        ours = [encode(record).hex() for record in records]
        assert Counter(ours) == Counter(theirs), (change, theirs)
        compared[change.KIND] += 1
    assert compared.pop("kafka fails", 0) < 20
    assert set(compared) == ASKED
    assert sum(compared.values()) > 700
