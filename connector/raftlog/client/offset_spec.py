"""Specifications of an offset: the offset itself, a time, an age, a leader epoch or a name.

``1231``
    An offset. A number of any size is an offset.
``2026-11-21T03:12:00Z``, ``2026-11-21 03:12``
    A time in ISO 8601. Without a zone it is UTC, so that the result does not depend on the machine.
``timestamp:1795248204043``
    A time in milliseconds since 1970, as in records.
``-15m``
    A time before now, in s, m, h or d.
``epoch:5``
    The start offset of a leader epoch.
``snapshot``, ``start``, ``end``
    The end offset of the newest snapshot, the log start offset, and the end of what is read. For
    the last two, Kafka's names ``earliest`` and ``latest`` are also allowed.

A time selects the first offset whose timestamp is >= it (Kafka: ``ListOffsets``), or the end if
there is no such record. As an end offset it excludes that record. Timestamps are set by the
leaders' clocks and need not ascend: every record before the offset has an earlier time, and so may
records after it. The tables (``raftlog_state.tables``) have the same rule.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from raftlog.errors import (
    DataLossError,
    OffsetNotFoundError,
    OffsetOutOfRangeError,
    OptionError,
)
from raftlog.limits import EPOCH_MAX, INT64_MAX

if TYPE_CHECKING:
    from raftlog.log.reading.log_reader import LogReader

FORMS: Final = (
    "an offset (0, 1, 2, ...), a time (2026-11-21T03:12:00Z; 2026-11-21 03:12 is UTC), "
    "timestamp:MILLISECONDS, an age (-15m, -2h, -1d), epoch:N, snapshot, start or end"
)
"""The forms, for error messages."""

_DIGITS: Final = re.compile(r"[0-9]{1,19}")
_AGE: Final = re.compile(r"-([0-9]{1,9})([smhd])")
_NUMBERED: Final = re.compile(r"(timestamp|epoch):([0-9]{1,19})")
_TIME_OF_DAY: Final = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?Z?")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ZERO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OffsetSpecKind(enum.Enum):
    """Kind of a specification."""

    OFFSET = "offset"
    TIME = "timestamp"
    AGE = "age"
    EPOCH = "epoch"
    SNAPSHOT = "snapshot"
    EARLIEST = "start"
    LATEST = "end"


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Specification of an offset in a log (Kafka: ``OffsetSpec``).

    ``number``: an offset, an epoch, or the milliseconds of a time or an age.
    """

    kind: OffsetSpecKind
    number: int = 0

    def __str__(self) -> str:
        match self.kind:
            case OffsetSpecKind.OFFSET:
                return str(self.number)
            case OffsetSpecKind.TIME:
                return time_text(self.number)
            case OffsetSpecKind.AGE:
                return f"{self.number} ms ago"
            case OffsetSpecKind.EPOCH:
                return f"leader epoch {self.number}"
        return str(self.kind.value)

    def at(self, now_ms: int) -> OffsetSpec:
        """Return the time of an age; any other specification unchanged."""
        if self.kind is OffsetSpecKind.AGE:
            return OffsetSpec(OffsetSpecKind.TIME, now_ms - self.number)
        return self


EARLIEST: Final = OffsetSpec(OffsetSpecKind.EARLIEST)
LATEST: Final = OffsetSpec(OffsetSpecKind.LATEST)
SNAPSHOT: Final = OffsetSpec(OffsetSpecKind.SNAPSHOT)
_WORDS: Final = {
    "start": EARLIEST,
    "earliest": EARLIEST,
    "end": LATEST,
    "latest": LATEST,
    "snapshot": SNAPSHOT,
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """Offset that a specification is in a log, and the reason for it as text."""

    offset: int
    reason: str


# --- Text to specification ------------------------------------------------------------------------


def parse_offset_spec(option: str, text: str) -> OffsetSpec:
    """Parse a specification. Raises ``OptionError`` of the named option, with the forms."""
    stripped = text.strip()
    found = parse_word(stripped)
    if found is None and _DIGITS.fullmatch(stripped):
        found = _within(OffsetSpecKind.OFFSET, int(stripped), INT64_MAX)
    elif found is None:
        time_ms = iso_ms(stripped)
        found = None if time_ms is None else OffsetSpec(OffsetSpecKind.TIME, time_ms)
    if found is None:
        hint = f"; {stripped} needs a date" if _TIME_OF_DAY.fullmatch(stripped) else ""
        raise OptionError(option=option, reason=f"must be {FORMS}{hint}")
    return found


def parse_word(text: str) -> OffsetSpec | None:
    """Parse a text that is neither a number nor in ISO 8601; None if it is no specification."""
    stripped = text.strip().lower()
    if stripped in _WORDS:
        return _WORDS[stripped]
    age = _AGE.fullmatch(stripped)
    if age is not None:
        return OffsetSpec(OffsetSpecKind.AGE, int(age[1]) * _UNIT_MS[age[2]])
    numbered = _NUMBERED.fullmatch(stripped)
    if numbered is None:
        return None
    if numbered[1] == "epoch":
        return _within(OffsetSpecKind.EPOCH, int(numbered[2]), EPOCH_MAX)
    return _within(OffsetSpecKind.TIME, int(numbered[2]), INT64_MAX)


def iso_ms(text: str) -> int | None:
    """Return a time in ISO 8601 in milliseconds since 1970; None if the text is no such time.

    It is rounded up: the timestamps that are not earlier are the same.
    """
    micros = iso_micros(text)
    return None if micros is None else -(-micros // 1_000)


def iso_micros(text: str) -> int | None:
    """Return a time in ISO 8601 as ``iso_ms`` does, in microseconds; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _ZERO
    except (ValueError, OverflowError):
        return None
    return since // timedelta(microseconds=1)


def time_text(time_ms: int) -> str:
    """Return a time in ISO 8601, in UTC; milliseconds since 1970 if it has no such text."""
    try:
        moment = _ZERO + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"timestamp:{time_ms}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _within(kind: OffsetSpecKind, number: int, most: int) -> OffsetSpec | None:
    return OffsetSpec(kind, number) if number <= most else None


# --- Specification to offset ----------------------------------------------------------------------


def resolve(
    spec: OffsetSpec,
    log: LogReader,
    *,
    now_ms: int,
    read_end: Callable[[], int],
    is_state: bool = False,
) -> Resolved:
    """Return the offset that a specification is in a log.

    An offset is returned unchanged, whether the log has it or not.

    Args:
        read_end: returns the end of what is read, which a snapshot may have after the log's. A time
            is never after it.
        is_state: whether the state before the offset is requested, for which the records before a
            time must be known.

    Raises:
        OffsetNotFoundError: the log has no such epoch or snapshot.
        DataLossError: the records of the time are only in a snapshot that ends after the log, or,
            with ``is_state``, were deleted.
    """
    match spec.kind:
        case OffsetSpecKind.OFFSET:
            return Resolved(spec.number, "as requested")
        case OffsetSpecKind.EARLIEST:
            return Resolved(log.log_start_offset, "the log start offset")
        case OffsetSpecKind.LATEST:
            return Resolved(read_end(), "the end of the log")
        case OffsetSpecKind.EPOCH:
            return _epoch_start(spec, log)
        case OffsetSpecKind.SNAPSHOT:
            newest = log.newest_snapshot()
            if newest is None:
                raise OffsetNotFoundError(
                    path=log.path, wanted="snapshot", remedy="choose an offset or a time"
                )
            return Resolved(newest.end_offset, f"the end offset of snapshot {newest}")
    return _first_at(spec.at(now_ms).number, log, read_end(), is_state)


def resolve_range(
    start: OffsetSpec | None,
    end: OffsetSpec | None,
    log: LogReader,
    *,
    now_ms: int,
    read_end: Callable[[], int],
    options: tuple[str, str],
    is_state: bool = False,
) -> tuple[Resolved, Resolved]:
    """Return the start and end offset that two specifications are in a log, in ascending order.

    Args:
        start: None: the log start offset.
        end: None: what ``read_end`` returns.
        now_ms, read_end, is_state: as for ``resolve``; the end is read once.
        options: names of the two, for errors.

    Raises:
        OptionError: the start is after ``end``.
        OffsetOutOfRangeError: the start is after what ``read_end`` returns.
        Also the errors of ``resolve``.
    """
    read_end = functools.cache(read_end)
    first, last = (
        resolve(spec, log, now_ms=now_ms, read_end=read_end, is_state=is_state)
        for spec in (start or EARLIEST, end or LATEST)
    )
    if end is None:
        check_not_after_end(first, log.path, log.log_start_offset, last.offset)
    return in_order(first, last, options=options)


def check_not_after_end(first: Resolved, path: str, start_offset: int, end_offset: int) -> None:
    """Raise ``OffsetOutOfRangeError`` for an offset after the end of what is read."""
    if first.offset > end_offset:
        raise OffsetOutOfRangeError(
            path=path,
            offset=first.offset,
            log_start_offset=start_offset,
            log_end_offset=end_offset,
        )


def in_order(
    first: Resolved, last: Resolved, *, options: tuple[str, str]
) -> tuple[Resolved, Resolved]:
    """Return two offsets. Raises ``OptionError`` if the first is after the second."""
    if first.offset > last.offset:
        raise OptionError(
            option=options[0],
            reason=f"offset {first.offset} is after that of {options[1]}, {last.offset}; give the "
            f"earlier one as {options[0]}",
        )
    return first, last


def _epoch_start(spec: OffsetSpec, log: LogReader) -> Resolved:
    entries = log.epochs.entries
    for entry in entries:
        if entry.epoch == spec.number:
            start = max(entry.start_offset, log.log_start_offset)
            reason = f"the start of {spec}"
            if 0 < start == log.log_start_offset:
                reason += " or later: the log starts there"
            return Resolved(start, reason)
    known = ", ".join(str(entry.epoch) for entry in entries[-10:])
    remedy = f"its leader epochs are {known}" if known else "it has no leader epochs"
    if len(entries) > 10:
        remedy = f"its newest leader epochs are {known}"
    raise OffsetNotFoundError(path=log.path, wanted=str(spec), remedy=remedy)


def _first_at(time_ms: int, log: LogReader, end_offset: int, is_state: bool) -> Resolved:
    """Return the first offset at or after a time, at most ``end_offset``."""
    wanted = time_text(time_ms)
    found = log.offset_for_timestamp(time_ms)
    if found is None:
        if end_offset > log.log_end_offset:
            _check_is_after_snapshot(time_ms, log)
        return Resolved(end_offset, f"the end: no record is as late as {wanted}")
    if found > end_offset:
        reason = f"the end of what is read: the first record at or after {wanted} is not committed"
        return Resolved(end_offset, reason)
    first_ms = _timestamp_of(log, found)
    actual = "unknown" if first_ms is None else time_text(first_ms)
    start = log.log_start_offset
    if 0 < found == start and is_state:
        raise DataLossError(
            path=log.path,
            condition="OFFSETS_DELETED",
            reason=f"the records before {wanted} were deleted: the log starts at offset {start}, "
            f"whose time is {actual}",
            remedy="choose a later time, or snapshot",
        )
    reason = f"the first record at or after {wanted}, its time is {actual}"
    if 0 < found == start:
        reason += "; earlier records were deleted"
    return Resolved(found, reason)


def _check_is_after_snapshot(time_ms: int, log: LogReader) -> None:
    """Check that a time is after that of the newest snapshot, which ends after the log.

    Raises ``DataLossError``.
    """
    newest = log.newest_snapshot()
    assert newest is not None, "the end of what is read is after that of the log"
    last_ms = log.read_snapshot(newest).last_contained_log_timestamp_ms
    if time_ms <= last_ms:
        raise DataLossError(
            path=log.path,
            condition="OFFSETS_DELETED",
            reason=f"the records before {time_text(time_ms)} are unknown: the log ends at offset "
            f"{log.log_end_offset}, and snapshot {newest} has records up to {time_text(last_ms)}",
            remedy="choose a later time, or snapshot",
        )


def _timestamp_of(log: LogReader, offset: int) -> int | None:
    from raftlog.records.batch_columns import Column

    for scan in log.scan(offset, offset + 1, columns=Column.OFFSET | Column.TIMESTAMP):
        records = scan.records
        assert records.offset is not None, "a requested column"
        assert records.timestamp_ms is not None, "a requested column"
        for at, time_ms in zip(
            records.offset.to_pylist(), records.timestamp_ms.to_pylist(), strict=True
        ):
            if at == offset:
                return int(time_ms)
    return None
