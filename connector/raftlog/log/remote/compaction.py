"""Compaction of a manifest: its events in few objects, without those of deleted segments.

An object store has no rename, and a listing is not a consistent snapshot. Therefore the old and the
new objects exist side by side for some time::

    manifest/...-719885386/00000000000000000000.log      1. the retained events, unchanged
    manifest-compactions/0719885386.json                 2. the objects that these supersede
    manifest/...-1804289383/...                          3. an hour later: they are deleted

Invariants:

1. Until 3. the retained events are in the manifest twice, and equal, so a crash before 2. changes
   nothing. An object is not read once a compaction supersedes it.
2. Readers list the compactions before the objects of the manifest. A listed object may then have
   been deleted because it is superseded, but the objects that replace it are there.
   ``LISTING_MS_MAX`` is longer than a reader takes for both listings.
3. The superseded objects of a partition are those below an offset, because its writer may continue
   after that.
4. The events of a deleted segment are retained for ``KEPT_MS``, so that late events of a writer
   still find their entry. The events of each log's last deleted segment are always retained,
   because they show that everything before its end was copied.

Kafka: the snapshot of ``RemotePartitionMetadataStore``; ``LogCleaner``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from raftlog.limits import INT32_MAX, INT64_MAX, MIB
from raftlog.storage.errors import RemoteObjectNotFoundError
from raftlog.storage.objects import ObjectStore

from .segment_metadata import (
    ManifestEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)

if TYPE_CHECKING:
    from .manifest import RemoteLogManifest, Surroundings

COMPACTIONS_DIRECTORY: Final = "manifest-compactions"
LISTING_MS_MAX: Final = 60 * 60 * 1000
KEPT_MS: Final = 30 * 24 * 60 * 60 * 1000
OBJECTS_MAX: Final = 100
"""Number of objects, beyond those of a compacted manifest, at which it is compacted again."""
_EVENTS_PER_OBJECT: Final = 1_000
_BYTES_MAX: Final = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """Objects of a partition below ``end_offset`` that a compaction at ``time_ms`` supersedes."""

    end_offset: int
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestCompaction:
    """A complete compaction: its partition, the end offset of that partition, and the objects that
    it supersedes, by partition."""

    partition: int
    end_offset: int
    superseded: Mapping[int, Superseded]

    @property
    def name(self) -> str:
        """Name of its object."""
        return f"{COMPACTIONS_DIRECTORY}/{self.partition:010d}.json"

    def encode(self) -> bytes:
        """Return the object: the CRC-32C of the rest in hexadecimal digits, and a line of JSON."""
        fields = {
            "version": 1,
            "partition": self.partition,
            "endOffset": self.end_offset,
            "superseded": [
                [partition, one.end_offset, one.time_ms]
                for partition, one in sorted(self.superseded.items())
            ],
        }
        data = json.dumps(fields, separators=(",", ":")).encode("ascii") + b"\n"
        return b"%08x\n" % crc32c(data) + data


def parse_compaction(data: bytes) -> ManifestCompaction | None:
    """Parse the object of a compaction; None if it is incomplete and thus supersedes nothing."""
    head, body = data[:9], data[9:]
    if head != b"%08x\n" % crc32c(body):
        return None
    try:
        fields = json.loads(body)
        if fields["version"] != 1:
            return None
        return ManifestCompaction(
            partition=_number(fields["partition"], INT32_MAX),
            end_offset=_number(fields["endOffset"]),
            superseded={
                _number(partition, INT32_MAX): Superseded(
                    end_offset=_number(end_offset), time_ms=_number(time_ms)
                )
                for partition, end_offset, time_ms in fields["superseded"]
            },
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _number(value: Any, at_most: int = INT64_MAX) -> int:
    if type(value) is not int or not 0 <= value <= at_most:
        raise ValueError(value)
    return value


def read_compactions(store: ObjectStore) -> tuple[list[ManifestCompaction], list[str]]:
    """Return the complete compactions of a manifest, and the names of other objects there."""
    found, others = [], []
    for stored in store.list_objects(COMPACTIONS_DIRECTORY):
        try:
            with store.open_object(stored.name) as file:
                compaction = parse_compaction(file.read_at(0, _BYTES_MAX))
        except RemoteObjectNotFoundError:  # a later compaction repeats it, listed for an hour
            continue
        if compaction is not None and compaction.name == stored.name:
            found.append(compaction)
        else:
            others.append(stored.name)
    return found, others


def superseded_by(compactions: Sequence[ManifestCompaction]) -> dict[int, Superseded]:
    """Return what all compactions supersede, by partition."""
    found: dict[int, Superseded] = {}
    for compaction in compactions:
        for partition, one in compaction.superseded.items():
            if partition not in found or one.end_offset > found[partition].end_offset:
                found[partition] = one
    return found


def compact_manifest(
    store: ObjectStore, manifest: RemoteLogManifest, context: Surroundings
) -> bool:
    """Delete what earlier compactions supersede, and compact the manifest if it has too many
    objects. Return whether it was compacted."""
    now_ms = context.now_ms()
    left = _delete_superseded(store, manifest, now_ms)
    kept = list(_kept(manifest, now_ms))
    object_count = -(-len(kept) // _EVENTS_PER_OBJECT)
    if manifest.object_count <= object_count + max(OBJECTS_MAX, object_count):
        return False
    writer = manifest.new_writer(context.new_partition)
    for at in range(0, len(kept), _EVENTS_PER_OBJECT):
        writer.append(kept[at : at + _EVENTS_PER_OBJECT])
    now = {
        partition: Superseded(end_offset=end_offset, time_ms=now_ms)
        for partition, end_offset in manifest.ends.items()
    }
    compaction = ManifestCompaction(
        partition=writer.partition, end_offset=len(kept), superseded={**left, **now}
    )
    store.put(compaction.name, [compaction.encode()])
    return True


def _delete_superseded(
    store: ObjectStore, manifest: RemoteLogManifest, now_ms: int
) -> dict[int, Superseded]:
    """Delete the objects that no reader can still need. Return what later compactions must repeat
    from the earlier ones: objects that still exist, and partitions too recent to be forgotten."""
    superseded, remaining = superseded_by(manifest.compactions), set()
    for partition, stored in manifest.superseded:
        if now_ms - superseded[partition].time_ms >= LISTING_MS_MAX:
            store.delete(stored.name)
        else:
            remaining.add(partition)
    for name in manifest.incomplete_compactions:
        store.delete(name)
    left = {
        partition: one
        for partition, one in superseded.items()
        if partition in remaining or now_ms - one.time_ms < KEPT_MS
    }
    newest = max(manifest.compactions, key=_time_of, default=None)
    if newest is not None and now_ms - _time_of(newest) >= LISTING_MS_MAX:
        for compaction in manifest.compactions:
            needed = compaction.superseded.keys() & left.keys()
            if compaction is not newest and all(
                partition in newest.superseded
                and newest.superseded[partition].end_offset >= left[partition].end_offset
                for partition in needed
            ):
                store.delete(compaction.name)
    return left


def _time_of(compaction: ManifestCompaction) -> int:
    return max((one.time_ms for one in compaction.superseded.values()), default=0)


def _kept(manifest: RemoteLogManifest, now_ms: int) -> Iterator[ManifestEvent]:
    """Yield the events, except those of deleted segments: entries, then updates by state."""
    last: dict[tuple[str, str], RemoteLogSegmentMetadata] = {}
    for one in manifest.copied_before:
        log = str(one.topic_partition), one.topic_id
        if log not in last or one.last_offset > last[log].last_offset:
            last[log] = one
    needed = {one.segment_id for one in last.values()}
    dropped = {
        one.segment_id
        for one in manifest.deleted
        if now_ms - one.event_timestamp_ms >= KEPT_MS and one.segment_id not in needed
    }
    events = [one for one in manifest.events if one.segment_id not in dropped]
    updates = [one for one in events if isinstance(one, RemoteLogSegmentMetadataUpdate)]
    yield from (one for one in events if isinstance(one, RemoteLogSegmentMetadata))
    yield from sorted(updates, key=lambda one: one.state)
