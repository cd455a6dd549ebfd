"""``read_state``: the state of a log as Arrow tables, equal to the Delta tables of the same log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.cli import rows
from tests.support.memory_store import MemoryStore, MemoryTables
from tests.support.metadata_logs import MetadataLog
from tests.support.small_logs import BEGIN_TRANSACTION, NO_OP, LogWriter
from tests.support.source_rows import source_rows

from raftlog.client import open_path
from raftlog.errors import NotALogError, OffsetOutOfRangeError, OptionError
from raftlog_state import read_state
from raftlog_state.loader.payload import SkippedRecords
from raftlog_state.records import Redactor
from raftlog_state.tables.reader import ArrowTables
from raftlog_state.tables.schema import CLUSTER_ID, METADATA_TABLES, ORIGIN_COLUMNS
from raftlog_state.tables.writer import Writer

LOGS = Path(__file__).parents[2] / "data" / "kraft-logs"
NODE = LOGS / "three-nodes-4.3.1" / "node-100"
END = 1300


@pytest.fixture(scope="module")
def tables(three_nodes: MetadataLog) -> ArrowTables:
    """Return tables of the first records of the log, written from the source's rows."""
    cluster_id = open_path(str(NODE)).cluster_id
    assert cluster_id is not None
    written = MemoryTables()
    Writer(MemoryStore(written)).apply(source_rows(three_nodes.records[:END]), cluster_id)
    return ArrowTables(MemoryStore(written))


def by_key(table: pa.Table, key: tuple[str, ...]) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in key] or [(CLUSTER_ID, "ascending")])


@pytest.mark.parametrize("end_offset", [120, 768, 1232, END])
def test_each_table_equals_that_of_the_delta_tables(tables: ArrowTables, end_offset: int) -> None:
    found, expected = (
        read_state(NODE, at=end_offset, from_oldest=True),
        tables.at(offset=end_offset - 1),
    )
    assert found.end_offset == end_offset
    filled = 0
    for typed in METADATA_TABLES:
        own = found.table(typed.name)
        theirs = expected.table(typed.name).drop_columns(list(ORIGIN_COLUMNS))
        assert own.schema.equals(theirs.schema)
        assert by_key(own, typed.key) == by_key(theirs, typed.key), typed.name
        filled += own.num_rows > 0
    assert filled > 6


def test_a_time_is_the_state_before_the_first_record_that_is_not_earlier() -> None:
    time = "2026-11-21T08:04:18.007Z"
    not_earlier = [
        row["offset"]
        for row in rows("cat", NODE, "--noop", "--control")
        if row["timestamp"] >= 1_795_248_258_007
    ]
    state = read_state(NODE, at=time)
    assert state.end_offset == min(not_earlier)
    assert time in state.reason
    fenced = read_state(NODE, at=1232).brokers().to_pylist()
    assert [row["broker_id"] for row in fenced if row["fenced"]] == [3]


def test_without_a_point_it_is_the_committed_end() -> None:
    voters = ",".join(str(NODE.parent / f"node-10{number}") for number in range(3))
    state = read_state(voters)
    assert state.end_offset == 3132
    assert state.topics().num_rows == 145
    assert repr(state) == f"LogState({voters!r}, end_offset=3132)"


def test_what_the_state_lacks_is_named(tmp_path: Path) -> None:
    future = b"\x01\x63\x00\x05\x00"
    writer = LogWriter(tmp_path / "__cluster_metadata-0")
    writer.append(NO_OP, future, future)
    writer.append(BEGIN_TRANSACTION, NO_OP)
    state = read_state(writer.directory, at=5)
    assert state.skipped == (SkippedRecords(False, 99, 0, 2, 1, 2),)
    assert state.open_transaction_offset == 3
    before = read_state(writer.directory, at=1)
    assert (before.skipped, before.open_transaction_offset) == ((), None)


def test_secrets_are_redacted() -> None:
    hidden = read_state(NODE).scram().to_pylist()
    assert {row[name] for row in hidden for name in ("salt", "stored_key", "server_key")} == {
        b"[redacted]"
    }
    revealed = read_state(NODE, redactor=Redactor(reveal=True)).scram().to_pylist()
    assert b"[redacted]" not in {row["salt"] for row in revealed}


def test_wrong_arguments_are_errors(tmp_path: Path) -> None:
    for at in ("10:02", True, -1):
        with pytest.raises(OptionError, match="option at"):
            read_state(NODE, at=at)
    with pytest.raises(OffsetOutOfRangeError):
        read_state(NODE, at=99_999)
    with pytest.raises(OptionError, match="unknown table 'topic'; did you mean topics"):
        read_state(NODE).table("topic")
    with pytest.raises(NotALogError):
        read_state(tmp_path)
