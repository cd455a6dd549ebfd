"""Replica that is stalled because the disk is full and an effect must be durable first."""

from __future__ import annotations

import pytest

from raftlog.append import AppendRequest, Failed
from raftlog.errors import DiskFullError
from raftlog.node.replica import DISK_FULL_RETRY_MS
from raftlog.quorum.effects import LogMessage
from raftlog.quorum.messages import Response, VersionsRequest
from raftlog.quorum.voters import Endpoint
from tests.support.one_replica import OneReplica

FAR = Endpoint("PEERS", "x" * 3_000, 1)
"""A host so long that the first batch of an epoch is larger than the quorum-state file."""


def voter_without_room() -> OneReplica:
    """Return the single voter of a dynamic quorum, with disk space for elections only."""
    return OneReplica(directory_id="AAAAAAAAAAAAAAAAAAAAAQ", endpoints=(FAR,), room_bytes=2_000)


def logged(one: OneReplica) -> list[str]:
    return [found.text for found in one.notifications if isinstance(found, LogMessage)]


def test_a_leader_without_disk_space_for_its_epoch_appends_nothing_until_there_is_some() -> None:
    one = voter_without_room()
    replica, log = one.replica, one.log
    assert replica.core.is_leader
    assert replica.is_stalled_on_disk_full
    assert "stalled until the disk has space" in logged(one)[0]
    assert (replica.log.end_offset, replica.log.epoch) == (0, 0)
    assert one.raft_node.next_deadline_ms == DISK_FULL_RETRY_MS
    request = AppendRequest(records=(b"a",), deadline_ms=0)
    one.submit(request)
    result = one.results[request]
    assert isinstance(result, Failed)
    assert isinstance(result.error, DiskFullError)
    assert one.is_turn_due
    one.poll()
    with pytest.raises(DiskFullError):
        log.append(replica.core.epoch, [b"a"])
    assert one.is_turn_due
    one.poll()
    assert replica.core.is_leader, "there is no other voter that may have space"
    one.disk.full_at(None)
    one.pass_time(DISK_FULL_RETRY_MS - 1)
    assert replica.is_stalled_on_disk_full, "not before its deadline"
    assert one.raft_node.counts.syncs == 0
    one.pass_time(DISK_FULL_RETRY_MS)
    assert one.raft_node.counts.syncs == 1
    assert not replica.is_stalled_on_disk_full
    assert log.append(replica.core.epoch, [b"a"]) == replica.log.end_offset - 1 == 3


def test_requests_received_meanwhile_wait() -> None:
    one = voter_without_room()
    replies: list[Response] = []
    one.raft_node.receive(VersionsRequest(), replies.append)
    one.pass_time(DISK_FULL_RETRY_MS)
    assert len(logged(one)) == 1, "still no space, which is logged once"
    assert not replies
    one.disk.full_at(None)
    one.pass_time(2 * DISK_FULL_RETRY_MS)
    assert len(replies) == 1
