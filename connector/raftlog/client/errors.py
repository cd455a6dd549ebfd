"""Errors of a client: encrypted values and their keys, and calls that would wait for themselves.

The rules are in ``raftlog.errors``. No error contains a key, a value, or the message of a key
service, which may contain secrets.
"""

from __future__ import annotations

from raftlog.errors import LogError, RaftlogError


class EncryptedValueError(LogError, code="RAFTLOG_ENCRYPTED_VALUE", kafka_code=2):
    """A value is not encrypted, was changed, or was encrypted for another log or record key."""

    path: str
    offset: int | None = None
    reason: str
    remedy: str

    def message(self) -> str:
        where = self.path if self.offset is None else f"{self.path}, offset {self.offset}"
        return f"{where}: the value {self.reason}; {self.remedy}"


class EncryptionKeyError(RaftlogError, code="RAFTLOG_ENCRYPTION_KEY"):
    """The key service does not have the key id, or cannot unwrap the data key."""

    key_id: str
    reason: str

    def message(self) -> str:
        return (
            f"encryption key {self.key_id!r} {self.reason}; give the key file or the key service "
            "that the writer has used"
        )


class EncryptionKeyDeletedError(EncryptionKeyError, code="RAFTLOG_ENCRYPTION_KEY_DELETED"):
    """The key was deleted: values encrypted with it can never be read again."""

    def message(self) -> str:
        return (
            f"encryption key {self.key_id!r} {self.reason}: its values can never be read again; "
            'read them as null with deleted_keys="null", in Spark encryption.deleted.keys=null'
        )


class KeyServiceUnavailableError(
    RaftlogError, code="RAFTLOG_KEY_SERVICE_UNAVAILABLE", retriable=True
):
    """The key service raised an ``OSError``, such as a timeout or a refused connection."""

    key_id: str
    reason: str

    def message(self) -> str:
        return (
            f"the key service did not answer for encryption key {self.key_id!r}: {self.reason}; "
            "check that it can be reached, then retry"
        )


class CallbackError(RaftlogError, code="RAFTLOG_CALLBACK"):
    """A callback of a future called a function that waits for the callback's own thread.

    Nothing was sent or appended. Kafka's producer refuses ``flush`` in a callback for this reason.
    """

    path: str

    def message(self) -> str:
        return (
            f"{self.path}: this call would wait forever in a callback of append_async's future, "
            "because callbacks run on the thread that completes appends; use append_async there, "
            "or call it in another thread"
        )
