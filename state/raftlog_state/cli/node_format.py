"""``raftlog node format``: format the directory of a new node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .output import Console, Output
from .parser import Parser

if TYPE_CHECKING:
    from raftlog.node.config import NodeConfig
    from raftlog.quorum.voters import VoterSet

ABOUT = """
Format the directory that FILE names, like Kafka's kafka-storage, and print its cluster id, node id
and directory id. Unless FILE has static_voters, one of these options selects the initial voters:

  --standalone         this node alone; add others later (`raftlog quorum --add-voter`, or
                       kafka-metadata-quorum add-controller)
  --initial-voters     the listed nodes; format each of them with the same list
  --no-initial-voters  other nodes; this node starts as an observer and can be added later

A formatted directory is never overwritten: a node that loses its vote could elect a second leader
in the same epoch. A format that was interrupted can be repeated.
"""

EXAMPLES = """
raftlog node format --config node.toml --standalone
raftlog node format --config node.toml --cluster-id 4L6g3nShT-eMCtK--X86sw \\
  --initial-voters 1@10.0.0.1:9193:AAbC...,2@10.0.0.2:9193:BBcD...,3@10.0.0.3:9193:CCdE...
raftlog node format --config node-4.toml --cluster-id 4L6g3nShT-eMCtK--X86sw --no-initial-voters
"""


def parser() -> Parser:
    """Return the parser of ``raftlog node format``."""
    command = Parser("node format", ABOUT, EXAMPLES, takes_path=False)
    command.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="configuration of the node (TOML)"
    )
    command.add_argument(
        "-t",
        "--cluster-id",
        metavar="ID",
        help="id of the cluster, the same for all of its nodes, from `raftlog node random-uuid`; "
        "default with --standalone: a random id",
    )
    ways = command.add_mutually_exclusive_group()
    ways.add_argument(
        "--standalone", action="store_true", help="this node is the only initial voter"
    )
    ways.add_argument(
        "--initial-voters",
        metavar="ID@HOST:PORT:DIRECTORY_ID,...",
        help="the initial voters, with the addresses of their listeners for voters",
    )
    ways.add_argument(
        "--no-initial-voters", action="store_true", help="this node is no initial voter"
    )
    command.add_argument(
        "--ignore-formatted",
        action="store_true",
        help="do nothing if the directory is already formatted for this node and cluster",
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Format the directory and print its identity; return the exit code."""
    if arguments.cluster_id is None and not arguments.standalone:
        parser().error("--cluster-id is missing: all nodes of a cluster must have the same id")

    from raftlog.errors import AlreadyFormattedError
    from raftlog.node.config import read_config
    from raftlog.node.formatting import format_directory, random_id

    config = read_config(arguments.config)
    try:
        format_directory(
            config,
            cluster_id=arguments.cluster_id or random_id(),
            initial_voters=_initial_voters(arguments.initial_voters),
            is_standalone=arguments.standalone,
            is_observer=arguments.no_initial_voters,
        )
    except AlreadyFormattedError:
        if not arguments.ignore_formatted:
            raise
    output.lines(_identity(config, arguments.cluster_id))
    return 0


def _initial_voters(text: str | None) -> VoterSet | None:
    from raftlog.errors import OptionError
    from raftlog.node.addresses import parse_initial_voters

    if text is None:
        return None
    try:
        return parse_initial_voters(text)
    except ValueError as error:
        raise OptionError(option="--initial-voters", reason=str(error)) from None


def _identity(config: NodeConfig, cluster_id: str | None) -> tuple[str, ...]:
    """Return the lines of ``meta.properties`` that identify the directory.

    Raises:
        WrongClusterError: The directory belongs to another cluster.
    """
    from raftlog.errors import WrongClusterError
    from raftlog.node.formatting import read_identity

    meta = read_identity(config)
    assert meta.cluster_id is not None, "checked by read_identity"
    if cluster_id not in (None, meta.cluster_id):
        raise WrongClusterError(
            path=config.directory, expected_cluster_id=cluster_id, cluster_id=meta.cluster_id
        )
    return (
        f"cluster.id={meta.cluster_id}",
        f"node.id={meta.node_id}",
        f"directory.id={meta.directory_id}",
    )
