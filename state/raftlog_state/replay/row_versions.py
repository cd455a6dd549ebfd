"""Row versions of topics, partitions and configs, computed by columns of their records.

Rules of this file:

1. The versions are those that ``replay`` writes. Records that it rejects, or that are not plain,
   raise ``NotPlainError`` before any version is created.
2. A topic is one lifetime of an id, from its creation to its deletion. After that, the id and the
   name may be created again. Keys are ids, so a row may have versions of several lifetimes.
3. Versions are sorted by key, then by record; rows of the state are before all records. A version
   has the values of the one before it, except those that its record sets (fill forward). The first
   version of a key has all values, so none is filled from another key::

       partition  written by                 leader    isr       leader epoch
       0          state                      1         1,2,3     4
       0          change of isr              1 (fill)  1,2       4 (fill)
       0          change of leader           2         1,2       5 (+ 1)
       1          PartitionRecord            3         3         0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from raftlog.limits import INT32_MAX
from raftlog_state.enums import CONFIG_RESOURCE_TYPES, LEADER_RECOVERY_STATES, enum_name
from raftlog_state.image.column_types import column_type
from raftlog_state.image.delta import key_json
from raftlog_state.image.row_schema import row_schema
from raftlog_state.image.rows import DIRECTORY_MIGRATING, Entity, PartitionRow
from raftlog_state.records import (
    ClearElrRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    is_redacted,
)
from raftlog_state.records.declare import Array
from raftlog_state.records.merged_records import MergedRecords
from raftlog_state.records.redaction import HASH_PREFIX, MASK

from .coded_columns import (
    NULL,
    Bools,
    Coded,
    Column,
    Int64s,
    Lists,
    are_among,
    coded,
    coded_lists,
    distinct,
    numbers,
    require,
    text,
)
from .topics import (
    CONFIG_OF_TOPIC,
    LEADER_UNCHANGED,
    RECOVERY_STATES,
    RECOVERY_UNCHANGED,
)

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

TOPIC_RECORDS: Final = (
    TopicRecord,
    PartitionRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    ConfigRecord,
    ClearElrRecord,
)
"""Types of the records that create versions."""
_STATE: Final = -1
"""Position of a version that was in the state."""
_KEY_SHIFT: Final = 32
_KEY_MASK: Final = (1 << _KEY_SHIFT) - 1


class TypedRecords(NamedTuple):
    """Records of one type: their rows in the range, and their fields.

    ``merged``: each record is the sum of several records of a partition; ``rows`` contains the
    first one's row.
    """

    rows: Int64s
    fields: pa.StructArray
    merged: MergedRecords | None = None

    def column(self, name: str) -> pa.Array:
        """Return a field of all of them."""
        return self.fields.field(name)


class StoredColumns(NamedTuple):
    """Rows of an entity before the range: their columns, and their numbers in ``state``."""

    columns: pa.Table
    numbers: Int64s

    def at(self, rows: Int64s) -> StoredColumns:
        """Return some of the rows."""
        return StoredColumns(self.columns.take(pa.array(rows)), self.numbers[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Records of a range, and the rows before it. ``row_count`` includes records of no topic."""

    row_count: int
    records: Mapping[type[MetadataRecord], TypedRecords]
    stored: Mapping[Entity, StoredColumns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions of an entity's rows, sorted by key and position.

    ``positions`` are the rows of records. ``sources`` are these rows, or ``row_count`` + a row's
    number in the state, whose position is before all records. ``keys`` numbers the keys in the
    order of ``key_texts``. ``columns`` are the columns of the entity's table. A deleted version has
    the values before the deletion.
    """

    entity: Entity
    positions: Int64s
    sources: Int64s
    keys: Int64s
    key_texts: Callable[[], pa.Array]
    is_deleted: Bools
    columns: Mapping[str, Column]
    changed: Mapping[str, Bools]
    """For each column that may change: whether the value differs from the previous version's."""

    @property
    def is_stored(self) -> Bools:
        """Whether a version was in the state."""
        found: Bools = self.positions == _STATE
        return found

    @property
    def has_before(self) -> Bools:
        """Whether the previous version has the same key and is not deleted."""
        found = ~is_first(self.keys)
        found[1:] &= ~self.is_deleted[:-1]
        return found


def _positions(sources: Int64s, given: Given) -> Int64s:
    return np.where(sources < given.row_count, sources, _STATE)


def is_first(keys: Int64s) -> Bools:
    """Return which of the sorted keys is the first of several equal ones."""
    found: Bools = np.ones(len(keys), dtype=np.bool_)
    found[1:] = keys[1:] != keys[:-1]
    return found


def versions_of(given: Given) -> list[Versions]:
    """Return the versions of partitions, configs and topics, in the order of ``seq``.

    Raises:
        NotPlainError: the loader is needed.
    """
    topics = _Topics(given)
    return [_partitions(given, topics), _configs(given, topics), topics.versions()]


class _Topics:
    """Numbered lifetimes of a range's topics; those that began before the range are first."""

    def __init__(self, given: Given) -> None:
        created, removed = given.records[TopicRecord], given.records[RemoveTopicRecord]
        stored = given.stored[Entity.TOPIC]
        self._given = given
        self.ids = coded(stored.columns["topic_id"], created.column("topic_id"))
        self.names = coded(stored.columns["name"], created.column("name"))
        stored_count, count = len(stored.numbers), len(self.ids.codes)
        self.created = np.concatenate([np.full(stored_count, _STATE, np.int64), created.rows])
        self.removed = np.full(count, given.row_count, np.int64)
        which = self._last_created(self.ids, removed.column("topic_id"), removed.rows)
        require(is_plain=len(np.unique(which)) == len(which))
        self.removed[which] = removed.rows
        for column in (self.ids, self.names):  # created again only after its removal
            order = self._by_creation(column)
            is_again = ~is_first(column.codes[order])[1:]
            ends, begins = self.removed[order][:-1], self.created[order][1:]
            require(is_plain=np.all(begins[is_again] > ends[is_again]))

    def find(self, ids: pa.Array | pa.ChunkedArray, rows: Int64s) -> Int64s:
        """Return the topic that has an id when the record of a row is replayed."""
        return self._existing(self._last_created(self.ids, ids, rows), rows)

    def find_names(self, names: pa.Array, rows: Int64s) -> Int64s:
        """Return the topic that has a name when the record of a row is replayed."""
        return self._existing(self._last_created(self.names, names, rows), rows)

    def _by_creation(self, column: Coded) -> Int64s:
        """Return the topics by their value in a column, then by creation."""
        return np.lexsort((self.created, column.codes))

    def _last_created(
        self, column: Coded, values: pa.Array | pa.ChunkedArray, rows: Int64s
    ) -> Int64s:
        """Return, for each row, the last topic with a value that is created up to it."""
        codes = numbers(pc.index_in(values, value_set=column.values))
        if len(column.values) == len(column.codes):  # each is created once, so codes are topics
            require(is_plain=np.all(self.created[codes] <= rows))
            return codes
        scale = self._given.row_count + 1
        order = self._by_creation(column)
        begins = column.codes[order] * scale + self.created[order] - _STATE
        at = np.searchsorted(begins, codes * scale + rows - _STATE, side="right") - 1
        require(is_plain=np.all(at >= 0))
        found: Int64s = order[at]
        require(is_plain=np.all(column.codes[found] == codes))
        return found

    def _existing(self, topics: Int64s, rows: Int64s) -> Int64s:
        require(is_plain=np.all(self.removed[topics] > rows))
        return topics

    def is_removed(self, topics: Int64s) -> Bools:
        """Return which topics the range removes."""
        found: Bools = self.removed[topics] < self._given.row_count
        return found

    def versions(self) -> Versions:
        """Return the versions of topics: each topic is created, and may be removed."""
        stored_numbers = self._given.stored[Entity.TOPIC].numbers
        created = self.created[len(stored_numbers) :]
        count = len(self.created)
        removed = np.flatnonzero(self.is_removed(np.arange(count)))
        topics = np.concatenate([np.arange(count), removed])
        events = _Events(
            self._given,
            keys=self.ids.codes[topics],
            sources=np.concatenate(
                [self._given.row_count + stored_numbers, created, self.removed[removed]]
            ),
            whole_count=count,
            deleted_count=len(removed),
        )
        topics = topics[events.order]
        return events.versions(
            Entity.TOPIC,
            key_texts=lambda: pc.binary_join_element_wise(
                text('["'), self.ids.values, text('"]'), text("")
            ),
            columns={"topic_id": self.ids.at(topics), "name": self.names.at(topics)},
        )


class _Events:
    """Events of an entity's rows, sorted by key and position.

    The input contains, in this order: ``whole_count`` rows of the state and records with all
    values, records with some values, and ``deleted_count`` deletions.
    """

    def __init__(
        self, given: Given, *, keys: Int64s, sources: Int64s, whole_count: int, deleted_count: int
    ) -> None:
        """``sources`` are as in ``Versions``."""
        positions = _positions(sources, given)
        self.order = sorted_order(keys, positions)
        self.keys = keys[self.order]
        self.positions, self.sources = positions[self.order], sources[self.order]
        self.is_first = is_first(self.keys)
        self.is_whole = self.order < whole_count
        self._last_whole = last_set(self.is_whole)
        self._whole = self.order[self._last_whole]
        self.is_deleted = self.order >= len(keys) - deleted_count
        self.whole_count = whole_count

    def sorted(self, flags: Bools) -> Bools:
        """Return sorted flags of all events except the last ones, which have none."""
        padded = np.zeros(len(self.order), dtype=np.bool_)
        padded[: len(flags)] = flags
        return padded[self.order]

    def with_numbers(self, flags: Bools, first: int, numbers: Int64s) -> Int64s:
        """Return sorted flags as numbers, with those of the events from ``first`` on, unsorted."""
        found = flags.astype(np.int64)
        place = self.order - first
        is_numbered = (place >= 0) & (place < len(numbers))
        found[is_numbered] = numbers[place[is_numbered]]
        return found

    def filled(self, values: Int64s, has_value: Bools) -> Int64s:
        """Return sorted values, where an event without a value has the previous event's.

        ``values`` are those of all events except the last ones.
        """
        last = self._whole
        if has_value[self.whole_count :].any():
            last = self.order[last_set(self.is_whole | self.sorted(has_value))]
        found: Int64s = values[last]
        return found

    def incremented(self, base: Int64s, increments: Bools | Int64s) -> Int64s:
        """Return the last whole event's value plus the number of increments after it.

        ``base`` contains the values of whole events; ``increments`` are sorted.
        """
        counts: Int64s = np.cumsum(increments)
        found: Int64s = base[self._whole] + counts - counts[self._last_whole]
        require(is_plain=np.all(found <= INT32_MAX))
        return found

    def differ(self, values: Int64s) -> Bools:
        """Return which sorted values differ from the previous ones of the same key."""
        found = ~self.is_first
        found[1:] &= values[1:] != values[:-1]
        return found

    def versions(
        self,
        entity: Entity,
        *,
        key_texts: Callable[[], pa.Array],
        columns: Mapping[str, Column],
        changed: Mapping[str, Bools] | None = None,
    ) -> Versions:
        """Return the events with their columns."""
        return Versions(
            entity=entity,
            positions=self.positions,
            sources=self.sources,
            keys=np.cumsum(self.is_first) - 1,
            key_texts=key_texts,
            is_deleted=self.is_deleted,
            columns=columns,
            changed=changed or {},
        )


def sorted_order(keys: Int64s, positions: Int64s) -> Int64s:
    """Return the order by key, then by position, which is unique within a key.

    numpy sorts one number several times as fast as two.
    """
    if not len(keys):
        return np.zeros(0, np.int64)
    lowest = int(positions.min())
    width = int(positions.max()) - lowest + 1
    if int(keys.max()) >= 2**62 // width:
        return np.lexsort((positions, keys))
    combined = keys * width
    combined += positions
    return np.argsort(combined)


def last_set(is_set: Bools) -> Int64s:
    """Return for each row the row of the last set value; the first row's value is set."""
    rows = np.flatnonzero(is_set)
    return np.repeat(rows, np.diff(rows, append=len(is_set)))


# --- partitions -----------------------------------------------------------------------------------

_PARTITION: Final = {entry.name: entry for entry in row_schema(PartitionRow)}
_LISTS: Final = [entry.name for entry in _PARTITION.values() if isinstance(entry.kind, Array)]
_ELR: Final = [entry.name for entry in _PARTITION.values() if entry.empty_is_null]
"""Lists that a ClearElrRecord clears; a partition without any is not changed."""
_UNCHANGED: Final = {"leader": LEADER_UNCHANGED, "leader_recovery_state": RECOVERY_UNCHANGED}


def _partitions(given: Given, topics: _Topics) -> Versions:
    found = _PartitionEvents(given, topics)
    leaders, recovery = found.numbers("leader"), found.numbers("leader_recovery_state")
    of_whole = recovery[: found.events.whole_count]
    require(is_plain=np.all(np.isin(of_whole, RECOVERY_STATES)))
    require(is_plain=np.all(np.isin(recovery, (*RECOVERY_STATES, RECOVERY_UNCHANGED))))
    events = found.events
    has_leader = leaders != LEADER_UNCHANGED
    changes, elections = found.increments(has_leader)
    values = {
        "leader": events.filled(leaders, has_leader),
        "leader_epoch": events.incremented(found.numbers_of_whole("leader_epoch"), elections),
        "partition_epoch": events.incremented(found.numbers_of_whole("partition_epoch"), changes),
        "leader_recovery_state": events.filled(recovery, recovery != RECOVERY_UNCHANGED),
    }
    lists = {name: found.lists(name) for name in _LISTS}
    lists["directories"] = _directories(lists["directories"], lists["replicas"])
    codes = {name: column.lists.codes for name, column in lists.items()}
    changed = {name: events.differ(column) for name, column in (values | codes).items()}
    columns = {
        name: pa.array(values[name]).cast(column_type(_PARTITION[name].kind)) for name in values
    }
    texts = [enum_name(LEADER_RECOVERY_STATES, state) for state in RECOVERY_STATES]
    return events.versions(
        Entity.PARTITION,
        key_texts=found.key_texts,
        columns={
            "topic_id": topics.ids.at(found.topics),
            "topic_name": topics.names.at(found.topics),
            "partition_id": pa.array(found.partition_ids).cast(pa.int32()),
            "leader_recovery_state_name": Coded(
                pa.array(texts, pa.string()), values["leader_recovery_state"]
            ),
            **{name: column.lists for name, column in lists.items()},
            **columns,
        },
        changed={name: changed[name] for name in _PARTITION if name in changed},
    )


class _Clears(NamedTuple):
    """ClearElrRecords, one for each partition of their topics: rows, and keys of partitions."""

    rows: Int64s
    topics: Int64s
    partition_ids: Int64s

    def at(self, which: Bools) -> _Clears:
        """Return some of them."""
        return _Clears(*(column[which] for column in self))


class _PartitionEvents:
    """Events of partitions: rows of the state, PartitionRecords, changes, clears, and removals.

    ``topics`` and ``partition_ids`` are sorted like the events.
    """

    def __init__(self, given: Given, topics: _Topics) -> None:
        created, changed = given.records[PartitionRecord], given.records[PartitionChangeRecord]
        self._created, self._changed = created, changed
        ids = pa.concat_arrays([created.column("topic_id"), changed.column("topic_id")])
        rows = np.concatenate([created.rows, changed.rows])
        of_topics = topics.find(ids, rows)
        if changed.merged is not None:  # the topic is not deleted between them either
            last_rows = changed.merged.last_rows.astype(np.int64)
            of_last = topics.find(changed.column("topic_id"), last_rows)
            require(is_plain=np.array_equal(of_topics[len(created.rows) :], of_last))
        partition_ids = numbers(created.column("partition_id"), changed.column("partition_id"))

        stored = given.stored[Entity.PARTITION]
        in_state = np.full(len(stored.numbers), _STATE)
        stored_topics = topics.find(stored.columns["topic_id"], in_state)
        stored_keys = _key(stored_topics, numbers(stored.columns["partition_id"]))
        cleared = given.records[ClearElrRecord]
        require(is_plain=not pc.any(pc.equal(cleared.column("topic_name"), text(""))).as_py())
        cleared_topics = topics.find_names(cleared.column("topic_name"), cleared.rows)
        is_touched = np.zeros(len(stored_keys), dtype=np.bool_)
        if len(stored_keys):  # otherwise the records' keys are sorted
            is_touched = are_among(stored_keys, _key(of_topics, partition_ids))
        is_touched |= are_among(stored_topics, cleared_topics)
        touched = np.flatnonzero(is_touched | topics.is_removed(stored_topics))
        self._stored = stored = stored.at(touched)
        of_topics = np.concatenate([stored_topics[touched], of_topics])
        partition_ids = np.concatenate([numbers(stored.columns["partition_id"]), partition_ids])
        require(is_plain=np.all(partition_ids >= 0))  # otherwise a key is one of another topic
        self._ids = topics.ids
        self._whole_count = len(touched) + len(created.rows)

        keys = _key(of_topics, partition_ids)
        removed = distinct(keys[topics.is_removed(of_topics)])
        removed_topics, removed_ids = removed >> _KEY_SHIFT, removed & _KEY_MASK
        sources = np.concatenate([given.row_count + stored.numbers, rows])
        self._kept = (of_topics, partition_ids, sources)
        self._removals = (removed_topics, removed_ids, topics.removed[removed_topics])
        positions = _positions(sources, given)
        of_whole = slice(self._whole_count)
        clears = _clears(cleared.rows, cleared_topics, keys[of_whole], positions[of_whole])
        self._sort(given, clears)
        if len(clears.rows):
            self._sort(given, clears.at(~self._is_idle()))

    def _sort(self, given: Given, clears: _Clears) -> None:
        """Sort the events, ``clears`` among them."""
        parts = (self._kept, (clears.topics, clears.partition_ids, clears.rows), self._removals)
        of_topics, partition_ids, sources = map(np.concatenate, zip(*parts, strict=True))
        self._clear_count = len(clears.rows)
        self.events = _Events(
            given,
            keys=_key(self._ids.codes[of_topics], partition_ids),
            sources=sources,
            whole_count=self._whole_count,
            deleted_count=len(self._removals[0]),
        )
        is_absent = self.events.is_first.copy()
        is_absent[1:] |= self.events.is_deleted[:-1]
        require(is_plain=np.all(self.events.is_whole[is_absent]))
        self.topics = of_topics[self.events.order]
        self.partition_ids = partition_ids[self.events.order]

    def _is_idle(self) -> Bools:
        """Return which clears change nothing because the partition has no ELR at that time."""
        first = len(self._kept[0])
        is_clear = (self.events.order >= first) & (self.events.order < first + self._clear_count)
        has_none = np.ones(len(is_clear), dtype=np.bool_)
        for name in _ELR:
            lists = self.lists(name)
            has_none &= lists.lengths[lists.lists.codes] == 0
        places = np.flatnonzero(is_clear)
        found = np.empty(self._clear_count, dtype=np.bool_)
        found[self.events.order[places] - first] = has_none[places - 1]
        return found

    def increments(self, has_leader: Bools) -> tuple[Bools | Int64s, Bools | Int64s]:
        """Return how many changes each event is, and how many of them set the leader, sorted.

        ``has_leader`` is unsorted.
        """
        events, merged = self.events, self._changed.merged
        is_change = ~events.is_whole & ~events.is_deleted
        elects = is_change & events.sorted(has_leader)
        if merged is None:
            return is_change, elects
        of_changed = has_leader[self._whole_count :][: len(merged.counts)]
        elections = np.where(merged.counts > 1, merged.set_counts, of_changed)
        return (
            events.with_numbers(is_change, self._whole_count, merged.counts.astype(np.int64)),
            events.with_numbers(elects, self._whole_count, elections.astype(np.int64)),
        )

    def key_texts(self) -> pa.Array:
        """Return the text of each key, in order."""
        firsts = np.flatnonzero(self.events.is_first)
        ids = self._ids.values.take(pa.array(self._ids.codes[self.topics[firsts]]))
        texts = pa.array(self.partition_ids[firsts]).cast(pa.string())
        return pc.binary_join_element_wise(text('["'), ids, text('",'), texts, text("]"), text(""))

    def numbers(self, name: str) -> Int64s:
        """Return a field of all events except the removals, unsorted."""
        field = str(_PARTITION[name].record_field)
        of_clears = np.full(self._clear_count, _UNCHANGED[name])
        changed = numbers(self._changed.column(field))
        return np.concatenate([self.numbers_of_whole(name), changed, of_clears])

    def numbers_of_whole(self, name: str) -> Int64s:
        """Return a field of the rows of the state and the PartitionRecords."""
        entry = _PARTITION[name]
        field = str(entry.record_field)
        return numbers(self._stored.columns[entry.column], self._created.column(field))

    def lists(self, name: str) -> Lists:
        """Return sorted lists; a change without a list keeps the previous one."""
        entry = _PARTITION[name]
        field = str(entry.record_field)
        parts = [self._stored.columns[entry.column]]
        parts += [records.column(field) for records in (self._created, self._changed)]
        kind = column_type(entry.kind)
        cleared: list[int] | None = [] if name in _ELR else None
        parts.append(pa.array([cleared] * self._clear_count, kind))
        found = coded_lists(kind, parts)
        codes = found.lists.codes
        require(is_plain=entry.empty_is_null or np.all(codes[: self.events.whole_count] != NULL))
        found, empty = found.with_empty()
        codes = self.events.filled(codes, codes != NULL)
        return found.with_codes(np.where(codes == NULL, empty, codes))


def _clears(rows: Int64s, topics: Int64s, keys: Int64s, positions: Int64s) -> _Clears:
    """Return the clears of topics for each of their partitions that exists then.

    ``keys`` and ``positions`` are those of rows of the state and of PartitionRecords.
    """
    order = np.lexsort((positions, keys))
    order = order[is_first(keys[order])]
    of_topics = keys[order] >> _KEY_SHIFT
    begins, ends = (np.searchsorted(of_topics, topics, side) for side in ("left", "right"))
    counts = ends - begins
    which = np.repeat(np.arange(len(rows)), counts)
    at = order[np.arange(len(which)) + np.repeat(begins - np.cumsum(counts) + counts, counts)]
    found = _Clears(rows[which], topics[which], keys[at] - (topics[which] << _KEY_SHIFT))
    return found.at(positions[at] < found.rows)


def _key(topics: Int64s, partition_ids: Int64s) -> Int64s:
    return (topics << _KEY_SHIFT) + partition_ids


def _directories(directories: Lists, replicas: Lists) -> Lists:
    """Return one directory for each replica: all MIGRATING if none is known."""
    codes, of_replicas = directories.lists.codes, replicas.lists.codes
    unknown = directories.consist_of(DIRECTORY_MIGRATING)[codes]
    counts = replicas.lengths[of_replicas]
    require(is_plain=np.all(unknown | (directories.lengths[codes] == counts)))
    needed, which = np.unique(counts[unknown], return_inverse=True)
    found, added = directories.with_lists([(DIRECTORY_MIGRATING,) * n for n in needed.tolist()])
    codes = codes.copy()
    codes[unknown] = added[which]
    return found.with_codes(codes)


# --- configs --------------------------------------------------------------------------------------


def _configs(given: Given, topics: _Topics) -> Versions:
    records, stored = given.records[ConfigRecord], given.stored[Entity.CONFIG]
    resources, names, values = (
        coded(stored.columns[name], records.column(name))
        for name in ("resource_name", "name", "value")
    )
    names = names.in_order()
    keys = _key(resources.codes, names.codes)
    sources = np.concatenate([given.row_count + stored.numbers, records.rows])
    is_set = values.codes != NULL
    with_topic, removals = _removed_with_topics(given, topics, resources, keys, sources, is_set)

    rows = np.concatenate([np.flatnonzero(is_set), np.flatnonzero(~is_set), with_topic])
    sources = np.concatenate([sources[rows[: len(keys)]], removals])
    is_deletion = np.arange(len(rows)) >= np.count_nonzero(is_set)
    kept = _without_idle_deletions(keys[rows], _positions(sources, given), is_deletion)
    rows, sources = rows[kept], sources[kept]
    events = _Events(
        given,
        keys=keys[rows],
        sources=sources,
        whole_count=int(np.count_nonzero(is_set)),
        deleted_count=len(rows) - int(np.count_nonzero(is_set)),
    )
    rows = rows[events.order]
    of_topic = pa.array(np.full(len(rows), CONFIG_OF_TOPIC, np.int32))
    type_name = pa.array([enum_name(CONFIG_RESOURCE_TYPES, CONFIG_OF_TOPIC)], pa.string())
    resources, names, values = (column.at(rows) for column in (resources, names, values))

    def key_texts() -> pa.Array:
        parts = (
            column.values.take(pa.array(column.codes[events.is_first]))
            for column in (resources, names)
        )
        keys = zip(*(part.to_pylist() for part in parts), strict=True)
        return pa.array([key_json((CONFIG_OF_TOPIC, *key)) for key in keys], pa.string())

    return events.versions(
        Entity.CONFIG,
        key_texts=key_texts,
        columns={
            "resource_type": of_topic,
            "resource_type_name": Coded(type_name, np.zeros(len(rows), dtype=np.int64)),
            "resource_name": resources,
            "name": names,
            "value": values,
            "redacted": Coded(_are_redacted(values.values), values.codes),
        },
        changed={"value": events.differ(values.codes)},
    )


def _are_redacted(values: pa.StringArray) -> pa.BooleanArray:
    """Return ``is_redacted`` of each value, calling it for few of them."""
    found = np.zeros(len(values), np.bool_)
    for prefix in (MASK, HASH_PREFIX):
        found |= pc.starts_with(values, prefix).to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(found).tolist():
        found[at] = is_redacted(values[at].as_py())
    return pa.array(found)


def _removed_with_topics(
    given: Given, topics: _Topics, resources: Coded, keys: Int64s, sources: Int64s, is_set: Bools
) -> tuple[Int64s, Int64s]:
    """Return the configs that exist when a topic with their name is removed, and that time."""
    count = given.row_count + 1
    removed = np.flatnonzero(topics.is_removed(np.arange(len(topics.removed))))
    names = topics.names.values.take(pa.array(topics.names.codes[removed]))
    codes = pc.index_in(names, value_set=resources.values).fill_null(NULL).to_numpy()
    removals = np.sort(codes * count + topics.removed[removed])
    positions = _positions(sources, given)
    order = np.lexsort((positions, keys))
    until = np.append(positions[order][1:], given.row_count)
    until[np.append(is_first(keys[order])[1:], True)] = given.row_count
    next_of_key = np.empty_like(until)
    next_of_key[order] = until
    # The first removal after each row, if it has the same name.
    at = np.searchsorted(removals, resources.codes * count + positions, side="right")
    found = np.append(removals, -1)[np.minimum(at, len(removals))]
    of_name = (at < len(removals)) & (found // count == resources.codes)
    rows = np.flatnonzero(is_set & of_name & (found % count < next_of_key))
    return rows, found[rows] % count


def _without_idle_deletions(keys: Int64s, positions: Int64s, is_deletion: Bools) -> Int64s:
    """Return the events without deletions of keys that do not exist."""
    order = np.lexsort((positions, keys))
    is_there = ~is_first(keys[order])
    is_there[1:] &= ~is_deletion[order][:-1]
    return np.sort(order[~is_deletion[order] | is_there])
