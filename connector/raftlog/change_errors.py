"""Errors of changes of cluster metadata. Import them from ``raftlog.errors``.

Changes are atomic: if one row is rejected, no row is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from .base_errors import RaftlogError

_SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChange:
    """A rejected row of a table of changes.

    ``row`` counts from 0. ``change`` is the kind of change, "?" if the row has none. ``what`` is
    the object to be changed, such as a topic or a broker.
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
    """Rows of a table of changes that contradict the state or each other. Nothing was written."""

    refused: tuple[RefusedChange, ...]
    row_count: int
    code: ClassVar[str] = "RAFTLOG_INVALID_CHANGES"
    kafka_code: ClassVar[int | None] = 42

    def message(self) -> str:
        lines = "".join(f"\n  {change}" for change in self.refused[:_SHOWN_MAX])
        more = len(self.refused) - _SHOWN_MAX
        rest = f"\n  and {more} more" if more > 0 else ""
        return (
            f"{len(self.refused)} of {self.row_count} changes were rejected, nothing was "
            f"written:{lines}{rest}"
        )


@dataclass(kw_only=True, eq=False)
class ChangesNotSupportedError(RaftlogError):
    """Changes of a quorum's metadata log through a client: no controller checks them there."""

    path: str
    code: ClassVar[str] = "RAFTLOG_CHANGES_NOT_SUPPORTED"
    kafka_code: ClassVar[int | None] = 35

    def message(self) -> str:
        return (
            f"{self.path}: changes of a quorum's metadata log are not supported through a client; "
            "nothing was written. Apply them to a log in files, "
            'raftlog.open(path, values="kraft"), or append records that are already validated: '
            "log.append(records, required_base_offset=...)"
        )
