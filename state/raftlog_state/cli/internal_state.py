"""``raftlog state`` of offsets, groups, transactions and shares: replay of Kafka's internal logs.

PATH is a partition's directory or segment, a pattern of partitions, or a node's directory with
partitions of the topic. Each partition has the groups or transactional ids of its own. Lag, hanging
transactions and remote segments are joined with the other partitions in the node's directory. With
``--bootstrap-server`` the running brokers return the lag.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .output import Console, Output
from .parser import redactor
from .source import broker_client, check_no_node_options, offset_in

if TYPE_CHECKING:
    from raftlog.client import LogReader
    from raftlog.client.offset_spec import OffsetSpec
    from raftlog_state.image import MetadataImage
    from raftlog_state.internal.joined_rows import LogOffsets
    from raftlog_state.internal.loader import InternalState
    from raftlog_state.internal.rows import Row, RowKind
    from raftlog_state.records import Redactor

LAG: Final = "lag"
SHARE_LAG: Final = "share_lag"
HANGING_TRANSACTIONS: Final = "hanging_transactions"
INTERNAL_KINDS: Final = (
    "consumer_offsets",
    "groups",
    "group_members",
    "pending_offsets",
    LAG,
    "share_partitions",
    SHARE_LAG,
    HANGING_TRANSACTIONS,
    "remote_segments",
)
"""Kinds of state of internal logs, except ``transactions``."""
TRANSACTION_TIMEOUT_MINUTES: Final = 15
"""Default of ``--max-transaction-timeout`` (Kafka: of ``transaction.max.timeout.ms``)."""
_TRANSACTIONS: Final = "__transaction_state"
_WARNINGS_MAX: Final = 5


def is_internal(arguments: argparse.Namespace) -> bool:
    """Return whether KIND is replayed from an internal log other than the metadata log.

    ``transactions`` are producers' only if PATH is a partition of their log; otherwise they are the
    history of a metadata log.
    """
    if arguments.kind != "transactions":
        return arguments.kind in INTERNAL_KINDS
    path = arguments.path
    return path is not None and any(_is_partition(one, _TRANSACTIONS) for one in _ends(path))


def _ends(path: str) -> tuple[str, ...]:
    """Return the last two names of a path to a directory, or of the directory of a segment."""
    return Path(path).parts[-2:]


def _is_partition(name: str, topic: str) -> bool:
    """Return whether a name is that of a partition of the topic, or a pattern for some."""
    return re.fullmatch(rf"{topic}-([0-9]+|.*[*?\[].*)", name) is not None


def run_internal_state(arguments: argparse.Namespace, output: Output, console: Console) -> int:
    """Print the rows; return the exit code."""
    error = arguments.parser.error
    is_live = arguments.bootstrap_server is not None
    if is_live and arguments.kind != LAG:
        error(f"{arguments.kind} requires PATH: only {LAG} is read from running brokers")
    if not is_live:
        check_no_node_options(arguments)
    if arguments.format == "records":
        error("--format records prints the whole state: it cannot be used with KIND")

    from raftlog_state.internal.joined_rows import JOINED_KINDS
    from raftlog_state.internal.rows import ROW_KINDS

    from .state_text import (
        check_columns,
        log_if_empty,
        log_left_out,
        print_row_lines,
        print_row_table,
    )

    is_joined = arguments.kind in JOINED_KINDS
    kind = JOINED_KINDS[arguments.kind] if is_joined else ROW_KINDS[arguments.kind]
    check_columns(arguments.kind, kind.columns, arguments.columns)
    if is_joined and arguments.at is not None:
        error(f"--at is not for {arguments.kind}, which has the present ends of other partitions")
    hide = redactor(arguments)
    layout = arguments.format or ("table" if output.is_terminal() else "json")
    if is_live:
        rows = _live_lag(arguments, console)
    else:
        paths = _partitions(arguments.path, kind.topic)
        if arguments.at is not None and len(paths) > 1:
            error(f"--at requires one partition: {arguments.path} has {len(paths)} of {kind.topic}")
        read = _joined_rows if is_joined else _rows
        rows = read(arguments.kind, paths, hide, arguments, console)
    topics = () if arguments.topic is None else {row["topic"] for row in rows}
    if arguments.topic is not None:
        rows = [row for row in rows if row["topic"] == arguments.topic]
    if layout == "table":
        log_left_out(print_row_table(lambda: rows, output, arguments.columns), console)
    else:
        print_row_lines(rows, output, arguments.columns)
    log_if_empty(output, console, arguments.kind, arguments.topic, topics)
    return 0


def _rows(
    name: str,
    paths: list[str],
    hide: Redactor,
    arguments: argparse.Namespace,
    console: Console,
) -> list[Row]:
    """Return the rows of a kind that are derived from the partitions of one internal topic."""
    from raftlog_state.internal.rows import ROW_KINDS

    kind = ROW_KINDS[name]
    explanations: set[str] | None = set() if len(paths) > 1 else None
    partitions = [_read(kind, path, hide, arguments, console, explanations) for path in paths]
    if explanations is not None:
        ends = "; ".join(sorted(explanations))
        numbers = number_ranges([int(path.rpartition("-")[2]) for path in paths])
        console.log(f"{kind.topic}, partitions {numbers}: each is read up to {ends}")
    return kind.rows(partitions)


def number_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, with three or more consecutive numbers as a range."""
    runs: list[list[int]] = []
    for number in numbers:
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def _partitions(path: str | None, topic: str) -> list[str]:
    """Return the paths of the partitions, by number.

    Raises ``OptionError`` if there are none, ``LogError`` if the directory cannot be listed.
    """
    from raftlog.client.inspection import expand, list_names
    from raftlog.errors import OptionError
    from raftlog_state.records.internal_logs import REMOTE_LOG_METADATA, partitions_among

    if path is None:
        raise OptionError(option="PATH", reason=f"is required: partitions of {topic}")
    if any(letter in path for letter in "*?["):
        paths = expand(path)
    elif any(_is_partition(name, topic) for name in _ends(path)):
        return [path]
    else:
        paths = [os.path.join(path, name) for name in list_names(path)]
    found = partitions_among(paths, [topic])
    if not found:
        reason = f"{path} is or has no partition of {topic}, such as {topic}-0"
        raise OptionError(option="PATH", reason=reason)
    if topic == REMOTE_LOG_METADATA:  # directories that a compaction of a manifest has emptied
        found = [one for one in found if list_names(one)] or found
    return found


def _read(
    kind: RowKind,
    path: str,
    hide: Redactor,
    arguments: argparse.Namespace,
    console: Console,
    explanations: set[str] | None,
) -> InternalState:
    """Replay one partition up to its end, or to ``--at``.

    The end is printed, or, for several partitions, its explanation is added to ``explanations``.
    """
    from raftlog.client import Isolation, LogKind, open_path
    from raftlog_state.internal.loader import InternalState

    limit = arguments.max_decompressed_bytes
    log = open_path(path, kind=LogKind.PARTITION, decompressed_bytes_max=limit)
    end = log.read_end(isolation=Isolation.READ_UNCOMMITTED)
    end_offset = _end_offset(arguments.at, log, end.offset, console)
    if explanations is None:
        console.log(f"{path}: read up to offset {end_offset} (exclusive): {end.explanation}")
    else:
        explanations.add(end.explanation)
    state = InternalState(kind.topic, hide)
    state.read(log, end_offset)
    _log_pending_offsets(path, state, console)
    return state


def _log_pending_offsets(path: str, state: InternalState, console: Console) -> None:
    """Print which transactions are open, and whose offsets are therefore not committed."""
    from raftlog.client.offset_spec import time_text
    from raftlog_state.image.rows import PendingOffsetRow

    by_producer: dict[int, list[PendingOffsetRow]] = {}
    for row in state.rows(PendingOffsetRow):
        by_producer.setdefault(row.producer_id, []).append(row)
    for producer_id, pending in by_producer.items():
        first = min(pending, key=lambda row: row.record_offset)
        count = len(pending)
        console.log(
            f"{path}: producer {producer_id} has an open transaction since offset "
            f"{first.record_offset}, {time_text(first.commit_timestamp_ms)}, with {count} pending "
            f"{'offset' if count == 1 else 'offsets'}"
        )


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


# --- Rows that are joined with the partitions of the node -----------------------------------------


def _joined_rows(
    name: str,
    paths: list[str],
    hide: Redactor,
    arguments: argparse.Namespace,
    console: Console,
) -> list[Row]:
    """Return the rows of one of ``JOINED_KINDS`` of ``joined_rows``."""
    from raftlog.clock import Clock
    from raftlog_state.internal import joined_rows

    node = _NodeDirectory(paths[0], arguments.max_decompressed_bytes)
    if name == "remote_segments":
        segments = joined_rows.RemoteSegments()
        for path in paths:
            segments.read(node.open(path))
        return list(segments.rows(node.offsets(segments.topics())))
    cluster = node.cluster()
    if cluster is None:
        console.log(f"{node.path} has no metadata log: the topics of the cluster are unknown")
    if name == LAG:
        commits = _rows("consumer_offsets", paths, hide, arguments, console)
        offsets = node.offsets({row["topic"] for row in commits})
        return joined_rows.lag(commits, offsets, None if cluster is None else _topic_ids(cluster))
    if name == SHARE_LAG:
        shares = _rows("share_partitions", paths, hide, arguments, console)
        ids = {} if cluster is None else {value: key for key, value in _topic_ids(cluster).items()}
        return joined_rows.share_lag(shares, node.offsets(set(ids.values())), ids)
    minutes = arguments.max_transaction_timeout
    timeout_ms = 60_000 * (TRANSACTION_TIMEOUT_MINUTES if minutes is None else minutes)
    found = joined_rows.hanging_transactions(
        {(log.topic, log.partition): joined_rows.open_transactions(log) for log in node.logs()},
        _rows("transactions", paths, hide, arguments, console),
        last_timestamp_ms_max=Clock().wall_ms() - timeout_ms,
    )
    total = 0 if cluster is None else _partition_count(cluster, _TRANSACTIONS)
    if found and total > len(paths):
        console.warn(
            f"{len(paths)} of the {total} partitions of {_TRANSACTIONS} are read: the coordinators "
            "of the other ones may still end some of these transactions"
        )
    return found


def _live_lag(arguments: argparse.Namespace, console: Console) -> list[Row]:
    """Return the lag of all groups from the running brokers.

    Their coordinators do not return a commit's topic by id, so a topic that was deleted and created
    again is ``Current``.
    """
    from raftlog_state.internal import joined_rows

    with closing(broker_client(arguments)) as brokers:
        commits = [asdict(one) | {"topic_id": None} for one in brokers.group_offsets()]
        listed = brokers.list_offsets({(row["topic"], row["partition"]) for row in commits})
    for (topic, partition), reason in sorted(listed.missing.items())[:_WARNINGS_MAX]:
        console.warn(f"{topic}-{partition}: the lag is unknown: {reason}")
    if len(listed.missing) > _WARNINGS_MAX:
        console.warn(f"the lag of {len(listed.missing)} partitions is unknown")
    logs = {
        partition: joined_rows.LogOffsets(log_start_offset=found.start, log_end_offset=found.end)
        for partition, found in listed.offsets.items()
    }
    return joined_rows.lag(commits, logs, listed.topic_ids)


class _NodeDirectory:
    """Directory of a node that has a partition at ``partition_path``, or a segment of one."""

    def __init__(self, partition_path: str, decompressed_bytes_max: int) -> None:
        from raftlog.client.inspection import local_path
        from raftlog_state.records.internal_logs import INTERNAL_LOGS

        path = Path(os.path.abspath(local_path(partition_path)))
        is_directory = any(_is_partition(path.name, topic) for topic in INTERNAL_LOGS)
        self.path: Final = path.parent if is_directory else path.parent.parent
        self._decompressed_bytes_max = decompressed_bytes_max

    def open(self, path: str) -> LogReader:
        """Open a partition."""
        from raftlog.client import LogKind, open_path

        limit = self._decompressed_bytes_max
        return open_path(path, kind=LogKind.PARTITION, decompressed_bytes_max=limit)

    def logs(self, topics: Collection[str] | None = None) -> Iterator[LogReader]:
        """Open the partitions of topics (by default all), except the metadata log's."""
        from raftlog.client.inspection import list_names
        from raftlog.errors import LogNotFoundError, NotALogError
        from raftlog.types import CLUSTER_METADATA_TOPIC
        from raftlog_state.records.internal_logs import partitions_among

        names = list_names(str(self.path))
        if topics is None:
            topics = {name.rpartition("-")[0] for name in names} - {CLUSTER_METADATA_TOPIC}
        for path in partitions_among((str(self.path / name) for name in names), topics):
            try:
                yield self.open(path)
            except (LogNotFoundError, NotALogError):
                continue  # it is being created or deleted

    def offsets(self, topics: Collection[str]) -> dict[tuple[str, int], LogOffsets]:
        """Return the start and end offsets of the partitions of topics."""
        from raftlog_state.internal.joined_rows import LogOffsets

        return {(log.topic, log.partition): LogOffsets.of(log) for log in self.logs(topics)}

    def cluster(self) -> MetadataImage | None:
        """Return the state of the node's copy of the metadata log; None if it has none."""
        from raftlog.client import open_path
        from raftlog.errors import LogNotFoundError
        from raftlog.types import CLUSTER_METADATA_TOPIC
        from raftlog_state.loader.image_reader import ImageReader
        from raftlog_state.records import Redactor

        try:
            log = open_path(str(self.path / f"{CLUSTER_METADATA_TOPIC}-0"))
        except LogNotFoundError:
            return None
        images = ImageReader(log, Redactor())
        return images.image_at(images.end_offset())


def _topic_ids(cluster: MetadataImage) -> dict[str, str]:
    """Return the ids of the topics by their names."""
    from raftlog_state.image import Entity, TopicRow

    rows = cluster.rows(Entity.TOPIC)
    return {row.name: row.topic_id for row in rows if isinstance(row, TopicRow)}


def _partition_count(cluster: MetadataImage, topic: str) -> int:
    """Return the number of partitions of a topic."""
    from raftlog_state.image import Entity, PartitionRow

    rows = cluster.rows(Entity.PARTITION)
    return sum(isinstance(row, PartitionRow) and row.topic_name == topic for row in rows)
