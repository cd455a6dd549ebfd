"""The offset checkpoints and the clean shutdown file, written and parsed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.errors import CorruptFileError
from raftlog.log.format.directory import (
    CleanShutdown,
    encode_clean_shutdown,
    encode_offset_checkpoint,
    parse_clean_shutdown,
    parse_offset_checkpoint,
    parse_single_offset,
)
from raftlog.types import TopicPartition

OFFSETS = st.integers(0, 2**63 - 1)


def test_an_offset_checkpoint_equals_kafkas() -> None:
    content = encode_offset_checkpoint(TopicPartition("orders", 3), 1234)
    assert content == b"0\n1\norders 3 1234\n"
    assert parse_single_offset(content, "x") == 1234


def test_a_checkpoint_of_several_partitions_is_read() -> None:
    content = b"0\n2\norders 3 1234\n__cluster_metadata 0 7\n"
    assert parse_offset_checkpoint(content, "x") == {
        TopicPartition("orders", 3): 1234,
        TopicPartition("__cluster_metadata", 0): 7,
    }
    with pytest.raises(CorruptFileError, match="2 partitions"):
        parse_single_offset(content, "x")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1\n0\n",
        b"0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 -1\n",
        b"0\n2\na 0 1\na 0 2\n",
        b"0\n1\na 0 x\n",
        b"\xff",
    ],
)
def test_a_damaged_offset_checkpoint_is_reported(content: bytes) -> None:
    with pytest.raises(CorruptFileError):
        parse_single_offset(content, "recovery-point-offset-checkpoint")


@given(OFFSETS, OFFSETS, OFFSETS)
def test_the_clean_shutdown_file_round_trips(one: int, other: int, byte_count: int) -> None:
    marker = CleanShutdown(
        end_offset=max(one, other), segment_base_offset=min(one, other), byte_count=byte_count
    )
    assert parse_clean_shutdown(encode_clean_shutdown(marker)) == marker


@given(st.binary(max_size=80) | st.text('{}[]":,0123endOffset', max_size=80).map(str.encode))
def test_arbitrary_bytes_are_a_clean_shutdown_file_or_none(content: bytes) -> None:
    parse_clean_shutdown(content)
    with contextlib.suppress(CorruptFileError):
        parse_offset_checkpoint(content, "x")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"version":0,"brokerEpoch":-1}',
        b'{"version":1,"endOffset":1,"segment":0,"position":1}',
        b'{"version":0,"endOffset":1,"segment":2,"position":1}',
        b'{"version":0,"endOffset":"1","segment":0,"position":1}',
    ],
)
def test_other_contents_are_ignored(content: bytes) -> None:
    assert parse_clean_shutdown(content) is None
