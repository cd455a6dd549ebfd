"""Kafka's protocol <-> values: frames, headers, messages. Pure: bytes in, values out.

``wide`` holds the messages whose old versions have fields of their own; the others are kio's.
"""

from __future__ import annotations

from . import wide
from .apis import APIS, Api, ApiKey, Listener, VersionRange, common_version, served_api
from .decoding import decode
from .encoding import encode
from .frame import FrameSplitter, frame
from .headers import (
    Received,
    ReceivedRequest,
    RequestHeader,
    UnknownApiVersions,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    receive_request,
)

__all__ = [
    "APIS",
    "Api",
    "ApiKey",
    "FrameSplitter",
    "Listener",
    "Received",
    "ReceivedRequest",
    "RequestHeader",
    "UnknownApiVersions",
    "VersionRange",
    "common_version",
    "decode",
    "decode_response_header",
    "encode",
    "encode_request_header",
    "encode_response_header",
    "frame",
    "receive_request",
    "served_api",
    "wide",
]
