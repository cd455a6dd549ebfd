"""Errors of Kafka's protocol that nodes and clients handle.

Messages never contain bytes of a request or response. After an error of the peer (all but
``UnsupportedFieldError`` and ``NoCommonVersionError``), the connection is closed, as in Kafka,
because the bytes that follow cannot be trusted.
"""

from __future__ import annotations

from raftlog.errors import RaftlogError


class WireError(RaftlogError, code="RAFTLOG_WIRE"):
    """Base class of errors of Kafka's protocol."""


class FrameLengthError(WireError, code="RAFTLOG_FRAME_LENGTH", kafka_code=42):
    """A frame size is negative or above the limit. The frame is not buffered.

    ``where`` names the peer; ``hint`` names the other protocol that the first bytes look like.
    """

    where: str
    byte_count: int
    byte_count_max: int
    hint: str | None = None

    def message(self) -> str:
        remedy = self.hint or "check that the peer uses Kafka's protocol, or raise the limit"
        return (
            f"invalid frame size {self.byte_count} from {self.where}, allowed are 0 to "
            f"{self.byte_count_max} bytes; {remedy}"
        )


class MalformedMessageError(WireError, code="RAFTLOG_MALFORMED_MESSAGE", kafka_code=42):
    """Bytes do not parse as a Kafka header, request or response.

    ``position`` counts from the first byte given to the decoder.
    """

    api: str
    version: int | None
    position: int
    reason: str

    def message(self) -> str:
        version = "" if self.version is None else f" version {self.version}"
        return (
            f"cannot parse {self.api}{version} at byte {self.position}: {self.reason}; close the "
            "connection"
        )


class UnsupportedApiError(WireError, code="RAFTLOG_UNSUPPORTED_API", kafka_code=35):
    """The listener does not support the API key or version."""

    api_key: int
    version: int
    listener: str

    def message(self) -> str:
        return (
            f"API key {self.api_key} version {self.version} is not supported on the listener for "
            f"{self.listener}; request the supported versions with ApiVersions"
        )


class NoCommonVersionError(WireError, code="RAFTLOG_NO_COMMON_VERSION", kafka_code=35):
    """This process and the peer have no version of an API in common.

    ``supported`` and ``peer_supported`` are the first and last versions; ``peer_supported`` is None
    if the peer does not support the API.
    """

    api: str
    supported: tuple[int, ...]
    peer_supported: tuple[int, ...] | None

    def message(self) -> str:
        own, peer = self.supported, self.peer_supported
        versions = "none" if peer is None else f"{peer[0]} to {peer[1]}"
        return (
            f"{self.api}: no common version, this process supports {own[0]} to {own[1]} and the "
            f"peer {versions}; upgrade the older of the two, or connect to a listener that "
            "supports it"
        )


class UnsupportedFieldError(WireError, code="RAFTLOG_UNSUPPORTED_FIELD", kafka_code=35):
    """A field's value cannot be encoded in the chosen version of a message."""

    api: str
    version: int
    field: str
    reason: str

    def message(self) -> str:
        return f"cannot encode {self.api} version {self.version}, field {self.field}: {self.reason}"
