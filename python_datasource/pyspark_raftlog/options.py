"""Options of the source: names, defaults and validation.

Names are case-insensitive, since Spark passes them in lower case; errors show the documented name.
Names of Spark's Kafka source with the same meaning are aliases. An unknown name is an error that
suggests the most similar one; options that Spark itself adds are ignored. Neither errors nor
``repr`` show values, which may be secret.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from raftlog import CommitName, ValueKind, limits
from raftlog.client import Isolation, LogKind
from raftlog.client.encryption import Encryption
from raftlog.client.location import (
    ENCRYPTION_OPTIONS,
    NODE_OPTIONS,
    PATH,
    PREFIX,
    HasLocation,
    LogLocation,
    open_log,
    parse_location,
)
from raftlog.client.log_handle import isolation_of, without_scheme
from raftlog.client.offset_spec import EARLIEST, LATEST, OffsetSpec, iso_ms, parse_offset_spec
from raftlog.client.option_values import (
    QUANTITY,
    boolean,
    byte_count,
    decompressed_bytes,
    duration_ms,
    log_kind,
)
from raftlog.client.remote.nodes import BOOTSTRAP_SERVERS
from raftlog.client.remote.security import ClientSecurity, resolve_references
from raftlog.errors import LogNotFoundError, OptionError
from raftlog.limits import EPOCH_MAX, INT64_MAX
from raftlog.printable import did_you_mean
from raftlog.types import INTERNAL_TOPICS

if TYPE_CHECKING:
    from raftlog import ConnectedLog


# --- Parsers of option values, shared by source and sink ------------------------------------------
# A parser takes the option's documented name and its text. ``OptionError`` states which values are
# allowed, and never contains the text, which may be a secret.

Parse = Callable[[str, str], Any]
"""Parser of an option: name and text to value."""
Find = Callable[[str], tuple[str, str, Parse]]
"""Look-up of an option: name as given to documented name, field and parser."""


def text(_name: str, value: str) -> str:
    """Return the text unchanged."""
    return value


def paths(name: str, value: str) -> str:
    """Parse Spark's JSON array for ``load([one, two])``."""
    try:
        parts = json.loads(value)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise OptionError(option=name, reason="must be a JSON array of paths")
    return ",".join(parts)


def source_list(name: str, value: str) -> list[list[tuple[str, str]]]:
    """Parse a JSON array of objects; return each object's names and values, as texts."""
    try:
        found = json.loads(value, object_pairs_hook=_JsonObject)
    except (ValueError, RecursionError):
        found = None
    if type(found) is not list or not all(isinstance(one, _JsonObject) for one in found):
        raise OptionError(option=name, reason="must be a JSON array of objects")
    if not found:
        raise OptionError(option=name, reason="must have at least one source")
    return [
        [(key, _json_text(f"{name}[{at}].{key}", value)) for key, value in one]
        for at, one in enumerate(found)
    ]


class _JsonObject(list[tuple[str, Any]]):
    """Object of a JSON text as pairs, so that a duplicate name is found."""


def _json_text(name: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | str():
            return str(value)
        case _:
            raise OptionError(option=name, reason="must be a string, an integer or a boolean")


def integer(min_value: int, most: int = INT64_MAX) -> Callable[[str, str], int]:
    """Return a parser of integers between two inclusive bounds."""

    def parse(name: str, value: str) -> int:
        match = QUANTITY.fullmatch(value)
        if match is None or match[2] or not min_value <= int(match[1]) <= most:
            top = "" if most == INT64_MAX else f" to {most}"
            raise OptionError(option=name, reason=f"must be an integer from {min_value}{top}")
        return int(match[1])

    return parse


def timestamp_ms(name: str, value: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 (UTC without a time zone)."""
    stripped = value.strip()
    if re.fullmatch(r"\d{1,18}", stripped, re.ASCII):
        return int(stripped)
    found = iso_ms(stripped)
    if found is None:
        reason = "must be milliseconds since 1970, or ISO 8601 (e.g. 2026-03-01T12:00:00Z)"
        raise OptionError(option=name, reason=reason)
    return found


# --- Location of the log: a path or bootstrap servers ---------------------------------------------

CONNECTION_OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    name: (name.removeprefix(PREFIX), text)
    for name in (
        *(PATH, *NODE_OPTIONS, *(PREFIX + one for one in NODE_OPTIONS)),
        *ENCRYPTION_OPTIONS,
    )
}
"""Documented name, or alias of Spark's Kafka source, to name for ``parse_location`` and parser."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of a log that a writer needs. ``byte_count_max`` is the limit of one batch."""

    values: ValueKind
    byte_count_max: int
    is_compressed: bool


def has_location(options: Mapping[str, str]) -> bool:
    """Return whether a path, paths (``load([...])``), bootstrap servers or sources are given."""
    names = {name.lower().removeprefix(PREFIX) for name in options}
    return not names.isdisjoint((PATH, "paths", BOOTSTRAP_SERVERS, "sources"))


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
    from raftlog.client.embedded.directory import read_settings as settings_in

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


# --- Options of the source ------------------------------------------------------------------------


class TimestampStrategy(enum.Enum):
    """Behaviour if no record has a timestamp >= ``startingTimestamp``."""

    ERROR = "error"
    LATEST = "latest"


class Redaction(enum.Enum):
    """What ``redact`` hides."""

    OFF = "false"
    SECRETS = "true"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftlogOptions:
    """Validated options of a ``load()``; None if an option is not set.

    ``RaftlogDataSource`` documents each option. End offsets are exclusive. If ``nodes`` is set,
    ``path`` contains the addresses. Each of ``sources`` has all options of one log, including those
    that all logs share.
    """

    path: str
    nodes: ClientSecurity | None = None
    encryption: Encryption | None = None
    cluster_id: str | None = None
    partition: str | None = None
    """Name of the directory, in which this is one of several partitions of an internal log."""
    sources: tuple[RaftlogOptions, ...] = ()
    starting_offset: OffsetSpec | None = None
    starting_timestamp_ms: int | None = None
    starting_timestamp_strategy: TimestampStrategy = TimestampStrategy.ERROR
    ending_offset: OffsetSpec = LATEST
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
    redaction: Redaction = Redaction.SECRETS
    redact_key: bytes | None = field(default=None, repr=False)
    has_typed_columns: bool = False
    kind: LogKind | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> RaftlogOptions:
        """Parse Spark's options.

        Raises:
            OptionError: a name is unknown or set twice, a value is invalid, two options contradict
                each other, or there is no path. The names of options in ``sources`` begin with
                ``sources[<position>].``
        """
        given = _parse_given(options.items(), _find)
        entries: list[list[tuple[str, str]]] | None = given.pop("sources", None)
        if entries is None:
            location = take_location(given, "call load(path)")
            parsed = cls(
                path=location.path,
                nodes=location.nodes,
                encryption=location.encryption,
                **given,
            )
            parsed._check_together()
            return parsed._with_partitions()
        for name in sorted(given.keys() & {name for name, _ in CONNECTION_OPTIONS.values()}):
            reason = f"cannot be used with {name}: each source has its own location"
            raise OptionError(option="sources", reason=reason)
        shared = cls(path=f"{len(entries)} sources", **given)
        shared._check_together()
        sources = tuple(shared._source(at, entry) for at, entry in enumerate(entries))
        _check_distinct(sources)
        return dataclasses.replace(shared, sources=sources)

    def _with_partitions(self) -> RaftlogOptions:
        """Return the options with a source for each partition, if the path is a pattern of some.

        Only partitions of an internal log are several logs; a pattern of other directories is one
        log in several copies.
        """
        path = self.path.removeprefix("file:")
        name = os.path.basename(path)
        plain, *others = _WILDCARD.split(name, maxsplit=1)
        if self.nodes is not None or not others or plain.rpartition("-")[0] not in INTERNAL_TOPICS:
            return self
        from raftlog.client.inspection import expand
        from raftlog_state.records.internal_logs import partitions_among

        found = partitions_among(expand(path))
        if not found:
            raise LogNotFoundError(path=self.path, remedy="check the pattern of partitions")
        sources = tuple(
            dataclasses.replace(self, path=path, partition=os.path.basename(path)) for path in found
        )
        return dataclasses.replace(self, sources=sources)

    def _source(self, position: int, entry: list[tuple[str, str]]) -> RaftlogOptions:
        """Return the options of one log: those of its entry, then the shared ones."""
        try:
            given = _parse_given(entry, _find_source_option)
            location = take_location(given, "set it in this source")
            for offset, timestamp in _POSITIONS:
                if offset in given:
                    given.setdefault(timestamp, None)  # a shared timestamp would take precedence
            parsed = dataclasses.replace(
                self,
                path=location.path,
                nodes=location.nodes,
                encryption=location.encryption,
                **given,
            )
            parsed._check_together()
        except OptionError as error:
            option = f"sources[{position}].{error.option}"
            raise OptionError(option=option, reason=error.reason) from None
        return parsed

    def _check_together(self) -> None:
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(option="minOffsetsPerTrigger", reason="exceeds maxOffsetsPerTrigger")
        if self.redact_key is not None and self.redaction is Redaction.OFF:
            raise OptionError(option="redactKey", reason="cannot be used with redact=false")
        if self.kind is not None and self.nodes is not None:
            reason = "cannot be used with bootstrap.servers: nodes report the kind of their log"
            raise OptionError(option="values", reason=reason)
        if self.has_typed_columns and self.kind is LogKind.PARTITION:
            raise typed_columns_refused("values=kraft")

    def with_paths(self, convert: Callable[[str], str]) -> RaftlogOptions:
        """Return the same options with converted paths of files."""
        if self.sources:
            sources = tuple(source.with_paths(convert) for source in self.sources)
            return dataclasses.replace(self, sources=sources)
        return self if self.nodes else dataclasses.replace(self, path=convert(self.path))

    @property
    def has_cluster_ids(self) -> bool:
        """Whether the rows are those of several clusters."""
        return any(source.partition is None for source in self.sources)

    @property
    def includes_aborted(self) -> bool:
        """Whether records of aborted transactions are returned."""
        return self.include_aborted_records or self.isolation is Isolation.READ_UNCOMMITTED

    def check_no_end(self) -> None:
        """Raise ``OptionError`` if an end offset or timestamp is set, for streams."""
        for source in self.sources:
            source.check_no_end()
        if self.ending_timestamp_ms is not None:
            raise OptionError(option="endingTimestamp", reason="is allowed in batch reads only")
        if self.ending_offset != LATEST:
            raise OptionError(option="endingOffset", reason="is allowed in batch reads only")


def typed_columns_refused(what: str) -> OptionError:
    """Return the error of ``columns=typed`` for records that are not those of cluster metadata."""
    reason = f"typed requires {what}: only records of cluster metadata have typed fields"
    return OptionError(option="columns", reason=reason)


def _parse_given(options: Iterable[tuple[str, str]], find: Find) -> dict[str, Any]:
    """Return field to parsed value of options with these names and texts."""
    given: dict[str, Any] = {}
    names: dict[str, str] = {}
    for raw_name, value in options:
        if is_spark_option(raw_name):
            continue
        name, attribute, parse = find(raw_name)
        if attribute in names:
            raise OptionError(option=name, reason=f"is an alias of {names[attribute]}, also set")
        names[attribute] = name
        given[attribute] = parse(name, value)
    return given


_WILDCARD: Final = re.compile(r"[*?\[]")


def _check_distinct(sources: Iterable[RaftlogOptions]) -> None:
    positions: dict[str, int] = {}
    for at, source in enumerate(sources):
        if source.cluster_id is None:
            continue
        first = positions.setdefault(source.cluster_id, at)
        if first != at:
            raise duplicate_cluster(source.cluster_id, first, at)


def duplicate_cluster(cluster_id: str, first: int, second: int) -> OptionError:
    """Return the error for two sources of one cluster, given their positions."""
    reason = f"has the logs of cluster {cluster_id} twice, at positions {first} and {second}"
    return OptionError(option="sources", reason=reason)


# --- values ---------------------------------------------------------------------------------------


def _ending_offset(name: str, value: str) -> OffsetSpec:
    spec = parse_offset_spec(name, value)
    if spec == EARLIEST:
        raise OptionError(option=name, reason="must be after the start of the log")
    return spec


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


def _redaction(name: str, value: str) -> Redaction:
    try:
        return Redaction(value.strip().lower())
    except ValueError:
        raise OptionError(option=name, reason="must be true, false or full") from None


def _has_typed_columns(name: str, value: str) -> bool:
    match value.strip().lower():
        case "typed":
            return True
        case "json":
            return False
        case _:
            raise OptionError(option=name, reason="must be json or typed")


def _cluster_id(name: str, value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise OptionError(option=name, reason="must be the id of a cluster")
    return value.strip()


def _secret(name: str, value: str) -> bytes:
    secret = resolve_references(name, value).encode("utf-8", "surrogatepass")
    if len(secret) < limits.REDACTION_KEY_BYTES_MIN:
        least = limits.REDACTION_KEY_BYTES_MIN
        raise OptionError(option=name, reason=f"must have at least {least} bytes")
    if len(set(secret)) < limits.REDACTION_KEY_DISTINCT_MIN:
        least = limits.REDACTION_KEY_DISTINCT_MIN
        raise OptionError(option=name, reason=f"must have at least {least} different characters")
    return secret


# --- names ----------------------------------------------------------------------------------------


OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    **CONNECTION_OPTIONS,
    "paths": ("path", paths),
    "sources": ("sources", source_list),
    "startingOffset": ("starting_offset", parse_offset_spec),
    "startingOffsets": ("starting_offset", parse_offset_spec),
    "startingTimestamp": ("starting_timestamp_ms", timestamp_ms),
    "startingTimestampStrategy": ("starting_timestamp_strategy", _strategy),
    "startingOffsetsByTimestampStrategy": ("starting_timestamp_strategy", _strategy),
    "endingOffset": ("ending_offset", _ending_offset),
    "endingOffsets": ("ending_offset", _ending_offset),
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
    "maxDecompressedBytes": ("decompressed_bytes_max", decompressed_bytes),
    "redact": ("redaction", _redaction),
    "redactKey": ("redact_key", _secret),
    "redactSecret": ("redact_key", _secret),
    "columns": ("has_typed_columns", _has_typed_columns),
    "values": ("kind", log_kind),
}
"""Documented name or alias to field of ``RaftlogOptions`` and parser."""

_BY_KEY: Final = {name.lower(): name for name in OPTIONS}

SOURCE_OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    **CONNECTION_OPTIONS,
    "clusterId": ("cluster_id", _cluster_id),
    **{
        name: OPTIONS[name]
        for name in (
            "startingOffset",
            "startingOffsets",
            "startingTimestamp",
            "startingTimestampStrategy",
            "startingOffsetsByTimestampStrategy",
            "endingOffset",
            "endingOffsets",
            "endingTimestamp",
            "failOnDataLoss",
            "isolationLevel",
            "tailHoldback",
            "maxDecompressedBytes",
            "values",
        )
    },
}
"""Options of one log in ``sources``; all others are shared. As ``OPTIONS``."""

_POSITIONS: Final = (
    ("starting_offset", "starting_timestamp_ms"),
    ("ending_offset", "ending_timestamp_ms"),
)
_SOURCE_BY_KEY: Final = {name.lower(): name for name in SOURCE_OPTIONS}

_SPARK_OPTIONS: Final = frozenset(
    {"checkpointlocation", "provider", "owner", "queryname", "location", "external"}
)
"""``location`` repeats the path of a catalog's table."""


def is_spark_option(raw_name: str) -> bool:
    """Return whether Spark itself adds this option."""
    name = raw_name.lower()
    return name in _SPARK_OPTIONS or name.startswith("option.")


def is_catalog_table(given: Mapping[str, str]) -> bool:
    """Return whether these are the options of CREATE TABLE."""
    return any(name.lower() == "provider" for name in given)


def without_table_properties(given: Mapping[str, str]) -> dict[str, str]:
    """Remove a table's comment, collation and properties, which CREATE TABLE passes as options.

    Spark passes each of its OPTIONS twice, as ``name`` and ``option.name``. A property with the
    name of an option is not removed.
    """
    if not is_catalog_table(given):
        return dict(given)
    prefix = "option."
    names = [name.lower() for name in given]
    passed_twice = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def is_option(name: str) -> bool:
        known = name in _BY_KEY or name in _WRITE_ONLY_KEYS or name in passed_twice
        return known or is_spark_option(name)

    return {name: value for name, value in given.items() if is_option(name.lower())}


WRITE_ONLY_OPTIONS: Final[Mapping[str, tuple[str, Parse]]] = {
    "requiredBaseOffset": ("required_base_offset", integer(0)),
    "requiredEndOffset": ("required_end_offset", integer(0)),
    "requiredEpoch": ("required_epoch", integer(1, EPOCH_MAX)),
    "txnAppId": ("txn_app_id", text),
    "txnVersion": ("txn_version", integer(0)),
    "txnTakeOverFrom": ("txn_take_over_from", text),
    "maxBytesPerCommit": ("max_bytes_per_commit", byte_count),
}
"""Documented name to field of ``WriteOptions`` and parser, without the location of the log."""

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


def _find_source_option(raw_name: str) -> tuple[str, str, Parse]:
    name = _SOURCE_BY_KEY.get(raw_name.lower())
    if name is not None:
        attribute, parse = SOURCE_OPTIONS[name]
        return name, attribute, parse
    if raw_name.lower() in _BY_KEY:
        reason = "is shared by all sources: set it beside sources"
        raise OptionError(option=_BY_KEY[raw_name.lower()], reason=reason)
    raise unknown_option(raw_name, SOURCE_OPTIONS)


_SYNONYMS: Final = {"startingversion": "startingoffset", "endingversion": "endingoffset"}
"""Options of Delta's source, in whose place the spelling of others would be suggested."""


def unknown_option(raw_name: str, known: Iterable[str]) -> OptionError:
    """Return the error for an unknown name, with the most similar option."""
    every = (*OPTIONS, *WRITE_ONLY_OPTIONS, *SOURCE_OPTIONS)
    name = _SYNONYMS.get(raw_name.lower(), raw_name.lower())
    hint = did_you_mean(name, every) or "options are " + ", ".join(known)
    return OptionError(option=raw_name, reason=f"is unknown; {hint}")


# --- Options of the sink: names, defaults and validation, as of the source ------------------------
# Options of the source are errors. Contradictions are errors before any task runs: a stream's
# transaction version is its batch id, so it accepts neither a version nor a required offset.


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Validated options of a write; None if an option is not set.

    ``RaftlogDataSource`` documents each option.
    """

    path: str
    nodes: ClientSecurity | None = None
    encryption: Encryption | None = None
    required_base_offset: int | None = None
    required_end_offset: int | None = None
    required_epoch: int | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_take_over_from: str | None = None
    max_bytes_per_commit: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse Spark's options, with an absolute path.

        Raises ``OptionError``: a name is unknown, for reads only or set twice, a value is invalid,
        two options contradict each other, or there is no path.
        """
        given = _parse_given(options.items(), _find_write_option)
        call = "call save(path) or start(path), or insert into a temporary view instead of a table"
        location = take_location(given, call)
        path = location.path
        if location.nodes is None:
            path = os.path.abspath(without_scheme(path))
        return cls(path=path, nodes=location.nodes, encryption=location.encryption, **given)

    def __post_init__(self) -> None:
        if self.txn_app_id is not None:
            _check_id("txnAppId", self.txn_app_id)
        if self.txn_take_over_from is not None:
            _check_id("txnTakeOverFrom", self.txn_take_over_from)
            if self.txn_app_id is None:
                raise OptionError(
                    option="txnTakeOverFrom", reason="requires txnAppId, which is not set"
                )

    def check_batch(self) -> None:
        """Raise ``OptionError`` for options that are invalid in a batch."""
        if (self.txn_app_id is None) != (self.txn_version is None):
            missing, given = ("txnVersion", "txnAppId")
            if self.txn_app_id is None:
                missing, given = given, missing
            raise OptionError(option=missing, reason=f"is missing: {given} requires it")

    def check_stream(self) -> None:
        """Raise ``OptionError`` for options that are invalid in a stream."""
        for name, value in (
            ("requiredBaseOffset", self.required_base_offset),
            ("requiredEndOffset", self.required_end_offset),
        ):
            if value is not None:
                raise OptionError(
                    option=name,
                    reason="is allowed in batch writes only: micro-batches have different offsets; "
                    "use foreachBatch to set it for each of them",
                )
        if self.txn_version is not None:
            raise OptionError(
                option="txnVersion",
                reason="is allowed in batch writes only: in a stream it is the batch id",
            )

    def batch_commit(self) -> CommitName | None:
        """Return the commit name of a batch write, whose query id is its ``txnAppId``."""
        if self.txn_app_id is None or self.txn_version is None:
            return None
        return CommitName(self.txn_app_id, self.txn_app_id, self.txn_version)

    def stream_commit(self, query_id: str, batch_id: int) -> CommitName:
        """Return the commit name of a micro-batch."""
        return CommitName(self.txn_app_id or query_id, query_id, batch_id)


def _check_id(option: str, value: str) -> None:
    try:
        CommitName(value, value, 0)
    except OptionError as error:
        raise OptionError(option=option, reason=error.reason) from None


_WRITE_OPTIONS: Final = {**CONNECTION_OPTIONS, **WRITE_ONLY_OPTIONS}
_WRITE_BY_KEY: Final = {name.lower(): name for name in _WRITE_OPTIONS}


def _find_write_option(raw_name: str) -> tuple[str, str, Callable[[str, str], Any]]:
    key = raw_name.lower()
    if key in _WRITE_BY_KEY:
        name = _WRITE_BY_KEY[key]
        attribute, parse = _WRITE_OPTIONS[name]
        return name, attribute, parse
    if key in _BY_KEY:
        raise OptionError(option=_BY_KEY[key], reason="is allowed in reads only")
    raise unknown_option(raw_name, _WRITE_OPTIONS)
