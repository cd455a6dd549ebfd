"""Changes of a large batch, such as a snapshot, as slices of rows: memory holds one slice.

Rules of this file:

1. The slices of ``changes`` are the rows of one table in its order, followed by the progress row.
2. The slices of ``state`` contain the last change of each key, so each key is in one slice.
3. Each pass over the slices builds them again, because a store may retry a write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.rows import Entity, Key

from .convert import rows_of_changes, sequence_numbers
from .latest import state_rows
from .origins import Origin
from .schema import CHANGES_TABLE, CLUSTER_ID, STATE_TABLE
from .stores.protocol import RowSlices

SLICE_ROWS: Final = 50_000
"""Rows of ``changes`` in memory at a time. Each takes 2.2 KB, as most of its columns are null."""


class ChangeSlices:
    """Changes that were replayed in order, and the progress row of their append."""

    def __init__(
        self,
        record_changes: Sequence[RecordChanges],
        before_origins: Sequence[Origin | None],
        shared: Mapping[str, Any],
        progress_row: pa.Table,
        slice_rows: int,
    ) -> None:
        """``before_origins`` and ``shared``: as for ``changes_table``."""
        self._changes = [change for record in record_changes for change in record.changes]
        self._records = [record for record in record_changes for _ in record.changes]
        self._seqs = np.array(sequence_numbers(self._records), np.int32)
        self._befores = before_origins
        self._shared = shared
        self._progress_row = progress_row
        self._slice_rows = slice_rows

    @property
    def num_rows(self) -> int:
        """Number of rows of ``changes``, with the progress row."""
        return len(self._changes) + 1

    def changes(self) -> RowSlices:
        """Return the rows of ``changes``."""
        return self._rows(CHANGES_TABLE.schema, self._changes_slices)

    def state(self) -> RowSlices:
        """Return the rows of ``state`` for the last change of each key."""
        return self._rows(STATE_TABLE.schema, self._state_slices)

    def _rows(self, schema: pa.Schema, slices: Any) -> RowSlices:
        return RowSlices(
            cluster_ids=(self._progress_row[CLUSTER_ID][0].as_py(),),
            schema=schema,
            slices=slices,
        )

    def _changes_slices(self) -> Iterator[pa.Table]:
        yield from self._slices(np.arange(len(self._changes)))
        yield self._progress_row

    def _state_slices(self) -> Iterator[pa.Table]:
        last: dict[Entity, dict[Key, int]] = {entity: {} for entity in Entity}
        for position, change in enumerate(self._changes):
            last[change.entity][change.key] = position
        positions = [np.fromiter(found.values(), np.int64) for found in last.values()]
        del last
        for rows in self._slices(np.sort(np.concatenate(positions))):
            yield state_rows(rows)
        yield state_rows(self._progress_row)

    def _slices(self, positions: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
        """Yield the rows of the changes at these positions."""
        for start in range(0, len(positions), self._slice_rows):
            part = positions[start : start + self._slice_rows].tolist()
            yield rows_of_changes(
                [self._records[position] for position in part],
                [self._changes[position] for position in part],
                self._seqs[part].tolist(),
                [self._befores[position] for position in part],
                self._shared,
            )
