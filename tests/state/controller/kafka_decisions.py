"""Random requests to a controller and the results of Kafka's own classes, as a recorded file.

To record it again (needs Maven or its downloaded jars): ``python -m
tests.state.controller.kafka_decisions``.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.jars import KAFKA_VERSION
from tests.support.kafka import kafka_jars, run_java

from raftlog_state.controller.controller_state import TOPIC
from raftlog_state.controller.partition_change import (
    Election,
    ElectionContext,
    Target,
    partition_change,
)
from raftlog_state.image import PartitionRow
from raftlog_state.image.record_versions import RecordVersions
from raftlog_state.records import DecodedRecord, encode

HERE = Path(__file__).parent
PROGRAM = HERE / "KafkaDecisions.java"
BOOK = HERE / f"kafka-{KAFKA_VERSION}-decisions.json.gz"

Question = dict[str, Any]

BROKERS = range(1, 7)
LEVELS = (7, 11, 12, 17, 21, 23, 30)
TOPIC_ID = "AQIDBAUGBwgREhMUFRYXGA"
DIRECTORIES = {broker: f"AAAAAAAAAAAAAAAAAAAA{broker}A" for broker in BROKERS}
VALUES = (
    "", " ", "0", "1", "-1", "-2", "-3", "+5", " 7 ", "9", "10", "18", "22", "23", "99", "100",
    "1048576", "1048575", "3600001", "2147483647", "2147483648", "9223372036854775808", "0.5",
    "1.5", ".5", "1e-1", "true", "TRUE", "yes", "compact", "delete", "compact,delete",
    "compact , delete", "compact,compact", "compact,", "gzip", "zstd", "GZIP", "producer", "none",
    "CreateTime", "LogAppendTime", "*", "0:1", "0:1,1:2", "0:1, 1:2", "0:x", "a:1", ",",
    "latest", "earliest", "by_duration:PT1H", "by_duration:1h", "by_duration:P1DT2H3M4.5S",
    "by_duration:P", "read_committed", "read_uncommitted", "client_id=a", "client_id=a,b=c",
    "client_id", "client_software_name=kafka.*,client_id=x", "client_id=",
)  # fmt: skip
NAMES = ("", ".", "..", "a", "a.b_c-D9", "a b", "ä", "a" * 249, "a" * 250, "a/b", "__x", "a\n")


# --- requests -------------------------------------------------------------------------------------


def questions(seed: int, partition_count: int) -> list[Question]:
    rng = random.Random(seed)
    asked: list[Question] = [_partition(rng) for _ in range(partition_count)]
    asked += [{"kind": "topic", "name": name} for name in NAMES]
    for resource_type, name in _config_names():
        asked += [
            {"kind": "config", "resource_type": resource_type, "name": name, "value": value}
            for value in VALUES
        ]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for password in ("pencil", "pässwörd ", "a" * 200):
            salt = rng.randbytes(24).hex()
            asked.append(
                {
                    "kind": "scram",
                    "mechanism": mechanism,
                    "password": password,
                    "salt": salt,
                    "iterations": 4096,
                }
            )
    return asked


def _config_names() -> Iterator[tuple[int, str]]:
    from raftlog_state.controller.config_values import _limits

    yield from _limits()
    for resource_type in (TOPIC, 16, 32):
        yield resource_type, "no.such.config"


def _some(rng: random.Random, ids: range | tuple[int, ...], low: int, high: int) -> list[int]:
    count = min(rng.randint(low, high), len(ids))
    return rng.sample(list(ids), count)


def _partition(rng: random.Random) -> Question:
    level = rng.choice(LEVELS)
    elr_enabled = level >= 23 and rng.random() < 0.7
    replicas = _some(rng, BROKERS, 1, 4)
    isr = _some(rng, tuple(replicas), 0 if elr_enabled else 1, 4)
    rest = tuple(one for one in replicas if one not in isr)
    elr = _some(rng, rest, 0, 2) if elr_enabled or rng.random() < 0.1 else []
    is_moving = rng.random() < 0.4
    adding = _some(rng, tuple(replicas), 0, 2) if is_moving else []
    left = tuple(one for one in replicas if one not in adding)
    row = {
        "topic_id": TOPIC_ID,
        "partition_id": rng.randint(0, 3),
        "replicas": replicas,
        "isr": isr,
        "adding_replicas": adding,
        "removing_replicas": _some(rng, left, 0, 2) if is_moving else [],
        "elr": elr if level >= 23 else [],
        "last_known_elr": _some(rng, tuple(replicas), 0, 1) if elr_enabled else [],
        "directories": [
            DIRECTORIES[one] if level >= 17 and rng.random() < 0.8 else "A" * 22 for one in replicas
        ],
        "leader": rng.choice([*isr, *isr, *replicas, -1]),
        "leader_recovery_state": rng.choice([0, 0, 0, 1]),
        "leader_epoch": rng.randint(0, 9),
        "partition_epoch": rng.randint(0, 9),
    }
    target: dict[str, Any] = {"election": rng.choice([one.value for one in Election])}
    if rng.random() < 0.6:
        target["isr"] = _some(rng, tuple(replicas), 0 if elr_enabled else 1, 4)
    if rng.random() < 0.4:
        wanted = _some(rng, BROKERS, 1, 3)
        removing = sorted(set(replicas) - set(wanted))
        target["replicas"] = wanted + removing
        target["removing"] = removing
        target["adding"] = sorted(set(wanted) - set(replicas))
    if rng.random() < 0.2:
        target["recovery"] = rng.choice([0, 1])
    if elr_enabled and rng.random() < 0.3:
        target["unclean_shutdown"] = _some(rng, tuple(replicas), 1, 1)
    return {
        "kind": "partition",
        "row": row,
        "target": target,
        "level": level,
        "elr_enabled": elr_enabled,
        "min_isr": rng.randint(1, 3),
        "alive": _some(rng, BROKERS, 0, 6),
        "directories": {str(broker): DIRECTORIES[broker] for broker in BROKERS},
    }


# --- raftlog's results ----------------------------------------------------------------------------


def raftlog_change(question: Question) -> str:
    """Return the record's value in hex, or ``none``."""
    row = _with_tuples(question["row"])
    target = _with_tuples(question["target"])
    target["election"] = Election(target["election"])
    versions = RecordVersions(question["level"], question["elr_enabled"])
    context = ElectionContext(
        versions=versions,
        is_acceptable_leader=lambda broker: broker in question["alive"],
        default_directory=lambda broker: question["directories"][str(broker)],
        min_isr=question["min_isr"],
    )
    record = partition_change(PartitionRow(topic_name="t", **row), Target(**target), context)
    if record is None:
        return "none"
    return encode(DecodedRecord(versions.partition, record)).hex()


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }


# --- recorded file --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Answered:
    question: Question
    answer: str


def ask_kafka(jars: Path, asked: list[Question]) -> list[Answered]:
    """Return the results of Kafka's own classes."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "questions"
        file.write_text("\n".join(json.dumps(one) for one in asked))
        answers = run_java(jars, str(PROGRAM), str(file)).splitlines()
    return [Answered(*pair) for pair in zip(asked, answers, strict=True)]


def read_recording() -> list[Answered]:
    return [Answered(*pair) for pair in json.loads(gzip.decompress(BOOK.read_bytes()))]


def write_recording() -> None:
    answered = ask_kafka(kafka_jars(), questions(0, 3_000))
    text = json.dumps([[one.question, one.answer] for one in answered])
    BOOK.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write_recording()
