"""Retries of reads: of files that are deleted meanwhile, and not of nodes that do not answer."""

from __future__ import annotations

import pytest
from tests.support.clock import StoppedClock

from raftlog.errors import QuorumUnavailableError, RaftlogError, SegmentDeletedError
from raftlog_state.source_rows.reading import ATTEMPTS_MAX, retry


@pytest.mark.parametrize(
    ("error", "call_count"),
    [
        (SegmentDeletedError(path="0.log"), ATTEMPTS_MAX),
        (QuorumUnavailableError(path="nodes", waited_ms=30_000, reason="refused"), 1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_only_errors_that_no_client_has_retried_are_retried(
    error: RaftlogError, call_count: int
) -> None:
    assert error.retriable
    clock = StoppedClock()
    calls: list[int] = []

    def read() -> None:
        calls.append(clock.now_ms())
        raise error

    with pytest.raises(type(error)):
        retry(read, clock.as_clock(), is_new_read=True)
    assert len(calls) == call_count
