"""Search for a valid batch after unreadable bytes: its result, and its cost."""

from __future__ import annotations

import struct
from random import Random

import numpy as np
import pytest
from crc32c import crc32c
from tests.support.memory_storage import MemoryStorage
from tests.support.written_logs import encoded

from raftlog.log.reading import chunks
from raftlog.log.reading.chunks import find_valid_batch, range_crcs
from raftlog.log.segment import read_batch_at
from raftlog.records.header import BATCH_HEADER, CRC_START
from raftlog.storage.protocol import ReadableFile

PATH = "/log/x.log"


def opened(data: bytes) -> tuple[MemoryStorage, ReadableFile]:
    storage = MemoryStorage()
    storage.append(PATH, data)
    return storage, storage.open_file(PATH)


def header(base_offset: int, length: int, crc: int) -> bytes:
    """Return bytes that resemble the header of a batch."""
    return BATCH_HEADER.pack(base_offset, length, 1, 2, crc, 0, 0, 0, 0, -1, -1, -1, 1)


def one_by_one(data: bytes, position: int, next_offset: int) -> int | None:
    """Return the result by definition: every position, with each batch read separately."""
    _, file = opened(data)
    claimed_end, crc = position, None
    if len(data) - position >= BATCH_HEADER.size:
        _, length, _, magic, crc, *_ = BATCH_HEADER.unpack_from(data, position)
        if magic == 2 and length >= 49:
            claimed_end = position + 12 + length
    for start in range(position + 1, len(data)):
        batch = read_batch_at(file, start)
        if batch is None or not next_offset <= batch.base_offset <= next_offset + 2**31 - 1:
            continue
        body = data[position + CRC_START : start]
        if start >= claimed_end or (start >= position + CRC_START and crc32c(body) == crc):
            return start
    return None


def tail_bytes(rng: Random) -> bytes:
    """Return bytes that may follow a torn batch: batches, parts of batches, and false headers."""
    parts = []
    for _ in range(rng.randrange(1, 8)):
        whole = encoded(rng.randbytes(rng.randrange(40)), base_offset=rng.randrange(20), epoch=1)
        length = rng.randrange(49, 300)
        parts.append(
            rng.choice(
                (
                    whole,
                    whole[: rng.randrange(len(whole))],
                    header(rng.randrange(20), length, rng.getrandbits(32)),
                    encoded(whole + bytes(9), base_offset=rng.randrange(20), epoch=1),
                    whole[:8] + struct.pack(">i", rng.randrange(1_000)) + whole[12:],
                    bytes(rng.randrange(20)),
                )
            )
        )
    return b"".join(parts)


@pytest.mark.parametrize(
    "seed_count",
    [pytest.param(300, marks=pytest.mark.slow), pytest.param(1_500, marks=pytest.mark.nightly)],
)
@pytest.mark.parametrize("chunk_bytes", [70, 1 << 20])
def test_the_result_equals_that_of_trying_every_position(
    chunk_bytes: int, seed_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(chunks, "_CANDIDATES_MAX", 3)
    found = 0
    for seed in range(seed_count):
        rng = Random(seed)
        data = tail_bytes(rng)
        next_offset = rng.randrange(12)
        expected = one_by_one(data, 0, next_offset)
        assert find_valid_batch(opened(data)[1], 0, next_offset=next_offset) == expected, seed
        found += expected is not None
    assert seed_count * 2 < found * 15 < seed_count * 13


@pytest.mark.parametrize("is_claimed", [False, True], ids=["zeros before", "a torn batch before"])
def test_the_cost_is_linear_in_false_headers(is_claimed: bool) -> None:
    """Clients choose the bytes of a batch: here headers that all claim the rest of the file."""
    reads = []
    for size in (1 << 18, 1 << 20):
        data = header(100, size, 1) if is_claimed else bytes(BATCH_HEADER.size)
        while len(data) < size - 1_000:
            data += header(100, size - 13 - len(data), 1)
        data += bytes(size - len(data))
        storage, file = opened(data)
        assert find_valid_batch(file, 0, next_offset=50) is None
        reads.append(sum(byte_count for _, _, byte_count in storage.reads))
        assert reads[-1] < 8 * size
    assert reads[1] < 8 * reads[0]


def test_a_batch_after_false_headers_is_found() -> None:
    whole = encoded(b"still here", base_offset=60, epoch=1)
    data = bytes(BATCH_HEADER.size)
    for _ in range(2_000):
        data += header(100, 200_000 - len(data), 1)
    data += whole
    assert find_valid_batch(opened(data)[1], 0, next_offset=50) == len(data) - len(whole)


def test_crcs_of_ranges_equal_those_of_their_bytes() -> None:
    rng = Random(7)
    data = rng.randbytes(5_000)
    starts = [0, 0, 17, 4_999, 5_000, *(rng.randrange(5_001) for _ in range(300))]
    ends = [5_000, 0, 18, 5_000, 5_000, *(rng.randrange(start, 5_001) for start in starts[5:])]
    found = range_crcs(
        np.array([crc32c(data[:start]) for start in starts], np.uint32),
        np.array([crc32c(data[:end]) for end in ends], np.uint32),
        np.array(ends, np.int64) - np.array(starts, np.int64),
    )
    expected = [crc32c(data[start:end]) for start, end in zip(starts, ends, strict=True)]
    assert found.tolist() == expected
