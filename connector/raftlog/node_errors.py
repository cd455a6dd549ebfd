"""Errors of a node's configuration, directory and start. Import them from ``raftlog.errors``.

A configuration value is shown only if it is an address, a name or a number, never a password or
the content of a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import LogError, RaftlogError


@dataclass(kw_only=True, eq=False)
class ConfigError(RaftlogError):
    """A node's configuration that cannot be read, or that is invalid.

    ``key`` is the dotted path of the setting, None for the file as a whole.
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
    """A node's directory without meta.properties."""

    path: str
    code: ClassVar[str] = "RAFTLOG_NOT_FORMATTED"

    def message(self) -> str:
        return (
            f"{self.path} is not formatted: meta.properties not found; run `raftlog node format` "
            "once, or check the directory in the configuration"
        )


@dataclass(kw_only=True, eq=False)
class AlreadyFormattedError(LogError):
    """A directory to be formatted that is not empty. Nothing was changed."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_ALREADY_FORMATTED"

    def message(self) -> str:
        return (
            f"cannot format {self.path}: {self.reason}; a node that has voted must keep its vote: "
            "start it with this directory as it is, or format another directory"
        )


@dataclass(kw_only=True, eq=False)
class WrongDirectoryError(LogError):
    """A directory that belongs to another node."""

    path: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_WRONG_DIRECTORY"

    def message(self) -> str:
        return (
            f"{self.path} belongs to another node: {self.reason}; check the node id and the "
            "directory in the configuration"
        )


@dataclass(kw_only=True, eq=False)
class NodeAddressError(RaftlogError):
    """A listener address that cannot be bound."""

    host: str
    port: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_NODE_ADDRESS"

    def message(self) -> str:
        return (
            f"cannot listen on {self.host}:{self.port}: {self.reason}; check that no other process "
            "uses the port and that the address is one of this machine"
        )


@dataclass(kw_only=True, eq=False)
class NodeRunningError(LogError):
    """A node's directory is in use by another process."""

    path: str
    code: ClassVar[str] = "RAFTLOG_NODE_RUNNING"
    retriable: ClassVar[bool] = True

    def message(self) -> str:
        return (
            f"{self.path} is in use by another process: this node is already running, or its "
            "previous process has not ended; stop that process first"
        )
