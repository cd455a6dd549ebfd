"""Replica that is stalled because the disk is full and an effect must be durable first."""

from __future__ import annotations

import pytest

from raftlog.append import AppendRequest, Failed, RequestResult
from raftlog.errors import DiskFullError
from raftlog.log.writing.properties import LogConfig
from raftlog.node.pending_appends import PendingAppends
from raftlog.node.raft_client import ReplicaRaftClient
from raftlog.node.replica import DISK_FULL_RETRY_MS, Outgoing, RunSync
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.effects import LogMessage, Reply
from raftlog.quorum.events import Event, RequestReceived, TimePassed
from raftlog.quorum.messages import VersionsRequest
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.types import ReplicaKey
from tests.quorum.checked_core import CheckedReplica
from tests.simulation.driven_node import DIRECTORY, TIME_MS, TOPIC_ID, new_disk

FAR = Endpoint("PEERS", "x" * 3_000, 1)
"""A host so long that the first batch of an epoch is larger than the quorum-state file."""


class OnlyVoter:
    """Single voter of a dynamic quorum, with disk space for elections only."""

    def __init__(self) -> None:
        me = Voter(key=ReplicaKey(1, "AAAAAAAAAAAAAAAAAAAAAQ"), endpoints=(FAR,))
        self.disk = new_disk(1)
        self.replica = CheckedReplica.open(
            self.disk,
            DIRECTORY,
            local_voter=me,
            voters=VoterSet.of([me]),
            kraft_version=1,
            log_config=LogConfig(),
            topic_id=TOPIC_ID,
            config=QuorumConfig(),
            jitter_ms=lambda _bound: 0,
            now_ms=0,
            time_ms=TIME_MS,
        )
        self.disk.leave_room(2_000)
        self.outgoing: list[Outgoing] = []
        self.now_ms = 0

    def step(self, event: Event, now_ms: int) -> list[Outgoing]:
        self.now_ms = now_ms
        outgoing = self.replica.step(event, now_ms=now_ms, time_ms=TIME_MS)
        self.outgoing += outgoing
        return outgoing


def test_a_leader_without_disk_space_for_its_epoch_appends_nothing_until_there_is_some() -> None:
    one = OnlyVoter()
    logged = [out for out in one.step(TimePassed(), 0) if isinstance(out, LogMessage)]
    replica = one.replica
    assert replica.core.is_leader
    assert replica.is_stalled_on_disk_full
    assert "stalled until the disk has space" in logged[0].text
    assert (replica.log.end_offset, replica.log.epoch) == (0, 0)
    assert replica.next_deadline_ms == DISK_FULL_RETRY_MS
    answers: list[RequestResult] = []
    appends = PendingAppends(replica, lambda _request, answer: answers.append(answer))
    request = AppendRequest(records=(b"a",), deadline_ms=0)
    assert appends.submit([request], now_ms=1, time_ms=TIME_MS) == []
    assert isinstance(answers[0], Failed)
    assert isinstance(answers[0].error, DiskFullError)
    refused: list[int] = []
    log = ReplicaRaftClient(
        replica,
        lambda act: one.outgoing.extend(act(one.now_ms, TIME_MS)),
        lambda: 0,
        lambda: refused.append(one.now_ms),
    )
    with pytest.raises(DiskFullError):
        log.append(replica.core.epoch, [b"a"])
    assert len(refused) == 1, "its node may resign"
    one.disk.full_at(None)
    assert one.step(TimePassed(), DISK_FULL_RETRY_MS - 1) == [], "not before its deadline"
    assert any(isinstance(out, RunSync) for out in one.step(TimePassed(), DISK_FULL_RETRY_MS))
    assert not replica.is_stalled_on_disk_full
    assert log.append(replica.core.epoch, [b"a"]) == replica.log.end_offset - 1 == 3


def test_requests_received_meanwhile_wait() -> None:
    one = OnlyVoter()
    one.step(TimePassed(), 0)
    asked = RequestReceived(7, VersionsRequest())
    assert one.step(asked, DISK_FULL_RETRY_MS - 1) == []
    retried = one.step(TimePassed(), DISK_FULL_RETRY_MS)
    assert retried == [], "still no space, which is logged once"
    one.disk.full_at(None)
    outgoing = one.step(TimePassed(), 2 * DISK_FULL_RETRY_MS)
    assert [out.request_id for out in outgoing if isinstance(out, Reply)] == [7]
