"""Options of the source: names, defaults and validation.

Names are case-insensitive, since Spark passes them in lower case; errors show the documented name.
Names of Spark's Kafka source with the same meaning are aliases. An unknown name is an error that
suggests the most similar one; options that Spark itself adds are ignored. Neither errors nor
``repr`` show values, which may be secret.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raftlog import limits
from raftlog.client import Isolation, LogKind
from raftlog.client.arguments import isolation_of
from raftlog.client.location import QuorumNodes
from raftlog.errors import OptionError

from .connection import CONNECTION_OPTIONS, take_location
from .option_values import (
    Parse,
    boolean,
    byte_count,
    duration_ms,
    integer,
    paths,
    timestamp_ms,
)


class OffsetSpec(enum.Enum):
    """Symbolic offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"


class TimestampStrategy(enum.Enum):
    """Behaviour if no record has a timestamp >= ``startingTimestamp``."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftlogOptions:
    """Validated options of a ``load()``; None if an option is not set.

    ``RaftlogDataSource`` documents each option. End offsets are exclusive. ``path`` contains the
    addresses if ``nodes`` is set.
    """

    path: str
    nodes: QuorumNodes | None = None
    starting_offset: OffsetSpec | int | None = None
    starting_timestamp_ms: int | None = None
    starting_timestamp_strategy: TimestampStrategy = TimestampStrategy.ERROR
    ending_offset: OffsetSpec | int = OffsetSpec.LATEST
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
    decompressed_bytes_max: int = limits.DECOMPRESSED_BYTES_MAX
    redact: bool = True
    redact_key: bytes | None = field(default=None, repr=False)
    kind: LogKind | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> RaftlogOptions:
        """Parse Spark's options.

        Raises:
            OptionError: a name is unknown or set twice, a value is invalid, two options contradict
                each other, or there is no path.
        """
        given: dict[str, Any] = {}
        names: dict[str, str] = {}
        for raw_name, value in options.items():
            if is_spark_option(raw_name):
                continue
            name, attribute, parse = _find(raw_name)
            if attribute in names:
                raise OptionError(
                    option=name, reason=f"is an alias of {names[attribute]}, also set"
                )
            names[attribute] = name
            given[attribute] = parse(name, value)
        location = take_location(given, "call load(path)")
        parsed = cls(path=location.path, nodes=location.nodes, **given)
        parsed._check_together()
        return parsed

    def _check_together(self) -> None:
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(option="minOffsetsPerTrigger", reason="exceeds maxOffsetsPerTrigger")
        if self.redact_key is not None and not self.redact:
            raise OptionError(option="redactKey", reason="cannot be used with redact=false")
        if self.kind is not None and self.nodes is not None:
            reason = "cannot be used with bootstrap.servers: nodes report the kind of their log"
            raise OptionError(option="values", reason=reason)

    def at(self, path: str) -> RaftlogOptions:
        """Return the same options with another path."""
        return dataclasses.replace(self, path=path)

    @property
    def includes_aborted(self) -> bool:
        """Whether records of aborted transactions are returned."""
        return self.include_aborted_records or self.isolation is Isolation.READ_UNCOMMITTED

    def check_no_end(self) -> None:
        """Raise ``OptionError`` if an end offset or timestamp is set, for streams."""
        if self.ending_timestamp_ms is not None:
            raise OptionError(option="endingTimestamp", reason="is allowed in batch reads only")
        if self.ending_offset is not OffsetSpec.LATEST:
            raise OptionError(option="endingOffset", reason="is allowed in batch reads only")


# --- values ---------------------------------------------------------------------------------------


def _offset_or(*specs: OffsetSpec) -> Callable[[str, str], OffsetSpec | int]:
    def parse(name: str, value: str) -> OffsetSpec | int:
        text = value.strip().lower()
        for spec in specs:
            if text == spec.value:
                return spec
        if re.fullmatch(r"\d{1,18}", text, re.ASCII):
            return int(text)
        words = ", ".join(spec.value for spec in specs)
        raise OptionError(
            option=name, reason=f"must be {words} or an offset (a log is one partition)"
        )

    return parse


def _strategy(name: str, value: str) -> TimestampStrategy:
    try:
        return TimestampStrategy(value.strip().lower())
    except ValueError:
        raise OptionError(option=name, reason="must be error or latest") from None


def _isolation(name: str, value: str) -> Isolation:
    try:
        return isolation_of(value.strip().lower())
    except OptionError as error:
        raise OptionError(option=name, reason=error.reason) from None


def _kind(name: str, value: str) -> LogKind:
    match value.strip().lower():
        case "kraft":
            return LogKind.METADATA
        case "bytes" | "msgpack":
            return LogKind.PARTITION
        case _:
            raise OptionError(option=name, reason="must be kraft, bytes or msgpack")


def _decompressed_bytes(name: str, value: str) -> int:
    found = byte_count(name, value)
    if found > limits.DECOMPRESSED_BYTES_OPTION_MAX:
        reason = f"must be at most {limits.DECOMPRESSED_BYTES_OPTION_MAX} bytes"
        raise OptionError(option=name, reason=reason)
    return found


def _secret(name: str, value: str) -> bytes:
    secret = value.encode("utf-8", "surrogatepass")
    if len(secret) < limits.REDACTION_KEY_BYTES_MIN:
        least = limits.REDACTION_KEY_BYTES_MIN
        raise OptionError(option=name, reason=f"must have at least {least} bytes")
    return secret


# --- names ----------------------------------------------------------------------------------------

_STARTING: Final = _offset_or(OffsetSpec.EARLIEST, OffsetSpec.LATEST, OffsetSpec.SNAPSHOT)

OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    **CONNECTION_OPTIONS,
    "paths": ("path", paths),
    "startingOffset": ("starting_offset", _STARTING),
    "startingOffsets": ("starting_offset", _STARTING),
    "startingTimestamp": ("starting_timestamp_ms", timestamp_ms),
    "startingTimestampStrategy": ("starting_timestamp_strategy", _strategy),
    "startingOffsetsByTimestampStrategy": ("starting_timestamp_strategy", _strategy),
    "endingOffset": ("ending_offset", _offset_or(OffsetSpec.LATEST)),
    "endingOffsets": ("ending_offset", _offset_or(OffsetSpec.LATEST)),
    "endingTimestamp": ("ending_timestamp_ms", timestamp_ms),
    "maxOffsetsPerTrigger": ("max_offsets_per_trigger", integer(1)),
    "maxBytesPerTrigger": ("max_bytes_per_trigger", byte_count),
    "minOffsetsPerTrigger": ("min_offsets_per_trigger", integer(1)),
    "maxTriggerDelay": ("max_trigger_delay_ms", duration_ms),
    "minPartitions": ("min_partitions", integer(1, 1_000_000)),
    "maxRecordsPerPartition": ("max_records_per_partition", integer(1)),
    "failOnDataLoss": ("fail_on_data_loss", boolean),
    "isolationLevel": ("isolation", _isolation),
    "includeHeaders": ("include_headers", boolean),
    "includeControlRecords": ("include_control_records", boolean),
    "includeAbortedRecords": ("include_aborted_records", boolean),
    "recordBatchRows": ("record_batch_rows", integer(1, limits.ARROW_ROWS_MAX)),
    "tailHoldback": ("tail_holdback_ms", duration_ms),
    "pollWaitMs": ("poll_wait_ms", integer(0, 60_000)),
    "maxDecompressedBytes": ("decompressed_bytes_max", _decompressed_bytes),
    "redact": ("redact", boolean),
    "redactKey": ("redact_key", _secret),
    "values": ("kind", _kind),
}
"""Documented name or alias to field of ``RaftlogOptions`` and parser."""

_BY_KEY: Final = {name.lower(): name for name in OPTIONS}

_SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "provider", "owner", "queryname"})


def is_spark_option(raw_name: str) -> bool:
    """Return whether Spark itself adds this option."""
    name = raw_name.lower()
    return name in _SPARK_OPTIONS or name.startswith("option.")


WRITE_ONLY_OPTIONS: Final = (
    "requiredBaseOffset",
    "requiredEndOffset",
    "requiredEpoch",
    "txnAppId",
    "txnVersion",
    "txnTakeOverFrom",
    "maxBytesPerCommit",
)
"""Options of the sink only (``write_options``), for the detection of writes and suggestions."""

_WRITE_ONLY_KEYS: Final = {name.lower(): name for name in WRITE_ONLY_OPTIONS}


def has_write_option(options: Mapping[str, str]) -> bool:
    """Return whether an option of the sink only is set."""
    return any(name.lower() in _WRITE_ONLY_KEYS for name in options)


_BROKER_OPTIONS: Final = re.compile(
    r"(kafka\..*|subscribe|subscribepattern|assign|topic|topics"
    r"|startingoffsetsbytimestamp|endingoffsetsbytimestamp)",
    re.IGNORECASE,
)


def _find(raw_name: str) -> tuple[str, str, Parse]:
    name = _BY_KEY.get(raw_name.lower())
    if name is not None:
        attribute, parse = OPTIONS[name]
        return name, attribute, parse
    if _BROKER_OPTIONS.fullmatch(raw_name):
        raise OptionError(
            option=raw_name,
            reason="is an option of Spark's Kafka source; this source reads one log: call "
            "load(path) with a log directory, a segment or a .checkpoint file, or set "
            "bootstrap.servers to nodes of a quorum",
        )
    if raw_name.lower() in _WRITE_ONLY_KEYS:
        raise OptionError(
            option=_WRITE_ONLY_KEYS[raw_name.lower()], reason="is allowed in writes only"
        )
    raise unknown_option(raw_name, OPTIONS)


def unknown_option(raw_name: str, known: Iterable[str]) -> OptionError:
    """Return the error for an unknown name, with the most similar option."""
    every = _BY_KEY | _WRITE_ONLY_KEYS
    near = difflib.get_close_matches(raw_name.lower(), every, n=1, cutoff=0.6)
    hint = f"did you mean {every[near[0]]}?" if near else "options are " + ", ".join(known)
    return OptionError(option=raw_name, reason=f"is unknown; {hint}")
