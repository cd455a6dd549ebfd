"""SASL of a client's connections with a scripted node: order of requests, refusals, sessions."""

from __future__ import annotations

import base64
import datetime
import hashlib
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.api_versions.v4 import response as api_versions
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.primitive import i64Timedelta
from tests.client.remote.test_sent_batches import Appended, LoneLeader
from tests.support.scripted_node import Answer, ScriptedNode

import raftlog
from raftlog.client.remote import connection, metadata
from raftlog.errors import (
    AccessDeniedError,
    OptionError,
    QuorumUnavailableError,
    RaftlogError,
    SaslAuthenticationError,
    SecurityProtocolError,
    UnsupportedSaslMechanismError,
)
from raftlog.limits import SCRAM_ITERATIONS_MAX
from raftlog.wire import APIS, SASL_APIS, ApiKey, decode, latest_schemas, sasl
from raftlog.wire.log_identity import duration, int16

PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "hunter2",
}
NETWORK_THREAD = "raftlog client of"


class SaslNode(ScriptedNode):
    """Node that offers PLAIN, and describes no topic: a call of an authenticated client fails.

    ``error`` is the code of its answer to a handshake, ``refusal`` that to credentials.
    """

    def __init__(
        self, *, error: int = 0, refusal: int = 0, lifetime_ms: int = 0, has_sasl: bool = True
    ) -> None:
        self.error, self.refusal, self.lifetime_ms = error, refusal, lifetime_ms
        self.has_sasl = has_sasl
        self.received: list[bytes] = []
        self.sasl_answers: dict[ApiKey, Answer] = {
            ApiKey.API_VERSIONS: self._versions,
            ApiKey.SASL_HANDSHAKE: self._handshake,
            ApiKey.SASL_AUTHENTICATE: self._authenticate,
        }
        super().__init__({**self.sasl_answers, ApiKey.METADATA: self._metadata})

    def _versions(self, _version: int, _body: bytes) -> Any:
        ranges = {key: api.versions for key, api in APIS.items()}
        ranges |= SASL_APIS if self.has_sasl else {}
        keys = tuple(
            api_versions.ApiVersion(
                api_key=int16(key), min_version=int16(one.first), max_version=int16(one.last)
            )
            for key, one in ranges.items()
        )
        return api_versions.ApiVersionsResponse(
            error_code=ErrorCode.none,
            api_keys=keys,
            throttle_time=duration(0),
        )

    def _metadata(self, _version: int, _body: bytes) -> Any:
        if not self.received or self.error:
            return None
        return latest_schemas.MetadataResponse(
            throttle_time=duration(0),
            brokers=(),
            cluster_id=None,
            topics=(),
            error_code=ErrorCode.none,
        )

    def _handshake(self, version: int, body: bytes) -> Any:
        self.received.append(decode(SaslHandshakeRequest, version, body).mechanism.encode())
        return SaslHandshakeResponse(error_code=ErrorCode(self.error), mechanisms=("PLAIN", "X"))

    def _authenticate(self, version: int, body: bytes) -> Any:
        self.received.append(decode(SaslAuthenticateRequest, version, body).auth_bytes)
        text = "no hunter2 \x1b[2J" if self.refusal else None
        return SaslAuthenticateResponse(
            error_code=ErrorCode(self.refusal),
            error_message=text,
            auth_bytes=b"",
            session_lifetime=i64Timedelta.parse(datetime.timedelta(milliseconds=self.lifetime_ms)),
        )


def error_of(node: ScriptedNode, config: dict[str, str], **more: Any) -> RaftlogError:
    with pytest.raises(RaftlogError) as caught:
        raftlog.follow(node.address, config=config, **{"timeout_ms": 20_000} | more)
    assert "hunter2" not in str(caught.value)
    return caught.value


def test_no_other_request_is_sent_before_the_authentication_is_complete() -> None:
    with SaslNode() as node:
        assert type(error_of(node, PLAIN)) is AccessDeniedError
    expected = [
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.METADATA,
    ]
    assert node.asked == expected
    assert node.received == [b"PLAIN", b"\0alice\0hunter2"]


@pytest.mark.parametrize(
    ("node", "kind", "words"),
    [
        (lambda: SaslNode(error=33), UnsupportedSaslMechanismError, "it offers PLAIN, X; set sasl"),
        (lambda: SaslNode(error=34), SecurityProtocolError, "has no SASL"),
        (lambda: SaslNode(has_sasl=False), SecurityProtocolError, "has no SASL"),
        (lambda: SaslNode(refusal=58), SaslAuthenticationError, r"no \*\*\* \\u001b\[2J.*password"),
    ],
)
def test_a_refusal_ends_the_call_and_says_what_to_do(
    node: Callable[[], SaslNode], kind: type[RaftlogError], words: str
) -> None:
    with node() as peer:
        error = error_of(peer, PLAIN)
        assert type(error) is kind
        assert str(peer.address) in str(error)
        with pytest.raises(kind, match=words):
            raise error
        assert peer.asked.count(ApiKey.SASL_HANDSHAKE) <= 1, "one attempt, so no account is locked"


def test_a_client_without_sasl_learns_that_the_listener_requires_it() -> None:
    with SaslNode(error=33) as node:
        error = error_of(node, {})
    assert type(error) is SecurityProtocolError
    assert "requires SASL; it offers PLAIN, X; set security.protocol=SASL_PLAINTEXT" in str(error)
    assert node.received == [b""]


def test_a_node_that_closes_connections_for_another_reason_is_tried_again() -> None:
    with SaslNode(error=34) as node:
        assert type(error_of(node, {}, timeout_ms=300)) is QuorumUnavailableError


@pytest.fixture
def _sessions_end_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REAUTHENTICATE_AFTER", 0.0)


@pytest.mark.usefixtures("_sessions_end_immediately")
def test_requests_wait_for_a_new_authentication_before_the_session_ends() -> None:
    with SaslNode(lifetime_ms=60_000) as node:
        assert type(error_of(node, PLAIN)) is AccessDeniedError
    authentication = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    expected = [ApiKey.API_VERSIONS, *authentication, *authentication, ApiKey.METADATA]
    assert node.asked == expected


@pytest.mark.usefixtures("_sessions_end_immediately")
def test_a_session_that_cannot_be_renewed_is_an_error_of_the_credentials() -> None:
    class ChangedPassword(SaslNode):
        def _authenticate(self, version: int, body: bytes) -> Any:
            answer = super()._authenticate(version, body)
            self.refusal = 58
            return answer

    with ChangedPassword(lifetime_ms=60_000) as node:
        assert type(error_of(node, PLAIN)) is SaslAuthenticationError
    assert ApiKey.METADATA not in node.asked


@pytest.mark.usefixtures("_sessions_end_immediately")
def test_an_error_of_the_function_for_tokens_ends_the_requests_that_wait_for_it() -> None:
    tokens = iter(["one"])

    class LostVaultError(Exception):
        pass

    def token() -> str:
        for one in tokens:
            return one
        raise LostVaultError("hunter2")

    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    with SaslNode(lifetime_ms=60_000) as node, pytest.raises(LostVaultError):
        raftlog.follow(node.address, config=config, oauth_token=token, timeout_ms=600_000)
    assert ApiKey.METADATA not in node.asked


@pytest.mark.parametrize("is_option", [False, True], ids=["a function", "a reference"])
def test_an_append_without_credentials_fails_alone(
    is_option: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret may be missing while it is rotated. Later appends are sent again."""
    fails = False

    def token() -> str:
        if fails:
            raise ConnectionError("hunter2")
        return "one"

    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    more: dict[str, Any] = {"oauth_token": token}
    if is_option:
        config, more = PLAIN | {"sasl.password": "${env:ROTATED}"}, {}
        monkeypatch.setenv("ROTATED", "hunter2")
    leader = LoneLeader([Appended(10), Appended(11)])
    with SaslNode() as node, leader.node as peer:
        leader.node.add_answers(node.sasl_answers)
        with raftlog.connect(peer.address, config=config, timeout_ms=20_000, **more) as log:
            assert log.append(b"a").base_offset == 10
            fails = True
            monkeypatch.delenv("ROTATED", raising=False)
            peer.disconnect()
            kind = OptionError if is_option else SaslAuthenticationError
            with pytest.raises(kind) as caught:
                log.append(b"b", timeout_ms=20_000)
            assert "hunter2" not in str(caught.value)
            fails = False
            monkeypatch.setenv("ROTATED", "hunter2")
            assert log.append(b"c", timeout_ms=20_000).base_offset == 11
    assert [one.values for one in leader.sent] == [(b"a",), (b"c",)]


@pytest.mark.parametrize(
    "raised",
    [KeyError("hunter2"), TimeoutError("hunter2"), OptionError(option="vault", reason="hunter2")],
    ids=lambda one: type(one).__name__,
)
def test_an_error_of_the_function_for_tokens_is_raised_as_it_is(raised: Exception) -> None:
    """With its cause; none of its text is in the error of an append."""
    raised.__cause__ = cause = LookupError("hunter2")
    fails = True

    def token() -> str:
        if fails:
            raise raised
        return "one"

    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    leader = LoneLeader([])
    with SaslNode() as node, leader.node as peer:
        leader.node.add_answers(node.sasl_answers)
        with pytest.raises(type(raised)) as caught:
            raftlog.connect(peer.address, config=config, oauth_token=token, timeout_ms=20_000)
        assert caught.value is raised
        assert raised.__cause__ is cause
        fails = False
        with raftlog.connect(peer.address, config=config, oauth_token=token) as log:
            fails = True
            peer.disconnect()
            with pytest.raises(SaslAuthenticationError) as refused:
                log.append(b"a", timeout_ms=20_000)
    reason = f"oauth_token raised {type(raised).__name__}"
    assert refused.value.reason == reason
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_a_bug_in_the_search_for_the_leader_is_not_an_error_of_the_function_for_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    leader, leaders = LoneLeader([]), dict[str, str]()
    with SaslNode() as node, leader.node as peer:
        leader.node.add_answers(node.sasl_answers)
        with raftlog.connect(peer.address, config=config, oauth_token=lambda: "one") as log:
            monkeypatch.setattr(metadata.Metadata, "_find", lambda *_: leaders["leader"])
            peer.disconnect()
            error = log.append_async(b"a", timeout_ms=20_000).exception(60)
    assert "the sender failed: KeyError('leader')" in str(error)


# --- the network thread, which serves all connections of a client ---------------------------------


class ScramNode(SaslNode):
    """Node whose challenge requests the most iterations that a client allows."""

    def _authenticate(self, version: int, body: bytes) -> Any:
        answer = super()._authenticate(version, body)
        if len(self.received) > 2:  # mechanism, first message, proof
            return replace(answer, error_code=ErrorCode(58))
        nonce = self.received[-1].rpartition(b"r=")[2].decode()
        salt = base64.b64encode(b"salt").decode()
        challenge = f"r={nonce}x,s={salt},i={SCRAM_ITERATIONS_MAX}"
        return replace(answer, auth_bytes=challenge.encode())


def test_the_key_of_a_password_is_derived_outside_the_network_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    derive, threads = hashlib.pbkdf2_hmac, []

    def watched(*arguments: Any) -> bytes:
        threads.append(threading.current_thread().name)
        return derive(*arguments)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", watched)
    with ScramNode() as node:
        error = error_of(node, PLAIN | {"sasl.mechanism": "SCRAM-SHA-256"})
    assert type(error) is SaslAuthenticationError
    (thread,) = threads
    assert not thread.startswith(NETWORK_THREAD)


def test_a_refused_token_is_discarded_outside_the_network_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for an authentication that waits for its token."""
    expiry, threads = sasl.token_expiry_s, []

    def watched(token: str) -> float | None:
        threads.append(threading.current_thread().name)
        return expiry(token)

    monkeypatch.setattr(sasl, "token_expiry_s", watched)
    config = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    with SaslNode(refusal=58) as node:
        error = error_of(node, config, oauth_token=lambda: "hunter2")
    assert type(error) is SaslAuthenticationError
    (thread,) = threads
    assert not thread.startswith(NETWORK_THREAD)
