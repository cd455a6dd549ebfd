"""A replica driven on an event loop: batches of concurrent appends, delays, and shutdown."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from raftlog.append import AppendRequest, AppendResult, Done, Failed, RequestResult
from raftlog.errors import AppendUnknownError, DiskFailedError, UnexpectedEndOffsetError
from raftlog.log.cleaning.compaction import Compaction
from raftlog.log.remote.tiering import REMOTE_LOCK_NAME
from raftlog.node.driver import Driver
from raftlog.node.durations import SHORT_SYNC_S_MAX, SyncDurations
from raftlog.node.replica import Outgoing
from raftlog.quorum.roles import Leader
from raftlog.records.batch import RecordBatch, read_batch
from raftlog.storage.local import WritableLocalStorage
from raftlog.storage.objects import ObjectStore, StorageObjects
from raftlog.wire import (
    RequestHeader,
    encode_request,
    encode_request_header,
    frame,
    request_api_key,
)
from tests.log.remote.stored_backups import surroundings
from tests.node.listeners.test_listener_contract import Recorder
from tests.support.served_node import PATIENCE_S, appended, served_node


def with_driver(home: Path, check: Callable[[Driver], Awaitable[None]], *, extra: str = "") -> None:
    """Run a check against the driver of a leader. ``extra``: additional configuration."""

    async def run() -> None:
        async with served_node(home, extra) as served, asyncio.timeout(PATIENCE_S):
            await check(served.node.driver)

    asyncio.run(run())


def append_of(value: bytes, *, base: int | None = None) -> AppendRequest:
    return AppendRequest(records=(value,), required_base_offset=base, deadline_ms=1e12)


def batch_at(driver: Driver, offset: int) -> RecordBatch:
    batch = read_batch(driver.raft_node.replica.log.read_bytes(offset, 0), 0)
    assert isinstance(batch, RecordBatch)
    return batch


def test_concurrent_appends_share_a_batch_and_keep_their_order(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        start = driver.raft_node.replica.log.end_offset
        waiting = [appended(driver.raft_node, append_of(b"%d" % number)) for number in range(5)]
        answers = await asyncio.gather(*waiting)
        assert [answer.value.base_offset for answer in answers if isinstance(answer, Done)] == [
            start + number for number in range(5)
        ]
        assert batch_at(driver, start).record_count == 5

    with_driver(tmp_path, check)


def test_appends_are_delayed_by_the_linger_of_the_log(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        start = driver.raft_node.replica.log.end_offset
        waiting = []
        for value in (b"a", b"b", bytes(700), bytes(700)):  # the last append fills the batch
            assert driver.raft_node.replica.log.end_offset == start
            waiting.append(appended(driver.raft_node, append_of(value)))
            for _ in range(20):
                await asyncio.sleep(0)
        answers = await asyncio.gather(*waiting)
        assert [answer.value.base_offset for answer in answers if isinstance(answer, Done)] == [
            start + number for number in range(4)
        ]
        assert batch_at(driver, start).record_count == 3

    extra = "[log]\nlinger_ms = 86400000\nbatch_bytes_max = 1024\n"
    with_driver(tmp_path, check, extra=extra)


def test_an_append_without_records_ends_lingering(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        epoch = driver.raft_node.replica.core.epoch
        waiting = appended(driver.raft_node, append_of(b"a"))
        await asyncio.sleep(0)
        asked = await appended(
            driver.raft_node, AppendRequest(records=(), epoch=epoch, deadline_ms=1e12)
        )
        assert isinstance(asked, Done)
        assert isinstance(await waiting, Done)

    with_driver(tmp_path, check, extra="[log]\nlinger_ms = 86400000\n")


def test_lingering_ends_at_its_deadline(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        assert isinstance(await appended(driver.raft_node, append_of(b"a")), Done)

    with_driver(tmp_path, check, extra="[log]\nlinger_ms = 1\n")


def test_of_concurrent_rivals_the_first_wins(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        end = driver.raft_node.replica.log.end_offset
        won, lost = await asyncio.gather(
            appended(driver.raft_node, append_of(b"mine", base=end)),
            appended(driver.raft_node, append_of(b"no", base=end)),
        )
        assert isinstance(won, Done)
        assert isinstance(won.value, AppendResult)
        assert won.value.base_offset == end
        assert isinstance(lost, Failed)
        assert isinstance(lost.error, UnexpectedEndOffsetError)
        assert lost.error.next_available_offset == end + 1

    with_driver(tmp_path, check)


def test_appends_pending_when_the_node_stops_have_an_unknown_outcome(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        waiting = appended(driver.raft_node, append_of(b"late"))
        await driver.close()
        answer = await waiting
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, AppendUnknownError)
        after = await appended(driver.raft_node, append_of(b"later"))
        assert isinstance(after, Failed)

    with_driver(tmp_path, check)


def test_a_delayed_request_ends_with_records_its_deadline_or_the_node(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        log = driver.raft_node.replica.log
        end = log.end_offset
        news = asyncio.ensure_future(
            driver.raft_node.wait_until(lambda: log.end_offset > end, timeout_ms=20_000)
        )
        await asyncio.sleep(0)
        appended(driver.raft_node, append_of(b"news"))
        assert await news
        assert not await driver.raft_node.wait_until(lambda: False, timeout_ms=5)
        forever = asyncio.ensure_future(
            driver.raft_node.wait_until(lambda: False, timeout_ms=20_000)
        )
        await asyncio.sleep(0)
        await driver.close()
        assert not await forever

    with_driver(tmp_path, check)


def test_a_delayed_request_whose_check_fails_affects_no_other(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        is_broken = False

        def look() -> bool:
            if is_broken:
                raise ValueError("a bug")
            return False

        waiting = asyncio.ensure_future(driver.raft_node.wait_until(look, timeout_ms=20_000))
        await asyncio.sleep(0)
        is_broken = True
        assert isinstance(await appended(driver.raft_node, append_of(b"news")), Done)
        with pytest.raises(ValueError, match="a bug"):
            await waiting

    with_driver(tmp_path, check)


def test_a_bug_in_a_step_of_a_listener_stops_the_replica(tmp_path: Path) -> None:
    class Failing(Recorder):
        def handle_commit(self, batches: Sequence[RecordBatch]) -> Iterator[None]:
            yield
            raise AssertionError("a bug")

    async def check(driver: Driver) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        driver.raft_node.register(Failing())
        with pytest.raises(AssertionError, match="a bug"):
            await asyncio.shield(driver.ended)
        assert driver.raft_node.is_over, "a part of its call is done"

    with_driver(tmp_path, check)


def test_a_failed_step_stops_the_replica(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        def wrong(now_ms: int, time_ms: int) -> list[Outgoing]:
            raise AssertionError("a bug")

        waiting = appended(driver.raft_node, append_of(b"late"))
        with pytest.raises(AssertionError, match="a bug"):
            driver.raft_node.act(wrong)
        assert driver.raft_node.is_over, "the interrupted step is half done"
        assert isinstance(await waiting, Failed)
        with pytest.raises(AssertionError, match="a bug"):
            driver.ended.result()

    with_driver(tmp_path, check)


def test_a_bug_in_a_compaction_stops_the_replica_even_if_its_files_cannot_be_deleted(
    tmp_path: Path,
) -> None:
    class Broken(Compaction):
        def __init__(self) -> None:
            """Have no segments."""

        def run(self, *_: object) -> None:
            raise AssertionError("a bug")

        def close(self) -> None:
            raise DiskFailedError(path="0.log.cleaned", reason="the disk fails")

    async def check(driver: Driver) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        driver.run_compaction(Broken())
        with pytest.raises(AssertionError, match="a bug"):
            await asyncio.shield(driver.ended)
        assert driver.raft_node.is_over, "it would not compact its log any more"

    with_driver(tmp_path, check)


def test_a_driver_sets_one_timer_for_all_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(driver: Driver) -> None:
        loop, set_count = asyncio.get_running_loop(), 0
        call_later = loop.call_later

        def counted(delay_s: float, call: Any, *arguments: Any, **context: Any) -> Any:
            nonlocal set_count
            set_count += call == driver._on_time
            return call_later(delay_s, call, *arguments, **context)

        monkeypatch.setattr(loop, "call_later", counted)
        for timeout_ms in range(60_000, 60_050):
            results = asyncio.Queue[RequestResult]()
            driver.raft_node.append(append_of(b"a"), results.put_nowait, timeout_ms=timeout_ms)
            assert isinstance(await results.get(), Done)
        assert set_count <= 1
        assert not await driver.raft_node.wait_until(lambda: False, timeout_ms=5)
        assert set_count >= 1, "an earlier deadline"

    with_driver(tmp_path, check)


# --- syncs ----------------------------------------------------------------------------------------


def test_syncs_run_on_the_event_loop_while_most_of_the_last_ones_were_short() -> None:
    durations, short_s, long_s = SyncDurations(), SHORT_SYNC_S_MAX, 10 * SHORT_SYNC_S_MAX
    for _ in range(20):
        for elapsed_s in (short_s, short_s, long_s):
            durations.add(elapsed_s)
            assert durations.are_short, "a third of the syncs were long"
    for _ in range(20):
        durations.add(long_s)
    assert not durations.are_short
    durations.add(short_s)
    assert not durations.are_short, "one sync of a slow disk was short"
    for _ in range(20):
        durations.add(short_s)
    assert durations.are_short


def synced_threads(monkeypatch: pytest.MonkeyPatch, when_synced: Callable[[], None]) -> list[int]:
    """Return the list of the threads of all further syncs; call ``when_synced`` at the begin of
    each."""
    found: list[int] = []
    fdatasync = os.fdatasync

    def note(descriptor: int) -> None:
        found.append(threading.get_ident())
        when_synced()
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", note)
    return found


def test_long_syncs_run_in_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(driver: Driver) -> None:
        threads = synced_threads(monkeypatch, lambda: None)
        for elapsed_s, is_on_loop in ((1.0, False), (0.0, True), (1.0, False)):
            for _ in range(20):
                driver.sync_durations.add(elapsed_s)
            threads.clear()
            assert isinstance(await appended(driver.raft_node, append_of(b"a")), Done)
            assert threads, "the append was synced"
            assert all((one == threading.get_ident()) is is_on_loop for one in threads)

    with_driver(tmp_path, check)


def test_followers_have_new_records_before_the_leader_syncs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with served_node(tmp_path) as served, asyncio.timeout(PATIENCE_S):
            raft_node, identity = served.node.raft_node, served.node.log_identity
            role = raft_node.replica.core.role
            assert isinstance(role, Leader)
            fetch = served.fetch_at_the_end(20_000)
            header = RequestHeader(
                api_key=request_api_key(fetch), api_version=17, correlation_id=1, client_id="test"
            )
            with socket.create_connection(("127.0.0.1", served.port)) as follower:
                body = encode_request(fetch, 17, identity)
                follower.sendall(frame(encode_request_header(header), body))
                while not role.delayed_fetches:
                    await asyncio.sleep(0)
                received: list[bytes] = []

                def receive() -> None:
                    if not received:
                        received.append(follower.recv(2**16, socket.MSG_DONTWAIT))

                threads = synced_threads(monkeypatch, receive)
                assert isinstance(await appended(raft_node, append_of(b"the value")), Done)
                assert threads == [threading.get_ident()]
                assert b"the value" in received[0], "sent before the sync"

    asyncio.run(run())


def test_a_failed_sync_on_the_event_loop_stops_the_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk fails")

    async def check(driver: Driver) -> None:
        monkeypatch.setattr(os, "fdatasync", refuse)
        answer = await appended(driver.raft_node, append_of(b"late"))
        assert isinstance(answer, Failed)
        assert isinstance(answer.error, AppendUnknownError)
        assert isinstance(await asyncio.shield(driver.ended), DiskFailedError)
        monkeypatch.undo()

    with_driver(tmp_path, check)


def test_a_node_that_stops_completes_its_sync(tmp_path: Path) -> None:
    async def check(driver: Driver) -> None:
        log = driver.raft_node.replica.log
        appended(driver.raft_node, append_of(b"late"))
        driver.raft_node.submit()
        assert log.synced_end_offset < log.end_offset
        await driver.close()
        assert log.synced_end_offset == log.end_offset

    with_driver(tmp_path, check)


class SilentStore:
    """Object store below a directory whose opening does not return until ``answers`` is set."""

    def __init__(self, path: Path) -> None:
        self.path = path / "remote"
        self.extra = f'[log]\nremote_storage_enable = true\nremote_storage_uri = "{self.path}"\n'
        self.has_begun, self.answers = threading.Event(), threading.Event()
        self._threads = set(threading.enumerate())  # those of earlier tests do not end

    def open(self, _: str) -> ObjectStore:
        self.has_begun.set()
        assert self.answers.wait(60)
        return StorageObjects(WritableLocalStorage(), str(self.path))

    def answer(self) -> None:
        """Answer, and wait for the threads that were started since."""
        self.answers.set()
        for thread in threading.enumerate():
            if thread not in self._threads and thread.name.startswith("raftlog-remote"):
                thread.join(PATIENCE_S)


def is_locked(path: str) -> bool:
    lock = WritableLocalStorage().try_lock(path)
    if lock is not None:
        lock.release()
    return lock is None


def remote_run(driver: Driver, store: SilentStore) -> str:
    """Begin a run of remote storage; return the path of its lock."""
    log = driver.raft_node.replica.log
    run = log.begin_remote_run(store.open, surroundings(1), cache={})
    assert run is not None
    driver.run_remote(run)
    return f"{log.path}/{REMOTE_LOCK_NAME}"


def test_a_node_ends_while_its_object_store_does_not_answer(tmp_path: Path) -> None:
    store = SilentStore(tmp_path)
    locks: list[str] = []

    async def check(driver: Driver) -> None:
        locks.append(remote_run(driver, store))
        assert store.has_begun.wait(PATIENCE_S)

    with_driver(tmp_path, check, extra=store.extra)
    assert is_locked(locks[0]), "the run has not ended"
    store.answer()
    assert not is_locked(locks[0])
    assert not store.path.exists(), "nothing is written after the end"


def test_a_run_of_remote_storage_that_has_not_begun_at_the_end_of_a_node_releases_its_lock(
    tmp_path: Path,
) -> None:
    """It waits for the thread, which an earlier run has."""
    store = SilentStore(tmp_path)
    locks: list[str] = []

    async def check(driver: Driver) -> None:
        locks.append(remote_run(driver, store))
        assert store.has_begun.wait(PATIENCE_S)
        os.unlink(locks[0])  # so the next run has a lock of its own
        assert remote_run(driver, store) == locks[0]
        assert is_locked(locks[0])

    with_driver(tmp_path, check, extra=store.extra)
    assert not is_locked(locks[0])
    store.answer()
