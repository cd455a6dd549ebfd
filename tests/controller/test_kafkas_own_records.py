"""For what a real controller was asked, our records are its records: types, versions, fields."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from tests.support.kafka_operations import in_any_order, operation_at
from tests.support.metadata_logs import CLUSTERS, restored

from raftlog.records import iter_batches
from raftlog_state.controller import Change
from raftlog_state.controller.draft import Draft
from raftlog_state.controller.writing import write
from raftlog_state.fold import Fold, LogRecord, batch_records
from raftlog_state.image import MetadataImage
from raftlog_state.records import DecodedRecord, TopicRecord, decode


def ours(image: MetadataImage, change: Change, offset: int) -> list[DecodedRecord]:
    draft = Draft(image, first_offset=offset, chance=random.Random(1))
    with draft.whole_change():
        write(change, draft)
    return draft.records


def is_ordered(records: tuple[DecodedRecord, ...]) -> bool:
    """Whether the order of an operation's records means something: a topic's do."""
    return isinstance(records[0].record, TopicRecord)


@pytest.mark.parametrize(("cluster", "kinds_expected"), [(CLUSTERS[1], 18), (CLUSTERS[-1], 13)])
def test_the_same_operations_give_the_same_records(
    cluster: str, kinds_expected: int, tmp_path: Path
) -> None:
    directory = restored(cluster, tmp_path)
    fold = Fold()
    compared: Counter[str] = Counter()
    for path in sorted(directory.glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            found = list(batch_records(batch))
            if batch.is_control:
                fold.append(found)
                continue
            values = [one.payload for one in found if isinstance(one.payload, bytes)]
            records = [decode(value) for value in values]
            for count, kind in compare_batch(fold, found, records):
                compared[kind] += count
    assert len(compared) == kinds_expected, compared
    assert sum(compared.values()) > 40


def compare_batch(
    fold: Fold, found: list[LogRecord], records: list[DecodedRecord]
) -> list[tuple[int, str]]:
    compared = []
    begin = 0
    while begin < len(records):
        image = fold.image
        done = operation_at(image, records, begin)
        if done.change is not None and fold.open_transaction_offset is None:
            made = ours(image, done.change, found[begin].offset)
            theirs = list(in_any_order(done.records))
            mine = list(in_any_order(made))
            assert sorted(mine) == sorted(theirs)
            if is_ordered(done.records):
                kinds = [type(one.record) for one in done.records]
                assert [type(one.record) for one in made] == kinds
            compared.append((1, done.change.KIND))
        end = begin + len(done.records)
        fold.append(found[begin:end])
        begin = end
    return compared
