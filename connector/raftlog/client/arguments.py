"""Validation of arguments of the public API.

An invalid argument raises ``OptionError`` with its name in the caller's thread: on the writer
thread it would fail the requests of other threads, too. Integers are all that ``operator.index``
accepts, numpy's included, but not ``True`` or ``1.0``.
"""

from __future__ import annotations

import operator
import re
from typing import Any, Final

from raftlog.errors import OptionError
from raftlog.limits import DECOMPRESSED_BYTES_OPTION_MAX
from raftlog.log.reading.reads import READ_UNCOMMITTED_NAME, Isolation
from raftlog.log.writing.batch_metadata import CommitName
from raftlog.records.builder import ProducerStamp
from raftlog.records.header import INT32_MAX, INT64_MAX

# --- Log paths as users give them -----------------------------------------------------------------
# ``file:///a``, ``file:/a`` and ``/a`` are the same path. URLs of other schemes are refused, and
# not shown in the error, since a URL may contain an access key.

_FILE_SCHEME = "file:"
_OTHER_SCHEME: Final = re.compile(r"(?:^|,)\s*(?!file:)([A-Za-z][A-Za-z0-9+.-]*)://")


def without_scheme(path: str) -> str:
    """Return the path without ``file:``. Raises ``OptionError`` for a URL of another scheme."""
    refuse_schemes(path)
    if not path.startswith(_FILE_SCHEME):
        return path
    rest = path[len(_FILE_SCHEME) :]
    return "/" + rest.lstrip("/") if rest.startswith("/") else rest


def refuse_schemes(paths: str) -> None:
    """Raise ``OptionError`` if one of several comma-separated paths is a URL, but not ``file:``."""
    found = _OTHER_SCHEME.search(paths)
    if found is not None:
        reason = f"{found[1][:20]}:// is not supported; give a path on a mounted file system"
        raise OptionError(option="path", reason=reason)


# --- Arguments ------------------------------------------------------------------------------------

_INT16_MAX: Final = 2**15 - 1
_WAIT_MS_MAX: Final = 2**40
"""More than 30 years; Python's locks accept about 290."""

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_DURATION: Final = re.compile(r"\s*(\d{1,18})\s*([a-z]*)\s*", re.ASCII)


def whole_number(value: Any, name: str, *, at_least: int = 0, at_most: int = INT64_MAX) -> int:
    """Return an integer from ``at_least`` to ``at_most``."""
    try:
        number = None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        number = None
    if number is None:
        raise OptionError(
            option=name, reason=f"it must be a whole number, not {type(value).__name__}"
        )
    if not at_least <= number <= at_most:
        raise OptionError(option=name, reason=f"it must be from {at_least} to {at_most}")
    return number


def decompression_limit(value: Any) -> int:
    """Return the largest size of a decompressed batch in bytes."""
    limit = DECOMPRESSED_BYTES_OPTION_MAX
    return whole_number(value, "decompressed_bytes_max", at_least=1, at_most=limit)


def offset_or_none(value: Any, name: str) -> int | None:
    """Return an offset or epoch, or None. The caller checks whether it may be negative."""
    return None if value is None else whole_number(value, name, at_least=-INT64_MAX)


def milliseconds(value: Any, name: str) -> float:
    """Return a timeout in milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(option=name, reason=f"it must be a number, not {type(value).__name__}")
    if not 0 <= value <= _WAIT_MS_MAX:
        raise OptionError(option=name, reason=f"it must be from 0 to {_WAIT_MS_MAX} milliseconds")
    return value


def duration_ms(name: str, value: str) -> int:
    """Return the milliseconds in a text: a number alone, or with a unit."""
    match = _DURATION.fullmatch(value.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise OptionError(
            option=name, reason="must be milliseconds, or a number with ms, s, m or h (such as 5s)"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def commit_name(value: Any) -> CommitName | None:
    """Return a commit's name, given as such or as its three parts."""
    if value is None or isinstance(value, CommitName):
        return value
    application_id, query_id, version = _parts(
        value, "commit", "(application id, query id, version)"
    )
    return CommitName(
        text(application_id, "application id"),
        text(query_id, "query id"),
        whole_number(version, "version"),
    )


def text(value: Any, name: str) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise OptionError(option=name, reason=f"it must be text, not {type(value).__name__}")
    return value


def text_or_none(value: Any, name: str) -> str | None:
    """Return a text, or None."""
    return None if value is None else text(value, name)


def producer_stamp(value: Any) -> ProducerStamp | None:
    """Return a producer's stamp, given as such or as its three parts."""
    if value is None:
        return None
    if isinstance(value, ProducerStamp):
        if value.is_transactional:
            reason = "a transactional producer is not supported: its transaction could not be ended"
            raise OptionError(option="producer", reason=reason)
        numbers = value.producer_id, value.producer_epoch, value.base_sequence
    else:
        numbers = _parts(value, "producer", "(id, epoch, sequence)")
    return ProducerStamp(
        whole_number(numbers[0], "producer id"),
        whole_number(numbers[1], "producer epoch", at_most=_INT16_MAX),
        whole_number(numbers[2], "producer sequence", at_most=INT32_MAX),
    )


def isolation_of(value: Any) -> Isolation:
    """Return an isolation level, given as such or by name, Kafka's ``read_uncommitted`` too."""
    if value == READ_UNCOMMITTED_NAME:
        return Isolation.READ_UNCOMMITTED
    try:
        return Isolation(value)
    except ValueError:
        names = ", ".join((*(one.value for one in Isolation), READ_UNCOMMITTED_NAME))
        raise OptionError(option="isolation", reason=f"it must be one of {names}") from None


def _parts(value: Any, name: str, form: str) -> tuple[Any, Any, Any]:
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise OptionError(option=name, reason=f"it must be {form}")
    return value[0], value[1], value[2]
