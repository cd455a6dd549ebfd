"""Parsers of option values, shared by source and sink.

A parser takes the option's documented name and its text. ``OptionError`` states which values are
allowed, and never contains the text, which may be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from raftlog import limits
from raftlog.client.arguments import duration_ms as duration_ms
from raftlog.errors import OptionError

Parse = Callable[[str, str], Any]
"""Parser of an option: name and text to value."""

_UNITS_BYTES: Final = {"": 1, "b": 1, "k": limits.KIB, "m": limits.MIB, "g": 1024 * limits.MIB}
_QUANTITY: Final = re.compile(r"\s*(\d{1,18})\s*([a-z]*)\s*", re.ASCII)
_LONG_MAX: Final = 2**63 - 1


def text(_name: str, value: str) -> str:
    """Return the text unchanged."""
    return value


def paths(name: str, value: str) -> str:
    """Parse Spark's JSON array for ``load([one, two])``."""
    try:
        parts = json.loads(value)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise OptionError(option=name, reason="must be a JSON array of paths")
    return ",".join(parts)


def boolean(name: str, value: str) -> bool:
    """Parse ``true`` or ``false``."""
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise OptionError(option=name, reason="must be true or false")


def integer(min_value: int, most: int = _LONG_MAX) -> Callable[[str, str], int]:
    """Return a parser of integers between two inclusive bounds."""

    def parse(name: str, value: str) -> int:
        match = _QUANTITY.fullmatch(value)
        if match is None or match[2] or not min_value <= int(match[1]) <= most:
            top = "" if most == _LONG_MAX else f" to {most}"
            raise OptionError(option=name, reason=f"must be an integer from {min_value}{top}")
        return int(match[1])

    return parse


def byte_count(name: str, value: str) -> int:
    """Parse a number of bytes, optionally with the unit k, m or g (powers of 1024)."""
    match = _QUANTITY.fullmatch(value.lower())
    unit = None if match is None else match[2].removesuffix("b") or match[2]
    if match is None or unit not in _UNITS_BYTES or int(match[1]) == 0:
        raise OptionError(
            option=name, reason="must be bytes from 1, or a number with k, m or g (e.g. 64m)"
        )
    return int(match[1]) * _UNITS_BYTES[unit]


def timestamp_ms(name: str, value: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 (UTC without a time zone)."""
    stripped = value.strip()
    if re.fullmatch(r"\d{1,18}", stripped, re.ASCII):
        return int(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise OptionError(
            option=name,
            reason="must be milliseconds since 1970, or ISO 8601 (e.g. 2026-03-01T12:00:00Z)",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
