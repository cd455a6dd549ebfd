"""``raftlog node format``: make a node's directory, once."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .output import Console, Output
from .parser import Parser

if TYPE_CHECKING:
    from raftlog.node.config import NodeConfig
    from raftlog.quorum.voters import VoterSet

ABOUT = """
Make the directory that FILE names, as Kafka's kafka-storage does, and print who it belongs to. Say
who votes, in one of three ways, unless static_voters in FILE does:

  --standalone        this node alone; others are added later (kafka-metadata-quorum add-controller)
  --initial-voters    these nodes, each of which is formatted with the same list
  --no-initial-voters others; this node is added later

What is there is never written over: a node that forgets what it has voted can elect a second
leader. What a format that was cut short left is gone over.
"""

EXAMPLES = """
raftlog node format --config node.toml --standalone
raftlog node format --config node.toml --cluster-id 4L6g3nShT-eMCtK--X86sw \\
  --initial-voters 1@10.0.0.1:9193:AAbC...,2@10.0.0.2:9193:BBcD...,3@10.0.0.3:9193:CCdE...
raftlog node format --config node-4.toml --cluster-id 4L6g3nShT-eMCtK--X86sw --no-initial-voters
"""


def parser() -> Parser:
    """What ``raftlog node format`` takes."""
    command = Parser("node format", ABOUT, EXAMPLES, takes_path=False)
    command.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="the node's TOML file"
    )
    command.add_argument(
        "-t",
        "--cluster-id",
        metavar="ID",
        help="the same for all nodes, as `raftlog node random-uuid` prints one; a new one by "
        "default for --standalone",
    )
    ways = command.add_mutually_exclusive_group()
    ways.add_argument("--standalone", action="store_true", help="this node alone votes at first")
    ways.add_argument(
        "--initial-voters",
        metavar="ID@HOST:PORT:DIRECTORY_ID,...",
        help="who votes at first, by the addresses of their listeners for voters",
    )
    ways.add_argument("--no-initial-voters", action="store_true", help="to be added later")
    command.add_argument(
        "--ignore-formatted",
        action="store_true",
        help="do nothing if it is formatted already, for this node and this cluster",
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print whose directory it is then. Returns the exit code."""
    if arguments.cluster_id is None and not arguments.standalone:
        parser().error("--cluster-id is missing: all nodes of a cluster have the same")

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
    """What the directory says, which must be of this cluster, in the words of its file."""
    from raftlog.errors import WrongClusterError
    from raftlog.node.formatting import read_identity

    meta = read_identity(config)
    assert meta.cluster_id is not None, "it was read"
    if cluster_id not in (None, meta.cluster_id):
        raise WrongClusterError(
            path=config.directory, expected_cluster_id=cluster_id, cluster_id=meta.cluster_id
        )
    return (
        f"cluster.id={meta.cluster_id}",
        f"node.id={meta.node_id}",
        f"directory.id={meta.directory_id}",
    )
