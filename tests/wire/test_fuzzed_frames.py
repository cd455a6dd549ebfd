"""Mutated frames of every request and response, in every version: decoded, or malformed.

The corpora have a frame of each API and version, and those that take other steps in the decoders.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import pytest
from tests.support.corpora import COUNT, SEED, Input, corpus_of, fuzz
from tests.support.quorum_messages import IDENTITY
from tests.support.wire_messages import message_kinds, random_message

from raftlog.wire import (
    APIS,
    CONTROLLER_APIS,
    QUORUM_APIS,
    ApiKey,
    Listener,
    ProduceResponse,
    RequestError,
    RequestHeader,
    UnknownApiVersions,
    api_versions,
    codec,
    decode,
    decode_fetch_request,
    decode_fetch_response,
    decode_produce_request,
    decode_produce_response,
    decode_request,
    decode_response,
    decode_response_header,
    decode_versions_response,
    encode,
    encode_request,
    encode_request_header,
    encode_response_header,
    fetch_codec,
    fields,
    produce_codec,
    raft_codec,
    raft_fields,
    receive_request,
)
from raftlog.wire.errors import MalformedMessageError, UnsupportedApiError
from raftlog.wire.produce_codec import parse_appended_message, parse_error_message

MODULES: Final = {
    *(api_versions, codec, fetch_codec, produce_codec, raft_codec, raft_fields, fields),
    sys.modules[receive_request.__module__],  # "frame" of the package is its function
}
EVERY_API: Final = {**APIS, **CONTROLLER_APIS}
BOTH: Final = Listener.CLIENTS | Listener.VOTERS
KINDS: Final = {
    (kind.__name__.endswith("Request"), api.key, version): kind
    for api, kind, version in message_kinds()
}
API: Final = struct.Struct(">hh")
BY_HAND: Final[dict[tuple[bool, ApiKey], Callable[..., Any]]] = {
    (True, ApiKey.PRODUCE): decode_produce_request,
    (True, ApiKey.FETCH): decode_fetch_request,
    (False, ApiKey.PRODUCE): decode_produce_response,
    (False, ApiKey.FETCH): decode_fetch_response,
    (False, ApiKey.API_VERSIONS): decode_versions_response,
}


def accepted(work: Callable[[], Any]) -> Any:
    """Return a message, None for bytes that are malformed."""
    try:
        return work()
    except MalformedMessageError:
        return None


def check(is_request: bool, key: ApiKey, version: int, data: bytes, start: int) -> None:
    """Decode a body by all decoders; what they accept is written and read unchanged."""
    kind = KINDS[is_request, key, version]
    message = accepted(lambda: decode(kind, version, data, start=start))
    if message is not None:
        again = decode(kind, version, encode(message, version))
        assert again == message or repr(again) == repr(message), "equal, or with a NaN"
    by_hand = BY_HAND.get((is_request, key))
    if by_hand is not None:
        found = accepted(lambda: by_hand(version, data, start=start))
        if isinstance(found, ProduceResponse):
            for result in found.results:
                parse_error_message(result.message)
                parse_appended_message(result.message)
    if key in QUORUM_APIS and (key is not ApiKey.FETCH or version >= 13):
        read = decode_request if is_request else decode_response
        request = accepted(lambda: read(key, version, data, IDENTITY, start=start))
        if is_request and request is not None and not isinstance(request, RequestError):
            written = encode_request(request, version, IDENTITY)
            assert decode_request(key, version, written, IDENTITY) == request


def run_request(given: Input) -> None:
    (data,) = given
    try:
        received = receive_request(data, BOTH, EVERY_API)
    except (MalformedMessageError, UnsupportedApiError):
        return
    if not isinstance(received, UnknownApiVersions):
        header = received.header
        check(True, ApiKey(header.api_key), header.api_version, data, received.body_start)


def run_response(given: Input) -> None:
    """Decode a response; the first message of an input is the key and version of its request."""
    api, data = given
    key, version = API.unpack(api) if len(api) == API.size else (-1, -1)
    if (False, key, version) not in KINDS:
        return
    header = accepted(lambda: decode_response_header(data, key, version))
    if header is not None:
        check(False, ApiKey(key), version, data, header[1])


TARGETS: Final[dict[str, tuple[Callable[[Input], None], set[ModuleType]]]] = {
    "request-frames": (run_request, MODULES),
    "response-frames": (run_response, MODULES),
}


def seeds(name: str) -> list[Input]:
    """Return the first corpus: a random message of each API and version."""
    rng = random.Random(name)
    found: list[Input] = []
    for (is_request, key, version), kind in KINDS.items():
        body = encode(random_message(kind, version, rng), version)
        if is_request and name == "request-frames":
            head = encode_request_header(RequestHeader(key, version, 7, "client"))
            found.append((head + body,))
        elif not is_request and name == "response-frames":
            found.append((API.pack(key, version), encode_response_header(7, key, version) + body))
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpora_have_every_api_in_every_version(name: str) -> None:
    is_request = name == "request-frames"
    found = {API.unpack(one[0][: API.size]) for one in corpus_of(name) if len(one[0]) >= API.size}
    assert {(key, version) for of, key, version in KINDS if of is is_request} <= found


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_frames_are_decoded_or_malformed(name: str) -> None:
    run, modules = TARGETS[name]
    fuzz(name, run, modules, seed=1, count=200)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_many_mutated_frames_are_decoded_or_malformed(name: str) -> None:
    run, modules = TARGETS[name]
    fuzz(name, run, modules, seed=SEED, count=COUNT)
