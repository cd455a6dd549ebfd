"""High watermark of a leader and of a follower."""

from __future__ import annotations

from raftlog.quorum.effects import AdvanceHighWatermark
from raftlog.quorum.events import Appended, RequestReceived, VotersAppended
from raftlog.quorum.messages import FetchRequest
from tests.quorum.single_core import (
    ME,
    SECOND,
    STRANGER,
    VOTERS,
    LogEnds,
    OneCore,
    found,
    voter_set,
)


def fetch_from(offset: int) -> FetchRequest:
    """Return a fetch of the second voter, which has the records below ``offset`` durably."""
    return FetchRequest(
        replica=SECOND,
        epoch=1,
        fetch_offset=offset,
        last_fetched_epoch=1,
        max_bytes=1_000,
        max_wait_ms=0,
    )


def test_a_leader_counts_only_its_synced_records() -> None:
    one = OneCore()
    one.elect(2, 3)
    effects = one.append(3, is_synced=False)
    effects += one.step(RequestReceived(1, fetch_from(3)))
    assert not found(effects, AdvanceHighWatermark), "only 2 has it durably"
    assert found(one.sync(), AdvanceHighWatermark) == [AdvanceHighWatermark(3)]


def test_a_leader_awaits_its_sync_only_if_that_commits_records() -> None:
    one = OneCore()
    one.elect(2, 3)
    one.append(3, is_synced=False)
    one.log.synced_end_offset = 3
    assert not one.core.awaits_sync, "no other voter has them"
    one.log.synced_end_offset = 0
    one.step(RequestReceived(1, fetch_from(3)))
    assert not one.core.awaits_sync, "only 2 has them durably"
    one.log.synced_end_offset = 3
    assert one.core.awaits_sync
    assert found(one.sync(), AdvanceHighWatermark) == [AdvanceHighWatermark(3)]
    assert not one.core.awaits_sync


def test_a_fetch_after_the_sync_of_the_leader_commits_records() -> None:
    """So the leader did not await it."""
    one = OneCore()
    one.elect(2, 3)
    one.append(3, is_synced=False)
    one.log.synced_end_offset = 3
    assert not one.core.awaits_sync
    effects = one.step(RequestReceived(1, fetch_from(3)))
    assert found(effects, AdvanceHighWatermark) == [AdvanceHighWatermark(3)]


def test_a_follower_awaits_its_sync() -> None:
    one = OneCore()
    one.follow(2, 1)
    assert one.core.awaits_sync


def test_a_single_voter_commits_synced_records() -> None:
    one = OneCore(ME)
    one.elect()
    assert not found(one.append(1, is_synced=False), AdvanceHighWatermark)
    assert found(one.sync(), AdvanceHighWatermark) == [AdvanceHighWatermark(1)]


def test_a_follower_passes_what_it_has_fetched_once_it_is_synced() -> None:
    """Voters in it have effect before."""
    one = OneCore()
    one.follow(2, 1)
    effects = one.fetched(2, high_watermark=1, records=b"voters")
    one.log.end_offset, one.log.last_fetched_epoch = 1, 1
    effects += one.step(Appended((VotersAppended(0, voters=voter_set(*VOTERS, STRANGER)),)))
    assert one.core.voters.has(STRANGER)
    assert not found(effects, AdvanceHighWatermark), "it is not durable here"
    assert found(one.sync(), AdvanceHighWatermark) == [AdvanceHighWatermark(1)]


def test_a_high_watermark_below_the_log_start_offset_is_ignored() -> None:
    """All records below the log start offset are committed, whatever the leader returns."""
    log = LogEnds(log_start_offset=4, end_offset=6, synced_end_offset=6, last_fetched_epoch=1)
    one = OneCore(log=log)
    one.follow(2, 1)
    assert not found(one.fetched(2, high_watermark=3), AdvanceHighWatermark)
    assert one.core.high_watermark is None
    assert found(one.fetched(2, high_watermark=4), AdvanceHighWatermark) == [
        AdvanceHighWatermark(4)
    ]


def test_what_was_committed_at_the_start_is_that_of_the_leader_and_not_of_a_shorter_log() -> None:
    log = LogEnds(end_offset=6, synced_end_offset=6, last_fetched_epoch=1)
    one = OneCore(log=log)
    one.follow(2, 1)
    assert one.core.committed_at_start is None, "the leader does not know it yet"
    one.fetched(2, high_watermark=100)
    assert one.core.high_watermark == 6
    assert one.core.committed_at_start == 100
    one.fetched(2, high_watermark=200)
    assert one.core.committed_at_start == 100


def test_a_leader_knows_what_is_committed_once_a_record_of_its_epoch_is() -> None:
    one = OneCore(ME)
    one.elect()
    one.append(1, is_synced=False)
    assert one.core.committed_at_start is None
    one.sync()
    assert one.core.committed_at_start == 1
