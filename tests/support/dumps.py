"""Parser of the output of kafka-dump-log, the reference for every log in tests/data.

``X.log.dump.gz`` next to ``X.log`` or ``X.checkpoint`` is the output of Kafka's tool for it,
without its first line. ``dumped_logs`` finds those files, ``read_dump`` returns their batches and
records. Payloads stay text: JSON for metadata and internal topics, the value itself for others.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raftlog.records.control import (
    ControlRecord,
    EndTransactionMarker,
    LeaderChange,
    UnknownControl,
    control_json,
)

DUMP_SUFFIX = ".dump.gz"

_BATCH = re.compile(
    r"baseOffset: (?P<base_offset>-?\d+) lastOffset: (?P<last_offset>-?\d+) "
    r"count: (?P<record_count>-?\d+) baseSequence: (?P<base_sequence>-?\d+) "
    r"lastSequence: (?P<last_sequence>-?\d+) producerId: (?P<producer_id>-?\d+) "
    r"producerEpoch: (?P<producer_epoch>-?\d+) partitionLeaderEpoch: (?P<leader_epoch>-?\d+) "
    r"isTransactional: (?P<is_transactional>true|false) isControl: (?P<is_control>true|false) "
    r"deleteHorizonMs: (?P<delete_horizon>OptionalLong\.empty|OptionalLong\[-?\d+\]) "
    r"position: (?P<position>\d+) (?P<time_kind>\w+): (?P<max_timestamp_ms>-?\d+) "
    r"size: (?P<byte_count>\d+) magic: (?P<magic>\d+) compresscodec: (?P<codec>\w+) "
    r"crc: (?P<crc>\d+) isvalid: (?P<is_valid>true|false)"
)
_RECORD = re.compile(
    r"\| offset: (?P<offset>-?\d+) (?P<time_kind>\w+): (?P<timestamp_ms>-?\d+) "
    r"keySize: (?P<key_bytes>-?\d+) valueSize: (?P<value_bytes>-?\d+) "
    r"sequence: (?P<sequence>-?\d+) headerKeys: \[(?P<header_keys>[^\]]*)\] ?(?P<text>.*)",
    re.DOTALL,
)
_TEXT = re.compile(r"(?:key: (?P<key>.*?))?(?:(?:^| )payload: (?P<payload>.*))?", re.DOTALL)


@dataclass(frozen=True)
class DumpRecord:
    """Line of a record. ``text`` is the part after the header keys, as printed."""

    offset: int
    time_kind: str
    timestamp_ms: int
    key_bytes: int
    value_bytes: int
    sequence: int
    header_keys: tuple[str, ...]
    text: str

    def _part(self, name: str) -> str | None:
        match = _TEXT.fullmatch(self.text)
        return match[name] if match else None

    @property
    def key(self) -> str | None:
        """The key as printed, or None."""
        return self._part("key")

    @property
    def payload(self) -> str | None:
        """The value as printed, or None (null values, control records)."""
        return self._part("payload")

    @property
    def json(self) -> Any:
        """The payload as JSON."""
        assert self.payload is not None, f"no payload at offset {self.offset}"
        return json.loads(self.payload)


@dataclass(frozen=True)
class DumpBatch:
    """Line of a batch, and its records."""

    base_offset: int
    last_offset: int
    record_count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    position: int
    time_kind: str
    max_timestamp_ms: int
    byte_count: int
    magic: int
    codec: str
    crc: int
    is_valid: bool
    records: list[DumpRecord] = field(default_factory=list)


def dumped_logs(directory: Path) -> list[Path]:
    """Return the files below ``directory`` that have a dump, sorted."""
    dumps = sorted(directory.rglob("*" + DUMP_SUFFIX))
    return [dump.with_name(dump.name.removesuffix(DUMP_SUFFIX)) for dump in dumps]


def dump_lines(log: Path) -> list[str]:
    """Return the lines that kafka-dump-log printed for ``log``."""
    with gzip.open(log.with_name(log.name + DUMP_SUFFIX), "rt", encoding="utf-8") as lines:
        return lines.read().split("\n")


def read_dump(log: Path) -> list[DumpBatch]:
    """Return the batches that kafka-dump-log printed for ``log``."""
    return list(parse_dump(dump_lines(log)))


def parse_dump(lines: Iterable[str]) -> Iterator[DumpBatch]:
    """Parse kafka-dump-log's lines. A line of unknown form continues the previous one."""
    batch: DumpBatch | None = None
    for line in _whole_lines(lines):
        if line.startswith("baseOffset: "):
            if batch is not None:
                yield batch
            batch = _batch(line)
        elif line.startswith("| offset: "):
            assert batch is not None, "a record before any batch"
            batch.records.append(_record(line))
    if batch is not None:
        yield batch


def _whole_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join lines that a line break inside a payload split."""
    held: str | None = None
    for line in lines:
        if line.startswith(("| offset: ", "baseOffset: ", "Log starting", "Snapshot end")):
            if held is not None:
                yield held
            held = line
        elif held is not None and line:
            held += "\n" + line
    if held is not None:
        yield held


def _batch(line: str) -> DumpBatch:
    match = _BATCH.fullmatch(line)
    assert match is not None, line
    texts = match.groupdict()
    horizon = texts.pop("delete_horizon")
    facts: dict[str, Any] = {"delete_horizon_ms": None}
    if horizon != "OptionalLong.empty":
        facts["delete_horizon_ms"] = int(horizon[len("OptionalLong[") : -1])
    for name, text in texts.items():
        if name in ("time_kind", "codec"):
            facts[name] = text
        else:
            facts[name] = text == "true" if text in ("true", "false") else int(text)
    return DumpBatch(**facts)


def _record(line: str) -> DumpRecord:
    match = _RECORD.fullmatch(line)
    assert match is not None, line
    keys = match["header_keys"]
    return DumpRecord(
        offset=int(match["offset"]),
        time_kind=match["time_kind"],
        timestamp_ms=int(match["timestamp_ms"]),
        key_bytes=int(match["key_bytes"]),
        value_bytes=int(match["value_bytes"]),
        sequence=int(match["sequence"]),
        header_keys=tuple(keys.split(",")) if keys else (),
        text=match["text"],
    )


def control_text(record: ControlRecord) -> str:
    """Return the end of the line that kafka-dump-log prints for a control record."""
    match record:
        case EndTransactionMarker():
            name, epoch = record.control_type.name, record.coordinator_epoch
            return f"endTxnMarker: {name} coordinatorEpoch: {epoch}"
        case UnknownControl():
            return f"controlType: UNKNOWN({record.type_id})"
        case LeaderChange():
            title = "LeaderChange:"
        case _:
            title = type(record).__name__
    return f"{title} {json.dumps(control_json(record), separators=(',', ':'))}"
