"""When a leader answers its users: not before the result can no longer change."""

from __future__ import annotations

import sys
from functools import partial
from types import FrameType
from typing import Any

import pytest

from raftlog.append import AppendRequest, Done, Failed, InOrderGate
from raftlog.errors import (
    AppendUnknownError,
    DiskFullError,
    ForeignCommitError,
    NotLeaderError,
    OutOfOrderSequenceError,
    StaleCommitError,
)
from raftlog.log.reading.transactions import CommitName
from raftlog.log.writing.key_offsets import UnchangedKeys
from raftlog.node import pending_appends, purgatory
from raftlog.quorum.events import TimePassed
from raftlog.records.builder import ProducerStamp
from tests.support.one_replica import OneReplica


def commit_of(query_id: str, version: int) -> AppendRequest:
    return AppendRequest(
        records=(b"x",), commit=CommitName("job", query_id, version), deadline_ms=1e12
    )


def batch_of(sequence: int, *, byte_count: int = 1) -> AppendRequest:
    stamp = ProducerStamp(7, 0, sequence)
    return AppendRequest(records=(bytes(byte_count),), producer=stamp, deadline_ms=1e12)


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (commit_of("q", 5), commit_of("q", 4), StaleCommitError),
        (commit_of("q", 5), commit_of("other", 6), ForeignCommitError),
        (batch_of(0), batch_of(9), OutOfOrderSequenceError),
    ],
)
def test_a_refusal_due_to_the_logs_content_waits_until_that_is_committed(
    first: AppendRequest, second: AppendRequest, error: type[Exception]
) -> None:
    one = OneReplica()
    one.elect()
    one.is_held = True
    for request in (first, second):
        one.submit(request)
    assert not one.results, "nothing of it is committed"
    one.release()
    assert isinstance(one.results[first], Done)
    refusal = one.results[second]
    assert isinstance(refusal, Failed)
    assert isinstance(refusal.error, error)


def test_an_appended_request_releases_its_records_and_keeps_its_type() -> None:
    one = OneReplica()
    one.elect()
    one.is_held = True
    keys = UnchangedKeys({b"k" * 1_000: None}, one.replica.log.end_offset)
    full = AppendRequest(records=(b"x" * 1_000,), unchanged=keys, deadline_ms=1e12)
    empty = AppendRequest(records=(), epoch=one.replica.core.epoch, deadline_ms=1e12)
    one.submit(full, empty)
    assert not one.results, "nothing is committed"
    assert not full.records
    assert full.unchanged is None
    one.raft_node.end("it stops")
    unknown, refused = one.results[full], one.results[empty]
    assert isinstance(unknown, Failed)
    assert isinstance(unknown.error, AppendUnknownError)
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, NotLeaderError)
    epoch = refused.error.epoch
    assert f"this node is not the leader of epoch {epoch}" in refused.error.message()


def test_a_duplicate_of_a_committed_append_does_not_wait_for_later_ones() -> None:
    one = OneReplica()
    one.elect()
    first, other, again, later = batch_of(0), batch_of(1), batch_of(0), batch_of(2)
    one.submit(first)
    one.is_held = True
    one.submit(other)
    one.submit(again, later)
    assert list(one.results) == [first, again]
    assert one.raft_node.waiting_append_count == 2
    one.release()
    assert list(one.results) == [first, again, other, later]
    assert not one.raft_node.waiting_append_count
    ends = [done.value.end_offset for done in one.results.values() if isinstance(done, Done)]
    assert ends == [ends[0], ends[0], ends[0] + 1, ends[0] + 2]


def lines_of_a_step(pending_count: int) -> int:
    """Return the number of lines of the modules of pending appends that a step executes."""
    one = OneReplica()
    one.elect()
    one.is_held = True
    for sequence in (0, 1):
        one.submit(batch_of(sequence))
    duplicates = [batch_of(0) for _ in range(pending_count)]
    empty = [AppendRequest(records=(), deadline_ms=1e12) for _ in range(pending_count)]
    one.submit(*duplicates, *empty)
    assert one.raft_node.waiting_append_count == 2 + 2 * pending_count
    files = {pending_appends.__file__, purgatory.__file__}
    executed_count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed_count
        if frame.f_code.co_filename not in files:
            return None
        executed_count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        one.raft_node.step(TimePassed())
    finally:
        sys.settrace(before)
    one.release()
    assert all(isinstance(one.results[request], Done) for request in (*duplicates, *empty))
    return executed_count


def test_a_step_does_not_look_at_each_pending_append() -> None:
    assert lines_of_a_step(200) == lines_of_a_step(2) > 0


class Space:
    """Leader whose disk may be full, and its answers."""

    def __init__(self) -> None:
        self.one = OneReplica()
        self.one.elect()

    def append(self, *requests: AppendRequest) -> list[type[object]]:
        """Append these requests together."""
        self.one.submit(*requests)
        answers = [self.one.results[request] for request in requests]
        return [type(one.error) if isinstance(one, Failed) else Done for one in answers]


def gated(gate: InOrderGate | None, producer_id: int | None, byte_count: int = 1) -> AppendRequest:
    stamp = None if producer_id is None else ProducerStamp(producer_id, 0, 0)
    return AppendRequest(records=(b"x" * byte_count,), gate=gate, producer=stamp, deadline_ms=1e12)


def test_after_a_request_without_space_no_later_one_of_its_sender_is_appended() -> None:
    space, gate = Space(), InOrderGate()
    space.one.disk.leave_room(10_000)
    assert space.append(gated(gate, 1, 100_000)) == [DiskFullError]
    assert space.append(gated(gate, 2)) == [DiskFullError]
    assert space.append(gated(None, 3), gated(InOrderGate(), 4)) == [Done, Done]
    assert space.append(gated(gate, None)) == [Done], "no later retry would be recognised"
    space.one.disk.full_at(None)
    assert space.append(gated(gate, 5)) == [DiskFullError], "it was in flight already"


def test_a_retry_is_appended_and_the_requests_after_it() -> None:
    space, gate, other = Space(), InOrderGate(), InOrderGate()
    space.one.disk.leave_room(10_000)
    together = (gated(gate, 1, 100_000), gated(gate, 2), gated(other, 3))
    assert space.append(*together) == [DiskFullError] * 3
    assert space.append(gated(other, 4)) == [DiskFullError], "it would overtake 3"
    assert space.append(gated(other, 3)) == [Done]
    assert space.append(gated(gate, 1, 100_000)) == [DiskFullError]
    assert space.append(gated(gate, 2)) == [DiskFullError]
    space.one.disk.full_at(None)
    assert space.append(gated(gate, 1, 100_000), gated(gate, 2)) == [Done, Done]


def test_a_sender_without_a_retry_is_not_refused_forever() -> None:
    space, gate = Space(), InOrderGate()
    space.one.disk.leave_room(10_000)
    assert space.append(gated(gate, 0, 100_000)) == [DiskFullError]
    found = [space.append(gated(gate, number))[0] for number in range(1, 20)]
    assert found == [DiskFullError] * 15 + [Done] * 4


def test_the_log_keeps_the_order_of_a_producer_that_it_knows_without_a_gate() -> None:
    space = Space()
    assert space.append(batch_of(0)) == [Done]
    space.one.disk.leave_room(10_000)
    large = partial(batch_of, 1, byte_count=100_000)
    assert space.append(large()) == [DiskFullError]
    assert space.append(batch_of(2)) == [OutOfOrderSequenceError]
    space.one.disk.full_at(None)
    assert space.append(large(), batch_of(2)) == [Done, Done]
