"""``raftlog node start``: run a node."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Run the node that FILE describes, in the directory that `raftlog node format` made, until SIGTERM or
Ctrl-C: then it hands leadership over, answers what is under way and closes its log; a second signal
ends it at once. SIGHUP reads its certificates again, and [access] of FILE: what is wrong changes
nothing, and who may do something else by then is disconnected when what he asked is answered.

stderr has one JSON object a line: who leads, what was refused and why, never a record or a secret.
The exit code is 1 if its log failed.
"""

EXAMPLES = """
raftlog node start --config node.toml
"""


def parser() -> Parser:
    """What ``raftlog node start`` takes."""
    command = Parser("node start", ABOUT, EXAMPLES, takes_path=False)
    command.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="the node's TOML file"
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Run until a signal. Returns the exit code."""
    from raftlog.node.config import read_config

    config = read_config(arguments.config)

    from raftlog.node.process import run_node

    return run_node(config)
