"""Calls that do not return keep neither the event loop nor the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

from raftlog.node.store_threads import StoreThreads

PROCESS = """
import asyncio, threading
from raftlog.node.store_threads import StoreThreads

async def work():
    threads = StoreThreads(1, name="test")
    has_begun = threading.Event()
    threads.run(lambda: (has_begun.set(), threading.Event().wait()))
    assert has_begun.wait(60)
    threads.close()

asyncio.run(work())
print("ended")
"""


def test_a_process_ends_while_a_call_does_not_return() -> None:
    done = subprocess.run([sys.executable, "-c", PROCESS], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"ended\n", b"")


def test_calls_beyond_the_threads_wait_and_do_not_begin_once_they_are_cancelled() -> None:
    answers, begun = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        begun.release()
        assert answers.wait(60)

    async def work() -> None:
        threads = StoreThreads(2, name="test")
        calls = [threads.run(call) for _ in range(5)]
        assert threads.waiting_count == 3
        for _ in range(2):
            assert begun.acquire(timeout=60)
        for one in calls[:4]:
            one.cancel()
        await asyncio.sleep(0)
        assert threads.waiting_count == 1, "the first two have begun"
        answers.set()
        await calls[4]
        assert begun.acquire(timeout=60)
        assert not begun.acquire(blocking=False)
        assert threads.waiting_count == 0
        threads.close()

    asyncio.run(work())
