"""``SourceOptions``: options of the source ``raftlog`` for a log that is written to tables.

Rules of this file:

1. Each option is either used or rejected by name. The source validates the options for reading rows
   when a session loads it. Options that the driver itself needs are parsed here, with the source's
   parsers.
2. Options that the tables determine cannot be set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from raftlog.client import LogKind, LogReader
from raftlog.client.location import (
    NODE_OPTIONS,
    PATH,
    PREFIX,
    LogLocation,
    open_reader,
    parse_location,
)
from raftlog.client.option_values import boolean, decompressed_bytes, duration_ms, log_kind
from raftlog.errors import OptionError
from raftlog.limits import DECOMPRESSED_BYTES_MAX, TAIL_HOLDBACK_MS_DEFAULT

from .following import isolation_of

MAX_DECOMPRESSED_BYTES: Final = "maxDecompressedBytes"
SOURCE_CLUSTER_ID: Final = "clusterId"
"""Column and option of the source."""

_START: Final = "the tables continue at their end"
_END: Final = "the whole log is read"
_REDACTION: Final = "it is an argument of open_cluster and open_group"
_REFUSED: Final = {
    "startingoffset": _START,
    "startingoffsets": _START,
    "startingtimestamp": _START,
    "startingtimestampstrategy": _START,
    "startingoffsetsbytimestampstrategy": _START,
    "endingoffset": _END,
    "endingoffsets": _END,
    "endingtimestamp": _END,
    "isolationlevel": "tables never hold what is not committed",
    "includecontrolrecords": "the tables need them",
    "includeabortedrecords": "the tables need them",
    "includeheaders": "the tables have no headers",
    "columns": "table log has the JSON of records",
    "redact": _REDACTION,
    "redactkey": _REDACTION,
    "redactsecret": "it is the argument redact_key of open_cluster and open_group",
    "paths": "give the directories of several voters as path, separated by commas",
    "sources": "logs of several clusters are the argument sources of materialize of open_group",
    "checkpointlocation": "it is the argument checkpoint of materialize",
    "queryname": "it is no option of a log",
}
_PARSERS: Final = {
    "values": ("kind", log_kind),
    MAX_DECOMPRESSED_BYTES: ("decompressed_bytes_max", decompressed_bytes),
    "tailHoldback": ("holdback_ms", duration_ms),
    "failOnDataLoss": ("fails_on_data_loss", boolean),
}
_OF_LOCATION: Final = frozenset((PATH, *NODE_OPTIONS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Validated options of one log. ``given`` contains the source's options as texts."""

    given: Mapping[str, str] = field(repr=False)
    location: LogLocation
    kind: LogKind | None = None
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    holdback_ms: int = TAIL_HOLDBACK_MS_DEFAULT
    fails_on_data_loss: bool = True

    @classmethod
    def parse(cls, path_or_options: str | Mapping[str, str]) -> Self:
        """Parse a path, or options of the source. Names are not case-sensitive.

        Raises:
            OptionError: the tables determine an option, one that is parsed here is invalid, or none
                names the log.
        """
        if isinstance(path_or_options, str):
            path_or_options = {PATH: path_or_options}
        for name in path_or_options:
            reason = _REFUSED.get(name.lower())
            if reason is not None:
                raise OptionError(option=name, reason=f"cannot be set here: {reason}")
        given = {name: str(value) for name, value in path_or_options.items()}
        parsed: dict[str, Any] = {}
        for name, (attribute, parser) in _PARSERS.items():
            value = _text(given, name)
            if value is not None:
                parsed[attribute] = parser(name, value)
        location = parse_location(given)
        if location.nodes is not None and "kind" in parsed:
            reason = "cannot be used with bootstrap.servers: nodes report the kind of their log"
            raise OptionError(option="values", reason=reason)
        return cls(given=given, location=location, **parsed)

    def text(self, name: str) -> str | None:
        """Return the value of an option; None if it is not set."""
        return _text(self.given, name)

    def refuse_options_of_rows(self, call: str) -> None:
        """Raise ``OptionError`` for options of reads by Spark if a call reads in another way."""
        parsed = {name.lower() for name in _PARSERS}
        for name in self.given:
            key = name.lower()
            if key not in parsed and key.removeprefix(PREFIX) not in _OF_LOCATION:
                used = ", ".join(_PARSERS)
                reason = f"is no option of {call}, which has {used}, and those that name the log"
                raise OptionError(option=name, reason=reason)

    def open_log(self) -> LogReader:
        """Open the log for reading. Raises as ``open_reader``."""
        limit = self.decompressed_bytes_max
        return open_reader(self.location, self.kind, decompressed_bytes_max=limit)

    def end_of_run(self, log: LogReader) -> int:
        """Return the earliest end, exclusive, of a run that begins now."""
        return log.read_end(
            isolation=isolation_of(log),
            holdback_ms=self.holdback_ms,
            now_ms=time.time_ns() // 1_000_000,
        ).offset


def _text(given: Mapping[str, str], name: str) -> str | None:
    """Return the value of an option, whose name is not case-sensitive; None if it is not set."""
    return {one.lower(): value for one, value in given.items()}.get(name.lower())
