"""``raftlog configure``: show or change the settings of a log of one's own."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Print the settings of a log that `raftlog.open` made, as raftlog.properties has them; with
NAME=VALUE, change some first. Names and units are Kafka's; -1 is no limit.

Processes that have the log open take the change up with their next append.

A log with values=kraft is trimmed below its snapshots only. A node of a quorum makes none: there
retention.ms and retention.bytes have no effect, and the log keeps every record.
"""

EXAMPLES = """
raftlog configure decisions-0
raftlog configure decisions-0 max.message.bytes=67108864 retention.ms=604800000
"""


def parser() -> Parser:
    """What ``raftlog configure`` takes."""
    command = Parser("configure", ABOUT, EXAMPLES)
    command.add_argument("settings", metavar="NAME=VALUE", nargs="*", help="what to change")
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the settings as they are then. Returns the exit code."""
    changes = {}
    for setting in arguments.settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            parser().error(f"{setting!r} is not NAME=VALUE")
        changes[name] = value

    from raftlog.client.log_settings import configure, read_settings

    path = arguments.path
    settings = configure(path, changes) if changes else read_settings(path)
    output.lines(f"{name}={value}" for name, value in settings.items())
    return 0
