"""Replay of logs by latest key: tombstones, transactions, and states at an offset."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.internal_records import InternalLogFile

from raftlog.client import LatestByKey, LogKind, open_path


def replayed(log: InternalLogFile, end_offset: int | None = None) -> LatestByKey:
    latest = LatestByKey(str(log.path))
    end = log.next_offset if end_offset is None else end_offset
    latest.read(open_path(str(log.path), kind=LogKind.PARTITION), end)
    return latest


def state(log: InternalLogFile, end_offset: int | None = None) -> dict[bytes, bytes | None]:
    return {key: one.value for key, one in replayed(log, end_offset).records()}


def log_in(tmp_path: Path) -> InternalLogFile:
    return InternalLogFile(tmp_path / "__consumer_offsets-0")


def test_the_last_record_of_a_key_decides_and_a_tombstone_deletes_it(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"a", b"2"), (b"b", None))
    assert state(log) == {b"a": b"2"}
    assert state(log, 3) == {b"a": b"2", b"b": b"1"}
    assert state(log, 1) == {b"a": b"1"}
    log.append((b"b", b"3"))
    assert state(log) == {b"a": b"2", b"b": b"3"}


def test_records_of_a_transaction_are_state_from_its_commit_on(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"), producer_id=7)
    log.append((b"b", b"2"), producer_id=7)
    log.end(7, commit=True)
    assert state(log, 3) == {b"a": b"1"}
    assert state(log) == {b"a": b"2", b"b": b"2"}
    assert replayed(log).open_transactions() == []


def test_records_of_an_aborted_transaction_are_never_state(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((b"a", b"1"), producer_id=7)
    log.append((b"a", b"2"), producer_id=8)
    log.end(7, commit=False)
    assert state(log) == {}
    log.end(8, commit=True)
    assert state(log) == {b"a": b"2"}
    log.append((b"a", b"3"), producer_id=7)
    log.end(7, commit=False)
    assert state(log) == {b"a": b"2"}


def test_a_later_record_is_not_replaced_by_the_commit_of_an_earlier_one(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((b"a", b"old"), (b"b", b"old"), (b"c", b"old"), producer_id=7)
    log.append((b"a", b"new"), (b"b", None))
    log.end(7, commit=True)
    assert state(log) == {b"a": b"new", b"c": b"old"}


def test_tombstones_take_memory_only_while_a_transaction_is_open(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"a", None))
    assert replayed(log)._records.keys() == {b"b"}
    log.append((b"c", b"old"), producer_id=7)
    log.append((b"c", None), (b"b", None))
    latest = replayed(log)
    assert (set(latest._records), len(latest)) == ({b"b", b"c"}, 0)
    assert latest.get(b"b") is None
    log.end(7, commit=True)
    assert not replayed(log)._records


def test_a_transaction_deletes_a_key_that_was_deleted_while_it_was_open(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"b", b"2"), producer_id=7)
    log.append((b"a", None))
    log.append((b"a", None), producer_id=7)
    log.end(7, commit=True)
    latest = replayed(log)
    assert {key: one.value for key, one in latest.records()} == {b"b": b"2"}
    assert len(latest) == 1


def test_open_transactions_are_reported_with_their_start(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((b"a", b"1"))
    log.append((b"a", b"2"), (b"b", b"2"), producer_id=9, epoch=3)
    log.append((b"a", b"3"), producer_id=7)
    log.append((b"a", b"4"), producer_id=9, epoch=3)
    first, second = replayed(log).open_transactions()
    assert (first.producer_id, first.producer_epoch, first.first_offset) == (9, 3, 1)
    assert first.first_timestamp_ms == 1_001
    assert len(first.records) == 2
    assert (second.producer_id, second.first_offset) == (7, 3)
    assert state(log) == {b"a": b"1"}


def test_records_without_a_key_are_counted(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append((None, b"1"), (b"a", b"1"))
    assert replayed(log).without_key == 1
    assert state(log) == {b"a": b"1"}


def test_random_histories_equal_a_search_from_their_ends(tmp_path: Path) -> None:
    """The judge looks for the last visible record of each key, with the outcomes known."""
    for seed in range(20):
        chance = random.Random(seed)
        log = InternalLogFile(tmp_path / f"__consumer_offsets-{seed}")
        written: list[tuple[int, bytes, bytes | None, int]] = []
        ends: list[tuple[int, int, bool]] = []
        for step in range(60):
            producer_id = chance.choice((-1, -1, 1, 2))
            if chance.random() < 0.25 and producer_id > 0:
                commit = chance.random() < 0.6
                ends.append((log.next_offset, producer_id, commit))
                log.end(producer_id, commit=commit)
                continue
            key = bytes([chance.randrange(97, 100)])
            value = None if chance.random() < 0.4 else str(step).encode()
            written.append((log.next_offset, key, value, producer_id))
            log.append((key, value), producer_id=producer_id)
        for end_offset in (log.next_offset, log.next_offset // 2):
            assert state(log, end_offset) == judged(written, ends, end_offset)


def judged(
    written: list[tuple[int, bytes, bytes | None, int]],
    ends: list[tuple[int, int, bool]],
    end_offset: int,
) -> dict[bytes, bytes]:
    found: dict[bytes, bytes | None] = {}
    for offset, key, value, producer_id in reversed(written):
        if offset >= end_offset or key in found:
            continue
        outcomes = [
            commit
            for at, ended, commit in ends
            if ended == producer_id and offset < at < end_offset
        ]
        if producer_id < 0 or outcomes[:1] == [True]:
            found[key] = value
    return {key: value for key, value in found.items() if value is not None}
