"""Records equal those of a real controller for the same requests: types, versions, fields."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.state.controller.kafka_operations import in_any_order, operation_at
from tests.support.cluster_changes import pending
from tests.support.controller_context import write
from tests.support.metadata_logs import CLUSTERS, restored

from raftlog.records import iter_batches
from raftlog_state.controller import ChangeRequest
from raftlog_state.image import MetadataImage
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader, batch_records
from raftlog_state.records import DecodedRecord, TopicRecord, decode


def raftlog_records(
    image: MetadataImage, change: ChangeRequest, offset: int
) -> list[DecodedRecord]:
    state = pending(image, first_offset=offset)
    with state.atomic():
        write(change, state)
    return state.records


def is_ordered(records: tuple[DecodedRecord, ...]) -> bool:
    """Return whether the order of an operation's records is significant, as for a topic."""
    return isinstance(records[0].record, TopicRecord)


@pytest.mark.parametrize(("cluster", "kinds_expected"), [(CLUSTERS[1], 18), (CLUSTERS[-1], 13)])
def test_the_same_operations_give_the_same_records(
    cluster: str, kinds_expected: int, tmp_path: Path
) -> None:
    directory = restored(cluster, tmp_path)
    loader = MetadataLoader()
    compared: Counter[str] = Counter()
    for path in sorted(directory.glob("*.log")):
        for batch in iter_batches(path.read_bytes()):
            found = list(batch_records(batch))
            if batch.is_control:
                loader.append(found)
                continue
            values = [one.payload for one in found if isinstance(one.payload, bytes)]
            records = [decode(value) for value in values]
            for count, kind in compare_batch(loader, found, records):
                compared[kind] += count
    assert len(compared) == kinds_expected, compared
    assert sum(compared.values()) > 40


def compare_batch(
    loader: MetadataLoader, found: list[LogRecord], records: list[DecodedRecord]
) -> list[tuple[int, str]]:
    compared = []
    begin = 0
    while begin < len(records):
        image = loader.image
        done = operation_at(image, records, begin)
        if done.change is not None and loader.open_transaction_offset is None:
            encoded = raftlog_records(image, done.change, found[begin].offset)
            theirs = list(in_any_order(done.records))
            mine = list(in_any_order(encoded))
            assert sorted(mine) == sorted(theirs)
            if is_ordered(done.records):
                kinds = [type(one.record) for one in done.records]
                assert [type(one.record) for one in encoded] == kinds
            compared.append((1, done.change.KIND))
        end = begin + len(done.records)
        loader.append(found[begin:end])
        begin = end
    return compared
