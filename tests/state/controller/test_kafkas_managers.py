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

from raftlog.types import ZERO_UUID
from raftlog_state.controller import AddPartitions, ChangeRequest, RemoveAcl
from raftlog_state.controller.api_exception import enum_number
from raftlog_state.enums import (
    ACL_OPERATIONS,
    ACL_PERMISSIONS,
    ACL_RESOURCE_TYPES,
    CONFIG_RESOURCE_TYPES,
    PATTERN_TYPES,
    SCRAM_MECHANISMS,
)
from raftlog_state.image import MetadataImage, PartitionRow
from raftlog_state.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DecodedRecord,
    PartitionRecord,
    decode,
    encode,
)

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
    "append_config",
    "subtract_config",
    "add_acl",
    "remove_acl",
    "set_quota",
    "remove_quota",
    "set_feature",
}
SINCE_SCRAM = {"set_scram", "remove_scram"}
LEVEL_SCRAM = 11
ENUMS = {
    "pattern_type": PATTERN_TYPES,
    "operation": ACL_OPERATIONS,
    "permission": ACL_PERMISSIONS,
    "mechanism": SCRAM_MECHANISMS,
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program: it must be in the managers' package to access them."""
    target = tmp_path_factory.mktemp("classes")
    command = ["javac", "-cp", f"{kafka_jars()}/*", "-d", str(target), str(PROGRAM)]
    subprocess.run(command, check=True, capture_output=True)
    return target


def is_comparable(before: MetadataImage, change: ChangeRequest) -> bool:
    """Return False for partitions with differing replication factors, where Kafka's answer depends
    on the order of a map, and for what Kafka's requests cannot name.
    """
    if isinstance(change, AddPartitions):
        rows = [row for row in before.rows_of(PartitionRow) if row.topic_name == change.topic]
        return len({len(row.replicas) for row in rows}) == 1
    if isinstance(change, RemoveAcl) and change.acl_id is not None:
        return False
    if before.metadata_version is None:
        return False
    return change.KIND in ASKED | SINCE_SCRAM


def question(change: ChangeRequest, records: tuple[DecodedRecord, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"change": change.KIND}
    for name, value in dataclasses.asdict(change).items():
        names = ENUMS.get(name)
        if name == "resource_type":
            names = ACL_RESOURCE_TYPES if "acl" in change.KIND else CONFIG_RESOURCE_TYPES
        if names is not None and value is not None:
            value = enum_number(names, value, name)
        found[name] = value.hex() if isinstance(value, bytes) else value
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


def content(value: bytes) -> bytes:
    """Return a record without what is random, or has the order of a map in Kafka."""
    found = decode(value)
    record = found.record
    if isinstance(record, AccessControlEntryRecord):
        record = dataclasses.replace(record, id=ZERO_UUID)
    elif isinstance(record, ClientQuotaRecord):
        parts = sorted(record.entity, key=lambda part: part.entity_type)
        record = dataclasses.replace(record, entity=tuple(parts))
    return encode(DecodedRecord(found.version, record))


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
        ours = Counter(content(encode(record)) for record in records)
        assert not theirs or not theirs[0].startswith("!"), (change, theirs)
        assert ours == Counter(content(bytes.fromhex(one)) for one in theirs), (change, theirs)
        compared[change.KIND] += 1
    assert compared.pop("kafka fails", 0) < 100
    assert set(compared) == ASKED | (SINCE_SCRAM if level >= LEVEL_SCRAM else set())
    assert sum(compared.values()) > 1_000
