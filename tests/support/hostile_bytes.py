"""Bytes that a peer must not send: mutations of valid messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from raftlog.wire import (
    QUORUM_APIS,
    ApiKey,
    Listener,
    decode,
    decode_request,
    decode_response,
    decode_versions_response,
    encode,
    receive_request,
)
from raftlog.wire.errors import MalformedMessageError
from tests.support.quorum_messages import IDENTITY
from tests.support.wire_messages import message_kinds, random_message
from tests.support.wire_vectors import header_vectors, message_vectors

_LENGTHS = (
    b"\x7f\xff\xff\xff",  # 2^31-1 as int32
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",  # 2^32-1 as varint
    b"\x80\x80\x80\x80\x08",  # 2^31
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80",
    b"\x7f\xff",
    b"\xff\xff",
    b"\x80",
    b"\x00",
)
Decoder = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Target:
    """Decoder, and bytes that it accepts."""

    name: str
    decoder: Decoder
    valid: bytes


def targets(seed: int) -> list[Target]:
    """Return all decoders, with Kafka's vectors and a random message of each version."""
    rng = random.Random(seed)
    found = [
        Target(f"header {version}", _header(version), data) for version, data in header_vectors()
    ]
    found += [
        Target(f"{one.name} {one.version}", _message(one.kind, one.version), one.data)
        for one in message_vectors()
    ]
    for api, kind, version in message_kinds():
        valid = encode(random_message(kind, version, rng), version)
        name = f"{kind.__name__} {version}"
        found.append(Target(name, _message(kind, version), valid))
        if api.key in QUORUM_APIS and (api.key is not ApiKey.FETCH or version >= 13):
            found.append(Target(f"{name} of the quorum", _quorum(api.key, kind, version), valid))
        if api.key is ApiKey.API_VERSIONS and "Response" in kind.__name__:
            found.append(Target(f"{name} of a peer", _offered(version), valid))
    return found


def mutations(valid: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield mutations endlessly: flipped bits, inserted lengths, pieces cut, repeated, moved or
    added."""
    while True:
        data = bytearray(valid)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            at = rng.randrange(len(data) + 1)
            end = min(len(data), at + rng.randrange(1, 9))
            match rng.randrange(6):
                case 0 if data:
                    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                case 1:
                    length = rng.choice(_LENGTHS)
                    data[at : at + len(length)] = length
                case 2:
                    del data[at:end]
                case 3:
                    data[at:at] = data[at:end] * rng.randrange(1, 4)
                case 4:
                    data[at:at] = rng.choice(_LENGTHS)
                case _:
                    data[at:end] = rng.randbytes(end - at)
        yield bytes(data)


def is_accepted(decoder: Decoder, data: bytes) -> bool:
    """Return whether the bytes are accepted; False for the one allowed error."""
    try:
        decoder(data)
    except MalformedMessageError:
        return False
    return True


def _header(version: int) -> Decoder:
    """Decode a header of this version: any bytes after the key and version of a served API."""
    api = ApiKey.FETCH.to_bytes(2, "big") + (12 if version > 1 else 11).to_bytes(2, "big")
    return lambda data: receive_request(api + data[4:], Listener.CLIENTS)


def _message(kind: type[Any], version: int) -> Decoder:
    """Check that an accepted message is written and read back unchanged."""

    def decoder(data: bytes) -> object:
        message = decode(kind, version, data)
        again = decode(kind, version, encode(message, version))
        assert again == message or repr(again) == repr(message), "equal, or with a NaN"
        return message

    return decoder


def _quorum(key: ApiKey, kind: type[Any], version: int) -> Decoder:
    read = decode_request if "Request" in kind.__name__ else decode_response
    return lambda data: read(key, version, data, IDENTITY)


def _offered(version: int) -> Decoder:
    return lambda data: decode_versions_response(version, data)
