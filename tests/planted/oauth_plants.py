"""Bugs in the verification of tokens."""

from __future__ import annotations

from typing import Final

from .plant import Plant

OAUTH: Final = "connector/raftlog/node/oauth.py"
SASL: Final = "connector/raftlog/node/sasl.py"
TESTS: Final = ("tests/node/test_oauth.py",)

OAUTH_PLANTS: Final = (
    Plant(
        bug="a refused token whose client leaves without an acknowledgement is not logged",
        path="connector/raftlog/node/server.py",
        old="            self._log_sasl_failure(connection, refusal)\n",
        new="            pass\n",
        tests=TESTS,
    ),
    Plant(
        bug="token: the algorithm is what the token says",
        path=OAUTH,
        old='    if header.get("alg") != key.algorithm:\n',
        new="    if False:\n",
        tests=TESTS,
    ),
    Plant(
        bug="token: the signature is not verified",
        path=OAUTH,
        old="    if not _is_signed(key, signature,",
        new="    if False and not _is_signed(key, signature,",
        tests=TESTS,
    ),
    Plant(
        bug="token: any audience is accepted",
        path=OAUTH,
        old="    if config.audience not in (",
        new="    if False and config.audience not in (",
        tests=TESTS,
    ),
    Plant(
        bug="token: any issuer is accepted",
        path=OAUTH,
        old='    if claims.get("iss") != config.issuer:\n',
        new="    if False:\n",
        tests=TESTS,
    ),
    Plant(
        bug="token: one without an end is accepted",
        path=OAUTH,
        old='    if expires_s is None:\n        raise TokenRefusedError("it has no exp")\n',
        new="    if expires_s is None:\n        expires_s = wall_s + 3_600\n",
        tests=TESTS,
    ),
    Plant(
        bug="token: one that is not valid yet is accepted",
        path=OAUTH,
        old='    for name in ("nbf", "iat"):\n',
        new='    for name in ("iat",):\n',
        tests=TESTS,
    ),
    Plant(
        bug="token: a claim that is there twice is accepted",
        path=OAUTH,
        old="object_pairs_hook=_unique",
        new="object_pairs_hook=dict",
        tests=TESTS,
    ),
    Plant(
        bug="token: its session does not end with it",
        path=SASL,
        old="min(left_s, self._max_reauth_s or left_s), now_s)",
        new="self._max_reauth_s, now_s)",
        tests=TESTS,
    ),
    Plant(
        bug="token: its session outlives its key",
        path=SASL,
        old="self._tokens is not None and self._tokens.has_key(credential)",
        new="self._tokens is not None",
        tests=TESTS,
    ),
    Plant(
        bug="token: every unknown key id has the keys read",
        path=OAUTH,
        old="            if now_s - self._read_s >= MISSING_KEY_PAUSE_S:\n",
        new="            if True:\n",
        tests=TESTS,
    ),
    Plant(
        bug="token: keys that cannot be read replace the old ones",
        path=OAUTH,
        old="        elif isinstance(error, KeysError):\n",
        new="        elif isinstance(error, KeysError):\n            self._keys = {}\n",
        tests=TESTS,
    ),
)
