"""What control records say of the quorum: who led when, and who votes.

Control records take effect where they are appended, inside a metadata transaction too.

Source: KIP-595 (leader change), KIP-853 (kraft.version and voters in the log).
"""

from __future__ import annotations

import dataclasses

from raftlog.errors import ReplayError
from raftlog.records.control import (
    ControlRecord,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
)
from raftlog.records.control import Voter as ControlVoter
from raftlog.records.control import VoterEndpoint as ControlEndpoint

from .delta import MetadataDelta
from .image import Entity, EpochRow, Quorum, Voter, VoterEndpoint
from .replay import Position


def replay_control(
    control: ControlRecord, delta: MetadataDelta, quorum: Quorum, at: Position
) -> Quorum:
    """Write a control record's epoch into ``delta``; the quorum that it leaves is returned.

    What it does not know, and markers of producers, change nothing. Raises ``ReplayError`` for a
    checkpoint's header or footer: they do not occur in a log.
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
                reason="it belongs into a checkpoint, not into a log",
            )
        case EndTransactionMarker() | UnknownControl():
            return quorum


def quorum_after(control: ControlRecord, quorum: Quorum) -> Quorum:
    """The quorum after a control record, of a log or at the head of a checkpoint."""
    match control:
        case KRaftVersion():
            return dataclasses.replace(quorum, kraft_version=control.kraft_version)
        case KRaftVoters():
            voters = sorted(map(_voter_row, control.voters), key=lambda voter: voter.voter_id)
            return dataclasses.replace(quorum, voters=tuple(voters))
        case _:
            return quorum


def kraft_voters(voters: tuple[Voter, ...]) -> KRaftVoters:
    """The control record that says what ``quorum_after`` understood."""
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
    """Voters and version belong to the epoch that runs, if its beginning was seen."""
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
