"""``raftlog node random-uuid``: print a random id."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Print a random id for a cluster or for a node's directory, like `kafka-storage random-uuid`.
"""

EXAMPLES = """
raftlog node random-uuid
"""


def parser() -> Parser:
    """Return the parser of ``raftlog node random-uuid``."""
    return Parser("node random-uuid", ABOUT, EXAMPLES, takes_path=False)


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print an id; return the exit code."""
    from raftlog.node.formatting import random_id

    output.line(random_id())
    return 0
