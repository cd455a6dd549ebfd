"""What can be wrong between two processes that speak Kafka's protocol.

Rules of this file:

1. Import these from ``raftlog.errors``, whose rules hold here too.
2. Bytes of a message are never a fact of an error: they may hold records or secrets.
3. ``UnsupportedFieldError`` is ours, ``NoCommonVersionError`` nobody's, the others the peer's.
   After one of the peer's the connection is closed, as Kafka does: what follows cannot be trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base_errors import RaftlogError


@dataclass(kw_only=True, eq=False)
class WireError(RaftlogError):
    """The root of these."""

    code: ClassVar[str] = "RAFTLOG_WIRE"


@dataclass(kw_only=True, eq=False)
class FrameLengthError(WireError):
    """A frame claims a length that is negative or beyond the limit. Nothing of it was kept.

    ``where`` names the peer; ``hint`` says what else the first bytes look like.
    """

    where: str
    byte_count: int
    byte_count_max: int
    hint: str | None = None
    code: ClassVar[str] = "RAFTLOG_FRAME_LENGTH"
    kafka_code: ClassVar[int | None] = 42

    def message(self) -> str:
        remedy = self.hint or "check that it speaks Kafka's protocol, or raise the limit"
        return (
            f"{self.where} announces a frame of {self.byte_count} bytes, and 0 to "
            f"{self.byte_count_max} are allowed; {remedy}"
        )


@dataclass(kw_only=True, eq=False)
class MalformedMessageError(WireError):
    """Bytes of a header, a request or an answer are not what Kafka's definition of it says.

    ``position`` counts from the first byte that the decoder was given.
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
            f"{self.api}{version} cannot be read at byte {self.position}: {self.reason}; close "
            "this connection"
        )


@dataclass(kw_only=True, eq=False)
class UnsupportedApiError(WireError):
    """A request is of a kind, or of a version, that this listener does not serve."""

    api_key: int
    version: int
    listener: str
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_API"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return (
            f"api key {self.api_key} version {self.version} is not served on the listener for "
            f"{self.listener}; ask with ApiVersions what is"
        )


@dataclass(kw_only=True, eq=False)
class NoCommonVersionError(WireError):
    """A peer and we speak no version of a request in common: first and last of each. ``theirs`` is
    None if it does not serve the request at all."""

    api: str
    ours: tuple[int, ...]
    theirs: tuple[int, ...] | None
    code: ClassVar[str] = "RAFTLOG_NO_COMMON_VERSION"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        theirs = "none" if self.theirs is None else f"{self.theirs[0]} to {self.theirs[1]}"
        return (
            f"{self.api}: we speak versions {self.ours[0]} to {self.ours[1]} and the peer "
            f"{theirs}; upgrade the older of the two, or connect to a listener that serves it"
        )


@dataclass(kw_only=True, eq=False)
class UnsupportedFieldError(WireError):
    """A message of ours holds what the version that it should be written in cannot say."""

    api: str
    version: int
    field: str
    reason: str
    code: ClassVar[str] = "RAFTLOG_UNSUPPORTED_FIELD"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return f"{self.api} version {self.version}, field {self.field}: {self.reason}"


@dataclass(kw_only=True, eq=False)
class UnacknowledgedAppendError(WireError):
    """An append that wanted no answer (acks 0) failed. That its connection is closed is the only
    way to tell its writer."""

    reason: str
    code: ClassVar[str] = "RAFTLOG_UNACKNOWLEDGED_APPEND"

    def message(self) -> str:
        return f"an append without an answer failed: {self.reason}; close this connection"
