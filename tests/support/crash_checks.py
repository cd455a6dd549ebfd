"""Whether what a death left can be opened, and holds what was promised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from raftlog.errors import LogNotFoundError
from raftlog.log.names import LOG_SUFFIX, offset_name
from raftlog.log.opening import open_log
from raftlog.log.writing.recovered import RecoveredLog
from raftlog.log.writing.recovery import recover
from raftlog.log.writing.replicated_log import ReplicatedLog
from raftlog.records.batch import RecordBatch, iter_batches
from tests.simulated_disk.crash_points import CrashState, Recording
from tests.simulated_disk.simulated import SimulatedDisk
from tests.simulated_disk.survival import Survival
from tests.support.appending import TOPIC_ID
from tests.support.witness import DIRECTORY, NOW_MS, Witness
from tests.support.written_logs import encoded

DEEP_EVERY: Final = 8
"""So many disks are opened for each one that is also read and written on."""

_DEATHS: Final = (None, *Survival)


@dataclass(frozen=True, slots=True)
class Found:
    """What recovery made of one disk. Equal disks are recovered once."""

    recovered: RecoveredLog
    batches: list[RecordBatch]


class CrashChecker:
    """Opens what deaths left of one log, and holds it against the witness.

    ``states`` is how many deaths were looked at, ``disks`` how many different disks they left, and
    ``second_deaths`` how many recoveries were cut short, or lost their power right behind.
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
        """Open what ``state`` left: nothing promised is gone, nothing is there that never was."""
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
        self._check_second_deaths(state, recording, what_counts(recovered))
        if len(self._found) % DEEP_EVERY == 0:
            _check_reader(disk, state, recovered, batches)
            _check_going_on(witness, disk, state, recovered)
        return Found(recovered, batches)

    def _check_second_deaths(
        self, state: CrashState, recording: Recording, once: tuple[object, ...]
    ) -> None:
        """Recovery that dies at some operation, and is done again by the next process.

        Whoever was only killed loses his power behind the recovery, too: what the next process
        found, and may have shown to readers, is as good as promised. Only what he had not yet cut
        when the power went may be there again.
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
                    found = what_counts(again)
                    assert found == once, f"{state}, then {second}: {once}, then {found}"


def _pending(state: CrashState) -> tuple[object, ...]:
    """What is not synced on the disk of a process that was only killed: a later death needs it."""
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


def what_counts(recovered: RecoveredLog) -> tuple[object, ...]:
    """The same without segments wholly below the log's start, which may go at any opening."""
    start = recovered.log_start_offset
    kept = tuple(one for one in recovered.segments if max(one.end_offset, one.base_offset) > start)
    kept = kept or recovered.segments[-1:]
    epochs = recovered.epochs.without_before(kept[0].base_offset)
    return facts_of(replace(recovered, segments=kept, epochs=epochs))


def batches_of(disk: SimulatedDisk, recovered: RecoveredLog) -> list[RecordBatch]:
    """The batches on disk, segment after segment; nothing may lie behind them."""
    files = disk.files()
    found: list[RecordBatch] = []
    for segment in recovered.segments:
        data = files[f"{DIRECTORY}/{offset_name(segment.base_offset, LOG_SUFFIX)}"]
        assert len(data) == segment.byte_count
        found += iter_batches(data)
        assert not found or found[-1].next_offset == segment.end_offset
    return found


def _check_unfinished(disk: SimulatedDisk, witness: Witness) -> None:
    """A log whose making was cut short is made by whoever tries again, or opened."""
    try:
        names = disk.list_names(DIRECTORY)
    except LogNotFoundError:
        names = []
    is_there = "raftlog.properties" in names and any(n.endswith(LOG_SUFFIX) for n in names)
    if is_there:
        log = ReplicatedLog.open(disk, DIRECTORY, now_ms=NOW_MS, is_single=witness.is_single)
        assert not log.is_read_only, log.report
        if not log.end_offset:
            log.claim(now_ms=NOW_MS)
    else:
        log = ReplicatedLog.create(
            disk,
            DIRECTORY,
            config=witness.config,
            topic_id=TOPIC_ID,
            now_ms=NOW_MS,
            is_single=witness.is_single,
        )
    log.append_as_leader([encoded(b"first", base_offset=log.end_offset, epoch=log.epoch)])
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
    """Which row of batches it is that was found."""
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
    """Every snapshot that can be seen is whole, and one allows the log to begin where it does."""
    start = recovered.log_start_offset
    assert recovered.segments[0].base_offset <= start
    log = open_log(disk, DIRECTORY)
    for snapshot_id in log.snapshots:
        for _ in log.read_snapshot(snapshot_id).batches():
            pass  # raises for one that is not whole
    if start:
        assert any(one.end_offset >= start for one in log.snapshots), f"{state}: no snapshot"


def _check_reader(
    disk: SimulatedDisk, state: CrashState, recovered: RecoveredLog, batches: list[RecordBatch]
) -> None:
    """A reader is given every batch once, in order, up to the same end."""
    log = open_log(disk, DIRECTORY)
    assert log.log_end_offset == recovered.end_offset, state
    start = recovered.log_start_offset
    read = [one.base_offset for one in log.batches(start, recovered.end_offset)]
    assert read == [one.base_offset for one in batches if one.last_offset >= start], state


def _check_going_on(
    witness: Witness, disk: SimulatedDisk, state: CrashState, recovered: RecoveredLog
) -> None:
    """What is appended and synced after the recovery survives the next power loss."""
    log = ReplicatedLog.open(
        disk, DIRECTORY, config=witness.config, now_ms=NOW_MS, is_single=witness.is_single
    )
    assert log.end_offset == recovered.end_offset, state
    batch = encoded(b"goes on", base_offset=log.end_offset, epoch=log.epoch)
    log.append_as_leader([batch])
    log.flush()
    disk.crash(Survival.NOTHING)
    again = _recover(disk, witness)
    assert again.report.read_only is None, f"{state}: {again.report}"
    assert again.end_offset == recovered.end_offset + 1, state
