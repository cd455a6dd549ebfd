"""When a stream merges changes into ``state`` and compacts its tables, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.small_logs import LogWriter

from raftlog.client import open_path
from raftlog.errors import OptionError
from raftlog_state.tables.materialize import (
    COMPACT_APPENDS,
    MERGE_INTERVAL_S,
    MERGE_ROWS_MAX,
    VACUUM_INTERVAL_S,
    Upkeep,
    end_of_run,
)


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
    for _ in range(COMPACT_APPENDS - 1):
        upkeep.appended()
    assert not upkeep.is_compaction_due()
    upkeep.appended()
    assert upkeep.is_compaction_due()
    upkeep.compacted()
    assert not upkeep.is_compaction_due()


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
    assert end_of_run(reader, {"tailHoldback": "0"}) == 3
    assert end_of_run(reader, {"TAILHOLDBACK": " 0 s "}) == 3
    assert end_of_run(reader, {"tailHoldback": "1000000h"}) == 0
    with pytest.raises(OptionError, match="tailHoldback"):
        end_of_run(reader, {"tailHoldback": "soon"})
