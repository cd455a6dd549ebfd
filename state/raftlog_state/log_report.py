"""Report on what happened to a cluster, from a metadata log or from Delta tables."""

from __future__ import annotations

import os

from raftlog.client import LogReader
from raftlog.client.offset_spec import EARLIEST, OffsetSpec, OffsetSpecKind
from raftlog.clock import Clock

from .log_changes import Offset, offset_spec
from .records import Redactor
from .report.history import ClusterHistory
from .report.page import Report
from .state_sources import StateSource, open_states


def read_report(
    source: str | os.PathLike[str] | LogReader,
    *,
    since: Offset | None = None,
    until: Offset | None = None,
) -> Report:
    """Return the report on a cluster between two states, like ``raftlog report``.

    ``svg()`` and ``html()`` of the result can be passed to ``displayHTML`` of a notebook. Secrets
    of a log are redacted; secrets in tables stay as they were written.

    Args:
        source: the log, an argument of ``raftlog.client.open_path``, or a directory of Delta tables
            (``pip install "raftlog[delta]"``), which retain changes that were deleted from the log.
        since: the first state: all records below this offset, time, age or name; None: the oldest.
        until: the last state; None: the newest.

    Raises:
        OptionError: an argument is invalid. Also the errors of ``StateSource.image_at``.
    """
    first, last = offset_spec("since", since), offset_spec("until", until)
    states = open_states(source, Redactor(), from_oldest=True)
    start, end = states.resolve_range(
        *(first_state(states, first), last),
        options=("since", "until"),
        now_ms=Clock().wall_ms(),
    )
    return report_between(states, start.offset, end.offset)


def first_state(states: StateSource, wanted: OffsetSpec | None) -> OffsetSpec:
    """Return which state a report begins with: the oldest that can be read, by default."""
    if wanted not in (None, EARLIEST):
        return wanted
    return OffsetSpec(OffsetSpecKind.OFFSET, states.oldest_state)


def report_between(states: StateSource, start_offset: int, end_offset: int) -> Report:
    """Return the report on the changes between two end offsets.

    The leader at the start is not in a snapshot, so a log is read from its oldest one on.
    """
    before = states.image_at(start_offset)
    history = None
    for record in states.changes(end_offset):
        if history is None:
            history = ClusterHistory(before, record.timestamp_ms)
        history.add(record)
    after = states.image_at(end_offset)
    if history is None:
        history = ClusterHistory(before, after.timestamp_ms)
    history.finish(after.timestamp_ms)
    return Report(
        source=states.path,
        cluster_id=states.cluster_id,
        before=before,
        after=after,
        history=history,
    )
