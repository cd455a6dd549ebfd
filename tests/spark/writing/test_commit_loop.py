"""Commit loop: read, decide, append at a required offset, decide again; no clock, no randomness."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import raftlog
from pyspark_raftlog import NewRecords, commit_loop
from raftlog.errors import LogNotFoundError, UnexpectedEndOffsetError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    raftlog.open(tmp_path / "ids-0").close()
    return tmp_path / "ids-0"


def values(new_records: NewRecords) -> list[bytes | None]:
    return [record.value for record in new_records.records]


def test_a_decision_is_appended_at_its_offset(path: Path) -> None:
    with raftlog.open(path) as log:
        log.append([b"a", b"b"])
        seen: list[NewRecords] = []

        def decide(new_records: NewRecords) -> list[bytes]:
            seen.append(new_records)
            return [b"c"]

        result = commit_loop(log, decide)
        assert result is not None
        assert result.base_offset == 3
        (new_records,) = seen
        assert values(new_records) == [b"a", b"b"]
        assert (new_records.start_offset, new_records.end_offset, new_records.attempt) == (0, 3, 1)


def test_no_decision_appends_nothing(path: Path) -> None:
    assert commit_loop(path, lambda new_records: None) is None
    with raftlog.open(path) as log:
        assert log.end_offset == 1


def test_after_a_conflict_only_new_records_are_passed(path: Path) -> None:
    with raftlog.open(path) as log:
        log.append([b"old"])
        seen: list[list[bytes | None]] = []
        pauses: list[float] = []

        def decide(new_records: NewRecords) -> list[bytes]:
            seen.append(values(new_records))
            if new_records.attempt < 5:
                log.append(b"rival %d" % new_records.attempt)
            return [b"mine"]

        result = commit_loop(log, decide, from_offset=1, pause=pauses.append, jitter=lambda: 0.5)
        assert result is not None
        assert seen == [[b"old"], [b"rival 1"], [b"rival 2"], [b"rival 3"], [b"rival 4"]]
        assert pauses == [0.005, 0.01, 0.02], "the first retry is immediate"


def test_it_fails_after_the_maximum_of_attempts(path: Path) -> None:
    with raftlog.open(path) as log:
        pauses: list[float] = []

        def decide(new_records: NewRecords) -> list[bytes]:
            log.append(b"rival")
            return [b"mine"]

        with pytest.raises(UnexpectedEndOffsetError):
            commit_loop(log, decide, tries_max=12, pause=pauses.append, jitter=lambda: 1.0)
        assert len(pauses) == 10
        assert max(pauses) == 1.0
        assert [record.value for record in log.read()] == [b"rival"] * 12


def test_a_path_must_hold_a_log(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError):
        commit_loop(tmp_path / "nothing-0", lambda new_records: None)


def allocate(path: Path, job: str, blocks: int, taken: list[range]) -> None:
    """Take blocks of three ids, one after the other; an id is free if no record has taken it."""
    with raftlog.open(path) as log:
        free = 0
        at = log.log_start_offset

        def decide(new_records: NewRecords) -> list[bytes]:
            nonlocal free, at
            for record in new_records.records:
                assert record.value is not None
                free = max(free, int(record.value.split(b" ")[1]))
            at = new_records.end_offset
            return [f"{job} {free + 3}".encode()]

        for _ in range(blocks):
            result = commit_loop(
                log, decide, from_offset=at, pause=lambda _: None, tries_max=10_000
            )
            assert result is not None
            taken.append(range(free, free + 3))


def test_two_jobs_allocate_ids_without_a_duplicate_or_a_gap(path: Path) -> None:
    taken: list[range] = []
    jobs = [threading.Thread(target=allocate, args=(path, f"job-{n}", 15, taken)) for n in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    ids = sorted(one for block in taken for one in block)
    assert ids == list(range(90))
