"""Location of the log of a source or sink, from Spark's options: a path or bootstrap servers."""

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
"""Documented name, or alias of Spark's Kafka source, to name for ``parse_location`` and parser."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a log that a writer needs. ``byte_count_max`` is the limit of one batch."""

    values: ValueKind
    byte_count_max: int
    is_compressed: bool


def take_location(given: dict[str, Any], call: str) -> LogLocation:
    """Remove the options of the location from ``given`` and return the location.

    Raises ``OptionError``; without a location it suggests ``call``, e.g. ``load(path)``.
    """
    names = {name for name, _ in CONNECTION_OPTIONS.values()}
    return parse_location({name: given.pop(name) for name in names & set(given)}, call=call)


def log_settings(where: HasLocation) -> LogSettings:
    """Read the settings of a log.

    Raises ``LogNotFoundError``, ``NotALogError``, ``CorruptFileError``, and the errors of
    connecting to a quorum.
    """
    if where.nodes is not None:
        with open_log(where) as log:
            return open_log_settings(log)
    from raftlog.client.log_settings import read_settings as settings_in

    try:
        settings = settings_in(where.path)
    except LogNotFoundError:
        remedy = "check the path, or create the log first: raftlog.open(path).close()"
        raise LogNotFoundError(path=where.path, remedy=remedy) from None
    return LogSettings(
        ValueKind(settings["values"]),
        int(settings["max.message.bytes"]),
        settings["compression.type"] != "none",
    )


def open_log_settings(log: ConnectedLog | Any) -> LogSettings:
    """Return the settings of a connected log."""
    return LogSettings(log.values, log.batch_bytes_max, log.is_compressed)
