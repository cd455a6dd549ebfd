"""When a run merges changes into ``state`` and compacts its tables, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.memory_store import Commit, MemoryStore, MemoryTables
from tests.support.metadata_logs import MetadataLog
from tests.support.small_logs import LogWriter
from tests.support.source_rows import source_rows

from raftlog.client import open_path
from raftlog_state.errors import TablesError
from raftlog_state.tables.following import (
    COMPACT_FILES,
    MERGE_INTERVAL_S,
    MERGE_ROWS_MAX,
    VACUUM_INTERVAL_S,
    BatchSink,
    Upkeep,
)
from raftlog_state.tables.schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE
from raftlog_state.tables.source_options import SourceOptions
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
    upkeep.found_files(1)
    for _ in range(COMPACT_FILES - 2):
        upkeep.appended()
    assert not upkeep.is_compaction_due()
    upkeep.appended()
    assert upkeep.is_compaction_due()
    for _ in range(2):
        upkeep.compacted()
        for _ in range(COMPACT_FILES - 1):
            upkeep.appended()
        assert not upkeep.is_compaction_due()
        upkeep.appended()
        assert upkeep.is_compaction_due()


def run_of(tables: MemoryTables, rows: pa.Table, target_offset: int | None) -> None:
    """Write one batch, as a run of its own."""
    BatchSink(Writer(MemoryStore(tables)), None, Upkeep(target_offset)).write(rows)


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
