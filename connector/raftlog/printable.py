"""Text of strangers, such as paths and host names, as text that a terminal and JSON take.

Rules of this file:

1. Letters of every script stay. What is not printable (controls, C1, directions of writing, line
   separators, halves of surrogate pairs) becomes JSON's ``\\uXXXX``, inside JSON and outside.
2. The user and the password in a URL are never shown.
"""

from __future__ import annotations

import re
from typing import Final

_USER_INFO: Final = re.compile(r"://.*@", re.DOTALL)


def printable(text: str) -> str:
    """``text`` with everything escaped that is not printable; of one line, so newlines too."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def without_user_info(text: str) -> str:
    """A URL, or several, without what is between ``//`` and ``@``: a user, a password, a key."""
    return _USER_INFO.sub("://***@", text)


def _escaped(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
