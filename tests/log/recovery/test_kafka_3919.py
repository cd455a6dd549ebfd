"""KAFKA-3919: offsets decrease in logs of replicas that lost power.

Numbers as in the report, less 1 239 740 000: three replicas with unsynced data lose power, with one
acknowledgement required. One recovers up to offset 602 and leads a new epoch; the others restart
with 2830 and 2250, truncate by high watermark, and fetch from an offset inside one of its large
compressed batches.
"""

from __future__ import annotations

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import (
    append_batches,
    begin_next_epoch,
    created_replica,
    reopened_replica,
)
from tests.support.log_builder import LogBuilder, data_batch
from tests.support.written_logs import DIRECTORY, ONE_SEGMENT, WrittenLog, encoded

from raftlog.errors import LogGapError, OptionError
from raftlog.log.recovery.recover import ScanEnd, recover
from raftlog.log.recovery.repair import truncate_log_at
from raftlog.log.writing.properties import LogConfig
from raftlog.records.compression import Compression
from raftlog.types import Diverging, OffsetAndEpoch, Valid

LEADERS_END, FOLLOWERS_END = 602, 2250


def follower(*, synced_up_to: int = LEADERS_END) -> WrittenLog:
    """Return a replica with 2250 offsets, of which 602 are acknowledged."""
    log = WrittenLog(ONE_SEGMENT)
    while log.log.end_offset < synced_up_to:
        log.append(*[b"told"] * min(50, synced_up_to - log.log.end_offset), sync=False)
    log.log.flush()
    log.log._segments.write_recovery_point(synced_up_to)
    while log.log.end_offset < FOLLOWERS_END:
        log.append(*[b"lost by the new leader"] * min(50, FOLLOWERS_END - log.log.end_offset))
    log.disk.crash(Survival.EVERYTHING, 0)
    return log


def leader_batches(first: int, up_to: int, *, epoch: int = 2, size: int = 100) -> list[bytes]:
    """Yield the new leader's large compressed batches from ``first`` up to ``up_to``."""
    return [
        encoded(
            *[b"of the new epoch"] * size,
            base_offset=base,
            epoch=epoch,
            compression=Compression.GZIP,
        )
        for base in range(first, up_to, size)
    ]


# --- one directory --------------------------------------------------------------------------------


def test_a_batch_fetched_from_its_middle_is_an_overlap_and_the_log_opens() -> None:
    log = follower()
    position = len(log.disk.files()[log.active])
    misaligned = b"".join(leader_batches(2202, 2602))
    log.raw_append(log.active, misaligned)
    recovered = log.recover()
    assert recovered.report.read_only is None
    assert recovered.end_offset == FOLLOWERS_END
    (anomaly,) = recovered.report.anomalies
    assert (anomaly.kind, anomaly.position) == (ScanEnd.OVERLAP, position)
    assert (anomaly.next_offset, anomaly.found_base_offset) == (2250, 2202)
    assert (anomaly.found_last_offset, anomaly.found_epoch) == (2301, 2)
    (cut,) = recovered.report.truncated
    assert cut.saved_as is not None
    assert log.disk.files()[cut.saved_as] == misaligned
    assert log.disk.files()[log.active][:position] == log.disk.files()[log.active]
    log.reopen()
    assert log.append(b"goes on") == FOLLOWERS_END + 1


def test_decreasing_offsets_inside_an_index_interval_are_found() -> None:
    log = WrittenLog(LogConfig(index_interval_bytes=1 << 20))
    log.fill(10)
    log.disk.crash(Survival.EVERYTHING, 0)
    log.raw_append(log.active, encoded(b"a", b"b", base_offset=7, epoch=1))
    recovered = log.recover()
    assert [one.kind for one in recovered.report.anomalies] == [ScanEnd.OFFSET_REGRESSION]
    assert recovered.end_offset == 11


def test_the_same_offsets_in_another_epoch_are_reported_batch_by_batch() -> None:
    log = follower()
    log.raw_append(log.active, b"".join(leader_batches(602, 1002)))
    log.raw_append(log.active, b"".join(leader_batches(1402, 1602)))
    recovered = log.recover()
    assert [one.kind for one in recovered.report.anomalies] == [
        ScanEnd.OFFSET_REGRESSION,
        ScanEnd.GAP,
    ]
    assert "offsets 602 to 701, epoch 2, follows offset 2249" in (
        recovered.report.anomalies[0].reason
    )
    assert "offsets 1002 to 1401 are missing" in recovered.report.anomalies[1].reason
    assert recovered.end_offset == FOLLOWERS_END


def test_a_log_that_contradicts_the_epoch_checkpoint_ends_at_the_divergence() -> None:
    log = follower()
    log.raw_append(log.active, b"".join(leader_batches(2202, 2602)))
    checkpoint = b"0\n2\n1 0\n2 602\n"
    log.log._directory._replace("leader-epoch-checkpoint", checkpoint)
    recovered = log.recover()
    assert recovered.end_offset == LEADERS_END
    assert recovered.report.read_only is None
    first = recovered.report.anomalies[0]
    assert first.kind is ScanEnd.EPOCH_MISMATCH
    assert "leader-epoch-checkpoint has epoch 2 from offset 602 on" in first.reason
    assert ScanEnd.OVERLAP in [one.kind for one in recovered.report.anomalies]
    assert recovered.epochs.latest_epoch == 1


def test_acknowledged_records_are_never_dropped_for_it() -> None:
    log = follower(synced_up_to=LEADERS_END)
    log.raw_append(log.active, b"".join(leader_batches(2202, 2602)))
    with log.disk.open_for_writing(log.active) as file:
        file.sync()
    log.log._directory.write_recovery_point(2602)
    before = log.disk.files()
    recovered = log.recover()
    assert recovered.report.read_only is not None
    assert recovered.end_offset == FOLLOWERS_END
    assert "2202 to 2301" in str(recovered.report.read_only)
    assert log.disk.files() == before


def test_kafkas_own_directory_is_diagnosed_and_not_changed() -> None:
    builder = LogBuilder(directory="/node/orders-0")
    for base in range(0, 200, 10):
        builder.append(data_batch([b"old"] * 10, base_offset=base), last_offset=base + 9)
    for base in (135, 145, 155):
        builder.append(
            data_batch([b"new"] * 10, base_offset=base, epoch=2, compression=Compression.GZIP),
            last_offset=base + 9,
        )
    disk = SimulatedDisk()
    for path, data in builder.storage.files.items():
        disk.put(path, bytes(data))
    before = disk.files()
    recovered = recover(disk, builder.directory, config=LogConfig())
    assert [one.kind for one in recovered.report.anomalies] == [ScanEnd.OFFSET_REGRESSION]
    assert (recovered.end_offset, disk.files()) == (200, before)


# --- several replicas -----------------------------------------------------------------------------


class Replica:
    """Replica of a quorum; acknowledged means synced by a majority."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = SimulatedDisk() if disk is None else disk
        self.disk.make_directory("/data")
        self.log = created_replica(
            self.disk, config=LogConfig(index_interval_bytes=500), directory=DIRECTORY
        )

    def restart(self) -> None:
        self.disk.crash(Survival.EVERYTHING, 0)
        self.log = reopened_replica(self.disk, directory=DIRECTORY)

    def write(self, *values: bytes) -> bytes:
        batch = encoded(*values, base_offset=self.log.end_offset, epoch=self.log.epoch)
        append_batches(self.log, batch)
        self.log.flush()
        return batch

    def segment(self) -> bytes:
        return self.disk.files()[f"{DIRECTORY}/00000000000000000000.log"]

    def fetch_from(self, leader: Replica) -> list[object]:
        """Fetch from a leader up to its end, and return the leader's answer."""
        answers: list[object] = []
        while True:
            epoch = self.log.epochs.epoch_at(self.log.end_offset - 1) or 0
            answer = leader.log.validate_offset_and_epoch(offset=self.log.end_offset, epoch=epoch)
            answers.append(answer)
            if isinstance(answer, Diverging):
                self.log.truncate_to_end_of_epoch(answer.end)
                continue
            assert isinstance(answer, Valid)
            batches = leader.log._segments.batches(self.log.end_offset, leader.log.end_offset)
            data = leader.segment()
            for batch in batches:
                piece = data[batch.position : batch.position + batch.byte_count]
                self.log.append_as_follower(piece, leader_epoch=leader.log.epoch)
            self.log.flush()
            return answers


def test_offsets_do_not_decrease_when_the_shorter_replica_leads_after_a_power_loss() -> None:
    first, second = Replica(), Replica()
    for at in range(100):
        batch = first.write(b"message %d" % at)
        second.log.append_as_follower(batch, leader_epoch=1)
    second.log.flush()
    first.restart()
    second.restart()
    first.log.truncate_to(51)  # half of it was never on disk
    first.restart()
    begin_next_epoch(first.log)
    for _ in range(2):
        first.write(*[b"big batch"] * 77)
    answers = second.fetch_from(first)
    assert answers[0] == Diverging(OffsetAndEpoch(epoch=1, offset=51))
    assert isinstance(answers[-1], Valid)
    assert second.segment() == first.segment()
    second.restart()
    assert second.log.report.anomalies == ()
    assert second.log.end_offset == 51 + 1 + 2 * 77


def test_a_batch_that_overlaps_the_end_is_refused_on_append() -> None:
    first, second = Replica(), Replica()
    for replica in (first, second):
        for _ in range(10):
            replica.write(b"the same")
    big = encoded(*[b"big"] * 20, base_offset=5, epoch=1)
    before = second.segment()
    with pytest.raises(LogGapError):
        second.log.append_as_follower(big, leader_epoch=2)
    assert second.segment() == before


# --- repair ---------------------------------------------------------------------------------------


def damaged_log() -> WrittenLog:
    """Return a log of several segments with damage in the second one."""
    log = WrittenLog()
    log.fill(60)
    log.disk.crash(Survival.EVERYTHING, 0)
    log.disk.flip_bit(log.segment(18), 8 * 700)
    log.disk.unlink(log.path("recovery-point-offset-checkpoint"))
    return log


def test_repair_truncates_at_the_offset_backs_up_the_rest_and_reports_the_loss() -> None:
    log = damaged_log()
    contents = log.disk.files()
    valid_end = log.recover().end_offset
    with pytest.raises(OptionError, match=f"valid only up to offset {valid_end}"):
        truncate_log_at(log.disk, DIRECTORY, offset=valid_end + 3, config=log.config)
    repaired = truncate_log_at(log.disk, DIRECTORY, offset=valid_end, config=log.config)
    assert repaired.recovered.report.read_only is None
    assert repaired.first_lost_offset == valid_end == repaired.recovered.end_offset
    assert repaired.end_offset_before > valid_end
    saved = b"".join(
        log.disk.durable_files()[cut.saved_as]
        for cut in sorted(repaired.truncated, key=lambda one: one.path)
        if cut.saved_as is not None
    )
    everything = b"".join(
        contents[path]
        for path in sorted(contents)
        if path.endswith(".log") and path > log.segment(1)
    )
    assert everything.endswith(saved)
    log.reopen()
    assert log.append(b"goes on") == valid_end + 1
    log.disk.crash(Survival.NOTHING)
    assert log.recover().end_offset == valid_end + 1


def test_a_repair_below_a_snapshot_backs_up_the_snapshot() -> None:
    log = WrittenLog()
    log.fill(60)
    writer = log.log.begin_snapshot(log.log.snapshot_id_at(61), now_ms=0)
    assert writer is not None
    writer.freeze()
    repaired = truncate_log_at(log.disk, DIRECTORY, offset=30, config=log.config)
    assert repaired.recovered.end_offset == 30
    assert repaired.recovered.report.read_only is None
    assert len(repaired.set_aside) == 1


@pytest.mark.slow
def test_an_interrupted_repair_is_repeated() -> None:
    log = damaged_log()
    log.disk.sync_directory(DIRECTORY)
    end = log.recover().end_offset
    recording = log.disk.record()
    truncate_log_at(log.disk, DIRECTORY, offset=end, config=log.config)
    expected = log.disk.files()[log.segment(18)]
    for state in recording.states():
        disk = SimulatedDisk.after(state)
        first = recover(disk.copy(), DIRECTORY, config=log.config)
        assert first.end_offset == end
        again = truncate_log_at(disk, DIRECTORY, offset=end, config=log.config)
        assert again.recovered.report.read_only is None, state
        assert again.recovered.end_offset == end
        assert disk.files()[log.segment(18)] == expected
