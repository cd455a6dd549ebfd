"""The value bytes of a redacted record."""

from __future__ import annotations

from raftlog_state.records import Redactor, decode, encode
from raftlog_state.records.serde import NO_OP_VALUE


def redact_value(redactor: Redactor, value: bytes) -> bytes:
    """Return the value of the redacted record; the same bytes if it has no secret."""
    if redactor.reveal or value == NO_OP_VALUE:
        return value
    decoded = decode(value)
    redacted = redactor.redact(decoded)
    return value if redacted is decoded else encode(redacted)
