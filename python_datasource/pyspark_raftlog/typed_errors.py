"""Errors across Spark: a typed error becomes a text that tells its facts, and is made again of it.

Rules of this file:

1. Spark keeps the text of a Python error and loses its type. So the text ends with the facts as
   JSON, behind a marker, and ``typed_error`` reads them back. Errors hold no secrets.
2. The code in brackets and the names of facts are stable; the words between them are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Final

from raftlog import errors
from raftlog.errors import ForeignCommitError, RaftlogError, UnexpectedEndOffsetError

MARKER: Final = "raftlog-facts "
"""What stands before the JSON."""
_CODE: Final = "code"
_KINDS: Final = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RaftlogError)
}


class RaftlogWriteError(Exception):
    """What Spark sees of an error of the sink: its text. ``typed_error`` gives it back."""


@contextmanager
def as_spark_error() -> Iterator[None]:
    """Let errors of raftlog leave as texts that can be made into them again."""
    try:
        yield
    except RaftlogError as error:
        raise RaftlogWriteError(spark_text(error)) from None


def spark_text(error: RaftlogError) -> str:
    """The error's own text, its way out in terms of Spark, and its facts if JSON can tell them."""
    facts = {field.name: getattr(error, field.name) for field in fields(error)}
    try:
        encoded = json.dumps({_CODE: error.code, **facts}, separators=(",", ":"))
    except TypeError:
        return str(error)
    return f"{error}{_remedy(error)} ({MARKER}{encoded})"


def typed_error(problem: BaseException) -> RaftlogError | None:
    """The error of raftlog that Spark's exception tells of, or that lies behind it; else None."""
    seen: list[BaseException] = []
    at: BaseException | None = problem
    while at is not None and at not in seen:
        if isinstance(at, RaftlogError):
            return at
        found = _read(str(at))
        if found is not None:
            return found
        seen.append(at)
        at = at.__cause__ or at.__context__
    return None


def conflict(problem: BaseException) -> UnexpectedEndOffsetError | None:
    """The refused token that Spark's exception tells of: somebody else was first.

    None for any other failure. ``log_end_offset`` is where the log ended: read up to there, decide
    again, and write with the new token.
    """
    found = typed_error(problem)
    return found if isinstance(found, UnexpectedEndOffsetError) else None


def _remedy(error: RaftlogError) -> str:
    if isinstance(error, ForeignCommitError):
        return f": option txnTakeOverFrom={error.last_query_id}"
    return ""


def _read(text: str) -> RaftlogError | None:
    _, marker, rest = text.partition(MARKER)
    if not marker:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(rest)
        kind = _KINDS[facts.pop(_CODE)]
        given = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in facts.items()
        }
        return kind(**given)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # somebody else's text, or one of another release
