"""The root of every error of raftlog, the root of the log's errors, and how a place reads.

Rules of this file:

1. ``raftlog.errors`` is the page that lists them all, and what everybody imports; its rules hold
   here too. Only that page and the files that it is made of import this one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar


def _rebuild(kind: type[RaftlogError], facts: dict[str, Any]) -> RaftlogError:
    return kind(**facts)


def location_text(path: str | None, position: int | None = None, offset: int | None = None) -> str:
    """Say where: ``path at byte 61, offset 7``, leaving out what is not known."""
    words = path or "this buffer"
    if position is not None:
        words += f" at byte {position}"
    if offset is not None:
        words += f", offset {offset}"
    return words


@dataclass(kw_only=True, eq=False)
class RaftlogError(Exception):
    """The root. Catch it to catch everything that raftlog raises on purpose."""

    code: ClassVar[str] = "RAFTLOG_ERROR"
    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int | None] = None

    def message(self) -> str:
        """What a person reads, without the code."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"[{self.code}] {self.message()}"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuild, (type(self), facts)


@dataclass(kw_only=True, eq=False)
class LogError(RaftlogError):
    """Something is wrong with a log, or with what was asked of it."""

    code: ClassVar[str] = "RAFTLOG_LOG"
