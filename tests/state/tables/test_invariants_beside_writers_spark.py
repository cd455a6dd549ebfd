"""Readers that run beside writers see states that satisfy all rules of the invariant pack.

Other tests compare states with a replay: ``test_writer.py``, ``test_cli_tables.py``.
"""

from __future__ import annotations

import json
import random
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from tests.state.cli.test_cli_tables import LOG, follow_once, following, stored, wait_for
from tests.support.interrupted_writers import write_with_crashes
from tests.support.invariant_reader import InvariantReader, reading
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.small_logs import copy_log
from tests.support.sweep_size import nightly_except
from tests.support.written_tables import CLUSTER, END, History, contents, followed

from raftlog_state.tables import open_tables
from raftlog_state.tables import tails as cluster_tails
from raftlog_state.tables.reader import ArrowTables
from raftlog_state.tables.schema import CHANGES_TABLE, StoredTable
from raftlog_state.tables.stores.protocol import Rows, Transaction, rows_where
from raftlog_state.tables.writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.support.metadata_logs import MetadataLog

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def history(three_nodes: MetadataLog) -> History:
    return History(three_nodes)


@pytest.mark.parametrize(
    ("seeds", "end_offset"),
    [
        (range(2, 3), END // 2),
        pytest.param(range(1, 4), END // 2, marks=pytest.mark.nightly),
        pytest.param(range(4, 30), END, marks=pytest.mark.nightly),
    ],
    ids=["some", "more", "many"],
)
def test_states_beside_writers_that_crash_satisfy_the_rules(
    spark: SparkSession,
    history: History,
    seeds: range,
    end_offset: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each state is read in two halves, with commits between them."""
    monkeypatch.setattr(cluster_tails, "ROWS_READ", 15)
    tables = MemoryTables()
    reader = InvariantReader(lambda: ArrowTables(MemoryStore(tables)))
    for seed in seeds:
        tables = MemoryTables()
        chance = random.Random(seed)
        write_with_crashes(tables, history, chance, end_offset=end_offset, read=reader.read)
    assert not reader.violations(spark)
    assert reader.state_count > 12 * len(seeds)


class TornAppends(MemoryStore):
    """Store whose appends of changes are two commits: those of topics are in the second one."""

    def append(self, table: StoredTable, rows: Rows, *transactions: Transaction) -> None:
        """Append rows to ``changes`` in two commits if there are topics among others."""
        assert isinstance(rows, pa.Table)
        first, last = (rows_where(rows, ("entity", sign, "topic")) for sign in ("!=", "="))
        if table != CHANGES_TABLE or not last.num_rows:
            super().append(table, rows, *transactions)
        else:
            super().append(table, first, *transactions)
            torn = Transaction(app_id="torn", version=transactions[0].version)
            super().append(table, last, torn)


def test_a_torn_publication_violates_rules(spark: SparkSession, history: History) -> None:
    """The state between its two commits has partitions without a topic."""
    tables = MemoryTables()
    reader = InvariantReader(lambda: ArrowTables(MemoryStore(tables)))

    def read(operation: str, table: str) -> None:
        if table == CHANGES_TABLE.name:
            reader.read()

    writer = Writer(TornAppends(tables, after_commit=read), writes_log=False, clock_us=lambda: 1)
    writer.apply(history.range(0, END), CLUSTER)
    violated = {one.rule: one for one in reader.violations(spark)}
    assert violated.keys() == {"config_of_topic_names_a_topic", "partition_has_topic"}
    assert f"state 1 at offset {END - 1}" in violated["partition_has_topic"].first


MUCH_UPKEEP: Final = """
import sys
from raftlog_state.cli.main import main
from raftlog_state.tables import upkeep
upkeep.MERGE_INTERVAL_S, upkeep.COMPACT_FILES, upkeep.CHECKPOINT_APPENDS = 0.0, 3, 5
sys.exit(main())
"""


@pytest.mark.parametrize(
    "killed_at", nightly_except([[400, 1000]], [[400, 1000], [400, 1000, 1600]])
)
def test_processes_that_are_killed_during_upkeep_leave_the_same_tables(
    spark: SparkSession, data: Path, tmp_path: Path, killed_at: list[int]
) -> None:
    """Merges and compactions run all the time, beside the appends and a reader."""
    place, log_path = tmp_path / "tables", tmp_path / "node" / "__cluster_metadata-0"
    follow = partial(following, log_path, place, "--max-records", "30")
    copy_log(data / LOG, log_path, end_offset=60)
    follow_once(log_path, place)
    reader = InvariantReader(lambda: open_tables(str(place)))
    with reading(reader):
        for end_offset in killed_at:
            copy_log(data / LOG, log_path, end_offset=end_offset)
            with follow(program=("-c", MUCH_UPKEEP)) as process:
                wait_for(process, "appended offsets")
                process.kill()
                assert process.wait() == -signal.SIGKILL
        copy_log(data / LOG, log_path, end_offset=killed_at[-1] + 200)
        with follow("--once", program=("-c", MUCH_UPKEEP)) as process:
            _, err = process.communicate()
            assert process.returncode == 0, err
    log = place / CHANGES_TABLE.name / "_delta_log"
    operations = {operation_of(entry) for entry in log.glob("*.json")}
    assert operations >= {"WRITE", "OPTIMIZE"}
    assert stored(place) == contents(followed(log_path))
    assert not reader.violations(spark)
    assert len(reader.offsets) > 3


def operation_of(entry: Path) -> str:
    """Return the operation of a commit."""
    actions = map(json.loads, entry.read_text().splitlines())
    [found] = [action["commitInfo"] for action in actions if "commitInfo" in action]
    return str(found["operation"])
