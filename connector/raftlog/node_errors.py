"""What can be wrong with a node before it serves: its configuration, its directory.

Rules of this file:

1. Import these from ``raftlog.errors``, whose rules hold here too.
2. A value of a configuration is shown only where it is an address, a name or a number: never a
   password, and nothing of a key's content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import LogError, RaftlogError


@dataclass(kw_only=True, eq=False)
class ConfigError(RaftlogError):
    """A node's configuration cannot be read, or says what cannot be.

    ``key`` is its dotted path in the file, None if it is about the file as a whole.
    """

    path: str
    key: str | None
    reason: str
    code: ClassVar[str] = "RAFTLOG_CONFIG"

    def message(self) -> str:
        what = "" if self.key is None else f" {self.key}:"
        return f"{self.path}:{what} {self.reason}"


@dataclass(kw_only=True, eq=False)
class NotFormattedError(LogError):
    """A node was to start in a directory that says nothing of a cluster."""

    path: str
    code: ClassVar[str] = "RAFTLOG_NOT_FORMATTED"

    def message(self) -> str:
        return (
            f"{self.path} is not formatted: it has no meta.properties; run `raftlog node format` "
            "once, or check the directory in the configuration"
        )


@dataclass(kw_only=True, eq=False)
class AlreadyFormattedError(LogError):
    """A directory was to be formatted, and something is there. Nothing was changed."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_ALREADY_FORMATTED"

    def message(self) -> str:
        return (
            f"{self.path} is not formatted anew: {self.reason}; a node that has voted must not "
            "forget it: start it as it is, or give it another directory"
        )


@dataclass(kw_only=True, eq=False)
class WrongDirectoryError(LogError):
    """A directory belongs to another node than the one that was to start in it."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_WRONG_DIRECTORY"

    def message(self) -> str:
        return f"{self.path} is another node's: {self.reason}; check which directory is whose"


@dataclass(kw_only=True, eq=False)
class NodeAddressError(RaftlogError):
    """A node cannot listen where it was told to."""

    host: str
    port: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_NODE_ADDRESS"

    def message(self) -> str:
        return (
            f"nobody can listen on {self.host}:{self.port}: {self.reason}; is another node running "
            "there, and is the address one of this machine's?"
        )


@dataclass(kw_only=True, eq=False)
class NodeRunningError(LogError):
    """A node's directory is in use by another process."""

    path: str
    code: ClassVar[str] = "RAFTLOG_NODE_RUNNING"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"{self.path} is in use: this node runs already, or its last process has not ended; "
            "stop that one first"
        )
