"""Tables: the latest value of each key, of logs that grow, are compacted or truncated."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.batch_encoding import NewRecordBatch
from tests.support.clock import StoppedClock
from tests.support.internal_records import InternalLogFile
from tests.support.quorum_processes import eventually
from tests.support.small_logs import LogWriter

import raftlog
from raftlog.client.embedded.handle import EmbeddedLog, open_embedded
from raftlog.client.table import CHUNKS_PER_POLL, Table
from raftlog.clock import Clock
from raftlog.errors import (
    DataLossError,
    DivergedLogError,
    InvalidAppendError,
    KeyChangedError,
    LogNotFoundError,
    LogReadOnlyError,
    OffsetOutOfRangeError,
    OptionError,
    TableLagError,
    UnexpectedEndOffsetError,
)
from raftlog.limits import MIB
from raftlog.log.writing.properties import CleanupPolicy, LogConfig
from raftlog.records import NewRecord

ROUNDS_MAX = 100
COMPACTED = LogConfig(
    segment_bytes=2_000, cleanup_policy=CleanupPolicy.COMPACT, min_cleanable_dirty_ratio=0.0
)
History = dict[int, dict[bytes, tuple[int, bytes]]]
"""By end offset: offset and value of each key."""


def append_at_random(log: EmbeddedLog, chance: random.Random, count: int) -> History:
    """Append batches of puts and deletes; return the state after each record."""
    end = log.end_offset
    state: dict[bytes, tuple[int, bytes]] = {}
    history = {end: state}
    for step in range(count):
        batch: list[tuple[bytes, bytes | None]] = []
        for _ in range(chance.randrange(1, 4)):
            key = b"key %d" % chance.randrange(7)
            value = None if chance.random() < 0.25 else b"%d" % step + b"v" * chance.randrange(60)
            batch.append((key, value))
        result = log.append(batch)
        for offset, (key, value) in enumerate(batch, result.base_offset):
            state = {one: known for one, known in state.items() if one != key}
            if value is not None:
                state[key] = offset, value
            history[offset + 1] = state
    return history


def shown(table: Table | raftlog.TableState) -> dict[bytes, tuple[int | None, bytes]]:
    return {key: (table.offset(key), value) for key, value in table.items()}


@pytest.mark.parametrize("seed", range(3))
def test_a_table_has_the_last_record_of_each_key(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with open_embedded(tmp_path / "state-0") as log, log.table(follow=False) as table:
        history = append_at_random(log, chance, 60)
        assert len(table) == 0, "nothing is applied before a refresh"
        table.refresh()
        assert table.end_offset == log.end_offset
        assert shown(table) == history[log.end_offset]
        assert len(table) == len(history[log.end_offset])
        assert table.offset(b"no key") is None
        assert b"no key" not in table
        assert table.get(b"no key") is None
        for end_offset, expected in history.items():
            state = table.as_of(end_offset)
            assert (shown(state), state.end_offset) == (expected, end_offset)


@pytest.mark.parametrize("seed", range(3))
def test_a_compaction_changes_no_table_and_ends_the_states_before_it(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    with (
        open_embedded(tmp_path / "state-0", config=COMPACTED) as log,
        log.table(follow=False) as table,
    ):
        first = append_at_random(log, chance, 80)
        assert all(shown(table.as_of(end)) == state for end, state in first.items())
        table.refresh()
        assert log.clean()
        table.refresh()
        assert shown(table) == first[log.end_offset]
        with log.table(follow=False) as later:
            assert shown(later) == first[log.end_offset]
        refused = 0
        for end_offset, expected in first.items():
            try:
                state = table.as_of(end_offset)
            except DataLossError:
                refused += 1
            else:
                assert shown(state) == expected
        assert 0 < refused < len(first)
        with pytest.raises(DataLossError, match="OFFSETS_COMPACTED"):
            table.as_of(min(first))


def test_a_table_drops_keys_with_tombstones_that_it_has_not_read(tmp_path: Path) -> None:
    """An owner whose table has not read for longer than ``delete.retention.ms`` loses its lock."""
    clock = StoppedClock()
    with (
        open_embedded(tmp_path / "state-0", config=COMPACTED, clock=clock.as_clock()) as log,
        log.table(follow=False) as owner,
        log.table(follow=False) as bounded,
    ):
        token = owner.append([(b"lock", b"1")], unchanged={b"lock": None}).base_offset
        log.append([(b"a", b"1"), (b"b", bytes(2_000))])
        owner.refresh()
        bounded.refresh()
        log.append([(b"lock", None)])
        for at in range(ROUNDS_MAX):  # a compaction is left out while that of an append runs
            log.append([(b"a", bytes(2_000)), (b"c", b"%d" % at)])
            log.clean()
            clock.sleep_ms(COMPACTED.delete_retention_ms)
            if b"lock" not in [record.key for record in log.read()]:
                break
        assert b"lock" not in [record.key for record in log.read()]
        assert b"lock" in owner, "the state has not changed yet"
        with pytest.raises(KeyChangedError):
            owner.append([(b"job", b"1")], unchanged={b"lock": token})
        while bounded.poll():
            pass
        with log.table(follow=False) as loaded:
            assert shown(owner) == shown(bounded) == shown(loaded)
            assert owner.end_offset == bounded.end_offset == loaded.end_offset == log.end_offset
        state = owner.state()
        log.append([(b"c", b"7")])
        owner.refresh()
        assert shown(owner) == {**shown(state), b"c": (state.end_offset, b"7")}


def test_states_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    with open_embedded(tmp_path / "state-0") as log, log.table(follow=False) as table:
        log.append([(b"a", b"1")])
        with pytest.raises(OffsetOutOfRangeError):
            table.as_of(log.end_offset + 1)
        with pytest.raises(OptionError, match="offset"):
            table.as_of(-1)
        log.snapshot(delete_before=True)
        with pytest.raises(DataLossError, match="OFFSETS_DELETED"):
            table.as_of(0)
        assert table.as_of(log.end_offset) == {}


def test_a_state_is_not_changed_by_later_records(tmp_path: Path) -> None:
    with open_embedded(tmp_path / "state-0") as log, log.table(follow=False) as table:
        log.append([(b"a", b"1"), (b"b", b"1")])
        table.refresh()
        state, items, keys = table.state(), table.items(), iter(table)
        log.append([(b"a", None), (b"c", b"1")])
        table.refresh()
        assert state == dict(items) == {b"a": b"1", b"b": b"1"}
        assert sorted(keys) == [b"a", b"b"]
        assert table == {b"b": b"1", b"c": b"1"}


def test_a_poll_reads_a_bounded_number_of_chunks(tmp_path: Path) -> None:
    """A batch that is larger than a chunk is one."""
    with open_embedded(tmp_path / "state-0") as log, log.table(follow=False) as table:
        value = bytes(1_100_000)
        for at in range(CHUNKS_PER_POLL + 5):
            log.append([(b"key %d" % at, value)])
        assert table.poll()
        assert 0 < len(table) <= CHUNKS_PER_POLL
        assert table.end_offset < log.end_offset
        table.refresh()
        assert len(table) == CHUNKS_PER_POLL + 5
        assert not table.poll()


def test_a_table_follows_appends_of_other_handles(tmp_path: Path) -> None:
    path = tmp_path / "state-0"
    with open_embedded(path) as log, raftlog.table(path) as table:
        for at in range(5):
            result = log.append([(b"a", b"%d" % at)])
            table.wait_for(result.last_offset)
            assert (table[b"a"], table.offset(b"a")) == (b"%d" % at, result.last_offset)
        log.append([(b"b", b"1")])
        eventually(lambda: b"b" in table, "the thread applies the record")
    assert table[b"b"] == b"1", "a closed table has the state that it had"
    assert "raftlog-table" not in [one.name for one in threading.enumerate()]


def test_a_wait_for_a_record_that_is_not_appended_ends(tmp_path: Path) -> None:
    clock = StoppedClock()
    with open_embedded(tmp_path / "state-0", clock=clock.as_clock()) as log:
        table = log.table(follow=False)
        end = log.end_offset
        with pytest.raises(TableLagError) as caught:
            table.wait_for(end, timeout_ms=1_000)
        assert (caught.value.offset, caught.value.end_offset) == (end, end)
        clock.while_asleep = lambda: log.append([(b"a", b"1")])
        table.wait_for(end, timeout_ms=1_000)
        assert table == {b"a": b"1"}


def test_a_refresh_and_a_wait_end_although_the_log_grows_at_each_look(tmp_path: Path) -> None:
    path, stopped, looks = tmp_path / "state-0", StoppedClock(), 0
    with open_embedded(path) as rival:

        def wall_ms() -> int:
            nonlocal looks
            looks += 1
            assert looks < 50, "a read that never reaches the end"
            rival.append([(b"b", b"%d" % looks)])
            stopped.at_ms += 100
            return stopped.at_ms

        clock = Clock(wall_ms=wall_ms, now_ms=stopped.now_ms, pause=stopped.pause)
        with open_embedded(path, clock=clock) as log, log.table(follow=False) as table:
            table.refresh()
            assert (table[b"b"], looks) == (b"2", 2)
            with pytest.raises(TableLagError):
                table.wait_for(log.end_offset + 100, timeout_ms=1_000)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_that_ends_the_thread_is_raised_by_reads(tmp_path: Path) -> None:
    caller, stopped = threading.get_ident(), StoppedClock()

    def wall_ms() -> int:
        assert threading.get_ident() == caller, "a bug in the thread"
        return stopped.at_ms

    clock = Clock(wall_ms=wall_ms, now_ms=stopped.now_ms, pause=stopped.pause)
    with open_embedded(tmp_path / "state-0", clock=clock) as log, log.table() as table:
        assert table._follower is not None
        table._follower.join(60)
        for read in (lambda: table[b"1"], table.state, lambda: table.offset(b"1")):
            with pytest.raises(AssertionError, match="a bug in the thread"):
                read()


def test_a_table_that_is_not_closed_is_collected(tmp_path: Path) -> None:
    with open_embedded(tmp_path / "state-0") as log:
        table = log.table()
        alive, follower = weakref.ref(table), table._follower
        del table
        gc.collect()
        assert follower is not None
        follower.join(60)
        assert alive() is None
        assert not follower.is_alive()


# --- Logs of Kafka's ------------------------------------------------------------------------------


def test_records_of_a_transaction_are_in_the_table_from_its_commit_on(tmp_path: Path) -> None:
    log = InternalLogFile(tmp_path / "orders-0")
    log.append((b"a", b"1"), (b"b", b"1"))
    with raftlog.table(log.path, follow=False) as table:
        log.append((b"a", b"2"), (b"b", None), (b"c", b"2"), producer_id=7)
        log.append((b"a", b"3"), producer_id=8)
        table.refresh()
        assert table == {b"a": b"1", b"b": b"1"}
        log.end(8, commit=False)
        log.append((None, b"without a key"))
        table.refresh()
        assert table == {b"a": b"1", b"b": b"1"}
        assert table.without_key == 1
        log.end(7, commit=True)
        table.refresh()
        assert shown(table) == {b"a": (2, b"2"), b"c": (4, b"2")}
        assert table.as_of(log.next_offset - 1) == {b"a": b"1", b"b": b"1"}
        with pytest.raises(LogReadOnlyError):
            table.append([(b"a", b"4")], unchanged={b"a": 2})


def test_a_truncated_log_ends_the_table(tmp_path: Path) -> None:
    path, other = tmp_path / "orders-0", tmp_path / "other-0"
    write(path, b"1", b"2")
    write(other, b"1").append(batch=batch_of(b"3", b"4"), epoch=2)
    with raftlog.table(path) as table:
        assert table == {b"1": b"1", b"2": b"2"}
        for file in other.iterdir():
            file.replace(path / file.name)
        with pytest.raises(DivergedLogError):
            eventually(lambda: b"3" in table, "the thread reads the log")
        for read in (lambda: table[b"1"], lambda: list(table), lambda: table.offset(b"1")):
            with pytest.raises(DivergedLogError):
                read()


def batch_of(*keys: bytes) -> NewRecordBatch:
    return NewRecordBatch(records=tuple(NewRecord(key, key) for key in keys), base_timestamp_ms=1)


def write(path: Path, *keys: bytes) -> LogWriter:
    writer = LogWriter(path)
    writer.append(batch=batch_of(*keys))
    return writer


def test_logs_without_keys_and_paths_without_a_log_are_refused(tmp_path: Path) -> None:
    log = raftlog.open(tmp_path / "kraft-0", values="kraft")
    with log, pytest.raises(OptionError, match="no keys"):
        log.table()
    with pytest.raises(OptionError, match="no keys"):
        raftlog.table(tmp_path / "kraft-0")
    with pytest.raises(LogNotFoundError):
        raftlog.table(tmp_path / "none-0")


# --- Appends with a condition ---------------------------------------------------------------------


def test_an_append_requires_the_last_offsets_of_its_keys(tmp_path: Path) -> None:
    with open_embedded(tmp_path / "state-0") as log, log.table(follow=False) as table:
        first = table.append([(b"a", b"1"), (b"b", b"1")], unchanged={b"a": None, b"b": None})
        with pytest.raises(KeyChangedError) as caught:
            table.append([(b"a", b"2")], unchanged={b"a": None})
        assert (caught.value.expected_offset, caught.value.offset) == (None, first.base_offset)
        log.append([(b"b", b"2")])
        table.append([(b"a", b"2")], unchanged={b"a": first.base_offset})
        with pytest.raises(KeyChangedError):
            table.append([(b"a", b"3")], unchanged={b"a": log.end_offset - 1, b"b": 2})
        table.append([(b"a", None)], unchanged={b"a": log.end_offset - 1})
        table.append([(b"a", b"4")], unchanged={b"a": None})
        table.refresh()
        assert table == {b"a": b"4", b"b": b"2"}


def test_of_rivals_for_one_key_one_succeeds_and_others_are_no_rivals(tmp_path: Path) -> None:
    """Threads with handles of their own count in a shared key; each also has a key of its own."""
    path = tmp_path / "state-0"
    open_embedded(path).close()
    writers, rounds = 3, 8

    def count(name: bytes) -> int:
        conflicts = 0
        with raftlog.table(path, follow=False) as table:
            for at in range(rounds):
                table.refresh()
                own = table.offset(name)
                table.append([(name, b"%d" % at)], unchanged={name: own}, timeout_ms=60_000)
                while True:
                    table.refresh()
                    state = table.state()
                    total = int(state.get(b"total", b"0")) + 1
                    unchanged = {b"total": state.offset(b"total")}
                    try:
                        table.append(
                            [(b"total", b"%d" % total)], unchanged=unchanged, timeout_ms=60_000
                        )
                        break
                    except KeyChangedError:
                        conflicts += 1
        return conflicts

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(count, [b"writer %d" % at for at in range(writers)]))
    with raftlog.table(path) as table:
        assert table[b"total"] == b"%d" % (writers * rounds)
        assert [table[b"writer %d" % at] for at in range(writers)] == [b"7"] * writers


@pytest.mark.parametrize("byte_count", [1, 2 * MIB])
def test_records_in_between_matter_only_if_they_are_too_much_to_read(
    tmp_path: Path, byte_count: int
) -> None:
    """A rival appends another key whenever the table looks at its clock."""
    path = tmp_path / "state-0"
    caller, stopped, rivals = threading.get_ident(), StoppedClock(), 0
    with open_embedded(path) as rival:

        def now_ms() -> int:
            nonlocal rivals
            if threading.get_ident() == caller:
                rival.append([(b"b", bytes(byte_count))])
                stopped.at_ms += 100
                rivals += 1
            return stopped.at_ms

        clock = Clock(wall_ms=stopped.now_ms, now_ms=now_ms, pause=stopped.pause)
        with open_embedded(path, clock=clock) as log, log.table(follow=False) as table:
            if byte_count == 1:
                done = table.append([(b"a", b"1")], unchanged={b"a": None}, timeout_ms=1_000)
                unchanged = {b"a": done.base_offset}
                table.append([(b"a", b"1")], unchanged=unchanged, timeout_ms=1_000)
            else:
                with pytest.raises(UnexpectedEndOffsetError):
                    table.append([(b"a", b"1")], unchanged={b"a": None}, timeout_ms=1_000)
                assert rivals > 3
            with pytest.raises(KeyChangedError):
                table.append([(b"a", b"1")], unchanged={b"b": 1}, timeout_ms=1_000)
            table.refresh()
            assert (b"a" in table) == (byte_count == 1)


def test_a_key_that_was_created_and_deleted_meanwhile_is_as_expected(tmp_path: Path) -> None:
    path = tmp_path / "state-0"
    with open_embedded(path) as log, log.table(follow=False) as table:
        log.append([(b"a", b"1"), (b"a", None)])
        with pytest.raises(KeyChangedError) as caught:
            log.append([(b"a", b"2")], unchanged={b"a": None}, unchanged_since=table.end_offset)
        assert caught.value.offset is None
        done = table.append([(b"a", b"2")], unchanged={b"a": None})
        log.append([(b"b", b"1")], unchanged={b"a": done.base_offset})
        with pytest.raises(KeyChangedError):
            log.append([(b"b", b"1")], unchanged={b"a": done.base_offset - 1})


@pytest.mark.parametrize(
    ("unchanged", "since", "reason"),
    [
        ({}, None, "1 to 1000 keys"),
        ({b"%d" % at: 1 for at in range(1_001)}, None, "1 to 1000 keys"),
        ([b"a"], None, "a mapping"),
        (None, 3, "a mapping"),
        ({"a": 1}, None, "must be bytes"),
        ({b"a": -1}, None, "from 0"),
        ({b"a": True}, None, "whole number"),
        ({b"a": None}, None, "required for a key without an offset"),
        ({b"a": 1}, -1, "from 0"),
    ],
)
def test_invalid_conditions_are_refused(
    tmp_path: Path, unchanged: Any, since: int | None, reason: str
) -> None:
    with open_embedded(tmp_path / "state-0") as log:
        before = log.end_offset
        with pytest.raises(OptionError, match=reason):
            log.append([(b"a", b"1")], unchanged=unchanged, unchanged_since=since)
        with pytest.raises(InvalidAppendError, match="at least one record"):
            log.append([], unchanged={b"a": 1})
        assert log.end_offset == before
    kraft = raftlog.open(tmp_path / "kraft-0", values="kraft")
    with kraft, pytest.raises(InvalidAppendError, match="no keys"):
        kraft.append([b"\x01\x02\x00"], unchanged={b"a": 1})
