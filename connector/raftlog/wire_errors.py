"""Errors of Kafka's protocol. Import them from ``raftlog.errors``.

Messages never contain bytes of a request or response, which may hold records or secrets. After an
error of the peer (all but ``UnsupportedFieldError`` and ``NoCommonVersionError``) the connection is
closed, as Kafka does: the bytes that follow cannot be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import RaftlogError


@dataclass(kw_only=True, eq=False)
class WireError(RaftlogError):
    """Base class of errors of Kafka's protocol."""

    code: ClassVar[str] = "RAFTLOG_WIRE"


@dataclass(kw_only=True, eq=False)
class FrameLengthError(WireError):
    """A frame size that is negative or beyond the limit. Its bytes are not buffered.

    ``where`` names the peer; ``hint`` names another protocol that the first bytes look like.
    """

    where: str
    byte_count: int
    byte_count_max: int
    hint: str | None = None
    code: ClassVar[str] = "RAFTLOG_FRAME_LENGTH"
    kafka_code: ClassVar[int | None] = 42

    def message(self) -> str:
        remedy = self.hint or "check that the peer uses Kafka's protocol, or raise the limit"
        return (
            f"invalid frame size {self.byte_count} from {self.where}, allowed are 0 to "
            f"{self.byte_count_max} bytes; {remedy}"
        )


@dataclass(kw_only=True, eq=False)
class MalformedMessageError(WireError):
    """Bytes that do not parse as a Kafka header, request or response.

    ``position`` counts from the first byte given to the decoder.
    """

    api: str
    version: int | None
    position: int
    reason: str
    code: ClassVar[str] = "RAFTLOG_MALFORMED_MESSAGE"
    kafka_code: ClassVar[int | None] = 42

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return (
            f"cannot parse {self.api}{version} at byte {self.position}: {self.reason}; close the "
            "connection"
        )


@dataclass(kw_only=True, eq=False)
class UnsupportedApiError(WireError):
    """An API key or version that the listener does not support."""

    api_key: int
    version: int
    listener: str
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_API"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return (
            f"API key {self.api_key} version {self.version} is not supported on the listener for "
            f"{self.listener}; request the supported versions with ApiVersions"
        )


@dataclass(kw_only=True, eq=False)
class NoCommonVersionError(WireError):
    """No version of an API that both this process and the peer support.

    ``ours`` and ``theirs`` are first and last version; ``theirs`` is None if the peer does not
    support the API.
    """

    api: str
    ours: tuple[int, ...]
    theirs: tuple[int, ...] | None
    code: ClassVar[str] = "RAFTLOG_NO_COMMON_VERSION"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        theirs = "none" if self.theirs is None else f"{self.theirs[0]} to {self.theirs[1]}"
        return (
            f"{self.api}: no common version, this process supports {self.ours[0]} to "
            f"{self.ours[1]} and the peer {theirs}; upgrade the older of the two, or connect to a "
            "listener that supports it"
        )


@dataclass(kw_only=True, eq=False)
class UnsupportedFieldError(WireError):
    """A field whose value cannot be encoded in the chosen version of a message."""

    api: str
    version: int
    field: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_FIELD"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return f"cannot encode {self.api} version {self.version}, field {self.field}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class UnacknowledgedAppendError(WireError):
    """A failed append with acks=0. It has no response: closing the connection is the only signal
    to the producer."""

    reason: str
    code: ClassVar[str] = "RAFTLOG_UNACKNOWLEDGED_APPEND"

    def message(self) -> str:
        return f"append with acks=0 failed: {self.reason}; close the connection"
