"""``raftlog node random-uuid``: a new id."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Print a new id, for a cluster or for a node's directory, as Kafka's kafka-storage does.
"""

EXAMPLES = """
raftlog node random-uuid
"""


def parser() -> Parser:
    """What ``raftlog node random-uuid`` takes: nothing."""
    return Parser("node random-uuid", ABOUT, EXAMPLES, takes_path=False)


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print one. Returns the exit code."""
    from raftlog.node.formatting import random_id

    output.line(random_id())
    return 0
