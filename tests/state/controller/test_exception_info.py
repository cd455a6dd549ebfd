"""Errors inside the controller: faults, failovers, and what a caller sees.

Kafka: ``EventHandlerExceptionInfoTest``.
"""

from __future__ import annotations

import pytest

from raftlog.errors import (
    DiskFailedError,
    DiskFullError,
    FutureEpochError,
    NotLeaderError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog_state.controller.api_exception import TOPIC_ALREADY_EXISTS, ApiException
from raftlog_state.controller.exception_info import (
    EventHandlerExceptionInfo,
    RejectedExecutionError,
)
from raftlog_state.controller.pending_state import BoundedListTooLongError
from raftlog_state.errors import (
    ControllerTimeoutError,
    InvalidChangesError,
    InvalidRecordError,
    NotControllerError,
    PolicyViolationError,
    UnknownServerError,
    UnsupportedVersionError,
)

TOPIC_EXISTS = ApiException("topic 'a'", "Topic 'a' already exists", "leave", TOPIC_ALREADY_EXISTS)
NOT_LEADER = NotLeaderError(epoch=5, current_epoch=6)
UNEXPECTED_END = UnexpectedEndOffsetError(required_base_offset=3, record_count=1, log_end_offset=4)


def info(error: Exception, leader_id: int | None = None) -> EventHandlerExceptionInfo:
    return EventHandlerExceptionInfo.from_internal(error, leader_id)


@pytest.mark.parametrize(
    ("error", "is_fault", "causes_failover", "seen", "text"),
    [
        (NOT_LEADER, False, True, NotControllerError, "No controller appears to be active."),
        (
            RejectedExecutionError(),
            False,
            True,
            ControllerTimeoutError,
            "The controller is shutting down.",
        ),
        (
            BoundedListTooLongError(),
            False,
            False,
            PolicyViolationError,
            "Unable to perform excessively large batch operation.",
        ),
        (
            RecordBatchTooLargeError(byte_count=9, byte_count_max=8),
            False,
            False,
            PolicyViolationError,
            "Unable to perform excessively large batch operation.",
        ),
        (
            UNEXPECTED_END,
            False,
            True,
            NotControllerError,
            "Unexpected end offset. Controller not known.",
        ),
        (InterruptedError(), True, True, UnknownServerError, "The controller was interrupted."),
        (
            ZeroDivisionError(),
            True,
            True,
            UnknownServerError,
            "The controller failed: ZeroDivisionError.",
        ),
        (
            FutureEpochError(epoch=7, current_epoch=6),
            True,
            True,
            UnknownServerError,
            "The controller failed: FutureEpochError.",
        ),
    ],
)
def test_consequences(
    error: Exception, is_fault: bool, causes_failover: bool, seen: type[Exception], text: str
) -> None:
    """EventHandlerExceptionInfoTest.testNotLeaderExceptionInfo,
    EventHandlerExceptionInfoTest.testRejectedExecutionExceptionInfo,
    EventHandlerExceptionInfoTest.testBoundedListTooLongExceptionInfo,
    EventHandlerExceptionInfoTest.testInterruptedExceptionInfo,
    EventHandlerExceptionInfoTest.testNullPointerExceptionInfo"""
    found = info(error)
    assert (found.is_fault, found.causes_failover) == (is_fault, causes_failover)
    assert type(found.external) is seen
    assert str(found.external).partition("] ")[2] == text
    assert found.external.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        TOPIC_EXISTS,
        InvalidChangesError(refused=(), row_count=0),
        NotControllerError(reason="No controller appears to be active."),
        InvalidRecordError(record="TopicRecord", version=0, field="name", reason="it is too long"),
        UnsupportedVersionError(record="ClearElrRecord", version=0, reason="it needs 4.1"),
        DiskFullError(path="/a", reason="no space"),
    ],
)
def test_an_api_error_is_no_fault_and_is_seen_as_it_is(error: Exception) -> None:
    """EventHandlerExceptionInfoTest.testTopicExistsExceptionInfo"""
    found = info(error)
    assert found.external is error
    assert not found.is_fault
    assert not found.causes_failover


def test_another_leader_is_named() -> None:
    error = info(NOT_LEADER, 2).external
    assert str(error).endswith("The active controller appears to be node 2.")


def message(error: Exception, duration_us: int | None, is_active: bool) -> str:
    return info(error).failure_message(
        epoch=123, duration_us=duration_us, is_active=is_active, last_committed_offset=456
    )


def test_messages_of_api_errors() -> None:
    """EventHandlerExceptionInfoTest.testTopicExistsExceptionFailureMessage"""
    assert message(TOPIC_EXISTS, 234, True) == "failed with ApiException in 234 microseconds."
    assert (
        message(TOPIC_EXISTS, None, True) == "unable to start processing because of ApiException."
    )


def test_messages_of_the_active_controller_that_fails_over() -> None:
    """EventHandlerExceptionInfoTest.testNotLeaderExceptionFailureMessage,
    EventHandlerExceptionInfoTest.testRejectedExecutionExceptionFailureMessage,
    EventHandlerExceptionInfoTest.testInterruptedExceptionFailureMessageWhenActive,
    EventHandlerExceptionInfoTest.testNullPointerExceptionFailureMessageWhenActive"""
    rest = ". Renouncing leadership and reverting to the last committed offset 456."
    assert message(NOT_LEADER, 234, True) == (
        "failed with NotLeaderError (treated as NotControllerError) at epoch 123 in 234 "
        "microseconds" + rest
    )
    assert message(UNEXPECTED_END, 90, True) == (
        "failed with UnexpectedEndOffsetError (treated as NotControllerError) at epoch 123 in 90 "
        "microseconds" + rest
    )
    assert message(RejectedExecutionError(), None, True) == (
        "unable to start processing because of RejectedExecutionError (treated as "
        "ControllerTimeoutError) at epoch 123" + rest
    )
    assert message(InterruptedError(), 234, True) == (
        "failed with InterruptedError (treated as UnknownServerError) at epoch 123 in 234 "
        "microseconds" + rest
    )
    assert message(DiskFailedError(path="/a", reason="an fsync failed"), 0, True) == (
        "failed with DiskFailedError (treated as UnknownServerError) at epoch 123 in 0 "
        "microseconds" + rest
    )


def test_messages_of_a_standby() -> None:
    """EventHandlerExceptionInfoTest.testInterruptedExceptionFailureMessageWhenInactive,
    EventHandlerExceptionInfoTest.testNullPointerExceptionFailureMessageWhenInactive"""
    assert message(ZeroDivisionError(), 40, False) == (
        "failed with ZeroDivisionError (treated as UnknownServerError) at epoch 123 in 40 "
        "microseconds. The controller is already in standby mode."
    )
    assert message(InterruptedError(), 234, False) == (
        "failed with InterruptedError (treated as UnknownServerError) at epoch 123 in 234 "
        "microseconds. The controller is already in standby mode."
    )
    assert message(NOT_LEADER, None, False) == (
        "unable to start processing because of NotLeaderError (treated as NotControllerError) at "
        "epoch 123. The controller is already in standby mode."
    )


def test_a_list_that_is_too_long_does_not_fail_over() -> None:
    """EventHandlerExceptionInfoTest.testBoundedListTooLongExceptionFailureMessage"""
    assert message(BoundedListTooLongError(), 7, True) == (
        "failed with BoundedListTooLongError (treated as PolicyViolationError) in 7 microseconds."
    )
