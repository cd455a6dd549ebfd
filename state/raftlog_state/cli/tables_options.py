"""Options of the commands that write a log to Delta tables, and what they select."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from .parser import Parser, add_redaction, redactor
from .source import add_decompression_limit

if TYPE_CHECKING:
    from raftlog_state.tables.log_follower import FollowSettings


def add_place(command: Parser) -> None:
    """Add TABLES and ``--cluster-id``."""
    command.add_argument("tables", metavar="TABLES", help="directory of the tables")
    command.add_argument(
        "--cluster-id",
        metavar="ID",
        help="id of the cluster; required if the tables contain others",
    )


def place_of(arguments: argparse.Namespace) -> str:
    """Return TABLES, a relative path as an absolute one."""
    place: str = arguments.tables
    return place if "://" in place else os.path.abspath(place)


def add_written(command: Parser) -> None:
    """Add what is written, and of which records; see ``follow_settings``."""
    command.add_argument(
        "--take-over",
        action="store_true",
        help="take over clusters that another writer has written until now; stop that writer first",
    )
    command.add_argument(
        "--no-log",
        action="store_true",
        help="do not write table log, which contains every record; table changes still has every "
        "change",
    )
    command.add_argument(
        "--tail-holdback-ms",
        metavar="MS",
        type=int,
        help="minimum age of records that are read from a single directory, in milliseconds; "
        "default: 5000",
    )
    command.add_argument(
        "--allow-gap",
        action="store_true",
        help="if records after the end of the tables were deleted, load the newest snapshot; the "
        "tables then have no history of these offsets",
    )
    add_redaction(command, verb="store")
    add_decompression_limit(command)


def follow_settings(arguments: argparse.Namespace) -> FollowSettings:
    """Return what is written. Raises ``OptionError``."""
    from raftlog.limits import TAIL_HOLDBACK_MS_DEFAULT
    from raftlog_state.tables.log_follower import FollowSettings

    return FollowSettings(
        redactor=redactor(arguments),
        cluster_id=arguments.cluster_id,
        writes_log=not arguments.no_log,
        holdback_ms=duration_ms(
            arguments.tail_holdback_ms, "--tail-holdback-ms", TAIL_HOLDBACK_MS_DEFAULT
        ),
        allows_gap=arguments.allow_gap,
        take_over=arguments.take_over,
    )


def duration_ms(given: int | None, option: str, default_ms: int) -> int:
    """Return the value of an option in milliseconds. Raises ``OptionError``."""
    from raftlog.client.log_handle import milliseconds

    return int(milliseconds(default_ms if given is None else given, option))
