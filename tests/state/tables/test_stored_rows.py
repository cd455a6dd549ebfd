"""Rows that stay in columns until they are touched are the rows that were written."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.random_metadata import RandomLog

from raftlog_state.image import MetadataImage, PartitionRow, Quorum
from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.rows import Entity, Row
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import (
    DecodedRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from raftlog_state.tables import stored_rows as tables_stored_rows
from raftlog_state.tables.convert import changes_table, rows_of
from raftlog_state.tables.latest import overlay, state_rows
from raftlog_state.tables.origins import RowOrigins
from raftlog_state.tables.schema import STATE_TABLE
from raftlog_state.tables.stored_rows import (
    BLOCK_ROWS,
    StoredGroups,
    StoredRows,
    read_state,
    split_state,
    stored_rows,
)

CLUSTER = "cluster-a"
SHARED = {
    "cluster_id": CLUSTER,
    "topic": "__cluster_metadata",
    "partition": 0,
    "incarnation": 0,
    "committed_at": 0,
}


class Replay:
    """Loader and origins, and the changes of the records that were appended."""

    def __init__(self, image: MetadataImage | None = None, origins: RowOrigins | None = None):
        self.loader = MetadataLoader(image)
        self.origins = origins or RowOrigins()
        self.changes: list[RecordChanges] = []

    def append(self, records: Sequence[DecodedRecord]) -> pa.Table:
        """Append records; return the rows of ``changes``."""
        first, count = self.loader.next_offset, len(records)
        offsets = range(first, first + count)
        changes = self.loader.append_columns(offsets, [1] * count, offsets, records)
        self.changes += changes
        return changes_table(changes, self.origins.apply(changes), SHARED)


def reopened(state: pa.Table, image: MetadataImage) -> Replay:
    """Return a replay that continues at an image whose rows are those of ``state``."""
    rows = stored_rows(split_state(state))
    return Replay(image_over(rows, image), RowOrigins(rows))


def image_over(rows: Mapping[Entity, StoredRows], image: MetadataImage) -> MetadataImage:
    """Return an image of stored rows at the offset of another one."""
    return MetadataImage.from_maps(
        rows,
        StoredGroups(rows),
        offset=image.offset,
        leader_epoch=image.leader_epoch,
        timestamp_ms=image.timestamp_ms,
        quorum=Quorum(),
    )


def check_same(found: MetadataImage, expected: MetadataImage) -> None:
    """Compare two images as their users do: by equality, by key, by group and by digest."""
    assert found == expected
    assert expected == found
    assert found.digest() == expected.digest()
    for entity in Entity:
        rows = dict(expected.map(entity))
        assert len(found.map(entity)) == len(rows)
        assert dict(found.map(entity)) == rows
        assert all(found.get(entity, key) == row for key, row in rows.items())
        assert found.get(entity, ("none", 0)) is None
    groups = {group: sorted(keys) for group, keys in expected.groups().items()}
    assert {group: sorted(keys) for group, keys in found.groups().items()} == groups
    assert len(found.groups()) == len(groups)
    assert all(sorted(found.group(group)) == keys for group, keys in groups.items())
    assert found.group((Entity.TOPIC, "none", "")) == ()
    assert found.group((Entity.CONFIG, 2, "none")) == ()


@pytest.mark.parametrize("level", [14, 21, 30])
def test_replay_continues_from_stored_rows_as_from_the_rows_in_memory(level: int) -> None:
    log = RandomLog(level, level)
    log.grow(600)
    early, later = log.records[:400], log.records[400:]
    expected = Replay()
    state = state_rows(expected.append(early))
    found = reopened(state, expected.loader.image)
    before = found.loader.image
    check_same(before, expected.loader.image)

    for start in range(0, len(later), 23):
        part = later[start : start + 23]
        assert found.append(part).equals(expected.append(part))
        check_same(found.loader.image, expected.loader.image)

    assert found.loader.image != before
    early_replay = Replay()
    early_replay.append(early)
    check_same(before, early_replay.loader.image)


TOPICS = [f"topic-{number:018d}" for number in range(5)]
PARTITIONS = BLOCK_ROWS


def of(*records: MetadataRecord) -> list[DecodedRecord]:
    return [DecodedRecord(0, record) for record in records]


def partition(topic_id: str, number: int, leader: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number, topic_id=topic_id, replicas=(1, 2), isr=(1, 2), leader=leader
    )


def wide_state(seed: int) -> tuple[pa.Table, Replay]:
    """Return rows of ``state`` in random order, of topics with many partitions."""
    records: list[MetadataRecord] = []
    for number, topic_id in enumerate(TOPICS):
        records.append(TopicRecord(name=f"name {number}", topic_id=topic_id))
        records += [partition(topic_id, one, number) for one in range(PARTITIONS + number)]
    replay = Replay()
    state = state_rows(replay.append(of(*records)))
    order = list(range(state.num_rows))
    random.Random(seed).shuffle(order)
    return state.take(pa.array(order)), replay


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_found_in_any_order_of_the_columns(seed: int) -> None:
    state, replay = wide_state(seed)
    rows = stored_rows(split_state(state))[Entity.PARTITION]
    assert len(rows) == 5 * PARTITIONS + 10
    keys = sorted(rows)
    random.Random(seed).shuffle(keys)
    for key in keys:
        expected = replay.loader.image.get(Entity.PARTITION, key)
        assert rows[key] == expected
        assert rows[key] is rows[key]
        assert rows.origin(key) == replay.origins.get(Entity.PARTITION, key)
    assert keys[0] in rows
    assert (TOPICS[0], PARTITIONS) not in rows
    with pytest.raises(KeyError):
        rows[TOPICS[0], PARTITIONS]


def test_only_rows_next_to_a_touched_one_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[int] = []

    def counted(entity: Entity, columns: pa.Table) -> list[Row]:
        converted.append(columns.num_rows)
        return rows_of(entity, columns)

    monkeypatch.setattr(tables_stored_rows, "rows_of", counted)
    state, replay = wide_state(0)
    found = stored_rows(split_state(state))
    image = image_over(found, replay.loader.image)
    assert len(image.map(Entity.PARTITION)) == 5 * PARTITIONS + 10
    assert len(image.group((Entity.PARTITION, TOPICS[1], ""))) == PARTITIONS + 1
    assert (TOPICS[1], 7) in image.map(Entity.PARTITION)
    assert converted == []
    assert image.find(PartitionRow, TOPICS[1], 7) is not None
    assert converted == [BLOCK_ROWS]


def test_later_rows_replace_stored_ones_and_a_deleted_topic_has_no_partition() -> None:
    state, expected = wide_state(1)
    later = of(
        PartitionChangeRecord(partition_id=3, topic_id=TOPICS[1], leader=9),
        RemoveTopicRecord(topic_id=TOPICS[2]),
        partition(TOPICS[3], PARTITIONS + 50, 4),
    )
    changed = state_rows(expected.append(later))
    tables = MemoryTables()
    MemoryStore(tables).merge(state)
    parts = [
        overlay(part, more)
        for part, more in zip(
            read_state(MemoryStore(tables), CLUSTER).parts(), split_state(changed), strict=True
        )
    ]
    whole = pa.concat_tables([*parts], promote_options="default")
    check_same(reopened(whole, expected.loader.image).loader.image, expected.loader.image)


def test_tables_without_state_have_no_rows() -> None:
    store = MemoryStore(MemoryTables())
    for state in (read_state(store, None), read_state(store, CLUSTER)):
        parts = state.parts()
        assert [part.num_rows for part in parts] == [0, 0]
        rows = stored_rows(parts)
        assert not any(rows.values())
        assert dict(StoredGroups(rows)) == {}


@pytest.mark.parametrize("entity", list(Entity))
def test_an_entity_without_rows_is_an_empty_mapping(entity: Entity) -> None:
    rows = StoredRows(entity, STATE_TABLE.schema.empty_table())
    assert dict(rows) == {}
    assert ("none", 0) not in rows
