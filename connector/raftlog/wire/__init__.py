"""Kafka's wire protocol: frames, headers, requests and responses. Pure functions, no I/O.

The message classes are kio's, with two exceptions: the classes in ``latest_schemas`` also have the
fields of older versions, and the classes in ``produce_codec`` and ``fetch_codec`` are written by
hand.
"""

from __future__ import annotations

from . import fetch_codec, latest_schemas, sasl
from .api_versions import (
    NO_FEATURES,
    Features,
    NodeApiVersions,
    decode_versions_request,
    decode_versions_response,
    encode_unsupported_version_response,
    encode_versions_request,
    encode_versions_response,
)
from .apis import (
    APIS,
    CONTROLLER_APIS,
    SASL_APIS,
    Api,
    ApiKey,
    Listener,
    VersionRange,
    common_version,
)
from .codec import decode, encode
from .fetch_codec import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from .fields import LeaderEndpoint
from .frame import (
    FrameDecoder,
    InFlightRequests,
    ReceivedRequest,
    RequestHeader,
    RequestReceiver,
    UnknownApiVersions,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    frame,
    receive_request,
)
from .log_identity import LogIdentity, RequestError
from .produce_codec import (
    ProducedBatch,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
    decode_produce_request,
    decode_produce_response,
    encode_produce_request,
    encode_produce_response,
)
from .raft_codec import (
    QUORUM_APIS,
    decode_request,
    decode_response,
    encode_error_response,
    encode_request,
    encode_response,
    request_api_key,
)
from .replica_fetch import ReplicaFetchCodec

__all__ = [
    "APIS",
    "SASL_APIS",
    "CONTROLLER_APIS",
    "NO_FEATURES",
    "Api",
    "Features",
    "QUORUM_APIS",
    "ApiKey",
    "FetchedPartition",
    "FetchedTopic",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FrameDecoder",
    "InFlightRequests",
    "LeaderEndpoint",
    "Listener",
    "LogIdentity",
    "NodeApiVersions",
    "ProduceRequest",
    "ProduceResponse",
    "ProduceResult",
    "ProducedBatch",
    "ProducedTopic",
    "ReceivedRequest",
    "ReplicaFetchCodec",
    "RequestError",
    "RequestHeader",
    "RequestReceiver",
    "UnknownApiVersions",
    "VersionRange",
    "common_version",
    "decode",
    "decode_fetch_request",
    "decode_fetch_response",
    "decode_produce_request",
    "decode_produce_response",
    "decode_request",
    "decode_response",
    "decode_response_header",
    "decode_versions_request",
    "decode_versions_response",
    "encode",
    "encode_error_response",
    "encode_fetch_request",
    "encode_fetch_response",
    "encode_produce_request",
    "encode_produce_response",
    "encode_request",
    "encode_request_header",
    "encode_response",
    "encode_response_header",
    "encode_unsupported_version_response",
    "encode_versions_request",
    "encode_versions_response",
    "frame",
    "receive_request",
    "request_api_key",
    "fetch_codec",
    "latest_schemas",
    "sasl",
]
