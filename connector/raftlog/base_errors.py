"""Base classes of raftlog's errors. Import them from ``raftlog.errors``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar


def _rebuild(kind: type[RaftlogError], facts: dict[str, Any]) -> RaftlogError:
    return kind(**facts)


def location_text(path: str | None, position: int | None = None, offset: int | None = None) -> str:
    """Format a location as ``path at byte 61, offset 7``, without the parts that are None."""
    text = path or "the buffer"
    if position is not None:
        text += f" at byte {position}"
    if offset is not None:
        text += f", offset {offset}"
    return text


@dataclass(kw_only=True, eq=False)
class RaftlogError(Exception):
    """Base class of all errors that raftlog raises.

    ``code`` is stable. ``retriable``: the same call may succeed later. ``kafka_code`` is the number
    in Kafka's ``Errors``, None if Kafka has no such error.
    """

    code: ClassVar[str] = "RAFTLOG_ERROR"
    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int | None] = None

    def message(self) -> str:
        """Return the text without the code."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"[{self.code}] {self.message()}"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return _rebuild, (type(self), facts)


@dataclass(kw_only=True, eq=False)
class LogError(RaftlogError):
    """Base class of errors of a log and of requests to it."""

    code: ClassVar[str] = "RAFTLOG_LOG"
