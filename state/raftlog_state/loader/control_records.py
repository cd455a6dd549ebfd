"""Replay of control records: leader epochs, kraft.version and voters.

Control records take effect at their own offset, even inside a metadata transaction.

Source: KIP-595 (leader change), KIP-853 (kraft.version and voters in the log).
"""

from __future__ import annotations

import dataclasses

from raftlog.records.control import (
    ControlRecord,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    OffsetCommit,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
)
from raftlog.records.control import Voter as ControlVoter
from raftlog.records.control import VoterEndpoint as ControlEndpoint
from raftlog_state.errors import ReplayError
from raftlog_state.image import Entity, EpochRow, Quorum, Voter, VoterEndpoint
from raftlog_state.image.delta import MetadataDelta
from raftlog_state.replay import Position


def replay_control(
    control: ControlRecord, delta: MetadataDelta, quorum: Quorum, at: Position
) -> Quorum:
    """Write a control record's leader epoch into ``delta``, and return the quorum after it.

    Unknown control records, producers' transaction markers and offsets of consumer groups change
    nothing. Raises ``ReplayError`` for a snapshot's header or footer, which do not occur in a log.
    """
    match control:
        case LeaderChange():
            _begin_epoch(control, delta, quorum, at)
            return quorum
        case KRaftVersion() | KRaftVoters():
            quorum = quorum_after(control, quorum)
            _update_epoch(delta, quorum, at)
            return quorum
        case SnapshotHeader() | SnapshotFooter():
            raise ReplayError(
                offset=at.offset,
                record=control.control_type.name,
                reason="snapshot headers and footers occur in snapshots only",
            )
        case EndTransactionMarker() | OffsetCommit() | UnknownControl():
            return quorum


def quorum_after(control: ControlRecord, quorum: Quorum) -> Quorum:
    """Return the quorum after a control record of a log or of a snapshot's first batch."""
    match control:
        case KRaftVersion():
            return dataclasses.replace(quorum, kraft_version=control.kraft_version)
        case KRaftVoters():
            voters = sorted(map(_voter_row, control.voters), key=lambda voter: voter.voter_id)
            return dataclasses.replace(quorum, voters=tuple(voters))
        case _:
            return quorum


def kraft_voters(voters: tuple[Voter, ...]) -> KRaftVoters:
    """Return the KRaftVoters record of ``voters``: the inverse of ``quorum_after``."""
    return KRaftVoters(voters=tuple(map(_control_voter, voters)))


def _begin_epoch(control: LeaderChange, delta: MetadataDelta, quorum: Quorum, at: Position) -> None:
    earlier = [key for key in delta.keys(Entity.EPOCH) if key < (at.leader_epoch,)]
    if earlier:
        before = delta.find(EpochRow, *max(earlier))
        if before is not None and before.end_offset is None:
            delta.put(dataclasses.replace(before, end_offset=at.offset))
    voters = tuple(Voter(voter.voter_id, voter.voter_directory_id) for voter in control.voters)
    if {voter.voter_id for voter in quorum.voters} == {voter.voter_id for voter in voters}:
        voters = quorum.voters
    delta.put(
        EpochRow(
            leader_epoch=at.leader_epoch,
            start_offset=at.offset,
            end_offset=None,
            leader_id=control.leader_id,
            voters=tuple(sorted(voters, key=lambda voter: voter.voter_id)),
            kraft_version=quorum.kraft_version,
        )
    )


def _update_epoch(delta: MetadataDelta, quorum: Quorum, at: Position) -> None:
    """Update voters and kraft.version of the current epoch's row, if there is one."""
    row = delta.find(EpochRow, at.leader_epoch)
    if row is None:
        return
    voters = quorum.voters or row.voters
    delta.put(dataclasses.replace(row, voters=voters, kraft_version=quorum.kraft_version))


def _voter_row(voter: ControlVoter) -> Voter:
    return Voter(
        voter_id=voter.voter_id,
        directory_id=voter.voter_directory_id,
        endpoints=tuple(VoterEndpoint(at.name, at.host, at.port) for at in voter.endpoints),
        min_kraft_version=voter.min_supported_version,
        max_kraft_version=voter.max_supported_version,
    )


def _control_voter(voter: Voter) -> ControlVoter:
    return ControlVoter(
        voter_id=voter.voter_id,
        voter_directory_id=voter.directory_id,
        endpoints=tuple(ControlEndpoint(at.name, at.host, at.port) for at in voter.endpoints),
        min_supported_version=voter.min_kraft_version,
        max_supported_version=voter.max_kraft_version,
    )
