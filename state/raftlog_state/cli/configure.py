"""``raftlog configure``: print or change the settings of a log."""

from __future__ import annotations

import argparse

from .output import Console, Output
from .parser import Parser

ABOUT = """
Print the settings of a log created by `raftlog.open`, from its raftlog.properties; with NAME=VALUE,
change them first. Names and units are those of Kafka's topic configs; -1 is no limit.

A process that has the log open applies a change with its next append.

A log with values=kraft is trimmed only below its snapshots. A node of a quorum writes no snapshots:
its retention.ms and retention.bytes have no effect, and the log keeps all records.
"""

EXAMPLES = """
raftlog configure decisions-0
raftlog configure decisions-0 max.message.bytes=67108864 retention.ms=604800000
"""


def parser() -> Parser:
    """Return the parser of ``raftlog configure``."""
    command = Parser("configure", ABOUT, EXAMPLES)
    command.add_argument("settings", metavar="NAME=VALUE", nargs="*", help="setting to change")
    return command


def run(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Change the given settings and print all; return the exit code."""
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
