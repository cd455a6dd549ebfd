"""Following a log into the tables: where to begin, whether it is the same log, and upkeep.

Rules of this file:

1. Where reading begins is read from the tables. No other checkpoint is needed.
2. Upkeep is merging changes into ``state``, compaction and vacuum. It follows the append that
   publishes a batch; if it fails, the next batch tries again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute

from raftlog.client import LogReader, SourceKind
from raftlog.errors import DivergedLogError
from raftlog_state.errors import TablesError
from raftlog_state.loader.image_reader import check_is_metadata

from .cluster_cache import EpochRange
from .progress import NOTHING, Progress, wrong_cluster
from .writer import Writer

pc: Any = pyarrow.compute  # pyarrow makes its functions at import: no checker sees them

RECORDS_PER_BATCH_DEFAULT: Final = 100_000
"""One batch is replayed in one process: this many records take it a second or two."""
MERGE_INTERVAL_S: Final = 60.0
MERGE_ROWS_MAX: Final = 50_000
GROUP_MERGE_ROWS_MAX: Final = 500_000
"""Unmerged rows of all clusters of a group; a merge rewrites the rows of each that has some."""
COMPACT_FILES: Final = 200
VACUUM_INTERVAL_S: Final = 86_400.0
_LOGGER: Final = logging.getLogger("raftlog_state")


# --- upkeep ---------------------------------------------------------------------------------------


class Upkeep:
    """When to merge changes into ``state``, to compact and to vacuum, in seconds of one clock."""

    def __init__(self, target_offset: int | None, merge_rows_max: int = MERGE_ROWS_MAX) -> None:
        """``target_offset`` is the end of the run, exclusive; None if it continues."""
        self._target_offset = target_offset
        self._merge_rows_max = merge_rows_max
        self._merged_at_s: float | None = None
        self._vacuumed_at_s: float | None = None
        self._file_count: int | None = None

    @property
    def is_file_count_known(self) -> bool:
        """Whether ``found_files`` was called."""
        return self._file_count is not None

    def found_files(self, count: int) -> None:
        """Record the small files of ``changes``, those of earlier runs included."""
        self._file_count = count

    def appended(self) -> None:
        """Record one more file."""
        if self._file_count is not None:
            self._file_count += 1

    def is_merge_due(self, now_s: float, read_offset: int, unmerged_row_count: int) -> bool:
        """Return whether to merge after a batch; ``read_offset`` follows its last record.

        At the end of a run that record may be in an open transaction, which is not published.
        """
        if self._merged_at_s is None:
            self._merged_at_s = now_s
        is_end = self._target_offset is not None and read_offset >= self._target_offset
        is_late = now_s - self._merged_at_s >= MERGE_INTERVAL_S
        return is_end or is_late or unmerged_row_count >= self._merge_rows_max

    def merged(self, now_s: float) -> None:
        """Record a merge."""
        self._merged_at_s = now_s

    def is_vacuum_due(self, now_s: float) -> bool:
        """Return whether to delete old files; a run that is shorter than the interval does not."""
        if self._vacuumed_at_s is None:
            self._vacuumed_at_s = now_s
        return now_s - self._vacuumed_at_s >= VACUUM_INTERVAL_S

    def vacuumed(self, now_s: float) -> None:
        """Record a vacuum."""
        self._vacuumed_at_s = now_s

    def is_compaction_due(self) -> bool:
        """Return whether ``changes`` has many small files, and so have the other tables."""
        return self._file_count is not None and self._file_count >= COMPACT_FILES

    def compacted(self) -> None:
        """Record a compaction."""
        self._file_count = 0


class Maintained(Protocol):
    """What upkeep needs of a writer."""

    def small_file_count(self) -> int: ...
    def unmerged_row_count(self) -> int: ...
    def merge_state(self) -> None: ...
    def compact(self) -> None: ...
    def vacuum(self) -> None: ...


def keep_up(
    writer: Maintained, upkeep: Upkeep, read_offset: int, clock: Callable[[], float]
) -> None:
    """Do the upkeep that is due after a batch. Raises ``TablesError``."""
    if not upkeep.is_file_count_known:
        upkeep.found_files(writer.small_file_count())
    if upkeep.is_merge_due(clock(), read_offset, writer.unmerged_row_count()):
        writer.merge_state()
        upkeep.merged(clock())
    if upkeep.is_compaction_due():
        writer.compact()
        upkeep.compacted()
    if upkeep.is_vacuum_due(clock()):
        writer.vacuum()
        upkeep.vacuumed(clock())


class BatchSink:
    """Writes the batches of one run to the tables, and does what upkeep is due."""

    def __init__(
        self,
        writer: Writer,
        cluster_id: str | None,
        upkeep: Upkeep,
        *,
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = _LOGGER.warning,
    ) -> None:
        self._warn = warn
        self._writer = writer
        self._cluster_id = cluster_id
        self._upkeep = upkeep
        self._clock = clock

    def write(self, rows: pa.Table) -> bool:
        """Append the new rows, which publishes them; return whether there were any.

        Raises:
            As ``Writer.apply``.
        """
        is_new = self._writer.apply(rows, self._cluster_id)
        if is_new:
            self._upkeep.appended()
        last_offset = pc.max(rows["offset"]).as_py()
        try:
            read_offset = 0 if last_offset is None else last_offset + 1
            keep_up(self._writer, self._upkeep, read_offset, self._clock)
        except TablesError as error:  # the batch is published; the next one tries again
            self._warn(f"{error}; retrying after the next batch")
        return is_new


# --- is it the same log ---------------------------------------------------------------------------


def check_same_log(
    place: str, progress: Progress, epochs: Callable[[], Sequence[EpochRange]], log: LogReader
) -> None:
    """Compare cluster and leader epochs of tables and log. ``epochs``: returns the tables'.

    Raises:
        NotALogError: the log's records are not those of a cluster's metadata.
        WrongClusterError: the log belongs to another cluster.
        DivergedLogError: the logs diverge below the end of the tables.
        TablesError: the log ends before the tables.
    """
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
    if same:
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
    """Return where the log continues the tables; None: at its newest snapshot.

    ``allows_gap``: load a snapshot if the log begins after the end of the tables.

    Raises:
        TablesError: the log begins after the end of the tables, and that is not allowed.
    """
    end_offset, start_offset = progress.next_offset, log.log_start_offset
    if log.source is SourceKind.CHECKPOINT:
        return None
    if end_offset >= start_offset:
        return end_offset
    if progress.offset == NOTHING or allows_gap:
        return None
    raise TablesError(
        place=place,
        reason=f"they end at offset {progress.offset}, but {log.path} begins at offset "
        f"{start_offset}",
        remedy="use a replica with older records; or accept a gap in history: load the newest "
        "snapshot with bootstrap, or set failOnDataLoss=false (`raftlog tables follow`: "
        "--allow-gap)",
    )
