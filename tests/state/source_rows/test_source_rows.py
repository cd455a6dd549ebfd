"""From scanned columns to rows: transactions, metadata frames, sizes of Arrow batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batch_encoding import NewRecordBatch, encode_batch

from raftlog.client import Outcome, TransactionSpan
from raftlog.records import NewRecord
from raftlog.records.scan import Scan, scan
from raftlog_state.errors import MetadataParseError
from raftlog_state.records.typed_columns import frames
from raftlog_state.source_rows.row_builder import rebatch
from raftlog_state.source_rows.transactions import NEVER, Transactions

COMMITTED, ABORTED, OPEN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.OPEN


def scanned(*batches: tuple[int, int, bool]) -> Scan:
    """Return one record a batch at offset 0, 1, ...: (producer id, -, transactional, control)."""
    data = b""
    for offset, (producer_id, is_transactional, is_control) in enumerate(batches):
        batch = NewRecordBatch(
            records=(NewRecord(key=b"\x00\x00\x00\x01" if is_control else None, value=b"v"),),
            base_timestamp_ms=0,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=-1 if is_control else 0,
            is_transactional=bool(is_transactional),
            is_control=is_control,
        )
        data += encode_batch(batch, base_offset=offset, leader_epoch=1)
    return scan(data)


def looked_up(transactions: Transactions, piece: Scan) -> tuple[list[int], list[bool]]:
    assert piece.records.offset is not None
    visibility = transactions.visibility(piece, piece.records.offset.to_numpy())
    return visibility.offset.tolist(), visibility.aborted.tolist()


def test_records_of_a_metadata_transaction_become_visible_at_its_end() -> None:
    spans = [
        TransactionSpan(1, 3, COMMITTED),
        TransactionSpan(5, 6, ABORTED),
        TransactionSpan(8, None, OPEN),
    ]
    piece = scanned(*[(-1, False, False)] * 10)
    visible, aborted = looked_up(Transactions(spans, is_metadata=True), piece)
    assert visible == [0, 3, 3, 3, 4, NEVER, NEVER, 7, NEVER, NEVER]
    assert aborted == [False] * 5 + [True, True] + [False] * 3


def test_a_transaction_of_one_producer_does_not_affect_others() -> None:
    spans = [TransactionSpan(0, 4, COMMITTED, 7), TransactionSpan(1, 5, ABORTED, 8)]
    piece = scanned(
        (7, True, False),
        (8, True, False),
        (-1, False, False),
        (9, False, False),
        (7, True, True),
        (8, True, True),
        (-1, False, False),
    )
    visible, aborted = looked_up(Transactions(spans, is_metadata=False), piece)
    assert visible == [0, NEVER, 2, 3, 4, 5, 6]
    assert aborted == [False, True, False, False, False, False, False]


def test_transactions_of_one_producer_are_consecutive() -> None:
    spans = [TransactionSpan(0, 1, COMMITTED, 7), TransactionSpan(2, None, OPEN, 7)]
    piece = scanned((7, True, False), (7, True, True), (7, True, False))
    assert looked_up(Transactions(spans, is_metadata=False), piece)[0] == [0, 1, NEVER]


BINARIES = st.none() | st.builds(
    lambda key, version, rest: bytes([1, key, version]) + rest,
    st.integers(0, 127),
    st.integers(0, 127),
    st.binary(max_size=4),
)


@given(st.lists(BINARIES, max_size=20), st.integers(0, 5))
def test_frames_are_decoded_from_any_slice(values: list[bytes | None], skipped: int) -> None:
    column = pa.array(values, pa.binary())[skipped:]
    api_keys, versions = frames(column)
    expected = [(-1, -1) if value is None else (value[1], value[2]) for value in values[skipped:]]
    assert list(zip(api_keys.tolist(), versions.tolist(), strict=True)) == expected


def test_a_frame_with_longer_varints_is_decoded_separately() -> None:
    column = pa.array([b"\x01\x81\x02\x03\x00", b"\x01\x02\x00\x00"])
    api_keys, versions = frames(column)
    assert api_keys.tolist() == [257, 2]
    assert versions.tolist() == [3, 0]


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x00\x02\x00", b"\xff" * 8])
def test_a_value_without_a_frame_is_reported(value: bytes) -> None:
    with pytest.raises(MetadataParseError):
        frames(pa.array([value]))


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 20))
def test_arrow_batches_are_split_and_joined_without_loss(counts: list[int], row_count: int) -> None:
    numbers = np.arange(sum(counts))
    bounds = np.cumsum([0, *counts])
    pieces = [
        pa.record_batch({"n": pa.array(numbers[start:end], pa.int64())})
        for start, end in pairwise(bounds)
    ]
    rebatched = list(rebatch(pieces, row_count))
    assert [n for batch in rebatched for n in batch.column(0).to_pylist()] == numbers.tolist()
    assert all(0 < batch.num_rows <= row_count for batch in rebatched)
    for one, following in pairwise(rebatched):
        is_large = 4 * one.num_rows >= row_count
        assert is_large or one.num_rows + following.num_rows > row_count, "it is concatenated"
