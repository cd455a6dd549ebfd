"""What can go wrong between a client and the nodes of a quorum, besides what a log itself refuses.

Rules of this file:

1. Import these from ``raftlog.errors``, whose rules hold here too.
2. All but ``NotRemoteError`` are refusals of an append, too: when one of them is raised, nothing
   was appended. What may have been is ``AppendUnknownError``.
3. Addresses and names are facts; paths and contents of keys are none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .append_errors import AppendError
from .base_errors import RaftlogError


@dataclass(kw_only=True, eq=False)
class QuorumUnavailableError(AppendError):
    """No leader could be found, or none answered in time. ``reason`` is what was seen last."""

    path: str
    waited_ms: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_QUORUM_UNAVAILABLE"
    kafka_code: ClassVar[int | None] = 5
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"{self.path}: no leader answered within {self.waited_ms} ms: {self.reason}; check "
            "that a majority of the nodes runs and that the addresses are right, then retry"
        )


@dataclass(kw_only=True, eq=False)
class AccessDeniedError(AppendError):
    """This caller is not let in, or may not do that."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_ACCESS_DENIED"
    kafka_code: ClassVar[int | None] = 31

    def message(self) -> str:
        return (
            f"{self.path} refuses: {self.reason}; check the certificates on both sides and the "
            "rights that the node's configuration gives to this name"
        )


@dataclass(kw_only=True, eq=False)
class NodeRefusedError(AppendError):
    """A node answered with one of Kafka's errors for which there is no better class here.

    ``error`` is Kafka's number of it.
    """

    path: str
    api: str
    error: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_NODE_REFUSED"

    def message(self) -> str:
        return (
            f"{self.path} answered {self.api} with Kafka's error {self.error}: {self.reason}; "
            "check that the address is that of a quorum's nodes"
        )


@dataclass(kw_only=True, eq=False)
class NotRemoteError(RaftlogError):
    """The caller asked of a quorum, over the network, what only its nodes do."""

    what: str
    remedy: str
    code: ClassVar[str] = "RAFTLOG_NOT_REMOTE"

    def message(self) -> str:
        return f"{self.what} cannot be done from a client of a quorum; {self.remedy}"


@dataclass(kw_only=True, eq=False)
class VoterChangeError(RaftlogError):
    """A voter was not added or removed; after error 7 (a timeout) it may still be.

    ``error`` is Kafka's number, ``reason`` the node's own words.
    """

    path: str
    error: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_VOTER_CHANGE"

    def message(self) -> str:
        return (
            f"{self.path} does not change its voters: {self.reason} (Kafka's error {self.error}); "
            "look at who votes with `raftlog quorum`, then decide"
        )
