"""Parsers of the values of options, which are texts: of the Spark source, and of the tables.

A parser has the option's documented name and its text. ``OptionError`` names the allowed values,
and never contains the text, which may be a secret.
"""

from __future__ import annotations

import re
from typing import Final

from raftlog.errors import OptionError
from raftlog.limits import DECOMPRESSED_BYTES_OPTION_MAX, KIB, MIB
from raftlog.log.reading.reads import LogKind

QUANTITY: Final = re.compile(r"\s*(\d{1,18})\s*([a-z]*)\s*", re.ASCII)
"""A number that an INT64 has, and perhaps a unit in lower case."""
_UNITS_BYTES: Final = {"": 1, "b": 1, "k": KIB, "m": MIB, "g": KIB * MIB}
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}


def boolean(name: str, value: str) -> bool:
    """Return ``true`` or ``false``."""
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise OptionError(option=name, reason="must be true or false")


def byte_count(name: str, value: str) -> int:
    """Return a number of bytes, which may have the unit k, m or g (powers of 1024)."""
    match = QUANTITY.fullmatch(value.lower())
    unit = None if match is None else match[2].removesuffix("b") or match[2]
    if match is None or unit not in _UNITS_BYTES or int(match[1]) == 0:
        raise OptionError(
            option=name, reason="must be bytes from 1, or a number with k, m or g (e.g. 64m)"
        )
    return int(match[1]) * _UNITS_BYTES[unit]


def decompressed_bytes(name: str, value: str) -> int:
    """Return the largest size of a decompressed batch in bytes."""
    found = byte_count(name, value)
    if found > DECOMPRESSED_BYTES_OPTION_MAX:
        reason = f"must be at most {DECOMPRESSED_BYTES_OPTION_MAX} bytes"
        raise OptionError(option=name, reason=reason)
    return found


def duration_ms(name: str, value: str) -> int:
    """Return the milliseconds in a text: a number alone, or with a unit."""
    match = QUANTITY.fullmatch(value.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise OptionError(
            option=name, reason="must be milliseconds, or a number with ms, s, m or h (such as 5s)"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def log_kind(name: str, value: str) -> LogKind:
    """Return the kind of a log whose values are ``kraft``, ``bytes`` or ``msgpack``."""
    match value.strip().lower():
        case "kraft":
            return LogKind.METADATA
        case "bytes" | "msgpack":
            return LogKind.PARTITION
        case _:
            raise OptionError(option=name, reason="must be kraft, bytes or msgpack")
