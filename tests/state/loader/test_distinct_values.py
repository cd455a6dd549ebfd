"""Rows gathered by the codes of distinct values: those of Arrow's take, by the core and in Python.

``RAFTLOG_COLUMNAR_SEEDS=500`` sets the number of random columns.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.both_implementations import in_each
from tests.support.exhausted_memory import outcomes

from raftlog import compiled
from raftlog_state.replay.coded_columns import NULL, Coded
from raftlog_state.replay.distinct_values import DistinctValues, StructRows

SEEDS = int(os.environ.get("RAFTLOG_COLUMNAR_SEEDS", "12"))
needs_core = pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")

TEXT = pa.string()
NUMBERS = pa.list_(pa.field("element", pa.int32()))
TEXTS = pa.list_(pa.field("element", pa.string()))
KINDS = (TEXT, NUMBERS, TEXTS, pa.bool_(), pa.list_(pa.int64()))


def text(chance: random.Random) -> str:
    return "".join(chance.choices("aß€😀\0", k=chance.choice((0, 1, 5, 40))))


def value(kind: pa.DataType, chance: random.Random) -> object:
    if kind == TEXT:
        return text(chance)
    if kind == pa.bool_():
        return chance.random() < 0.5
    count = chance.choice((0, 1, 3, 9))
    if kind == TEXTS:
        return [text(chance) for _ in range(count)]
    return [chance.randint(-(2**31), 2**31 - 1) for _ in range(count)]


def codes_of(chance: random.Random, count: int, value_count: int) -> np.ndarray:
    nulls = chance.choice((0, 0.1, 1))
    codes = [
        NULL if chance.random() < nulls else chance.randrange(value_count) for _ in range(count)
    ]
    return np.array(codes, np.int32)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_gathered_rows_are_those_of_take(seed: int, kind: pa.DataType) -> None:
    chance = random.Random(seed)
    values = pa.array([value(kind, chance) for _ in range(chance.choice((1, 7, 300)))], kind)
    if chance.random() < 0.3:
        values = values.slice(chance.randrange(len(values)))
    codes = codes_of(chance, chance.choice((0, 1, 8, 9, 2_000)), len(values))
    expected = values.take(pa.array(codes, mask=codes == NULL))
    for found in in_each(lambda: DistinctValues(values).gather(codes)):
        found.validate(full=True)
        assert found.equals(expected)
        assert found.null_count == expected.null_count


@pytest.mark.parametrize("kind", [TEXT, NUMBERS, TEXTS], ids=str)
@pytest.mark.parametrize("code", [2, 3, 2**31 - 1, -2, -(2**31)])
def test_a_code_without_a_value_is_an_error_also_where_the_buffers_of_a_slice_have_one(
    kind: pa.DataType, code: int
) -> None:
    chance = random.Random(1)
    values = pa.array([value(kind, chance) for _ in range(9)], kind).slice(0, 2)
    with pytest.raises(IndexError):
        values.take(pa.array([code]))

    def gather() -> str:
        with pytest.raises(IndexError) as raised:
            DistinctValues(values).gather(np.array([0, code], np.int32))
        return str(raised.value)

    assert len(set(in_each(gather))) == 1


@pytest.mark.parametrize("kind", [NUMBERS, TEXTS], ids=str)
def test_rows_of_empty_lists_are_null_or_empty(kind: pa.DataType) -> None:
    codes = np.array([0, NULL, 1, 0], np.int32)
    for found in in_each(lambda: DistinctValues(pa.array([[], []], kind)).gather(codes)):
        found.validate(full=True)
        assert found.to_pylist() == [[], None, [], []]


def test_rows_of_structs_are_null_where_they_are_masked_whatever_their_number() -> None:
    """Also where a field's own value has the number of a null."""
    kind = pa.struct({"name": pa.string(), "leader": pa.int16(), "isr": NUMBERS})
    columns = [
        Coded(pa.array(["a", "b"]), np.array([1, NULL, 0])),
        pa.array([5, -1, -1], pa.int32()),
        Coded(pa.array([[1, 2]], pa.list_(pa.int32())), np.array([0, 0, 0])),
    ]
    rows, is_null = np.array([2, 99, 1, 0, -7]), np.array([False, True, False, False, True])
    for found in in_each(lambda: StructRows(kind, columns).gather(rows, is_null)):
        found.validate(full=True)
        assert found.type == kind
        assert found.to_pylist() == [
            {"name": "a", "leader": -1, "isr": [1, 2]},
            None,
            {"name": None, "leader": -1, "isr": [1, 2]},
            {"name": "b", "leader": 5, "isr": [1, 2]},
            None,
        ]
        assert found.field("leader").null_count == 2
    for found in in_each(lambda: StructRows(kind, columns).gather(rows, np.ones(5, np.bool_))):
        assert found.equals(pa.nulls(5, kind))


def native(ends: list[int], data: bytes, codes: list[int], element_bytes: int = 1) -> object:
    values = compiled.core.distinct_values(
        np.array(ends, np.int32).view(np.uint8).data, memoryview(data), element_bytes
    )
    assert values is not None
    return values.gather(np.array(codes, np.int32).view(np.uint8).data)


@needs_core
def test_codes_without_a_value_and_inconsistent_values_are_given_back() -> None:
    assert native([0, 2, 3], b"abc", [0, 1, NULL]) is not None
    for codes in ([2], [-2], [2**31 - 1], [-(2**31)]):
        assert native([0, 2, 3], b"abc", codes) is None
    for ends in ([0, 4], [2, 1], [-1, 2], [0, 2**31 - 1]):
        assert native(ends, b"abc", [0]) is None
    for element_bytes in (2, 2**63, 2**64 - 1):
        assert native([0, 2], b"abc", [0], element_bytes) is None
    assert native([], b"", [0]) is None
    assert native([], b"", [NULL]) is not None
    values = compiled.core.distinct_values(memoryview(b"\0" * 8), memoryview(b""), 1)
    assert values is not None
    assert values.gather(memoryview(b"\0\0\0")) is None


@needs_core
def test_rows_of_more_bytes_than_offsets_have_are_given_back() -> None:
    size = 2**20
    assert native([0, size], bytes(size), [0] * 2**11) is None


CALLS = """
import numpy as np
from raftlog import compiled

def prepared(data):
    codes = memoryview(np.arange(200_000, dtype=np.int32) % 50).cast("B")
    return memoryview(np.arange(0, 60 * 51, 60, dtype=np.int32)).cast("B"), memoryview(data), codes

def call(ends, data, codes):
    values = compiled.core.distinct_values(ends, data, 1)
    return values is not None and values.gather(codes) is not None
"""


@pytest.mark.slow
@needs_core
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
def test_an_exhausted_memory_is_given_back_and_ends_no_process(tmp_path: Path) -> None:
    values = tmp_path / "values"
    values.write_bytes(bytes(3_000))
    (counted,) = outcomes(CALLS, [values])
    assert set(counted) <= {"done", "given back", "MemoryError"}
    assert counted["done"] > 0
    assert counted.get("given back", 0) > 2
