"""A file longer than any segment, for example a sparse one, is not searched to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import pytest
from tests.support.cli import run
from tests.support.log_builder import data_batch

from raftlog.limits import MIB
from raftlog.log.reading.chunks import find_valid_batch

TEBIBYTE = 1 << 40


class Sparse:
    """Batch followed by zeros up to the given length; counts the bytes read."""

    path = "sparse"

    def __init__(self, data: bytes, byte_count: int) -> None:
        self._data = data
        self._byte_count = byte_count
        self.read_bytes = 0

    def byte_count(self) -> int:
        return self._byte_count

    def read_at(self, position: int, byte_count: int) -> bytes:
        byte_count = max(0, min(byte_count, self._byte_count - position))
        self.read_bytes += byte_count
        return self._data[position : position + byte_count].ljust(byte_count, b"\0")

    def close(self) -> None:
        self._byte_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_the_search_for_a_batch_ends_at_the_maximum_size_of_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raftlog.log.reading.chunks.SEGMENT_BYTES_MAX", 8 * MIB)
    batch = data_batch([b"a"], base_offset=0)
    file = Sparse(batch, TEBIBYTE)
    assert find_valid_batch(file, len(batch), next_offset=1) is None
    assert 8 * MIB <= file.read_bytes < 12 * MIB


def test_check_reports_a_file_that_is_too_long(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("raftlog.log.reading.chunks", "raftlog_state.check.log_check"):
        monkeypatch.setattr(f"{module}.SEGMENT_BYTES_MAX", 2 * MIB)
    segment = tmp_path / f"{0:020d}.log"
    segment.write_bytes(data_batch([b"a"], base_offset=0))
    with segment.open("r+b") as file:
        file.truncate(TEBIBYTE)
    status, out, _ = run("check", tmp_path)
    assert status == 1
    assert f"the file has {TEBIBYTE} bytes, a segment at most {2 * MIB}" in out
