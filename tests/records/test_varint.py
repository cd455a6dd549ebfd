"""Varints: Kafka's examples, every width, and unterminated ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.records.batch_columns import read_varints, read_varlongs
from raftlog.records.fields import (
    MalformedVarintError,
    read_unsigned_varint,
    read_varint,
    read_varlong,
    unsigned_varint,
    varint,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


# Kafka: ByteUtilsTest
@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (8191, "fe7f"),
        (-8192, "ff7f"),
        (8192, "808001"),
        (2**31 - 1, "feffffff0f"),
        (-(2**31), "ffffffff0f"),
        (2**63 - 1, "feffffffffffffffff01"),
        (-(2**63), "ffffffffffffffffff01"),
    ],
)
def test_zigzag_varints_equal_kafkas(value: int, data: str) -> None:
    assert varint(value).hex() == data
    assert read_varlong(bytes.fromhex(data), 0) == (value, len(data) // 2)
    if -(2**31) <= value < 2**31:
        assert read_varint(bytes.fromhex(data), 0) == (value, len(data) // 2)


@given(INT32, st.binary(max_size=3), st.binary(max_size=3))
def test_a_varint_among_other_bytes_round_trips(value: int, before: bytes, after: bytes) -> None:
    data = before + varint(value) + after
    assert read_varint(data, len(before)) == (value, len(data) - len(after))


@given(st.integers(0, 2**32 - 1))
def test_an_unsigned_varint_round_trips(value: int) -> None:
    data = unsigned_varint(value)
    assert read_unsigned_varint(data, 0) == (value, len(data))


@pytest.mark.parametrize("data", ["", "80", "ffffffff", "ffffffffff", "ffffffffff01", "ffffffff10"])
def test_an_unterminated_or_overlong_varint_is_refused(data: str) -> None:
    with pytest.raises(MalformedVarintError, match="RAFTLOG_MALFORMED_VARINT"):
        read_varint(bytes.fromhex(data), 0)


@pytest.mark.parametrize("data", ["", "ff" * 9, "ff" * 10, "ff" * 9 + "02"])
def test_an_unterminated_or_overlong_varlong_is_refused(data: str) -> None:
    with pytest.raises(MalformedVarintError):
        read_varlong(bytes.fromhex(data), 0)


@given(st.lists(INT64, min_size=1, max_size=40))
def test_many_varlongs_decode_as_one_by_one(values: list[int]) -> None:
    pieces = [varint(value) for value in values]
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = ends - [len(piece) for piece in pieces]
    data = np.frombuffer(b"".join(pieces), np.uint8)
    bad = np.zeros(len(values), np.bool_)
    read, after = read_varlongs(data, starts, bad)
    assert (read.tolist(), after.tolist(), bool(bad.any())) == (values, ends.tolist(), False)


@given(st.binary(min_size=10, max_size=10))
def test_many_varints_refuse_what_one_refuses(data: bytes) -> None:
    bad = np.zeros(1, np.bool_)
    read, after = read_varints(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), bad)
    try:
        alone = read_varint(data, 0)
    except MalformedVarintError:
        assert bad[0] or after[0] > len(data)
    else:
        assert ((int(read[0]), int(after[0])), bad[0]) == (alone, False)
