"""JSON of control records as ``kafka-dump-log`` prints it (Kafka: ``DumpLogSegments``).

Fields, their names and their order are those of Kafka's JSON converters.
"""

from __future__ import annotations

from typing import Any

from .control_messages import (
    ControlRecord,
    EndTransactionMarker,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    UnknownControl,
    Voter,
)


def control_json(record: ControlRecord) -> dict[str, Any]:
    """Return the JSON object that ``kafka-dump-log`` prints for ``record``.

    An unknown control record has its type id and no payload, as in ``kafka-dump-log``.
    """
    match record:
        case LeaderChange():
            return {
                "version": record.version,
                "leaderId": record.leader_id,
                "voters": [_leader_change_json(voter, record.version) for voter in record.voters],
                "grantingVoters": [
                    _leader_change_json(voter, record.version) for voter in record.granting_voters
                ],
            }
        case SnapshotHeader():
            return {
                "version": record.version,
                "lastContainedLogTimestamp": record.last_contained_log_timestamp_ms,
            }
        case SnapshotFooter():
            return {"version": record.version}
        case KRaftVersion():
            return {"version": record.version, "kRaftVersion": record.kraft_version}
        case KRaftVoters():
            voters = [_voter_json(voter) for voter in record.voters]
            return {"version": record.version, "voters": voters}
        case EndTransactionMarker():
            return {
                "endTxnMarker": record.control_type.name,
                "coordinatorEpoch": record.coordinator_epoch,
            }
        case UnknownControl():
            return {"controlType": "UNKNOWN", "typeId": record.type_id}


def _leader_change_json(voter: LeaderChangeVoter, version: int) -> dict[str, Any]:
    out: dict[str, Any] = {"voterId": voter.voter_id}
    if version >= 1:
        out["voterDirectoryId"] = voter.voter_directory_id
    return out


def _voter_json(voter: Voter) -> dict[str, Any]:
    return {
        "voterId": voter.voter_id,
        "voterDirectoryId": voter.voter_directory_id,
        "endpoints": [
            {"name": endpoint.name, "host": endpoint.host, "port": endpoint.port}
            for endpoint in voter.endpoints
        ],
        "kRaftVersionFeature": {
            "minSupportedVersion": voter.min_supported_version,
            "maxSupportedVersion": voter.max_supported_version,
        },
    }
