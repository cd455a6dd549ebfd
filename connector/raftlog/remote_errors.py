"""Errors between a client and the nodes of a quorum. Import them from ``raftlog.errors``.

Those that are an ``AppendError`` mean for an append that nothing was appended; an append with
unknown outcome is ``AppendUnknownError``. Messages have addresses and names, never the paths or
contents of keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .append_errors import AppendError
from .base_errors import RaftlogError


@dataclass(kw_only=True, eq=False)
class QuorumUnavailableError(AppendError):
    """No leader was found, or none responded in time. ``reason`` is the last failure."""

    path: str
    waited_ms: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_QUORUM_UNAVAILABLE"
    kafka_code: ClassVar[int | None] = 5
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"{self.path}: no leader available within {self.waited_ms} ms: {self.reason}; check "
            "that a majority of the nodes is running and that the addresses are correct, then "
            "retry"
        )


@dataclass(kw_only=True, eq=False)
class AccessDeniedError(AppendError):
    """Authentication failed, or the principal is not authorized for the operation."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_ACCESS_DENIED"
    kafka_code: ClassVar[int | None] = 31

    def message(self) -> str:
        return (
            f"{self.path}: access denied: {self.reason}; check the certificates of client and node "
            "and the rights of this principal in the node's configuration"
        )


@dataclass(kw_only=True, eq=False)
class NodeRefusedError(AppendError):
    """A response with a Kafka error code that has no class of its own here.

    ``error`` is the code in Kafka's ``Errors``.
    """

    path: str
    api: str
    error: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_NODE_REFUSED"

    def message(self) -> str:
        return (
            f"{self.path} answered {self.api} with Kafka error code {self.error}: {self.reason}; "
            "check that the address belongs to a node of the quorum"
        )


@dataclass(kw_only=True, eq=False)
class NotRemoteError(RaftlogError):
    """An operation that a client of a quorum does not support."""

    what: str
    remedy: str
    code: ClassVar[str] = "RAFTLOG_NOT_REMOTE"

    def message(self) -> str:
        return f"{self.what} is not supported by a client of a quorum; {self.remedy}"


@dataclass(kw_only=True, eq=False)
class VoterChangeError(RaftlogError):
    """A voter was not added or removed. After error 7 (REQUEST_TIMED_OUT) it may still be.

    ``error`` is the code in Kafka's ``Errors``, ``reason`` the node's error message.
    """

    path: str
    error: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_VOTER_CHANGE"

    def message(self) -> str:
        return (
            f"voter change rejected by {self.path}: {self.reason} (Kafka error code {self.error}); "
            "list the current voters with `raftlog quorum` before you retry"
        )
