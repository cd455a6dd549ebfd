"""Records of Kafka's internal logs with the text that Kafka printed for them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from raftlog.records import NewRecord, iter_batches
from raftlog.records.control import ControlType, EndTransactionMarker
from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import (
    GROUP_RECORDS,
    INTERNAL_LOGS,
    REMOTE_LOG_METADATA,
    RecordText,
)
from raftlog_state.records.keyed_serde import KeyedRecord
from raftlog_state.records.schema_groups import OffsetCommitKey, OffsetCommitValue
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.log_builder import control_batch

DATA = Path(__file__).parents[1] / "data"
GROUPS_NODE = DATA / "internal-logs-4.3.1" / "node-1"
"""Internal logs of a node with groups of all kinds; ``admin.json`` beside it is Kafka's view."""
_PRINTED = re.compile(r"^\| offset: (\d+) .*? (key: .* payload: .*)$")


class KafkaRecord(NamedTuple):
    """Record, and its key and value as Kafka printed them.

    ``formatted`` is what a formatter of the console consumer printed, empty without one.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    key_text: str
    value_text: str
    formatted: str = ""


def parse_records(lines: Iterable[str]) -> Iterator[KafkaRecord]:
    """Parse the output of ``InternalRecords.java``."""
    for line in lines:
        topic, key, value, *printed = line.rstrip("\n").split("\t")
        yield KafkaRecord(topic, _bytes(key), _bytes(value), *printed)


def _bytes(text: str) -> bytes | None:
    return None if text == "-" else bytes.fromhex(text)


def golden_records() -> list[KafkaRecord]:
    """Return random records of every type and version, as Kafka wrote and printed them."""
    with gzip.open(DATA / "internal-records-4.3.1.tsv.gz", "rt", encoding="utf-8") as lines:
        return list(parse_records(lines))


def internal_segments(release: str) -> list[Path]:
    """Return the bundled segments of internal logs with keys that a release wrote."""
    segments = DATA.glob(f"**/*-{release}/node-*/__*/*.log")
    return sorted(one for one in segments if topic_of(one) in INTERNAL_LOGS)


def segment_name(segment: Path) -> str:
    """Return a test id."""
    return f"{segment.parents[2].name}/{segment.parent.name}"


def topic_of(segment: Path) -> str:
    """Return the topic of a segment, by its directory."""
    return segment.parent.name.rpartition("-")[0]


def records_in(segment: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of the records of a segment that are no control records."""
    return [
        (record.offset, record.key, record.value)
        for batch in iter_batches(segment.read_bytes())
        if not batch.is_control
        for record in batch.records()
    ]


def printed_by(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Return offset and text of the records in the output of kafka-dump-log."""
    found = (_PRINTED.match(line.rstrip("\n")) for line in lines)
    return [(int(match[1]), match[2]) for match in found if match]


def dump_of(segment: Path) -> list[tuple[int, str]]:
    """Return offset and text of the records in the bundled dump of a segment."""
    with gzip.open(f"{segment}.dump.gz", "rt", encoding="utf-8") as lines:
        return printed_by(lines)


def as_dumped(text: RecordText) -> tuple[str, str]:
    """Return key and value as kafka-dump-log prints them."""
    value = "<DELETE>"
    if text.value is not None:
        value = f'{{"version":"{text.version}","data":{text.value}}}'
    return f'{{"type":"{text.api_key}","data":{text.key}}}', value


def as_formatted(text: RecordText) -> str:
    """Return a record as a formatter of the console consumer prints it."""
    value = "null"
    if text.value is not None:
        value = f'{{"version":{text.version},"data":{text.value}}}'
    return f'{{"key":{{"type":{text.api_key},"data":{text.key}}},"value":{value}}}'


SEGMENT_STATES = (
    *("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"),
    *("DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"),
)
"""Kafka: ``RemoteLogSegmentState``."""


def remote_as_dumped(row: dict[str, Any]) -> str:
    """Return a remote segment's record, of ``raftlog cat``, as kafka-dump-log prints it.

    dump-log prints ``toString`` of the classes that the records are converted to.
    """
    data = row["data"]
    place = data["remoteLogSegmentId"]["topicIdPartition"]
    segment = (
        f"RemoteLogSegmentId{{topicIdPartition={place['id']}:{place['name']}-{place['partition']}, "
        f"id={data['remoteLogSegmentId']['id']}}}"
    )
    assert data["customMetadata"] is None
    state = SEGMENT_STATES[data["remoteLogSegmentState"]]
    if row["type"] == "REMOTE_LOG_SEGMENT_METADATA_UPDATE_RECORD":
        return (
            f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={segment}, "
            f"customMetadata=Optional.empty, state={state}, "
            f"eventTimestampMs={data['eventTimestampMs']}, brokerId={data['brokerId']}}}"
        )
    numbers = ", ".join(
        f"{name}={data[name]}"
        for name in ("startOffset", "endOffset", "brokerId", "maxTimestampMs", "eventTimestampMs")
    )
    epochs = ", ".join(f"{e['leaderEpoch']}={e['offset']}" for e in data["segmentLeaderEpochs"])
    is_empty = str(data.get("txnIndexEmpty", False)).lower()
    return (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={segment}, {numbers}, "
        f"segmentLeaderEpochs={{{epochs}}}, segmentSizeInBytes={data['segmentSizeInBytes']}, "
        f"customMetadata=Optional.empty, state={state}, txnIdxEmpty={is_empty}}}"
    )


def remote_printed_by(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Return offset and text of the records in kafka-dump-log's output of remote segments."""
    found = (re.match(r"\| offset: (\d+) .*? payload: (.*)$", line.rstrip("\n")) for line in lines)
    return [(int(match[1]), match[2]) for match in found if match]


def described(record: KafkaRecord) -> tuple[str, str]:
    """Return key and value as raftlog describes them, in the form of ``KafkaRecord``."""
    text = INTERNAL_LOGS[record.topic].text(record.key, record.value, Redactor())
    if record.topic == REMOTE_LOG_METADATA:
        return "", f'{{"type":"{text.type_name}","version":{text.version},"data":{text.value}}}'
    return as_dumped(text)


def offset_commit(group: str, offset: int | None) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a commit of orders-0, or of its deletion."""
    key = OffsetCommitKey(group=group, topic="orders", partition=0)
    value = None if offset is None else OffsetCommitValue(offset=offset, commit_timestamp=5)
    return GROUP_RECORDS.encode(KeyedRecord(key, value, None))


class InternalLogFile:
    """Directory of a partition with one segment, written batch by batch."""

    def __init__(self, path: Path, start_offset: int = 0) -> None:
        self.path = path
        self.next_offset = start_offset
        path.mkdir(parents=True)
        self._segment = path / f"{start_offset:020d}.log"
        self._segment.write_bytes(b"")

    def append(
        self,
        *records: tuple[bytes | None, bytes | None],
        producer_id: int = -1,
        epoch: int = 0,
        epoch_of_leader: int = 0,
    ) -> None:
        """Append a batch of keys and values, in a transaction if there is a producer id."""
        is_transactional = producer_id >= 0
        batch = NewRecordBatch(
            records=tuple(NewRecord(key, value) for key, value in records),
            base_timestamp_ms=1_000 + self.next_offset,
            is_transactional=is_transactional,
            producer_id=producer_id,
            producer_epoch=epoch if is_transactional else -1,
            base_sequence=0 if is_transactional else -1,
        )
        at = {"base_offset": self.next_offset, "leader_epoch": epoch_of_leader}
        self._write(encode_batch(batch, **at))
        self.next_offset += len(records)

    def append_empty(self, offset_count: int) -> None:
        """Append a batch whose records compaction has removed."""
        batch = NewRecordBatch(
            records=(), base_timestamp_ms=1_000, last_offset_delta=offset_count - 1
        )
        self._write(encode_batch(batch, base_offset=self.next_offset, leader_epoch=0))
        self.next_offset += offset_count

    def end(self, producer_id: int, *, commit: bool, epoch_of_leader: int = 0) -> None:
        """Append the marker that ends a producer's transaction."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = EndTransactionMarker(control_type=kind, coordinator_epoch=0)
        at = {"base_offset": self.next_offset, "epoch": epoch_of_leader}
        self._write(control_batch([marker], **at, producer_id=producer_id))
        self.next_offset += 1

    def _write(self, data: bytes) -> None:
        with self._segment.open("ab") as file:
            file.write(data)
