"""Quorum core without log and peers: the test drives it and responds to its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import AppendLeaderChange, Effect, ElectionState, Reply, Send
from raftlog.quorum.events import (
    Appended,
    Event,
    RequestReceived,
    ResponseReceived,
    SyncCompleted,
    TimePassed,
)
from raftlog.quorum.messages import (
    BeginQuorumEpochRequest,
    FetchRequest,
    FetchResponse,
    LeaderAndEpoch,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from raftlog.quorum.state import InitialState
from raftlog.quorum.voters import Voter, VoterSet, VoterSetHistory
from raftlog.types import ReplicaKey, SnapshotId, Valid, ValidOffsetAndEpoch

ME: Final = ReplicaKey(1, "a")
SECOND: Final = ReplicaKey(2, "b")
THIRD: Final = ReplicaKey(3, "c")
VOTERS: Final = (ME, SECOND, THIRD)
STRANGER: Final = ReplicaKey(9, "i")
"""Replica in no voter set."""

EffectType = TypeVar("EffectType")


@dataclass
class LogEnds:
    """``LogView`` with offsets and the last epoch, without records."""

    log_start_offset: int = 0
    end_offset: int = 0
    synced_end_offset: int = 0
    last_fetched_epoch: int = 0
    snapshots: tuple[SnapshotId, ...] = ()
    remote_start: int | None = 0
    """Start of the segments in remote storage; None while it is not known."""
    is_tiered: bool = False
    remote_store_id: int = 0

    @property
    def earliest_offset(self) -> int | None:
        return self.remote_start if self.is_tiered else self.log_start_offset

    def misses_tombstones(self, tombstone_start_offset: int) -> bool:
        return self.end_offset < tombstone_start_offset

    def snapshot_byte_count(self, _: SnapshotId) -> int | None:
        return None

    def validate_offset_and_epoch(self, *, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        return Valid()


def voter_set(*keys: ReplicaKey) -> VoterSet:
    return VoterSet.of(Voter(key=key) for key in keys)


def found(effects: list[Effect], kind: type[EffectType]) -> list[EffectType]:
    """Return the effects of one kind, in order."""
    return [one for one in effects if isinstance(one, kind)]


class OneCore:
    """Core of replica 1. Without jitter, so that timeouts have their minimum."""

    def __init__(
        self,
        *keys: ReplicaKey,
        log: LogEnds | None = None,
        election: ElectionState | None = None,
        history: VoterSetHistory | None = None,
    ) -> None:
        self.log = log or LogEnds()
        self.now_ms = 0
        initial_state = InitialState(
            local_voter=Voter(key=ME),
            log=self.log,
            election=election or ElectionState(epoch=0),
            voters=history or VoterSetHistory(voter_set(*(keys or VOTERS)), kraft_version=1),
            config=QuorumConfig(),
            jitter_ms=lambda _: 0,
        )
        self.core = QuorumCore(initial_state, now_ms=0)
        self.sent: dict[int, Send] = {}
        """Last request sent to each node."""

    def step(self, event: Event) -> list[Effect]:
        effects = self.core.step(event, now_ms=self.now_ms)
        self.sent.update((one.node_id, one) for one in found(effects, Send))
        return effects

    def ask(self, request: Request) -> Response:
        """Return the response to a request."""
        (reply,) = found(self.step(RequestReceived(7, request)), Reply)
        return reply.response

    def answer(self, node_id: int, response: Response) -> list[Effect]:
        """Respond to the last request sent to this node."""
        return self.step(ResponseReceived(self.sent.pop(node_id).correlation_id, response))

    def asked(self, node_id: int) -> Request | None:
        """Return the in-flight request to this node."""
        sent = self.sent.get(node_id)
        return None if sent is None else sent.request

    def reach_deadline(self) -> list[Effect]:
        """Advance the time to the next deadline."""
        deadline_ms = self.core.next_deadline_ms
        assert deadline_ms is not None, "a deadline is due"
        self.now_ms = max(deadline_ms, self.now_ms)
        return self.step(TimePassed())

    def elect(self, *granting: int) -> AppendLeaderChange:
        """Advance the time, with every vote of these voters granted, until the replica leads."""
        for _ in range(10):
            effects = self.reach_deadline()
            while True:
                if begun := found(effects, AppendLeaderChange):
                    return begun[0]
                asked = [one for one in granting if isinstance(self.asked(one), VoteRequest)]
                if not asked:
                    break
                effects = self.grant_vote(asked[0])
        raise AssertionError("not elected")

    def grant_vote(self, node_id: int) -> list[Effect]:
        """Respond to the vote request to this voter with a granted vote."""
        request = self.asked(node_id)
        assert isinstance(request, VoteRequest), "a vote was requested from it"
        leader_and_epoch = LeaderAndEpoch(epoch=request.epoch)
        return self.answer(
            node_id, VoteResponse(leader_and_epoch=leader_and_epoch, is_granted=True)
        )

    def append(self, record_count: int = 1, *, is_synced: bool = True) -> list[Effect]:
        """Append records as leader."""
        self.log.end_offset += record_count
        self.log.last_fetched_epoch = self.core.epoch
        effects = self.step(Appended())
        return effects + self.sync() if is_synced else effects

    def sync(self) -> list[Effect]:
        self.log.synced_end_offset = self.log.end_offset
        return self.step(SyncCompleted())

    def follow(self, leader_id: int, epoch: int) -> None:
        """Become a follower that has just received a fetch response."""
        self.step(
            RequestReceived(
                7, BeginQuorumEpochRequest(epoch=epoch, leader_id=leader_id, voter=None)
            )
        )
        self.fetched(leader_id)

    def fetched(
        self, leader_id: int, high_watermark: int | None = None, records: bytes = b""
    ) -> list[Effect]:
        """Respond to the last fetch, by default without records."""
        request = self.asked(leader_id)
        assert isinstance(request, FetchRequest), "a fetch was sent to it"
        leader_and_epoch = LeaderAndEpoch(epoch=request.epoch, leader_id=leader_id)
        response = FetchResponse(
            leader_and_epoch=leader_and_epoch, high_watermark=high_watermark, records=records
        )
        return self.answer(leader_id, response)


def vote_request(
    candidate: ReplicaKey,
    epoch: int,
    *,
    voter: ReplicaKey | None = None,
    last_epoch: int = 0,
    last_offset: int = 0,
) -> VoteRequest:
    """Build a vote request; the candidate's log is empty by default."""
    return VoteRequest(
        epoch=epoch,
        candidate=candidate,
        voter=voter,
        last_epoch=last_epoch,
        last_offset=last_offset,
    )
