"""SASL of a raw connection to a node."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from raftlog.wire import ApiKey, decode, encode
from raftlog.wire.sasl import scram_exchange

from .served_node import RawConnection

_VERSIONS = {ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 2}


async def _ask(connection: RawConnection, key: ApiKey, request: object, kind: type[Any]) -> Any:
    version = _VERSIONS[key]
    connection.ask(key, version, encode(request, version))
    _, body = await connection.answer(key, version)
    return decode(kind, version, body)


async def handshake(connection: RawConnection, mechanism: str) -> None:
    """Choose a mechanism."""
    response = await _ask(
        connection,
        ApiKey.SASL_HANDSHAKE,
        SaslHandshakeRequest(mechanism=mechanism),
        SaslHandshakeResponse,
    )
    assert response.error_code == 0


async def send_message(connection: RawConnection, message: bytes) -> Any:
    """Return the response to one message of the mechanism."""
    return await _ask(
        connection,
        ApiKey.SASL_AUTHENTICATE,
        SaslAuthenticateRequest(auth_bytes=message),
        SaslAuthenticateResponse,
    )


async def _exchange(
    connection: RawConnection,
    mechanism: str,
    name: str,
    password: str,
    before_proof: Callable[[], object] = bool,
) -> tuple[bytes, Any]:
    """Return the challenge and the final response. ``before_proof`` is called in between."""
    await handshake(connection, mechanism)
    exchange = scram_exchange(mechanism, name, password, f"{random.Random(name).random()}")
    message, challenge = next(exchange), b""
    for _ in range(2):
        response = await send_message(connection, message)
        if response.error_code != 0:
            return challenge, response
        if not challenge:
            challenge = bytes(response.auth_bytes)
            before_proof()
        try:
            message = exchange.send(bytes(response.auth_bytes))
        except StopIteration:
            return challenge, response
    raise AssertionError("the exchange has two messages")


async def authenticate(connection: RawConnection, mechanism: str, name: str, password: str) -> None:
    """Authenticate a connection."""
    _, response = await _exchange(connection, mechanism, name, password)
    assert response.error_code == 0


async def refused(
    connection: RawConnection,
    mechanism: str,
    name: str,
    password: str,
    before_proof: Callable[[], object] = bool,
) -> tuple[str, int, str, str]:
    """Fail to authenticate; return salt, error code, error message and iterations."""
    challenge, response = await _exchange(connection, mechanism, name, password, before_proof)
    assert response.error_code != 0
    parts = dict(part.split("=", 1) for part in challenge.decode().split(","))
    return parts["s"], int(response.error_code), response.error_message, parts["i"]
