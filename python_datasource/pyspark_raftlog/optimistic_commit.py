"""``commit_loop``: read, decide, append under the token, and decide again if somebody was first.

Rules of this file:

1. A decision is made on all records below an offset and appended at that offset, or not at all.
2. Clock and chance are arguments. Pauses double up to a bound and are drawn from zero on, so that
   rivals part (full jitter); the first conflict is answered at once.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import raftlog
from raftlog.errors import LogLockedError, UnexpectedEndOffsetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from raftlog import AppendResult, ConnectedLog, EmbeddedLog
    from raftlog.client.log_records import LogRecords
    from raftlog.client.user_records import UserRecord

TRIES_MAX: Final = 20
PAUSE_FIRST_S: Final = 0.01
PAUSE_LONGEST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NewRecords:
    """What a decision is made on.

    ``records`` are those that were not shown before, from ``start_offset`` up to ``end_offset``
    (exclusive); iterate them, or take ``records.to_arrow()``. ``end_offset`` is where the decision
    will be appended. ``attempt`` counts from 1.
    """

    records: LogRecords
    attempt: int

    @property
    def start_offset(self) -> int:
        return self.records.start_offset

    @property
    def end_offset(self) -> int:
        return self.records.end_offset


Decision: TypeAlias = "Iterable[UserRecord] | DataFrame | None"
"""Records, as ``EmbeddedLog.append`` takes them; a DataFrame, as ``append`` does; or nothing."""


def commit_loop(
    log: EmbeddedLog | ConnectedLog | str | os.PathLike[str],
    decide: Callable[[NewRecords], Decision],
    *,
    from_offset: int | None = None,
    tries_max: int = TRIES_MAX,
    pause: Callable[[float], object] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> AppendResult | None:
    """Append what ``decide`` decides, if the log is still what it decided on; else ask it again.

    ``decide`` is called with the records from ``from_offset`` (the log's start) on, and after a
    conflict with those that came in between: it keeps in mind what it has seen. It returns what to
    append, as one batch, or None to append nothing, which ends the loop with None.

    Raises ``UnexpectedEndOffsetError`` or ``LogLockedError`` after ``tries_max`` tries (nothing was
    written), and whatever ``decide`` and appending raise.
    """
    if isinstance(log, str | os.PathLike):
        with raftlog.open(log, create=False) as opened:
            return commit_loop(
                opened,
                decide,
                from_offset=from_offset,
                tries_max=tries_max,
                pause=pause,
                jitter=jitter,
            )
    at = from_offset
    for attempt in range(1, tries_max + 1):
        new_records = NewRecords(log.read(at), attempt)
        at = new_records.end_offset
        decision = decide(new_records)
        if decision is None:
            return None
        try:
            return _append(log, decision, at)
        except (UnexpectedEndOffsetError, LogLockedError):
            if attempt == tries_max:
                raise
        if attempt > 1:
            pause(jitter() * min(PAUSE_LONGEST_S, PAUSE_FIRST_S * 2 ** (attempt - 2)))
    raise ValueError("tries_max is 1 or more")


def _append(log: EmbeddedLog | ConnectedLog, decision: Any, at: int) -> AppendResult | None:
    if hasattr(decision, "mapInArrow"):
        from .frames import append

        to = log.path if isinstance(log, raftlog.EmbeddedLog) else log
        return append(decision, to=to, required_base_offset=at)
    return log.append(decision, required_base_offset=at)
