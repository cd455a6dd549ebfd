"""A manifest or an inventory of a hostile store is refused, and nothing is written outside."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from tests.log.remote.stored_backups import (
    STORE,
    TARGET,
    backed_up,
    objects_of,
    restored,
    store_disk,
)
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.written_logs import WrittenLog

from raftlog.errors import RaftlogError
from raftlog.log.remote.manifest import ManifestWriter, RemoteLogManifest
from raftlog.log.remote.segment_metadata import (
    BackupEntry,
    ManifestEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from raftlog.records.builder import build_batch
from raftlog.records.record import NewRecord
from raftlog.storage.errors import CorruptRemoteObjectError
from raftlog.storage.objects import StorageObjects
from raftlog.types import TopicPartition

Change = Callable[[dict[str, Any]], object]


def backup_of(batches: int) -> tuple[SimulatedDisk, StorageObjects]:
    source, disk = WrittenLog(), store_disk()
    source.fill(batches)
    store = StorageObjects(disk, STORE)
    backed_up(source.disk, store, 1)
    return disk, store


def newest(store: StorageObjects) -> BackupEntry:
    return RemoteLogManifest(store).backups[-1]


def publish(store: StorageObjects, data: bytes, **fields: Any) -> None:
    """Publish a later backup with this inventory, whose CRC is right."""
    entry = newest(store)
    metadata = replace(
        entry.metadata,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        segment_id="a" * 21 + "A",
        custom_metadata=None,
        byte_count=len(data),
        **fields,
    )
    store.put(metadata.object_name(".json"), [data])
    writer = ManifestWriter(store, 7)
    writer.append([metadata])
    backup = BackupEntry(metadata=metadata, ordinal=entry.ordinal + 1, crc32c=crc32c(data))
    writer.finish(backup, now_ms=5)


def first(fields: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = fields[name][0]
    return found


def renamed(name: object) -> Change:
    return lambda fields: first(fields, "files").update(name=name)


CHANGES: dict[str, Change] = {
    "a path above": renamed("../../etc/passwd"),
    "an absolute path": renamed("/etc/passwd"),
    "an unknown name": renamed("published"),
    "a segment as a file": renamed("00000000000000000000.log"),
    "a name that is a number": renamed(7),
    "a file twice": lambda fields: fields["files"].append(fields["files"][0]),
    "a path as a backup": lambda fields: first(fields, "files").update(backup="../x"),
    "a size too large": lambda fields: first(fields, "files").update(bytes=10**9),
    "a negative size": lambda fields: first(fields, "files").update(bytes=-1),
    "a huge small file": lambda fields: fields["files"][-1].update(bytes=10**15),
    "another CRC": lambda fields: first(fields, "files").update(crc32c=1),
    "an unknown range": lambda fields: first(fields, "segments").update(ranges=["b" * 21 + "A"]),
    "a path as a range": lambda fields: first(fields, "segments").update(ranges=["../../a"]),
    "a range twice": lambda fields: fields["segments"][1]["ranges"].extend(
        fields["segments"][0]["ranges"]
    ),
    "a range twice in twice the size": lambda fields: fields["segments"][1].update(
        ranges=fields["segments"][1]["ranges"] * 2, bytes=fields["segments"][1]["bytes"] * 2
    ),
    "a range twice, of two segments": lambda fields: first(fields, "segments").update(
        ranges=fields["segments"][1]["ranges"], bytes=fields["segments"][1]["bytes"]
    ),
    "segments that do not ascend": lambda fields: fields["segments"].reverse(),
    "a segment that is missing": lambda fields: fields["segments"].pop(1),
    "a segment size": lambda fields: first(fields, "segments").update(bytes=3),
    "a later end": lambda fields: fields.update(endOffset=10**6),
    "an earlier end": lambda fields: fields.update(endOffset=40),
    "a start after its end": lambda fields: fields.update(logStartOffset=10**6),
    "another topic": lambda fields: fields.update(topic="../others"),
    "a topic that is no text": lambda fields: fields.update(topic=[]),
    "another version": lambda fields: fields.update(version=2),
    "another kind": lambda fields: fields.update(kind="x"),
    "a field less": lambda fields: fields.pop("endOffset"),
    "no list": lambda fields: fields.update(files=None),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_inventory_with_false_fields_is_refused(what: str) -> None:
    disk, store = backup_of(60)
    names = [name for name, _ in objects_of(disk) if name.endswith(".json")]
    fields = json.loads(dict(objects_of(disk))[names[0]])
    CHANGES[what](fields)
    publish(store, json.dumps(fields).encode())
    before = {path for path in disk.files() if not path.startswith(TARGET)}
    with pytest.raises(RaftlogError) as caught:
        restored(store, disk)
    assert caught.value.code in ("RAFTLOG_CORRUPT_REMOTE_OBJECT", "RAFTLOG_LOG_GAP"), what
    assert ("overlaps another one" in str(caught.value)) == ("range twice" in what)
    assert {path for path in disk.files() if not path.startswith(TARGET)} == before
    assert TARGET not in {path.rpartition("/")[0] for path in disk.files()}


@pytest.mark.parametrize("data", [b" ", b"[]", b"7", b'"x"', b"[" * 100_000, b"\xff{}", b"{}"])
def test_json_that_is_not_an_inventory_is_refused(data: bytes) -> None:
    disk, store = backup_of(5)
    publish(store, data)
    with pytest.raises(CorruptRemoteObjectError):
        restored(store, disk)


ENTRY = RemoteLogSegmentMetadata(
    segment_id="c" * 21 + "A",
    topic_partition=TopicPartition("decisions", 0),
    topic_id="x" * 21 + "A",
    first_offset=0,
    last_offset=9,
    broker_id=1,
    max_timestamp_ms=1,
    event_timestamp_ms=1,
    leader_epochs=(),
    byte_count=100,
    state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
)


def update(
    custom_metadata: bytes | None = None,
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(
        segment_id=ENTRY.segment_id,
        topic_partition=ENTRY.topic_partition,
        topic_id=ENTRY.topic_id,
        broker_id=1,
        event_timestamp_ms=1,
        state=state,
        custom_metadata=custom_metadata,
    )


RANGE = b'{"segment":%d,"position":%d,"crc32c":1,"lastBatch":%d,"lastBatchCrc32c":1}'
EVENTS: dict[str, list[ManifestEvent]] = {
    "an update of nothing": [update()],
    "an entry twice": [ENTRY, ENTRY],
    "an entry that begins finished": [
        replace(ENTRY, state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    ],
    "finished twice": [ENTRY, update(RANGE % (0, 0, 0)), update(RANGE % (0, 0, 0))],
    "deleted before it is finished": [
        ENTRY,
        update(state=RemoteLogSegmentState.DELETE_SEGMENT_FINISHED),
    ],
    "a topic with a path": [replace(ENTRY, topic_partition=TopicPartition("../../x", 0))],
    "a topic of dots": [replace(ENTRY, topic_partition=TopicPartition("a/../b", 0))],
    "a negative partition": [replace(ENTRY, topic_partition=TopicPartition("a", -1))],
    "offsets in the wrong order": [replace(ENTRY, first_offset=10)],
    "negative offsets": [replace(ENTRY, first_offset=-2, last_offset=-1)],
    "a negative size": [replace(ENTRY, byte_count=-1)],
    "no custom metadata": [ENTRY, update()],
    "custom metadata of others": [ENTRY, update(b'"x"')],
    "custom metadata that nests": [ENTRY, update(b"[" * 1000)],
    "a field that is text": [ENTRY, update(b'{"backup":"1","crc32c":1}')],
    "a last batch outside": [ENTRY, update(RANGE % (0, 0, 99))],
    "a position out of range": [ENTRY, update(RANGE % (0, 2**31, 2**31))],
    "a segment after its range": [ENTRY, update(RANGE % (5, 0, 0))],
}


@pytest.mark.parametrize("what", EVENTS)
def test_a_manifest_with_false_events_is_refused_by_backup_and_restore(what: str) -> None:
    disk, store = backup_of(5)
    ManifestWriter(store, 7).append(EVENTS[what])
    before = dict(objects_of(disk))
    with pytest.raises(CorruptRemoteObjectError):
        restored(store, disk)
    with pytest.raises(CorruptRemoteObjectError):
        backed_up(WrittenLog().disk, store, 2)
    assert dict(objects_of(disk)) == before


@pytest.mark.parametrize(
    "name", ["manifest/x", "manifest/orders-0/00000000000000000000.log", "manifest/a/b/c"]
)
def test_an_object_that_is_no_manifest_is_refused(name: str) -> None:
    disk, store = backup_of(5)
    store.put(name, [b"x"])
    with pytest.raises(CorruptRemoteObjectError, match="not part of a manifest"):
        restored(store, disk)


def test_records_of_later_types_are_ignored() -> None:
    disk, store = backup_of(5)

    value = b"\x01\x30\x00later"
    later = build_batch(
        [NewRecord(None, value)], base_offset=0, leader_epoch=0, base_timestamp_ms=1
    ).data
    store.put(f"manifest/__remote_log_metadata-7/{'0' * 20}.log", [later])
    assert restored(store, disk).end_offset == 6
