"""Each single flipped bit is found, or proved to have no effect.

Where a checksum covers a bit, flipping it and checking the checksum is the whole proof. Where none
does (a batch's base offset, length, epoch and magic; indexes; text), the code that uses the bit is
run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.memory_storage import MemoryStorage
from tests.support.written_logs import DIRECTORY, ONE_SEGMENT, WrittenLog

from raftlog.errors import CorruptBatchError, LogError
from raftlog.log.format.epoch_cache import EpochCache
from raftlog.log.reading.files import LogFiles
from raftlog.log.reading.log_end import find_batch_after_timestamp
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.transactions import CommitName
from raftlog.log.recovery.recover import RecoveredLog, ScanStop, recover
from raftlog.log.recovery.recover_segment import (
    ScanPosition,
    ScanRules,
    SegmentScan,
)
from raftlog.log.writing.producer_state import ProducerStateManager
from raftlog.log.writing.properties import LogConfig
from raftlog.log.writing.segments import LogDirectory
from raftlog.records.batch import RecordBatch, iter_batches, read_batch
from raftlog.records.compression import Compression

LOG_BYTES = 64 * 1024
PATH = f"{DIRECTORY}/00000000000000000000.log"
QUICK_STEP = 61
"""A prime, so that every bit of a byte and every byte of a header is flipped."""
LONG_STEP = 5

whole_or_sample = pytest.mark.parametrize(
    "step",
    [
        QUICK_STEP,
        pytest.param(LONG_STEP, marks=pytest.mark.nightly),
        pytest.param(1, marks=pytest.mark.nightly),
    ],
    ids=["sample", "more", "every"],
)


@cache
def written() -> WrittenLog:
    """Return a closed log of one segment with epochs, commits, producers and compressed batches."""
    log = WrittenLog(ONE_SEGMENT)
    sequence = 0
    while len(log.disk.files()[PATH]) < LOG_BYTES:
        at = log.log.end_offset
        log.append(b"x" * (at % 150), commit=CommitName("app", "q", at), sync=False)
        log.append(*[b"y" * 40] * 20, compression=Compression.LZ4, sync=False)
        log.append(b"z" * 700, producer=(7, 0, sequence), sync=False)
        sequence += 1
        if at % 7 == 0:
            log.log.claim(now_ms=1_000)
    log.log.close()
    return log


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def facts_of(recovered: RecoveredLog) -> tuple[object, ...]:
    return (
        recovered.log_start_offset,
        recovered.end_offset,
        recovered.epochs,
        recovered.producer_state.commits,
        recovered.producer_state.producers,
        recovered.report.read_only is None,
    )


# --- the log --------------------------------------------------------------------------------------


def scanned_end(data: bytes, scan_position: ScanPosition, epochs: EpochCache) -> ScanStop:
    storage = MemoryStorage()
    storage.write(PATH, data)
    with storage.open_file(PATH) as file:
        return SegmentScan(file, scan_position, ScanRules(epochs=epochs)).finish()


def is_refused(data: bytes, bit: int) -> bool:
    """Return whether a batch with this bit flipped is rejected by itself."""
    try:
        return not isinstance(read_batch(flipped(data, bit)), RecordBatch)
    except CorruptBatchError:
        return True


@whole_or_sample
def test_recovery_finds_every_flipped_bit_of_a_log(step: int) -> None:
    log = written()
    data = log.disk.files()[PATH]
    epochs = log.recover().epochs
    by_order = 0
    previous_epoch = -1
    for batch in iter_batches(data):
        scan_position = ScanPosition(
            position=0, next_offset=batch.base_offset, epoch=previous_epoch
        )
        alone = data[batch.position : batch.position + batch.byte_count]
        follows = data[batch.position : batch.position + batch.byte_count + 2_000]
        previous_epoch = batch.leader_epoch
        for bit in range(-8 * batch.position % step, 8 * len(alone), step):
            if not is_refused(alone, bit):
                by_order += 1
                end = scanned_end(flipped(follows, bit), scan_position, epochs)
                assert not end.is_clean, (batch.position, bit)
                assert end.next_offset == batch.base_offset, (batch.position, bit)
    assert by_order > 12_000 // step


@pytest.mark.slow
@whole_or_sample
def test_a_flipped_bit_is_reported_when_the_log_is_opened_after_a_crash(step: int) -> None:
    log = written()
    data = log.disk.files()[PATH]
    disk = log.disk.copy()
    disk.unlink(f"{DIRECTORY}/.kafka_cleanshutdown")
    disk.unlink(f"{DIRECTORY}/recovery-point-offset-checkpoint")
    disk.sync_directory(DIRECTORY)
    disk.crash(Survival.EVERYTHING)
    whole = recover(disk.copy(), DIRECTORY, config=log.config)
    assert whole.report.anomalies == ()
    for bit in range(0, 8 * len(data), 4_001 * step // QUICK_STEP + 1_500):
        damaged = disk.copy()
        damaged.flip_bit(PATH, bit)
        recovered = recover(damaged, DIRECTORY, config=log.config)
        assert recovered.report.anomalies, bit
        assert recovered.end_offset < whole.end_offset
        assert recovered.report.read_only is not None or recovered.report.truncated[0].saved_as


@whole_or_sample
def test_a_reader_returns_the_same_batches_or_an_error(step: int) -> None:
    log = written()
    data = log.disk.files()[PATH]
    end_offset = log.log.end_offset
    for bit in range(0, 8 * len(data), 4_001 * step // QUICK_STEP + 1_500):
        disk = log.disk.copy()
        disk.flip_bit(PATH, bit)
        with pytest.raises(LogError):
            for _ in open_log(disk, DIRECTORY).batches(0, end_offset):
                pass


# --- indexes --------------------------------------------------------------------------------------


@cache
def indexed() -> WrittenLog:
    """Return a closed log whose batches have one offset and one time index entry each."""
    log = WrittenLog(LogConfig(index_interval_bytes=0))
    for _ in range(300):
        log.append(b"v", sync=False)
    log.log.close()
    return log


def index_bits(suffix: str, step: int) -> Iterator[tuple[int, int, SimulatedDisk]]:
    """Yield each bit, the offset that its entry is for, and the disk with the bit flipped."""
    log = indexed()
    path = PATH.removesuffix(".log") + suffix
    size = len(log.disk.files()[path])
    for bit in range(0, 8 * size, step):
        disk = log.disk.copy()
        disk.flip_bit(path, bit)
        yield bit, bit // 8 // (8 if suffix == ".index" else 12) + 1, disk


@whole_or_sample
def test_a_flipped_bit_of_an_offset_index_never_hides_a_batch(step: int) -> None:
    data = indexed().disk.files()[PATH]
    bases = {batch.position: batch.base_offset for batch in iter_batches(data)}
    for bit, about, disk in index_bits(".index", step):
        files = LogFiles.of_directory(disk, DIRECTORY)
        with files.open(PATH) as file:
            for offset in (about - 1, about, about + 1, 300):
                position = files.find(file, 0, offset)
                assert bases[position] <= offset, bit


def test_a_wrong_entry_of_an_offset_index_never_hides_a_batch() -> None:
    """The wrong entry is between its neighbours: only the log itself shows that it is wrong."""
    log = WrittenLog(LogConfig(index_interval_bytes=500))
    log.fill(80)
    log.log.close()
    bases = {batch.position: batch.base_offset for batch in iter_batches(log.disk.files()[PATH])}
    positions = sorted(bases)
    path = PATH.removesuffix(".log") + ".index"
    data = log.disk.files()[path]
    entries = list(struct.iter_unpack(">ii", data))
    assert len(entries) > 8
    for ordinal, (delta, position) in enumerate(entries):
        later = positions[min(len(positions) - 1, positions.index(position) + 2)]
        for entry in ((delta - 2, position), (delta - 1, position), (delta, later)):
            damaged = bytearray(data)
            struct.pack_into(">ii", damaged, 8 * ordinal, *entry)
            disk = log.disk.copy()
            disk.put(path, bytes(damaged))
            files = LogFiles.of_directory(disk, DIRECTORY)
            with files.open(PATH) as file:
                for offset in range(delta - 3, min(81, delta + 4)):
                    assert bases[files.find(file, 0, offset)] <= offset, entry


@whole_or_sample
def test_a_flipped_bit_of_a_time_index_never_hides_a_batch(step: int) -> None:
    for bit, about, disk in index_bits(".timeindex", 3 * step):
        files = LogFiles.of_directory(disk, DIRECTORY)
        for offset in (about, 299):
            found = find_batch_after_timestamp(
                files, 1_000 + offset - 1, start_offset=0, end_offset=301, contiguous=True
            )
            assert found is not None, bit
            assert int(found.base_offset[0]) == offset, bit


@whole_or_sample
def test_a_flipped_bit_of_an_index_does_not_affect_opening(step: int) -> None:
    log = indexed()
    expected = facts_of(log.recover())
    for suffix in (".index", ".timeindex"):
        for _, _, disk in index_bits(suffix, 37 * step):
            assert facts_of(recover(disk, DIRECTORY, config=log.config)) == expected


# --- snapshots ------------------------------------------------------------------------------------


@whole_or_sample
def test_every_flipped_bit_of_a_producer_snapshot_is_found(step: int) -> None:
    log = written()
    name = [name for name in log.names() if name.endswith(".snapshot")][-1]
    data = log.disk.files()[log.path(name)]
    for bit in range(0, 8 * len(data), step):
        with pytest.raises(LogError):
            ProducerStateManager.decode_snapshot(flipped(data, bit), name, log.log.end_offset)


@whole_or_sample
def test_every_flipped_bit_of_a_snapshot_is_found_by_its_readers(step: int) -> None:
    log = WrittenLog(LogConfig(batch_bytes_max=1_024))
    log.append(b"a", commit=CommitName("app", "q", 1))
    writer = log.log.begin_snapshot(log.log.snapshot_id_at(2), now_ms=5)
    assert writer is not None
    writer.append([b"state" * 30] * 40)
    snapshot_id = writer.freeze()
    path = log.path(f"{snapshot_id}.checkpoint")
    data = log.disk.files()[path]
    batches = list(iter_batches(data))
    for batch in batches:
        alone = data[batch.position : batch.position + batch.byte_count]
        for bit in range(-8 * batch.position % step, 8 * len(alone), step):
            if is_refused(alone, bit):
                continue
            disk = log.disk.copy()
            disk.flip_bit(path, 8 * batch.position + bit)
            with pytest.raises(LogError):
                for _ in open_log(disk, DIRECTORY).read_snapshot(snapshot_id).batches():
                    pass


# --- text files -----------------------------------------------------------------------------------

TEXTS = (
    "leader-epoch-checkpoint",
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "partition.metadata",
    "raftlog.properties",
    "checksums",
    "published",
    ".kafka_cleanshutdown",
)


@pytest.mark.parametrize("name", TEXTS)
@whole_or_sample
def test_a_flipped_bit_of_a_text_file_is_found_or_has_no_effect(name: str, step: int) -> None:
    log = WrittenLog()
    log.fill(30)
    log.log.claim(now_ms=0)
    writer = log.log.begin_snapshot(log.log.snapshot_id_at(32), now_ms=5)
    assert writer is not None
    log.log.delete_before(writer.freeze())
    log.append(b"a", commit=CommitName("app", "q", 1))
    log.log.close()
    expected = facts_of(log.recover())
    path = log.path(name)
    for bit in range(0, 8 * len(log.disk.files()[path]), step):
        disk = log.disk.copy()
        disk.flip_bit(path, bit)
        try:
            assert LogDirectory(disk, DIRECTORY).read_properties() is not None
        except LogError:
            continue  # found before any other check
        recovered = recover(disk, DIRECTORY, config=log.config)
        if facts_of(recovered) != expected:
            assert recovered.report.anomalies, bit
            assert facts_of(recovered)[1:] == expected[1:], bit
