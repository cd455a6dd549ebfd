"""The writer on tables in memory: equal tables for every split, crash, rival and truncation.

``RAFTLOG_WRITER_SEEDS=1000`` sets the number of random histories.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from tests.support.interrupted_writers import write_with_crashes
from tests.support.memory_store import AllReads, MemoryStore, MemoryTables, Read
from tests.support.metadata_logs import metadata_log, restored
from tests.support.source_rows import SCHEMA, checkpoint_rows
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import (
    CLUSTER,
    END,
    CrashError,
    History,
    contents,
    read_view,
    rows_in_memory,
    writer_of,
)

from raftlog.errors import DivergedLogError, OffsetOutOfRangeError, WrongClusterError
from raftlog.records.control import SnapshotFooter, SnapshotHeader
from raftlog_state.errors import ConcurrentWriterError, OffsetGapError, TablesError
from raftlog_state.image.image_writer import image_records
from raftlog_state.loader.metadata_loader import LogRecord
from raftlog_state.loader.payload import Payload
from raftlog_state.tables import tails as cluster_tails
from raftlog_state.tables.following import BatchSink
from raftlog_state.tables.progress import IS_PROGRESS
from raftlog_state.tables.reader import ArrowTables
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE
from raftlog_state.tables.stores.delta_rs import DeltaRsStore
from raftlog_state.tables.stores.protocol import TableStore
from raftlog_state.tables.unmerged import SMALL_PARTS_MAX, UNMERGED_ROWS_MAX
from raftlog_state.tables.upkeep import Upkeep, UpkeepRunner
from raftlog_state.tables.writer import Writer

SEEDS = int(os.environ.get("RAFTLOG_WRITER_SEEDS", "16"))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    directory = restored("three-nodes-4.3.1/node-1", tmp_path_factory.mktemp("log"))
    found = History(metadata_log(directory))
    assert not {3, 10} & found.images.keys(), "offsets of a transaction"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", nightly_except((7,), (1, 7, 50)))
def test_any_split_into_batches_gives_the_same_tables(history: History, size: int) -> None:
    tables = MemoryTables()
    writer = writer_of(tables)
    for start in range(0, END, size):
        end = min(END, start + size)
        writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
    assert contents(tables) == history.contents(END)


def test_a_new_writer_has_the_state_of_the_one_before(history: History) -> None:
    tables = MemoryTables()
    first = writer_of(tables)
    for end, merges in ((40, False), (60, True), (END, False)):
        first.apply(history.range(first.progress().next_offset, end), CLUSTER)
        second = writer_of(tables)
        assert second.progress() == first.progress()
        assert second.epochs() == first.epochs()
        history.check(read_view(tables))
        if merges:
            first.merge_state()
            assert first.unmerged_row_count() == second_count(tables) == 0
    second = writer_of(tables)
    second.apply(history.range(END, END + 30), CLUSTER)
    assert contents(tables) == history.contents(END + 30)


def second_count(tables: MemoryTables) -> int:
    return writer_of(tables).unmerged_row_count()


def test_many_small_appends_are_few_tables_in_memory(history: History) -> None:
    """A table of four rows takes half a megabyte, as it has hundreds of columns."""
    tables = history.written(30)
    writer = writer_of(tables)

    def append_to(end_offset: int) -> None:
        for offset in range(writer.progress().next_offset, end_offset):
            writer.apply(history.range(offset, offset + 1), CLUSTER)

    append_to(30 + SMALL_PARTS_MAX + 5)
    [begun] = writer.begin_merge().values()
    assert len(begun.parts) < 10
    append_to(30 + 2 * SMALL_PARTS_MAX + 10)
    writer.rows_on(MemoryStore(tables)).merge({CLUSTER: begun})
    writer.end_merge({CLUSTER: begun})
    assert writer.unmerged_row_count() == second_count(tables)
    [later] = writer.begin_merge().values()
    assert len(later.parts) < 10
    writer.merge_state()
    assert writer.unmerged_row_count() == second_count(tables) == 0
    assert contents(tables) == history.contents(30 + 2 * SMALL_PARTS_MAX + 10)


def test_changes_in_memory_are_bounded_while_merges_fail(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next merge reads the others from ``changes``, some appends at a time."""
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 20)
    tables, are_failing = MemoryTables(), True

    def fail(operation: str, table: str) -> None:
        if are_failing and operation == "merge":
            raise TablesError(place="memory", reason="the disk is full", remedy="free space")

    def check(operation: str, table: str) -> None:
        history.check(read_view(tables))

    writer = writer_of(tables, before_commit=fail, unmerged_rows_max=10)
    read_count, unmerged_count = 0, 0
    for end in range(10, END, 2):
        if not writer.apply(history.range(writer.progress().next_offset, end), CLUSTER):
            continue
        with pytest.raises(TablesError, match="the disk is full"):
            writer.merge_state()
        tails = writer.begin_merge()
        appended_count = writer.unmerged_row_count() - unmerged_count
        assert rows_in_memory(tails.values()) <= 10 + appended_count
        unmerged_count += appended_count
        writer.end_merge(tails, is_merged=False)
        read_count += 1
    assert read_count > 40
    assert unmerged_count == second_count(tables) > 100
    are_failing = False
    writer.rows_on(MemoryStore(tables, after_commit=check)).merge(tails)
    merges = [commit for commit in tables.commits if commit.operation == "merge"]
    assert len(merges) > 4
    writer.end_merge(tails)
    assert writer.unmerged_row_count() == second_count(tables) == 0
    writer.apply(history.range(writer.progress().next_offset, END), CLUSTER)
    writer.merge_state()
    assert contents(tables) == history.contents(END)
    assert second_count(tables) == 0


class ReadsCounted(MemoryStore):
    """Store that counts the rows of each read of ``changes`` with all of their columns."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__(tables)
        self.row_counts: list[int] = []

    def has_read(self, read: Read) -> None:
        if read.table == CHANGES_TABLE and read.columns is None:
            self.row_counts.append(read.found.num_rows)


class StateReadsCounted(MemoryStore):
    """Store that counts reads of ``state`` but for progress."""

    read_count = 0

    def has_read(self, read: Read) -> None:
        self.read_count += read.table == STATE_TABLE and IS_PROGRESS not in read.where


@pytest.mark.parametrize("step", [2, END])
def test_a_restart_without_new_records_reads_progress_rows(history: History, step: int) -> None:
    """So it takes as long for each number of partitions and of earlier changes."""
    tables = MemoryTables()
    first = writer_of(tables)
    for end in range(step, END + 1, step):
        first.apply(history.range(first.progress().next_offset, end), CLUSTER)
    first.merge_state()
    store = AllReads(tables)
    second = Writer(store, clock_us=lambda: 1)
    sink = BatchSink(second, CLUSTER, UpkeepRunner(second, Upkeep(END)))
    sink.write(history.range(END - 1, END))
    sink.close()
    assert second.progress() == first.progress()
    found = [(read.table.name, read.found.num_rows) for read in store.reads]
    assert found == [("state", 1), ("changes", 1), ("log", 1)]
    assert all(read.columns is not None for read in store.reads)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_rows_of_state_are_read_when_there_are_new_records(
    history: History, is_deleted: bool
) -> None:
    """A vacuum may have deleted their version: the tables are read again."""
    tables = MemoryTables()
    appended(tables, history, merged_to=40)
    store = StateReadsCounted(tables)
    second = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
    assert second.progress().offset == END - 1
    # A stream reads the last record again, to detect a divergence.
    assert not second.apply(history.range(END - 1, END), CLUSTER)
    assert store.read_count == 0
    assert not second.apply(history.range(END - 10, END), CLUSTER)
    assert second.epochs() == writer_of(tables).epochs()
    assert store.read_count == 1, "the epochs of earlier records"
    if is_deleted:
        writer_of(tables).merge_state()
        MemoryStore(tables).vacuum(STATE_TABLE)
    assert second.apply(history.range(END - 10, END + 30), CLUSTER)
    assert store.read_count == 2 + is_deleted
    second.merge_state()
    assert second.apply(history.range(END + 30, END + 40), CLUSTER)
    assert store.read_count == 2 + is_deleted
    second.merge_state()
    assert contents(tables) == history.contents(END + 40)


def test_rows_of_state_are_those_of_the_end_that_was_read_before(history: History) -> None:
    """Another process merges between the restart and the first record."""
    tables = MemoryTables()
    first = appended(tables, history, merged_to=40)
    second = writer_of(tables)
    assert second.unmerged_row_count() > 0
    first.merge_state()
    first.apply(history.range(END, END + 20), CLUSTER)
    first.merge_state()
    assert second.epochs() == first.epochs()
    assert second.apply(history.range(END, END + 40), CLUSTER)
    second.merge_state()
    assert contents(tables) == history.contents(END + 40)


@pytest.mark.slow
def test_partitions_are_read_after_a_vacuum_has_deleted_their_version(
    history: History, tmp_path: Path
) -> None:
    """As a vacuum of another process without retention does, between a restart and a record."""
    first = Writer(DeltaRsStore(str(tmp_path)), cluster_id=CLUSTER, clock_us=lambda: 1)
    first.apply(history.range(0, 60), CLUSTER)
    first.merge_state()
    second = Writer(DeltaRsStore(str(tmp_path)), cluster_id=CLUSTER, clock_us=lambda: 1)
    assert second.progress().offset == 59
    first.apply(history.range(60, END), CLUSTER)
    first.merge_state()
    state = DeltaTable(str(tmp_path / STATE_TABLE.name))
    deleted = state.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert any("parquet" in name for name in deleted)
    assert second.apply(history.range(60, END + 40), CLUSTER)
    second.merge_state()
    expected = MemoryStore(MemoryTables())
    for start, end in ((0, 60), (60, END), (END, END + 40)):
        writer = Writer(expected, cluster_id=CLUSTER, clock_us=lambda: 1)
        writer.apply(history.range(start, end), CLUSTER)
        writer.merge_state()
    order = [("entity", "ascending"), ("key", "ascending")]
    stores: tuple[TableStore, ...] = (DeltaRsStore(str(tmp_path)), expected)
    found, wanted = (one.read(STATE_TABLE).sort_by(order).to_pylist() for one in stores)
    assert found == wanted


def appended(tables: MemoryTables, history: History, merged_to: int | None) -> Writer:
    """Write the history in appends of four offsets, and merge after one of them."""
    writer = writer_of(tables)
    for end in range(4, END + 1, 4):
        writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
        if end == merged_to:
            writer.merge_state()
    return writer


@pytest.mark.parametrize("merged_to", nightly_except((40,), (0, 40)))
def test_a_restart_reads_unmerged_changes_in_windows(
    history: History, merged_to: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after days in which merges failed. A later merge reads them in windows, too."""
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 10)
    tables = MemoryTables()
    writer = appended(tables, history, merged_to)
    store = ReadsCounted(tables)
    second = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
    assert second.progress() == writer.progress()
    assert second.epochs() == writer.epochs()
    assert second.unmerged_row_count() == writer.unmerged_row_count()
    # The progress row of the merge is read, too: it could be a fence.
    assert sum(store.row_counts) == writer.unmerged_row_count() + (merged_to > 0)
    assert len(store.row_counts) > 5
    assert max(store.row_counts) <= 10 + (merged_to > 0)
    tails = second.begin_merge()
    assert rows_in_memory(tails.values()) == 0
    second.end_merge(tails, is_merged=False)
    second.apply(history.range(END, END + 30), CLUSTER)
    store.row_counts.clear()
    second.merge_state()
    assert max(store.row_counts) <= 10 + 1
    assert second.unmerged_row_count() == second_count(tables) == 0
    assert contents(tables) == history.contents(END + 30)


@pytest.mark.parametrize("ends", [[END], [30, END], [30, END - 30, END]])
def test_a_restart_reads_a_large_append_in_parts_and_merges_it_in_one_commit(
    history: History, ends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise ``state`` would have changes that its progress row does not include."""
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 10)
    tables = MemoryTables()
    writer = writer_of(tables)
    for end in ends:
        writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
    store = ReadsCounted(tables)
    second = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
    assert second.unmerged_row_count() == writer.unmerged_row_count()
    assert len(store.row_counts) > 3
    assert sum(store.row_counts) == writer.unmerged_row_count()
    second.merge_state()
    merges = [commit for commit in tables.commits if commit.operation == "merge"]
    assert len(merges) == len(ends)
    assert max(store.row_counts) <= 10
    assert second.unmerged_row_count() == second_count(tables) == 0
    history.check(read_view(tables))
    assert contents(tables) == history.contents(END)


def test_a_large_append_is_merged_later_if_there_is_no_directory_for_temporary_files(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upkeep tries a merge again after a ``TablesError``; another error would end the run.

    The file has no name during the merge: a process that is killed would leave it.
    """
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 10)
    tables = MemoryTables()
    writer_of(tables).apply(history.range(0, END), CLUSTER)
    during: list[list[Path]] = []
    store = MemoryStore(tables, before_commit=lambda *_: during.append([*tmp_path.iterdir()]))
    second = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
    with monkeypatch.context() as without:
        without.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.raises(TablesError, match="temporary file: no such file or directory"):
            second.merge_state()
    assert second.unmerged_row_count() == second_count(tables) > 0
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    second.merge_state()
    assert during
    assert not any(during)
    assert second.unmerged_row_count() == second_count(tables) == 0
    assert contents(tables) == history.contents(END)


def test_delta_rs_merges_a_large_append_into_rows_that_it_has(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot read a table while it merges rows."""
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 10)
    stores: tuple[TableStore, ...] = (MemoryStore(MemoryTables()), DeltaRsStore(str(tmp_path)))
    states = []
    for store in stores:
        for end in (30, END):
            writer = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
            writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
            Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1).merge_state()
        order = [("entity", "ascending"), ("key", "ascending")]
        states.append(store.read(STATE_TABLE).sort_by(order).to_pylist())
    assert states[0] == states[1]


def test_a_few_unmerged_changes_are_read_together_at_a_restart_and_kept(history: History) -> None:
    tables = history.written(60)
    store = ReadsCounted(tables)
    second = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
    assert store.row_counts == []
    count = second.unmerged_row_count()
    assert store.row_counts == [count]
    second.merge_state()
    assert store.row_counts == [count]
    history.check(read_view(tables))


def test_appends_during_a_merge_are_bounded_in_memory_and_not_part_of_it(
    history: History,
) -> None:
    tables = history.written(30)
    writer = writer_of(tables, unmerged_rows_max=5)
    begun = writer.begin_merge()
    for end in range(40, END, 10):
        writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
    writer.rows_on(MemoryStore(tables)).merge(begun)
    writer.end_merge(begun)
    assert writer.unmerged_row_count() == second_count(tables) > 5
    later = writer.begin_merge()
    assert rows_in_memory(later.values()) < writer.unmerged_row_count()
    writer.merge_state()
    assert writer.unmerged_row_count() == second_count(tables) == 0
    history.check(read_view(tables))


def test_the_end_of_a_merge_changes_nothing_if_the_tables_were_read_again_since(
    history: History,
) -> None:
    """As after a conflict with an append of another process, whose rows it does not have."""
    tables = history.written(30)
    writer = writer_of(tables)
    begun = writer.begin_merge()
    writer_of(tables).apply(history.range(30, 40), CLUSTER)
    writer.apply(history.range(30, 50), CLUSTER)
    writer.rows_on(MemoryStore(tables)).merge(begun)
    row_count = writer.unmerged_row_count()
    writer.end_merge(begun)
    assert writer.unmerged_row_count() == row_count
    writer.merge_state()
    assert second_count(tables) == 0
    assert contents(tables) == history.contents(50)


def test_the_end_of_a_merge_of_nothing_changes_nothing_if_the_tables_were_truncated_since(
    history: History,
) -> None:
    """Otherwise the next merge would read ``changes`` only from after the earlier end."""
    tables = history.written(50)
    writer = writer_of(tables, unmerged_rows_max=0)
    writer.merge_state()
    begun = writer.begin_merge()
    assert not any(tail.parts for tail in begun.values())
    writer.truncate_to(30)
    assert writer.unmerged_row_count() == 0
    writer.end_merge(begun)
    for end in range(35, 65, 5):
        writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
    writer.merge_state()
    assert second_count(tables) == 0
    assert contents(tables) == history.contents(60)


def test_a_merge_changes_nothing_that_a_reader_sees(history: History) -> None:
    tables = history.written(60)
    writer = writer_of(tables)
    writer.merge_state()
    assert tables.commits[-1].table == STATE_TABLE.name
    commit_count = len(tables.commits)
    writer.merge_state()
    assert len(tables.commits) == commit_count, "nothing is later than the state"
    assert contents(tables) == history.contents(60)


def test_a_late_merge_of_another_writer_reverts_nothing(history: History) -> None:
    tables = history.written(60)
    late, prompt = writer_of(tables), writer_of(tables)
    assert late.unmerged_row_count() > 0, "it has read the tables"
    prompt.apply(history.range(60, END), CLUSTER)
    prompt.merge_state()
    late.merge_state()
    history.check(read_view(tables))
    assert contents(tables) == history.contents(END)


def test_refused_batches_write_nothing(history: History) -> None:
    tables = history.written(60)
    before = contents(tables)
    commit_count = len(tables.commits)
    writer = writer_of(tables)
    for start, end in ((0, 60), (20, 30), (59, 60)):
        assert not writer.apply(history.range(start, end), CLUSTER), "a repeated range"
    with pytest.raises(OffsetGapError) as raised:
        writer.apply(history.range(62, 70), CLUSTER)
    assert raised.value.expected_offset == 60
    with pytest.raises(WrongClusterError):
        writer.apply(history.range(60, 70), "cluster-b")
    with pytest.raises(DivergedLogError) as diverged:
        writer.apply(in_epoch(history.range(50, 70), 5), CLUSTER)
    assert diverged.value.offset == 50
    assert len(tables.commits) == commit_count
    assert contents(tables) == before


def in_epoch(rows: pa.Table, epoch: int) -> pa.Table:
    """Return rows of the source as records of another leader epoch."""
    changed = rows.to_pylist()
    for row in changed:
        row["leaderEpoch"] = epoch
    return pa.Table.from_pylist(changed, schema=SCHEMA)


def test_a_batch_that_ends_inside_a_transaction_waits_for_its_end(history: History) -> None:
    writer = writer_of(MemoryTables())
    for start, end, last in ((0, 7, 2), (3, 11, 2), (3, 12, 11)):
        writer.apply(history.range(start, end), CLUSTER)
        assert writer.progress().offset == last


def test_two_writers_write_every_record_once(history: History) -> None:
    """Each continues from its own state, which is stale after the commits of the other."""
    tables = history.written(40)
    first, second = writer_of(tables), writer_of(tables)
    assert first.progress() == second.progress()
    first.apply(history.range(40, 50), CLUSTER)
    second.apply(history.range(40, 60), CLUSTER)
    first.apply(history.range(60, END), CLUSTER)
    assert contents(tables) == history.contents(END)
    second.apply(history.range(END - 1, END), CLUSTER)
    assert second.progress() == first.progress()


def test_a_writer_between_whose_appends_another_one_commits_retries(history: History) -> None:
    tables = history.written(40)
    rival = writer_of(tables)
    is_rival_due = [True]

    def before_commit(operation: str, table: str) -> None:
        if table == CHANGES_TABLE.name and is_rival_due.pop():
            rival.apply(history.range(40, 47), CLUSTER)

    def twice(operation: str, table: str) -> None:
        if is_rival_due:
            before_commit(operation, table)

    writer = writer_of(tables, before_commit=twice)
    writer.apply(history.range(40, 60), CLUSTER)
    assert contents(tables) == history.contents(60)


def test_a_writer_that_always_loses_raises_an_error(history: History) -> None:
    tables = history.written(40)
    ends = iter(range(41, 60))

    def before_commit(operation: str, table: str) -> None:
        writer_of(tables).apply(history.range(40, next(ends)), CLUSTER)

    writer = writer_of(tables, before_commit=before_commit)
    with pytest.raises(ConcurrentWriterError):
        writer.apply(history.range(40, 60), CLUSTER)


@pytest.mark.parametrize(
    ("offset", "merged_at"),
    nightly_except(
        ((11, END), (79, None), (100, 80)), itertools.product((11, 79, 100), (None, 80, END))
    ),
)
def test_a_truncation_gives_the_tables_of_that_offset(
    history: History, offset: int, merged_at: int | None
) -> None:
    tables = MemoryTables()
    writer = writer_of(tables)
    for end in (20, 80, END):
        writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
        if end == merged_at:
            writer.merge_state()
    assert writer.truncate_to(offset) == offset
    history.check(read_view(tables))
    assert writer.progress() == writer_of(tables).progress()
    assert contents(tables) == history.contents(offset + 1)
    writer.apply(history.range(offset, END + 10), CLUSTER)
    assert contents(tables) == history.contents(END + 10)


@pytest.mark.parametrize("merged_at", nightly_except((40,), (None, 40, 80)))
def test_a_truncation_reads_changes_in_windows(
    history: History, merged_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 10)
    tables = MemoryTables()
    appended(tables, history, merged_at)
    store = ReadsCounted(tables)
    second = Writer(store, cluster_id=CLUSTER, clock_us=lambda: 1)
    second.progress()
    store.row_counts.clear()
    assert second.truncate_to(30) == 30
    assert len(store.row_counts) > 3
    assert max(store.row_counts) <= 10 + 1
    history.check(read_view(tables))
    assert contents(tables) == history.contents(31)


@pytest.mark.parametrize("step", ["truncate", "truncate fence", "truncate log"])
def test_an_interrupted_truncation_is_completed(history: History, step: str) -> None:
    tables = history.written(60)
    with pytest.raises(CrashError):
        crashing(tables, step).truncate_to(40)
    assert read_view(tables).offset == 40, "readers continue immediately"
    history.check(read_view(tables))
    writer = writer_of(tables)
    assert writer.progress().offset == 40
    assert contents(tables) == history.contents(41)
    writer.apply(history.range(41, END), CLUSTER)
    assert contents(tables) == history.contents(END)


def test_a_truncation_into_a_transaction_ends_before_it(history: History) -> None:
    tables = history.written(END)
    writer = writer_of(tables)
    assert writer.truncate_to(7) == 2
    assert contents(tables) == history.contents(3)


def test_a_truncation_outside_of_the_tables_is_refused(history: History) -> None:
    tables = history.written(40)
    before = contents(tables)
    for offset in (-1, 40, 10**12):
        with pytest.raises(OffsetOutOfRangeError):
            writer_of(tables).truncate_to(offset)
    assert contents(tables) == before


def test_a_diverged_log_is_resolved_by_a_truncation(history: History) -> None:
    tables = history.written(60)
    other = in_epoch(history.range(50, END), 5)
    writer = writer_of(tables)
    with pytest.raises(DivergedLogError, match=r"truncate_to\(49\)"):
        writer.apply(other, CLUSTER)
    writer.truncate_to(49)
    writer.apply(other, CLUSTER)
    assert writer.progress().leader_epoch == 5
    assert writer_of(tables).progress() == writer.progress()
    offsets = tables.contents[LOG_TABLE.name]["offset"].to_pylist()
    assert sorted(offsets) == list(range(END))


@pytest.mark.parametrize(
    "merged_at",
    [
        None,
        pytest.param(40, marks=pytest.mark.slow),
        pytest.param(80, marks=pytest.mark.nightly),
    ],
)
def test_expired_changes_are_in_the_state(history: History, merged_at: int | None) -> None:
    tables = MemoryTables()
    writer = writer_of(tables)
    for end in (40, 80, END):
        writer.apply(history.range(writer.progress().next_offset, end), CLUSTER)
        if end == merged_at:
            writer.merge_state()
    assert writer.expire(79) == 79
    offsets = tables.contents[CHANGES_TABLE.name]["visible_offset"].to_pylist()
    assert min(offsets) == 80
    history.check(read_view(tables))
    assert writer_of(tables).progress() == writer.progress()
    assert writer.expire(79) == 79, "nothing more"
    assert writer.expire(85) == 85, "in the middle of an append"
    for refused in (writer.expire, writer.truncate_to, writer_of(tables).truncate_to):
        with pytest.raises(OffsetOutOfRangeError) as raised:
            refused(84)
        assert raised.value.log_start_offset == 85
    assert writer.truncate_to(90) == 90
    history.check(read_view(tables))
    writer.apply(history.range(91, END), CLUSTER)
    history.check(read_view(tables))
    assert writer.expire(END - 1) == END - 1
    assert tables.contents[CHANGES_TABLE.name].num_rows == 1, "its progress"
    again = writer_of(tables)
    assert again.progress().offset == END - 1
    again.apply(history.range(END, END + 10), CLUSTER)
    history.check(read_view(tables))


# --- other writers and incarnations ---------------------------------------------------------------


def test_a_writer_of_an_earlier_incarnation_commits_nothing(history: History) -> None:
    tables = history.written(60)
    stale, merging, other = writer_of(tables), writer_of(tables), writer_of(tables)
    for writer in (stale, merging):
        assert writer.progress().offset == 59
    other.truncate_to(40)
    with pytest.raises(OffsetGapError):
        stale.apply(history.range(60, 70), CLUSTER)
    other.apply(in_epoch(history.range(41, 50), 5), CLUSTER)
    expected = contents(tables)
    merging.merge_state()
    assert contents(tables) == expected
    with pytest.raises(OffsetGapError):
        merging.apply(history.range(60, 70), CLUSTER)
    assert contents(tables) == expected
    assert writer_of(tables).progress() == other.progress()


@pytest.mark.slow
def test_records_of_an_earlier_incarnation_in_log_are_not_read(history: History) -> None:
    """The next append to ``log`` fences the earlier writer from it; until then it can append."""
    tables = history.written(60)
    stale, other = writer_of(tables), writer_of(tables)
    for writer in (stale, other):
        assert writer.progress().offset == 59
    other.expire(30)
    stale.apply(history.range(60, 70), CLUSTER)
    assert contents(tables) == expired(history.contents(70), 30)
    other.forget()
    other.truncate_to(50)
    with pytest.raises(OffsetGapError):
        stale.apply(history.range(70, 80), CLUSTER)
    other.apply(history.range(51, 90), CLUSTER)
    other.expire(60)
    assert contents(tables) == expired(history.contents(90), 60)
    offsets = tables.contents[LOG_TABLE.name]["offset"].to_pylist()
    assert sorted(offsets) == list(range(90))


def expired(found: list[tuple[str, str]], offset: int | None) -> list[tuple[str, str]]:
    """Return contents without the changes up to an offset, or with all of them."""
    return [
        (name, text)
        for name, text in found
        if offset is None or name != "changes" or json.loads(text)["visible_offset"] > offset
    ]


@pytest.mark.parametrize("step", ["state", "fence", "expire"])
def test_an_interrupted_expiry_is_completed(history: History, step: str) -> None:
    tables = history.written(60)
    with pytest.raises(CrashError):
        crashing(tables, step).expire(30)
    history.check(read_view(tables))
    writer = writer_of(tables)
    assert writer.expire(30) == 30
    assert min(tables.contents[CHANGES_TABLE.name]["visible_offset"].to_pylist()) > 30
    writer.apply(history.range(60, END), CLUSTER)
    assert contents(tables) == expired(history.contents(END), 30)


@pytest.mark.slow
def test_the_latest_time_of_expired_changes_is_known(history: History) -> None:
    tables = history.written(END)
    times = history.rows["timestamp"].cast(pa.int64()).to_pylist()
    writer = writer_of(tables)
    for offset in (30, 79):
        writer.expire(offset)
        found = writer_of(tables).progress().expired_time_us
        assert found is not None
        assert found in times[: offset + 1]
        changed = tables.contents[CHANGES_TABLE.name]["log_time"].cast(pa.int64()).to_pylist()
        assert found <= min(changed), "times of this log do not decrease"
    writer.truncate_to(110)
    assert writer.progress().expired_time_us == found
    left = set(tables.contents[CHANGES_TABLE.name]["visible_offset"].to_pylist())
    quiet = next(offset for offset in sorted(left) if offset + 1 not in left)
    writer.expire(quiet)
    known = writer.progress().expired_time_us
    assert writer.expire(quiet + 1) == quiet + 1, "no change is there"
    assert writer.progress().expired_time_us == known


@pytest.mark.slow
def test_a_truncation_that_has_only_begun_changes_no_rows(history: History) -> None:
    tables = history.written(60)
    stale = writer_of(tables)
    assert stale.progress().offset == 59
    with pytest.raises(CrashError):
        crashing(tables, "fence").truncate_to(40)
    assert contents(tables) == history.contents(60)
    stale.apply(history.range(60, 70), CLUSTER)
    assert contents(tables) == history.contents(70)
    assert writer_of(tables).truncate_to(40) == 40
    assert contents(tables) == history.contents(41)


@pytest.mark.parametrize("what", ["append", "expiry"])
def test_an_expiry_reverts_nothing_that_another_process_does_meanwhile(
    history: History, what: str
) -> None:
    tables = history.written(60)
    rival = writer_of(tables)
    assert rival.progress().offset == 59
    is_done = False

    def interrupt(operation: str, table: str) -> None:
        nonlocal is_done
        if operation == "append" and not is_done:
            is_done = True
            if what == "append":
                rival.apply(history.range(60, 70), CLUSTER)
            else:
                rival.expire(20)

    writer = writer_of(tables, before_commit=interrupt)
    assert writer.expire(30) == 30
    writer.apply(history.range(60, END), CLUSTER)
    found = writer_of(tables).progress()
    assert found.expired_to == 30
    assert contents(tables) == expired(history.contents(END), 30)


def test_rows_that_readers_do_not_see_are_found_by_the_next_merge(history: History) -> None:
    """Another process reads the tables in the middle of a truncation that is interrupted."""
    tables = history.written(60)
    other = writer_of(tables)

    def interrupt(operation: str, table: str) -> None:
        if operation == "merge":
            other.forget()
            assert other.progress().offset == 59

    def crash(operation: str, table: str) -> None:
        if operation == "merge":
            raise CrashError

    with pytest.raises(CrashError):
        writer_of(tables, before_commit=interrupt, after_commit=crash).truncate_to(40)
    other.apply(history.range(60, 70), CLUSTER)
    assert read_view(tables).offset == 40
    other.merge_state()
    assert other.progress().offset == 40
    other.apply(history.range(41, END), CLUSTER)
    assert contents(tables) == history.contents(END)


@pytest.mark.slow
def test_a_truncation_reads_the_tables_again(history: History) -> None:
    tables = history.written(60)
    stale = writer_of(tables)
    assert stale.progress().offset == 59
    writer_of(tables).truncate_to(30)
    with pytest.raises(OffsetOutOfRangeError) as raised:
        stale.truncate_to(45)
    assert raised.value.log_end_offset == 31
    assert contents(tables) == history.contents(31)
    assert stale.progress().offset == 30
    writer_of(tables).apply(history.range(31, 50), CLUSTER)
    assert stale.truncate_to(45) == 45
    assert contents(tables) == history.contents(46)


def test_rows_that_another_process_has_truncated_are_appended_again(history: History) -> None:
    """Before the truncation the writer's tables had them."""
    tables = history.written(60)
    stale = writer_of(tables)
    assert stale.progress().offset == 59
    assert not stale.apply(history.range(31, 50), CLUSTER)
    writer_of(tables).truncate_to(30)
    assert stale.apply(history.range(31, 50), CLUSTER)
    assert contents(tables) == history.contents(50)
    assert not stale.apply(history.range(31, 50), CLUSTER)


@pytest.mark.slow
def test_truncations_in_a_row_give_the_tables_of_the_last_one(history: History) -> None:
    tables = history.written(60)
    for offset in (50, 40, 30):
        with pytest.raises(CrashError):
            crashing(tables, "truncate").truncate_to(offset)
        assert read_view(tables).offset == offset
        history.check(read_view(tables))
    writer = writer_of(tables)
    assert writer.progress().offset == 30
    assert contents(tables) == history.contents(31)
    writer.apply(history.range(31, 60), CLUSTER)
    assert contents(tables) == history.contents(60)


def crashing(tables: MemoryTables, step: str) -> Writer:
    """Return a writer whose process ends after a step."""

    def crash(done: str) -> None:
        if done == step:
            raise CrashError

    return Writer(MemoryStore(tables), after_step=crash, clock_us=lambda: 1)


@pytest.mark.parametrize("start", [40, 41, 55])
def test_records_that_a_crash_left_in_log_alone_give_way_to_others(
    history: History, start: int
) -> None:
    """The source was replaced, or delivers other ranges."""
    tables = history.written(40)
    with pytest.raises(CrashError):
        crashing(tables, "log").apply(history.range(40, 60), CLUSTER)
    kept = history.range(40, start)
    rewritten = in_epoch(history.range(start, 70), 5)
    writer_of(tables).apply(pa.concat_tables([kept, rewritten]), CLUSTER)
    expected = history.written(start)
    writer_of(expected).apply(rewritten, CLUSTER)
    assert contents(tables) == contents(expected)


def test_a_shorter_range_after_a_crash_is_written_once(history: History) -> None:
    tables = history.written(40)
    with pytest.raises(CrashError):
        crashing(tables, "log").apply(history.range(40, 60), CLUSTER)
    writer = writer_of(tables)
    for start, end in ((40, 45), (45, 70)):
        writer.apply(history.range(start, end), CLUSTER)
    assert contents(tables) == history.contents(70)


def test_a_missing_append_is_reported(history: History) -> None:
    tables = history.written(20)
    for start in (20, 40):
        writer_of(tables).apply(history.range(start, start + 20), CLUSTER)
    changes = tables.contents[CHANGES_TABLE.name]
    lost = pc.equal(changes["visible_offset"], 39)
    tables.contents[CHANGES_TABLE.name] = changes.filter(pc.invert(lost))
    with pytest.raises(TablesError, match="lacks the append from offset 20 on"):
        writer_of(tables).progress()


def copied(state: MemoryTables, changes: MemoryTables) -> MemoryTables:
    """Return tables whose ``state`` was copied at another time than ``changes``."""
    contents = {**changes.contents, STATE_TABLE.name: state.contents[STATE_TABLE.name]}
    return MemoryTables(contents)


def test_changes_that_were_copied_before_state_are_refused(history: History) -> None:
    tables = history.written(40)
    earlier = tables.copy()
    writer = writer_of(tables)
    writer.apply(history.range(40, 60), CLUSTER)
    writer.merge_state()
    mixed = copied(tables, earlier)
    opened = ArrowTables(MemoryStore(mixed))
    for read in (
        writer_of(mixed).progress,
        opened.latest,
        opened.status,
        lambda: opened.at(offset=20),
    ):
        with pytest.raises(
            TablesError, match=r"includes offset 59, but changes ends before it.*; if no "
        ):
            read()
    del mixed.contents[STATE_TABLE.name]
    writer_of(mixed).apply(history.range(40, 60), CLUSTER)
    assert contents(mixed) == history.contents(60)


def test_a_state_from_before_an_expiry_is_refused(history: History) -> None:
    tables = history.written(40)
    writer_of(tables).merge_state()
    earlier = tables.copy()
    writer = writer_of(tables)
    writer.apply(history.range(40, 80), CLUSTER)
    writer.expire(60)
    mixed = copied(earlier, tables)
    without = MemoryTables({CHANGES_TABLE.name: tables.contents[CHANGES_TABLE.name]})
    for found in (mixed, without):
        for read in (writer_of(found).progress, ArrowTables(MemoryStore(found)).latest):
            with pytest.raises(TablesError, match="up to offset 60 have expired") as caught:
                read()
            assert "delete table state" not in str(caught.value)


def test_a_state_from_before_a_truncation_is_refused(history: History) -> None:
    """Its rows after the truncation's offset are reverted, and later changes begin after them."""
    tables = history.written(60)
    writer_of(tables).merge_state()
    earlier = tables.copy()
    writer = writer_of(tables)
    writer.truncate_to(39)
    for start, end in ((40, 60), (60, 80)):
        writer.apply(history.range(start, end), CLUSTER)
    mixed = copied(earlier, tables)
    for read in (writer_of(mixed).progress, ArrowTables(MemoryStore(mixed)).latest):
        with pytest.raises(TablesError, match="truncated to offset 39, but state was not"):
            read()
    del mixed.contents[STATE_TABLE.name]
    assert contents(mixed) == history.contents(80)


# --- snapshots ------------------------------------------------------------------------------------


def snapshot(history: History, end_offset: int, epoch: int) -> pa.Table:
    """Return the rows of a snapshot of the state before an offset, in another leader epoch."""
    records = image_records(history.images[end_offset - 1])
    payloads: tuple[Payload, ...] = (
        SnapshotHeader(last_contained_log_timestamp_ms=5),
        *records,
        SnapshotFooter(),
    )
    rows = [LogRecord(number, epoch, 5, payload) for number, payload in enumerate(payloads)]
    return checkpoint_rows(rows, end_offset=end_offset, epoch=epoch, timestamp_ms=5)


def with_gap(history: History) -> tuple[MemoryTables, Writer]:
    """Return tables of [0, 20), a snapshot with end offset 50, and [50, 80) in epoch 3."""
    tables = history.written(20)
    writer = writer_of(tables)
    later = in_epoch(history.range(50, 80), 3)
    writer.apply(pa.concat_tables([snapshot(history, 50, 3), later]), CLUSTER)
    return tables, writer


@pytest.mark.slow
def test_a_gap_remains_after_a_truncation(history: History) -> None:
    tables, writer = with_gap(history)
    assert writer.progress().gaps == ((20, 49),)
    assert writer.truncate_to(60) == 60
    for opened in (writer, writer_of(tables)):
        assert opened.progress().gaps == ((20, 49),)
        assert opened.progress().leader_epoch == 3
        assert opened.progress().is_in_gap(20)
        assert not opened.progress().is_in_gap(49)
    assert writer.truncate_to(30) == 19, "before the gap"
    assert writer_of(tables).progress().gaps == ()
    assert contents(tables) == history.contents(20)


def test_an_expiry_in_a_gap_leaves_the_state_before_it(history: History) -> None:
    tables, writer = with_gap(history)
    assert writer.expire(30) == 19
    assert writer.progress().gaps == ((20, 49),)
    opened = ArrowTables(MemoryStore(tables))
    assert opened.at(offset=19).offset == opened.status().oldest_offset
    assert opened.diff("start", "end").num_rows
    assert writer.expire(30) == 19, "again"
    assert writer.expire(49) == 49


def test_a_gap_over_a_change_of_leaders_is_no_divergence(history: History) -> None:
    tables, _ = with_gap(history)
    writer = writer_of(tables)
    repeated = in_epoch(history.range(70, 90), 3)
    assert writer.apply(repeated, CLUSTER)
    assert writer.progress().offset == 89
    with pytest.raises(DivergedLogError):
        writer.apply(in_epoch(history.range(85, 95), 4), CLUSTER)
    writer.truncate_to(85)
    assert writer.apply(in_epoch(history.range(86, 95), 4), CLUSTER)


@pytest.mark.parametrize(
    "slice_rows",
    [
        31,
        pytest.param(4, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.nightly),
    ],
)
def test_a_batch_in_slices_gives_the_same_tables(history: History, slice_rows: int) -> None:
    expected, _ = with_gap(history)
    later = in_epoch(history.range(50, 80), 3)
    loaded = pa.concat_tables([snapshot(history, 50, 3), later])
    for merges in (False, True):
        tables = history.written(12)
        writer = writer_of(tables, slice_rows=slice_rows)
        writer.apply(history.range(12, 20), CLUSTER)
        if merges:
            writer.merge_state()
        commits = len(tables.commits)
        assert writer.apply(loaded, CLUSTER)
        assert [commit.table for commit in tables.commits[commits:]] == ["log", "changes"]
        published = read_view(tables)
        assert contents(tables) == contents(expected)
        assert writer.unmerged_row_count() > slice_rows
        writer.apply(in_epoch(history.range(80, 90), 3), CLUSTER)
        view, rows = read_view(tables), contents(tables)
        writer.merge_state()
        assert writer.unmerged_row_count() == 0
        assert tables.contents["state"].num_rows == len(
            set(zip(*(tables.contents["state"][name].to_pylist() for name in KEY), strict=True))
        )
        assert contents(tables) == rows
        assert read_view(tables).offset == view.offset > published.offset
        assert writer_of(tables).progress() == writer.progress()


KEY = ("cluster_id", "entity", "key")


def test_tables_without_log_have_the_same_changes(history: History) -> None:
    tables = MemoryTables()
    writer = Writer(MemoryStore(tables), writes_log=False, clock_us=lambda: 1)
    writer.apply(history.range(0, END), CLUSTER)
    assert LOG_TABLE.name not in tables.contents
    expected = [row for row in history.contents(END) if row[0] != LOG_TABLE.name]
    assert contents(tables) == expected
    with pytest.raises(TablesError, match="log=False"):
        writer_of(tables).progress()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "end_offset", "unmerged_rows_max"),
    [
        (range(1, 3), END // 2, UNMERGED_ROWS_MAX),
        pytest.param(range(6), END, UNMERGED_ROWS_MAX, marks=pytest.mark.nightly),
        (range(1), END, 3),
        pytest.param(range(1, 2), END, 3, marks=pytest.mark.nightly),
        pytest.param(range(6, SEEDS), END, UNMERGED_ROWS_MAX, marks=pytest.mark.nightly),
        pytest.param(range(6, SEEDS), END, 3, marks=pytest.mark.nightly),
    ],
    ids=[
        "some",
        "more",
        "unmerged rows in the table",
        "more in the table",
        "many",
        "many in the table",
    ],
)
def test_crashes_between_any_commits_lose_and_repeat_nothing(
    history: History,
    seeds: range,
    end_offset: int,
    unmerged_rows_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two processes take turns. ``test_invariants_beside_writers_spark.py`` has other readers."""
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 15)
    expected = history.contents(end_offset)
    crash_count = 0
    for seed in seeds:
        tables = MemoryTables()
        crash_count += write_with_crashes(
            tables,
            history,
            random.Random(seed),
            end_offset=end_offset,
            unmerged_rows_max=unmerged_rows_max,
        )
        progress = writer_of(tables).progress()
        writer_of(tables).expire(progress.oldest_offset)
        assert contents(tables) == expired(expected, progress.expired_to), seed
    assert crash_count > len(seeds)


def test_records_of_a_topic_of_another_name_are_written_if_they_are_metadata(
    history: History,
) -> None:
    """As those of a quorum of raftlog are."""
    rows = history.range(0, 60)
    at = rows.column_names.index("topic")
    renamed = rows.set_column(at, "topic", pa.array(["raftlog"] * rows.num_rows))
    tables = MemoryTables()
    writer = writer_of(tables)
    assert writer.apply(renamed, CLUSTER)
    assert writer.progress().topic == "raftlog"
    history.check(read_view(tables))
    with pytest.raises(TablesError, match="they contain topic raftlog"):
        writer.apply(history.range(60, 70), CLUSTER)
    at = renamed.column_names.index("recordType")
    nulls = pa.nulls(renamed.num_rows, pa.string())
    with pytest.raises(TablesError, match="topic raftlog is not a cluster's metadata log"):
        writer_of(MemoryTables()).apply(renamed.set_column(at, "recordType", nulls), CLUSTER)
