"""Delegation tokens: creation, renewal and expiry.

A token is in the log without its HMAC, which is its password. The HMAC is computed from the token's
id with the secret key that a cluster's nodes share. No message and no ``repr`` contains the key or
an HMAC. Times are milliseconds since 1970 UTC, and are arguments. A change row has all columns of a
token and needs no key. Unlike a request, it may name any requester and any times that requests can
result in, because the clock of the controller that expires a token may lag that of the controller
that created it.

Source: Kafka 4.3 ``DelegationTokenControlManager``, ``DelegationTokenCache``; KIP-900.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from raftlog_state.image import TokenRow
from raftlog_state.image.record_versions import LEVEL_TOKENS
from raftlog_state.records import DelegationTokenRecord, RemoveDelegationTokenRecord

from .api_exception import (
    DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_EXPIRED,
    DELEGATION_TOKEN_NOT_FOUND,
    DELEGATION_TOKEN_OWNER_MISMATCH,
    INVALID_PRINCIPAL_TYPE,
    UNSUPPORTED_VERSION,
    ApiException,
    check_uuid,
)
from .change_requests import RemoveToken, SetToken
from .controller_state import ControllerState
from .pending_state import PendingState, write_in_steps

MAX_LIFETIME_MS: Final = 7 * 24 * 3_600_000
RENEW_LIFETIME_MS: Final = 24 * 3_600_000
"""Defaults of Kafka's ``delegation.token.max.lifetime.ms``, ``delegation.token.expiry.time.ms``."""

REMOVALS_MAX: Final = 1_000
"""Tokens that one periodic task removes."""

_USER: Final = "User:"
_TIME_MAX: Final = 2**63 - 1
_WHAT: Final = "the delegation token"


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """Token of the state with its HMAC, which is a secret and not in ``repr``."""

    row: TokenRow
    hmac: bytes = field(repr=False)


class DelegationTokenControl:
    """Delegation tokens of a cluster. ``secret_key`` None: they are disabled.

    Principals are texts that include their type, such as ``User:ana``.
    """

    def __init__(
        self,
        secret_key: str | None,
        *,
        max_lifetime_ms: int = MAX_LIFETIME_MS,
        renew_lifetime_ms: int = RENEW_LIFETIME_MS,
    ) -> None:
        self._secret_key: Final = None if secret_key is None else secret_key.encode()
        self._max_lifetime_ms: Final = max_lifetime_ms
        self._renew_lifetime_ms: Final = renew_lifetime_ms

    def create(
        self,
        state: PendingState,
        *,
        requester: str,
        owner: str | None = None,
        renewers: Sequence[str] = (),
        max_lifetime_ms: int = -1,
        now_ms: int,
    ) -> DelegationToken:
        """Create a token. Raises ``ApiException``.

        ``owner``: None: the requester. ``max_lifetime_ms``: -1: the longest one.
        """
        self._check_enabled(state)
        for renewer in renewers:
            _check_renewer(renewer)
        lifetime_ms = self._max_lifetime_ms
        if max_lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, max_lifetime_ms)
        max_timestamp_ms = _sum(now_ms, lifetime_ms)
        row = TokenRow(
            token_id=state.random_uuid(),
            owner=owner or requester,
            requester=requester,
            renewers=tuple(renewers),
            issue_timestamp_ms=now_ms,
            max_timestamp_ms=max_timestamp_ms,
            expiration_timestamp_ms=min(max_timestamp_ms, _sum(now_ms, self._renew_lifetime_ms)),
        )
        _write(row, state)
        return self.token_of(row)

    def renew(
        self,
        state: PendingState,
        *,
        hmac: bytes,
        principal: str,
        renew_period_ms: int = -1,
        now_ms: int,
    ) -> int:
        """Renew a token, and return its expiry time. Raises ``ApiException``.

        ``renew_period_ms``: -1: the longest one.
        """
        self._check_enabled(state)
        row = self._row(hmac, state.current)
        _check_not_expired(row, now_ms)
        _check_allowed(row, principal)
        period_ms = self._renew_lifetime_ms
        if renew_period_ms > 0:
            period_ms = min(period_ms, renew_period_ms)
        expiry_ms = min(row.max_timestamp_ms, _sum(now_ms, period_ms))
        _write(replace(row, expiration_timestamp_ms=expiry_ms), state)
        return expiry_ms

    def expire(
        self,
        state: PendingState,
        *,
        hmac: bytes,
        principal: str,
        expiry_period_ms: int,
        now_ms: int,
    ) -> int:
        """Change when a token expires, and return the time. Raises ``ApiException``.

        A negative ``expiry_period_ms`` removes the token, even an expired one.
        """
        self._check_enabled(state)
        row = self._row(hmac, state.current)
        _check_allowed(row, principal)
        if expiry_period_ms < 0:
            state.write(RemoveDelegationTokenRecord(token_id=row.token_id))
            return now_ms
        _check_not_expired(row, now_ms)
        expiry_ms = min(row.max_timestamp_ms, _sum(now_ms, expiry_period_ms))
        _write(replace(row, expiration_timestamp_ms=expiry_ms), state)
        return expiry_ms

    def described_to(
        self,
        principal: str,
        owners: Collection[str] | None = None,
        *,
        is_allowed: Callable[[TokenRow], bool] = lambda _: False,
    ) -> Callable[[TokenRow], bool]:
        """Return a filter for the tokens that a principal owns, requested, may renew or may see.

        ``is_allowed`` accepts those that the principal may see (Kafka:
        ``DelegationTokenManager.filterToken``). ``owners``: principals, one of which must own, have
        requested or be able to renew a token; None: all. Raises ``ApiException``.
        """
        self._check_has_key()

        def is_of(row: TokenRow, principals: Collection[str]) -> bool:
            return any(one in principals for one in (row.owner, row.requester, *row.renewers))

        return lambda row: (
            (owners is None or is_of(row, owners)) and (is_of(row, (principal,)) or is_allowed(row))
        )

    def token_of(self, row: TokenRow) -> DelegationToken:
        """Return a token with its HMAC."""
        return DelegationToken(row, self._hmac(row.token_id))

    def remove_expired(self, state: PendingState, *, now_ms: int) -> bool:
        """Remove expired tokens; return whether there may be more.

        Kafka: ``sweepExpiredDelegationTokens``.
        """
        count = 0
        for row in state.current.rows_of(TokenRow):
            if _is_expired(row, now_ms):
                state.write(RemoveDelegationTokenRecord(token_id=row.token_id))
                count += 1
                if count >= REMOVALS_MAX:
                    return True
        return False

    # --- the key ----------------------------------------------------------------------------------

    def _hmac(self, token_id: str) -> bytes:
        assert self._secret_key is not None, "tokens are enabled"
        return hmac.digest(self._secret_key, token_id.encode(), "sha512")

    def _row(self, wanted: bytes, state: ControllerState) -> TokenRow:
        for row in state.rows_of(TokenRow):
            if hmac.compare_digest(self._hmac(row.token_id), wanted):
                return row
        reason = "Delegation Token is not found on server"
        raise ApiException(_WHAT, reason, "create a token", DELEGATION_TOKEN_NOT_FOUND)

    def _check_has_key(self) -> None:
        if not self._secret_key:
            reason = "Delegation Token feature is not enabled"
            remedy = "configure the secret key of all nodes"
            raise ApiException(_WHAT, reason, remedy, DELEGATION_TOKEN_AUTH_DISABLED)

    def _check_enabled(self, state: PendingState) -> None:
        self._check_has_key()
        _check_level(state)


@write_in_steps.register
def set_token(change: SetToken, state: PendingState) -> None:
    """Create or replace a delegation token."""
    _check_level(state)
    requester = change.requester or change.owner
    for principal in (change.owner, requester):
        if not 0 < principal.find(":", 1) < len(principal) - 1:
            reason = f"Supplied principal {principal!r} has no type or no name"
            raise ApiException(_WHAT, reason, f"use {_USER}NAME", INVALID_PRINCIPAL_TYPE)
    for renewer in change.renewers:
        _check_renewer(renewer)
    times_ms = change.issue_timestamp_ms, change.expiration_timestamp_ms, change.max_timestamp_ms
    if min(times_ms) < 0 or max(times_ms) > change.max_timestamp_ms:
        reason = f"its times {times_ms} of issue, expiration and at most are not in order"
        raise ApiException(_WHAT, reason, "correct them, in milliseconds since 1970 UTC")
    if change.token_id is not None:
        check_uuid(change.token_id, _WHAT)
    row = TokenRow(
        token_id=change.token_id or state.random_uuid(),
        owner=change.owner,
        requester=requester,
        renewers=tuple(change.renewers),
        issue_timestamp_ms=change.issue_timestamp_ms,
        max_timestamp_ms=change.max_timestamp_ms,
        expiration_timestamp_ms=change.expiration_timestamp_ms,
    )
    _write(row, state)


@write_in_steps.register
def remove_token(change: RemoveToken, state: PendingState) -> None:
    """Delete a delegation token."""
    _check_level(state)
    if state.current.find(TokenRow, change.token_id) is None:
        reason = f"There is no token with the id {change.token_id!r}"
        raise ApiException(_WHAT, reason, "correct token_id", DELEGATION_TOKEN_NOT_FOUND)
    state.write(RemoveDelegationTokenRecord(token_id=change.token_id))


def _check_renewer(renewer: str) -> None:
    if not renewer.startswith(_USER):
        reason = "Supplied principalType is not supported"
        raise ApiException(_WHAT, reason, f"use {_USER}NAME", INVALID_PRINCIPAL_TYPE)


def _check_level(state: PendingState) -> None:
    if state.current.level < LEVEL_TOKENS:
        reason = f"The current metadata.version {state.current.level} does not support them"
        remedy = f"upgrade metadata.version to {LEVEL_TOKENS} or higher first"
        raise ApiException(_WHAT, reason, remedy, UNSUPPORTED_VERSION)


def _write(row: TokenRow, state: PendingState) -> None:
    state.write(
        DelegationTokenRecord(
            owner=row.owner,
            requester=row.requester,
            renewers=row.renewers,
            issue_timestamp=row.issue_timestamp_ms,
            max_timestamp=row.max_timestamp_ms,
            expiration_timestamp=row.expiration_timestamp_ms,
            token_id=row.token_id,
        )
    )


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(_TIME_MAX, now_ms + duration_ms)


def _is_expired(row: TokenRow, now_ms: int) -> bool:
    return min(row.max_timestamp_ms, row.expiration_timestamp_ms) < now_ms


def _check_not_expired(row: TokenRow, now_ms: int) -> None:
    if _is_expired(row, now_ms):
        reason = "Delegation Token is expired"
        raise ApiException(_WHAT, reason, "create a token", DELEGATION_TOKEN_EXPIRED)


def _check_allowed(row: TokenRow, principal: str) -> None:
    if principal not in (row.owner, *row.renewers):
        reason = "Specified Principal is not valid Owner/Renewer"
        remedy = "use the owner or a renewer of the token"
        raise ApiException(_WHAT, reason, remedy, DELEGATION_TOKEN_OWNER_MISMATCH)
