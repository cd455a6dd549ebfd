"""The log start of a leader that deletes records, and of the followers that learn it."""

from __future__ import annotations

from raftlog.quorum.effects import (
    AdvanceLogStart,
    AppendAsFollower,
    ReplyWithRecords,
    Send,
    TruncateFully,
)
from raftlog.quorum.events import LogStartAdvanced, RequestReceived
from raftlog.quorum.messages import FetchRequest, FetchResponse, LeaderAndEpoch
from raftlog.types import ReplicaKey

from .single_core import ME, SECOND, STRANGER, THIRD, LogEnds, OneCore, found

EPOCH = 3


def follower(end_offset: int, synced_end_offset: int | None = None) -> OneCore:
    one = OneCore(
        log=LogEnds(
            end_offset=end_offset,
            synced_end_offset=end_offset if synced_end_offset is None else synced_end_offset,
            last_fetched_epoch=1,
        )
    )
    one.follow(2, EPOCH)
    return one


def fetched(one: OneCore, *, high_watermark: int | None, log_start_offset: int) -> list[int]:
    """Answer the follower's fetch; return the log starts that it advances to."""
    response = FetchResponse(
        leader_and_epoch=LeaderAndEpoch(epoch=EPOCH, leader_id=2),
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
    )
    return [effect.offset for effect in found(one.answer(2, response), AdvanceLogStart)]


def test_a_follower_deletes_what_the_leader_has_deleted_and_reports_it() -> None:
    one = follower(end_offset=9)
    assert fetched(one, high_watermark=7, log_start_offset=5) == [5]
    assert one.asked(2) is None, "a fetch would report the old start"
    one.log.log_start_offset = 5
    (sent,) = found(one.step(LogStartAdvanced()), Send)
    assert isinstance(sent.request, FetchRequest)
    assert sent.request.log_start_offset == 5
    assert fetched(one, high_watermark=7, log_start_offset=5) == []


def test_a_follower_deletes_only_what_is_committed() -> None:
    one = follower(end_offset=9)
    assert fetched(one, high_watermark=None, log_start_offset=5) == []
    assert fetched(one, high_watermark=4, log_start_offset=5) == []
    assert fetched(one, high_watermark=5, log_start_offset=5) == [5]


def test_a_follower_that_could_not_delete_tries_it_at_the_next_response() -> None:
    one = follower(end_offset=9)
    assert fetched(one, high_watermark=9, log_start_offset=5) == [5]
    one.step(LogStartAdvanced())
    assert fetched(one, high_watermark=9, log_start_offset=5) == [5]


def test_a_follower_with_another_object_store_deletes_nothing_that_the_leader_has_deleted() -> None:
    for own, leaders, starts in ((7, 8, []), (7, 7, [5]), (0, 8, [5]), (7, 0, [5])):
        one = follower(end_offset=9)
        one.log.remote_store_id = own
        for _ in range(2):
            response = FetchResponse(
                leader_and_epoch=LeaderAndEpoch(epoch=EPOCH, leader_id=2),
                high_watermark=9,
                log_start_offset=5,
                remote_store_id=leaders,
            )
            effects = one.answer(2, response)
            assert [effect.offset for effect in found(effects, AdvanceLogStart)] == starts
            one.log.log_start_offset = 5 if starts else 0
            starts = []
            one.step(LogStartAdvanced())


def test_a_log_start_never_decreases() -> None:
    one = OneCore(
        log=LogEnds(log_start_offset=6, end_offset=9, synced_end_offset=9, last_fetched_epoch=1)
    )
    one.follow(2, EPOCH)
    assert fetched(one, high_watermark=9, log_start_offset=5) == []


def test_a_follower_with_remote_segments_compares_their_start_and_follows_if_it_is_unknown() -> (
    None
):
    one = follower(end_offset=9)
    one.log.is_tiered, one.log.log_start_offset = True, 8
    for start, expected in ((3, [5]), (5, []), (None, [5])):
        one.log.remote_start = start
        one.step(LogStartAdvanced())
        assert fetched(one, high_watermark=9, log_start_offset=5) == expected
    one.log.remote_start = None
    (sent,) = found(one.step(LogStartAdvanced()), Send)
    assert isinstance(sent.request, FetchRequest)
    assert sent.request.log_start_offset is None


def test_a_follower_below_removed_tombstones_appends_nothing_and_deletes_its_records() -> None:
    for missed_offset, compacted_offset, is_truncated in (
        (9, 20, False),
        (10, 20, True),
        (10, 9, False),  # not what a leader's log can have
    ):
        one = follower(end_offset=9)
        response = FetchResponse(
            leader_and_epoch=LeaderAndEpoch(epoch=EPOCH, leader_id=2),
            high_watermark=20,
            records=b"records",
            compacted_offset=compacted_offset,
            tombstone_start_offset=missed_offset,
        )
        effects = one.answer(2, response)
        expected = [TruncateFully(missed_offset)] if is_truncated else []
        assert found(effects, TruncateFully) == expected
        assert len(found(effects, AppendAsFollower)) == 1 - len(expected)


def fetch(
    one: OneCore, replica: ReplicaKey, log_start_offset: int | None
) -> list[ReplyWithRecords]:
    request = FetchRequest(
        replica=replica,
        epoch=one.core.epoch,
        fetch_offset=one.log.end_offset,
        last_fetched_epoch=one.core.epoch,
        max_bytes=1000,
        max_wait_ms=500,
        high_watermark=one.core.high_watermark,
        log_start_offset=log_start_offset,
    )
    return found(one.step(RequestReceived(hash(replica), request)), ReplyWithRecords)


def leader() -> OneCore:
    one = OneCore(ME, SECOND, THIRD)
    one.elect(2)
    one.append(3)
    for voter in (SECOND, THIRD):
        fetch(one, voter, 0)
    return one


def test_a_leader_answers_delayed_fetches_once_when_it_has_deleted_records() -> None:
    one = leader()
    assert not fetch(one, SECOND, 0)
    one.log.log_start_offset = 2
    replies = found(one.step(LogStartAdvanced()), ReplyWithRecords)
    assert [reply.response.log_start_offset for reply in replies] == [2, 2]
    assert not found(one.step(LogStartAdvanced()), ReplyWithRecords)
    assert not fetch(one, SECOND, 0), "one that cannot follow does not fetch again and again"


def test_a_leader_that_does_not_know_its_remote_segments_sends_no_start() -> None:
    one = leader()
    one.log.is_tiered, one.log.log_start_offset, one.log.remote_start = True, 2, None
    fetch(one, SECOND, 0)
    (reply,) = found(one.step(LogStartAdvanced()), ReplyWithRecords)[-1:]
    assert reply.response.log_start_offset is None


def test_all_other_voters_must_have_the_log_start() -> None:
    one = leader()
    one.log.log_start_offset = 2
    for replica, start, is_known in (
        (STRANGER, 2, False),
        (SECOND, 2, False),
        (THIRD, None, False),
        (THIRD, 1, False),
        (THIRD, 2, True),
    ):
        fetch(one, replica, start)
        assert one.core.has_log_start(2) is is_known
