"""States of share partitions: snapshots, updates and deletions, as the share coordinator has them.

``tests/kafka/test_kafka_groups.py`` compares them with those of a running Kafka.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.internal_records import GROUPS_NODE, InternalLogFile

from raftlog.client import Isolation, LogKind, open_path
from raftlog.errors import CorruptBatchError
from raftlog_state.image.rows import ShareBatch
from raftlog_state.internal import joined_rows
from raftlog_state.internal.loader import InternalState, combined
from raftlog_state.internal.rows import ROW_KINDS
from raftlog_state.records import Message
from raftlog_state.records.internal_logs import SHARE_GROUP_STATE, SHARE_RECORDS
from raftlog_state.records.keyed_serde import KeyedRecord
from raftlog_state.records.schema_coordinators import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StateBatch,
)

PLACE: dict[str, Any] = {"group_id": "g", "topic_id": "A" * 21 + "Q", "partition": 1}
shares = ROW_KINDS["share_partitions"].rows
SNAPSHOT, UPDATE = ShareSnapshotKey(**PLACE), ShareUpdateKey(**PLACE)


def state_in(path: Path, end_offset: int | None = None) -> InternalState:
    log = open_path(str(path), kind=LogKind.PARTITION)
    end = log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset
    state = InternalState(SHARE_GROUP_STATE)
    state.read(log, end if end_offset is None else end_offset)
    return state


def found_after(
    path: Path, *records: tuple[Message, Message | None], end_offset: int | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a log with these records."""
    log = InternalLogFile(path)
    log.append(*(SHARE_RECORDS.encode(KeyedRecord(key, value, None)) for key, value in records))
    return shares([state_in(log.path, end_offset)])


def batch(first: int, last: int, state: int, count: int) -> StateBatch:
    return StateBatch(
        first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
    )


def ranges(row: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("first_offset", "last_offset", "delivery_state_name", "delivery_count")
    return [tuple(one[name] for name in names) for one in row["state_batches"]]


FIRST = ShareSnapshotValue(
    snapshot_epoch=3,
    state_epoch=2,
    leader_epoch=4,
    start_offset=5,
    delivery_complete_count=1,
    create_timestamp=7,
    write_timestamp=8,
    state_batches=(batch(5, 9, 0, 1),),
)


def test_the_shares_of_a_real_node_are_acknowledged() -> None:
    paths = sorted(GROUPS_NODE.glob("__share_group_state-*"))
    found = shares(map(state_in, paths))
    assert [(row["group"], row["partition"]) for row in found] == [
        *(("shared", 0), ("shared", 1), ("shared", 2))
    ]
    for row in found:
        assert (row["start_offset"], row["delivery_complete_count"]) == (0, 10)
        assert (row["state_epoch"], row["leader_epoch"], row["snapshot_epoch"]) == (2, 0, 0)
        assert ranges(row) == [(0, 9, "Acknowledged", 1)]


def test_an_update_changes_the_snapshot_before_it(tmp_path: Path) -> None:
    update = ShareUpdateValue(
        snapshot_epoch=3,
        leader_epoch=-1,
        start_offset=-1,
        delivery_complete_count=3,
        state_batches=(batch(8, 12, 2, 2),),
    )
    (row,) = found_after(tmp_path / "__share_group_state-0", (SNAPSHOT, FIRST), (UPDATE, update))
    assert (row["start_offset"], row["leader_epoch"], row["state_epoch"]) == (5, 4, 2)
    assert (row["delivery_complete_count"], row["snapshot_epoch"]) == (3, 3)
    assert (row["create_timestamp_ms"], row["write_timestamp_ms"]) == (7, 8)
    assert ranges(row) == [(5, 7, "Available", 1), (8, 12, "Acknowledged", 2)]


def test_batches_below_the_start_offset_are_dropped(tmp_path: Path) -> None:
    update = ShareUpdateValue(
        leader_epoch=6, start_offset=7, state_batches=(batch(9, 11, 2, 1), batch(20, 20, 4, 5))
    )
    (row,) = found_after(tmp_path / "__share_group_state-0", (SNAPSHOT, FIRST), (UPDATE, update))
    assert (row["start_offset"], row["leader_epoch"]) == (7, 6)
    assert row["delivery_complete_count"] is None
    assert ranges(row) == [
        *((7, 8, "Available", 1), (9, 11, "Acknowledged", 1), (20, 20, "Archived", 5))
    ]


def test_a_snapshot_replaces_the_state_and_one_without_a_value_deletes_it(tmp_path: Path) -> None:
    later = ShareSnapshotValue(snapshot_epoch=4, leader_epoch=-1, start_offset=-1)
    records = ((SNAPSHOT, FIRST), (SNAPSHOT, later), (SNAPSHOT, None))
    (row,) = found_after(tmp_path / "__share_group_state-0", *records, end_offset=2)
    assert (row["snapshot_epoch"], row["start_offset"], row["leader_epoch"]) == (4, None, None)
    assert ranges(row) == []
    assert found_after(tmp_path / "__share_group_state-1", *records) == []


def test_an_update_whose_snapshot_was_deleted_is_a_state_of_its_own(tmp_path: Path) -> None:
    update = ShareUpdateValue(snapshot_epoch=9, leader_epoch=2, start_offset=30)
    (row,) = found_after(tmp_path / "__share_group_state-0", (UPDATE, update))
    assert (row["snapshot_epoch"], row["start_offset"], row["leader_epoch"]) == (9, 30, 2)
    assert row["state_epoch"] is row["create_timestamp_ms"] is None


def test_a_damaged_record_is_named_by_its_offset(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "__share_group_state-0")
    log.append((b"\x00\x63x", b"\x00\x00"), (b"\x00\x00\x02g", b"\x00\x00"))
    with pytest.raises(CorruptBatchError) as caught:
        state_in(log.path)
    assert caught.value.offset == 1


def test_the_lag_is_what_is_left_to_deliver() -> None:
    share = dict.fromkeys(ROW_KINDS["share_partitions"].columns)
    share |= {"group": "g", "topic_id": "t", "partition": 0, "start_offset": 4}
    logs = {("orders", 0): joined_rows.LogOffsets(log_start_offset=0, log_end_offset=20)}
    for complete, lag in ((6, 10), (None, None)):
        (row,) = joined_rows.share_lag(
            [share | {"delivery_complete_count": complete}], logs, {"t": "orders"}
        )
        assert (row["topic"], row["log_end_offset"], row["lag"]) == ("orders", 20, lag)
    (row,) = joined_rows.share_lag([share | {"delivery_complete_count": 6}], logs, {})
    assert (row["topic"], row["lag"]) == (None, None)


def rank(batch: ShareBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state


@pytest.mark.parametrize("seed", range(50))
def test_each_record_has_the_state_of_the_batch_with_the_greatest_rank(seed: int) -> None:
    """Against a map of all offsets; adjacent batches differ, but for those that Kafka keeps."""
    rng = Random(seed)
    start = rng.choice((-1, 0, 5, 12))
    given = []
    for _ in range(rng.randrange(8)):
        first = rng.randrange(20)
        last = first + rng.randrange(8)
        given.append(ShareBatch(first, last, rng.randrange(1, 4), rng.choice((0, 2, 4))))
    expected: dict[int, tuple[int, int]] = {}
    for one in given:
        for offset in range(max(one.first_offset, start), one.last_offset + 1):
            expected[offset] = max(expected.get(offset, rank(one)), rank(one))
    found = combined(given, start)
    assert {
        offset: rank(one)
        for one in found
        for offset in range(one.first_offset, one.last_offset + 1)
    } == expected
    ends = [one.last_offset for one in found]
    assert all(end < one.first_offset for end, one in zip(ends, found[1:], strict=False)), (
        "they overlap"
    )
