"""Invariants of the loader: verified after every call; a violated one closes it for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support.metadata_logs import at, replayed, state_after

from raftlog.types import SnapshotId
from raftlog_state.errors import OffsetGapError, ReplayError, StateInvariantError
from raftlog_state.image import Entity
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

A, B, C = "muSNo3lITFSJf4sY_teOaw", "IIzV3j_LQFClOqhX3gQ9wA", "o8mTr1KySfu2a3x_FCKC-A"
FIRST = TopicRecord(name="first", topic_id=A)
SECOND = TopicRecord(name="second", topic_id=B)
THIRD = TopicRecord(name="third", topic_id=C)
BEGIN = BeginTransactionRecord(name=None)


def assert_closed(loader: MetadataLoader, reason: str) -> None:
    for use in (
        lambda: loader.image,
        lambda: loader.append(at(loader.next_offset, THIRD)),
        lambda: loader.append_columns([], [], [], []),
        lambda: loader.bootstrap(SnapshotId(epoch=9, end_offset=99), []),
    ):
        with pytest.raises(StateInvariantError, match=reason):
            use()


def then(records: list[LogRecord], corrupt: Callable[[], object]) -> Iterator[LogRecord]:
    """Yield the records, then change the loader as a bug would."""
    yield from records
    corrupt()


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("_next_offset", 0, "the next offset fell from 1 to 0"),
        ("_leader_epoch", 0, "the leader epoch fell from 1 to 0"),
        ("_visible", (0, 1, 0), "records up to offset 0 are visible, expected 1"),
        ("_visible", (2, 1, 0), "records up to offset 2 are visible, expected 1"),
        ("_visible", (1, 2, 0), "visible leader epoch 2 is above the last one, 1"),
    ],
)
def test_a_wrong_position_closes_the_loader(name: str, value: object, reason: str) -> None:
    loader = replayed(FIRST)
    with pytest.raises(StateInvariantError, match=reason):
        loader.append(then(at(1, SECOND), lambda: setattr(loader, name, value)))
    assert_closed(loader, reason)


def test_visible_records_of_an_open_transaction_close_the_loader() -> None:
    loader = replayed(FIRST)
    with pytest.raises(StateInvariantError, match="up to offset 2 are visible, expected 0"):
        loader.append(then(at(1, BEGIN, SECOND), lambda: setattr(loader, "_visible", (2, 1, 0))))


def test_a_change_that_is_not_returned_closes_the_loader() -> None:
    loader, row = replayed(FIRST), state_after(SECOND).rows(Entity.TOPIC)[0]
    with pytest.raises(StateInvariantError, match="row changes that were not collected: 1"):
        loader.append(then(at(1, THIRD), lambda: loader._delta.put(row)))


@pytest.mark.parametrize("offset", [1, 2])
def test_an_input_that_appends_to_its_own_loader_closes_it(offset: int) -> None:
    loader = replayed(FIRST)

    def records() -> Iterator[LogRecord]:
        loader.append(at(1, SECOND))
        yield from at(offset, THIRD)

    with pytest.raises(StateInvariantError, match="changes that no call returned: 1"):
        loader.append(records())
    assert_closed(loader, "no call returned")


def test_a_change_at_a_visible_offset_closes_the_loader() -> None:
    loader = replayed(FIRST, SECOND)
    changes = loader.append(at(2, THIRD))
    before = loader._savepoint()
    loader._collected_count += 1
    with pytest.raises(StateInvariantError, match="at offsets 2 to 2, expected 3 to 2"):
        loader._check_invariants(before, changes)


def test_an_image_without_a_created_row_closes_the_loader() -> None:
    loader = replayed(FIRST)
    loader.append(at(1, SECOND, THIRD, RemoveTopicRecord(topic_id=A)))
    loader._delta._written[Entity.TOPIC].popitem()
    with pytest.raises(StateInvariantError, match="has 1 rows more, expected 2"):
        _ = loader.image
    assert_closed(loader, "has 1 rows more, expected 2")


def test_a_failed_call_is_checked_too() -> None:
    loader = replayed(FIRST)

    def records() -> Iterator[LogRecord]:
        yield from at(1, SECOND)
        loader._collected_count += 1
        raise OSError("the disk failed")

    with pytest.raises(StateInvariantError, match="changes that no call returned: 1"):
        loader.append(records())
    assert_closed(loader, "no call returned")


# --- snapshots ------------------------------------------------------------------------------------


def test_a_snapshot_that_ends_inside_the_open_transaction_is_refused() -> None:
    loader = replayed(FIRST, BEGIN, SECOND, THIRD)
    with pytest.raises(OffsetGapError, match="expected offset 4 next, got offset 3"):
        loader.bootstrap(SnapshotId(epoch=1, end_offset=3), at(0, FIRST))
    loader.append(at(4, EndTransactionRecord()))
    assert loader.image.same_rows(state_after(FIRST, SECOND, THIRD))


def test_a_snapshot_of_an_earlier_leader_epoch_is_refused() -> None:
    loader = MetadataLoader()
    loader.append(at(0, FIRST, epoch=3))
    with pytest.raises(ReplayError, match="leader epoch 2 is lower than the previous 3"):
        loader.bootstrap(SnapshotId(epoch=2, end_offset=9), at(0, FIRST))
    assert (loader.image.offset, loader.image.leader_epoch) == (0, 3)


@pytest.mark.parametrize("end_offset", [2, 50])
@pytest.mark.parametrize("error", [None, OSError("the disk failed")])
def test_an_input_of_a_snapshot_that_appends_to_its_loader_closes_it(
    end_offset: int, error: OSError | None
) -> None:
    loader = replayed(FIRST)

    def records() -> Iterator[LogRecord]:
        loader.append(at(1, SECOND, THIRD))
        yield from at(0, FIRST)
        if error is not None:
            raise error

    reason = "records from offset 1 on were appended while a snapshot was read"
    with pytest.raises(StateInvariantError, match=reason):
        loader.bootstrap(SnapshotId(epoch=1, end_offset=end_offset), records())
    assert_closed(loader, reason)
