"""Node without I/O: what it does with its outputs and with what waits for it when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from raftlog.append import AppendRequest, Failed
from raftlog.errors import AppendUnknownError, DiskFailedError, LogClosedError
from raftlog.node.raft_client import Steps
from raftlog.node.raft_node import Notification
from raftlog.quorum.effects import RoleChanged
from raftlog.quorum.messages import Response, VersionsRequest
from raftlog.quorum.roles import Leader
from raftlog.records.batch import RecordBatch
from tests.node.listeners.test_listener_contract import Recorder
from tests.support.one_replica import OneReplica

FAILURE: Final = DiskFailedError(path="/data", reason="a failed write")


class EndsWhenElected(OneReplica):
    """Node that is ended by the notification of its election, in the middle of a step."""

    def notify(self, notification: Notification) -> None:
        super().notify(notification)
        if isinstance(notification, RoleChanged) and notification.new is Leader:
            self.raft_node.end()


def test_a_node_that_ends_within_a_step_has_no_further_outputs() -> None:
    one = EndsWhenElected()
    one.elect()
    assert one.replica.log.end_offset == 1, "the step itself is complete"
    last = one.notifications[-1]
    assert isinstance(last, RoleChanged)
    assert last.new is Leader
    assert one.raft_node.sync_count == 0


def test_appends_that_are_not_submitted_have_an_unknown_outcome_when_the_node_ends() -> None:
    one = OneReplica()
    one.elect()
    end_offset = one.replica.log.end_offset
    request = AppendRequest(records=(b"a",), deadline_ms=1e12)
    one.raft_node.append(request, lambda result: one.results.update({request: result}))
    assert not one.results
    one.raft_node.end("it stops")
    result = one.results[request]
    assert isinstance(result, Failed)
    assert isinstance(result.error, AppendUnknownError)
    assert result.error.reason == "it stops"
    one.raft_node.submit()
    assert one.replica.log.end_offset == end_offset, "it is not written later"


def test_a_node_that_has_ended_accepts_no_input() -> None:
    one = OneReplica()
    one.elect()
    one.raft_node.end()
    notified_count, end_offset = len(one.notifications), one.replica.log.end_offset
    replies: list[Response] = []
    one.raft_node.receive(VersionsRequest(), replies.append)
    one.pass_time(10**6)
    request = AppendRequest(records=(b"a",), deadline_ms=1e12)
    one.submit(request)
    assert isinstance(one.results[request], Failed)
    assert not replies
    assert not one.raft_node.deliver()
    assert (len(one.notifications), one.replica.log.end_offset) == (notified_count, end_offset)


class Failing(OneReplica):
    """Node whose failures are recorded."""

    def __init__(self) -> None:
        self.errors: Final[list[Exception]] = []
        super().__init__()

    def failed(self, error: Exception) -> None:
        self.errors.append(error)


class FailsInItsCall(Recorder):
    """Listener that ends its node by a failed append, which it ignores or raises."""

    def __init__(self, one: Failing, *, raises: bool) -> None:
        super().__init__()
        self._one = one
        self._raises = raises

    def handle_commit(self, batches: Sequence[RecordBatch]) -> Steps:
        super().handle_commit(batches)
        self._one.raft_node.fail(FAILURE)
        if self._raises:
            raise LogClosedError(reason="the replica has stopped")
        return None


@pytest.mark.parametrize("raises", [False, True])
def test_no_listener_is_called_after_the_node_has_failed_in_the_call_of_one(raises: bool) -> None:
    one = Failing()
    one.elect()
    failing, other = FailsInItsCall(one, raises=raises), Recorder()
    one.listeners.register(failing)
    one.listeners.register(other)
    one.raft_node.deliver()
    assert failing.next_offset == 1
    one.shut_down()
    for listener in (failing, other):
        assert not listener.leaders
        assert not listener.shutdown_count
    assert not other.next_offset
    assert one.errors == [FAILURE], "the first error is the reason"
