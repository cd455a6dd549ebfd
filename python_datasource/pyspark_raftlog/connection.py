"""How the source and the sink reach a log: ``raftlog.client.location``, by Spark's options.

Rules of this file:

1. A load, a save or a start names ``path`` or ``bootstrap.servers``; all that follows asks here,
   and is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raftlog import ValueKind
from raftlog.client.location import (
    NODE_OPTIONS,
    PATH,
    PREFIX,
    HasLocation,
    LogLocation,
    open_log,
    parse_location,
)
from raftlog.errors import LogNotFoundError

from .option_values import Parse, text

if TYPE_CHECKING:
    from raftlog import ConnectedLog

CONNECTION_OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    name: (name.removeprefix(PREFIX), text)
    for name in (PATH, *NODE_OPTIONS, *(PREFIX + one for one in NODE_OPTIONS))
}
"""Documented name (or alias, as Spark's Kafka source has them) to what ``take_location`` takes."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What a writer must know of a log. ``byte_count_max`` is of one batch."""

    values: ValueKind
    byte_count_max: int
    is_compressed: bool


def take_location(given: dict[str, Any], call: str) -> LogLocation:
    """Where the log is, by parsed options, of which those that say so are taken out.

    Raises ``OptionError``; ``call`` is what a path would be given to.
    """
    names = {name for name, _ in CONNECTION_OPTIONS.values()}
    return parse_location({name: given.pop(name) for name in names & set(given)}, call=call)


def log_settings(where: HasLocation) -> LogSettings:
    """How the log takes records. Raises ``LogNotFoundError``, ``NotALogError``,
    ``CorruptFileError``, and what connecting raises."""
    if where.nodes is not None:
        with open_log(where) as log:
            return open_log_settings(log)
    from raftlog.client.log_settings import read_settings as settings_in

    try:
        settings = settings_in(where.path)
    except LogNotFoundError:
        remedy = "check the path, or make a log there first: raftlog.open(path).close()"
        raise LogNotFoundError(path=where.path, remedy=remedy) from None
    return LogSettings(
        ValueKind(settings["values"]),
        int(settings["max.message.bytes"]),
        settings["compression.type"] != "none",
    )


def open_log_settings(log: ConnectedLog | Any) -> LogSettings:
    """Those of a quorum's log that is connected."""
    return LogSettings(log.values, log.batch_bytes_max, log.is_compressed)
