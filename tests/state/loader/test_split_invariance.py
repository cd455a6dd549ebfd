"""Changes and state do not depend on how a log is split into calls."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.metadata_logs import LOGS, MetadataLog, flat, metadata_log

from raftlog_state.image import Entity, MetadataImage
from raftlog_state.image.delta import RecordChanges, RowChange
from raftlog_state.loader.metadata_loader import MetadataLoader

THREE_NODES = LOGS / "three-nodes-4.3.1" / "node-100" / "__cluster_metadata-0"
RECORDS = 1_200
"""The start of the log has its transaction, every kind of change and two epochs."""


@cache
def log() -> MetadataLog:
    return metadata_log(THREE_NODES)


@cache
def whole() -> tuple[list[tuple[int, int, str, RowChange]], MetadataImage]:
    loader = MetadataLoader()
    returned = loader.append(log().records[:RECORDS])
    return flat(returned), loader.image


def cuts_of(places: list[int]) -> list[tuple[int, int]]:
    ends = sorted({*places, RECORDS})
    return list(zip([0, *ends], ends, strict=False))


@pytest.mark.slow
@given(st.lists(st.integers(1, RECORDS - 1), max_size=12))
@settings(max_examples=25)
def test_any_split_gives_the_same_changes_and_state(places: list[int]) -> None:
    changes, image = whole()
    loader = MetadataLoader()
    returned: list[RecordChanges] = []
    for start, end in cuts_of(places):
        returned += loader.append(log().records[start:end])
    assert flat(returned) == changes
    assert loader.image == image


@pytest.mark.slow
@given(st.lists(st.integers(1, RECORDS - 1), max_size=6))
@settings(max_examples=15)
def test_a_loader_can_be_rebuilt_from_rows_at_any_offset(places: list[int]) -> None:
    changes, image = whole()
    returned: list[RecordChanges] = []
    state = MetadataImage.empty()
    for start, end in cuts_of([place for place in places if not 3 <= place < 12]):
        assert state.offset == start - 1
        loader = MetadataLoader(state)
        returned += loader.append(log().records[start:end])
        rows = [row for entity in Entity for row in loader.image.rows(entity)]
        state = MetadataImage.from_rows(
            rows,
            offset=loader.image.offset,
            leader_epoch=loader.image.leader_epoch,
            quorum=loader.image.quorum,
        )
    assert flat(returned) == changes
    assert state == image
    assert state.digest() == image.digest()


@pytest.mark.slow
@given(st.lists(st.integers(1, RECORDS - 1), max_size=8))
@settings(max_examples=10)
def test_the_digest_of_an_updated_state_is_that_of_its_rows(places: list[int]) -> None:
    loader = MetadataLoader()
    for start, end in cuts_of(places):
        loader.append(log().records[start:end])
        image = loader.image
        image.digest()  # from here on it is updated, not recomputed
        rows = [row for entity in Entity for row in image.rows(entity)]
        again = MetadataImage.from_rows(rows, offset=image.offset, leader_epoch=1)
        assert image.digest() == again.digest()


def test_one_record_a_call_gives_the_same_as_one_call() -> None:
    changes, image = whole()
    loader = MetadataLoader()
    returned: list[RecordChanges] = []
    for record in log().records[:RECORDS]:
        returned += loader.append([record])
    assert flat(returned) == changes
    assert loader.image == image


def test_columns_give_the_same_as_records() -> None:
    changes, image = whole()
    loader = MetadataLoader()
    records = log().records[:RECORDS]
    returned = loader.append_columns(
        [record.offset for record in records],
        [record.leader_epoch for record in records],
        [record.timestamp_ms for record in records],
        [record.payload for record in records],
    )
    assert flat(returned) == changes
    assert loader.image == image


@pytest.mark.parametrize("place", range(3, 12))
def test_a_split_inside_a_transaction_shows_the_state_before_it(place: int) -> None:
    loader = MetadataLoader()
    before = loader.append(log().records[:place])
    assert loader.open_transaction_offset == (3 if place > 3 else None)
    assert loader.image.offset == 2
    assert loader.next_offset == place
    assert flat(before + loader.append(log().records[place:RECORDS])) == whole()[0]
