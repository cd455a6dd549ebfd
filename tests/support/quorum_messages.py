"""Hypothesis strategies for all messages between replicas."""

from __future__ import annotations

from hypothesis import strategies as st

from raftlog.quorum.messages import (
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    ErrorCode,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderAndEpoch,
    RemoveVoterRequest,
    UpdateVoterRequest,
    VersionsRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from raftlog.quorum.voters import Endpoint, Voter
from raftlog.types import OffsetAndEpoch, ReplicaKey, SnapshotId
from raftlog.wire import LogIdentity
from raftlog.wire.log_identity import uuid_text

IDENTITY = LogIdentity(
    topic="decisions", topic_id="AQIDBAUGBwgREhMUFRYXGA", cluster_id="abc", listener_name="VOTERS"
)

ids = st.integers(0, 2**31 - 1)
epochs = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
times = st.integers(0, 2**31 - 1)
byte_counts = st.integers(0, 2**31 - 1)
directories = st.none() | st.uuids()
keys = st.builds(ReplicaKey, ids, directories.map(uuid_text))
set_keys = st.builds(ReplicaKey, ids, st.uuids().filter(lambda one: one.int != 0).map(uuid_text))
"""Replica keys of a voter set in the log: each with a directory id."""
ports = st.integers(1, 65_535)
texts = st.text(max_size=8)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
hosts = st.one_of(
    st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?\.?", fullmatch=True),
    st.ip_addresses(v=6).map(str),
)
endpoints = st.builds(Endpoint, names, hosts, ports)
endpoint_lists = st.lists(endpoints, max_size=3, unique_by=lambda one: one.name).map(tuple)
voter_endpoints = st.tuples(
    st.builds(Endpoint, st.just("VOTERS"), hosts, ports),
    endpoint_lists.filter(lambda found: all(one.name != "VOTERS" for one in found)),
).map(lambda found: (found[0], *found[1]))
snapshot_ids = st.builds(SnapshotId, epoch=epochs, end_offset=offsets)
voters = st.builds(Voter, key=set_keys, endpoints=voter_endpoints)
errors = st.sampled_from(ErrorCode)
leaders = st.builds(
    LeaderAndEpoch,
    epoch=epochs,
    leader_id=ids,
    leader_endpoints=st.just(()) | st.tuples(st.builds(Endpoint, st.just("VOTERS"), hosts, ports)),
)
standings = leaders | st.builds(LeaderAndEpoch, epoch=epochs)

requests = st.one_of(
    st.builds(
        VoteRequest,
        epoch=epochs,
        candidate=keys,
        voter=st.none() | keys,
        last_offset=offsets,
        last_epoch=epochs,
        is_pre_vote=st.booleans(),
    ),
    st.builds(
        BeginQuorumEpochRequest,
        epoch=epochs,
        leader_id=ids,
        voter=st.none() | keys,
        leader_endpoints=endpoint_lists,
    ),
    st.builds(
        EndQuorumEpochRequest,
        epoch=epochs,
        leader_id=ids,
        preferred_successors=st.lists(keys, max_size=3).map(tuple),
        leader_endpoints=endpoint_lists,
    ),
    st.builds(
        FetchRequest,
        replica=keys,
        epoch=epochs,
        fetch_offset=offsets,
        last_fetched_epoch=epochs,
        max_bytes=byte_counts,
        max_wait_ms=times,
        high_watermark=st.none() | offsets,
        log_start_offset=st.none() | offsets,
    ),
    st.builds(
        FetchSnapshotRequest,
        replica=keys,
        epoch=epochs,
        snapshot_id=snapshot_ids,
        position=offsets,
        max_bytes=byte_counts,
    ),
    st.builds(
        AddVoterRequest,
        voter=voters,
        timeout_ms=times,
        ack_when_committed=st.booleans(),
    ),
    st.builds(RemoveVoterRequest, voter=set_keys),
    st.builds(UpdateVoterRequest, epoch=epochs, voter=voters),
    st.just(VersionsRequest()),
)


def _fetched(leader_and_epoch: LeaderAndEpoch) -> st.SearchStrategy[FetchResponse]:
    known = {
        "leader_and_epoch": st.just(leader_and_epoch),
        "high_watermark": st.none() | offsets,
        "log_start_offset": st.none() | offsets,
    }
    return st.one_of(
        st.builds(FetchResponse, records=st.binary(max_size=50), **known),
        st.builds(
            FetchResponse,
            diverging=st.builds(OffsetAndEpoch, epoch=epochs, offset=offsets),
            **known,
        ),
        st.builds(FetchResponse, snapshot_id=snapshot_ids, **known),
        st.builds(FetchResponse, error=errors, **known),
    )


PartitionResponse = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
)
partition_responses = st.one_of(
    st.builds(VoteResponse, leader_and_epoch=standings, is_granted=st.booleans(), error=errors),
    st.builds(BeginQuorumEpochResponse, leader_and_epoch=standings, error=errors),
    st.builds(EndQuorumEpochResponse, leader_and_epoch=standings, error=errors),
    standings.flatmap(_fetched),
    st.builds(
        FetchSnapshotResponse,
        leader_and_epoch=standings,
        snapshot_id=snapshot_ids,
        error=errors,
        byte_count=offsets,
        position=offsets,
        data=st.binary(max_size=50),
    ),
)
voter_changes = st.builds(
    VoterChangeResponse, leader_and_epoch=standings, error=errors, reason=st.none() | texts
)
