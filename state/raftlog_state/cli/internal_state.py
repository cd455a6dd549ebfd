"""``raftlog state`` of consumer offsets, groups and transactions: replay of Kafka's internal logs.

PATH is a partition's directory or segment, a pattern of partitions, or a node's directory with
partitions of the topic. Each partition has the groups or transactional ids of its own.
"""

from __future__ import annotations

import argparse
import glob
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import redactor
from .source import offset_in

if TYPE_CHECKING:
    from raftlog.client import LatestByKey, LogReader
    from raftlog.client.offset_spec import OffsetSpec

INTERNAL_KINDS: Final = ("consumer_offsets", "groups")
"""Kinds of the state of ``__consumer_offsets``."""
_TRANSACTIONS: Final = "__transaction_state"


def is_internal(arguments: argparse.Namespace) -> bool:
    """Return whether KIND is replayed from an internal log other than that of metadata.

    ``transactions`` is that of producers only if PATH is a partition of their log, otherwise the
    history of a metadata log.
    """
    if arguments.kind != "transactions":
        return arguments.kind in INTERNAL_KINDS
    path = arguments.path
    return path is not None and any(_is_partition(one, _TRANSACTIONS) for one in _ends(path))


def _ends(path: str) -> tuple[str, ...]:
    """Return the last two names of a path: of a directory, or of a segment's."""
    return Path(path).parts[-2:]


def _is_partition(name: str, topic: str) -> bool:
    """Return whether a name is that of a partition of the topic, or a pattern of some."""
    return re.fullmatch(rf"{topic}-([0-9]+|.*[*?\[].*)", name) is not None


def run_internal_state(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the rows; return the exit code."""
    error = arguments.parser.error
    if arguments.bootstrap_server is not None:
        error(f"{arguments.kind} requires PATH: controllers do not have this log")
    if arguments.format == "records":
        error("--format records prints the whole state: it cannot be used with KIND")

    from raftlog_state.internal.rows import ROW_KINDS

    from .state_text import check_columns, print_row_lines, print_row_table

    kind, columns = ROW_KINDS[arguments.kind], arguments.columns
    check_columns(arguments.kind, kind.columns, columns)
    hide = redactor(arguments)
    layout = arguments.format or ("table" if output.is_terminal() else "json")
    paths = _partitions(arguments.path, kind.topic)
    if arguments.at is not None and len(paths) > 1:
        error(f"--at requires one partition: {arguments.path} has {len(paths)} of {kind.topic}")
    explanations: set[str] | None = set() if len(paths) > 1 else None
    partitions = [_read(path, arguments, console, explanations) for path in paths]
    if explanations is not None:
        ends = "; ".join(sorted(explanations))
        numbers = ", ".join(path.rpartition("-")[2] for path in paths)
        console.log(f"{kind.topic}, partitions {numbers}: each is read up to {ends}")
    rows = kind.rows(partitions, hide)
    if layout == "table":
        print_row_table(lambda: rows, output, columns)
    else:
        print_row_lines(rows, output, columns)
    return 0


def _partitions(path: str | None, topic: str) -> list[str]:
    """Return the paths of the partitions, by number. Raises ``OptionError`` if there are none."""
    from raftlog.errors import OptionError
    from raftlog_state.records.internal_logs import partitions_among

    if path is None:
        raise OptionError(option="PATH", reason=f"is required: partitions of {topic}")
    if any(letter in path for letter in "*?["):
        pattern = path
    elif any(_is_partition(name, topic) for name in _ends(path)):
        return [path]
    else:
        pattern = f"{glob.escape(path)}/{topic}-*"
    found = partitions_among(sorted(glob.glob(pattern)), [topic])
    if not found:
        reason = f"{path} is or has no partition of {topic}, such as {topic}-0"
        raise OptionError(option="PATH", reason=reason)
    return found


def _read(
    path: str, arguments: argparse.Namespace, console: Console, explanations: set[str] | None
) -> LatestByKey:
    """Replay one partition below its end, or below ``--at``.

    The end is printed, or its explanation added to ``explanations`` of several partitions.
    """
    from raftlog.client import Isolation, LatestByKey, LogKind, open_path
    from raftlog.client.offset_spec import time_text

    limit = arguments.max_decompressed_bytes
    log = open_path(path, kind=LogKind.PARTITION, decompressed_bytes_max=limit)
    end = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
    end_offset = _end_offset(arguments.at, log, end.offset, console)
    if explanations is None:
        console.log(f"{path}: read up to offset {end_offset} (exclusive): {end.explanation}")
    else:
        explanations.add(end.explanation)
    latest = LatestByKey(path)
    latest.read(log, end_offset)
    for one in latest.open_transactions():
        console.log(
            f"{path}: producer {one.producer_id}, epoch {one.producer_epoch}, has an open "
            f"transaction since offset {one.first_offset}, {time_text(one.first_timestamp_ms)}: "
            f"its {len(one.records)} records are not part of the state"
        )
    if latest.without_key:
        console.log(f"{path}: {latest.without_key} records have no key, and are left out")
    return latest


def _end_offset(at: OffsetSpec | None, log: LogReader, end: int, console: Console) -> int:
    """Return the end offset that ``--at`` specifies. Raises ``OffsetOutOfRangeError``."""
    if at is None:
        return end
    from raftlog.errors import OffsetOutOfRangeError

    offset = offset_in(log, "--at", at, lambda: end, console, is_state=True)
    start = log.log_start_offset
    if not start <= offset <= end:
        raise OffsetOutOfRangeError(
            path=log.path, offset=offset, log_start_offset=start, log_end_offset=end
        )
    return offset
