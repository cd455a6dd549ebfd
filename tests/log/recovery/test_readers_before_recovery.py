"""Readers after a power loss and before recovery: they see the log that recovery will leave."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.simulated_disk.crash_model import Survival
from tests.support.written_logs import ONE_SEGMENT, WrittenLog, encoded

from raftlog.errors import CorruptBatchError
from raftlog.log.reading.log_reader import LogReader
from raftlog.log.reading.opening import open_log
from raftlog.log.reading.reads import Isolation
from raftlog.log.reading.transactions import ValueKind
from raftlog.records.batch import iter_batches


def damaged_log(offset: int, *, recovery_point: int) -> WrittenLog:
    """Return a log of 41 offsets after a power loss, with the batch of ``offset`` damaged."""
    log = WrittenLog(ONE_SEGMENT)
    log.fill(40)
    log.log._directory.write_recovery_point(recovery_point)
    log.disk.crash(Survival.EVERYTHING, 1)
    data = bytearray(log.disk.files()[log.active])
    (position,) = (one.position for one in iter_batches(data) if one.base_offset == offset)
    data[position + 70] ^= 1
    log.disk.put(log.active, bytes(data))
    return log


def rows(reader: LogReader) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for batch in reader.batches(0, reader.log_end_offset):
        found += [(record.offset, record.value or b"") for record in batch.records()]
    return found


@pytest.mark.parametrize("offset", [1, 7, 23, 39])
@pytest.mark.parametrize("recovery_point", [0, 1])
def test_a_reader_sees_the_end_that_recovery_leaves(offset: int, recovery_point: int) -> None:
    log = damaged_log(offset, recovery_point=recovery_point)
    reader = open_log(log.disk, log.directory)
    before = rows(reader)
    assert [at for at, _ in before] == list(range(offset))
    assert reader.tail is not None
    assert reader.tail.position + reader.tail.byte_count == len(log.disk.files()[log.active])
    log.reopen()
    assert log.log.end_offset == offset
    reader.refresh()
    assert rows(reader) == before == rows(open_log(log.disk, log.directory))


def test_damage_below_the_recovery_point_is_raised() -> None:
    log = damaged_log(7, recovery_point=20)
    reader = open_log(log.disk, log.directory)
    assert reader.log_end_offset == 41
    with pytest.raises(CorruptBatchError):
        rows(reader)


def test_a_wrong_index_makes_no_difference() -> None:
    log = damaged_log(23, recovery_point=30)
    log.log._directory.write_recovery_point(1)
    log.disk.put(log.active.removesuffix(".log") + ".index", b"\xff" * 80)
    assert len(rows(open_log(log.disk, log.directory))) == 23


@pytest.mark.parametrize("base_offset", [0, 30, 39, 40])
@pytest.mark.parametrize("values", [ValueKind.BYTES, ValueKind.KRAFT])
@pytest.mark.parametrize("how", ["batches", "planned", "from the middle"])
def test_offsets_rewritten_after_the_published_end_are_invisible(
    base_offset: int, values: ValueKind, how: str
) -> None:
    """A writer died before it acknowledged them; the next writer truncates them."""
    log = WrittenLog(replace(ONE_SEGMENT, values=values))
    log.fill(40)
    log.raw_append(log.active, encoded(b"twice", b"and more", base_offset=base_offset))
    reader = open_log(log.disk, log.directory)
    assert reader.log_end_offset == 41
    if how == "planned":
        boundary = reader.next_boundary(1, end_offset=41, max_records=100)
        assert boundary == 41
        reader.plan(1, 41, isolation=Isolation.READ_COMMITTED)
        end = reader.read_end(isolation=Isolation.READ_COMMITTED)
        assert end.offset == 41
    start = 20 if how == "from the middle" else 0
    found = [b.base_offset for b in reader.batches(start, 41)]
    assert found == list(range(start, 41))
    log.reopen()
    assert log.log.end_offset == 41
    reader.refresh()
    assert [b.base_offset for b in reader.batches(start, 41)] == found
