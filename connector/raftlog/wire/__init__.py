"""Kafka's protocol <-> values: frames, headers, messages. Pure: bytes in, values out.

``wide`` holds the messages whose old versions have fields of their own; the others are kio's.
"""

from __future__ import annotations

from . import wide
from .answer_decoding import decode_response
from .answer_encoding import encode_refusal, encode_response
from .api_versions import (
    Offered,
    decode_versions_request,
    decode_versions_response,
    encode_versions_refusal,
    encode_versions_request,
    encode_versions_response,
)
from .apis import APIS, ApiKey, Listener, VersionRange, common_version
from .decoding import decode
from .encoding import encode
from .frame import FrameSplitter, frame
from .headers import (
    ReceivedRequest,
    RequestHeader,
    UnknownApiVersions,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    receive_request,
)
from .log_identity import LogIdentity, Refusal
from .request_decoding import QUORUM_APIS, decode_request, fetching_replica_id
from .request_encoding import encode_request, request_api_key

__all__ = [
    "APIS",
    "QUORUM_APIS",
    "ApiKey",
    "FrameSplitter",
    "Listener",
    "LogIdentity",
    "Offered",
    "ReceivedRequest",
    "Refusal",
    "RequestHeader",
    "UnknownApiVersions",
    "VersionRange",
    "common_version",
    "decode",
    "decode_request",
    "decode_response",
    "decode_response_header",
    "decode_versions_request",
    "decode_versions_response",
    "encode",
    "encode_refusal",
    "encode_request",
    "encode_request_header",
    "encode_response",
    "encode_response_header",
    "encode_versions_refusal",
    "encode_versions_request",
    "encode_versions_response",
    "fetching_replica_id",
    "frame",
    "receive_request",
    "request_api_key",
    "wide",
]
