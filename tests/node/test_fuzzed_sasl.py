"""SASL with mutated messages, of both sides: refused, or the right secret; corpora in the
repository.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from types import ModuleType
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from raftlog.node import oauth
from raftlog.node.oauth import TokenRefusedError, verify_token
from raftlog.wire import sasl
from tests.node.test_oauth import CONFIG, EC_KEY, KEYS, NOW_S, text_of
from tests.support.corpora import COUNT, SEED, Input, fuzz
from tests.wire.test_sasl import NONCE, SALT, SERVER_NONCE, credential, scram

CREDENTIAL: Final = credential()
OTHER: Final = credential(password="unknown")
MECHANISM: Final = "SCRAM-SHA-256"


def run_server(given: Input) -> None:
    """Exchange the messages of a client; a proof is accepted only with the password of ``user``."""
    first, final = given
    exchange = sasl.scram_server_exchange(
        MECHANISM,
        lambda name: CREDENTIAL if name == "user" else OTHER,
        SERVER_NONCE[len(NONCE) :],
    )
    next(exchange)
    try:
        challenge = exchange.send(first)
        exchange.send(final)
    except sasl.SaslExchangeError:
        return
    without_proof, _, proof = final.rpartition(b",p=")
    client_first = first.split(b",", 2)[2]
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    message = b",".join((client_first, challenge, without_proof))
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    expected = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    assert base64.b64decode(proof) == expected
    assert client_first.split(b",")[0] == b"n=user"


def run_client(given: Input) -> None:
    """Exchange the messages of a server; it is accepted only with the password's verifier."""
    first, final = given
    exchange = scram()
    client_first = next(exchange).split(b",", 2)[2]
    try:
        without_proof = exchange.send(first).rpartition(b",p=")[0]
        exchange.send(final)
    except sasl.SaslExchangeError:
        return
    except StopIteration:
        pass
    values = dict(one.split(b"=", 1) for one in first.split(b",") if b"=" in one)
    salt, iterations = base64.b64decode(values[b"s"]), int(values[b"i"])
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, iterations)
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    message = b",".join((client_first, first, without_proof))
    verifier = base64.b64encode(hmac.digest(server_key, message, "sha256"))
    assert verifier.rstrip(b"=") in final


def run_bearer(given: Input) -> None:
    """Present a token with the given header and claims in the given frame, with a signature that is
    valid; it is accepted only by its own claims."""
    before, header, claims, after = given
    data = f"{text_of(header)}.{text_of(claims)}".encode()
    r, s = decode_dss_signature(EC_KEY.sign(data, ec.ECDSA(SHA256())))
    signature = text_of(r.to_bytes(32, "big") + s.to_bytes(32, "big")).encode()
    try:
        token, user = sasl.oauthbearer_token(before + data + b"." + signature + after)
        found = verify_token(token, KEYS, CONFIG, NOW_S)
    except (sasl.SaslExchangeError, TokenRefusedError):
        return
    values = json.loads(claims)
    assert found.name == values["sub"]
    assert values["iss"] == CONFIG.issuer
    assert CONFIG.audience in values["aud"]
    assert values["exp"] > NOW_S - 300
    assert json.loads(header)["alg"] == "ES256"
    assert isinstance(user, str)


TARGETS: Final[dict[str, tuple[Callable[[Input], None], ModuleType]]] = {
    "sasl-scram-clients": (run_server, sasl),
    "sasl-scram-servers": (run_client, sasl),
    "sasl-bearer-tokens": (run_bearer, oauth),
}


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_exchanges_are_refused_or_have_the_secret(name: str) -> None:
    run, module = TARGETS[name]
    fuzz(name, run, {module, sasl}, seed=1, count=100)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TARGETS)
def test_many_mutated_exchanges_are_refused_or_have_the_secret(name: str) -> None:
    run, module = TARGETS[name]
    fuzz(name, run, {module, sasl}, seed=SEED, count=COUNT)
