"""Filters of rows with nested columns, whose result is that of pyarrow in each case."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.state.table_stores.rows import change, table_of

from raftlog_state.tables.latest import last_changes
from raftlog_state.tables.schema import CHANGES_TABLE
from raftlog_state.tables.stores import protocol
from raftlog_state.tables.stores.protocol import RUNS_MAX, filtered, joined_runs

ROWS = table_of(
    CHANGES_TABLE,
    [
        change(at, after={"topic": {"topic_id": str(at), "name": f"t{at}"}} if at % 3 else None)
        for at in range(40)
    ],
)
MASKS = st.lists(st.sampled_from((True, False, None)), min_size=40, max_size=40)


def offsets_in(array: Any) -> set[int]:
    """Return the positions of an array and its fields in their buffers."""
    fields = (array.field(at) for at in range(array.type.num_fields)) if is_struct(array) else ()
    return {array.offset}.union(*map(offsets_in, fields))


def is_struct(array: Any) -> bool:
    return bool(pa.types.is_struct(array.type))


def chunked(rows: pa.Table, ends: list[int]) -> pa.Table:
    starts = [0, *ends]
    return pa.concat_tables(
        rows.slice(start, end - start)
        for start, end in zip(starts, [*ends, rows.num_rows], strict=True)
    )


@given(MASKS, st.lists(st.integers(0, 40), max_size=2).map(sorted))
def test_the_rows_of_a_mask_are_those_of_pyarrow(flags: list[bool | None], ends: list[int]) -> None:
    mask = pa.chunked_array([pa.array(flags, pa.bool_())])
    rows = chunked(ROWS, ends)
    assert filtered(rows, mask).equals(ROWS.filter(mask))


@pytest.mark.parametrize("run_count", range(1, RUNS_MAX + 2))
def test_up_to_five_runs_are_joined_without_slices(run_count: int) -> None:
    """delta-rs ends the process at a slice of nested columns."""
    positions = [7 * run + at for run in range(run_count) for at in range(1, 4)]
    found = joined_runs(ROWS, pa.array(positions))
    if run_count > RUNS_MAX:
        assert found is None
        return
    assert found is not None
    found.validate(full=True)
    assert found.equals(ROWS.take(positions))
    assert {column.num_chunks for column in found.columns} == {1}
    assert set().union(*(offsets_in(column.chunk(0)) for column in found.columns)) == {0}


def test_many_rows_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RUN_ROWS_MAX", 10)
    assert joined_runs(ROWS, pa.array(range(11))) is None
    mask = pa.chunked_array([pa.array([at < 11 for at in range(40)])])
    assert filtered(ROWS, mask).equals(ROWS.slice(0, 11))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_the_last_change_of_each_key_stays(keys: list[int]) -> None:
    rows = table_of(CHANGES_TABLE, [change(at, key=str(key)) for at, key in enumerate(keys)])
    last = {key: at for at, key in enumerate(keys)}
    assert last_changes(rows)["offset"].to_pylist() == sorted(last.values())
