"""Processes that replay the buckets of a load: their results, and their failures."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.state.tables.test_bulk_load import load
from tests.support.memory_store import MemoryTables
from tests.support.random_metadata_log import write_random_log
from tests.support.written_tables import contents, followed

from raftlog_state.errors import TablesError
from raftlog_state.tables.bucket_replay import BucketResult
from raftlog_state.tables.range_routing import RECORDS_FILE, NotSplit, RoutedRange
from raftlog_state.tables.task_processes import TaskProcesses

pytestmark = pytest.mark.slow


def test_processes_give_the_tables_of_one_process(tmp_path: Path) -> None:
    log = write_random_log(tmp_path, 3, 200).directory
    tables = MemoryTables()
    with TaskProcesses(2) as processes:
        load(log, tables, tmp_path / "staging", run_tasks=processes.run)
        assert len(multiprocessing.active_children()) == 2
    assert contents(tables) == contents(followed(log))
    assert not multiprocessing.active_children()


def test_the_end_of_a_process_is_an_error_and_the_load_is_continued(tmp_path: Path) -> None:
    log, staging = write_random_log(tmp_path, 3, 200).directory, tmp_path / "staging"
    tables = MemoryTables()

    def kill(step: str) -> None:
        if step == "state":  # the processes that have replayed the first range
            for child in multiprocessing.active_children():
                child.kill()
                child.join()

    with (
        TaskProcesses(2) as processes,
        pytest.raises(TablesError, match=r"exit code -9.* fewer workers"),
    ):
        load(*(log, tables, staging), run_tasks=processes.run, after_step=kill, range_records=60)
    assert not multiprocessing.active_children()
    load(log, tables, staging)
    assert contents(tables) == contents(followed(log))


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_of_the_file_system_is_reported(tmp_path: Path, count: int) -> None:
    log = write_random_log(tmp_path, 3, 200).directory

    with TaskProcesses(count) as processes:

        def run_tasks(
            routed: RoutedRange, buckets: Sequence[int]
        ) -> Iterator[BucketResult | NotSplit]:
            Path(routed.task.directory, RECORDS_FILE).unlink()
            return processes.run(routed, buckets)

        with pytest.raises(TablesError, match="cannot be read or written"):
            load(log, MemoryTables(), tmp_path / "staging", run_tasks=run_tasks)


def test_a_staging_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    log = write_random_log(tmp_path, 3, 200).directory
    (tmp_path / "staging").touch()
    with pytest.raises(TablesError, match=r"cannot be read or written: (file exists|not a dir)"):
        load(log, MemoryTables(), tmp_path / "staging")
