"""``EventHandlerExceptionInfo``: what an error inside the controller means, and to which caller.

    internal error                    fault  fails over  the caller sees
    an API error                      no     no          the error itself
    a record that cannot be encoded   no     no          the error itself
    DiskFullError                     no     no          the error itself
    NotLeaderError                    no     yes         NotControllerError
    RejectedExecutionError            no     yes         ControllerTimeoutError
    a list of records that is too long no    no          PolicyViolationError
    UnexpectedEndOffsetError          no     yes         NotControllerError
    InterruptedError                  yes    yes         UnknownServerError
    anything else                     yes    yes         UnknownServerError

The texts are Kafka's at the time when the table was published (July 2023). Later releases differ.
Kafka 4.3 begins a message with ``event failed with``, appends the text of the exception, does not
fail over on a rejected execution, and has no error for an unexpected end offset.

Source: Kafka ``EventHandlerExceptionInfo``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftlog.errors import (
    DiskFullError,
    NotLeaderError,
    RecordBatchTooLargeError,
    UnexpectedEndOffsetError,
)
from raftlog_state.errors import (
    ControllerError,
    ControllerTimeoutError,
    InvalidChangesError,
    InvalidRecordError,
    NotControllerError,
    PolicyViolationError,
    UnknownServerError,
    UnsupportedVersionError,
)

from .api_exception import ApiException
from .pending_state import BoundedListTooLongError

API_ERRORS: Final = (
    ApiException,
    InvalidChangesError,
    ControllerError,
    InvalidRecordError,
    UnsupportedVersionError,
    DiskFullError,
)
"""Errors that are responses and leave the state and the leadership unchanged.

Kafka: ``InvalidRecordException``, ``UnsupportedVersionException`` and ``KafkaStorageException``
(code 56, which ``DiskFullError`` has) are ``ApiException``, too. The node decides whether a leader
with a full disk resigns, in the same way for all appends.
"""


class RejectedExecutionError(Exception):
    """An event after the controller's shutdown has begun; internal to the controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHandlerExceptionInfo:
    """An ``internal`` error with its consequences; ``external`` is the error for the caller."""

    internal: Exception
    external: Exception
    is_fault: bool
    causes_failover: bool

    @classmethod
    def from_internal(cls, error: Exception, leader_id: int | None) -> EventHandlerExceptionInfo:
        """Classify an error. ``leader_id``: another node that leads, if one is known."""
        external: Exception
        is_fault, causes_failover = False, True
        if isinstance(error, API_ERRORS):
            external, causes_failover = error, False
        elif isinstance(error, NotLeaderError):
            external = not_controller_error(leader_id)
        elif isinstance(error, RejectedExecutionError):
            external = ControllerTimeoutError(reason="The controller is shutting down.")
        elif isinstance(error, BoundedListTooLongError | RecordBatchTooLargeError):
            reason = "Unable to perform excessively large batch operation."
            external, causes_failover = PolicyViolationError(reason=reason), False
        elif isinstance(error, UnexpectedEndOffsetError):
            reason = "Unexpected end offset. Controller not known."
            external = NotControllerError(reason=reason)
        elif isinstance(error, InterruptedError):
            external = UnknownServerError(reason="The controller was interrupted.")
            is_fault = True
        else:
            external = UnknownServerError(reason=f"The controller failed: {type(error).__name__}.")
            is_fault = True
        if external is not error:
            external.__cause__ = error
        return cls(
            internal=error, external=external, is_fault=is_fault, causes_failover=causes_failover
        )

    def failure_message(
        self, *, epoch: int, duration_us: int | None, is_active: bool, last_committed_offset: int
    ) -> str:
        """Return the text for the log or the fault handler.

        ``duration_us``: time since the event was started, None if it was not.
        """
        started = duration_us is not None
        text = "failed with " if started else "unable to start processing because of "
        text += type(self.internal).__name__
        if self.external is not self.internal:
            text += f" (treated as {type(self.external).__name__})"
        if self.causes_failover:
            text += f" at epoch {epoch}"
        if started:
            text += f" in {duration_us} microseconds"
        if self.causes_failover and is_active:
            text += (
                ". Renouncing leadership and reverting to the last committed offset "
                f"{last_committed_offset}"
            )
        elif self.causes_failover:
            text += ". The controller is already in standby mode"
        return text + "."


def not_controller_error(leader_id: int | None) -> NotControllerError:
    """Return the error of a node that is not the active controller."""
    if leader_id is None:
        return NotControllerError(reason="No controller appears to be active.")
    return NotControllerError(reason=f"The active controller appears to be node {leader_id}.")
