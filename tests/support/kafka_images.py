"""Random logs and the snapshots that Kafka's own classes write for them, as a recorded file.

To record it again (needs Maven or its downloaded jars): ``python -m tests.support.kafka_images``.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raftlog_state.records import encode
from tests.support.jars import KAFKA_VERSION
from tests.support.kafka import kafka_jars, run_java
from tests.support.random_metadata import RandomLog

FOLD = Path(__file__).parents[1] / "state" / "loader"
PROGRAM = FOLD / "KafkaImage.java"
BOOK = FOLD / f"kafka-{KAFKA_VERSION}-images.json.gz"
LEVELS = (7, 8, 11, 15, 17, 21, 23, 30)
"""Levels of metadata.version at which the written records change."""


@dataclass(frozen=True)
class Answer:
    """Values of a log, and the values of Kafka's snapshot after a number of them."""

    level: int
    values: tuple[bytes, ...]
    images: dict[int, tuple[bytes, ...]]

    def to_json(self) -> dict[str, Any]:
        images = {
            str(count): [value.hex() for value in held] for count, held in self.images.items()
        }
        return {
            "level": self.level,
            "values": [value.hex() for value in self.values],
            "images": images,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Answer:
        images = {
            int(count): tuple(map(bytes.fromhex, held)) for count, held in found["images"].items()
        }
        return cls(found["level"], tuple(map(bytes.fromhex, found["values"])), images)


def random_values(seed: int, level: int, record_count: int) -> list[bytes]:
    log = RandomLog(seed, level)
    log.grow(record_count)
    return [encode(record) for record in log.records]


def ask_kafka(jars: Path, level: int, values: Sequence[bytes], every: int) -> Answer:
    """Return Kafka's image of the records after every so many of them, and at the end."""
    lines: list[str] = []
    counts: list[int] = []
    for count, value in enumerate(values, start=1):
        lines.append(value.hex())
        if count % every == 0 or count == len(values):
            lines.append("image")
            counts.append(count)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "values"
        file.write_text("\n".join(lines))
        printed = run_java(jars, str(PROGRAM), str(file))
    held = [tuple(map(bytes.fromhex, image.split())) for image in printed.split("\n\n")]
    return Answer(level, tuple(values), dict(zip(counts, held, strict=False)))


def read_recording() -> list[Answer]:
    return [Answer.from_json(found) for found in json.loads(gzip.decompress(BOOK.read_bytes()))]


def write_recording() -> None:
    jars = kafka_jars()
    answers = [ask_kafka(jars, level, random_values(0, level, 400), 100) for level in LEVELS]
    text = json.dumps([answer.to_json() for answer in answers])
    BOOK.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write_recording()
