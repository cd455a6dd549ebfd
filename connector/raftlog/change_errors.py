"""Why changes of a cluster's metadata were refused, row by row.

Rules of this file:

1. Import these from ``raftlog.errors``, whose rules hold here too.
2. If one row is refused nothing is written, of no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from .base_errors import RaftlogError

_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChange:
    """A row that cannot be done: ``row`` counts from 0, ``change`` is its kind ("?": none).

    ``what`` it is about, the ``reason``, the ``remedy``, and Kafka's code for the same.
    """

    row: int
    change: str
    what: str
    reason: str
    remedy: str
    kafka_code: int

    def __str__(self) -> str:
        return f"row {self.row} ({self.change}), {self.what}: {self.reason}; {self.remedy}"


@dataclass(kw_only=True, eq=False)
class InvalidChangesError(RaftlogError):
    """Rows of a table of changes do not fit the state or each other: the caller's mistake."""

    refused: tuple[RefusedChange, ...]
    row_count: int
    code: ClassVar[str] = "RAFTLOG_INVALID_CHANGES"
    kafka_code: ClassVar[int | None] = 42

    def message(self) -> str:
        lines = "".join(f"\n  {one}" for one in self.refused[:_SHOWN_MAX])
        more = len(self.refused) - _SHOWN_MAX
        rest = f"\n  and {more} more" if more > 0 else ""
        return (
            f"{len(self.refused)} of {self.row_count} changes are refused, and nothing was "
            f"written:{lines}{rest}"
        )


@dataclass(kw_only=True, eq=False)
class ChangesNotSupportedError(RaftlogError):
    """The log of a quorum of nodes: no controller checks changes of its metadata there."""

    path: str
    code: ClassVar[str] = "RAFTLOG_CHANGES_NOT_SUPPORTED"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return (
            f"{self.path}: changes of the metadata log of a quorum are not supported through a "
            "client; nothing was written. Apply them to a log in files, "
            'raftlog.open(path, values="kraft"), or append records that are checked already: '
            "log.append(records, required_base_offset=...)"
        )
