"""Changes of named entities, one for each row that a record changed, of a log or Delta tables.

``read_changes`` is what ``ClusterTables.changes(entity=, name=)`` is, without Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from raftlog.client import LogReader
from raftlog.client.offset_spec import (
    EARLIEST,
    OffsetSpec,
    OffsetSpecKind,
    parse_offset_spec,
)
from raftlog.clock import Clock
from raftlog.errors import OptionError

from .image.delta import RecordChanges, RowChange
from .image.entity_names import RowFilter, name_of, row_filters
from .records import Redactor
from .state_sources import open_states

Offset: TypeAlias = int | str | datetime | OffsetSpec
"""Offset in a log, or a specification as of ``raftlog.client.offset_spec``, a text or a time."""


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """Change of one row, and the record that caused it.

    ``offset`` is the offset of the record, ``visible_offset`` the one at which the change took
    effect.
    """

    offset: int
    visible_offset: int
    leader_epoch: int
    timestamp_ms: int
    record_type: str
    change: RowChange

    @property
    def name(self) -> str:
        """The name of what was changed, such as ``topic/orders``."""
        row = self.change.after or self.change.before
        assert row is not None, "a change has a row"
        return name_of(row)


def logged(records: Iterable[RecordChanges]) -> Iterator[LoggedChange]:
    """Yield each change of records."""
    for record in records:
        for change in record.changes:
            yield LoggedChange(
                record.offset,
                record.visible_offset,
                record.leader_epoch,
                record.timestamp_ms,
                record.record_type,
                change,
            )


def read_changes(
    source: str | os.PathLike[str] | LogReader,
    *,
    entity: str | None = None,
    name: str | None = None,
    since: Offset | None = None,
    until: Offset | None = None,
    partitions: bool = False,
    redactor: Redactor | None = None,
) -> Iterator[LoggedChange]:
    """Yield the changes of what a name selects, in the order in which they took effect.

    Args:
        source: the log, an argument of ``raftlog.client.open_path``, or a directory of Delta tables
            (``pip install "raftlog[delta]"``). Secrets in tables stay as they were written.
        entity, name: as in ``raftlog_state.image.entity_names``: ``topic`` and ``orders``,
            ``config`` and ``topic/orders/retention.ms``.
        since: the first offset, or a time, an age or a name; None: the start of the log. If the log
            begins with a snapshot, the first changes are the rows of its oldest snapshot.
        until: the end offset, exclusive, or any other form of ``since``; None: the committed end.
        partitions: whether the changes of topics include their partitions.
        redactor: hides secrets; None hides all of them.

    Raises:
        OptionError: an argument is invalid. Also the errors of ``ImageReader.changes``.
    """
    filters = row_filters(entity, name, partitions=partitions)
    options = ("since", "until")
    first, last = map(offset_spec, options, (since, until))
    return changes_between(source, filters, first, last, options, redactor or Redactor())


def changes_between(
    source: str | os.PathLike[str] | LogReader,
    filters: Sequence[RowFilter],
    first: OffsetSpec | None,
    last: OffsetSpec | None,
    options: tuple[str, str],
    redactor: Redactor,
) -> Iterator[LoggedChange]:
    """Yield changes as ``read_changes`` does; ``options`` are the names of the two, for errors."""
    from_oldest = first in (None, EARLIEST)
    states = open_states(source, redactor, from_oldest=from_oldest)
    now_ms = Clock().wall_ms()
    start, end = states.resolve_range(first, last, options=options, now_ms=now_ms)
    if not from_oldest:
        states.image_at(start.offset)
    return logged(states.changes(end.offset, filters))


def offset_spec(option: str, value: Offset | None) -> OffsetSpec | None:
    """Return an argument as a specification. A ``datetime`` without a zone is in the local one.

    Raises ``OptionError``.
    """
    match value:
        case None | OffsetSpec():
            return value
        case str():
            return parse_offset_spec(option, value)
        case datetime():
            return parse_offset_spec(option, value.astimezone(UTC).isoformat())
        case int() if not isinstance(value, bool) and value >= 0:
            return OffsetSpec(OffsetSpecKind.OFFSET, value)
    raise OptionError(option=option, reason="must be an offset, a text or a datetime")
