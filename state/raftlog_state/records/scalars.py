"""Text of single values: uuids as Kafka, doubles as Java, strings and bytes as Jackson.

A uuid is its base64url text of 22 characters, without padding (Kafka: ``Uuid.toString``).
Conversions are cached, because a log repeats the few ids of its topics and directories.

A double is formatted like ``Double.toString`` in Java 19 and newer: the shortest decimal that
parses to the same value. Older Java versions print one digit too many for a few values, such as
2.0E23.
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
    """Return Kafka's text of a uuid of 16 bytes."""
    return b2a_base64(data, newline=False)[:22].translate(_TO_URL).decode("ascii")


@lru_cache(_UUIDS_CACHED_MAX)
def uuid_bytes(text: str) -> bytes | None:
    """Return the 16 bytes of a uuid from Kafka's text, or None if the text is invalid."""
    data = bytes_of_base64(text.translate(_FROM_URL) + "==")
    if data is None or len(data) != UUID_BYTES or uuid_text(data) != text:
        return None
    return data


def bytes_of_base64(text: str) -> bytes | None:
    """Decode base64 (RFC 4648, padded); return None if the text is invalid."""
    try:
        return a2b_base64(text.encode("ascii"), strict_mode=True)
    except (Base64Error, UnicodeEncodeError):
        return None


def bytes_json(data: bytes) -> str:
    """Return bytes as Jackson writes them: base64, padded, in quotes."""
    return '"' + b2a_base64(data, newline=False).decode("ascii") + '"'


def string_json(text: str) -> str:
    """Return a string as Jackson writes it: only quotes, backslashes and controls are escaped."""
    quoted = encode_basestring(text)
    if "\\u" in quoted:  # Jackson's hex digits are upper case
        quoted = _ESCAPE.sub(_upper_hex, quoted)
    return quoted


def _upper_hex(escape: re.Match[str]) -> str:
    return "\\u" + escape[1][1:].upper() if escape[1][0] == "u" else escape[0]


def double_json(value: float) -> str:
    """Return a double as Jackson writes it: Java's text, NaN and infinities in quotes."""
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if len(digits) == 1:  # Java writes at least two digits, the nearest ones
        sign, digits, exponent = Decimal(f"{value:.1e}").normalize().as_tuple()
    assert isinstance(exponent, int), "the number is finite"
    text = "".join(map(str, digits))
    point = len(text) + exponent  # digits before the decimal point, may be 0 or negative
    if not -3 < point <= 7:
        text = f"{text[0]}.{text[1:] or '0'}E{point - 1}"
    elif point <= 0:
        text = "0." + "0" * -point + text
    else:
        text = text.ljust(point, "0")
        text = f"{text[:point]}.{text[point:] or '0'}"
    return "-" + text if sign else text
