"""Checks of running nodes: leader, followers, and progress of appends."""

from __future__ import annotations

from contextlib import closing

from raftlog.client.remote.leader_client import LeaderClient
from raftlog.client.remote.nodes import parse_addresses
from raftlog.client.remote.voters import (
    NodeAddress,
    QuorumInfo,
    add_voter,
    describe_quorum,
    remove_voter,
)
from raftlog.node.addresses import CLIENTS_NAME, CONTROLLER_NAME
from raftlog.types import ReplicaKey

from .quorum_load import Load
from .quorum_processes import NodeProcess, QuorumProcesses, eventually


def leader_of(quorum: QuorumProcesses) -> NodeProcess | None:
    """Return the running node that last logged to be leader, in the newest epoch with a leader."""
    elected = [
        (line["epoch"], line["node"])
        for node in quorum.nodes
        for line in node.lines()
        if line["event"] == "role" and line["new"] == "leader"
    ]
    if not elected:
        return None
    leader = quorum.node(max(elected)[1])
    return leader if leader.is_running else None


def epoch_of(quorum: QuorumProcesses) -> int:
    epochs: list[int] = [
        line["epoch"] for node in quorum.nodes for line in node.lines() if "epoch" in line
    ]
    return max(epochs)


def follows(node: NodeProcess) -> bool:
    """Return whether it is a follower now, according to its log lines."""
    roles = [line["new"] for line in node.lines() if line["event"] == "role"]
    return roles[-1:] == ["follower"]


def grows(load: Load, by: int = 20) -> None:
    """Wait until this many more appends are acknowledged."""
    before = load.count
    eventually(lambda: load.count >= before + by or load.book.failures, "appends are acknowledged")
    assert not load.book.failures, load.book.failures


def quorum_info_of(quorum: QuorumProcesses) -> QuorumInfo:
    """Return the quorum as its leader reports it."""
    with closing(LeaderClient(parse_addresses(quorum.bootstrap))) as asked:
        return describe_quorum(asked)


def is_level(quorum: QuorumProcesses, node: NodeProcess) -> bool:
    """Return whether a node has everything committed, as the leader reports it."""
    quorum_info = quorum_info_of(quorum)
    found = [one for one in quorum_info.replicas if one.key == key_of(node)]
    committed = quorum_info.high_watermark
    return bool(found) and committed is not None and (found[0].end_offset or 0) >= committed


def wait_until_listeners_are_known(quorum: QuorumProcesses) -> None:
    """Wait until the leader has the client endpoints of each running voter.

    A voter that starts updates its endpoints by a control record, which takes an offset, and while
    it is not committed the leader refuses other changes of voters.
    """
    running = {node.node_id for node in quorum.running()}

    def is_settled() -> bool:
        voters = [
            one.addresses
            for one in quorum_info_of(quorum).replicas
            if one.is_voter and one.key.node_id in running
        ]
        return bool(voters) and all(
            any(address.listener == CLIENTS_NAME for address in addresses) for addresses in voters
        )

    eventually(is_settled, "the leader knows the client endpoints of the voters")


def key_of(node: NodeProcess) -> ReplicaKey:
    return ReplicaKey(node.node_id, node.directory_id)


def add(quorum: QuorumProcesses, node: NodeProcess) -> None:
    """Add a node as a voter."""
    wait_until_listeners_are_known(quorum)
    at = NodeAddress(listener=CONTROLLER_NAME, host="127.0.0.1", port=node.port)
    with closing(LeaderClient(parse_addresses(quorum.bootstrap))) as asked:
        add_voter(asked, key_of(node), [at])


def remove(quorum: QuorumProcesses, key: ReplicaKey) -> None:
    """Remove a voter."""
    wait_until_listeners_are_known(quorum)
    with closing(LeaderClient(parse_addresses(quorum.bootstrap))) as asked:
        remove_voter(asked, key)


def voter_ids(quorum: QuorumProcesses) -> list[int]:
    return sorted(one.key.node_id for one in quorum_info_of(quorum).replicas if one.is_voter)
