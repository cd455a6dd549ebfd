"""Node without I/O: what it does with its outputs and with what waits for it when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from raftlog.append import AppendRequest, Failed
from raftlog.errors import AppendUnknownError, DiskFailedError, LogClosedError, LogLockedError
from raftlog.log.writing.properties import LogConfig
from raftlog.node.raft_client import LeaderNotification, Steps
from raftlog.node.raft_node import CleaningRefused, LogCleaned, Notification
from raftlog.quorum.effects import RoleChanged
from raftlog.quorum.messages import Response, VersionsRequest
from raftlog.quorum.roles import Leader, Resigned
from raftlog.records.batch import RecordBatch
from tests.node.apis.cluster import Cluster
from tests.node.listeners.test_listener_contract import Recorder
from tests.support.one_replica import TIME_MS, OneReplica

FAILURE: Final = DiskFailedError(path="/data", reason="a failed write")


class EndsWhenElected(OneReplica):
    """Node that is ended by the notification of its election, in the middle of a step."""

    def notify(self, notification: Notification) -> None:
        super().notify(notification)
        if isinstance(notification, RoleChanged) and notification.new is Leader:
            self.raft_node.end()


def test_a_node_that_ends_within_a_step_has_no_further_outputs() -> None:
    one = EndsWhenElected()
    one.elect()
    assert one.replica.log.end_offset == 1, "the step itself is complete"
    last = one.notifications[-1]
    assert isinstance(last, RoleChanged)
    assert last.new is Leader
    assert one.raft_node.counts.syncs == 0


def test_appends_that_are_not_submitted_have_an_unknown_outcome_when_the_node_ends() -> None:
    one = OneReplica()
    one.elect()
    end_offset = one.replica.log.end_offset
    request = AppendRequest(records=(b"a",), deadline_ms=1e12)
    one.raft_node.append(request, lambda result: one.results.update({request: result}))
    assert not one.results
    one.raft_node.end("it stops")
    result = one.results[request]
    assert isinstance(result, Failed)
    assert isinstance(result.error, AppendUnknownError)
    assert result.error.reason == "it stops"
    one.raft_node.submit()
    assert one.replica.log.end_offset == end_offset, "it is not written later"


def test_a_node_that_has_ended_accepts_no_input() -> None:
    one = OneReplica()
    one.elect()
    one.raft_node.end()
    notified_count, end_offset = len(one.notifications), one.replica.log.end_offset
    replies: list[Response] = []
    one.raft_node.receive(VersionsRequest(), replies.append)
    one.pass_time(10**6)
    request = AppendRequest(records=(b"a",), deadline_ms=1e12)
    one.submit(request)
    assert isinstance(one.results[request], Failed)
    assert not replies
    assert one.raft_node.next_deadline_ms is None
    assert (len(one.notifications), one.replica.log.end_offset) == (notified_count, end_offset)


class Failing(OneReplica):
    """Node whose failures are recorded."""

    def __init__(self) -> None:
        self.errors: Final[list[Exception]] = []
        super().__init__()

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class FailsInItsCall(Recorder):
    """Listener that ends its node by a failed append, which it ignores or raises."""

    def __init__(self, one: Failing, *, raises: bool) -> None:
        super().__init__()
        self._one = one
        self._raises = raises

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        super().handle_commit(batches)
        self._one.raft_node.fail(FAILURE)
        if self._raises:
            raise LogClosedError(reason="the replica has stopped")
        return None


@pytest.mark.parametrize("raises", [False, True])
def test_no_listener_is_called_after_the_node_has_failed_in_the_call_of_one(raises: bool) -> None:
    one = Failing()
    one.elect()
    failing, other = FailsInItsCall(one, raises=raises), Recorder()
    one.listeners.register(failing)
    one.listeners.register(other)
    one.raft_node.deliver()
    assert failing.next_offset == 1
    one.shut_down()
    for listener in (failing, other):
        assert not listener.leaders
        assert not listener.shutdown_count
    assert not other.next_offset
    assert one.errors == [FAILURE], "the first error is the reason"


# --- time -----------------------------------------------------------------------------------------


class Fetch:
    """Delayed fetch that is never due."""

    principal_name = "client"
    awaited_offset = 2**62

    def __init__(self, complete: Callable[[], None]) -> None:
        self.complete: Final = complete

    def is_due(self) -> bool:
        return False


def pending_append(value: bytes = b"a") -> AppendRequest:
    return AppendRequest(records=(value,), deadline_ms=1e12)


def test_all_that_waits_for_time_ends_at_the_one_deadline_of_the_node() -> None:
    async def check() -> None:
        one = OneReplica(log_config=LogConfig(linger_ms=40))
        one.elect()
        one.is_held = True
        node, begin_ms = one.raft_node, one.raft_node.now_ms()
        assert node.next_deadline_ms is None
        ended: list[str] = []
        node.append(pending_append(), lambda _: ended.append("append"), timeout_ms=300)
        node.delay(Fetch(lambda: ended.append("fetch")), 200)
        waiting = asyncio.ensure_future(node.wait_until(lambda: False, timeout_ms=100))
        await asyncio.sleep(0)
        found: list[tuple[int, int, str, tuple[str, ...]]] = []
        while (deadline_ms := node.next_deadline_ms) is not None:
            before = len(ended), waiting.done(), node.unsubmitted_count
            one.pass_time(deadline_ms - 1)
            await asyncio.sleep(0)
            assert before == (len(ended), waiting.done(), node.unsubmitted_count)
            one.pass_time(deadline_ms)
            await asyncio.sleep(0)
            state = "waits" if not waiting.done() else "ended"
            found.append((deadline_ms - begin_ms, node.unsubmitted_count, state, tuple(ended)))
        assert found == [
            (40, 0, "waits", ()),
            (100, 0, "ended", ()),
            (200, 0, "ended", ("fetch",)),
            (300, 0, "ended", ("fetch", "append")),
        ]
        assert not await waiting

    asyncio.run(check())


def test_the_duration_of_an_append_is_from_its_receipt_to_its_commit() -> None:
    one = OneReplica()
    one.elect()
    node, durations, begin_ms = one.raft_node, one.raft_node.counts.append_durations, one.now_ms
    one.is_held = True
    node.append(pending_append(), lambda _: None)
    one.pass_time(begin_ms + 30)
    node.append(pending_append(b"b"), lambda _: None, timeout_ms=10)
    node.append(AppendRequest(records=(), deadline_ms=1e12), lambda _: None)
    node.append(
        AppendRequest(records=(b"c",), required_base_offset=0, deadline_ms=1e12), lambda _: None
    )
    node.submit()
    one.pass_time(begin_ms + 150)
    assert not any(durations.counts), "nothing is committed"
    one.release()
    assert durations.sum_s == pytest.approx(0.15 + 0.12), "the second one has timed out meanwhile"
    found = dict(zip((*durations.bounds_s, None), durations.counts, strict=True))
    assert {bound: count for bound, count in found.items() if count} == {0.2: 2}


class Timed(OneReplica):
    """Node that counts its calls of ``set_timer``."""

    set_count = 0

    def set_timer(self) -> None:
        self.set_count += 1


def test_each_new_deadline_is_passed_to_the_runner() -> None:
    async def check() -> None:
        one = Timed(log_config=LogConfig(linger_ms=40))
        one.elect()
        before = one.set_count
        one.raft_node.append(pending_append(), lambda _: None)
        assert one.set_count > before, "the end of the linger time"
        before = one.set_count
        one.raft_node.append(pending_append(), lambda _: None, timeout_ms=10)
        assert one.set_count > before, "a timeout before that"
        before = one.set_count
        one.raft_node.delay(Fetch(lambda: None), 200)
        assert one.set_count > before
        before = one.set_count
        waiting = asyncio.ensure_future(one.raft_node.wait_until(lambda: False, timeout_ms=100))
        await asyncio.sleep(0)
        assert one.set_count > before
        before = one.set_count
        one.raft_node.end()
        assert one.set_count == before, "a node that has ended waits for nothing"
        assert not await waiting

    asyncio.run(check())


def test_an_append_whose_end_raises_delays_no_other() -> None:
    def fail(_: object) -> None:
        raise ValueError("a bug")

    one = Timed()
    one.elect()
    one.is_held = True
    ended: list[int] = []
    due_ms = one.raft_node.now_ms() + 10
    one.raft_node.append(pending_append(), fail, timeout_ms=10)
    one.raft_node.append(pending_append(), lambda _: ended.append(2), timeout_ms=10)
    before = one.set_count
    with pytest.raises(ValueError, match="a bug"):
        one.pass_time(due_ms)
    assert (one.set_count, one.is_turn_due, ended) == (before + 1, True, [])
    one.pass_time(due_ms)
    assert ended == [2]


class ResignsOnce(Recorder):
    """Listener that resigns its node's first leadership."""

    def __init__(self, one: OneReplica) -> None:
        super().__init__()
        self._one = one

    def handle_leader_change(self, leader: LeaderNotification) -> None:
        super().handle_leader_change(leader)
        if leader.epoch == 1:
            self._one.log.resign(leader.epoch)


def test_a_change_in_the_call_of_a_listener_is_delivered_to_those_called_before_it() -> None:
    one = OneReplica()
    one.elect()
    first, second = Recorder(), ResignsOnce(one)
    for listener in (first, second):
        one.listeners.register(listener)
    one.is_held = True
    one.raft_node.deliver()
    assert len(first.leaders) == 1, "not within the call of another"
    while one.is_turn_due:
        one.raft_node.pass_time()
    assert [leader.epoch for leader in first.leaders] == [1, 2, 3]
    assert first.leaders == second.leaders


def test_the_log_is_cleaned_at_intervals_and_the_runner_notified() -> None:
    config = LogConfig(segment_bytes=300, index_interval_bytes=200, retention_bytes=300)
    one = OneReplica(log_config=config, clean_interval_ms=1_000)
    one.elect()
    node, log = one.raft_node, one.replica.log
    for _ in range(15):
        one.log.append(one.replica.core.epoch, [bytes(100)])
    deadline_ms = node.next_deadline_ms
    assert deadline_ms is not None
    one.pass_time(deadline_ms - 1)
    assert log.log_start_offset == 0
    writer = one.replica.begin_snapshot(log.end_offset, time_ms=TIME_MS)
    assert writer is not None
    with writer:
        one.pass_time(deadline_ms)
    refused = one.notifications[-1]
    assert isinstance(refused, CleaningRefused)
    assert isinstance(refused.error, LogLockedError)
    assert node.next_deadline_ms == deadline_ms + 1_000
    one.pass_time(deadline_ms + 1_000)
    assert one.notifications[-1] == LogCleaned(log.log_start_offset)
    assert log.log_start_offset > 0


def test_chunks_are_delivered_in_turns_of_their_own() -> None:
    one = OneReplica(chunk_bytes_max=1)
    one.elect()
    for number in range(3):
        one.log.append(one.replica.core.epoch, [b"%d" % number])
    listener = Recorder()
    one.raft_node.register(listener)
    delivered = [listener.next_offset]
    while one.is_turn_due:
        one.raft_node.pass_time()
        delivered.append(listener.next_offset)
    assert delivered == [1, 2, 3, 4], "the first record is the leader change"


@pytest.mark.parametrize("is_acknowledged", [False, True])
@pytest.mark.parametrize("stopped_count", [0, 1, 2])
def test_a_leader_that_ends_waits_for_a_successor_while_one_may_be_running(
    stopped_count: int, is_acknowledged: bool
) -> None:
    """A host that does not respond may run a voter; one that refuses connections does not. The
    voters may end after they have acknowledged the resignation, too."""

    async def run() -> None:
        cluster = Cluster(3)
        leader = cluster.elect()
        others = [node for node in cluster.nodes if node is not leader]
        if is_acknowledged:
            for node in others:
                node.raft_node.begin_shutdown()  # it does not campaign
            leader.raft_node.begin_shutdown()
            cluster.pass_time(500)
            assert isinstance(leader.replica.core.role, Resigned)
            assert len(leader.replica.core.role.acknowledged_voters) == 2
        for node in others:
            node.is_cut_off = True
        for node in others[:stopped_count]:
            node.is_stopped = True
        if not is_acknowledged:
            leader.raft_node.begin_shutdown()
        cluster.pass_time(2_000)
        assert leader.raft_node.has_handed_over() == (stopped_count == 2)
        for node in others:
            node.is_cut_off = node.is_stopped = False
            if is_acknowledged:
                node.restart()
        cluster.pass_time(10_000)
        assert leader.raft_node.has_handed_over()
        assert cluster.leader is not leader

    asyncio.run(run())
