"""Manifest of an object store: a log in Kafka's ``__remote_log_metadata`` format, in objects.

An object store has no append and no locks. Therefore each writer has its own partition, and each of
its appends creates a segment of that partition::

    manifest/__remote_log_metadata-1804289383/00000000000000000000.log    offsets 0 to 1
    manifest/__remote_log_metadata-1804289383/00000000000000000002.log    offset 2
    manifest/__remote_log_metadata-719885386/00000000000000000000.log     another writer

``compaction`` replaces many objects by few.

Invariants:

1. Writers need not coordinate. Each entry has a unique id and is added by one writer. Any writer
   may append updates of an entry, but its state only rises and the greatest one counts, so the
   order of events in different partitions does not matter.
2. An entry is FINISHED after all of its objects are durable; what is not finished counts as absent.
   A FINISHED that arrives after a deletion has begun changes nothing.
3. The offsets of a partition are consecutive, starting at the end of those that a compaction
   supersedes. The partition's last object may be torn. Its writer then died before it referred to
   anything in that object.
4. An event that two partitions have is one event, which a compaction has copied.

Kafka: ``RemoteLogMetadataManager``, ``RemoteLogMetadataCache``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from raftlog.errors import CorruptBatchError, RaftlogError
from raftlog.limits import MIB
from raftlog.log.format.directory import (
    LOG_SUFFIX,
    offset_name,
    parse_offset_name,
    parse_partition_name,
)
from raftlog.records.batch import TornTail, read_batch
from raftlog.records.builder import build_batch
from raftlog.records.record import NewRecord
from raftlog.storage.errors import CorruptRemoteObjectError
from raftlog.storage.objects import ObjectStore, StoredObject
from raftlog.types import REMOTE_LOG_METADATA_TOPIC, TopicPartition

from .compaction import read_compactions, superseded_by
from .metadata_records import InvalidRecordError, decode_event, encode_event
from .segment_metadata import (
    BackupEntry,
    ManifestEvent,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    SegmentRange,
    parse_entry,
)

MANIFEST_DIRECTORY: Final = "manifest"
_OBJECT_BYTES_MAX: Final = 16 * MIB
_ENTRIES_MAX: Final = 1_000_000
"""Maximum number of entries in memory, which take a kilobyte each."""
_DELETED: Final = (
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
)

ManifestCache: TypeAlias = dict[str, tuple[ManifestEvent | None, ...]]
"""Events of a manifest's objects by object name. Objects never change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Time and randomness: milliseconds since 1970, ids of Kafka's form, and int31 numbers."""

    now_ms: Callable[[], int]
    new_id: Callable[[], str]
    new_partition: Callable[[], int]


class RemoteLogManifest:
    """The finished entries of a store's manifest at the time when it was read.

    - ``ranges``: by id.
    - ``backups``: ascending by ordinal; backups that ran at the same time are ordered by their
      end, as in an election.
    - ``unfinished``: entries that are only started.
    - ``deleting``: entries whose deletion has begun.
    - ``copied_before``: finished entries that were deleted.
    - ``partitions``: the numbers that writers have used.

    For a compaction:

    - ``deleted``: entries whose deletion is finished.
    - ``events``: the events of all entries.
    - ``ends``: end offsets of the partitions, up to a torn object or a record of an unknown type.
    - ``object_count``: number of objects that were read.
    - ``compactions``: the complete compactions; ``incomplete_compactions``: names of the others.
    - ``superseded``: what is not read because of the compactions, by partition.

    ``cache`` has the events of objects that were read before, by name; it is updated.
    """

    def __init__(self, store: ObjectStore, cache: ManifestCache | None = None) -> None:
        self.ranges: dict[str, SegmentRange] = {}
        self.backups: list[BackupEntry] = []
        self.unfinished: list[RemoteLogSegmentMetadata] = []
        self.deleting: list[RemoteLogSegmentMetadata] = []
        self.copied_before: list[RemoteLogSegmentMetadata] = []
        self.deleted: list[RemoteLogSegmentMetadata] = []
        self.ends: dict[int, int] = {}
        self.superseded: list[tuple[int, StoredObject]] = []
        self._store = store
        self._cache: ManifestCache = {} if cache is None else cache
        # before the objects
        self.compactions, self.incomplete_compactions = read_compactions(store)
        partitions = self._list_partitions()
        self.object_count = sum(map(len, partitions.values()))
        self._sources: dict[ManifestEvent, int] = {}
        """The partition from which an event was first read."""
        entries: dict[str, RemoteLogSegmentMetadata] = {}
        updates: list[tuple[RemoteLogSegmentMetadataUpdate, str]] = []
        for partition, objects in partitions.items():
            self._replay(partition, sorted(objects), entries, updates)
        self._check_compactions()
        finished = set()
        for update, name in sorted(updates, key=lambda one: one[0].state):
            self._update(update, entries, name)
            if update.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                finished.add(update.segment_id)
        for entry in entries.values():
            if entry.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                self._add(entry)
            elif entry.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                self.unfinished.append(entry)
            else:
                is_deleted = entry.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
                (self.deleted if is_deleted else self.deleting).append(entry)
                if entry.segment_id in finished:
                    self.copied_before.append(entry)
        self.backups.sort(key=BackupEntry.order)

    @property
    def events(self) -> tuple[ManifestEvent, ...]:
        return tuple(self._sources)

    def _list_partitions(self) -> Mapping[int, list[tuple[int, StoredObject]]]:
        """Return the base offsets and the objects that no compaction supersedes, by partition."""
        superseded = superseded_by(self.compactions)
        found: defaultdict[int, list[tuple[int, StoredObject]]] = defaultdict(list)
        names = set()
        for stored in self._store.list_objects(MANIFEST_DIRECTORY):
            partition, base_offset = self._position_of(stored.name)
            names.add(stored.name)
            if partition in superseded and base_offset < superseded[partition].end_offset:
                self.superseded.append((partition, stored))
            else:
                found[partition].append((base_offset, stored))
        for name in self._cache.keys() - names:
            del self._cache[name]
        self._starts = {partition: one.end_offset for partition, one in superseded.items()}
        self.partitions = {*found, *self._starts}
        return found

    def _check_compactions(self) -> None:
        """Raise ``CorruptRemoteObjectError`` unless the partitions of all compactions exist."""
        for compaction in self.compactions:
            partition, end_offset = compaction.partition, compaction.end_offset
            found = max(self.ends.get(partition, 0), self._starts.get(partition, 0))
            if found < end_offset:
                reason = f"partition {partition} ends at {found}, and had {end_offset} records"
                raise self._corrupt(compaction.name, reason)

    def _add(self, entry: RemoteLogSegmentMetadata) -> None:
        found = parse_entry(entry)
        if isinstance(found, str):
            raise self._corrupt(entry.object_name(), found)
        if isinstance(found, SegmentRange):
            self.ranges[entry.segment_id] = found
        else:
            self.backups.append(found)

    def _position_of(self, name: str) -> tuple[int, int]:
        """Return the partition number and the base offset in the name of an object."""
        parts = name.split("/")
        if len(parts) == 3:
            partition, base_offset = (
                parse_partition_name(parts[1]),
                parse_offset_name(parts[2], LOG_SUFFIX),
            )
            is_named = partition is not None and partition.topic == REMOTE_LOG_METADATA_TOPIC
            if partition is not None and is_named and base_offset is not None:
                return partition.partition, base_offset
        raise self._corrupt(name, "it is not part of a manifest")

    def _replay(
        self,
        partition: int,
        objects: Sequence[tuple[int, StoredObject]],
        entries: dict[str, RemoteLogSegmentMetadata],
        updates: list[tuple[RemoteLogSegmentMetadataUpdate, str]],
    ) -> None:
        """Add the entries and the updates of one partition."""
        next_offset, is_known = self._starts.get(partition, 0), True
        for ordinal, (base_offset, stored) in enumerate(objects):
            name = stored.name
            if base_offset != next_offset:
                raise self._corrupt(name, f"the records from offset {next_offset} on are missing")
            is_last = ordinal == len(objects) - 1
            events = self._cache.get(name)
            if events is None:
                events, is_whole = self._events(stored, is_last=is_last)
                if is_whole:
                    self._cache[name] = events
            next_offset += len(events)
            is_known = is_known and None not in events
            if is_known:
                self.ends[partition] = next_offset
            for event in events:
                if event is None or self._sources.setdefault(event, partition) != partition:
                    continue
                if isinstance(event, RemoteLogSegmentMetadataUpdate):
                    updates.append((event, name))
                else:
                    self._start(event, entries, name)

    def _events(
        self, stored: StoredObject, *, is_last: bool
    ) -> tuple[tuple[ManifestEvent | None, ...], bool]:
        """Return the events of one object (None for other types), and whether it is whole."""
        name, position = stored.name, 0
        if stored.byte_count > _OBJECT_BYTES_MAX:
            raise self._corrupt(name, f"it has more than {_OBJECT_BYTES_MAX} bytes")
        with self._store.open_object(name) as file:
            data = file.read_at(0, _OBJECT_BYTES_MAX)
        found: list[ManifestEvent | None] = []
        while position < len(data):
            try:
                batch = read_batch(data, position, path=name)
                if isinstance(batch, TornTail):
                    if is_last:
                        return tuple(found), False
                    raise self._corrupt(name, "it ends inside a record batch")
                for record in batch.records(decompressed_bytes_max=_OBJECT_BYTES_MAX):
                    found.append(decode_event(record.value or b""))
            except CorruptRemoteObjectError:
                raise
            except InvalidRecordError as error:
                raise self._corrupt(name, str(error)) from None
            except RaftlogError as error:
                reason = error.reason if isinstance(error, CorruptBatchError) else error.message()
                raise self._corrupt(name, reason) from None
            position += batch.byte_count
        return tuple(found), True

    def _start(
        self,
        entry: RemoteLogSegmentMetadata,
        entries: dict[str, RemoteLogSegmentMetadata],
        name: str,
    ) -> None:
        reason = entry.damage()
        if entry.segment_id in entries:
            reason = f"entry {entry.segment_id} is there twice"
        elif entry.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            reason = f"entry {entry.segment_id} begins in state {entry.state.name}"
        elif len(entries) >= _ENTRIES_MAX:
            reason = f"the manifest has more than {_ENTRIES_MAX} entries"
        if reason is not None:
            raise self._corrupt(name, reason)
        entries[entry.segment_id] = entry

    def _update(
        self,
        event: RemoteLogSegmentMetadataUpdate,
        entries: dict[str, RemoteLogSegmentMetadata],
        name: str,
    ) -> None:
        known = entries.get(event.segment_id)
        if known is not None and known.state is event.state and event.state in _DELETED:
            return  # two nodes deleted it
        if known is None and self.compactions:
            return  # late, from a writer that had hung: a compaction has dropped the entry
        if known is None or not known.state.may_become(event.state):
            before = "missing" if known is None else known.state.name
            reason = f"entry {event.segment_id[:40]!r} becomes {event.state.name}, and is {before}"
            raise self._corrupt(name, reason)
        entries[event.segment_id] = replace(
            known,
            state=event.state,
            event_timestamp_ms=event.event_timestamp_ms,
            custom_metadata=event.custom_metadata or known.custom_metadata,
        )

    def _corrupt(self, name: str, reason: str) -> CorruptRemoteObjectError:
        return CorruptRemoteObjectError(location=self._store.location, name=name, reason=reason)

    def new_writer(self, new_partition: Callable[[], int]) -> ManifestWriter:
        """Return a writer with its own partition. ``new_partition`` returns int31 numbers."""
        partition = new_partition()
        while partition in self.partitions:
            partition = new_partition()
        self.partitions.add(partition)
        return ManifestWriter(self._store, partition)


class ManifestWriter:
    """Writer of one partition of a manifest.

    After a write fails, it is unknown whether the events are in the store. Use a new writer then.
    """

    def __init__(self, store: ObjectStore, partition: int) -> None:
        self.partition = partition
        self._store = store
        self._directory = str(TopicPartition(REMOTE_LOG_METADATA_TOPIC, partition))
        self._next_offset = 0

    def append(self, events: Sequence[ManifestEvent]) -> None:
        """Append events; durable on return."""
        data = build_batch(
            [NewRecord(None, encode_event(event)) for event in events],
            base_offset=self._next_offset,
            leader_epoch=0,
            base_timestamp_ms=events[0].event_timestamp_ms,
        ).data
        name = offset_name(self._next_offset, LOG_SUFFIX)
        self._store.put(f"{MANIFEST_DIRECTORY}/{self._directory}/{name}", [data])
        self._next_offset += len(events)

    def finish(
        self,
        entry: SegmentRange | BackupEntry,
        *,
        now_ms: int,
        then: Sequence[RemoteLogSegmentMetadata] = (),
    ) -> None:
        """Set an entry to FINISHED, and append the next one, which is started."""
        finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        custom_metadata = entry.custom_metadata()
        update = state_change(entry.metadata, finished, now_ms=now_ms, custom=custom_metadata)
        self.append([update, *then])


def state_change(
    metadata: RemoteLogSegmentMetadata,
    state: RemoteLogSegmentState,
    *,
    now_ms: int,
    custom: bytes | None = None,
) -> RemoteLogSegmentMetadataUpdate:
    """Return the event that changes the state of an entry."""
    return RemoteLogSegmentMetadataUpdate(
        segment_id=metadata.segment_id,
        topic_partition=metadata.topic_partition,
        topic_id=metadata.topic_id,
        broker_id=metadata.broker_id,
        event_timestamp_ms=now_ms,
        state=state,
        custom_metadata=custom,
    )
