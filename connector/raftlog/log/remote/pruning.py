"""Search for a log's objects that the store's manifest does not name, and their deletion.

These are objects that interrupted backups have uploaded, and objects of a part of the manifest that
was moved away. A running backup adds an object's entry to the manifest before it uploads the
object. Therefore the objects are listed first and the manifest is read afterwards. An upload that
began more than a day ago counts as interrupted. Its deletion is recorded in the manifest before the
object is deleted, so that the upload cannot be finished any more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from raftlog.storage.objects import ObjectStore

from .compaction import compact_manifest
from .manifest import RemoteLogManifest, Surroundings, state_change
from .segment_metadata import RemoteLogSegmentState

ABANDONED_MS: Final = 24 * 60 * 60 * 1000
"""Age at which an unfinished upload of another process counts as interrupted."""
_DELETING: Final = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
_DELETED: Final = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_OBJECT: Final = re.compile(r"[0-9]{20}-([A-Za-z0-9_-]{22})[./]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """Sorted names of the objects that no manifest names, and their total bytes."""

    names: tuple[str, ...]
    byte_count: int


def prune_objects(
    store: ObjectStore, directory: str, context: Surroundings, *, is_dry_run: bool
) -> PruneReport:
    """Find the objects in ``directory``, a log's directory, that the manifest does not name. Unless
    ``is_dry_run``, delete them and compact the manifest.

    Objects whose names are not those of segments and backups are left alone. Raises
    ``CorruptRemoteObjectError`` for a damaged manifest, and the store's errors.
    """
    listed = store.list_objects(directory)
    manifest = RemoteLogManifest(store)
    now_ms = context.now_ms()
    abandoned = [
        one
        for one in manifest.unfinished
        if one.directory == directory and now_ms - one.event_timestamp_ms > ABANDONED_MS
    ]
    entries = (*manifest.unfinished, *manifest.deleting)
    named = {*manifest.ranges, *(one.metadata.segment_id for one in manifest.backups)}
    named |= {one.segment_id for one in entries} - {one.segment_id for one in abandoned}
    start = len(directory) + 1
    found = [
        one
        for one in listed
        if (match := _OBJECT.match(one.name[start:])) is not None and match[1] not in named
    ]
    if not is_dry_run:
        writer = manifest.new_writer(context.new_partition) if abandoned else None
        if writer is not None:
            writer.append([state_change(one, _DELETING, now_ms=now_ms) for one in abandoned])
        for stored in found:
            store.delete(stored.name)
        if writer is not None:
            writer.append([state_change(one, _DELETED, now_ms=now_ms) for one in abandoned])
        compact_manifest(store, RemoteLogManifest(store), context)
    return PruneReport(
        names=tuple(one.name for one in found), byte_count=sum(one.byte_count for one in found)
    )
