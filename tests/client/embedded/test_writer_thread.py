"""Writer thread of the embedded log: grouping of requests, and a result for every request."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from raftlog.append import AppendRequest, Done, Request, RequestResult, failed
from raftlog.client.embedded.writer import GROUP_BYTES_MAX, WriterThread
from raftlog.clock import Clock
from raftlog.errors import (
    AppendUnknownError,
    BufferAllocationError,
    LogClosedError,
    UnexpectedEndOffsetError,
)
from raftlog.records import NewRecord

LONG_MS = 60_000.0
CLOCK = Clock()


def request(value: bytes = b"v", wait_ms: float = LONG_MS) -> AppendRequest:
    return AppendRequest(records=(NewRecord(None, value),), deadline_ms=CLOCK.now_ms() + wait_ms)


class Groups:
    """Group committer that records groups; each is added to ``begun``, then waits for ``gate``."""

    def __init__(self) -> None:
        self.seen: list[list[Request]] = []
        self.begun = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0
        self.answer: Callable[[Request], RequestResult] = Done

    def write(
        self, group: Sequence[Request], answer: Callable[[Request, RequestResult], None]
    ) -> None:
        self.begun.release()
        assert self.gate.wait(30)
        self.seen.append(list(group))
        for one in group:
            answer(one, self.answer(one))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def groups() -> Groups:
    return Groups()


@pytest.fixture
def appender(groups: Groups) -> Iterator[WriterThread]:
    writer = WriterThread("/log", groups.write, on_close=groups.close, now_ms=CLOCK.now_ms)
    yield writer
    groups.gate.set()
    writer.close()


def appender_with_room_for(groups: Groups, *requests: AppendRequest) -> WriterThread:
    return WriterThread(
        "/log",
        groups.write,
        on_close=groups.close,
        now_ms=CLOCK.now_ms,
        waiting_bytes_max=sum(one.byte_count() for one in requests),
    )


def submitted(appender: WriterThread, *requests: AppendRequest) -> list[Future[Any]]:
    for one in requests:
        appender.submit(one)
    return [one.future for one in requests]


def test_requests_queued_during_a_group_form_the_next_group(
    groups: Groups, appender: WriterThread
) -> None:
    groups.gate.clear()
    first, *others = [request() for _ in range(10)]
    submitted(appender, first)
    assert groups.begun.acquire(timeout=30)
    futures = submitted(appender, *others)
    groups.gate.set()
    assert [future.result(30) for future in futures] == others
    assert groups.seen == [[first], others]


def test_a_group_is_bounded_so_that_other_processes_can_append(
    groups: Groups, appender: WriterThread
) -> None:
    groups.gate.clear()
    submitted(appender, request())
    assert groups.begun.acquire(timeout=30)
    large = [request(bytes(GROUP_BYTES_MAX * 2 // 3)) for _ in range(3)]
    futures = submitted(appender, *large)
    groups.gate.set()
    for future in futures:
        future.result(30)
    assert groups.seen[1:] == [[one] for one in large]


def test_lingering_ends_early_when_the_log_is_closed(groups: Groups) -> None:
    appender = WriterThread(
        "/log", groups.write, on_close=groups.close, now_ms=CLOCK.now_ms, linger_ms=LONG_MS * 60
    )
    requests = [request(), request()]
    futures = submitted(appender, *requests)
    assert groups.seen == []
    assert appender.close()
    assert [future.result(0) for future in futures] == requests
    assert groups.seen == [requests]


def test_a_refusal_is_raised_only_to_its_caller(groups: Groups, appender: WriterThread) -> None:
    error = UnexpectedEndOffsetError(required_base_offset=3, record_count=1, log_end_offset=4)
    refused, fine = request(b"refused"), request()
    groups.answer = lambda one: failed(error) if one is refused else Done(one)
    futures = submitted(appender, refused, fine)
    with pytest.raises(UnexpectedEndOffsetError) as caught:
        futures[0].result(30)
    assert caught.value is not error, "a copy, whose traceback is the caller's"
    assert futures[1].result(30) is fine


def test_a_request_cancelled_in_the_queue_is_never_written(
    groups: Groups, appender: WriterThread
) -> None:
    groups.gate.clear()
    submitted(appender, request())
    assert groups.begun.acquire(timeout=30)
    cancelled, kept = request(), request()
    futures = submitted(appender, cancelled, kept)
    assert futures[0].cancel()
    groups.gate.set()
    futures[1].result(30)
    assert groups.seen[1] == [kept]
    with pytest.raises(CancelledError):
        futures[0].result(0)


def test_a_request_cannot_be_cancelled_while_it_is_written(
    groups: Groups, appender: WriterThread
) -> None:
    groups.gate.clear()
    (future,) = submitted(appender, request())
    assert groups.begun.acquire(timeout=30)
    assert not future.cancel()


def test_the_queue_is_bounded(groups: Groups) -> None:
    appender = WriterThread(
        "/log", groups.write, on_close=groups.close, now_ms=CLOCK.now_ms, waiting_bytes_max=1000
    )
    groups.gate.clear()
    futures = submitted(appender, request(bytes(5000)))  # a single request may exceed the limit
    assert groups.begun.acquire(timeout=30)
    with pytest.raises(BufferAllocationError) as caught:
        appender.submit(request(wait_ms=0))
    assert caught.value.byte_count_max == 1000
    assert caught.value.retriable
    later = request()
    waiting = threading.Thread(target=appender.submit, args=(later,))
    waiting.start()
    groups.gate.set()
    waiting.join(30)
    later.future.result(30)
    assert groups.seen[-1][-1] is later, "there is space as soon as the first is written"
    futures[0].result(30)
    appender.close()


def test_a_callback_does_not_wait_for_room_that_its_own_thread_makes(groups: Groups) -> None:
    first, second, unanswered, refused = request(), request(), request(), Future[None]()
    appender = appender_with_room_for(groups, first, second, unanswered)

    def submit_more(_: Future[Any]) -> None:
        assert not unanswered.future.done()
        try:
            appender.submit(request(bytes(unanswered.byte_count() * 2)))
        except BufferAllocationError as error:
            refused.set_exception(error)

    groups.gate.clear()
    submitted(appender, first)
    assert groups.begun.acquire(timeout=30)
    second.future.add_done_callback(submit_more)
    submitted(appender, second, unanswered)
    groups.gate.set()
    with pytest.raises(BufferAllocationError):
        refused.result(30)
    assert appender.close()


def test_a_callback_may_queue_a_request_in_the_room_of_its_own(groups: Groups) -> None:
    first, second, again = request(), request(), request(wait_ms=0)
    appender = appender_with_room_for(groups, first, second)
    groups.gate.clear()
    submitted(appender, first)
    assert groups.begun.acquire(timeout=30)
    submitted(appender, second)

    def submit_again(_: Future[Any]) -> None:
        try:
            appender.submit(again)
        except BufferAllocationError as error:
            again.future.set_exception(error)

    first.future.add_done_callback(submit_again)
    groups.gate.set()
    answered: Future[Any] = again.future
    assert answered.result(30) is again
    assert appender.close()


def test_a_cancelled_request_has_its_room_until_it_leaves_the_queue(groups: Groups) -> None:
    first, cancelled = request(), request()
    appender = appender_with_room_for(groups, first, cancelled)
    groups.gate.clear()
    submitted(appender, first)
    assert groups.begun.acquire(timeout=30)
    submitted(appender, cancelled)
    assert cancelled.future.cancel()
    with pytest.raises(BufferAllocationError):
        appender.submit(request(wait_ms=0))
    groups.gate.set()
    later = [request(), request()]
    assert [future.result(30) for future in submitted(appender, *later)] == later
    assert appender.close()


def test_closing_writes_the_queue_and_refuses_new_requests(
    groups: Groups, appender: WriterThread
) -> None:
    groups.gate.clear()
    futures = submitted(appender, request())
    assert groups.begun.acquire(timeout=30)
    futures += submitted(appender, request(), request())
    assert not appender.close(timeout_ms=1), "it is still writing"
    with pytest.raises(LogClosedError, match=r"close\(\) was called"):
        appender.submit(request())
    groups.gate.set()
    assert appender.close()
    assert all(future.done() for future in futures)
    assert appender.close(), "closing twice is allowed"
    assert groups.closed == 1


def test_closing_wakes_a_caller_blocked_on_a_full_queue(groups: Groups) -> None:
    appender = WriterThread(
        "/log", groups.write, on_close=groups.close, now_ms=CLOCK.now_ms, waiting_bytes_max=1
    )
    groups.gate.clear()
    submitted(appender, request())
    assert groups.begun.acquire(timeout=30)
    said: Future[None] = Future()

    def wait() -> None:
        try:
            appender.submit(request())
        except LogClosedError as error:
            said.set_exception(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    appender.close(timeout_ms=0)
    with pytest.raises(LogClosedError):
        said.result(30)
    groups.gate.set()
    assert appender.close()
    waiting.join(30)


def test_waiting_callers_fail_when_the_thread_fails(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallen: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: fallen.append(args.exc_type))

    def fall(one: Request) -> RequestResult:
        raise ZeroDivisionError

    groups.answer = fall
    groups.gate.clear()
    appender = WriterThread("/log", groups.write, on_close=groups.close, now_ms=CLOCK.now_ms)
    (writing,) = submitted(appender, request())
    assert groups.begun.acquire(timeout=30)
    (queued,) = submitted(appender, request())
    groups.gate.set()
    with pytest.raises(AppendUnknownError):
        writing.result(30)
    with pytest.raises(LogClosedError, match="writer thread failed"):
        queued.result(30)
    appender.close()
    with pytest.raises(LogClosedError, match="writer thread failed"):
        appender.submit(request())
    assert fallen == [ZeroDivisionError], "and the bug is shown, not hidden"


def test_a_log_without_appends_can_be_closed(groups: Groups) -> None:
    appender = WriterThread("/log", groups.write, on_close=groups.close, now_ms=CLOCK.now_ms)
    count = threading.active_count()
    assert appender.close()
    assert appender.close()
    assert (groups.closed, groups.seen) == (1, [])
    assert threading.active_count() == count, "no thread was started for it"


def test_a_request_is_not_queued_if_no_thread_can_be_started(
    groups: Groups, appender: WriterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, taken = request(), request()
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    with pytest.raises(RuntimeError, match="new thread"):
        appender.submit(refused)
    monkeypatch.undo()
    assert submitted(appender, taken)[0].result(30) is taken
    assert groups.seen == [[taken]]


def test_a_request_whose_thread_cannot_be_started_takes_no_room(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = WriterThread(
        "/log", groups.write, on_close=groups.close, now_ms=CLOCK.now_ms, waiting_bytes_max=1
    )
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    with pytest.raises(RuntimeError, match="new thread"):
        appender.submit(request())
    monkeypatch.undo()
    taken = request(wait_ms=0)
    appender.submit(taken)
    assert taken.future.result(30) is not None
    appender.close()


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_forked_process_cannot_use_the_writer(
    groups: Groups, appender: WriterThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(LogClosedError, match="forked"):
        appender.submit(request())
    assert appender.close()
    monkeypatch.undo()
    submitted(appender, request())[0].result(30)
