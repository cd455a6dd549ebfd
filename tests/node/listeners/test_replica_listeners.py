"""Listeners of a replica: bounded chunks, records below a snapshot, restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from raftlog.log.reading.snapshot import SnapshotReader
from raftlog.node.raft_client import LeaderNotification
from raftlog.records.batch import RecordBatch
from tests.node.listeners.test_listener_contract import Recorder
from tests.support.one_replica import OneReplica


class Chunks(Recorder):
    """Listener that also records the number of batches of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def handle_commit(self, batches: Sequence[RecordBatch]) -> None:
        super().handle_commit(batches)
        self.sizes.append(len(batches))


def fill(one: OneReplica, count: int) -> None:
    for number in range(count):
        one.log.append(one.replica.core.epoch, [b"%03d" % number + bytes(100)])


def test_committed_batches_are_delivered_in_bounded_chunks() -> None:
    one = OneReplica(chunk_bytes_max=1_000)
    one.elect()
    fill(one, 50)
    listener = Chunks()
    one.listeners.register(listener)
    assert listener.sizes == []
    assert one.listeners.poll(), "more is pending"
    assert len(listener.sizes) == 1, "one chunk at a time"
    one.poll()
    assert listener.next_offset == one.replica.log.end_offset
    assert max(listener.sizes) <= 6
    assert one.listeners.next_offset(listener) == listener.next_offset


def test_a_batch_larger_than_a_chunk_is_delivered_alone() -> None:
    one = OneReplica(chunk_bytes_max=10)
    one.elect()
    fill(one, 3)
    listener = Chunks()
    one.register(listener)
    assert listener.sizes == [1, 1, 1, 1]


def test_a_listener_below_the_log_start_gets_the_snapshot() -> None:
    one = OneReplica(chunk_bytes_max=200)
    one.elect()
    fill(one, 10)
    slow = Chunks()
    one.listeners.register(slow)
    one.listeners.poll()
    assert slow.next_offset < 5
    one.snapshot(8)
    one.poll()
    assert [found.end_offset for found in slow.snapshots] == [8]
    assert slow.next_offset == one.replica.log.end_offset


def test_after_a_restart_everything_is_delivered_again_and_leadership_of_a_later_epoch() -> None:
    one = OneReplica()
    one.elect()
    fill(one, 3)
    again = one.restarted(is_held=True)
    listener = Recorder()
    again.register(listener)
    assert listener.values == [], "the committed end is not known yet"
    again.release()
    assert len(listener.values) == 3
    assert listener.leaders[-1].leader_id == 1
    assert listener.leaders[-1].epoch > one.replica.core.epoch


def test_a_lost_leadership_is_notified_even_if_the_node_leads_again() -> None:
    one = OneReplica()
    listener = Recorder()
    one.register(listener)
    before = [found.leader_id for found in listener.leaders]
    one.log.resign(one.replica.core.epoch)
    one.poll()
    leader_ids = [found.leader_id for found in listener.leaders]
    assert leader_ids[: len(before)] == before
    assert (before[-1], leader_ids[len(before)], leader_ids[-1]) == (1, None, 1)


def test_a_listener_may_append_in_a_notification() -> None:
    class Echo(Recorder):
        def handle_commit(self, batches: Sequence[RecordBatch]) -> None:
            super().handle_commit(batches)
            if len(self.values) < 4:
                one.log.append(one.replica.core.epoch, [b"echo"])

    one = OneReplica()
    echo = Echo()
    one.register(echo)
    one.elect()
    assert echo.values == [b"echo"] * 4


class Slow(Recorder):
    """Listener whose calls take several steps."""

    def __init__(self, step_count: int) -> None:
        super().__init__()
        self._step_count = step_count
        self.steps_left = 0

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Iterator[None]:
        return self._in_steps(lambda: super(Slow, self).handle_commit(batches))

    def handle_load_snapshot(self, snapshot: SnapshotReader) -> Iterator[None]:
        return self._in_steps(lambda: super(Slow, self).handle_load_snapshot(snapshot))

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        assert not self.steps_left, "no call before the steps are done"
        super().handle_leader_change(leader)

    def _in_steps(self, work: Callable[[], object]) -> Iterator[None]:
        assert not self.steps_left, "no call before the steps are done"
        self.steps_left = self._step_count

        def run() -> Iterator[None]:
            while self.steps_left > 1:
                self.steps_left -= 1
                yield
            work()
            self.steps_left = 0

        return run()


def test_steps_of_a_listener_are_run_one_at_a_time_before_its_next_call() -> None:
    one = OneReplica(chunk_bytes_max=200)
    slow, fast = Slow(3), Recorder()
    one.elect()
    fill(one, 4)
    one.listeners.register(slow)
    one.listeners.register(fast)
    poll_count = 0
    while one.listeners.poll():
        poll_count += 1
        assert one.listeners.next_offset(slow) <= one.listeners.next_offset(fast)
    assert slow.values == fast.values
    assert len(slow.values) == 4
    assert slow.leaders == fast.leaders
    assert slow.next_offset == one.listeners.next_offset(slow) == one.replica.log.end_offset
    assert poll_count > 4 * 3, "the call, and its steps"


def test_a_leader_change_and_a_snapshot_wait_for_the_steps_before_them() -> None:
    one = OneReplica(chunk_bytes_max=200)
    slow = Slow(5)
    one.elect()
    fill(one, 10)
    one.listeners.register(slow)
    one.listeners.poll()
    assert slow.steps_left
    one.snapshot(8)
    one.log.resign(one.replica.core.epoch)
    one.listeners.poll()
    assert slow.leaders == []
    one.poll()
    assert [found.end_offset for found in slow.snapshots] == [8]
    assert slow.leaders[-1].epoch == one.replica.core.epoch
    assert slow.next_offset == one.replica.log.end_offset


def test_a_shutdown_ends_the_steps_of_a_listener() -> None:
    one = OneReplica()
    slow = Slow(5)
    one.elect()
    one.listeners.register(slow)
    one.listeners.poll()
    one.shut_down()
    assert slow.steps_left > 1
    assert slow.values == []
