"""``raftlog node start``: run a node."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Run the node that FILE configures, in a directory formatted by `raftlog node format`.

SIGTERM and Ctrl-C shut it down: the node resigns leadership, completes requests in progress and
closes its log. A second signal ends the process immediately. SIGHUP reloads certificates and the
[access] table of FILE. If they are invalid, the old ones stay in use; clients whose permissions
change are disconnected after their current request.

Logs to stderr, one JSON object a line: elections, rejected requests and their reasons, never
records or secrets. The exit code is 1 if the log failed.
"""

EXAMPLES = """
raftlog node start --config node.toml
"""


def parser() -> Parser:
    """Return the parser of ``raftlog node start``."""
    command = Parser("node start", ABOUT, EXAMPLES, takes_path=False)
    command.add_argument(
        "-c", "--config", metavar="FILE", required=True, help="configuration of the node (TOML)"
    )
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Run the node until a signal; return the exit code."""
    from raftlog.node.config import read_config

    config = read_config(arguments.config)

    from raftlog.node.process import run_node

    return run_node(config)
