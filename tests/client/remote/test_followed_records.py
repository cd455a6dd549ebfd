"""``read(follow=True)``: each record once, of directories that change and of quorums."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.client.remote.conftest import LogOpener, Quorums
from tests.support.clock import StoppedClock
from tests.support.quorum_processes import QuorumProcesses
from tests.support.served_node import appended, served_node
from tests.support.small_logs import TIME_MS, FailingLog, LogWriter, copy_log

import raftlog
from raftlog.append import AppendRequest, Done
from raftlog.client import Isolation, LogReader, open_path
from raftlog.client.followed_records import FollowedRecords
from raftlog.client.log_records import LogRecords
from raftlog.client.remote import commit_waiter
from raftlog.clock import Clock
from raftlog.errors import (
    DataLossError,
    DivergedLogError,
    OffsetOutOfRangeError,
    OptionError,
)
from raftlog.records.record import Record

NODE = Path(__file__).parents[2] / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
LOG = "__cluster_metadata-0"


def followed(
    log: LogReader, steps: Iterator[object], *, start: int = 0, end: int | None = None
) -> Iterator[Record]:
    """Follow a log; each wait takes a step, and after the last one the log is closed."""
    return iter(records_of(log, steps, start=start, end=end))


def records_of(
    log: LogReader, steps: Iterator[object], *, start: int = 0, end: int | None = None
) -> FollowedRecords:
    """Return the records of a log that is followed as by ``followed``."""
    closed = threading.Event()

    def step() -> None:
        if next(steps, closed) is closed:
            closed.set()

    clock = StoppedClock(while_asleep=step).as_clock()
    isolation = Isolation.READ_COMMITTED
    return FollowedRecords(lambda: log, start, end, isolation, clock, closed.is_set)


def grow(target: Path, seed: int, end_offset: int = 3131) -> Iterator[None]:
    """Let a copy of the log grow by parts of random size, through its segments and snapshots."""
    chance, at = random.Random(seed), 0
    while at < end_offset:
        at = min(at + chance.choice((1, 7, 60, 400)), end_offset)
        copy_log(NODE / LOG, target, end_offset=at)
        yield None
    yield None


def all_records(path: Path, start: int = 0) -> list[Record]:
    log = open_path(str(path))
    return list(LogRecords(lambda: log, start, log.log_end_offset, Isolation.READ_COMMITTED))


@pytest.mark.parametrize("seed", range(3))
def test_records_are_returned_once_while_segments_roll(tmp_path: Path, seed: int) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=1)
    found = followed(open_path(str(tmp_path)), grow(tmp_path / LOG, seed))
    assert list(found) == all_records(NODE)


@pytest.mark.parametrize(("start", "end"), [(100, 2000), (3131, None), (0, 0), (5, 3131)])
def test_a_range_ends_at_its_end(tmp_path: Path, start: int, end: int | None) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=1)
    steps = grow(tmp_path / LOG, 7)
    found = list(followed(open_path(str(tmp_path)), steps, start=start, end=end))
    expected = [one for one in all_records(NODE, start) if end is None or one.offset < end]
    assert found == expected
    assert (next(steps, steps) is steps) == (end is None)


@pytest.mark.parametrize("seed", range(3))
def test_arrow_batches_have_the_same_records(tmp_path: Path, seed: int) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=1)
    log: Any = FailingLog(open_path(str(tmp_path)))
    steps = chain(grow(tmp_path / LOG, seed), repeat(None, 3_000))  # to read again after failures
    found = list(records_of(log, steps, start=100, end=3000).to_batches())
    assert all(batch.num_rows for batch in found)
    assert len(found) > 5, "a batch is not held back"
    whole = LogRecords(lambda: open_path(str(tmp_path)), 100, 3000, Isolation.READ_COMMITTED)
    assert pa.Table.from_batches(found) == whole.to_arrow()


def test_records_that_were_returned_may_be_deleted(tmp_path: Path) -> None:
    target = tmp_path / LOG
    copy_log(NODE / LOG, target, end_offset=2000)

    def steps() -> Iterator[None]:
        yield None
        shutil.rmtree(target)
        copy_log(NODE / LOG, target, end_offset=3131, start_offset=1762)
        yield None

    assert list(followed(open_path(str(tmp_path)), steps())) == all_records(NODE)


def test_records_that_were_deleted_before_they_were_read_are_an_error(tmp_path: Path) -> None:
    target = tmp_path / LOG
    copy_log(NODE / LOG, target, end_offset=600)
    first = all_records(tmp_path)

    def steps() -> Iterator[None]:
        yield None
        shutil.rmtree(target)
        copy_log(NODE / LOG, target, end_offset=3131, start_offset=1762)
        yield None

    found = followed(open_path(str(tmp_path)), steps())
    assert [next(found) for _ in first] == first
    with pytest.raises(DataLossError):
        next(found)


def delete_oldest(target: Path) -> int:
    """Replace a copy of the log by one that begins later, as after retention; return its start."""
    shutil.rmtree(target)
    copy_log(NODE / LOG, target, end_offset=3131, start_offset=1762)
    return open_path(str(target)).log_start_offset


@pytest.mark.parametrize("is_open", [False, True], ids=["before it", "at its first fetch"])
def test_a_read_from_the_start_begins_at_the_present_start(tmp_path: Path, is_open: bool) -> None:
    """``read()`` has no offset that could be missing; one that was named is an error."""
    target, committed = tmp_path / LOG, Isolation.READ_COMMITTED
    copy_log(NODE / LOG, target, end_offset=2000)
    opened = [open_path(str(tmp_path)) for _ in range(3)]

    def open_log() -> LogReader:
        return opened.pop() if is_open else open_path(str(tmp_path))

    found = LogRecords(open_log, 0, 2000, committed, is_from_start=True)
    start = delete_oldest(target)
    expected = [one for one in all_records(tmp_path, start) if one.offset < 2000]
    assert len(expected) > 100
    assert list(found) == expected
    assert [one for chunk in found.chunks() for one in chunk] == expected
    assert found.to_arrow()["offset"].to_pylist() == [one.offset for one in expected]
    with pytest.raises(DataLossError):
        list(LogRecords(lambda: open_path(str(tmp_path)), 0, 2000, committed))


@pytest.mark.parametrize("is_from_start", [False, True])
def test_a_read_does_not_keep_what_it_has_returned(tmp_path: Path, is_from_start: bool) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=2000)
    found = LogRecords(
        lambda: open_path(str(tmp_path)),
        0,
        2000,
        Isolation.READ_COMMITTED,
        is_from_start=is_from_start,
    )
    chunks = found.chunks()
    first = next(chunks)
    next(chunks)
    assert gc.get_referrers(first) == []


def test_a_log_is_followed_from_its_present_start(tmp_path: Path) -> None:
    target = tmp_path / LOG
    copy_log(NODE / LOG, target, end_offset=2000)
    log, closed = open_path(str(tmp_path)), threading.Event()
    clock = StoppedClock(while_asleep=closed.set).as_clock()
    committed = Isolation.READ_COMMITTED
    found = FollowedRecords(
        lambda: log, 0, None, committed, clock, closed.is_set, is_from_start=True
    )
    start = delete_oldest(target)
    assert list(found) == all_records(tmp_path, start)


def test_records_that_are_deleted_while_a_log_is_followed_from_its_start_are_an_error(
    tmp_path: Path,
) -> None:
    target = tmp_path / LOG
    copy_log(NODE / LOG, target, end_offset=600)
    log, closed = open_path(str(tmp_path)), threading.Event()
    clock = StoppedClock(while_asleep=lambda: delete_oldest(target)).as_clock()
    committed = Isolation.READ_COMMITTED
    found = iter(
        FollowedRecords(lambda: log, 0, None, committed, clock, closed.is_set, is_from_start=True)
    )
    first = all_records(tmp_path)
    assert [next(found) for _ in first] == first
    with pytest.raises(DataLossError):
        next(found)


def test_a_returned_record_that_is_truncated_is_an_error(tmp_path: Path) -> None:
    target = tmp_path / LOG
    LogWriter(target).append(b"0", b"1", timestamp_ms=TIME_MS)

    def steps() -> Iterator[None]:
        yield None
        shutil.rmtree(target)
        writer = LogWriter(target)
        writer.append(b"0", timestamp_ms=TIME_MS)
        writer.append(b"2", b"3", epoch=2, timestamp_ms=TIME_MS)
        yield None

    found = followed(open_path(str(tmp_path)), steps())
    assert [next(found).value for _ in range(2)] == [b"0", b"1"]
    with pytest.raises(DivergedLogError):
        next(found)


def test_a_read_without_a_leader_continues_where_it_was(tmp_path: Path) -> None:
    copy_log(NODE / LOG, tmp_path / LOG, end_offset=1)
    log: Any = FailingLog(open_path(str(tmp_path)))

    def steps() -> Iterator[None]:
        yield from grow(tmp_path / LOG, 5)
        for _ in range(3_000):  # each batch of the last range fails once
            yield None

    assert list(followed(log, steps())) == all_records(NODE)


# --- handles --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_kinds_of_logs_are_followed_until_they_are_closed(opener: LogOpener) -> None:
    with opener.open() as log:
        start = log.end_offset
        found: list[bytes | None] = []
        has_ten, threads = threading.Event(), []

        def follow() -> None:
            for record in log.read(start, follow=True):
                found.append(record.value)
                if len(found) == 10:
                    has_ten.set()

        threads = [threading.Thread(target=follow)]
        threads[0].start()
        for number in range(10):
            log.append(b"%d" % number)
        assert has_ten.wait(60)
    threads[0].join(60)
    assert not threads[0].is_alive(), "it ends when the log is closed"
    assert found == [b"%d" % number for number in range(10)]


@pytest.mark.slow
def test_a_log_is_followed_by_an_event_loop(opener: LogOpener) -> None:
    async def read(log: LogOpener) -> list[bytes | None]:
        with log.open() as opened:
            start = opened.end_offset
            found: list[bytes | None] = []

            async def collect() -> None:
                async for record in opened.read(start, start + 6, follow=True):
                    found.append(record.value)

            follower = asyncio.create_task(collect())
            for number in range(3):
                await asyncio.to_thread(opened.append, [b"%d" % number, b"x"])
            await follower
            endless = asyncio.create_task(collect_all(opened, start))
            await asyncio.sleep(0)
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
        return found

    async def collect_all(opened: Any, start: int) -> None:
        async for _ in opened.read(start, follow=True):
            pass

    assert asyncio.run(read(opener)) == [b"0", b"x", b"1", b"x", b"2", b"x"]


@pytest.mark.slow
def test_a_quorum_pushes_new_records_while_the_same_client_appends(
    quorums: Quorums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll would raise, and an append after a delayed fetch on its connection would time out."""
    monkeypatch.setattr(commit_waiter, "WAIT_MS", 600_000)

    def pause(duration_s: float) -> None:
        raise AssertionError("it polls")

    async def collect(log: Any, start: int) -> list[Record]:
        return [record async for record in log.read(start, start + 30, follow=True)]

    clock, appended = Clock(pause=pause), threading.Semaphore()
    with raftlog.connect(quorums.of("bytes").bootstrap, clock=clock) as log:
        start = log.end_offset
        with ThreadPoolExecutor(3) as threads:
            others = [
                threads.submit(lambda: list(log.read(start, start + 30, follow=True))),
                threads.submit(lambda: asyncio.run(collect(log, start))),
            ]

            def append() -> None:
                for number in range(30):  # one after the reader has the one before
                    appended.acquire()
                    log.append(b"%d" % number)

            appends = threads.submit(append)
            found = []
            for record in log.read(start, start + 30, follow=True):
                found.append(record)
                appended.release()
            appends.result()
            assert [one.value for one in found] == [b"%d" % number for number in range(30)]
            assert [one.result() for one in others] == [found, found]


@pytest.mark.slow
def test_a_client_that_gets_no_second_connection_polls_and_seldom_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an attempt for each poll, its host would reach the node's limit for new connections."""
    monkeypatch.setattr(commit_waiter, "RECONNECT_S", 600.0)
    limit = "connections_per_address_max"

    def read(bootstrap: str) -> list[bytes | None]:
        polls = itertools.count(1)

        def pause(duration_s: float) -> None:
            if not (poll := next(polls)) % 3:
                log.append(b"%d" % poll)

        with raftlog.connect(bootstrap, clock=Clock(pause=pause)) as log:
            start = log.end_offset
            return [one.value for one in log.read(start, start + 4, follow=True)]

    async def check() -> None:
        async with served_node(tmp_path, f"[limits]\n{limit} = 1\n") as served:
            values = await asyncio.to_thread(read, f"127.0.0.1:{served.port}")
            assert values == [b"3", b"6", b"9", b"12"]
            assert served.node.server.metrics.refused_connections == {limit: 1}

    asyncio.run(check())


@pytest.mark.slow
def test_records_that_were_waited_for_are_transferred_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_waiter, "WAIT_MS", 600_000)

    def read(bootstrap: str, count: int) -> list[bytes | None]:
        with raftlog.connect(bootstrap) as log:
            start = log.end_offset
            return [one.value for one in log.read(start, start + count, follow=True)]

    async def check() -> None:
        values = [b"%d" % at * 1_000 for at in range(5)]
        async with served_node(tmp_path) as served:
            raft_node, requests = served.node.raft_node, served.node.server.metrics.requests
            reading = asyncio.create_task(
                asyncio.to_thread(read, f"127.0.0.1:{served.port}", len(values))
            )
            for value in values:
                while not raft_node.fetches.waiting_count:
                    await asyncio.sleep(0)
                request = AppendRequest(records=(value,), deadline_ms=1e12)
                assert isinstance(await appended(raft_node, request), Done)
                while raft_node.fetches.waiting_count:
                    await asyncio.sleep(0)
            assert await reading == values
            assert requests["FETCH"] == len(values)

    asyncio.run(check())


@pytest.mark.slow
def test_both_kinds_of_logs_are_followed_as_arrow_batches(opener: LogOpener) -> None:
    async def collect(log: Any, start: int) -> list[bytes]:
        followed = log.read(start, start + 4, follow=True).to_batches()
        return [value async for batch in followed for value in batch.column("value").to_pylist()]

    with opener.open() as log:
        start = log.end_offset
        log.append([b"0", b"1"])
        found = iter(log.read(start, start + 4, follow=True).to_batches())
        first = next(found)
        log.append([b"2", b"3"], commit=("app", "query", 1))
        values = pa.Table.from_batches([first, *found]).column("value").to_pylist()
        assert values == [b"0", b"1", b"2", b"3"]
        assert asyncio.run(collect(log, start)) == values
        assert first.schema == log.read(start).to_arrow().schema


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda log: log.read(log.end_offset + 1, follow=True), OffsetOutOfRangeError),
        (lambda log: log.read(0, -1, follow=True), OptionError),
        (lambda log: log.read("0", follow=True), OptionError),
    ],
)
def test_wrong_arguments_are_refused(
    opener: LogOpener, call: Callable[[Any], object], error: type[Exception]
) -> None:
    with opener.open() as log, pytest.raises(error):
        call(log)


@pytest.mark.parametrize(
    "kills", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.nightly)]
)
def test_records_are_returned_once_when_leaders_die(tmp_path: Path, kills: int) -> None:
    with (
        QuorumProcesses(tmp_path) as quorum,
        raftlog.connect(quorum.bootstrap, timeout_ms=240_000) as log,
        raftlog.connect(quorum.bootstrap, timeout_ms=240_000) as reader,
    ):
        found = iter(reader.read(follow=True))
        for turn in range(kills + 1):
            leader = quorum.node(log.leader_id)
            if turn:
                leader.kill()
            for number in range(9):
                log.append(b"%d %d" % (turn, number))
            values = [next(found).value for _ in range(9)]
            assert values == [b"%d %d" % (turn, number) for number in range(9)]
            if turn:
                leader.start()
