"""Tails: the changes of clusters that ``state`` does not include, read in windows.

Rules of this file:

1. A window consists of whole appends: a change and the progress row that publishes it are in one
   window.
2. A window has a bounded number of rows, or one append of one cluster, which is read in parts of
   bounded size. Windows of a cluster, and parts of an append, are read in order.
3. Of a cluster's windows, the last change of each key is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from raftlog_state.errors import TablesError

from .latest import last_changes, overlay, positions_of, state_rows, state_rows_of, without_reverted
from .progress import IS_PROGRESS, Progress, progress_of
from .schema import CHANGES_TABLE, CLUSTER_ID, PROGRESS, STATE_TABLE
from .stored_rows import StateParts, rows_by, split_state
from .stores.protocol import (
    AnyOf,
    Condition,
    Rows,
    RowSlices,
    TableStore,
    Where,
    columns_of_entity,
    filtered,
    in_schema,
    read_version,
    rows_where,
    slices_of_file,
)
from .unmerged import StoredChanges, UnmergedPart

pc: Any = pyarrow.compute  # pyarrow creates its functions at import, unseen by type checkers

ROWS_READ: Final = 50_000
"""Rows that are read together."""
_ORDER: Final = ("visible_offset", "offset", "seq")
_POSITIONS: Final = (CLUSTER_ID, "entity", *_ORDER)

Int64s: TypeAlias = npt.NDArray[np.int64]


class TailRange(NamedTuple):
    """A cluster's changes after an offset up to another (inclusive; None: up to the last one).

    ``has_fences``: include the progress rows at ``after_offset``. Fences may be at the end of
    ``state``, where all rows of a snapshot may be, too. ``part``: conditions of the changes.
    """

    cluster_id: str
    after_offset: int
    last_offset: int | None
    has_fences: bool
    part: Where = ()

    @property
    def any_of(self) -> AnyOf:
        """The conditions of the changes."""
        of_cluster: Condition = (CLUSTER_ID, "=", self.cluster_id)
        end: tuple[Condition, ...] = ()
        if self.last_offset is not None:
            end = (("visible_offset", "<=", self.last_offset),)
        later = (of_cluster, ("visible_offset", ">", self.after_offset), *end, *self.part)
        if not self.has_fences:
            return (later,)
        return (later, (of_cluster, ("visible_offset", "=", self.after_offset), IS_PROGRESS))


class TailRows(NamedTuple):
    """Rows of a tail after an offset, by the columns of ``_ORDER``, in their order.

    ``ends`` contains the offset of each append's last record. An offset that is not after the one
    before it belongs to a fence.
    """

    after_offset: int
    columns: tuple[Int64s, ...]
    ends: Int64s


Read: TypeAlias = list[TailRange]
"""Parts of the tails of clusters that are read together."""
Window: TypeAlias = list[Read]
"""One read, or the reads of one append of a cluster."""


def windows_of(tails: Mapping[str, TailRows], row_count_max: int) -> Iterator[Window]:
    """Yield the windows of tails, by cluster."""
    read: Read = []
    room = row_count_max
    for cluster_id, (before, columns, appends) in tails.items():
        after, ends = before, np.unique(appends[appends > before])
        if not len(ends) and len(appends):
            read.append(TailRange(cluster_id, before, before, has_fences=True))
        rows_before = np.searchsorted(columns[0], [before, *ends], side="right")
        while len(ends):
            count = int(np.searchsorted(rows_before[1:], rows_before[0] + room, side="right"))
            if not count and read:
                yield [read]
                read, room = [], row_count_max
                continue
            last = int(ends[max(1, count) - 1])
            found = TailRange(cluster_id, after, last, has_fences=after == before)
            if count:
                read.append(found)
                room -= int(rows_before[count] - rows_before[0])
            else:
                of_append = [one[rows_before[0] : rows_before[1]] for one in columns]
                yield _reads_of(found, of_append, row_count_max)
            after, ends, rows_before = last, ends[max(1, count) :], rows_before[max(1, count) :]
    if read:
        yield [read]


def _reads_of(append: TailRange, columns: Sequence[Int64s], row_count_max: int) -> Window:
    """Return the reads of one append that has more rows."""
    parts = _parts([*zip(_ORDER, columns, strict=True)], row_count_max)
    return [
        [append._replace(part=part, has_fences=append.has_fences and at == 0)]
        for at, part in enumerate(parts)
    ]


def _parts(columns: Sequence[tuple[str, Int64s]], row_count_max: int) -> Iterator[Where]:
    """Yield conditions that divide sorted rows by ranges of the first column.

    If one of its values has more rows, these are divided by the next column.
    """
    (name, values), *rest = columns
    distinct, starts = np.unique(values, return_index=True)
    ends = np.append(starts[1:], len(values))
    at = 0
    while at < len(distinct):
        first, start = int(distinct[at]), starts[at]
        after = int(np.searchsorted(ends, start + row_count_max, side="right"))
        if after > at or not rest:
            after = max(after, at + 1)
            yield ((name, ">=", first), (name, "<=", int(distinct[after - 1])))
            at = after
        else:
            of_value = [(other, column[start : ends[at]]) for other, column in rest]
            for part in _parts(of_value, row_count_max):
                yield ((name, "=", first), *part)
            at += 1


def read_tails(
    store: TableStore, ranges: Sequence[TailRange]
) -> Iterator[tuple[bool, dict[str, pa.Table]]]:
    """Yield the changes of parts of tails by cluster, one read at a time.

    Each is paired with whether it is the only one. All are of one version of the table.
    """
    merged = _if_merged(store, ranges)
    if merged is not None:
        yield True, merged
        return
    version, windows = _windows(store, ranges)
    reads = [*chain.from_iterable(windows)]
    for read in reads:
        yield len(reads) == 1, _read(store, read, version)


def state_of_tails(
    store: TableStore, ranges: Sequence[TailRange], ends: Mapping[str, Progress]
) -> Iterator[Rows]:
    """Yield the rows of ``state`` for the changes of parts of tails, one merge at a time.

    ``ends`` contains the clusters' progress; changes that later truncations reverted are left out.
    A merge has whole appends.
    """
    version, windows = _windows(store, ranges)
    for window in windows:
        if len(window) == 1:
            found = _read(store, window[0], version)
            valid = [without_reverted(rows, ends[name]) for name, rows in found.items()]
            rows = pa.concat_tables(valid)
            if rows.num_rows:
                yield state_rows(rows)
        else:
            # In a file, because a store cannot read a table while it writes one. The file has no
            # name, so a process that is killed leaves nothing.
            name = window[0][0].cluster_id
            with ExitStack() as kept:
                with _errors_of_files(store):
                    file = kept.enter_context(TemporaryFile())
                    with pq.ParquetWriter(file, STATE_TABLE.schema) as writer:
                        for rows in _state_slices(store, window, version, ends[name]):
                            writer.write_table(rows)
                    file.flush()
                yield RowSlices(
                    cluster_ids=(name,),
                    schema=STATE_TABLE.schema,
                    slices=partial(slices_of_file, file, STATE_TABLE.schema),
                )


@contextmanager
def _errors_of_files(store: TableStore) -> Iterator[None]:
    """Convert errors of files to ``TablesError``, after which a merge is tried again."""
    try:
        yield
    except OSError as error:
        cause = (error.strerror or str(error).partition("\n")[0]).lower()
        raise TablesError(
            place=store.place,
            reason=f"the rows of a merge cannot be written to a temporary file: {cause}",
            remedy="free space in the directory for temporary files, or set TMPDIR to another one",
        ) from error


def _state_slices(
    store: TableStore, window: Window, version: int | None, end: Progress
) -> Iterator[pa.Table]:
    """Yield the rows of ``state`` for one append; each key is in one slice."""
    columns = (*_POSITIONS, "key", "incarnation")
    any_of = tuple(where for read in window for where in _any_of(read))
    changes = read_version(store, CHANGES_TABLE, version, (), columns, any_of=any_of)
    last = positions_of(last_changes(without_reverted(changes, end)))
    for read in window:
        for rows in _read(store, read, version).values():
            is_last = pc.is_in(positions_of(rows), value_set=last)
            found = filtered(rows, is_last)
            if found.num_rows:
                yield state_rows_of(found.combine_chunks())


def _if_merged(store: TableStore, ranges: Sequence[TailRange]) -> dict[str, pa.Table] | None:
    """Return the progress rows of tails without changes, as after the end of a run; otherwise None.

    They are read without the structs of other entities, which are null.
    """
    if not ranges or not all(one.has_fences and one.after_offset >= 0 for one in ranges):
        return None
    if not store.exists(CHANGES_TABLE):
        return {}
    any_of = _any_of([one._replace(part=(*one.part, IS_PROGRESS)) for one in ranges])
    columns = columns_of_entity(CHANGES_TABLE, PROGRESS)
    found = store.read(CHANGES_TABLE, columns=columns, any_of=any_of)
    by_cluster = rows_by(in_schema(found, CHANGES_TABLE.schema))
    ends = {name: pc.max(rows["visible_offset"]).as_py() for name, rows in by_cluster.items()}
    are_merged = all(ends.get(one.cluster_id, -1) <= one.after_offset for one in ranges)
    return by_cluster if are_merged else None


def _windows(store: TableStore, ranges: Sequence[TailRange]) -> tuple[int | None, list[Window]]:
    """Return a version of ``changes`` and the windows of parts of tails; None: the newest version.

    Looking up the version takes longer than reading a few rows, which are of one version anyway.
    """
    if not ranges or not store.exists(CHANGES_TABLE):
        return None, []
    found = store.read(CHANGES_TABLE, columns=_POSITIONS, any_of=_any_of(ranges))
    if found.num_rows <= ROWS_READ:
        return None, [[[*ranges]]] if found.num_rows else []
    version = store.version(CHANGES_TABLE)
    found = read_version(store, CHANGES_TABLE, version, (), _POSITIONS, any_of=_any_of(ranges))
    by_cluster = rows_by(found)
    tails = {
        one.cluster_id: _tail_rows(one.after_offset, by_cluster[one.cluster_id])
        for one in ranges
        if one.cluster_id in by_cluster
    }
    return version, [*windows_of(tails, ROWS_READ)]


def _tail_rows(after_offset: int, rows: pa.Table) -> TailRows:
    columns = [rows[name].to_numpy().astype(np.int64) for name in _ORDER]
    order = np.lexsort(columns[::-1])
    ends = rows_where(rows, IS_PROGRESS)["visible_offset"].to_numpy()
    return TailRows(after_offset, tuple(column[order] for column in columns), ends)


def _read(
    store: TableStore, ranges: Sequence[TailRange], version: int | None
) -> dict[str, pa.Table]:
    return rows_by(read_version(store, CHANGES_TABLE, version, any_of=_any_of(ranges)))


def _any_of(ranges: Sequence[TailRange]) -> AnyOf:
    return tuple(where for one in ranges for where in one.any_of)


class TailFold:
    """What a cluster's tail adds to its rows of ``state``, and which part of it is unmerged."""

    def __init__(self, base: Progress) -> None:
        """``base`` is the progress of ``state``."""
        self.base = base
        self.progress = base
        self.later = split_state(STATE_TABLE.no_rows)
        """The last change of each key, as rows of ``state``."""
        self.unmerged: UnmergedPart = CHANGES_TABLE.no_rows
        self.has_end = False
        """Whether ``changes`` has the append at the end of ``state``, or a later one."""
        self.missing_offset: int | None = None
        """First offset of a missing append between others."""
        self._row_count = 0
        self._has_reverted = False
        self._incarnation = 0
        self._next_offset = base.next_offset

    @property
    def is_fenced(self) -> bool:
        """Whether the incarnation of ``state``, or a later one, has an append."""
        return self._incarnation >= self.base.incarnation

    @property
    def is_complete(self) -> bool:
        """Whether the truncation that ``state`` has is complete in ``changes``."""
        return self.is_fenced and not self._has_reverted

    def add(self, rows: pa.Table, *, is_only: bool) -> None:
        """Add the rows of the next window, which stay in memory if it is the only one."""
        base, valid = self.base, without_reverted(rows, self.base)
        self.has_end |= rows.num_rows > 0
        self._has_reverted |= valid.num_rows < rows.num_rows
        self._incarnation = max(self._incarnation, pc.max(valid["incarnation"]).as_py() or 0)
        is_later: Condition = ("visible_offset", ">", base.offset)
        is_fence: Condition = ("incarnation", ">", base.incarnation)
        tail = rows_where(valid, any_of=((is_later,), (is_fence,)))
        self._check_order(tail)
        changed = state_rows(tail)
        self.progress = progress_of(changed) or self.progress
        parts = zip(self.later, split_state(changed), strict=True)
        self.later = StateParts(*(overlay(old, new) for old, new in parts))
        self._row_count += tail.num_rows
        self.unmerged = tail
        if not is_only:
            self.unmerged = StoredChanges(base.offset, self.progress.offset, self._row_count)

    def _check_order(self, tail: pa.Table) -> None:
        """Find the first append that does not follow the one before it."""
        order = [(name, "ascending") for name in ("offset", "incarnation")]
        columns = tail.select(["offset", "incarnation", "entity"]).append_column(
            "from_offset", pc.struct_field(tail["after"], [PROGRESS, "from_offset"])
        )
        appends = rows_where(columns, IS_PROGRESS).sort_by(order)
        for append in appends.to_pylist():
            follows = append["from_offset"] == self._next_offset
            if not follows and self.missing_offset is None:
                self.missing_offset = self._next_offset
            self._next_offset = append["offset"] + 1
