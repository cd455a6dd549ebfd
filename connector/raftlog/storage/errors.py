"""Errors of object stores and of the objects in them. The rules are in ``raftlog.errors``.

``location`` is the location of the store, without user info.
"""

from __future__ import annotations

from raftlog.errors import LogError


class RemoteStorageError(LogError, code="RAFTLOG_REMOTE_STORAGE", retriable=True, kafka_code=56):
    """An object store refused or did not answer a request (Kafka: ``RemoteStorageException``).

    After a failed write the object may exist, complete or in part.
    """

    location: str
    name: str
    reason: str

    def message(self) -> str:
        return (
            f"object {self.name} in {self.location}: {self.reason}; check that the store can be "
            "reached and grants access, then run the command again: it continues"
        )


class RemoteObjectNotFoundError(LogError, code="RAFTLOG_REMOTE_OBJECT_NOT_FOUND"):
    """The store does not contain an object that the manifest names.

    Kafka: ``RemoteResourceNotFoundException``.
    """

    location: str
    name: str

    def message(self) -> str:
        return (
            f"object {self.name} in {self.location} does not exist: it was deleted, or it is in "
            "another location; restore it from a version of the store, or use another backup"
        )


class CorruptRemoteObjectError(LogError, code="RAFTLOG_CORRUPT_REMOTE_OBJECT"):
    """A remote object is damaged or contradicts the manifest. None of it is used."""

    location: str
    name: str
    reason: str

    def message(self) -> str:
        return (
            f"object {self.name} in {self.location} is corrupt: {self.reason}; use another backup, "
            "or an older version of the object"
        )


class BackupNotFoundError(LogError, code="RAFTLOG_BACKUP_NOT_FOUND"):
    """The location contains no complete backup, or none with the requested offset."""

    location: str
    reason: str

    def message(self) -> str:
        return f"no backup can be restored from {self.location}: {self.reason}"


class WrongBackupError(LogError, code="RAFTLOG_WRONG_BACKUP"):
    """The location contains the backups of another log. Nothing was written."""

    location: str
    path: str
    reason: str

    def message(self) -> str:
        return (
            f"{self.location} has the backups of another log than {self.path}: {self.reason}; "
            "give each log a location of its own"
        )


class RemoteStoreDiffersError(LogError, code="RAFTLOG_REMOTE_STORE_DIFFERS"):
    """The node's ``remote_storage_uri`` differs from that of its quorum's leader.

    It deletes nothing that the leader has deleted.
    """

    path: str
    location: str
    leader_id: int

    def message(self) -> str:
        return (
            f"{self.path}: remote_storage_uri is {self.location} on this node, and another store "
            f"on node {self.leader_id}, which leads. Each has only its own remote segments, and a "
            "leader begins the log where its own do. So this node deletes nothing that the leader "
            "has deleted, and copies nothing; give all nodes the same remote_storage_uri "
            "(`raftlog configure`), and restart them"
        )


class LogEndsBeforeRemoteError(LogError, code="RAFTLOG_LOG_ENDS_BEFORE_REMOTE"):
    """The log ends before its remote segments, which another leader or writer has copied.

    Nothing was written.
    """

    location: str
    path: str
    log_end_offset: int
    remote_end_offset: int

    def message(self) -> str:
        return (
            f"{self.path} ends at offset {self.log_end_offset}, and its remote segments in "
            f"{self.location} at {self.remote_end_offset}: another leader or writer has copied "
            "more; a node that is not the leader any more fetches these records from the leader, "
            "any other copy of the log must not use this location"
        )
