"""Offset, time and transaction indexes, and producer snapshots, against Kafka's own files."""

from __future__ import annotations

import contextlib
import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.memory_storage import MemoryStorage

from raftlog.errors import CorruptFileError
from raftlog.log.format.directory import parse_producer_snapshot
from raftlog.log.reading.chunks import (
    OFFSET_ENTRY_BYTES,
    parse_offset_index,
    parse_time_index,
    read_entries,
)
from raftlog.log.segment import AbortedTransaction, parse_txn_index


@pytest.fixture(scope="module")
def vectors(data: Path) -> dict[str, bytes]:
    """Files written by Kafka's own classes, by name."""
    with (data / "kraft-golden-vectors.tsv").open(newline="") as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if row[0] == "file"]
    return {row[1]: bytes.fromhex(row[3]) for row in rows}


def test_kafkas_offset_index_is_read(vectors: dict[str, bytes]) -> None:
    index = parse_offset_index(vectors["00000000000000000100.index"], 100)
    assert index.last_offsets.tolist() == [150, 200]
    assert index.positions.tolist() == [4100, 9000]


@pytest.mark.parametrize(
    ("offset", "ordinal"), [(99, None), (149, None), (150, 0), (199, 0), (200, 1), (10**9, 1)]
)
def test_the_entry_for_an_offset_is_not_after_it(
    vectors: dict[str, bytes], offset: int, ordinal: int | None
) -> None:
    index = parse_offset_index(vectors["00000000000000000100.index"], 100)
    assert index.entry_before(offset) == ordinal


def test_kafkas_time_index_is_read(vectors: dict[str, bytes]) -> None:
    index = parse_time_index(vectors["00000000000000000100.timeindex"], 100)
    assert index.timestamps_ms.tolist() == [1000, 1001]
    assert index.last_offsets.tolist() == [150, 200]
    assert [index.entry_before(ms) for ms in (1000, 1001, 1002)] == [None, 0, 1]


def test_a_preallocated_index_ends_at_its_zeros(vectors: dict[str, bytes]) -> None:
    storage = MemoryStorage()
    storage.write("/a.index", vectors["00000000000000000100.index"] + bytes(10 << 20))
    with storage.open_file("/a.index") as file:
        index = parse_offset_index(read_entries(file, OFFSET_ENTRY_BYTES), 100)
    assert index.positions.tolist() == [4100, 9000]
    assert storage.read_bytes() < 100_000


def test_an_index_is_read_up_to_the_first_entry_that_does_not_ascend() -> None:
    entries = np.array([(5, 10), (9, 90), (9, 95), (12, 120)], [("o", ">i4"), ("p", ">i4")])
    index = parse_offset_index(entries.tobytes() + b"torn", 0)
    assert index.last_offsets.tolist() == [5, 9]


def test_kafkas_aborted_transactions_are_read(vectors: dict[str, bytes]) -> None:
    assert parse_txn_index(vectors["00000000000000000100.txnindex"], "x") == (
        AbortedTransaction(producer_id=1, first_offset=2, last_offset=3, last_stable_offset=4),
    )


def test_a_torn_transaction_index_is_reported_with_its_position(vectors: dict[str, bytes]) -> None:
    whole = vectors["00000000000000000100.txnindex"]
    with pytest.raises(CorruptFileError) as caught:
        parse_txn_index(whole + whole[:9], "x.txnindex")
    assert (caught.value.path, caught.value.position) == ("x.txnindex", 34)


def test_kafkas_empty_producer_snapshot_has_no_producers(vectors: dict[str, bytes]) -> None:
    assert parse_producer_snapshot(vectors["empty producer state .snapshot"], "x") == ()


def test_kafkas_producer_snapshot_is_read(data: Path) -> None:
    path = data / "kraft-logs/trimmed-3.9.2/node-1/pay-0-0/00000000000000000034.snapshot"
    (state,) = parse_producer_snapshot(path.read_bytes(), "x")
    assert (state.producer_id, state.last_offset, state.offset_delta) == (0, 32, 9)
    assert state.open_transaction_first_offset is None


def test_bytes_after_a_producer_snapshot_outside_its_crc_are_damage(
    vectors: dict[str, bytes],
) -> None:
    with pytest.raises(CorruptFileError):
        parse_producer_snapshot(vectors["empty producer state .snapshot"] + b"\0", "x")


def test_every_index_and_snapshot_of_the_bundled_logs_is_read_completely(data: Path) -> None:
    for path in (data / "kraft-logs").rglob("*.*index"):
        content = path.read_bytes()
        base_offset = int(path.name.split(".")[0])
        if path.suffix == ".index":
            assert len(parse_offset_index(content, base_offset)) == len(content) // 8
        elif path.suffix == ".timeindex":
            assert len(parse_time_index(content, base_offset)) == len(content) // 12
        else:
            assert len(parse_txn_index(content, str(path))) == len(content) // 34
    for path in (data / "kraft-logs").rglob("*.snapshot"):
        parse_producer_snapshot(path.read_bytes(), str(path))


@given(st.binary(max_size=200), st.integers(0, 2**63 - 1))
def test_arbitrary_bytes_are_an_index_or_a_typed_error(content: bytes, base_offset: int) -> None:
    parse_offset_index(content, base_offset % 2**31)
    parse_time_index(content, base_offset % 2**31)
    for parse in (parse_txn_index, parse_producer_snapshot):
        with contextlib.suppress(CorruptFileError):
            parse(content, "x")
