"""When a leader answers its users: not before the answer can no longer change."""

from __future__ import annotations

import pytest

from raftlog.client.requests import Answer, AppendRequest, Done, Failed, Line
from raftlog.errors import (
    AppendUnknownError,
    DiskFullError,
    ForeignCommitError,
    NotLeaderError,
    OutOfOrderSequenceError,
    StaleCommitError,
)
from raftlog.log.writing.batch_facts import CommitName
from raftlog.node.leader_appends import LeaderAppends
from raftlog.records.builder import ProducerStamp
from tests.support.one_replica import OneReplica


def commit_of(query_id: str, version: int) -> AppendRequest:
    return AppendRequest(
        records=(b"x",), commit=CommitName("job", query_id, version), deadline_ms=1e12
    )


def batch_of(sequence: int) -> AppendRequest:
    return AppendRequest(records=(b"x",), producer=ProducerStamp(7, 0, sequence), deadline_ms=1e12)


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (commit_of("q", 5), commit_of("q", 4), StaleCommitError),
        (commit_of("q", 5), commit_of("other", 6), ForeignCommitError),
        (batch_of(0), batch_of(9), OutOfOrderSequenceError),
    ],
)
def test_a_refusal_for_what_the_log_holds_waits_until_that_is_committed(
    first: AppendRequest, second: AppendRequest, error: type[Exception]
) -> None:
    one = OneReplica()
    one.elect()
    told: dict[AppendRequest, Answer] = {}
    appends = LeaderAppends(one.replica, told.__setitem__)
    one.is_held = True
    for request in (first, second):
        one.act(
            lambda now_ms, time_ms, request=request: appends.submit(
                [request], now_ms=now_ms, time_ms=time_ms
            )
        )
    assert not told, "nothing of it is committed"
    one.release()
    appends.poll()
    assert isinstance(told[first], Done)
    refusal = told[second]
    assert isinstance(refusal, Failed)
    assert isinstance(refusal.error, error)


def test_what_is_placed_holds_its_records_no_more_and_is_answered_as_what_it_was() -> None:
    one = OneReplica()
    one.elect()
    told: dict[AppendRequest, Answer] = {}
    appends = LeaderAppends(one.replica, told.__setitem__)
    one.is_held = True
    full = AppendRequest(records=(b"x" * 1_000,), deadline_ms=1e12)
    empty = AppendRequest(records=(), epoch=one.replica.core.epoch, deadline_ms=1e12)
    one.act(lambda now_ms, time_ms: appends.submit([full, empty], now_ms=now_ms, time_ms=time_ms))
    assert not told, "nothing is committed"
    assert not full.records
    appends.give_up("it stops")
    unknown, refused = told[full], told[empty]
    assert isinstance(unknown, Failed)
    assert isinstance(unknown.error, AppendUnknownError)
    assert isinstance(refused, Failed)
    assert isinstance(refused.error, NotLeaderError)


def test_behind_what_found_no_room_nothing_of_its_line_is_placed() -> None:
    one = OneReplica()
    one.elect()
    told: dict[AppendRequest, Answer] = {}
    appends = LeaderAppends(one.replica, told.__setitem__)
    line = Line()

    def append(*requests: AppendRequest) -> list[type[object]]:
        one.act(lambda now_ms, time_ms: appends.submit(requests, now_ms=now_ms, time_ms=time_ms))
        appends.poll()
        answers = [told[request] for request in requests]
        return [type(one.error) if isinstance(one, Failed) else Done for one in answers]

    def small(line: Line | None) -> AppendRequest:
        return AppendRequest(records=(b"x",), line=line, deadline_ms=1e12)

    one.disk.leave_room(10_000)
    large = AppendRequest(records=(b"x" * 100_000,), line=line, deadline_ms=1e12)
    assert append(small(line)) == [Done]
    assert append(large, small(line)) == [DiskFullError, DiskFullError]
    assert append(small(line), small(None)) == [DiskFullError, Done]
    one.disk.full_at(None)
    assert append(small(line), small(None), small(Line())) == [DiskFullError, Done, Done]
