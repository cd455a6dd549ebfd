"""Scalar values as Java and Jackson print them; the expected texts were printed by them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog_state.records import ClientQuotaRecord, to_json_text
from raftlog_state.records.scalars import (
    bytes_json,
    bytes_of_base64,
    double_json,
    string_json,
    uuid_bytes,
    uuid_text,
)

DOUBLES = [
    (0.0, "0.0"),
    (-0.0, "-0.0"),
    (1.0, "1.0"),
    (-1.5, "-1.5"),
    (12345.0, "12345.0"),
    (9999999.0, "9999999.0"),
    (1e7, "1.0E7"),
    (123456789.125, "1.23456789125E8"),
    (1e9, "1.0E9"),
    (1e10, "1.0E10"),
    (1e22, "1.0E22"),
    (1e300, "1.0E300"),
    (0.001, "0.001"),
    (0.002, "0.002"),
    (9.99e-4, "9.99E-4"),
    (3e-5, "3.0E-5"),
    (0.17534119701466988, "0.17534119701466988"),
    (2.2250738585072014e-308, "2.2250738585072014E-308"),
    (5e-324, "4.9E-324"),
    (math.nan, '"NaN"'),
    (math.inf, '"Infinity"'),
    (-math.inf, '"-Infinity"'),
]


@pytest.mark.parametrize(("value", "text"), DOUBLES, ids=[text for _, text in DOUBLES])
def test_a_double_is_printed_as_by_java(value: float, text: str) -> None:
    assert double_json(value) == text
    quota = to_json_text(ClientQuotaRecord(value=value))
    assert f'"value":{text},' in quota


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_printed_double_round_trips(value: float) -> None:
    text = double_json(value)
    assert float(text) == value
    assert "." in text


CONTROLS = (
    r"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000B\f\r\u000E\u000F"
    r"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001A\u001B\u001C\u001D\u001E\u001F"
)


def test_a_string_is_escaped_as_by_jackson() -> None:
    assert string_json("".join(map(chr, range(32)))) == f'"{CONTROLS}"'
    plain = "\x7f\x80\u2028\u2029/<>&'\U0001f600\ufeff é日"
    assert string_json(plain) == f'"{plain}"'
    assert string_json('q"uote\\') == r'"q\"uote\\"'
    assert string_json("\\u000b \x0b") == r'"\\u000b \u000B"'


def test_bytes_are_padded_base64_and_uuids_are_not() -> None:
    assert bytes_json(bytes([255, 254, 253, 63, 62, 1, 2])) == '"//79Pz4BAg=="'
    assert uuid_text(bytes.fromhex("01020304050607081112131415161718")) == "AQIDBAUGBwgREhMUFRYXGA"
    assert uuid_text(b"\xfb\xff" * 8) == "-__7__v_-__7__v_-__7_w"


@given(st.binary(min_size=16, max_size=16))
def test_a_uuid_round_trips_as_text(data: bytes) -> None:
    assert uuid_bytes(uuid_text(data)) == data


@pytest.mark.parametrize(
    "text",
    ["", "A", "A" * 21, "A" * 23, "A" * 24, "A" * 21 + "B", "A" * 21 + "=", "+" * 22, "é" * 22],
)
def test_text_that_is_no_uuid_is_refused(text: str) -> None:
    assert uuid_bytes(text) is None


@pytest.mark.parametrize("text", ["A", "AA", "AA=", "A===", "AA==AA==", "é", "AA==\n"])
def test_text_that_is_no_base64_is_refused(text: str) -> None:
    assert bytes_of_base64(text) is None
