"""Description, addition and removal of voters, and the upgrade of kraft.version (KIP-853).

All requests go to the quorum's leader. A quorum refuses a change while another one is in progress.
A refusal or a timeout raises ``VoterChangeError`` with Kafka's error code and the node's message.
After a timeout the change may still be committed; ``describe_quorum`` shows whether it was. After a
lost connection the request is sent again, so a committed change may be refused as a duplicate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.add_raft_voter.v1 import request as add_voter_schema
from kio.schema.add_raft_voter.v1.response import AddRaftVoterResponse
from kio.schema.describe_quorum.v2.response import DescribeQuorumResponse
from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest
from kio.schema.remove_raft_voter.v0.response import RemoveRaftVoterResponse

from raftlog.errors import VoterChangeError
from raftlog.types import ReplicaKey
from raftlog.wire import ApiKey, latest_schemas
from raftlog.wire.api_versions import KRAFT_VERSION
from raftlog.wire.log_identity import uuid_or_none, uuid_text

from . import messages
from .leader_client import LeaderClient

_COMMIT_WAIT: Final = timedelta(seconds=5)
"""Shorter than the client's response timeout."""
_TIMED_OUT: Final = 7
_UNSUPPORTED_VERSION: Final = 35
_INVALID_REQUEST: Final = 42
_STORAGE_ERROR: Final = 56
_INVALID_UPDATE_VERSION: Final = 95
_INVALID_VOTER_KEY: Final = 125
_DUPLICATE_VOTER: Final = 126
_VOTER_NOT_FOUND: Final = 127
_REFUSALS: Final = (
    _TIMED_OUT,
    _UNSUPPORTED_VERSION,
    _INVALID_REQUEST,
    _STORAGE_ERROR,
    _INVALID_UPDATE_VERSION,
    _INVALID_VOTER_KEY,
    _DUPLICATE_VOTER,
    _VOTER_NOT_FOUND,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    """Host and port of a node. ``listener`` is the name of the listener."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """State of a replica at the leader. Times are in ms since 1970, None if unknown."""

    key: ReplicaKey
    is_voter: bool
    end_offset: int | None
    fetched_ms: int | None
    caught_up_ms: int | None
    addresses: tuple[NodeAddress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumInfo:
    """State of a quorum at its leader. ``high_watermark``: exclusive, None if not known yet.
    ``warnings``: of the leader, about itself."""

    cluster_id: str | None
    topic: str
    leader_id: int
    epoch: int
    high_watermark: int | None
    replicas: tuple[ReplicaState, ...]
    warnings: tuple[str, ...] = ()


def describe_quorum(quorum: LeaderClient) -> QuorumInfo:
    """Return the leader, the voters and the observers, with their end offsets (DescribeQuorum)."""

    def parse(response: DescribeQuorumResponse) -> tuple[int, Any]:
        error, partition = messages.parse_partition(response)
        return error, (partition, response.nodes)

    _, (partition, nodes) = quorum.send_to_leader(
        ApiKey.DESCRIBE_QUORUM, lambda _: messages.quorum_request(), DescribeQuorumResponse, parse
    )
    addresses = {
        int(node.node_id): tuple(
            NodeAddress(listener=one.name, host=one.host, port=int(one.port))
            for one in node.listeners
        )
        for node in nodes
    }
    identity = quorum.identity()
    return QuorumInfo(
        cluster_id=identity.cluster_id,
        topic=identity.topic,
        leader_id=int(partition.leader_id),
        epoch=int(partition.leader_epoch),
        high_watermark=_known(partition.high_watermark),
        warnings=tuple((partition.error_message or "").splitlines()),
        replicas=tuple(
            ReplicaState(
                key=ReplicaKey(int(state.replica_id), uuid_text(state.replica_directory_id)),
                is_voter=is_voter,
                end_offset=_known(state.log_end_offset),
                fetched_ms=_milliseconds(state.last_fetch_timestamp),
                caught_up_ms=_milliseconds(state.last_caught_up_timestamp),
                addresses=addresses.get(int(state.replica_id), ()),
            )
            for states, is_voter in ((partition.current_voters, True), (partition.observers, False))
            for state in states
        ),
    )


def add_voter(quorum: LeaderClient, key: ReplicaKey, addresses: Sequence[NodeAddress]) -> None:
    """Add a node, which already replicates the log, as a voter. Returns when that is committed.

    Raises ``VoterChangeError``.
    """
    request = add_voter_schema.AddRaftVoterRequest(
        cluster_id=quorum.identity().cluster_id,
        timeout=_any(_COMMIT_WAIT),
        voter_id=_any(key.node_id),
        voter_directory_id=uuid_or_none(key.directory_id),
        listeners=tuple(
            add_voter_schema.Listener(name=one.listener, host=one.host, port=_any(one.port))
            for one in addresses
        ),
        ack_when_committed=True,
    )
    _change(quorum, ApiKey.ADD_RAFT_VOTER, request, AddRaftVoterResponse)


def remove_voter(quorum: LeaderClient, key: ReplicaKey) -> None:
    """Remove a voter. Returns when that is committed; a leader that is removed resigns.

    Raises ``VoterChangeError``.
    """
    request = RemoveRaftVoterRequest(
        cluster_id=quorum.identity().cluster_id,
        voter_id=_any(key.node_id),
        voter_directory_id=uuid_or_none(key.directory_id),
    )
    _change(quorum, ApiKey.REMOVE_RAFT_VOTER, request, RemoveRaftVoterResponse)


def upgrade_kraft_version(
    quorum: LeaderClient, version: int, *, validate_only: bool = False
) -> None:
    """Raise the kraft.version: from 1 on the voters are in the log. Returns when it is committed.

    Does nothing if the quorum has that version. ``validate_only``: the leader only checks whether
    it could.

    Raises ``VoterChangeError``: the version is lower, or a voter does not support it or has not
    reported itself.
    """
    update = latest_schemas.FeatureUpdate(
        feature=KRAFT_VERSION,
        max_version_level=_any(version),
        upgrade_type=_any(latest_schemas.FEATURE_UPGRADE),
    )
    request = latest_schemas.UpdateFeaturesRequest(
        timeout=_any(_COMMIT_WAIT), feature_updates=(update,), validate_only=validate_only
    )
    _change(quorum, ApiKey.UPDATE_FEATURES, request, latest_schemas.UpdateFeaturesResponse)


def _change(quorum: LeaderClient, api_key: ApiKey, request: Any, target: type[Any]) -> None:
    def parse(response: Any) -> tuple[int, str | None]:
        return int(response.error_code), response.error_message

    error, text = quorum.send_to_leader(
        api_key, lambda _: request, target, parse, allowed=_REFUSALS
    )
    if error:
        raise VoterChangeError(path=quorum.path, error=error, reason=text or "no reason given")


def _known(offset: int) -> int | None:
    return None if offset < 0 else int(offset)


def _milliseconds(moment: Any) -> int | None:
    """Return milliseconds of a time in kio's form: an int or a datetime, by schema."""
    if moment is None:
        return None
    value = int(moment) if isinstance(moment, int) else round(moment.timestamp() * 1000)
    return None if value < 0 else value


def _any(value: object) -> Any:
    """Return a value as any of kio's types: the codec checks it."""
    return value
