"""Text of messages: escaping of untrusted text, such as paths and host names, for terminals, logs
and JSON; compact JSON itself; the credentials in URLs, which are not shown; and the hint for a name
that is unknown.

Printable characters of every script stay. Others (C0 and C1 controls, bidirectional controls, line
separators, lone surrogates) become ``\\uXXXX``, as in JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Final

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""``json.dumps`` with separators constructs one in each call."""
_USER_INFO: Final = re.compile(r"://.*@", re.DOTALL)
_KEYS: Final = re.compile(
    r"://[^,?]*:[^,?]*@|[?&](?:sig|[a-z_]*(?:key|secret|token|password))=", re.IGNORECASE
)
"""User info with a password (in the URI of Azure, a container is before the ``@``), or a key in the
query, as of a shared access signature."""


def printable(text: str) -> str:
    """Return ``text`` with all characters escaped that are not printable, newlines included."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def compact_json(value: object) -> str:
    """Return a value as JSON on one line, without spaces. Characters of every script stay.

    NaN and infinities, which JSON does not have, are texts, as in Kafka's JSON (Jackson).
    """
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _ENCODER.encode(_with_finite_numbers(value))


def _with_finite_numbers(value: object) -> object:
    """Return JSON data in which numbers that are not finite are replaced by their names in Java."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {name: _with_finite_numbers(item) for name, item in value.items()}
        case list() | tuple():
            return [_with_finite_numbers(item) for item in value]
    return value


def without_user_info(text: str) -> str:
    """Return ``text`` with the user info of its URLs (user, password, key) replaced by ``***``."""
    return _USER_INFO.sub("://***@", text)


def store_location(uri: str) -> str:
    """Return the URI of an object store as messages have it: without user info and query."""
    return without_user_info(uri.partition("?")[0])


def has_keys(text: str) -> bool:
    """Return whether URLs in ``text`` have a password in the user info, or a key in the query."""
    return _KEYS.search(text) is not None


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """Return ``did you mean ...?`` with the most similar name, None if none is similar.

    Case is ignored.
    """
    import difflib

    by_key = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), by_key, n=1)
    return f"did you mean {by_key[near[0]]}?" if near else None


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
