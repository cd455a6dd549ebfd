"""Errors of a node's configuration, directory and start. The rules are in ``raftlog.errors``."""

from __future__ import annotations

from raftlog.errors import LogError, RaftlogError


class ConfigError(RaftlogError, code="RAFTLOG_CONFIG"):
    """A node's configuration cannot be read or is invalid.

    ``key`` is the dotted path of the setting, None for the file as a whole.
    """

    path: str
    key: str | None
    reason: str

    def message(self) -> str:
        what = "" if self.key is None else f" {self.key}:"
        return f"{self.path}:{what} {self.reason}"


class NotFormattedError(LogError, code="RAFTLOG_NOT_FORMATTED"):
    """The node's directory contains no meta.properties."""

    path: str

    def message(self) -> str:
        return (
            f"{self.path} is not formatted: meta.properties not found; run `raftlog node format` "
            "once, or check the directory in the configuration"
        )


class AlreadyFormattedError(LogError, code="RAFTLOG_ALREADY_FORMATTED"):
    """The directory to format is not empty. Nothing was changed."""

    path: str
    reason: str

    def message(self) -> str:
        return (
            f"cannot format {self.path}: {self.reason}; a node that has voted must keep its vote: "
            "start it with this directory as it is, or format another directory"
        )


class QuorumHasRecordsError(RaftlogError, code="RAFTLOG_QUORUM_HAS_RECORDS", retriable=True):
    """The initial voter to format belongs to a quorum that has or may have records.

    ``voter`` is the voter that was asked. Nothing was written.
    """

    node_id: int
    voter: str
    reason: str

    def message(self) -> str:
        return (
            f"node {self.node_id} may have lost its directory: voter {self.voter} {self.reason}; "
            "format it with --no-initial-voters, as an observer with a new directory id, and add "
            "it to the voters; if it has never had a directory, confirm that with --never-formatted"
        )


class WrongDirectoryError(LogError, code="RAFTLOG_WRONG_DIRECTORY"):
    """The directory belongs to another node."""

    path: str
    reason: str

    def message(self) -> str:
        return (
            f"{self.path} belongs to another node: {self.reason}; check the node id and the "
            "directory in the configuration"
        )


class NodeAddressError(RaftlogError, code="RAFTLOG_NODE_ADDRESS"):
    """A listener address cannot be bound."""

    host: str
    port: int
    reason: str

    def message(self) -> str:
        return (
            f"cannot listen on {self.host}:{self.port}: {self.reason}; check that no other process "
            "uses the port and that the address is one of this machine"
        )
