"""The bundled metadata logs of real clusters, and short ways to write records."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from raftlog.records import iter_batches
from raftlog.types import SnapshotId
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import MetadataDelta, RecordChanges, RowChange
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader, batch_records
from raftlog_state.loader.payload import Payload
from raftlog_state.records import DecodedRecord, MetadataRecord, decode, to_json
from raftlog_state.replay import Position, replay
from tests.support.snapshot_files import snapshot_log_records

LOGS = Path(__file__).parents[1] / "data" / "kraft-logs"
CLUSTERS = (
    "three-nodes-4.3.1/node-1",
    "three-nodes-4.3.1/node-100",
    "three-nodes-4.3.1/node-101",
    "three-nodes-4.3.1/node-102",
    "trimmed-3.9.2/node-1",
)
CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


@dataclass(frozen=True)
class Checkpoint:
    """Snapshot written by Kafka."""

    snapshot_id: SnapshotId
    data: bytes

    def log_records(self) -> list[LogRecord]:
        return snapshot_log_records(self.data)

    def metadata(self) -> list[DecodedRecord]:
        payloads = (record.payload for record in self.log_records())
        return [decode(payload) for payload in payloads if isinstance(payload, bytes)]


@dataclass(frozen=True)
class MetadataLog:
    """All records of a log from its first offset on, and its snapshots, oldest first."""

    records: tuple[LogRecord, ...]
    checkpoints: tuple[Checkpoint, ...]


def restored(cluster: str, target: Path) -> Path:
    """Copy a cluster's metadata directory, with deleted files restored to their names."""
    source = LOGS / cluster / "__cluster_metadata-0"
    for path in source.iterdir():
        shutil.copyfile(path, target / path.name.removesuffix(".deleted"))
    return target


def metadata_log(directory: Path) -> MetadataLog:
    """Read a directory without the log reader: file by file, batch by batch."""
    records: list[LogRecord] = []
    for path in sorted(directory.glob("*.log")):
        for batch in iter_batches(path.read_bytes(), path=str(path)):
            records.extend(batch_records(batch))
    checkpoints = []
    for path in sorted(directory.glob("*.checkpoint")):
        name = CHECKPOINT.fullmatch(path.name)
        if name is not None and int(name[1]) > 0:
            snapshot_id = SnapshotId(epoch=int(name[2]), end_offset=int(name[1]))
            checkpoints.append(Checkpoint(snapshot_id, path.read_bytes()))
    return MetadataLog(tuple(records), tuple(checkpoints))


def comparable(decoded: DecodedRecord) -> str:
    """Return a record as JSON text, with the lists that Kafka keeps in hash maps sorted."""
    found = to_json(decoded)
    for name in ("endPoints", "features", "entity"):
        if name in found["data"]:
            found["data"][name].sort(key=lambda part: json.dumps(part, sort_keys=True))
    return json.dumps(found, sort_keys=True)


def multiset(records: Iterable[DecodedRecord]) -> Counter[str]:
    return Counter(map(comparable, records))


def at(offset: int, *payloads: MetadataRecord | Payload, epoch: int = 1) -> list[LogRecord]:
    """Return records at offsets from ``offset`` on, one second apart."""
    return [
        LogRecord(
            number,
            epoch,
            1_000 * number,
            DecodedRecord(0, payload) if isinstance(payload, MetadataRecord) else payload,
        )
        for number, payload in enumerate(payloads, start=offset)
    ]


def replayed(*payloads: MetadataRecord | bytes) -> MetadataLoader:
    """Return a loader that has replayed these records from offset 0 on."""
    loader = MetadataLoader()
    loader.append(at(0, *payloads))
    return loader


def state_after(*records: MetadataRecord) -> MetadataImage:
    return replayed(*records).image


def changes_of(image: MetadataImage, record: MetadataRecord) -> tuple[RowChange, ...]:
    """Return the changes of one more record to an image."""
    delta = MetadataDelta(image)
    offset = image.offset + 1
    replay(record, delta, Position(offset, offset, 1, 1_000 * offset))
    return delta.take_changes()


def flat(record_changes: Iterable[RecordChanges]) -> list[tuple[int, int, str, RowChange]]:
    """Flatten changes with their positions."""
    return [
        (done.offset, done.visible_offset, done.record_type, change)
        for done in record_changes
        for change in done.changes
    ]
