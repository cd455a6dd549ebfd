"""Refusal of a change, with Kafka's error codes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from raftlog.types import ZERO_UUID

UNKNOWN_SERVER_ERROR: Final = -1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
NOT_LEADER_OR_FOLLOWER: Final = 6
INVALID_TOPIC: Final = 17
UNSUPPORTED_SASL_MECHANISM: Final = 33
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_CONFIG: Final = 40
NOT_CONTROLLER: Final = 41
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
DELEGATION_TOKEN_AUTH_DISABLED: Final = 61
DELEGATION_TOKEN_NOT_FOUND: Final = 62
DELEGATION_TOKEN_OWNER_MISMATCH: Final = 63
DELEGATION_TOKEN_EXPIRED: Final = 66
INVALID_PRINCIPAL_TYPE: Final = 67
FENCED_LEADER_EPOCH: Final = 74
STALE_BROKER_EPOCH: Final = 77
PREFERRED_LEADER_NOT_AVAILABLE: Final = 80
ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = 83
ELECTION_NOT_NEEDED: Final = 84
NO_REASSIGNMENT_IN_PROGRESS: Final = 85
RESOURCE_NOT_FOUND: Final = 91
DUPLICATE_RESOURCE: Final = 92
UNACCEPTABLE_CREDENTIAL: Final = 93
INVALID_UPDATE_VERSION: Final = 95
UNKNOWN_TOPIC_ID: Final = 100
DUPLICATE_BROKER_REGISTRATION: Final = 101
BROKER_ID_NOT_REGISTERED: Final = 102
INCONSISTENT_CLUSTER_ID: Final = 104
INELIGIBLE_REPLICA: Final = 107
NEW_LEADER_ELECTED: Final = 108
INVALID_REGISTRATION: Final = 119
"""Kafka's error codes (``Errors``)."""

_UUID: Final = re.compile(r"[A-Za-z0-9_-]{22}")


class ApiException(Exception):  # noqa: N818 - Kafka's name; internal to the controller
    """Refusal of a change: ``what`` it concerns, the ``reason`` and a ``remedy``.

    ``reason`` is Kafka's message where Kafka has the same refusal. No text contains a config's
    value or a credential.
    """

    def __init__(
        self, what: str, reason: str, remedy: str, kafka_code: int = INVALID_REQUEST
    ) -> None:
        super().__init__(reason)
        self.what = what
        self.reason = reason
        self.remedy = remedy
        self.kafka_code = kafka_code


def enum_number(names: Mapping[int, str], word: str | int, what: str) -> int:
    """Return the value of one of Kafka's enums from its name or number.

    The name may be in any case, with ``-`` or ``_``.
    """
    plain = str(word).strip().upper().replace("-", "_")
    for number, name in names.items():
        if plain in (name.replace("-", "_"), str(number)):
            return number
    known = ", ".join(names.values())
    raise ApiException(what, f"{word!r} is not a known value", f"use one of {known}")


def check_uuid(text: str, what: str) -> None:
    """Raise ``ApiException`` unless ``text`` is a uuid in Kafka's form other than the zero uuid."""
    if _UUID.fullmatch(text) is None or text == ZERO_UUID:
        reason = f"{text!r} is not a uuid of 22 base64url characters"
        raise ApiException(what, reason, "correct it, or leave it out for a random one")
