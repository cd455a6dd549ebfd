"""Changes of SCRAM credentials, and the credentials of users.

Source: Kafka 4.3 ``ScramControlManager``, ``ScramFormatter``, ``ScramImage``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from raftlog_state.enums import SCRAM_MECHANISMS
from raftlog_state.image import ScramRow
from raftlog_state.image.record_versions import LEVEL_SCRAM
from raftlog_state.records import RemoveUserScramCredentialRecord, UserScramCredentialRecord

from .api_exception import (
    DUPLICATE_RESOURCE,
    RESOURCE_NOT_FOUND,
    UNACCEPTABLE_CREDENTIAL,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
    ApiException,
    enum_number,
)
from .change_requests import RemoveScram, SetScram
from .controller_state import ControllerState
from .pending_state import PendingState, write_in_steps

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
SALT_BYTES: Final = 24

_HASHES: Final = {1: "sha256", 2: "sha512"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """Credential of a user, as Kafka's clients send it. Its secrets are not in ``repr``."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    """Credential of a user to delete."""

    user: str
    mechanism: int


def alter_user_scram_credentials(
    deletions: Sequence[ScramDeletion], upsertions: Sequence[ScramUpsertion], state: PendingState
) -> Generator[None, None, dict[str, ApiException | None]]:
    """Delete and replace SCRAM credentials; return the refusal of each user, or None.

    A user may occur only once in a request, with one mechanism.
    """
    found: dict[str, ApiException | None] = {}
    counts = Counter(one.user for one in deletions)
    counts.update(one.user for one in upsertions)
    parts: list[tuple[str, Callable[[], None]]] = [
        *((one.user, partial(_delete, one, state)) for one in deletions),
        *((one.user, partial(_upsert, one, state)) for one in upsertions),
    ]
    for user, part in parts:
        if counts[user] > 1:
            reason = "A user credential cannot be altered twice in the same request"
            remedy = "alter each user in a request of its own"
            what = f"SCRAM credential of {user!r}"
            found[user] = ApiException(what, reason, remedy, DUPLICATE_RESOURCE)
        else:
            found[user] = state.attempt(part)
        yield from state.pause()
    return found


def iterations_by_user(rows: Iterable[ScramRow]) -> dict[str, dict[int, int]]:
    """Return the iterations of credentials by user and mechanism."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        found.setdefault(row.user, {})[row.mechanism] = row.iterations
    return found


def describe_user_scram_credentials(
    users: Sequence[str], state: ControllerState
) -> dict[str, dict[int, int] | ApiException]:
    """Return the iterations of users' credentials by mechanism; without users: of all users."""
    found: dict[str, dict[int, int] | ApiException] = {}
    if not users:
        return found | iterations_by_user(state.rows_of(ScramRow))
    counts = Counter(users)
    named = (state.find(ScramRow, user, at) for user in counts for at in SCRAM_MECHANISMS)
    rows = iterations_by_user(row for row in named if row is not None)
    for user in counts:
        what = f"SCRAM credential of {user!r}"
        if counts[user] > 1:
            reason = (
                "Cannot describe SCRAM credentials for the same user twice in a single request: "
                f"{user}"
            )
            found[user] = ApiException(what, reason, "name each user once", DUPLICATE_RESOURCE)
        elif user not in rows:
            reason = f"Attempt to describe a user credential that does not exist: {user}"
            found[user] = ApiException(what, reason, "correct the user", RESOURCE_NOT_FOUND)
        else:
            found[user] = rows[user]
    return found


@write_in_steps.register
def set_scram(change: SetScram, state: PendingState) -> None:
    """Create or replace a user's SCRAM credential."""
    what = f"SCRAM credential of {change.user!r}"
    mechanism = _mechanism(change.mechanism, what)
    _check_user(change.user, mechanism, what, state)
    _check_iterations(change.iterations, what)
    reason = None
    if (change.password is None) == (change.salted_password is None):
        reason = "exactly one of password and salted_password must be set"
    elif change.password == "":
        reason = "the password is empty"
    elif change.salted_password is not None and not change.salt:
        reason = "salted_password is set without salt"
    if reason is not None:
        raise ApiException(what, reason, "correct the credential", UNACCEPTABLE_CREDENTIAL)
    salt = change.salt or state.rng.randbytes(SALT_BYTES)
    salted = change.salted_password
    if salted is None:
        assert change.password is not None
        salted = hashlib.pbkdf2_hmac(
            _HASHES[mechanism], change.password.encode(), salt, change.iterations
        )
    upsertion = ScramUpsertion(
        user=change.user,
        mechanism=mechanism,
        iterations=change.iterations,
        salt=salt,
        salted_password=salted,
    )
    _upsert(upsertion, state)


@write_in_steps.register
def remove_scram(change: RemoveScram, state: PendingState) -> None:
    """Delete a user's SCRAM credential; it must exist."""
    what = f"SCRAM credential of {change.user!r}"
    _delete(ScramDeletion(change.user, _mechanism(change.mechanism, what)), state)


# --- helpers --------------------------------------------------------------------------------------


def _upsert(upsertion: ScramUpsertion, state: PendingState) -> None:
    what = f"SCRAM credential of {upsertion.user!r}"
    _check_user(upsertion.user, upsertion.mechanism, what, state)
    _check_iterations(upsertion.iterations, what)
    name = _HASHES[upsertion.mechanism]
    client_key = hmac.digest(upsertion.salted_password, b"Client Key", name)
    state.write(
        UserScramCredentialRecord(
            name=upsertion.user,
            mechanism=upsertion.mechanism,
            salt=upsertion.salt,
            stored_key=hashlib.new(name, client_key).digest(),
            server_key=hmac.digest(upsertion.salted_password, b"Server Key", name),
            iterations=upsertion.iterations,
        )
    )


def _delete(deletion: ScramDeletion, state: PendingState) -> None:
    what = f"SCRAM credential of {deletion.user!r}"
    _check_user(deletion.user, deletion.mechanism, what, state)
    if state.current.find(ScramRow, deletion.user, deletion.mechanism) is None:
        reason = "Attempt to delete a user credential that does not exist"
        raise ApiException(what, reason, "correct user and mechanism", RESOURCE_NOT_FOUND)
    state.write(RemoveUserScramCredentialRecord(name=deletion.user, mechanism=deletion.mechanism))


def _check_user(user: str, mechanism: int, what: str, state: PendingState) -> None:
    if state.current.level < LEVEL_SCRAM:
        reason = f"The current metadata.version {state.current.level} does not support SCRAM"
        remedy = f"upgrade metadata.version to {LEVEL_SCRAM} or higher first"
        raise ApiException(what, reason, remedy, UNSUPPORTED_VERSION)
    if not user:
        raise ApiException(what, "Username must not be empty", "set user", UNACCEPTABLE_CREDENTIAL)
    if mechanism not in _HASHES:
        known = ", ".join(SCRAM_MECHANISMS.values())
        reason = "Unknown SCRAM mechanism"
        raise ApiException(what, reason, f"use one of {known}", UNSUPPORTED_SASL_MECHANISM)


def _check_iterations(iterations: int, what: str) -> None:
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        amount = "few" if iterations < ITERATIONS_MIN else "many"
        reason = f"Too {amount} iterations: not in {ITERATIONS_MIN} to {ITERATIONS_MAX}"
        raise ApiException(what, reason, "correct the iterations", UNACCEPTABLE_CREDENTIAL)


def _mechanism(word: str | int, what: str) -> int:
    try:
        return enum_number(SCRAM_MECHANISMS, word, what)
    except ApiException as refused:
        refused.kafka_code = UNSUPPORTED_SASL_MECHANISM
        raise
