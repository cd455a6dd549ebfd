"""``raftlog node recover``: have a stopped node vote again whose log or votes were damaged."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Look at the directory of a stopped node, and tell what keeps the node from voting: its log was
damaged below what it had acknowledged (it votes again when it has fetched from a leader what is
committed), or its quorum-state is damaged, missing, or has an epoch that no election comes after.

With --allow-data-loss the node votes with what it has. That is for a quorum in which too many nodes
are damaged to elect a leader. Acknowledged records are lost if they were on damaged nodes alone:
first try to restore one of those nodes from a backup, and recover no more nodes than a majority
needs. If quorum-state is damaged, all nodes with such a file must be stopped.

The exit code is 1 if something still keeps the node from voting.
"""

EXAMPLES = """
raftlog node recover --config node.toml
raftlog node recover --config node.toml --allow-data-loss
"""


def parser() -> Parser:
    """What ``raftlog node recover`` takes."""
    command = Parser("node recover", ABOUT, EXAMPLES, takes_path=False)
    command.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="the node's TOML file"
    )
    command.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="have the node vote, though acknowledged records may be lost by it",
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Tell what was found and done. Returns the exit code."""
    from raftlog.node.config import read_config
    from raftlog.node.recovery import recover_node

    allows_data_loss: bool = arguments.allow_data_loss
    found = recover_node(read_config(arguments.config), allows_data_loss=allows_data_loss)
    output.line(f"the log ends at offset {found.end_offset} (exclusive)")
    if found.out_of_election_reason is not None:
        output.line(f"does not vote: {found.out_of_election_reason}")
    if found.election_problem is not None:
        output.line(f"does not start or vote: {found.election_problem}")
    if found.votes:
        output.line("nothing keeps this node from voting")
        return 0
    if not allows_data_loss:
        output.line("nothing was changed; --allow-data-loss has it vote with what it has")
        return 1
    if found.new_epoch is not None:
        output.line(f"quorum-state begins again at epoch {found.new_epoch}, without a vote")
    output.line("votes again when it is started; what other nodes do not have either is lost")
    return 0
