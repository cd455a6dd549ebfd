"""Mutated directories of logs: reads, recoveries and appends raise typed errors only.

An input has names and contents of all files in turn. What has been appended to a directory that
could be opened is read again; sealed segments that the mutation has removed are not.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import pytest
from tests.simulated_disk.simulated_disk import SimulatedDisk
from tests.support.appending import append_batches, reopened
from tests.support.corpora import COUNT, SEED, Input, fuzz
from tests.support.written_logs import DIRECTORY, encoded

from raftlog.client import open_path
from raftlog.errors import RaftlogError
from raftlog.log import segment
from raftlog.log.format import directory, epoch_cache
from raftlog.log.reading import directory_log, opening
from raftlog.log.recovery import load_log, recover, recover_segment
from raftlog.log.writing import producer_state, properties
from raftlog.records.batch import RecordBatch

NAME: Final = "log-directories"
MODULES: Final = {
    *(segment, directory, epoch_cache, directory_log, opening),
    *(load_log, recover, recover_segment, producer_state, properties),
}
VALUE: Final = b"appended"


def disk_of(given: Input) -> SimulatedDisk:
    """Return a disk with the files of an input; those whose names no file can have are left out."""
    disk = SimulatedDisk()
    disk.put(f"{DIRECTORY}/.lock", b"")
    for name, content in zip(given[::2], given[1::2], strict=True):
        text = name.decode("latin-1")
        if 0 < len(text) < 100 and text not in (".", "..") and not {"/", "\0"} & set(text):
            disk.put(f"{DIRECTORY}/{text}", content)
    return disk


def read(disk: SimulatedDisk, start_offset: int | None = None) -> list[RecordBatch]:
    """Return the batches from an offset on, or all. Raises ``RaftlogError``."""
    with open_path(DIRECTORY, storage=disk) as log:
        start = log.log_start_offset if start_offset is None else start_offset
        log.aborted_transactions(start, log.log_end_offset)
        return list(log.batches(start, log.log_end_offset))


def run(given: Input) -> None:
    disk = disk_of(given)
    with suppress(RaftlogError):
        read(disk)
    try:
        log = reopened(disk, directory=DIRECTORY)
        offset = log.end_offset
        append_batches(log, encoded(VALUE, base_offset=offset, epoch=log.epoch))
        log.flush()
    except RaftlogError:
        return
    (batch,) = read(disk, offset)
    assert [one.value for one in batch.records()] == [VALUE]


def test_mutated_directories_are_read_recovered_or_refused() -> None:
    fuzz(NAME, run, MODULES, seed=1, count=60)


@pytest.mark.nightly
def test_many_mutated_directories_are_read_recovered_or_refused() -> None:
    fuzz(NAME, run, MODULES, seed=SEED, count=COUNT)
