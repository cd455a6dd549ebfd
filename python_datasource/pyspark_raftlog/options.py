"""Every option of the source: name, default, unit, and what is refused.

Rules of this file:

1. Names are matched without case, as Spark hands them over in lower case; errors show the name as
   it is documented. Names of Spark's Kafka source that mean the same are aliases.
2. An unknown name is an error that suggests the nearest one. What Spark itself puts among the
   options is passed over.
3. A value is never shown, neither in an error nor in a ``repr``: one of them is a secret.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from raftlog import limits
from raftlog.client import Isolation
from raftlog.errors import OptionError


class Edge(enum.Enum):
    """A place in a log that has a name instead of a number."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"


class TimestampStrategy(enum.Enum):
    """What happens when no record is as young as ``startingTimestamp``."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftlogOptions:
    """The options of one ``load()``, checked. ``None`` stands for "not given".

    Offsets are record numbers, ends are exclusive; ``RaftlogDataSource`` documents each option.
    """

    path: str
    starting_offset: Edge | int | None = None
    starting_timestamp_ms: int | None = None
    starting_timestamp_strategy: TimestampStrategy = TimestampStrategy.ERROR
    ending_offset: Edge | int = Edge.LATEST
    ending_timestamp_ms: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60 * 1000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_COMMITTED
    include_headers: bool = False
    include_control_records: bool = False
    include_aborted_records: bool = False
    record_batch_rows: int = limits.ARROW_ROWS_DEFAULT
    tail_holdback_ms: int | None = None
    poll_wait_ms: int = 100
    redact: bool = True
    redact_key: bytes | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> RaftlogOptions:
        """Read what the user gave.

        Raises:
            OptionError: a name is unknown or given twice, a value is not allowed, two options
                contradict each other, or there is no path.
        """
        given: dict[str, Any] = {}
        names: dict[str, str] = {}
        for raw_name, value in options.items():
            key = raw_name.lower()
            if key in _OF_SPARK or key.startswith("option."):
                continue
            name, attribute, parse = _find(raw_name)
            if attribute in names:
                raise OptionError(option=name, reason=f"says the same as {names[attribute]}")
            names[attribute] = name
            given[attribute] = parse(name, value)
        if not given.get("path", "").strip():
            raise OptionError(option="path", reason="is missing; call load(path)")
        parsed = cls(**given)
        parsed._check_together()
        return parsed

    def _check_together(self) -> None:
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(
                option="minOffsetsPerTrigger", reason="is larger than maxOffsetsPerTrigger"
            )
        if self.redact_key is not None and not self.redact:
            raise OptionError(option="redactKey", reason="has no meaning with redact=false")

    def at(self, path: str) -> RaftlogOptions:
        """The same options for another path."""
        return dataclasses.replace(self, path=path)

    @property
    def shows_aborted(self) -> bool:
        """Whether records of aborted transactions become rows."""
        return self.include_aborted_records or self.isolation is Isolation.HIGH_WATERMARK

    def refuse_ending(self) -> None:
        """Raise ``OptionError`` if an end was given: a stream has none."""
        if self.ending_timestamp_ms is not None:
            raise OptionError(option="endingTimestamp", reason="is for batch reads only")
        if self.ending_offset is not Edge.LATEST:
            raise OptionError(option="endingOffset", reason="is for batch reads only")


# --- values ---------------------------------------------------------------------------------------

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_UNITS_BYTES: Final = {"": 1, "b": 1, "k": limits.KIB, "m": limits.MIB, "g": 1024 * limits.MIB}
_QUANTITY: Final = re.compile(r"\s*(\d{1,18})\s*([a-z]*)\s*", re.ASCII)
_LONG_MAX: Final = 2**63 - 1


def _text(_name: str, value: str) -> str:
    return value


def _paths(name: str, value: str) -> str:
    """Spark's JSON array for ``load([one, two])``."""
    try:
        parts = json.loads(value)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise OptionError(option=name, reason="must be a JSON array of paths")
    return ",".join(parts)


def _boolean(name: str, value: str) -> bool:
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise OptionError(option=name, reason="must be true or false")


def _whole(least: int, most: int = _LONG_MAX) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        match = _QUANTITY.fullmatch(value)
        if match is None or match[2] or not least <= int(match[1]) <= most:
            top = "" if most == _LONG_MAX else f" to {most}"
            raise OptionError(option=name, reason=f"must be a whole number from {least}{top}")
        return int(match[1])

    return parse


def _duration_ms(name: str, value: str) -> int:
    match = _QUANTITY.fullmatch(value.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise OptionError(
            option=name, reason="must be milliseconds, or a number with ms, s, m or h (such as 5s)"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def _byte_count(name: str, value: str) -> int:
    match = _QUANTITY.fullmatch(value.lower())
    unit = None if match is None else match[2].removesuffix("b") or match[2]
    if match is None or unit not in _UNITS_BYTES or int(match[1]) == 0:
        raise OptionError(
            option=name, reason="must be bytes from 1, or a number with k, m or g (such as 64m)"
        )
    return int(match[1]) * _UNITS_BYTES[unit]


def _timestamp_ms(name: str, value: str) -> int:
    text = value.strip()
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            option=name,
            reason="must be milliseconds since 1970, or ISO 8601 (such as 2026-03-01T12:00:00Z)",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


def _offset_or(*edges: Edge) -> Callable[[str, str], Edge | int]:
    def parse(name: str, value: str) -> Edge | int:
        text = value.strip().lower()
        for edge in edges:
            if text == edge.value:
                return edge
        if re.fullmatch(r"\d{1,18}", text, re.ASCII):
            return int(text)
        words = ", ".join(edge.value for edge in edges)
        raise OptionError(
            option=name, reason=f"must be {words} or one offset (a path is one partition)"
        )

    return parse


def _strategy(name: str, value: str) -> TimestampStrategy:
    try:
        return TimestampStrategy(value.strip().lower())
    except ValueError:
        raise OptionError(option=name, reason="must be error or latest") from None


def _isolation(name: str, value: str) -> Isolation:
    match value.strip().lower():
        case "read_committed":
            return Isolation.READ_COMMITTED
        case "high_watermark" | "read_uncommitted":
            return Isolation.HIGH_WATERMARK
        case _:
            raise OptionError(option=name, reason="must be read_committed or high_watermark")


def _secret(name: str, value: str) -> bytes:
    secret = value.encode("utf-8", "surrogatepass")
    if len(secret) < limits.REDACTION_KEY_BYTES_MIN:
        least = limits.REDACTION_KEY_BYTES_MIN
        raise OptionError(option=name, reason=f"must have at least {least} bytes")
    return secret


# --- names ----------------------------------------------------------------------------------------

_Parse = Callable[[str, str], Any]
_STARTING: Final = _offset_or(Edge.EARLIEST, Edge.LATEST, Edge.SNAPSHOT)

OPTIONS: Final[Mapping[str, tuple[str, _Parse]]] = {
    "path": ("path", _text),
    "paths": ("path", _paths),
    "startingOffset": ("starting_offset", _STARTING),
    "startingOffsets": ("starting_offset", _STARTING),
    "startingTimestamp": ("starting_timestamp_ms", _timestamp_ms),
    "startingTimestampStrategy": ("starting_timestamp_strategy", _strategy),
    "startingOffsetsByTimestampStrategy": ("starting_timestamp_strategy", _strategy),
    "endingOffset": ("ending_offset", _offset_or(Edge.LATEST)),
    "endingOffsets": ("ending_offset", _offset_or(Edge.LATEST)),
    "endingTimestamp": ("ending_timestamp_ms", _timestamp_ms),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", _whole(1)),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", _byte_count),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", _whole(1)),
    "maxTriggerDelay": ("max_trigger_delay_ms", _duration_ms),
    "minPartitions": ("min_partitions", _whole(1, 1_000_000)),
    "maxRecordsPerPartition": ("max_records_per_partition", _whole(1)),
    "failOnDataLoss": ("fail_on_data_loss", _boolean),
    "isolationLevel": ("isolation", _isolation),
    "includeHeaders": ("include_headers", _boolean),
    "includeControlRecords": ("include_control_records", _boolean),
    "includeAbortedRecords": ("include_aborted_records", _boolean),
    "recordBatchRows": ("record_batch_rows", _whole(1, limits.ARROW_ROWS_MAX)),
    "tailHoldback": ("tail_holdback_ms", _duration_ms),
    "pollWaitMs": ("poll_wait_ms", _whole(0, 60_000)),
    "redact": ("redact", _boolean),
    "redactKey": ("redact_key", _secret),
}
"""Documented name (or alias) to the field it fills and how its text is read."""

_BY_KEY: Final = {name.lower(): name for name in OPTIONS}

_OF_SPARK: Final = frozenset({"checkpointlocation", "provider", "owner", "queryname"})
"""What Spark puts among the options by itself, besides ``path`` and ``option.*``."""

_OF_A_BROKER: Final = re.compile(
    r"(kafka\..*|bootstrap\.servers|subscribe|subscribepattern|assign|topic|topics"
    r"|startingoffsetsbytimestamp|endingoffsetsbytimestamp)",
    re.IGNORECASE,
)


def _find(raw_name: str) -> tuple[str, str, _Parse]:
    name = _BY_KEY.get(raw_name.lower())
    if name is not None:
        attribute, parse = OPTIONS[name]
        return name, attribute, parse
    if _OF_A_BROKER.fullmatch(raw_name):
        raise OptionError(
            option=raw_name,
            reason="is for reading from brokers; this source reads files: call load(path) with a "
            "log directory, a segment or a checkpoint",
        )
    near = difflib.get_close_matches(raw_name.lower(), _BY_KEY, n=1, cutoff=0.6)
    hint = f"did you mean {_BY_KEY[near[0]]}?" if near else "known are " + ", ".join(OPTIONS)
    raise OptionError(option=raw_name, reason=f"is unknown; {hint}")
