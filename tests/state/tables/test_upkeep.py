"""When a run merges changes into ``state`` and compacts its tables, without Spark."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from tests.support.memory_store import Commit, MemoryStore, MemoryTables
from tests.support.metadata_logs import MetadataLog
from tests.support.small_logs import LogWriter
from tests.support.source_rows import source_rows
from tests.support.written_tables import contents, read_view

from raftlog.client import open_path
from raftlog.clock import Clock
from raftlog_state.errors import ConcurrentWriterError, TablesError
from raftlog_state.tables.following import BatchSink
from raftlog_state.tables.progress import progress_rows_of
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE
from raftlog_state.tables.source_options import SourceOptions
from raftlog_state.tables.upkeep import (
    CHECKPOINT_APPENDS,
    COMPACT_FILES,
    MERGE_INTERVAL_S,
    MERGE_ROWS_MAX,
    RETRY_INTERVAL_S,
    VACUUM_INTERVAL_S,
    Upkeep,
    UpkeepRunner,
)
from raftlog_state.tables.writer import Writer


def test_changes_are_merged_at_the_interval() -> None:
    upkeep = Upkeep(None)
    assert not upkeep.is_merge_due(100.0, 1, 1), "the interval begins with the first batch"
    assert not upkeep.is_merge_due(100.0 + MERGE_INTERVAL_S - 1, 2, 2)
    assert upkeep.is_merge_due(100.0 + MERGE_INTERVAL_S, 3, 3)
    upkeep.merged(200.0)
    assert not upkeep.is_merge_due(200.0 + MERGE_INTERVAL_S - 1, 4, 1)
    assert upkeep.is_merge_due(200.0 + MERGE_INTERVAL_S, 5, 2)


def test_many_changes_are_merged_before_the_interval() -> None:
    upkeep = Upkeep(None)
    assert not upkeep.is_merge_due(100.0, 1, MERGE_ROWS_MAX - 1)
    assert upkeep.is_merge_due(100.0, 1, MERGE_ROWS_MAX)


def test_a_run_merges_at_its_end_and_not_before() -> None:
    upkeep = Upkeep(7)
    assert not upkeep.is_merge_due(100.0, 6, 1)
    assert upkeep.is_merge_due(100.0, 7, 1)
    assert upkeep.is_merge_due(100.0, 8, 1), "the log had grown when the source read its end"


def test_small_files_are_compacted_after_a_number_of_appends() -> None:
    upkeep = Upkeep(None)
    upkeep.file_count = 1
    for _ in range(COMPACT_FILES - 2):
        upkeep.appended()
    assert not upkeep.is_compaction_due()
    upkeep.appended()
    assert upkeep.is_compaction_due()
    for _ in range(2):
        upkeep.compacted(COMPACT_FILES)
        for _ in range(COMPACT_FILES - 1):
            upkeep.appended()
        assert not upkeep.is_compaction_due()
        upkeep.appended()
        assert upkeep.is_compaction_due()


def test_files_that_are_appended_during_a_compaction_are_counted() -> None:
    upkeep = Upkeep(None)
    upkeep.file_count = COMPACT_FILES
    for _ in range(COMPACT_FILES - 1):
        upkeep.appended()
    upkeep.compacted(COMPACT_FILES)
    assert not upkeep.is_compaction_due()
    upkeep.appended()
    assert upkeep.is_compaction_due()


def test_checkpoints_are_due_at_the_start_and_after_a_number_of_appends() -> None:
    upkeep = Upkeep(None)
    for _ in range(2):
        assert upkeep.is_checkpoint_due()
        upkeep.checkpointed()
        for _ in range(CHECKPOINT_APPENDS - 1):
            upkeep.appended()
        assert not upkeep.is_checkpoint_due()
        upkeep.appended()


def run_of(tables: MemoryTables, rows: pa.Table, target_offset: int | None) -> None:
    """Write one batch, as a run of its own."""
    writer = Writer(MemoryStore(tables))
    BatchSink(writer, None, UpkeepRunner(writer, Upkeep(target_offset))).write(rows)


def test_runs_of_one_append_compact_all_tables_together(three_nodes: MetadataLog) -> None:
    rows, tables = source_rows(three_nodes.records[:20]), MemoryTables()
    run_of(tables, rows, 20)
    merges = [Commit("merge", STATE_TABLE.name)]
    for _ in range(COMPACT_FILES + 2):
        for table in (LOG_TABLE, CHANGES_TABLE):
            content = tables.contents[table.name]
            tables.contents[table.name] = pa.concat_tables([content, content.slice(0, 0)])
    assert tables.commits[2:] == merges, "few files"
    rows = source_rows(three_nodes.records[20:40])
    run_of(tables, rows, 40)
    assert tables.commits[5:] == merges + [
        Commit("compact", table.name) for table in (LOG_TABLE, CHANGES_TABLE, STATE_TABLE)
    ]


def fragmented_mebibytes(libc: ctypes.CDLL, count: int) -> None:
    """Free blocks of malloc below one that is in use, so that the process keeps their memory."""
    blocks = [libc.malloc(1024) for _ in range(1024 * count)]
    for block in blocks:
        ctypes.memset(block, 1, 1024)
    for block in blocks[:-1]:
        libc.free(ctypes.c_void_p(block))


def resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_memory_that_upkeep_has_freed_is_returned_to_the_system(three_nodes: MetadataLog) -> None:
    libc, rows, tables = ctypes.CDLL(None), source_rows(three_nodes.records[:20]), MemoryTables()
    libc.malloc.restype = ctypes.c_void_p
    if not hasattr(libc, "malloc_trim"):  # not glibc's: the same run, and nothing to return
        run_of(tables, rows, 20)
        return
    fragmented_mebibytes(libc, 64)
    before = resident_mebibytes()
    run_of(tables, rows, 20)
    assert resident_mebibytes() < before - 32


class Upkept:
    """Writer with upkeep in a thread, which waits before each commit until it may."""

    def __init__(self, tables: MemoryTables, target_offset: int | None = None) -> None:
        self.writer = Writer(MemoryStore(tables))
        self.now_s = 0.0
        self.warnings: list[str] = []
        self.has_begun, self.may_commit = Event(), Event()
        self.errors: list[TablesError] = []
        schedule = Upkeep(target_offset)
        schedule.checkpointed()
        upkeep = UpkeepRunner(
            self.writer,
            schedule,
            store=MemoryStore(tables, before_commit=self._before_commit),
            clock=Clock(now_ms=lambda: 1_000 * self.now_s),
            warn=self.warnings.append,
        )
        self.sink = BatchSink(self.writer, None, upkeep)

    def _before_commit(self, operation: str, table: str) -> None:
        self.has_begun.set()
        assert self.may_commit.wait(60), "the test has released it"
        if self.errors:
            raise self.errors.pop()


def test_appends_do_not_wait_for_upkeep_beside_them(three_nodes: MetadataLog) -> None:
    tables, rows = MemoryTables(), source_rows(three_nodes.records[:80])
    upkept = Upkept(tables)
    upkept.sink.write(rows.slice(0, 20))
    upkept.now_s = MERGE_INTERVAL_S
    upkept.sink.write(rows.slice(20, 20))
    assert upkept.has_begun.wait(60)
    for start in (40, 50, 60, 70):
        upkept.sink.write(rows.slice(start, 10))
        assert read_view(tables).offset == start + 9
    assert STATE_TABLE.name not in tables.contents
    upkept.may_commit.set()
    upkept.sink.close()
    assert upkept.warnings == []
    [base] = progress_rows_of(tables.contents[STATE_TABLE.name])
    assert base.offset == 39, "what was appended meanwhile is merged next time"
    again = Writer(MemoryStore(tables))
    assert upkept.writer.unmerged_row_count() == again.unmerged_row_count() > 0
    assert upkept.writer.progress() == again.progress()
    expected = MemoryTables()
    Writer(MemoryStore(expected)).apply(rows, None)
    assert contents(tables) == contents(expected)


@pytest.mark.parametrize("is_conflict", [False, True])
def test_upkeep_that_fails_beside_appends_is_logged_and_tried_again(
    three_nodes: MetadataLog, is_conflict: bool
) -> None:
    tables, rows = MemoryTables(), source_rows(three_nodes.records[:60])
    upkept = Upkept(tables)
    kind = ConcurrentWriterError if is_conflict else TablesError
    upkept.errors = [kind(place="memory", reason="the disk is full", remedy="free space")]
    upkept.may_commit.set()
    upkept.sink.write(rows.slice(0, 20))
    upkept.now_s = MERGE_INTERVAL_S
    upkept.sink.write(rows.slice(20, 20))
    upkept.sink.close()
    [warning] = upkept.warnings
    assert "the disk is full" in warning
    assert warning.endswith("retrying in 10 s")
    run_of(tables, rows.slice(40, 20), 60)
    assert Writer(MemoryStore(tables)).unmerged_row_count() == 0


def disk_full() -> TablesError:
    return TablesError(place="memory", reason="the disk is full", remedy="free space")


def test_a_run_merges_at_its_end_although_upkeep_has_failed_before(
    three_nodes: MetadataLog,
) -> None:
    tables, rows = MemoryTables(), source_rows(three_nodes.records[:60])
    upkept = Upkept(tables, target_offset=60)
    upkept.errors = [disk_full()]
    upkept.sink.write(rows.slice(0, 20))
    upkept.now_s = MERGE_INTERVAL_S
    upkept.sink.write(rows.slice(20, 20))
    upkept.may_commit.set()
    upkept.sink.write(rows.slice(40, 20))
    [warning] = upkept.warnings
    assert "the disk is full" in warning
    assert upkept.errors == []
    assert Writer(MemoryStore(tables)).unmerged_row_count() == 0


class FailingMerges:
    """Writer whose merges fail, with upkeep between its appends."""

    def __init__(self, tables: MemoryTables, target_offset: int | None = None) -> None:
        self.now_s = 0.0
        self.tries = 0
        writer = Writer(MemoryStore(tables, before_commit=self._before_commit))
        upkeep = UpkeepRunner(
            writer,
            Upkeep(target_offset),
            clock=Clock(now_ms=lambda: 1_000 * self.now_s),
            warn=lambda _: None,
        )
        self.sink = BatchSink(writer, None, upkeep)

    def _before_commit(self, operation: str, table: str) -> None:
        if operation == "merge":
            self.tries += 1
            raise disk_full()


def test_upkeep_that_fails_is_not_tried_again_with_each_batch(three_nodes: MetadataLog) -> None:
    tables, rows = MemoryTables(), source_rows(three_nodes.records[:80])
    failing = FailingMerges(tables)
    tries = []
    for at, now_s in enumerate((0, 0, RETRY_INTERVAL_S - 1, RETRY_INTERVAL_S)):
        failing.now_s = now_s + (MERGE_INTERVAL_S if at else 0)
        failing.sink.write(rows.slice(20 * at, 20))
        tries.append(failing.tries)
    assert tries == [0, 1, 1, 2]


def test_upkeep_that_fails_does_not_keep_the_rest_from_being_done(
    three_nodes: MetadataLog,
) -> None:
    tables, rows = MemoryTables(), source_rows(three_nodes.records[:40])
    Writer(MemoryStore(tables)).apply(rows.slice(0, 20), None)
    content = tables.contents[CHANGES_TABLE.name]
    files = [content, *[content.slice(0, 0)] * (COMPACT_FILES + 2)]
    tables.contents[CHANGES_TABLE.name] = pa.concat_tables(files)
    failing = FailingMerges(tables, target_offset=40)
    failing.sink.write(rows.slice(20, 20))
    assert failing.tries == 1
    assert Commit("compact", CHANGES_TABLE.name) in tables.commits


def test_a_run_that_ends_in_an_open_transaction_merges(three_nodes: MetadataLog) -> None:
    rows, tables = source_rows(three_nodes.records[:8]), MemoryTables()
    run_of(tables, rows, 8)
    writer = Writer(MemoryStore(tables))
    assert writer.progress().next_offset < 8, "a transaction is open"
    assert writer.unmerged_row_count() == 0


def test_a_writer_without_the_table_log_needs_no_json(three_nodes: MetadataLog) -> None:
    rows = source_rows(three_nodes.records[:40])
    found = []
    for writes_log in (True, False):
        tables = MemoryTables()
        writer = Writer(MemoryStore(tables), writes_log=writes_log, clock_us=lambda: 1)
        assert ("record" in writer.source_columns) == writes_log
        writer.apply(rows.select(writer.source_columns), None)
        assert (LOG_TABLE.name in tables.contents) == writes_log
        found.append(tables.contents[CHANGES_TABLE.name])
    assert found[0] == found[1]
    with pytest.raises(TablesError, match="no columns record"):
        Writer(MemoryStore(MemoryTables())).apply(rows.drop_columns(["record"]), None)


def test_old_files_are_deleted_once_a_day() -> None:
    upkeep = Upkeep(None)
    assert not upkeep.is_vacuum_due(100.0)
    assert not upkeep.is_vacuum_due(100.0 + VACUUM_INTERVAL_S - 1)
    assert upkeep.is_vacuum_due(100.0 + VACUUM_INTERVAL_S)
    upkeep.vacuumed(200.0 + VACUUM_INTERVAL_S)
    assert not upkeep.is_vacuum_due(199.0 + 2 * VACUUM_INTERVAL_S)


def test_the_end_of_a_run_is_known_although_a_tail_is_held_back(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "__cluster_metadata-0")
    log.append(b"\x01\x14\x00", b"\x01\x14\x00", b"\x01\x14\x00")
    reader = open_path(str(log.directory))

    def end_with(**options: str) -> int:
        return SourceOptions.parse({"path": str(log.directory), **options}).end_of_run(reader)

    assert end_with(tailHoldback="0") == 3
    assert end_with(TAILHOLDBACK=" 0 s ") == 3
    assert end_with(tailHoldback="1000000h") == 0
