"""``raftlog node recover``: let a stopped node with a damaged log or quorum-state vote again."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Inspect the directory of a stopped node and print why the node does not vote: its log was damaged
below the offset that it had acknowledged (it votes again once it has fetched the committed records
from a leader), or its quorum-state is damaged, missing, or has an epoch far above that of the log.

With --allow-data-loss the node votes with the log that it has. Use it if too many nodes are damaged
to elect a leader. Acknowledged records that are only on damaged nodes are lost: first try to
restore one of these nodes from a backup, and recover no more nodes than a majority needs. If
quorum-state is damaged, first stop all nodes whose quorum-state is damaged.

The exit code is 1 if the node still cannot vote.
"""

EXAMPLES = """
raftlog node recover --config node.toml
raftlog node recover --config node.toml --allow-data-loss
"""


def parser() -> Parser:
    """Return the parser of ``raftlog node recover``."""
    command = Parser("node recover", ABOUT, EXAMPLES, takes_path=False)
    command.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="configuration of the node (TOML)"
    )
    command.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="let the node vote even though acknowledged records may be lost",
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print what was found and changed; return the exit code."""
    from raftlog.node.config import read_config
    from raftlog.node.recovery import recover_node

    allows_data_loss: bool = arguments.allow_data_loss
    found = recover_node(read_config(arguments.config), allows_data_loss=allows_data_loss)
    output.line(f"the log ends at offset {found.end_offset} (exclusive)")
    if found.out_of_election_reason is not None:
        output.line(f"does not vote: {found.out_of_election_reason}")
    if found.election_problem is not None:
        output.line(f"cannot start or vote: {found.election_problem}")
    if found.votes:
        output.line("the node can vote")
        return 0
    if not allows_data_loss:
        output.line("nothing was changed; with --allow-data-loss the node votes with this log")
        return 1
    if found.new_epoch is not None:
        output.line(f"quorum-state was reset to epoch {found.new_epoch}, without a vote")
    output.line("the node votes after its next start; records that no node has are lost")
    return 0
