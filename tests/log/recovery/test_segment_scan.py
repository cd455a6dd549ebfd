"""Scan of a segment: its valid part, where it ends, and why."""

from __future__ import annotations

import random

import pytest
from tests.support.log_builder import control_batch, data_batch, leader_change
from tests.support.memory_storage import MemoryStorage

from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.recovery import recover_segment
from raftlog.log.recovery.recover import ScanEnd, ScanStop
from raftlog.log.recovery.recover_segment import (
    ScanPosition,
    ScanRules,
    SegmentScan,
    survey_segment,
)
from raftlog.records.compression import Compression

PATH = "/log/00000000000000000000.log"
START = ScanPosition(position=0, next_offset=0)


def segment(*batches: bytes, tail: bytes = b"") -> bytes:
    return b"".join(batches) + tail


def batches(count: int, *, base_offset: int = 0, epoch: int = 1, records: int = 1) -> list[bytes]:
    return [
        data_batch([b"v%d" % at] * records, base_offset=base_offset + at * records, epoch=epoch)
        for at in range(count)
    ]


def scanned(
    data: bytes, scan_position: ScanPosition = START, rules: ScanRules | None = None
) -> tuple[list[int], ScanStop]:
    """Return the base offsets of the valid batches, and the end of the scan."""
    storage = MemoryStorage()
    storage.write(PATH, data)
    found: list[int] = []
    with storage.open_file(PATH) as file:
        scan = SegmentScan(file, scan_position, rules or ScanRules())
        for chunk in scan:
            found += chunk.batches.base_offset.tolist()
            for ordinal in range(len(chunk.batches)):
                assert chunk.batch(ordinal).base_offset == chunk.batches.base_offset[ordinal]
        return found, scan.stop


def surveyed(data: bytes, rules: ScanRules | None = None) -> list[ScanStop]:
    storage = MemoryStorage()
    storage.write(PATH, data)
    with storage.open_file(PATH) as file:
        return list(survey_segment(file, START, rules or ScanRules()))


def test_a_complete_segment_is_valid_to_its_end() -> None:
    data = segment(*batches(5, records=3))
    found, end = scanned(data)
    assert found == [0, 3, 6, 9, 12]
    assert (end.kind, end.byte_count) == (ScanEnd.END, 0)
    assert (end.position, end.next_offset, end.epoch) == (len(data), 15, 1)


def test_small_chunks_give_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [1, 40, 3, 900, 2, 2, 77]
    parts, base = [], 0
    for size in sizes:
        parts.append(data_batch([b"x" * size] * size, base_offset=base))
        base += size
    data = segment(*parts, tail=b"\0\0\0")
    whole = scanned(data)
    for chunk_bytes in (64, 100, 1000, 4096):
        monkeypatch.setattr(recover_segment, "SCAN_CHUNK_BYTES", chunk_bytes)
        assert scanned(data) == whole
    assert whole[1].kind is ScanEnd.ZEROS


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_truncation_inside_the_last_batch_is_torn_at_every_byte(compression: Compression) -> None:
    parts = batches(2)
    last = data_batch([b"a" * 50], base_offset=2, compression=compression)
    for kept in range(1, len(last)):
        found, end = scanned(segment(*parts, tail=last[:kept]))
        assert found == [0, 1]
        zeros_only = not any(last[:kept])
        assert end.kind is (ScanEnd.ZEROS if zeros_only else ScanEnd.TORN), kept
        assert end.byte_count == kept
        assert end.next_offset == 2


def test_zeros_after_the_end_are_distinguished_from_zeros_before_other_bytes() -> None:
    parts = batches(3)
    for count in (1, 60, 61, 5000, 3_000_000):
        assert scanned(segment(*parts, tail=bytes(count)))[1].kind is ScanEnd.ZEROS
        end = scanned(segment(*parts, tail=bytes(count + 11) + b"x"))[1]
        assert end.kind is ScanEnd.DAMAGE
        assert end.next_offset == 3


@pytest.mark.slow
def test_any_flipped_bit_ends_the_valid_part_before_it() -> None:
    parts = [control_batch([leader_change(1, [1])], base_offset=0), *batches(2, base_offset=1)]
    data = segment(*parts)
    starts = [sum(map(len, parts[:at])) for at in range(len(parts))]
    rules = ScanRules(epochs=EpochCache.of([(1, 0)]))
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        ordinal = max(n for n, start in enumerate(starts) if start <= at // 8)
        found, end = scanned(bytes(flipped), rules=rules)
        assert found == list(range(ordinal)), at
        assert not end.is_clean
        assert end.position == starts[ordinal]


def test_regressions_overlaps_and_gaps_are_reported() -> None:
    first = data_batch([b"a"] * 10, base_offset=0)
    dip = data_batch([b"b"] * 3, base_offset=4, epoch=2)
    overlap = data_batch([b"b"] * 10, base_offset=7, epoch=2)
    gap = data_batch([b"b"], base_offset=12)
    for batch, expected in (
        (dip, ScanEnd.OFFSET_REGRESSION),
        (overlap, ScanEnd.OVERLAP),
        (gap, ScanEnd.GAP),
    ):
        found, end = scanned(segment(first, batch))
        assert (found, end.kind, end.next_offset) == ([0], expected, 10)
        assert end.found_base_offset is not None
        assert str(end.found_base_offset) in end.reason
        assert end.byte_count == len(batch)


def test_epochs_must_not_decrease_and_increase_only_with_a_leader_change() -> None:
    announced = control_batch([leader_change(1, [1])], base_offset=1, epoch=3)
    assert scanned(segment(*batches(1), announced))[1].is_clean
    fall = data_batch([b"a"], base_offset=2, epoch=2)
    assert scanned(segment(*batches(1), announced, fall))[1].kind is ScanEnd.EPOCH_REGRESSION
    unannounced = data_batch([b"a"], base_offset=1, epoch=3)
    assert scanned(segment(*batches(1), unannounced))[1].kind is ScanEnd.EPOCH_MISMATCH


def test_the_epoch_checkpoint_decides_where_it_has_an_entry() -> None:
    parts = batches(4)
    for entries, valid in (
        ([(1, 0)], 4),
        ([(1, 0), (2, 4)], 4),
        ([(1, 0), (2, 3)], 3),
        ([(1, 0), (2, 1), (4, 3)], 1),
        ([(1, 2)], 4),
        ([(2, 2)], 2),
    ):
        found, end = scanned(segment(*parts), rules=ScanRules(epochs=EpochCache.of(entries)))
        assert len(found) == valid
        assert end.kind is (ScanEnd.END if valid == 4 else ScanEnd.EPOCH_MISMATCH)


def test_a_batch_across_the_start_of_an_epoch_is_wrong() -> None:
    data = data_batch([b"a"] * 10, base_offset=0)
    found, end = scanned(data, rules=ScanRules(epochs=EpochCache.of([(1, 0), (2, 5)])))
    assert found == []
    assert end.kind is ScanEnd.EPOCH_MISMATCH
    assert "epoch 2 from offset 5 on" in end.reason


def test_a_scan_ends_at_the_given_position() -> None:
    data = segment(*batches(6), tail=b"garbage that nobody acknowledged")
    found, end = scanned(data, rules=ScanRules(end_offset=4))
    assert found == [0, 1, 2, 3]
    assert end.kind is ScanEnd.LIMIT
    assert end.byte_count > 32


def test_a_scan_starts_at_the_given_position() -> None:
    parts = batches(6)
    scan_position = ScanPosition(position=len(parts[0]) + len(parts[1]), next_offset=2, epoch=1)
    assert scanned(segment(*parts), scan_position)[0] == [2, 3, 4, 5]


def test_a_survey_reports_every_anomaly_with_its_position() -> None:
    parts = [
        data_batch([b"a"] * 10, base_offset=0),
        data_batch([b"b"] * 4, base_offset=6, epoch=1),
        data_batch([b"b"] * 4, base_offset=10, epoch=1),
        data_batch([b"c"] * 2, base_offset=20, epoch=1),
        data_batch([b"d"] * 30, base_offset=15, epoch=1),
    ]
    ends = surveyed(segment(*parts))
    assert [end.kind for end in ends] == [ScanEnd.OFFSET_REGRESSION, ScanEnd.GAP, ScanEnd.OVERLAP]
    starts = [sum(map(len, parts[:at])) for at in range(len(parts))]
    assert [end.position for end in ends] == [starts[1], starts[3], starts[4]]


def test_a_survey_reports_valid_batches_after_damage() -> None:
    parts = batches(6, base_offset=0)
    data = bytearray(segment(*parts))
    data[len(parts[0]) + 30] ^= 4
    (end,) = surveyed(bytes(data))
    assert end.kind is ScanEnd.DAMAGE
    assert (end.resumes_position, end.resumes_offset) == (len(parts[0]) + len(parts[1]), 2)


def test_a_wrong_length_hides_no_batch_from_a_survey() -> None:
    parts = batches(5)
    data = bytearray(segment(*parts))
    data[len(parts[0]) + 9] = 0x70  # a length of some megabytes, which reads as a torn batch
    (end,) = surveyed(bytes(data))
    assert end.kind is ScanEnd.TORN
    assert end.resumes_offset == 2


def test_random_bytes_after_the_end_never_raise() -> None:
    generator = random.Random(3919)
    parts = batches(3)
    for _ in range(300):
        tail = generator.randbytes(generator.randrange(1, 200))
        found, end = scanned(segment(*parts, tail=tail))
        assert found == [0, 1, 2]
        assert not end.is_clean
        surveyed(segment(*parts, tail=tail))
