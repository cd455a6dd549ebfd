"""Writers of tables in memory that end before or after any commit, beside others and readers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raftlog.errors import OffsetOutOfRangeError
from raftlog_state.errors import ConcurrentWriterError, OffsetGapError
from raftlog_state.tables.change_slices import SLICE_ROWS
from raftlog_state.tables.cluster_rows import ClusterRows
from raftlog_state.tables.unmerged import UNMERGED_ROWS_MAX, Tail
from raftlog_state.tables.writer import Writer
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.written_tables import CLUSTER, CrashError, History, read_view, writer_of


def write_with_crashes(
    tables: MemoryTables,
    history: History,
    chance: random.Random,
    *,
    end_offset: int,
    unmerged_rows_max: int = UNMERGED_ROWS_MAX,
    read: Callable[[], None] = lambda: None,
) -> int:
    """Write a history up to an end; return the number of crashes.

    Two processes take turns, each with its own cache of the tables, and merges beside it. After
    each commit ``read`` is called, if something is published.
    """
    interruptions = Interruptions(tables, history, chance, unmerged_rows_max, read)
    writers = [interruptions.writer() for _ in range(2)]
    merges: list[MergeBeside | None] = [None, None]
    end = 0
    while end < end_offset:
        at = chance.choice((0, 0, 1))
        merge = merges[at]
        try:
            if merge is not None and chance.random() < 0.3:
                merges[at] = None
                merge.end()
            elif merge is None and chance.random() < 0.1:
                merges[at] = interruptions.beside(writers[at])
            end = step(writers[at], history, chance, end_offset)
        except CrashError:
            writers[at], merges[at] = interruptions.writer(), None
    return interruptions.crash_count


class Interruptions:
    """A process that may end before or after each commit, and readers after each commit."""

    def __init__(
        self,
        tables: MemoryTables,
        history: History,
        chance: random.Random,
        unmerged_rows_max: int,
        read: Callable[[], None],
    ) -> None:
        self._tables, self._history, self._chance = tables, history, chance
        self._read = read
        self._unmerged_rows_max = unmerged_rows_max
        self.crash_count = 0

    def before_commit(self, operation: str, table: str) -> None:
        self._crash(0.15)

    def after_commit(self, operation: str, table: str) -> None:
        view = read_view(self._tables)
        if view.offset >= 0:
            self._history.check(view)
            self._read()
        self._crash(0.15)

    def _crash(self, probability: float) -> None:
        if self._chance.random() < probability:
            self.crash_count += 1
            raise CrashError

    def writer(self) -> Writer:
        return writer_of(
            self._tables,
            before_commit=self.before_commit,
            after_commit=self.after_commit,
            slice_rows=self._chance.choice((2, 9, SLICE_ROWS)),
            unmerged_rows_max=self._unmerged_rows_max,
        )

    def beside(self, writer: Writer) -> MergeBeside:
        """Begin a merge in another store of the writer's process."""
        store = MemoryStore(
            self._tables, before_commit=self.before_commit, after_commit=self.after_commit
        )
        return MergeBeside(writer, writer.rows_on(store), writer.begin_merge())


@dataclass(frozen=True)
class MergeBeside:
    """A merge of what ``state`` lacked when it began; the writer appends meanwhile."""

    writer: Writer
    rows: ClusterRows
    tails: Mapping[str, Tail]

    def end(self) -> None:
        try:
            self.rows.merge(self.tails)
        except ConcurrentWriterError:
            self.writer.forget()
        else:
            self.writer.end_merge(self.tails)


def step(writer: Writer, history: History, chance: random.Random, end_offset: int) -> int:
    """Do something at random up to an end; return the end of the tables."""
    progress = writer.progress()
    next_offset = progress.next_offset
    others = ("merge", "compact", "truncate", "expire", "forget")
    what = chance.choice(("apply", "apply", "apply", "apply", *others))
    if what == "apply":
        first = max(0, next_offset - chance.randint(0, 5))
        end = min(end_offset, next_offset + chance.randint(1, 40))
        try:
            writer.apply(history.range(first, end), CLUSTER)
        except OffsetGapError:  # the other process has truncated the tables
            writer.forget()
    elif what == "merge":
        writer.merge_state()
    elif what == "compact":
        writer.compact()
    elif what == "forget":
        writer.forget()
    elif next_offset > progress.oldest_offset + 20:
        offset = chance.randint(max(progress.oldest_offset, next_offset - 30), next_offset - 1)
        try:
            writer.truncate_to(offset) if what == "truncate" else writer.expire(offset // 2)
        except OffsetOutOfRangeError:  # the other process has changed the range
            writer.forget()
    return writer.progress().next_offset
