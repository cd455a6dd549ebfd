"""Following a log into the tables: where reading begins, whether it is the same log, and batches.

The tables determine where reading begins. No other checkpoint is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from raftlog.client import Isolation, LogReader, SourceKind
from raftlog.client.inspection import expand
from raftlog.errors import DivergedLogError, LogNotFoundError
from raftlog_state.errors import TablesError
from raftlog_state.loader.image_reader import check_is_metadata
from raftlog_state.records.internal_logs import (
    INTERNAL_LOGS,
    is_internal,
    partitions_among,
    topic_of,
)

from .cluster_cache import EpochRange
from .progress import NOTHING, Progress, wrong_cluster
from .upkeep import UpkeepRunner
from .writer import Writer

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

RECORDS_PER_BATCH_DEFAULT: Final = 100_000
"""One batch is replayed in one process, which takes a second or two for this many records."""


def partitions_of(path: str) -> list[str] | None:
    """Return the partitions of an internal log that a path or pattern names; None for others.

    Raises:
        LogNotFoundError: the pattern matches no partition.
        OptionError: the pattern matches two copies of one partition.
    """
    if topic_of(path) is None:
        return None
    found = partitions_among(expand(path))
    if not found:
        raise LogNotFoundError(path=path, remedy="check the path, or the pattern of partitions")
    return found


def isolation_of(log: LogReader) -> Isolation:
    """Return up to which end a log is read, and which of its records.

    An internal log is read to its committed end, even after an open transaction, because pending
    records and markers are replayed. Other logs are read up to the last stable offset.
    """
    is_replayed = log.topic in INTERNAL_LOGS
    return Isolation.READ_UNCOMMITTED if is_replayed else Isolation.READ_COMMITTED


# --- batches --------------------------------------------------------------------------------------


class BatchSink:
    """Sink of one run: writes its batches to the tables and does the upkeep that is due."""

    def __init__(self, writer: Writer, cluster_id: str | None, upkeep: UpkeepRunner) -> None:
        self._writer = writer
        self._cluster_id = cluster_id
        self._upkeep = upkeep
        self._read_offset = 0

    def write(self, rows: pa.Table) -> None:
        """Append the new rows, which publishes them; then do the upkeep that is due.

        Raises:
            As ``Writer.apply``.
        """
        self.append(rows)
        del rows  # upkeep needs memory, too
        self.keep_up()

    def append(self, rows: pa.Table) -> bool:
        """Append the new rows, which publishes them; return whether there were any.

        Raises:
            As ``Writer.apply``.
        """
        is_new = self._writer.apply(rows, self._cluster_id)
        if is_new:
            self._upkeep.appended()
        last_offset = pc.max(rows["offset"]).as_py()
        self._read_offset = 0 if last_offset is None else last_offset + 1
        return is_new

    def keep_up(self) -> None:
        """Do the upkeep that is due after the append."""
        self._upkeep.keep_up(self._read_offset)

    def close(self) -> None:
        """Wait for running upkeep."""
        self._upkeep.close()


# --- is it the same log ---------------------------------------------------------------------------


def check_same_log(
    place: str, progress: Progress, epochs: Callable[[], Sequence[EpochRange]], log: LogReader
) -> None:
    """Compare cluster and leader epochs of tables and log. ``epochs`` returns the tables'.

    Raises:
        NotALogError: the tables are not those of an internal log, and the log's records are not
            cluster metadata.
        WrongClusterError: the log belongs to another cluster.
        DivergedLogError: the logs diverge below the end of the tables.
        TablesError: the log ends before the tables.
    """
    is_compacted = log.topic in INTERNAL_LOGS
    if not is_compacted or not is_internal(str(progress.cluster_id)):
        check_is_metadata(log)
    known, given = progress.log_cluster_id, log.cluster_id
    if known is not None and given is not None and known != given:
        raise wrong_cluster(log.path, known, given)
    last = progress.offset
    if last == NOTHING or log.source is SourceKind.CHECKPOINT:
        return
    end_offset = log.log_end_offset
    theirs = log.epochs.end_offset_for(progress.leader_epoch, end_offset)
    same = theirs is not None and theirs.epoch == progress.leader_epoch and theirs.offset > last
    if same or (is_compacted and _may_continue(progress, log)):
        return
    if log.source is SourceKind.VOTERS and end_offset <= last:
        return  # a voter's replica lags, and is compared when it has caught up
    epoch = log.epochs.epoch_at(last)
    if end_offset <= last and (theirs is None or theirs.epoch == progress.leader_epoch):
        raise TablesError(
            place=place,
            reason=f"they contain offset {last}, but {log.path} ends before offset {end_offset}",
            remedy="use a more recent replica of the log; if it was truncated on purpose, "
            + truncation(end_offset - 1),
        )
    raise _diverged(progress, epochs(), log, -1 if epoch is None else epoch)


def _may_continue(progress: Progress, log: LogReader) -> bool:
    """Return whether compaction may have removed all records of the tables' last leader epoch.

    The records after the tables' end then have later epochs, which the writer checks.
    """
    epoch = log.epochs.epoch_at(progress.offset)
    is_earlier = epoch is None or epoch < progress.leader_epoch
    return is_earlier and log.log_end_offset > progress.next_offset


def truncation(offset: int) -> str:
    """Return how to revert the tables to an offset, as part of a remedy."""
    return (
        f"call truncate_to({offset}), or run `raftlog tables truncate TABLES {offset}`, and "
        "follow the log again"
    )


def _diverged(
    progress: Progress, epochs: Sequence[EpochRange], log: LogReader, epoch: int
) -> DivergedLogError:
    """Return the error with the offset at which the logs diverge (KIP-101)."""
    theirs = log.epochs.end_offset_for(progress.leader_epoch, log.log_end_offset)
    common = progress.next_offset
    if theirs is not None:
        ends = (last + 1 for known, _, last in epochs if known <= theirs.epoch)
        common = min(theirs.offset, max(ends, default=0))
    return DivergedLogError(
        path=log.path,
        offset=progress.offset,
        expected_epoch=progress.leader_epoch,
        epoch=epoch,
        remedy=f"the logs diverge at offset {common}: {truncation(common - 1)}",
    )


def next_offset(place: str, progress: Progress, log: LogReader, *, allows_gap: bool) -> int | None:
    """Return where the log continues the tables; None: at its newest snapshot or its start.

    ``allows_gap``: load a snapshot if the log begins after the end of the tables. An internal log
    contains all live records and needs no snapshot: its coordinator moves the log's start only up
    to the first one.

    Raises:
        TablesError: the log begins after the end of the tables, and that is not allowed.
    """
    end_offset, start_offset = progress.next_offset, log.log_start_offset
    if log.source is SourceKind.CHECKPOINT:
        return None
    if end_offset >= start_offset:
        return end_offset
    if progress.offset == NOTHING or allows_gap or log.topic in INTERNAL_LOGS:
        return None
    raise TablesError(
        place=place,
        reason=f"they end at offset {progress.offset}, but {log.path} begins at offset "
        f"{start_offset}",
        remedy="use a replica with older records; or accept a gap in history: load the newest "
        "snapshot with bootstrap, or set failOnDataLoss=false (`raftlog tables follow`: "
        "--allow-gap)",
    )
