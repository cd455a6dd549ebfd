"""``raftlog quorum``: describe a quorum, add or remove a voter, raise kraft.version."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from .output import Console, Output
from .parser import Commands, add_color
from .source import add_nodes, leader_client
from .text_table import GOOD, WARNING, Cell, write_table

if TYPE_CHECKING:
    from raftlog.client.remote.voters import NodeAddress, QuorumInfo, ReplicaState
    from raftlog.types import ReplicaKey

ABOUT = """
Describe a quorum as its leader sees it: the leader, voters and observers, the log end offset and
lag of each replica, the listeners of each node, and the leader's warnings about itself, for
instance that its log is not trimmed.

Optionally add or remove one voter first. A node must be formatted with --no-initial-voters and
running before it is added. The leader can be removed, too. The voters of a quorum with
static_voters (kraft.version 0) can be changed only after --kraft-version 1, which cannot be undone.
"""

EXAMPLES = """
raftlog quorum --bootstrap-server 127.0.0.1:9192
raftlog quorum --bootstrap-server 127.0.0.1:9192 --add-voter 4@127.0.0.1:9492:DIRECTORY_ID
raftlog quorum --bootstrap-server 127.0.0.1:9192 --remove-voter 1:DIRECTORY_ID
raftlog quorum --bootstrap-server 127.0.0.1:9192 --kraft-version 1
"""


def add_quorum(commands: Commands) -> None:
    """Add ``raftlog quorum``."""
    command = commands.add_parser("quorum", about=ABOUT, examples=EXAMPLES)
    command.set_defaults(run=run_quorum)
    add_nodes(command)
    change = command.add_mutually_exclusive_group()
    change.add_argument(
        "--add-voter",
        metavar="ID@HOST:PORT:DIRECTORY",
        help="add this voter: node id, address of its voter listener, and directory id (from its "
        "meta.properties)",
    )
    change.add_argument(
        "--remove-voter",
        metavar="ID:DIRECTORY",
        help="remove this voter: node id and directory id, as this command prints them",
    )
    change.add_argument(
        "--kraft-version",
        type=int,
        choices=(0, 1),
        help="raise kraft.version, like `kafka-features upgrade --feature kraft.version=1`",
    )
    command.add_argument(
        "--json", action="store_true", help="print one JSON object instead of a table"
    )
    add_color(command)


def run_quorum(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Change the voters if requested, then describe the quorum; return the exit code."""
    from raftlog.client.remote.voters import (
        add_voter,
        describe_quorum,
        remove_voter,
        upgrade_kraft_version,
    )

    added = None if arguments.add_voter is None else _parse_added_voter(arguments.add_voter)
    removed = (
        None if arguments.remove_voter is None else _parse_removed_voter(arguments.remove_voter)
    )
    with closing(leader_client(arguments)) as leader:
        if added is not None:
            add_voter(leader, *added)
        if removed is not None:
            remove_voter(leader, removed)
        if arguments.kraft_version is not None:
            upgrade_kraft_version(leader, arguments.kraft_version)
        quorum_info = describe_quorum(leader)
    if arguments.json:
        output.line(json.dumps(_as_json(quorum_info)))
    else:
        _print(quorum_info, output, now_ms=time.time_ns() // 1_000_000)
    return 0


def _parse_added_voter(text: str) -> tuple[ReplicaKey, list[NodeAddress]]:
    """Parse ``--add-voter`` into a replica key and its listeners. Raises ``OptionError``."""
    from raftlog.client.remote.voters import NodeAddress
    from raftlog.errors import OptionError
    from raftlog.node.addresses import parse_initial_voters

    try:
        (voter,) = parse_initial_voters(text)
    except ValueError as error:
        raise OptionError(option="--add-voter", reason=str(error)) from None
    return voter.key, [
        NodeAddress(listener=endpoint.name, host=endpoint.host, port=endpoint.port)
        for endpoint in voter.endpoints
    ]


def _parse_removed_voter(text: str) -> ReplicaKey:
    """Parse ``--remove-voter``. Raises ``OptionError``."""
    from raftlog.errors import OptionError
    from raftlog.node.addresses import is_directory_id
    from raftlog.types import ReplicaKey

    node_id, _, directory_id = text.partition(":")
    if not (node_id.isascii() and node_id.isdigit() and is_directory_id(directory_id)):
        raise OptionError(
            option="--remove-voter",
            reason="must be ID:DIRECTORY, as `raftlog quorum` prints them",
        )
    return ReplicaKey(int(node_id), directory_id)


def _print(quorum_info: QuorumInfo, output: Output, *, now_ms: int) -> None:
    high_watermark = quorum_info.high_watermark
    known = "unknown" if high_watermark is None else str(high_watermark)
    output.line(f"cluster {quorum_info.cluster_id}, log {quorum_info.topic}")
    output.line(
        f"leader {quorum_info.leader_id}, epoch {quorum_info.epoch}, high watermark {known}"
    )
    head = ("NODE", "DIRECTORY", "STATUS", "END OFFSET", "LAG", "LAST FETCH", "LISTENERS")
    replicas = quorum_info.replicas
    leader_end = max((replica.end_offset or 0 for replica in replicas), default=0)
    rows = [_replica_row(replica, quorum_info, leader_end, now_ms) for replica in replicas]
    write_table(head, lambda: rows, output)
    for text in quorum_info.warnings:
        output.styled(("warning", WARNING), (f": {text}", ""))


def _replica_row(
    replica: ReplicaState, quorum_info: QuorumInfo, leader_end: int, now_ms: int
) -> tuple[Cell, ...]:
    is_leader = replica.is_voter and replica.key.node_id == quorum_info.leader_id
    role = "leader" if is_leader else "voter" if replica.is_voter else "observer"
    seen = (
        "never" if replica.fetched_ms is None else f"{max(now_ms - replica.fetched_ms, 0)} ms ago"
    )
    return (
        str(replica.key.node_id),
        replica.key.directory_id,
        (role, GOOD if is_leader else ""),
        "-" if replica.end_offset is None else str(replica.end_offset),
        "-" if replica.end_offset is None else str(leader_end - replica.end_offset),
        "now" if is_leader else seen,
        ", ".join(map(_address, replica.addresses)) or "-",
    )


def _address(address: NodeAddress) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{address.listener} {host}:{address.port}"


def _as_json(quorum_info: QuorumInfo) -> dict[str, Any]:
    return {
        "clusterId": quorum_info.cluster_id,
        "topic": quorum_info.topic,
        "leaderId": quorum_info.leader_id,
        "epoch": quorum_info.epoch,
        "highWatermark": quorum_info.high_watermark,
        "warnings": list(quorum_info.warnings),
        "replicas": [
            {
                "nodeId": replica.key.node_id,
                "directoryId": replica.key.directory_id,
                "isVoter": replica.is_voter,
                "endOffset": replica.end_offset,
                "fetchedMs": replica.fetched_ms,
                "caughtUpMs": replica.caught_up_ms,
                "addresses": [
                    {"listener": at.listener, "host": at.host, "port": at.port}
                    for at in replica.addresses
                ],
            }
            for replica in quorum_info.replicas
        ],
    }
