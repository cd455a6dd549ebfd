"""``LoadedRange``: files with the rows of a log's range, which one append publishes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .cluster_rows import RECORD_IDENTITY
from .progress import Progress
from .schema import CHANGES_TABLE, LOG_TABLE, STATE_TABLE
from .staging import are_complete, write_durably
from .stores.protocol import RowSlices


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRange:
    """Paths of Parquet files with rows of each table; ``log`` has none if it is not written.

    ``before`` and ``after`` are the ends of the cluster's tables. ``state`` contains the rows whose
    keys have changed. All rows of ``changes`` have the time ``committed_at``, in microseconds.
    """

    before: Progress
    after: Progress
    committed_at: int
    log: list[str]
    changes: list[str]
    state: list[str]

    def log_rows(self) -> RowSlices:
        """Return the rows of ``log``."""
        return RowSlices.of_files(self._cluster_id, LOG_TABLE, self.log)

    def changes_rows(self) -> RowSlices:
        """Return the rows of ``changes``, the progress row included."""
        progress = self.after.changes_row(self.committed_at)
        return RowSlices.of_files(self._cluster_id, CHANGES_TABLE, self.changes, progress)

    def state_rows(self) -> RowSlices:
        """Return the rows of ``state``, the progress row included."""
        progress = self.after.state_row()
        return RowSlices.of_files(self._cluster_id, STATE_TABLE, self.state, progress)

    def log_identities(self) -> pa.Table:
        """Return the columns that identify the records of ``log``."""
        names = list(RECORD_IDENTITY)
        tables = [pq.read_table(file, columns=names) for file in self.log]
        schema = pa.schema([LOG_TABLE.schema.field(name) for name in names])
        return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in tables)])

    def save(self, path: Path) -> None:
        """Write it to a file, which is complete once it exists."""
        write_durably(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> LoadedRange | None:
        """Return what ``save`` has written; None without it, or if a file is incomplete."""
        try:
            found = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # empty after a power loss
            return None
        ends = {name: _progress(found[name]) for name in ("before", "after")}
        loaded = cls(**{**found, **ends})
        files = (*loaded.log, *loaded.changes, *loaded.state)
        return loaded if are_complete(files) else None

    @property
    def _cluster_id(self) -> str:
        return str(self.after.cluster_id)


def _progress(found: dict[str, Any]) -> Progress:
    return Progress(**{**found, "gaps": tuple(map(tuple, found["gaps"]))})
