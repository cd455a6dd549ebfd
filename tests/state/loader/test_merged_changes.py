"""Changes of a partition that are merged to one have the effects of all, in windows of a log."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pyarrow as pa
import pytest
from tests.state.loader.test_topic_rows import (
    IDS,
    REVEALED,
    SEEDS,
    assert_advanced,
    assert_left_out,
    change,
    created,
)
from tests.support.log_builder import begin
from tests.support.small_logs import END_TRANSACTION
from tests.support.sweep_size import nightly_except

from raftlog import compiled
from raftlog_state.loader import scans
from raftlog_state.records import (
    ClearElrRecord,
    DecodedRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    encode,
)
from raftlog_state.replay.topic_records import topic_records

CLEAR = encode(ClearElrRecord())


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "RECORDS_MIN", 2)
    monkeypatch.setattr(scans, "WINDOW_BYTES", 6_000)


def busy_records(chance: random.Random, count: int, *, is_strange: bool) -> list[MetadataRecord]:
    """Return changes of a few partitions, which are merged, and records that end a merge.

    Topics are created again with their ids. ``is_strange``: some changes contradict the state.
    """
    living, removed = IDS[:3], IDS[3:4]
    found = [record for topic_id in living for record in created(topic_id)]
    while len(found) < count:
        topic_id, roll = chance.choice(living), chance.random()
        if roll < 0.01 and len(living) > 1:
            living.remove(topic_id)
            removed.append(topic_id)
            found.append(RemoveTopicRecord(topic_id=topic_id))
        elif roll < 0.02 and removed:
            living.append(removed.pop(0))
            found += list(created(living[-1]))[: 3 if is_strange else None]
        elif roll < 0.04:
            found.append(list(created(topic_id))[chance.randint(1, 2)])
        elif is_strange and roll < 0.05:
            changed = change(chance, chance.choice(IDS[:4]))
            found.append(dataclasses.replace(changed, leader_recovery_state=7))
        else:
            found.append(change(chance, topic_id))
    return found


def encoded(record: MetadataRecord, chance: random.Random) -> bytes:
    """Encode a record, a change in any version that has its fields."""
    if not isinstance(record, PartitionChangeRecord) or chance.random() < 0.5:
        return encode(record)
    has_elr = record.eligible_leader_replicas is not None or record.last_known_elr is not None
    lowest = 2 if has_elr else int(record.directories is not None)
    return encode(DecodedRecord(chance.randint(lowest, 2), record))


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_merged_changes_of_partitions_have_the_same_state(seed: int) -> None:
    chance = random.Random(seed)
    records = busy_records(chance, 1_500, is_strange=False)
    assert_advanced([encoded(record, chance) for record in records], seed)


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_changes_that_contradict_the_state_are_not_merged(seed: int) -> None:
    """A loader that continues after them has left out the same ones."""
    chance = random.Random(seed)
    records = busy_records(chance, 1_500, is_strange=True)
    assert_left_out([encoded(record, chance) for record in records], seed)


def test_changes_before_and_after_a_deletion_of_their_topic_are_not_merged() -> None:
    """The partition is not there after the deletion."""
    changed = PartitionChangeRecord(topic_id=IDS[0], partition_id=3, leader=2)
    removal, creation = RemoveTopicRecord(topic_id=IDS[0]), next(created(IDS[0]))
    records = [*created(IDS[0]), changed, removal, creation, changed]
    assert_left_out([*map(encode, records)], seed=1)


@pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")
def test_changes_are_merged_unless_a_window_has_records_that_depend_on_them() -> None:
    def changes_of(*more: bytes, is_merged: bool = True) -> int:
        drawn = random.Random(4)
        before = [*created(IDS[0]), *(change(drawn, IDS[0]) for _ in range(100))]
        values = pa.array([*map(encode, before), *more], pa.binary())
        offsets = np.arange(len(values))
        found = topic_records(values, offsets, REVEALED, is_merged=is_merged)
        assert np.count_nonzero(found.is_of_topics) == len(before) + (more == (CLEAR,))
        return len(found.by_type[PartitionChangeRecord].rows)

    assert changes_of() < 20
    assert changes_of(is_merged=False) == 100
    assert changes_of(CLEAR) == 100
    assert changes_of(begin("t"), END_TRANSACTION) == 100
