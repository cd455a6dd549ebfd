"""Single values: Kafka's text of a uuid, Java's text of a double, Jackson's text of a string.

Rules of this file:

1. A uuid is its base64 text for URLs without padding, 22 characters (Kafka: ``Uuid.toString``).
2. A double is written as ``Double.toString`` of Java 19 and newer does: the shortest decimal that
   reads back equal. (Older Java writes a digit too many for a few values, such as 2.0E23.)
3. Both conversions of uuids are cached: a log names few directories and topics, many times.
"""

from __future__ import annotations

import math
import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from decimal import Decimal
from functools import lru_cache
from json.encoder import encode_basestring
from typing import Final

UUID_BYTES: Final = 16
_UUIDS_CACHED_MAX: Final = 16_384
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = str.maketrans("-_+/", "+/!!")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-f]{4}|.)")


@lru_cache(_UUIDS_CACHED_MAX)
def uuid_text(data: bytes) -> str:
    """Kafka's text of 16 bytes."""
    return b2a_base64(data, newline=False)[:22].translate(_TO_URL).decode("ascii")


@lru_cache(_UUIDS_CACHED_MAX)
def uuid_bytes(text: str) -> bytes | None:
    """The 16 bytes of Kafka's text, or None where it is no such text."""
    data = bytes_of_base64(text.translate(_FROM_URL) + "==")
    if data is None or len(data) != UUID_BYTES or uuid_text(data) != text:
        return None
    return data


def bytes_of_base64(text: str) -> bytes | None:
    """What ``text`` encodes (RFC 4648, padded), or None where it is not base64."""
    try:
        return a2b_base64(text.encode("ascii"), strict_mode=True)
    except (Base64Error, UnicodeEncodeError):
        return None


def bytes_json(data: bytes) -> str:
    """Bytes as Jackson writes them: base64, padded, in quotes."""
    return '"' + b2a_base64(data, newline=False).decode("ascii") + '"'


def string_json(text: str) -> str:
    """A string as Jackson writes it: nothing but quotes, backslashes and controls is escaped."""
    quoted = encode_basestring(text)
    if "\\u" in quoted:  # Jackson's hex digits are capitals
        quoted = _ESCAPE.sub(_upper_hex, quoted)
    return quoted


def _upper_hex(escape: re.Match[str]) -> str:
    return "\\u" + escape[1][1:].upper() if escape[1][0] == "u" else escape[0]


def double_json(value: float) -> str:
    """A double as Jackson writes it: Java's text, and in quotes what JSON has no number for."""
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if len(digits) == 1:  # Java gives two digits, and of those the nearest
        sign, digits, exponent = Decimal(f"{value:.1e}").normalize().as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    text = "".join(map(str, digits))
    point = len(text) + exponent  # digits before the decimal point, may be none or negative
    if not -3 < point <= 7:
        text = f"{text[0]}.{text[1:] or '0'}E{point - 1}"
    elif point <= 0:
        text = "0." + "0" * -point + text
    else:
        text = text.ljust(point, "0")
        text = f"{text[:point]}.{text[point:] or '0'}"
    return "-" + text if sign else text
