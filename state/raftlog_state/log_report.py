"""Reports on a log, and on changes from any source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from raftlog.client import LogReader, open_path
from raftlog.client.log_handle import Clock
from raftlog.client.offset_spec import EARLIEST, OffsetSpec, OffsetSpecKind, resolve_range
from raftlog_state.image import MetadataImage
from raftlog_state.image.delta import RecordChanges
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.log_changes import Offset, offset_spec
from raftlog_state.records import Redactor

from .history import ClusterHistory
from .page import Report


def read_report(
    path: str | os.PathLike[str], *, since: Offset | None = None, until: Offset | None = None
) -> Report:
    """Return the report on a log between two states, as ``raftlog report``; secrets are redacted.

    ``svg()`` and ``html()`` of the result are for ``displayHTML`` of a notebook.

    Args:
        path: as for ``raftlog.client.open_path``.
        since: the first state: all records below this offset, time, age or name; None: the oldest.
        until: the last state; None: the committed end.

    Raises:
        OptionError: an argument is invalid. Also the errors of ``ImageReader.image_at``.
    """
    first, last = offset_spec("since", since), offset_spec("until", until)
    log = open_path(os.fspath(path))
    images = ImageReader(log, Redactor(), from_oldest=True)
    start, end = resolve_range(
        *(first_state(log, first), last, log),
        now_ms=Clock().wall_ms(),
        read_end=images.end_offset,
        options=("since", "until"),
        is_state=True,
    )
    return report_on_log(log, images, start.offset, end.offset)


def first_state(log: LogReader, wanted: OffsetSpec | None) -> OffsetSpec:
    """Return which state a report on a log begins with; by default the oldest.

    That is the state at 0, or that of the oldest snapshot.
    """
    if wanted not in (None, EARLIEST):
        return wanted
    start = log.log_start_offset
    ends = [one.end_offset for one in log.snapshots if one.end_offset >= start]
    return OffsetSpec(OffsetSpecKind.OFFSET, min(ends) if start and ends else start)


def report_on_log(
    log: LogReader, images: ImageReader, start_offset: int, end_offset: int
) -> Report:
    """Return the report on a log between two end offsets; ``images`` are of its oldest snapshot.

    The leader at the start is not in a snapshot.
    """
    before = images.image_at(start_offset)
    changes = images.changes(end_offset)
    return report_on_changes(
        log.path, log.cluster_id, before, changes, lambda: images.image_at(end_offset)
    )


def report_on_changes(
    source: str,
    cluster_id: str | None,
    before: MetadataImage,
    changes: Iterable[RecordChanges],
    read_after: Callable[[], MetadataImage],
) -> Report:
    """Return the report on the changes after a state; ``read_after`` returns that at their end."""
    history = None
    for record in changes:
        if history is None:
            history = ClusterHistory(before, record.timestamp_ms)
        history.add(record)
    after = read_after()
    if history is None:
        history = ClusterHistory(before, after.timestamp_ms)
    history.finish(after.timestamp_ms)
    return Report(source=source, cluster_id=cluster_id, before=before, after=after, history=history)
