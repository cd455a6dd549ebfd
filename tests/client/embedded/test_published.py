"""The file ``published``: its line, and which lines are ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.memory_storage import MemoryStorage

from raftlog.log.format.directory import (
    PUBLISHED_NAME,
    Published,
    encode_published,
    parse_published,
    read_published,
)

BOOT = "3f6b1c1e-0d1d-4c57-9b8a-0c2ad44a3d5e"
OFFSETS = st.integers(0, 2**63 - 1)


def published(end_offset: int = 7, boot_id: str = BOOT) -> Published:
    return Published(
        boot_id=boot_id, end_offset=end_offset, segment_base_offset=3, file_position=612, epoch=2
    )


def reading(data: bytes, boot_id: str = BOOT) -> Published | None:
    storage = MemoryStorage()
    storage.files[f"/log/{PUBLISHED_NAME}"] = bytearray(data)
    return read_published(storage, "/log", boot_id)


@given(OFFSETS, OFFSETS, OFFSETS, st.integers(0, 2**31 - 1))
def test_a_published_line_is_read_back(end: int, segment: int, position: int, epoch: int) -> None:
    line = Published(
        boot_id=BOOT,
        end_offset=end,
        segment_base_offset=segment,
        file_position=position,
        epoch=epoch,
    )
    assert parse_published(encode_published(line)) == line


def test_the_line_has_a_fixed_length_so_that_it_can_be_overwritten() -> None:
    lengths = {len(encode_published(published(end_offset))) for end_offset in (0, 7, 2**63 - 1)}
    assert len(lengths) == 1


def test_every_mix_of_an_old_and_a_new_line_is_refused() -> None:
    old, new = encode_published(published(7)), encode_published(published(1_000_000))
    for cut in range(len(new)):
        mixed = new[:cut] + old[cut:]
        assert parse_published(mixed) in (
            {None} if mixed not in (old, new) else {published(7), published(1_000_000)}
        )


def test_every_flipped_bit_is_refused() -> None:
    line = encode_published(published())
    for bit in range(8 * len(line)):
        damaged = bytearray(line)
        damaged[bit // 8] ^= 1 << bit % 8
        assert parse_published(bytes(damaged)) is None


@pytest.mark.parametrize("data", [b"", b"\n", b"\0" * 130, b"raftlog", b"1 2 3\n", b"\xff" * 600])
def test_malformed_lines_are_ignored(data: bytes) -> None:
    assert parse_published(data) is None
    assert reading(data) is None


def test_a_line_is_valid_only_for_the_boot_that_wrote_it() -> None:
    line = encode_published(published())
    assert reading(line) == published()
    assert reading(line, boot_id="another") is None


def test_bytes_after_the_line_are_ignored() -> None:
    longer = encode_published(published(boot_id=BOOT + "-longer"))
    line = encode_published(published())
    assert reading(line + longer[len(line) :]) == published()


def test_a_log_without_the_file_has_no_published_end() -> None:
    assert read_published(MemoryStorage(), "/log", BOOT) is None
