"""``raftlog quorum``: who leads and who votes, and a voter more or less."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from raftlog.errors import OptionError
from raftlog.types import ReplicaKey

from .output import Console, Output
from .parser import Parser
from .source import quorum_of

if TYPE_CHECKING:
    from raftlog.client.remote.voters import NodeAddress, QuorumInfo, ReplicaState

ABOUT = """
Show who leads a quorum, who votes and who only follows, how far each copy of the log is and where
each node listens, as the leader knows it. One change of voters may go before it: a node that was
formatted with --no-initial-voters, and runs, is added; a voter is removed, the leader too.
"""

EXAMPLES = """
raftlog quorum --bootstrap-server 127.0.0.1:9192
raftlog quorum --bootstrap-server 127.0.0.1:9192 --add-voter 4@127.0.0.1:9492:DIRECTORY_ID
raftlog quorum --bootstrap-server 127.0.0.1:9192 --remove-voter 1:DIRECTORY_ID
"""


def parser() -> Parser:
    """What ``raftlog quorum`` takes."""
    command = Parser("quorum", ABOUT, EXAMPLES, takes_path=False, takes_nodes=True)
    change = command.add_mutually_exclusive_group()
    change.add_argument(
        "--add-voter",
        metavar="ID@HOST:PORT:DIRECTORY",
        help="where it listens for voters; its directory id is in its meta.properties",
    )
    change.add_argument("--remove-voter", metavar="ID:DIRECTORY", help="as shown")
    command.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Change what is asked for, then print. Returns the exit code."""
    from raftlog.client.remote.voters import add_voter, describe_quorum, remove_voter

    added = None if arguments.add_voter is None else _parse_added_voter(arguments.add_voter)
    removed = (
        None if arguments.remove_voter is None else _parse_removed_voter(arguments.remove_voter)
    )
    with closing(quorum_of(arguments)) as quorum:
        if added is not None:
            add_voter(quorum, *added)
        if removed is not None:
            remove_voter(quorum, removed)
        quorum_info = describe_quorum(quorum)
    if arguments.json:
        output.line(json.dumps(_as_json(quorum_info)))
    else:
        _print(quorum_info, output, now_ms=time.time_ns() // 1_000_000)
    return 0


def _parse_added_voter(text: str) -> tuple[ReplicaKey, list[NodeAddress]]:
    """Who is added, and where it listens. Raises ``OptionError``."""
    from raftlog.client.remote.voters import NodeAddress
    from raftlog.node.addresses import parse_initial_voters

    try:
        (voter,) = parse_initial_voters(text)
    except ValueError as error:
        raise OptionError(option="--add-voter", reason=str(error)) from None
    return voter.key, [
        NodeAddress(listener=one.name, host=one.host, port=one.port) for one in voter.endpoints
    ]


def _parse_removed_voter(text: str) -> ReplicaKey:
    """Who is removed. Raises ``OptionError``."""
    from raftlog.node.addresses import is_directory_id

    node_id, _, directory_id = text.partition(":")
    if not (node_id.isascii() and node_id.isdigit() and is_directory_id(directory_id)):
        raise OptionError(
            option="--remove-voter", reason="it is ID:DIRECTORY, as `raftlog quorum` shows them"
        )
    return ReplicaKey(int(node_id), directory_id)


def _print(quorum_info: QuorumInfo, output: Output, *, now_ms: int) -> None:
    high_watermark = quorum_info.high_watermark
    known = "not known yet" if high_watermark is None else str(high_watermark)
    output.line(f"cluster {quorum_info.cluster_id}, log {quorum_info.topic}")
    output.line(
        f"node {quorum_info.leader_id} leads epoch {quorum_info.epoch}; high watermark {known}"
    )
    head = ("NODE", "DIRECTORY", "IS", "END", "BEHIND", "SEEN", "LISTENS AT")
    rows: list[tuple[str, ...]] = [head]
    leader_end = max((one.end_offset or 0 for one in quorum_info.replicas), default=0)
    rows += [_replica_row(one, quorum_info, leader_end, now_ms) for one in quorum_info.replicas]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        output.line("  ".join(cells).rstrip())


def _replica_row(
    one: ReplicaState, quorum_info: QuorumInfo, leader_end: int, now_ms: int
) -> tuple[str, ...]:
    is_leader = one.is_voter and one.key.node_id == quorum_info.leader_id
    role = "leader" if is_leader else "voter" if one.is_voter else "observer"
    seen = "never" if one.fetched_ms is None else f"{max(now_ms - one.fetched_ms, 0)} ms ago"
    return (
        str(one.key.node_id),
        one.key.directory_id,
        role,
        "-" if one.end_offset is None else str(one.end_offset),
        "-" if one.end_offset is None else str(leader_end - one.end_offset),
        "now" if is_leader else seen,
        ", ".join(map(_address, one.addresses)) or "-",
    )


def _address(one: NodeAddress) -> str:
    host = f"[{one.host}]" if ":" in one.host else one.host
    return f"{one.listener} {host}:{one.port}"


def _as_json(quorum_info: QuorumInfo) -> dict[str, Any]:
    return {
        "clusterId": quorum_info.cluster_id,
        "topic": quorum_info.topic,
        "leaderId": quorum_info.leader_id,
        "epoch": quorum_info.epoch,
        "highWatermark": quorum_info.high_watermark,
        "replicas": [
            {
                "nodeId": one.key.node_id,
                "directoryId": one.key.directory_id,
                "isVoter": one.is_voter,
                "endOffset": one.end_offset,
                "fetchedMs": one.fetched_ms,
                "caughtUpMs": one.caught_up_ms,
                "addresses": [
                    {"listener": at.listener, "host": at.host, "port": at.port}
                    for at in one.addresses
                ],
            }
            for one in quorum_info.replicas
        ],
    }
