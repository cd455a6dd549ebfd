"""Frames of a byte stream: complete, in order, and within the memory limit."""

from __future__ import annotations

import itertools
import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.wire.errors import FrameLengthError
from raftlog.wire.frame import FrameDecoder, frame


def length(byte_count: int) -> bytes:
    return struct.pack(">i", byte_count)


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.lists(st.integers(min_value=0, max_value=300), max_size=12),
)
def test_frames_round_trip_however_the_stream_is_split(
    bodies: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(frame(body) for body in bodies)
    splitter = FrameDecoder(40, "peer")
    found = []
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        found += splitter.feed(stream[start:end])
        assert splitter.buffered_byte_count < 44
    assert found == bodies
    assert splitter.buffered_byte_count == 0


def test_a_frame_of_several_parts_has_their_total_length() -> None:
    assert frame(b"ab", b"", b"c") == length(3) + b"abc"


@pytest.mark.parametrize("byte_count", [-1, -(2**31), 101, 2**31 - 1])
def test_a_length_above_the_limit_is_refused_before_anything_is_buffered(byte_count: int) -> None:
    splitter = FrameDecoder(100, "10.0.0.9:1234")
    with pytest.raises(FrameLengthError) as caught:
        splitter.feed(length(byte_count) + bytes(50))
    assert caught.value.byte_count == byte_count
    assert caught.value.byte_count_max == 100
    assert caught.value.where in str(caught.value)
    assert splitter.buffered_byte_count == 0


def test_after_a_refused_length_nothing_is_read() -> None:
    splitter = FrameDecoder(10, "peer")
    for data in (length(11), frame(b"sound")):
        with pytest.raises(FrameLengthError):
            splitter.feed(data)


def test_a_length_is_checked_when_its_last_byte_arrives() -> None:
    splitter = FrameDecoder(100, "peer")
    assert splitter.feed(length(1000)[:3]) == []
    with pytest.raises(FrameLengthError):
        splitter.feed(length(1000)[3:])


def test_the_largest_frame_and_an_empty_one_are_accepted() -> None:
    splitter = FrameDecoder(100, "peer")
    assert splitter.feed(frame(bytes(100)) + frame(b"")) == [bytes(100), b""]


def test_an_authenticated_peer_has_a_higher_limit() -> None:
    splitter = FrameDecoder(10, "peer")
    assert splitter.feed(frame(b"hello")) == [b"hello"]
    splitter.byte_count_max = 1000
    assert splitter.feed(frame(bytes(999))) == [bytes(999)]


@pytest.mark.parametrize(
    ("first", "word"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"\x15\x03\x03\x00\x02", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /x HTTP/1.1\r\n", "HTTP"),
        (b"HTTP/1.1 400 Bad Request", "HTTP"),
        (b"PRI * HTTP/2.0\r\n", "HTTP"),
    ],
)
def test_an_error_names_the_protocol_of_the_first_bytes(first: bytes, word: str) -> None:
    with pytest.raises(FrameLengthError, match=f"look like {word}"):
        FrameDecoder(64 * 1024, "peer").feed(first)


def test_a_later_frame_is_not_mistaken_for_another_protocol() -> None:
    splitter = FrameDecoder(64 * 1024, "peer")
    with pytest.raises(FrameLengthError) as caught:
        splitter.feed(frame(b"x") + b"GET / HTTP/1.1")
    assert caught.value.hint is None
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
