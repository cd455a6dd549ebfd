"""Replay of topics by columns: the rows are those of a loader, or there are none.

``RAFTLOG_COLUMNAR_SEEDS=500`` sets the number of random histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.support.log_builder import begin
from tests.support.random_topics import DIRECTORIES, Topics
from tests.support.small_logs import ABORT_TRANSACTION, END_TRANSACTION
from tests.support.sweep_size import nightly_except

from raftlog_state.errors import ReplayError
from raftlog_state.image.rows import Entity
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.records import (
    NO_OP_VALUE,
    ClearElrRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Redactor,
    RemoveTopicRecord,
    TopicRecord,
    decode,
    encode,
)
from raftlog_state.replay.row_versions import sorted_order
from raftlog_state.replay.topics import CONFIG_OF_TOPIC
from raftlog_state.tables.columnar_replay import (
    ColumnarChanges,
    RecordColumns,
    replay_columns,
)
from raftlog_state.tables.convert import changes_table
from raftlog_state.tables.latest import overlay, state_rows, state_rows_of
from raftlog_state.tables.origins import RowOrigins
from raftlog_state.tables.progress import row_counts_of
from raftlog_state.tables.schema import CHANGES_TABLE, STATE_TABLE
from raftlog_state.tables.stored_rows import split_state
from raftlog_state.tables.stores.protocol import in_schema

SEEDS = int(os.environ.get("RAFTLOG_COLUMNAR_SEEDS", "12"))
SHARED = {
    "cluster_id": "c",
    "topic": "__cluster_metadata",
    "partition": 0,
    "incarnation": 2,
    "committed_at": 7,
}
REDACTOR = Redactor(key=b"a redaction key of 30 characters")
BY_KEY = [("entity", "ascending"), ("key", "ascending")]
NOTHING = STATE_TABLE.no_rows


def records_of(values: Sequence[bytes], first_offset: int) -> RecordColumns:
    count = len(values)
    offsets = np.arange(first_offset, first_offset + 3 * count, 3)  # others are of other buckets
    return RecordColumns(
        offsets=offsets,
        leader_epochs=3 + offsets // 40,
        times_ms=1_700_000_000_000 + offsets * 7,
        values=pa.array(values, pa.binary()),
    )


class Replay:
    """Replay of records by a loader: rows of ``changes``, and of ``state`` after them."""

    def __init__(self) -> None:
        self._loader = MetadataLoader()
        self._origins = RowOrigins()
        self.state = NOTHING

    def append(self, records: RecordColumns) -> pa.Table:
        payloads = [REDACTOR.redact(decode(value)) for value in records.values.to_pylist()]
        columns = (records.offsets, records.leader_epochs, records.times_ms)
        offsets, epochs, times = (column.tolist() for column in columns)
        last = (offsets[-1], epochs[-1], times[-1])
        found = self._loader.append_selected(offsets, epochs, times, payloads, last=last)
        found = [one for one in found if one.changes[0].entity is not Entity.TRANSACTION]
        rows = changes_table(found, self._origins.apply(found), SHARED)
        self.state = overlay(self.state, state_rows(rows))
        return rows

    @property
    def row_counts(self) -> dict[str, int]:
        counts = row_counts_of(self._loader.image)
        return {name: counts[name] for name in ("topics", "partitions", "configs")}


def replayed(values: Sequence[bytes], state: pa.Table = NOTHING) -> ColumnarChanges | None:
    return replay_columns(split_state(state), records_of(values, 10_000), REDACTOR)


def all_rows(changes: ColumnarChanges) -> pa.Table:
    return in_schema(changes.rows(np.arange(len(changes)), SHARED), CHANGES_TABLE.schema)


@pytest.mark.parametrize("seed", nightly_except(range(4), range(SEEDS)))
def test_changes_of_random_topics_are_those_of_a_loader(seed: int) -> None:
    topics = Topics(random.Random(seed))
    loader = Replay()
    for number in range(3):
        records = records_of(list(topics.values(60)), 1_000 * number)
        state = loader.state
        found = replay_columns(split_state(state), records, REDACTOR)
        expected = loader.append(records)
        assert found is not None
        assert all_rows(found).to_pylist() == expected.to_pylist()
        assert found.row_counts == loader.row_counts
        last = in_schema(state_rows_of(found.rows(found.last, SHARED)), STATE_TABLE.schema)
        of_all = state_rows(expected).sort_by(BY_KEY)
        assert last.sort_by(BY_KEY).to_pylist() == of_all.to_pylist()


TOPIC_ID = f"{1:021d}w"
OTHER_ID = f"{2:021d}w"
TOPIC = TopicRecord(name="a", topic_id=TOPIC_ID)
PARTITION = PartitionRecord(
    partition_id=0, topic_id=TOPIC_ID, replicas=(1, 2), isr=(1,), leader=1, leader_epoch=3
)
CHANGE = PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=(2,), leader=2)
REMOVAL = RemoveTopicRecord(topic_id=TOPIC_ID)

REJECTED: dict[str, list[MetadataRecord]] = {
    "a partition of an unknown topic": [PARTITION],
    "a partition before its topic": [PARTITION, TOPIC],
    "a partition of a removed topic": [TOPIC, REMOVAL, PARTITION],
    "a change of an unknown partition": [TOPIC, CHANGE],
    "a change before its partition": [TOPIC, CHANGE, PARTITION],
    "a change after the removal": [TOPIC, PARTITION, REMOVAL, CHANGE],
    "a second topic of an id": [TOPIC, TopicRecord(name="b", topic_id=TOPIC_ID)],
    "a second topic of a name": [TOPIC, TopicRecord(name="a", topic_id=OTHER_ID)],
    "a removal of an unknown topic": [REMOVAL],
    "a clear of an unknown topic": [TOPIC, ClearElrRecord(topic_name="b")],
    "a clear before its topic": [ClearElrRecord(topic_name="a"), TOPIC],
    "a clear of a removed topic": [TOPIC, REMOVAL, ClearElrRecord(topic_name="a")],
    "a removal before its topic": [REMOVAL, TOPIC],
    "a second removal": [TOPIC, REMOVAL, REMOVAL],
    "a third removal": [TOPIC, REMOVAL, TOPIC, REMOVAL, REMOVAL],
    "a change of a partition of an earlier topic of the id": [
        *(TOPIC, PARTITION, REMOVAL, TOPIC, CHANGE),
    ],
    "a change between two topics of an id": [
        *(TOPIC, PARTITION, REMOVAL, CHANGE, TOPIC, PARTITION),
    ],
    "a removal between two topics of an id": [TOPIC, REMOVAL, REMOVAL, TOPIC],
    "a topic of an id before the removal of the one before": [TOPIC, TOPIC, REMOVAL],
    "an unknown recovery state": [TOPIC, replace(PARTITION, leader_recovery_state=2)],
    "a partition without a recovery state": [TOPIC, replace(PARTITION, leader_recovery_state=-1)],
    "a change to an unknown recovery state": [
        *(TOPIC, PARTITION, replace(CHANGE, leader_recovery_state=2)),
    ],
    "too few directories": [TOPIC, replace(PARTITION, directories=(DIRECTORIES[0],))],
    "replicas without their directories": [
        TOPIC,
        replace(PARTITION, directories=(DIRECTORIES[0], DIRECTORIES[0])),
        replace(CHANGE, replicas=(1, 2, 3)),
    ],
}


@pytest.mark.parametrize("records", REJECTED.values(), ids=REJECTED)
def test_records_that_a_loader_rejects_are_left_to_it(records: list[MetadataRecord]) -> None:
    values = [*map(encode, records)]
    assert replayed(values) is None
    with pytest.raises(ReplayError):
        Replay().append(records_of(values, 0))


NOT_PLAIN = {
    "a record of all topics": [encode(TOPIC), encode(ClearElrRecord())],
    "a record of another type": [encode(TOPIC), NO_OP_VALUE],
    "an open transaction": [begin(), encode(TOPIC)],
    "an end without a begin": [encode(TOPIC), END_TRANSACTION, encode(PARTITION), begin()],
    "a second begin": [begin(), begin(), encode(TOPIC), END_TRANSACTION],
    "a damaged record": [encode(TOPIC), encode(PARTITION)[:-1]],
    "an epoch of more than 32 bits": [
        *map(encode, (TOPIC, replace(PARTITION, leader_epoch=2**31 - 1), CHANGE))
    ],
}


@pytest.mark.parametrize("values", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_records_that_are_not_plain_are_left_to_a_loader(values: list[bytes]) -> None:
    assert replayed(values) is None
    assert replayed([encode(TOPIC), encode(PARTITION), encode(CHANGE), encode(REMOVAL)]) is not None


def test_a_partition_of_the_state_is_changed_from_its_row_there() -> None:
    """Also by a topic's removal, which deletes partitions and configs that no record names."""
    config = ConfigRecord(
        resource_type=CONFIG_OF_TOPIC, resource_name="a", name="cleanup.policy", value="compact"
    )
    before = Replay()
    before.append(records_of([*map(encode, (TOPIC, PARTITION, config))], 0))
    found = replayed([encode(CHANGE), encode(REMOVAL)], before.state)
    assert found is not None
    changed, *removed = all_rows(found).to_pylist()
    assert changed["changed"] == ["isr", "leader", "leader_epoch", "partition_epoch"]
    assert changed["after"]["partition"]["leader_epoch"] == 4
    assert changed["before_origin"]["created_offset"] == 3
    assert [(row["op"], row["entity"], row["seq"]) for row in removed] == [
        ("d", "partition", 0),
        ("d", "config", 1),
        ("d", "topic", 2),
    ]
    assert found.row_counts == {"topics": 0, "partitions": 0, "configs": 0}


def test_a_state_whose_topics_are_not_changed_has_no_changes() -> None:
    before = Replay()
    before.append(records_of([*map(encode, (TOPIC, PARTITION))], 0))
    found = replayed([begin(), encode(CHANGE), ABORT_TRANSACTION], before.state)
    assert found is not None
    assert all_rows(found).num_rows == 0
    assert found.row_counts == {"topics": 1, "partitions": 1, "configs": 0}


@pytest.mark.parametrize("key_bits", [20, 52])
def test_events_are_sorted_by_key_then_by_position(key_bits: int) -> None:
    """Also where a key and a position have too many bits for one number."""
    chance = np.random.default_rng(key_bits)
    keys = chance.integers(0, 2**key_bits, 50).repeat(8)
    positions = np.tile(chance.choice(2**20, 8, replace=False) - 1, 50)
    shuffled = chance.permutation(len(keys))
    keys, positions = keys[shuffled], positions[shuffled]
    expected = np.lexsort((positions, keys))
    assert sorted_order(keys, positions).tolist() == expected.tolist()
    assert sorted_order(keys[:0], positions[:0]).tolist() == []


def test_times_that_no_timestamp_can_hold_are_those_of_a_loader() -> None:
    """In the row that a record writes, and in the origin of a row that is replaced."""
    values = [*map(encode, (TOPIC, PARTITION, CHANGE, CHANGE, CHANGE, CHANGE))]
    times = np.array([2**63 - 1, 2**60, -(2**60), -1, 9_223_372_036_854_775, -(2**63)])
    records = records_of(values, 0)._replace(times_ms=times)
    found = replay_columns(split_state(NOTHING), records, REDACTOR)
    assert found is not None
    expected = Replay().append(records)
    for name in ("log_time", "before_origin"):
        assert all_rows(found)[name].combine_chunks().equals(expected[name].combine_chunks())
