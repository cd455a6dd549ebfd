"""Small text files: their content, and what parsers of them share."""

from __future__ import annotations

import re

from raftlog.errors import CorruptFileError, LogNotFoundError, SegmentDeletedError
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.storage.protocol import Storage

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


def read_small_file(storage: Storage, path: str) -> bytes | None:
    """The content of a small file, or None if there is none.

    Raises ``CorruptFileError`` if it is far larger than any that Kafka writes.
    """
    try:
        with storage.open_file(path) as file:
            data = file.read_at(0, SMALL_FILE_BYTES_MAX + 1)
    except (LogNotFoundError, SegmentDeletedError):
        return None
    if len(data) > SMALL_FILE_BYTES_MAX:
        raise CorruptFileError(path=path, reason=f"it is larger than {SMALL_FILE_BYTES_MAX} bytes")
    return data
