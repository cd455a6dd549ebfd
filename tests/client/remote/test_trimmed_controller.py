"""The log of a controller that was deleted up to a snapshot, and elections right at its start."""

from __future__ import annotations

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.scripted_controller import Controller

import raftlog
from raftlog.errors import QuorumUnavailableError
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.records.record import NewRecord
from raftlog.types import SnapshotId

START = 1292


def batch(base_offset: int, value: bytes, epoch: int) -> bytes:
    new = NewRecordBatch(records=(NewRecord(None, value),), base_timestamp_ms=1000)
    return encode_batch(new, base_offset=base_offset, leader_epoch=epoch)


@pytest.mark.parametrize("election", [START, START + 1, START + 2])
@pytest.mark.parametrize(
    "snapshots",
    [
        (SnapshotId(epoch=1, end_offset=START),),
        (SnapshotId(epoch=1, end_offset=START), SnapshotId(epoch=7, end_offset=START + 3)),
        (SnapshotId(epoch=5, end_offset=START), SnapshotId(epoch=7, end_offset=START + 3)),
    ],
    ids=["one snapshot", "two snapshots", "an epoch in the middle"],
)
def test_a_log_is_read_from_its_start_after_an_election(
    election: int, snapshots: tuple[SnapshotId, ...]
) -> None:
    before = snapshots[0].epoch
    epochs = [7 if offset >= election else before for offset in range(START, START + 3)]
    values = [b"a", b"b", b"c"]
    data = b"".join(
        batch(START + at, value, epoch)
        for at, (value, epoch) in enumerate(zip(values, epochs, strict=True))
    )
    cache = EpochCache().assign_all((epoch, START + at) for at, epoch in enumerate(epochs))
    controller = Controller(data, START + 3, leader_epoch=7, epochs=cache, snapshots=snapshots)
    with controller.node as node:
        log = raftlog.follow(node.address, timeout_ms=2_000)
        assert log.log_start_offset == START
        found = [record.value for one in log.batches(START, START + 3) for record in one.records()]
    assert found == values


def test_the_search_for_the_epoch_before_the_log_start_ends_at_the_timeout() -> None:
    """It takes 31 requests, each of which the client sends again after 10 to 20 ms."""
    snapshots = (
        SnapshotId(epoch=1, end_offset=START),
        SnapshotId(epoch=2**31 - 2, end_offset=START + 3),
    )
    cache = EpochCache().assign_all([(2**31 - 2, START)])
    controller = Controller(
        batch(START, b"a", 2**31 - 2),
        START + 1,
        leader_epoch=2**31 - 2,
        epochs=cache,
        snapshots=snapshots,
        is_often_busy=True,
    )
    with controller.node as node:
        log = raftlog.follow(node.address, timeout_ms=250)
        with pytest.raises(QuorumUnavailableError):
            list(log.batches(START, START + 1))
