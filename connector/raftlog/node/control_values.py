"""Conversions between the quorum's values and Kafka's control records and quorum-state. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from raftlog.log.format.directory import QuorumState
from raftlog.quorum.effects import AppendLeaderChange, ElectionState
from raftlog.quorum.events import VotersAppended
from raftlog.quorum.voters import Endpoint, Voter, VoterSet
from raftlog.records.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    VoterEndpoint,
)
from raftlog.records.control import Voter as VoterRecord
from raftlog.types import ZERO_UUID, ReplicaKey

_QUORUM_STATE_VERSION: Final = 1


def epoch_head(effect: AppendLeaderChange, leader_id: int) -> tuple[ControlRecord, ...]:
    """Return the control records of an epoch's first batch."""
    head: list[ControlRecord] = [
        LeaderChange(
            leader_id=leader_id,
            voters=tuple(LeaderChangeVoter(key.node_id) for key in effect.voters),
            granting_voters=tuple(LeaderChangeVoter(key.node_id) for key in effect.granting_voters),
        )
    ]
    if effect.voter_set is not None:
        head += voters_head(effect.voter_set, effect.kraft_version)
    return tuple(head)


def voters_head(voters: VoterSet, kraft_version: int | None) -> list[ControlRecord]:
    """Return the records of a voter set, after the kraft.version record if one is given."""
    version = [] if kraft_version is None else [KRaftVersion(kraft_version=kraft_version)]
    return [*version, voters_record(voters)]


def voters_record(voters: VoterSet) -> KRaftVoters:
    return KRaftVoters(
        voters=tuple(
            VoterRecord(
                voter_id=voter.key.node_id,
                voter_directory_id=voter.key.directory_id,
                endpoints=tuple(VoterEndpoint(at.name, at.host, at.port) for at in voter.endpoints),
                min_supported_version=voter.kraft_version_min,
                max_supported_version=voter.kraft_version_max,
            )
            for voter in voters
        )
    )


def voter_set(record: KRaftVoters) -> VoterSet:
    return VoterSet.of(
        Voter(
            key=ReplicaKey(voter.voter_id, voter.voter_directory_id),
            endpoints=tuple(Endpoint(at.name, at.host, at.port) for at in voter.endpoints),
            kraft_version_min=voter.min_supported_version,
            kraft_version_max=voter.max_supported_version,
        )
        for voter in record.voters
    )


def voters_in(records: Iterable[tuple[int, ControlRecord]]) -> Iterator[VotersAppended]:
    """Yield the changes of voters and kraft.version in these control records with offsets."""
    for offset, control in records:
        if isinstance(control, KRaftVoters):
            yield VotersAppended(offset, voters=voter_set(control))
        elif isinstance(control, KRaftVersion):
            yield VotersAppended(offset, kraft_version=control.kraft_version)


def quorum_state(state: ElectionState) -> QuorumState:
    voted = state.voted_key
    return QuorumState(
        version=_QUORUM_STATE_VERSION,
        leader_epoch=state.epoch,
        leader_id=state.leader_id,
        voted_id=None if voted is None else voted.node_id,
        voted_directory_id=None if voted is None else voted.directory_id,
    )


def election_state(state: QuorumState) -> ElectionState:
    voted = None
    if state.voted_id is not None:
        voted = ReplicaKey(state.voted_id, state.voted_directory_id or ZERO_UUID)
    return ElectionState(epoch=state.leader_epoch, leader_id=state.leader_id, voted_key=voted)
