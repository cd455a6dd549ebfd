"""Contract of a state machine's listener, on a real replica and over the shared log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from raftlog.errors import FutureEpochError, NotLeaderError, UnexpectedEndOffsetError
from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.node.raft_client import LeaderNotification, Steps
from raftlog.records.batch import RecordBatch
from raftlog.types import SnapshotId
from tests.node.listeners.hosts import Host, ReplicaHost, SharedHost


class Recorder:
    """Listener that records its notifications, and checks each against the contract."""

    def __init__(self) -> None:
        self.next_offset = 0
        self.values: list[bytes | None] = []
        self.control_count = 0
        self.leaders: list[LeaderNotification] = []
        self.snapshots: list[SnapshotId] = []
        self.shutdown_count = 0

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        assert batches, "a notification has batches"
        assert not self.shutdown_count, "no notification follows the shutdown"
        for batch in batches:
            assert batch.base_offset == self.next_offset, "in order, once, without a gap"
            self.next_offset = batch.next_offset
            self.control_count += batch.is_control
            if not batch.is_control:
                self.values += [record.value for record in batch.records()]
        return None

    def handle_load_snapshot(self, snapshot: SnapshotReader) -> Steps:
        assert snapshot.snapshot_id.end_offset > self.next_offset
        self.snapshots.append(snapshot.snapshot_id)
        self.next_offset = snapshot.snapshot_id.end_offset
        return None

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        assert not self.shutdown_count, "no notification follows the shutdown"
        if self.leaders:
            assert leader.epoch >= self.leaders[-1].epoch, "epochs never decrease"
        self.leaders.append(leader)

    def begin_shutdown(self) -> None:
        self.shutdown_count += 1


@pytest.fixture(params=[ReplicaHost, SharedHost])
def host(request: pytest.FixtureRequest) -> Host:
    maker: Callable[[], Host] = request.param
    return maker()


def listening(host: Host) -> Recorder:
    recorder = Recorder()
    host.register(recorder)
    return recorder


def append(host: Host, *values: bytes) -> int:
    offset = host.log.append(host.epoch, values)
    host.settle()
    return offset


def test_a_listener_receives_committed_batches_in_order_and_once(host: Host) -> None:
    early = listening(host)
    host.elect()
    assert append(host, b"a", b"b") == 1
    assert append(host, b"c") == 3
    late = listening(host)
    assert early.values == late.values == [b"a", b"b", b"c"]
    assert early.control_count == late.control_count == 1
    assert early.next_offset == late.next_offset == host.end_offset == 4


def test_uncommitted_batches_are_not_delivered(host: Host) -> None:
    host.elect()
    append(host, b"a")
    recorder = listening(host)
    host.hold()
    append(host, b"b")
    assert recorder.values == [b"a"]
    host.release()
    assert recorder.values == [b"a", b"b"]


def test_leadership_is_notified_after_all_batches_of_earlier_epochs(host: Host) -> None:
    recorder = listening(host)
    host.elect()
    first = recorder.leaders[-1]
    assert (first.leader_id, first.end_offset) == (1, 1)
    assert recorder.next_offset == 1
    append(host, b"a")
    host.hold()
    host.log.resign(first.epoch)
    host.settle()
    assert recorder.leaders[-1].leader_id is None, "notified immediately"
    assert recorder.leaders[-1].end_offset == host.end_offset, "as each leader change"
    host.elect()
    assert recorder.leaders[-1].leader_id is None, "the first record of its epoch is not committed"
    host.release()
    last = recorder.leaders[-1]
    assert (last.leader_id, last.end_offset) == (1, host.end_offset)
    assert last.epoch > first.epoch
    assert (recorder.next_offset, recorder.control_count) == (host.end_offset, 2)


def test_an_append_has_the_epoch_in_which_its_author_leads(host: Host) -> None:
    recorder = listening(host)
    host.elect()
    old = host.epoch
    with pytest.raises(FutureEpochError):
        host.log.append(old + 1, [b"a"])
    host.log.resign(old)
    host.settle()
    with pytest.raises(NotLeaderError):
        host.log.append(old, [b"b"])
    host.elect()
    with pytest.raises(NotLeaderError):
        host.log.append(old, [b"c"])
    append(host, b"d")
    assert recorder.values == [b"d"]


def test_an_append_may_require_its_offset(host: Host) -> None:
    recorder = listening(host)
    host.elect()
    end_offset = recorder.leaders[-1].end_offset
    assert host.log.append(host.epoch, [b"a"], required_base_offset=end_offset) == end_offset
    with pytest.raises(UnexpectedEndOffsetError) as refused:
        host.log.append(host.epoch, [b"b"], required_base_offset=end_offset)
    assert refused.value.log_end_offset == end_offset + 1
    host.settle()
    assert recorder.values == [b"a"]


def test_a_late_listener_starts_with_the_newest_snapshot(host: Host) -> None:
    host.elect()
    early = listening(host)
    for value in (b"a", b"b", b"c"):
        append(host, value)
    host.delete_before(3)
    append(host, b"d")
    late = listening(host)
    assert [one.end_offset for one in late.snapshots] == [3]
    assert late.values == [b"c", b"d"]
    assert (early.values, early.snapshots) == ([b"a", b"b", b"c", b"d"], [])
    assert late.leaders[-1] == LeaderNotification(host.epoch, 1, host.end_offset)


def test_shutdown_is_notified_once_and_is_the_last_notification(host: Host) -> None:
    recorder = listening(host)
    host.elect()
    append(host, b"a")
    host.shut_down()
    host.settle()
    assert recorder.shutdown_count == 1


def test_resigning_an_earlier_epoch_has_no_effect(host: Host) -> None:
    recorder = listening(host)
    host.elect()
    host.log.resign(host.epoch - 1)
    host.settle()
    assert recorder.leaders[-1].leader_id == 1
    append(host, b"a")
    assert recorder.values == [b"a"]
