"""Sources of cluster states and of the changes between them: a metadata log, or its Delta tables.

Both accept the same specifications and use the same end offsets (exclusive), so commands and
functions that return a state, changes or a report can read either one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from raftlog.client import LogReader, open_path
from raftlog.client.offset_spec import (
    EARLIEST,
    LATEST,
    OffsetSpec,
    OffsetSpecKind,
    Resolved,
    check_not_after_end,
    in_order,
    resolve,
    resolve_range,
)
from raftlog.errors import OptionError

from .image import MetadataImage
from .image.delta import RecordChanges
from .image.entity_names import RowFilter
from .loader.image_reader import ImageReader, Listener, NullListener
from .records import Redactor

if TYPE_CHECKING:
    from .tables.reader import ArrowTables


class StateSource(Protocol):
    """States of one cluster and the changes between them, read at ascending end offsets."""

    @property
    def path(self) -> str:
        """Path, or the nodes, of the source."""
        ...

    @property
    def cluster_id(self) -> str | None:
        """Cluster id, None if it is unknown."""
        ...

    @property
    def oldest_state(self) -> int:
        """End offset of the oldest state that can be read."""
        ...

    def end_offset(self) -> int:
        """Return the end offset of the newest state; log the reason."""
        ...

    def resolve(self, spec: OffsetSpec, *, option: str, now_ms: int) -> Resolved:
        """Return the end offset in the source that a specification means.

        Raises ``OptionError`` for the named option, and the errors of ``offset_spec.resolve``.
        """
        ...

    def resolve_range(
        self,
        start: OffsetSpec | None,
        end: OffsetSpec | None,
        *,
        options: tuple[str, str],
        now_ms: int,
    ) -> tuple[Resolved, Resolved]:
        """Return two end offsets in order. None means the start of the source and its newest state.

        Raises ``OptionError`` if the first one is after the second, ``OffsetOutOfRangeError`` if it
        is after the newest state, and the errors of ``resolve``.
        """
        ...

    def image_at(self, end_offset: int) -> MetadataImage:
        """Return the state of all records below ``end_offset``, which must not decrease."""
        ...

    def changes(
        self, end_offset: int, filters: Sequence[RowFilter] | None = None
    ) -> Iterator[RecordChanges]:
        """Yield the changes of matching rows below ``end_offset`` after the last call or image.

        Without either, they begin with the oldest change, or with the rows of the oldest snapshot.
        """
        ...


class LogStates:
    """States of a log. ``from_oldest``: changes begin with the oldest ones, not at a snapshot."""

    def __init__(
        self,
        log: LogReader,
        redactor: Redactor,
        listener: Listener | None = None,
        *,
        from_oldest: bool = False,
    ) -> None:
        self._log = log
        self._images = ImageReader(log, redactor, listener, from_oldest=from_oldest)

    @property
    def path(self) -> str:
        return self._log.path

    @property
    def cluster_id(self) -> str | None:
        return self._log.cluster_id

    @property
    def oldest_state(self) -> int:
        """End offset 0, or that of the oldest snapshot at which the log continues."""
        start = self._log.log_start_offset
        ends = [one.end_offset for one in self._log.snapshots if one.end_offset >= start]
        return min(ends) if start and ends else start

    def end_offset(self) -> int:
        return self._images.end_offset()

    def resolve(self, spec: OffsetSpec, *, option: str, now_ms: int) -> Resolved:
        return resolve(spec, self._log, now_ms=now_ms, read_end=self.end_offset, is_state=True)

    def resolve_range(
        self,
        start: OffsetSpec | None,
        end: OffsetSpec | None,
        *,
        options: tuple[str, str],
        now_ms: int,
    ) -> tuple[Resolved, Resolved]:
        return resolve_range(
            *(start, end, self._log),
            now_ms=now_ms,
            read_end=self.end_offset,
            options=options,
            is_state=True,
        )

    def image_at(self, end_offset: int) -> MetadataImage:
        return self._images.image_at(end_offset)

    def changes(
        self, end_offset: int, filters: Sequence[RowFilter] | None = None
    ) -> Iterator[RecordChanges]:
        return self._images.changes(end_offset, filters)


class TableStates:
    """Published states of Delta tables. Secrets are as they were written."""

    def __init__(self, path: str, tables: ArrowTables, listener: Listener | None = None) -> None:
        self.path = path
        self._tables = tables
        self._listener = listener or NullListener()
        newest = tables.latest()
        self.cluster_id: str | None = newest.cluster_id
        self._end_offset = newest.offset + 1
        self._oldest_offset = newest.oldest_offset
        self._next_offset = 0

    @property
    def oldest_state(self) -> int:
        """End offset 0, if the tables begin with the first record of the log."""
        return self._oldest_offset + 1 if self._oldest_offset else 0

    def end_offset(self) -> int:
        end = self._end_offset
        self._listener.log(f"the end offset is {end} (exclusive): the last that the tables have")
        return end

    def resolve(self, spec: OffsetSpec, *, option: str, now_ms: int) -> Resolved:
        spec = spec.at(now_ms)
        match spec.kind:
            case OffsetSpecKind.OFFSET:
                return Resolved(spec.number, "as requested")
            case OffsetSpecKind.EARLIEST:
                return Resolved(self.oldest_state, "the oldest state of the tables")
            case OffsetSpecKind.LATEST:
                return Resolved(self.end_offset(), "the end of the tables")
            case OffsetSpecKind.SNAPSHOT:
                name, reason = spec.kind.value, "the end of the newest snapshot"
            case _:
                name, reason = f"{spec.kind.value}:{spec.number}", f"the state before {spec}"
        try:
            return Resolved(self._tables.at(time=name).offset + 1, reason)
        except OptionError as error:
            raise OptionError(option=option, reason=error.reason) from None

    def resolve_range(
        self,
        start: OffsetSpec | None,
        end: OffsetSpec | None,
        *,
        options: tuple[str, str],
        now_ms: int,
    ) -> tuple[Resolved, Resolved]:
        first, last = (
            self.resolve(spec or default, option=option, now_ms=now_ms)
            for spec, default, option in zip((start, end), (EARLIEST, LATEST), options, strict=True)
        )
        if end is None:
            check_not_after_end(first, self.path, self.oldest_state, last.offset)
        return in_order(first, last, options=options)

    def image_at(self, end_offset: int) -> MetadataImage:
        self._next_offset = end_offset
        if end_offset == 0 == self.oldest_state:
            return MetadataImage.empty()
        return self._tables.image(end_offset - 1)

    def changes(
        self, end_offset: int, filters: Sequence[RowFilter] | None = None
    ) -> Iterator[RecordChanges]:
        start, self._next_offset = self._next_offset, max(self._next_offset, end_offset)
        if start >= end_offset:
            return iter(())
        return self._tables.record_changes(start - 1, end_offset - 1, filters)


def is_tables(path: str) -> bool:
    """Return whether a path is a directory of Delta tables of metadata."""
    return os.path.isdir(os.path.join(path, "changes", "_delta_log"))


def open_table_states(
    path: str, listener: Listener | None = None, *, cluster_id: str | None = None
) -> TableStates:
    """Open the Delta tables in a directory; ``cluster_id``: which of several clusters.

    Raises ``TablesError``, also if the package deltalake is not installed.
    """
    from .tables.reader import open_tables

    tables = open_tables(os.path.abspath(path), cluster_id=cluster_id)
    return TableStates(path, tables, listener)


def open_states(
    source: str | os.PathLike[str] | LogReader, redactor: Redactor, *, from_oldest: bool = False
) -> StateSource:
    """Open a source: a log, a path of Delta tables, or an argument of ``raftlog.client.open_path``.

    Raises ``NotALogError`` for a log of records other than metadata, and the errors of opening.
    """
    if not isinstance(source, LogReader):
        path = os.fspath(source)
        if is_tables(path):
            return open_table_states(path)
        source = open_path(path)
    return LogStates(source, redactor, from_oldest=from_oldest)
