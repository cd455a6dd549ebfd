"""Batches that are fetched while a reader uses the ones before; then it is closed, or forked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.client.remote.test_invalid_responses import batch
from tests.support.scripted_controller import Controller

import raftlog
from raftlog.client.remote.log import RemoteLog
from raftlog.errors import LogClosedError
from raftlog.records.batch import RecordBatch

FIRST, SECOND = bytes(600_000), b"second"
"""The first batch is more than half of a fetch, so the second one is fetched ahead."""


@pytest.fixture
def controller() -> Iterator[Controller]:
    """Controller of a log with both batches, of which it sends the first one."""
    found = Controller(batch(0, FIRST), high_watermark=2)
    with found.node:
        yield found
        found.released.set()


def after_first(controller: Controller, log: RemoteLog) -> Iterator[RecordBatch]:
    """Return a read whose first batch was used; the fetch of the second one has no response."""
    found = log.batches(0, 2)
    controller.held_at = controller.fetch_count + 1
    assert next(next(found).records()).value == FIRST
    controller.data = batch(1, SECOND)
    return found


def test_a_read_ends_with_an_error_when_its_log_is_closed(controller: Controller) -> None:
    log = raftlog.follow(controller.node.address, timeout_ms=300)
    found = after_first(controller, log)
    log.close()
    with pytest.raises(LogClosedError, match=r"close\(\) was called"):
        next(found)


def test_a_forked_process_fetches_again(controller: Controller) -> None:
    log = raftlog.follow(controller.node.address, timeout_ms=20_000)
    found = after_first(controller, log)
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(30)  # it would wait for the parent's thread
        try:
            code = 0 if [next(one.records()).value for one in found] == [SECOND] else 2
        finally:
            os._exit(code)
    controller.released.set()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert [next(one.records()).value for one in found] == [SECOND]
    log.close()
