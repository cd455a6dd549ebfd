"""Check that a log can be opened after a crash, and has everything that was acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from tests.simulated_disk.crash_model import Survival
from tests.simulated_disk.crash_points import CrashState, Recording
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import append_batches, begin_next_epoch
from tests.support.witness import DIRECTORY, Witness
from tests.support.written_logs import encoded

from raftlog.errors import LogNotFoundError
from raftlog.log.format.directory import LOG_SUFFIX, offset_name
from raftlog.log.reading.opening import open_log
from raftlog.log.recovery.recover import RecoveredLog, recover
from raftlog.records.batch import RecordBatch, iter_batches

DEEP_EVERY: Final = 8
"""One in this many opened disks is also read and written."""

_DEATHS: Final = (None, *Survival)


@dataclass(frozen=True, slots=True)
class Found:
    """Result of recovery on one disk. Equal disks are recovered once."""

    recovered: RecoveredLog
    batches: list[RecordBatch]


class CrashChecker:
    """Checker that opens the disks left by crashes of one log, and compares them with the witness.

    ``states`` counts the crashes, ``disks`` the different disks they left, and ``second_deaths``
    the recoveries that were interrupted, or lost power right after they ended.
    """

    def __init__(self, witness: Witness) -> None:
        self.states = 0
        self.second_deaths = 0
        self._witness = witness
        self._found: dict[tuple[object, ...], Found] = {}

    @property
    def disks(self) -> int:
        return len(self._found)

    def check(self, state: CrashState) -> None:
        """Open the disk left by ``state``; check that no acknowledged batch is lost or invented."""
        self.states += 1
        if state.cut < self._witness.created:
            _check_unfinished(SimulatedDisk.after(state), self._witness)
            return
        key = state.boot_number, *state.tree.paths(), *_pending(state)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._recovered(state)
        _check_batches(self._witness, state, found.recovered, found.batches)
        least, greatest = self._witness.start_bounds(state.cut)
        start = found.recovered.log_start_offset
        assert start in (least, greatest), f"{state}: starts at {start}"

    def _recovered(self, state: CrashState) -> Found:
        witness = self._witness
        disk = SimulatedDisk.after(state)
        recording = disk.record()
        recovered = _recover(disk, witness)
        assert recovered.report.read_only is None, f"{state}: {recovered.report}"
        batches = batches_of(disk, recovered)
        _check_snapshots(state, disk, recovered)
        once = facts_of(recovered)
        if recording.operations:
            again = facts_of(_recover(disk, witness))
            assert again == once, f"{state}: {once}, and then {again}"
        self._check_second_deaths(state, recording, retained_batches(recovered))
        if len(self._found) % DEEP_EVERY == 0:
            _check_reader(disk, state, recovered, batches)
            _check_further_appends(witness, disk, state, recovered)
        return Found(recovered, batches)

    def _check_second_deaths(
        self, state: CrashState, recording: Recording, once: tuple[object, ...]
    ) -> None:
        """Crash recovery at some operation, and recover again in the next process.

        After a kill, power may also be lost once recovery has ended: what the next process found,
        and may have returned to readers, counts as acknowledged. Only bytes that were not truncated
        yet may reappear after the power loss.
        """
        chance = Random(f"{state}")
        operation_count = len(recording.operations)
        deaths: list[tuple[int, Survival | None]] = []
        if operation_count:
            deaths.append((chance.randrange(operation_count + 1), chance.choice(_DEATHS)))
        if state.survival is None:
            deaths.append((operation_count, chance.choice((Survival.NOTHING, Survival.MIXED))))
        for cut, survival in deaths:
            for second in recording.states((survival,), cuts=[cut]):
                self.second_deaths += 1
                disk = SimulatedDisk.after(second)
                again = _recover(disk, self._witness)
                if state.survival is None and survival is not None and cut < operation_count:
                    _check_batches(self._witness, state, again, batches_of(disk, again))
                else:
                    found = retained_batches(again)
                    assert found == once, f"{state}, then {second}: {once}, then {found}"


def _pending(state: CrashState) -> tuple[object, ...]:
    """Return the unsynced changes on the disk of a killed process: a later crash needs them."""
    return () if state.survival is not None else (state.cut,)


def _recover(disk: SimulatedDisk, witness: Witness) -> RecoveredLog:
    return recover(disk, DIRECTORY, config=witness.config)


def facts_of(recovered: RecoveredLog) -> tuple[object, ...]:
    return (
        [(one.base_offset, one.end_offset, one.byte_count) for one in recovered.segments],
        recovered.log_start_offset,
        recovered.end_offset,
        recovered.epochs,
        recovered.producer_state.commits,
        recovered.producer_state.producers,
        recovered.report.read_only,
    )


def retained_batches(recovered: RecoveredLog) -> tuple[object, ...]:
    """Return the batches without segments wholly below the log start, which any open may delete."""
    start = recovered.log_start_offset
    kept = tuple(one for one in recovered.segments if max(one.end_offset, one.base_offset) > start)
    kept = kept or recovered.segments[-1:]
    epochs = recovered.epochs.without_before(kept[0].base_offset)
    return facts_of(replace(recovered, segments=kept, epochs=epochs))


def batches_of(disk: SimulatedDisk, recovered: RecoveredLog) -> list[RecordBatch]:
    """Return the batches on disk, segment by segment; no bytes may follow them."""
    files = disk.files()
    found: list[RecordBatch] = []
    for segment in recovered.segments:
        data = files[f"{DIRECTORY}/{offset_name(segment.base_offset, LOG_SUFFIX)}"]
        assert len(data) == segment.byte_count
        found += iter_batches(data)
        assert not found or found[-1].next_offset == segment.end_offset
    return found


def _check_unfinished(disk: SimulatedDisk, witness: Witness) -> None:
    """Check that a log whose creation was interrupted can be created again or opened."""
    try:
        names = disk.list_names(DIRECTORY)
    except LogNotFoundError:
        names = []
    is_there = "raftlog.properties" in names and any(n.endswith(LOG_SUFFIX) for n in names)
    if is_there:
        log = witness.open(disk)
        assert not log.is_read_only, log.report
        if not log.end_offset:
            begin_next_epoch(log)
    else:
        log = witness.create(disk)
    append_batches(log, encoded(b"first", base_offset=log.end_offset, epoch=log.epoch))
    log.flush()
    end_offset = log.end_offset
    disk.crash(Survival.NOTHING)
    assert _recover(disk, witness).end_offset == end_offset


def _check_batches(
    witness: Witness, state: CrashState, recovered: RecoveredLog, batches: list[RecordBatch]
) -> None:
    end_offset, floor = recovered.end_offset, witness.floor(state.cut)
    assert end_offset >= floor, f"{state}: {floor} was promised and {end_offset} is there"
    if batches:
        assert batches[-1].next_offset == end_offset
    number = _version(witness, state, recovered, batches)
    producer_state = witness.producer_state(number, end_offset)
    assert recovered.producer_state.end_offset == end_offset
    assert recovered.producer_state.commits == producer_state.commits, state
    assert recovered.producer_state.producers == producer_state.producers, state
    assert recovered.producer_state.last_stable_offset(
        end_offset
    ) == producer_state.last_stable_offset(end_offset), state
    epochs = witness.epochs(number, end_offset)
    assert recovered.epochs.latest_epoch == epochs.latest_epoch, state
    for batch in batches:
        assert recovered.epochs.epoch_at(batch.base_offset) == batch.leader_epoch, state


def _version(
    witness: Witness, state: CrashState, recovered: RecoveredLog, batches: list[RecordBatch]
) -> int:
    """Return which version of the log was found."""
    first = recovered.segments[0].base_offset
    for number, row in witness.rows(state.cut):
        if _same(batches, [one for one in row if first <= one.base_offset < recovered.end_offset]):
            return number
    raise AssertionError(f"{state}: not a row of batches that was ever written")


def _same(batches: list[RecordBatch], expected: list[RecordBatch]) -> bool:
    return [(one.base_offset, one.leader_epoch, one.crc) for one in batches] == [
        (one.base_offset, one.leader_epoch, one.crc) for one in expected
    ]


def _check_snapshots(state: CrashState, disk: SimulatedDisk, recovered: RecoveredLog) -> None:
    """Check that every visible snapshot is complete, and one allows the log's start offset."""
    start = recovered.log_start_offset
    assert recovered.segments[0].base_offset <= start
    log = open_log(disk, DIRECTORY)
    for snapshot_id in log.snapshots:
        for _ in log.read_snapshot(snapshot_id).batches():
            pass  # raises for an incomplete one
    if start:
        assert any(one.end_offset >= start for one in log.snapshots), f"{state}: no snapshot"


def _check_reader(
    disk: SimulatedDisk, state: CrashState, recovered: RecoveredLog, batches: list[RecordBatch]
) -> None:
    """Check that a reader gets every batch once, in order, up to the same end."""
    log = open_log(disk, DIRECTORY)
    assert log.log_end_offset == recovered.end_offset, state
    start = recovered.log_start_offset
    read = [one.base_offset for one in log.batches(start, recovered.end_offset)]
    assert read == [one.base_offset for one in batches if one.last_offset >= start], state


def _check_further_appends(
    witness: Witness, disk: SimulatedDisk, state: CrashState, recovered: RecoveredLog
) -> None:
    """Check that records appended and synced after recovery survive the next power loss."""
    log = witness.open(disk)
    assert log.end_offset == recovered.end_offset, state
    batch = encoded(b"goes on", base_offset=log.end_offset, epoch=log.epoch)
    append_batches(log, batch)
    log.flush()
    disk.crash(Survival.NOTHING)
    again = _recover(disk, witness)
    assert again.report.read_only is None, f"{state}: {again.report}"
    assert again.end_offset == recovered.end_offset + 1, state
