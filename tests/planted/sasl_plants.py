"""Bugs of the client's authentication: a false server, a leaked secret, an ended session."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

REMOTE: Final = "connector/raftlog/client/remote"
EXCHANGES: Final = "tests/wire/test_sasl.py"
CLIENT: Final = "tests/client/remote/test_sasl_client.py"
LOGIN: Final = "tests/client/remote/test_login.py"
OPTIONS: Final = "tests/client/remote/test_security_options.py"

SASL_PLANTS: Final = (
    Plant(
        bug="a password that was changed since the challenge authenticates",
        path="connector/raftlog/node/sasl.py",
        old="        if self._users().find(mechanism, name) != challenged:",
        new="        if not challenged:",
        tests=(
            "tests/node/test_sasl_port.py"
            "::test_a_password_that_is_changed_after_the_challenge_is_refused",
        ),
    ),
    Plant(
        bug="the signature of a SCRAM server is not verified",
        path="connector/raftlog/wire/sasl.py",
        old="if not hmac.compare_digest(_verifier(_ascii(final)), expected):",
        new="if not _verifier(_ascii(final)):",
        tests=(EXCHANGES,),
    ),
    Plant(
        bug="a server chooses the whole nonce",
        path="connector/raftlog/wire/sasl.py",
        old="if not full_nonce.startswith(nonce) or full_nonce == nonce:",
        new="if not full_nonce:",
        tests=(EXCHANGES,),
    ),
    Plant(
        bug="a password that a server repeats is shown in an error",
        path="connector/raftlog/wire/sasl.py",
        old='            text = text.replace(secret, "***")\n',
        new="            pass\n",
        tests=(EXCHANGES, CLIENT),
    ),
    Plant(
        bug="requests are sent during a new authentication",
        path=f"{REMOTE}/connection.py",
        old="            held.append((api_key, version, body, request))\n",
        new="            data = self._in_flight.add(api_key, version, body, request)\n"
        "            self._transport.write(data)\n",
        tests=(CLIENT,),
    ),
    Plant(
        bug="a session is never renewed",
        path=f"{REMOTE}/connection.py",
        old="            if loop.time() >= self._reauthenticate_at_s:\n",
        new="            if loop.time() >= math.inf:\n",
        tests=(CLIENT,),
    ),
    Plant(
        bug="a server keeps the network thread busy with the key of a password",
        path=f"{REMOTE}/connection.py",
        old="message = await asyncio.to_thread(client.receive, response)",
        new="message = client.receive(response)",
        tests=(CLIENT,),
    ),
    Plant(
        bug="a refusal waits on the network thread for the token of another connection",
        path=f"{REMOTE}/connection.py",
        old="remedy = await asyncio.to_thread(login.discard_refused)",
        new="remedy = login.discard_refused()",
        tests=(CLIENT,),
    ),
    Plant(
        bug="the client's secret follows a redirect of the token endpoint",
        path=f"{REMOTE}/login.py",
        old="HTTPSHandler(context=_endpoint_context(ca)), _NoRedirects",
        new="HTTPSHandler(context=_endpoint_context(ca))",
        tests=(LOGIN,),
    ),
    Plant(
        bug="the repr of options has the password",
        path=f"{REMOTE}/security.py",
        old="    password: str | None = field(default=None, repr=False)\n    token:",
        new="    password: str | None = None\n    token:",
        tests=(OPTIONS,),
    ),
    Plant(
        bug="an unknown user takes more work than a known one",
        path="connector/raftlog/node/sasl.py",
        old="        found = users.find(mechanism, name) or unknown\n",
        new="        found = users.find(mechanism, name) or users.challenge_of(mechanism, name)\n",
        tests=("tests/node/test_sasl_port.py",),
    ),
)
