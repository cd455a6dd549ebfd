"""What the parsers of small text files share: letters and numbers, or a typed error."""

from __future__ import annotations

import re

from raftlog.errors import CorruptFileError

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)


def decoded_text(data: bytes, path: str) -> str:
    """UTF-8 text. Raises ``CorruptFileError`` with the position of the first damaged byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(path=path, position=error.start, reason="it is not text") from None


def whole_number(text: str, path: str, what: str) -> int:
    """A decimal integer as Java prints one. Raises ``CorruptFileError``."""
    if _NUMBER.fullmatch(text.strip()) is None:
        raise CorruptFileError(path=path, reason=f"{what} is {text[:20]!r}, not a number")
    return int(text)
