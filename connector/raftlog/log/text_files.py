"""Reading and parsing of small text files."""

from __future__ import annotations

import re

from raftlog.errors import CorruptFileError, LogNotFoundError, SegmentDeletedError
from raftlog.limits import SMALL_FILE_BYTES_MAX
from raftlog.storage.protocol import Storage

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)


def decoded_text(data: bytes, path: str) -> str:
    """Decode UTF-8. Raises ``CorruptFileError`` with the position of the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFileError(path=path, position=error.start, reason="it is not text") from None


def whole_number(text: str, path: str, what: str) -> int:
    """Parse a decimal integer as Java prints it. Raises ``CorruptFileError``."""
    if _NUMBER.fullmatch(text.strip()) is None:
        raise CorruptFileError(path=path, reason=f"{what} is {text[:20]!r}, not a number")
    return int(text)


def read_small_file(storage: Storage, path: str) -> bytes | None:
    """Return the content of a small file; None if it does not exist.

    Raises ``CorruptFileError`` if it is larger than ``SMALL_FILE_BYTES_MAX``.
    """
    try:
        with storage.open_file(path) as file:
            data = file.read_at(0, SMALL_FILE_BYTES_MAX + 1)
    except (LogNotFoundError, SegmentDeletedError):
        return None
    if len(data) > SMALL_FILE_BYTES_MAX:
        raise CorruptFileError(path=path, reason=f"it is larger than {SMALL_FILE_BYTES_MAX} bytes")
    return data
