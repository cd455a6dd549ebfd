"""Threads for calls that may wait for a timeout."""

from __future__ import annotations

import threading
from threading import Event

from raftlog.daemon_threads import DaemonThreads


def test_threads_end_after_their_calls_when_they_are_closed() -> None:
    name = "raftlog-test-threads"
    threads = DaemonThreads(2, name)
    released = Event()
    calls = [threads.submit(released.wait) for _ in range(4)]
    started = [thread for thread in threading.enumerate() if thread.name.startswith(name)]
    assert len(started) == 2
    threads.close()
    later = threads.submit(lambda: 7)
    assert later.result() == 7, "it does not wait for the calls before"
    released.set()
    for thread in started:
        thread.join()
    assert all(call.done() for call in calls)
    threads.close()
