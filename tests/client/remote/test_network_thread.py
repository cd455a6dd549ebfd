"""Thread of a client's network: calls beside its end and on it, and a process without threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from raftlog.client.errors import CallbackError
from raftlog.client.remote.connection import NetworkThread
from raftlog.client.remote.leader_client import FetchResult, PendingFetch
from raftlog.errors import LogClosedError

PATIENCE_S = 30.0
FETCHED = FetchResult(
    log_start_offset=0, high_watermark=1, last_stable_offset=1, leader_epoch=1, data=b""
)
END_WAIT_S = 0.2
"""The end waits for the call; without the lock it takes less."""


def test_a_call_beside_the_end_is_done_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never with an error of the loop, which would have ended meanwhile."""
    network = NetworkThread("a quorum", on_end=lambda: None)
    is_ended, is_called = threading.Event(), threading.Event()

    def stop() -> None:
        is_called.wait()
        network.stop()
        is_ended.set()

    network.run(asyncio.sleep(0))
    stopping = threading.Thread(target=stop)
    stopping.start()
    call_soon = asyncio.BaseEventLoop.call_soon_threadsafe

    def call_late(
        loop: asyncio.BaseEventLoop, callback: Callable[..., object], *args: Any
    ) -> asyncio.Handle:
        if threading.current_thread() is threading.main_thread():
            is_called.set()
            is_ended.wait(END_WAIT_S)
        return call_soon(loop, callback, *args)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", call_late)
    network.call(lambda: None)
    stopping.join(PATIENCE_S)
    with pytest.raises(LogClosedError):
        network.call(lambda: None)


def test_a_second_stop_does_not_interrupt_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    network = NetworkThread("a quorum", on_end=lambda: network.stop())
    network.run(asyncio.sleep(0))
    network.stop()
    assert errors == []


def test_a_network_whose_thread_cannot_be_started_is_started_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    network = NetworkThread("a quorum", on_end=lambda: None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        network.run(asyncio.sleep(0))
    monkeypatch.undo()
    network.run(asyncio.sleep(0))
    network.stop()


def test_what_was_started_before_the_end_ends_as_closed() -> None:
    network = NetworkThread("a quorum", on_end=lambda: None)
    endless = network.start(asyncio.sleep(3600))
    network.stop()
    with pytest.raises(LogClosedError, match=r"close\(\) was called"):
        network.wait_for(endless)


def test_a_call_on_the_thread_does_not_wait_for_itself() -> None:
    network = NetworkThread("a quorum", on_end=lambda: None)
    called: Future[None] = Future()

    def call() -> None:
        try:
            network.run(asyncio.sleep(0))
        except CallbackError as error:
            called.set_exception(error)

    network.call(call)
    with pytest.raises(CallbackError, match="a quorum: this call would wait forever in a callback"):
        called.result(PATIENCE_S)
    network.stop()


@pytest.mark.parametrize("is_done", [False, True])
def test_what_was_started_is_not_waited_for_on_the_thread(is_done: bool) -> None:
    """Such as the next fetch of a read that is continued in a callback."""
    network = NetworkThread("a quorum", on_end=lambda: None)
    release = asyncio.Event()
    pending = PendingFetch(network, network.start(fetched_after(release)))
    if is_done:
        network.run(set_event(release))
        pending.wait()
    called: Future[FetchResult | None] = Future()

    def call() -> None:
        try:
            called.set_result(pending.wait())
        except CallbackError as error:
            called.set_exception(error)

    network.call(call)
    if is_done:
        assert called.result(PATIENCE_S) is FETCHED
    else:
        with pytest.raises(CallbackError):
            called.result(PATIENCE_S)
        network.run(set_event(release))
        assert pending.wait() is FETCHED
    network.stop()


async def fetched_after(release: asyncio.Event) -> FetchResult:
    await release.wait()
    return FETCHED


async def set_event(event: asyncio.Event) -> None:
    event.set()
