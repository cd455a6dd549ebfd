"""Cases of Kafka's ``OffsetControlManagerTest``, ``ActivationRecordsGeneratorTest`` and of
``QuorumControllerTest`` about the log; the docstrings name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.controllers import Controllers, bootstrap, write

from raftlog.records.batch import RecordBatch, read_batch
from raftlog.records.record import NewRecord
from raftlog.types import SnapshotId
from raftlog_state.controller import CreateTopic, SetConfig
from raftlog_state.controller.offset_control import OffsetControl, RecordNotAppliedError
from raftlog_state.errors import OffsetGapError
from raftlog_state.image import ConfigRow
from raftlog_state.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    DecodedRecord,
    EndTransactionRecord,
    MetadataRecord,
    NoOpRecord,
    decode,
    encode,
)

SNAPSHOT = SnapshotId(epoch=300, end_offset=4_001)
BEGIN, END, ABORT = BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()


def batch(
    base_offset: int, *records: MetadataRecord, epoch: int = 1, at_ms: int = 7
) -> RecordBatch:
    """Return a committed batch of records; without any, of one that changes nothing."""
    values = [encode(DecodedRecord(0, one)) for one in records or (NoOpRecord(),)]
    new = NewRecordBatch(
        records=tuple(NewRecord(None, value) for value in values), base_timestamp_ms=at_ms
    )
    found = read_batch(encode_batch(new, base_offset=base_offset, leader_epoch=epoch))
    assert isinstance(found, RecordBatch)
    return found


@dataclass(frozen=True)
class Snapshot:
    snapshot_id: SnapshotId
    content: tuple[RecordBatch, ...]

    def batches(self) -> Sequence[RecordBatch]:
        return self.content


def config(name: str, value: str = "1") -> ConfigRecord:
    return ConfigRecord(resource_type=4, name=name, value=value)


def configs(offsets: OffsetControl) -> list[str]:
    return [row.name for row in offsets.state.rows_of(ConfigRow)]


def epochs(offsets: OffsetControl) -> tuple[int, ...]:
    return offsets.state.registry.epochs


def test_nothing_is_replayed_at_first() -> None:
    """OffsetControlManagerTest.testInitialValues"""
    offsets = OffsetControl()
    assert epochs(offsets) == (-1,)
    assert (offsets.last_committed.offset, offsets.last_stable.offset) == (-1, -1)
    assert (offsets.next_write_offset, offsets.last_applied_offset) == (None, -1)
    assert offsets.open_transaction_offset is None


def test_an_active_controller_writes_after_the_committed_log() -> None:
    """OffsetControlManagerTest.testActivate"""
    offsets = OffsetControl()
    offsets.handle_commit(batch(0, config("a")))
    offsets.activate(1)
    assert (offsets.next_write_offset, offsets.last_applied_offset) == (1, 0)
    assert epochs(offsets) == (0,)


def test_an_active_controller_is_not_activated() -> None:
    """OffsetControlManagerTest.testActivateFailsIfAlreadyActive"""
    offsets = OffsetControl()
    offsets.activate(0)
    with pytest.raises(AssertionError, match="it is active already"):
        offsets.activate(0)


@pytest.mark.parametrize("offset", [-2, 3])
def test_a_controller_is_activated_when_it_is_caught_up(offset: int) -> None:
    """OffsetControlManagerTest.testActivateFailsIfNewNextWriteOffsetIsNegative"""
    with pytest.raises(AssertionError, match="it is not caught up"):
        OffsetControl().activate(offset)


def test_a_deactivated_controller_has_the_committed_state() -> None:
    """OffsetControlManagerTest.testActivateAndDeactivate"""
    offsets = OffsetControl()
    offsets.handle_commit(batch(0, config("a")))
    offsets.activate(1)
    offsets.state.put(ConfigRow(resource_type=4, resource_name="", name="b", value="1"))
    offsets.schedule_append(1)
    assert configs(offsets) == ["a", "b"]
    offsets.deactivate()
    assert offsets.next_write_offset is None
    assert configs(offsets) == ["a"]
    assert epochs(offsets) == (0,)


def test_a_standby_is_not_deactivated() -> None:
    """OffsetControlManagerTest.testDeactivateFailsIfNotActive"""
    with pytest.raises(AssertionError, match="it is not active"):
        OffsetControl().deactivate()


def test_a_committed_batch_is_replayed() -> None:
    """OffsetControlManagerTest.testHandleCommitBatch"""
    offsets = OffsetControl()
    offsets.handle_commit(batch(0, config("a"), config("b"), epoch=200, at_ms=3_000))
    last = offsets.last_committed
    assert (last.offset, last.leader_epoch, last.timestamp_ms) == (1, 200, 3_000)
    assert offsets.last_stable == last
    assert (epochs(offsets), configs(offsets)) == ((1,), ["a", "b"])
    with pytest.raises(OffsetGapError):
        offsets.handle_commit(batch(5))


def test_the_state_of_a_write_is_registered_until_it_is_committed() -> None:
    """OffsetControlManagerTest.testHandleScheduleAtomicAppend"""
    offsets = OffsetControl()
    offsets.activate(0)
    offsets.schedule_append(2)
    assert (offsets.next_write_offset, offsets.last_applied_offset) == (3, 2)
    assert (offsets.last_stable.offset, offsets.last_committed.offset) == (-1, -1)
    assert epochs(offsets) == (-1, 2)
    offsets.handle_commit(batch(0, NoOpRecord(), NoOpRecord(), NoOpRecord()))
    assert (offsets.last_stable.offset, offsets.last_committed.offset) == (2, 2)
    assert epochs(offsets) == (2,)


def test_a_snapshot_replaces_the_state() -> None:
    """OffsetControlManagerTest.testHandleLoadSnapshot"""
    offsets = OffsetControl()
    offsets.handle_commit(batch(0, config("a")))
    content = (batch(0, config("b"), epoch=300, at_ms=3_456),)
    offsets.load_snapshot(Snapshot(SNAPSHOT, content))
    assert (epochs(offsets), configs(offsets)) == ((4_000,), ["b"])
    last = offsets.last_committed
    assert (last.offset, last.leader_epoch) == (4_000, 300)
    assert (offsets.last_stable, offsets.next_write_offset) == (last, None)
    with pytest.raises(OffsetGapError):
        offsets.load_snapshot(Snapshot(SnapshotId(epoch=300, end_offset=1), content))


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(
            BEGIN, id="OffsetControlManagerTest.testBeginTransactionRecordNotAllowedInSnapshot"
        ),
        pytest.param(
            END, id="OffsetControlManagerTest.testEndTransactionRecordNotAllowedInSnapshot"
        ),
        pytest.param(
            ABORT, id="OffsetControlManagerTest.testAbortTransactionRecordNotAllowedInSnapshot"
        ),
    ],
)
def test_a_snapshot_has_no_transactions(record: MetadataRecord) -> None:
    offsets = OffsetControl()
    content = (batch(0, config("a"), record),)
    with pytest.raises(Exception, match="snapshot"):
        offsets.load_snapshot(Snapshot(SNAPSHOT, content))
    assert configs(offsets) == []


@pytest.mark.parametrize("is_aborted", [False, True])
def test_the_stable_state_is_that_before_an_open_transaction(is_aborted: bool) -> None:
    """OffsetControlManagerTest.testReplayTransaction"""
    offsets = OffsetControl()
    offsets.handle_commit(batch(0, config("a"), BEGIN, config("b")))
    assert offsets.open_transaction_offset == 1
    assert (offsets.last_committed.offset, offsets.last_stable.offset) == (2, 0)
    assert (epochs(offsets), configs(offsets)) == ((0,), ["a"])
    offsets.handle_commit(batch(3, config("c"), ABORT if is_aborted else END))
    assert offsets.open_transaction_offset is None
    assert (offsets.last_stable.offset, epochs(offsets)) == (4, (4,))
    assert configs(offsets) == (["a"] if is_aborted else ["a", "b", "c"])
    with pytest.raises(RecordNotAppliedError):
        offsets.handle_commit(batch(5, END))


def test_a_log_is_empty_until_a_record_is_stable() -> None:
    """As of Kafka's LogReplayTracker: an aborted transaction is of no controller that has begun."""
    offsets = OffsetControl()
    assert offsets.is_empty
    offsets.handle_commit(batch(0, BEGIN, config("a"), ABORT))
    offsets.handle_commit(batch(3, BEGIN, config("a")))
    assert offsets.is_empty
    offsets.handle_commit(batch(5, END))
    assert not offsets.is_empty
    alone = OffsetControl()
    alone.handle_commit(batch(0, NoOpRecord()))
    assert not alone.is_empty


def test_a_snapshot_ends_an_open_transaction() -> None:
    """OffsetControlManagerTest.testLoadSnapshotClearsTransactionalState"""
    offsets = OffsetControl()
    offsets.handle_commit(batch(0, BEGIN, config("a")))
    offsets.load_snapshot(Snapshot(SNAPSHOT, (batch(0, config("b")),)))
    assert offsets.open_transaction_offset is None
    offsets.handle_commit(batch(4_001, config("c")))
    assert configs(offsets) == ["b", "c"]


# --- claims ---------------------------------------------------------------------------------------


def log_records(env: Controllers) -> list[object]:
    batches = (one for one in env.shared.batches if not one.is_control)
    values = (record.value for one in batches for record in one.records())
    return [decode(value).record for value in values if value is not None]


def test_a_claim_of_a_log_with_records_writes_nothing() -> None:
    """QuorumControllerTest.testActivationRecordsNonEmptyLog"""
    env = Controllers()
    write(env.elect(1), *bootstrap())
    env.shared.deliver()
    count = len(log_records(env))
    assert env.elect(2).active_epoch == env.shared.epoch
    assert len(log_records(env)) == count


def test_a_claim_aborts_an_open_transaction() -> None:
    """QuorumControllerTest.testActivationRecordsPartialTransaction"""
    env = Controllers()
    write(env.elect(1), *bootstrap())
    env.shared.deliver()
    env.shared.append(
        1, env.shared.epoch, [encode(DecodedRecord(0, one)) for one in (BEGIN, config("a"))], None
    )
    active = env.elect(2)
    assert isinstance(log_records(env)[-1], AbortTransactionRecord)
    assert active.image().find(ConfigRow, 4, "", "a") is None
    done = write(active, SetConfig(resource_type=4, resource_name="", name="log.dir", value="/a"))
    env.shared.deliver()
    assert (done.is_done, done.error) == (True, None)
    env.assert_states_equal_a_replay()


def test_a_snapshot_of_the_log_has_its_state() -> None:
    """QuorumControllerTest.testSnapshotSaveAndLoad"""
    env = Controllers()
    active = env.elect(1)
    write(active, *bootstrap())
    write(active, CreateTopic(topic="foo", partitions=3, replication_factor=2))
    env.shared.deliver()
    env.snapshot(active.image())
    started = env.start(3)
    env.shared.deliver()
    assert started.image().same_rows(active.image())
    assert started.state.registration_offset(1) == active.image().offset
    assert active.state.registration_offset(1) < active.image().offset
