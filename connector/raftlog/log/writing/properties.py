"""``raftlog.properties``: the topic id, the kind of values and the settings of a log.

Names and defaults are Kafka's (``TopicConfig``) where Kafka has the setting, with two exceptions:
retention is unlimited by default, and appends do not linger. -1 in the file means no limit, and is
None in ``LogConfig``.

The file is in Java's property format, in ASCII, with ``version=1`` first. A missing setting has its
default. An unknown setting is kept and written again, and a setting that no longer has an effect
(``_RETIRED``) is dropped. An invalid value is a ``CorruptFileError`` in a file and an
``OptionError`` in code. The kind of values is fixed when the log is created.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

from raftlog.errors import CorruptFileError, OptionError
from raftlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_HEADER_BYTES,
    INT32_MAX,
    INT64_MAX,
    KIB,
    LOG_BATCH_BYTES_MAX,
    MIB,
)
from raftlog.log.format.directory import encode_properties, parse_properties, whole_number
from raftlog.log.reading.transactions import ValueKind
from raftlog.printable import has_keys, without_user_info
from raftlog.records.compression import Compression

LOG_PROPERTIES_VERSION: Final = 1
DAY_MS: Final = 24 * 60 * 60 * 1000
AS_RETENTION: Final = -2
"""Value of ``local.retention.*`` that means the value of ``retention.*``, as in Kafka."""
T = TypeVar("T")


class CleanupPolicy(enum.Enum):
    """Treatment of old records (Kafka: ``cleanup.policy``).

    ``DELETE``: segments that exceed the retention limits are deleted. ``COMPACT``: only the last
    record of each key is retained.
    """

    DELETE = "delete"
    COMPACT = "compact"
    COMPACT_DELETE = "compact,delete"

    def __init__(self, text: str) -> None:
        self.compacts: Final = "compact" in text
        """Whether superseded records are removed."""
        self.deletes: Final = "delete" in text
        """Whether retention by age and size applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Write and retention settings of a log. Raises ``OptionError`` for an invalid value.

    - ``batch_bytes_max``: maximum size of one batch in bytes, including its header.
    - ``segment_ms``: maximum time span of a segment in ms, by the timestamps of its records.
    - ``retention_ms``, ``retention_bytes``: limits by age and size; None for no limit. A ``KRAFT``
      log is deleted only below snapshots. The application of an embedded log writes them with
      ``snapshot``; a node of a quorum writes them itself.
    - ``cleanup_policy``: whether the log is compacted. If so, each record has a key, and
      ``values`` must not be ``KRAFT``.
    - ``min_cleanable_dirty_ratio``: from 0 to 1; the log is compacted if a larger share of its
      sealed bytes has not been read by any compaction.
    - ``delete_retention_ms``: how long a tombstone outlives the older values of its key, in ms.
    - ``min_compaction_lag_ms``, ``max_compaction_lag_ms``: ages of records in ms. Younger records
      than the former are not compacted; older ones than the latter are, whatever the ratio. None
      for no limit.
    - ``remote_storage_enable``: whether sealed segments are copied to the object store at
      ``remote_storage_uri``, a directory or a ``pyarrow.fs`` URI without credentials. The log is
      then not compacted, and ``values`` must not be ``KRAFT``.
    - ``local_retention_ms``, ``local_retention_bytes``: limits for the local part of a log with
      remote storage; ``retention_*`` applies to the whole log. Segments that were not copied yet
      are never deleted. -2 for the same as ``retention_*``, None for no limit.
    - ``linger_ms``: how long an append waits for others to share its batch and its sync, in ms.
      Appends that arrive during a sync share the next one in any case (KRaft's default is 25).
    """

    values: ValueKind = ValueKind.BYTES
    batch_bytes_max: int = BATCH_BYTES_MAX
    compression: Compression = Compression.NONE
    linger_ms: int = 0
    segment_bytes: int = 1024 * MIB
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4 * KIB
    retention_ms: int | None = None
    retention_bytes: int | None = None
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = DAY_MS
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int | None = None
    remote_storage_uri: str = ""
    remote_storage_enable: bool = False
    local_retention_ms: int | None = AS_RETENTION
    local_retention_bytes: int | None = AS_RETENTION

    def __post_init__(self) -> None:
        self._check_types()
        if self.cleanup_policy.compacts and self.values is ValueKind.KRAFT:
            raise OptionError(
                option=_CLEANUP_POLICY,
                reason="a kraft log has no keys; its snapshots contain its state",
            )
        if not 0 <= self.min_cleanable_dirty_ratio <= 1:
            raise OptionError(option=_DIRTY_RATIO, reason="it must be from 0 to 1")
        for setting in _NUMBERS:
            reason = setting.damage(getattr(self, setting.field))
            if reason is not None:
                raise OptionError(option=setting.name, reason=reason)
        if self.remote_storage_uri or self.remote_storage_enable:
            self._check_remote_storage()

    def _check_types(self) -> None:
        """Raise ``OptionError`` for a value that the properties file would not have as it is."""
        ratio = self.min_cleanable_dirty_ratio
        for option, value, kind in (
            (_CLEANUP_POLICY, self.cleanup_policy, CleanupPolicy),
            (_COMPRESSION, self.compression, Compression),
            (_REMOTE_ENABLE, self.remote_storage_enable, bool),
            (_REMOTE_URI, self.remote_storage_uri, str),
            (_DIRTY_RATIO, 0.0 if type(ratio) is int else ratio, float),  # an int of any size
        ):
            if not isinstance(value, kind):
                reason = f"it must be {kind.__name__}, not {type(value).__name__}"
                raise OptionError(option=option, reason=reason)

    def _check_remote_storage(self) -> None:
        uri, reason = self.remote_storage_uri, None
        has_user = without_user_info(uri) != uri and not _AZURE.match(uri)
        has_credentials = has_user or has_keys(uri)
        if re.fullmatch(r"[!-~]*", uri) is None or has_credentials:
            reason = (
                "it must be printable ASCII, without a user, a password or a key: the environment"
            )
            raise OptionError(option=_REMOTE_URI, reason=f"{reason} has the credentials of a store")
        if uri and "://" not in uri and not uri.startswith("/"):
            raise OptionError(option=_REMOTE_URI, reason="a path must be absolute")
        if not self.remote_storage_enable:
            return
        if not uri:
            raise OptionError(option=_REMOTE_URI, reason="it is required by remote.storage.enable")
        if self.cleanup_policy.compacts:
            reason = "a compacted log has no remote segments: cleanup.policy must be delete"
        elif self.values is ValueKind.KRAFT:
            reason = "a kraft log has no remote segments: its snapshots contain its state"
        if reason is not None:
            raise OptionError(option=_REMOTE_ENABLE, reason=reason)

    @property
    def local_retention(self) -> tuple[int | None, int | None]:
        """Limits of the local files in ms and bytes, which do not exceed those of the log."""
        if not self.remote_storage_enable:
            return self.retention_ms, self.retention_bytes
        return (
            _least(self.local_retention_ms, self.retention_ms),
            _least(self.local_retention_bytes, self.retention_bytes),
        )


def _least(local: int | None, whole: int | None) -> int | None:
    if local is None or local < 0:  # no limit of its own
        return whole
    return local if whole is None else min(local, whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProperties:
    """Content of ``raftlog.properties``. ``topic_id`` is that of ``partition.metadata``.

    ``unknown`` has settings that a later release wrote.
    """

    topic_id: str
    config: LogConfig
    unknown: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Number:
    """A numeric setting: its name in the file, its field, its bounds (both inclusive)."""

    name: str
    field: str
    at_least: int
    at_most: int = INT64_MAX
    may_be_unlimited: bool = False

    def damage(self, value: int | None) -> str | None:
        """Return why ``value`` is invalid, or None."""
        if value is None and self.may_be_unlimited:
            return None
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if is_number and value is not None and self.at_least <= value <= self.at_most:
            return None
        unlimited = "-1 (no limit), or " if self.may_be_unlimited else ""
        return f"it must be {unlimited}from {self.at_least} to {self.at_most}"


_NUMBERS: Final = (
    _Number("max.message.bytes", "batch_bytes_max", KIB, LOG_BATCH_BYTES_MAX),
    _Number("linger.ms", "linger_ms", 0, DAY_MS),
    _Number("segment.bytes", "segment_bytes", BATCH_HEADER_BYTES, INT32_MAX),
    _Number("segment.ms", "segment_ms", 1),
    _Number("segment.index.bytes", "segment_index_bytes", 12, INT32_MAX),
    _Number("index.interval.bytes", "index_interval_bytes", 0, INT32_MAX),
    _Number("retention.ms", "retention_ms", 0, may_be_unlimited=True),
    _Number("retention.bytes", "retention_bytes", 0, may_be_unlimited=True),
    _Number("local.retention.ms", "local_retention_ms", AS_RETENTION, may_be_unlimited=True),
    _Number("local.retention.bytes", "local_retention_bytes", AS_RETENTION, may_be_unlimited=True),
    _Number("delete.retention.ms", "delete_retention_ms", 0),
    _Number("min.compaction.lag.ms", "min_compaction_lag_ms", 0),
    _Number("max.compaction.lag.ms", "max_compaction_lag_ms", 1, may_be_unlimited=True),
)
_VERSION: Final = "version"
_TOPIC_ID: Final = "topic.id"
_VALUES: Final = "values"
_COMPRESSION: Final = "compression.type"
_CLEANUP_POLICY: Final = "cleanup.policy"
_DIRTY_RATIO: Final = "min.cleanable.dirty.ratio"
_AZURE: Final = re.compile("abfss?://")
"""Schemes of URIs that have the container, or the account, before the ``@``."""
_REMOTE_ENABLE: Final = "remote.storage.enable"
_REMOTE_URI: Final = "remote.storage.uri"
_RETIRED: Final = {"commit.retention.ms", "producer.id.expiration.ms"}
"""Settings of earlier releases, which expired commits and producers by age."""
_TEXTS: Final = {_VALUES, _COMPRESSION, _CLEANUP_POLICY, _DIRTY_RATIO, _REMOTE_ENABLE, _REMOTE_URI}
_NAMES: Final = {_VERSION, _TOPIC_ID} | _TEXTS | {one.name for one in _NUMBERS}
assert {one.field for one in _NUMBERS} | {
    "values",
    "compression",
    "cleanup_policy",
    "min_cleanable_dirty_ratio",
    "remote_storage_enable",
    "remote_storage_uri",
} == {field.name for field in fields(LogConfig)}


def encode_log_properties(properties: LogProperties) -> bytes:
    """Return the content of ``raftlog.properties``."""
    config = properties.config
    pairs = [
        (_VERSION, str(LOG_PROPERTIES_VERSION)),
        (_TOPIC_ID, properties.topic_id),
        (_VALUES, config.values.value),
        (_COMPRESSION, config.compression.name.lower()),
        (_CLEANUP_POLICY, config.cleanup_policy.value),
        (_DIRTY_RATIO, str(config.min_cleanable_dirty_ratio)),
        (_REMOTE_ENABLE, str(config.remote_storage_enable).lower()),
        (_REMOTE_URI, config.remote_storage_uri),
    ]
    for setting in _NUMBERS:
        number: int | None = getattr(config, setting.field)
        pairs.append((setting.name, str(-1 if number is None else number)))
    return encode_properties([*pairs, *properties.unknown])


def parse_log_properties(data: bytes, path: str) -> LogProperties:
    """Parse ``raftlog.properties``. Raises ``CorruptFileError``."""
    pairs = dict(parse_properties(data, path))
    version = whole_number(_required(pairs, _VERSION, path), path, "the version")
    if version != LOG_PROPERTIES_VERSION:
        raise CorruptFileError(
            path=path, reason=f"unsupported version {version}, expected {LOG_PROPERTIES_VERSION}"
        )
    values = _named(ValueKind, _required(pairs, _VALUES, path), _VALUES, path)
    compression = Compression.NONE
    if _COMPRESSION in pairs:
        compression = _named(_compression, pairs[_COMPRESSION], _COMPRESSION, path)
    numbers: dict[str, Any] = {}
    if _CLEANUP_POLICY in pairs:
        numbers["cleanup_policy"] = _named(_policy, pairs[_CLEANUP_POLICY], _CLEANUP_POLICY, path)
    if _DIRTY_RATIO in pairs:
        ratio = _named(float, pairs[_DIRTY_RATIO], _DIRTY_RATIO, path)
        numbers["min_cleanable_dirty_ratio"] = ratio
    if _REMOTE_ENABLE in pairs:
        numbers["remote_storage_enable"] = _named(
            _flag, pairs[_REMOTE_ENABLE], _REMOTE_ENABLE, path
        )
    numbers["remote_storage_uri"] = pairs.get(_REMOTE_URI, "")
    for setting in _NUMBERS:
        if setting.name in pairs:
            number = whole_number(pairs[setting.name], path, setting.name)
            unlimited = setting.may_be_unlimited and number == -1
            numbers[setting.field] = None if unlimited else number
    try:
        config = LogConfig(values=values, compression=compression, **numbers)
    except OptionError as error:
        raise CorruptFileError(path=path, reason=f"{error.option}: {error.reason}") from None
    return LogProperties(
        topic_id=_required(pairs, _TOPIC_ID, path),
        config=config,
        unknown=tuple(
            (name, value) for name, value in pairs.items() if name not in _NAMES | _RETIRED
        ),
    )


def without_remote_storage(data: bytes, path: str) -> bytes:
    """Return ``raftlog.properties`` for a copy of the log, which must not write to its store.

    The content is unchanged unless the log has remote storage. Raises ``CorruptFileError``.
    """
    properties = parse_log_properties(data, path)
    if not properties.config.remote_storage_enable:
        return data
    config = replace(properties.config, remote_storage_enable=False)
    return encode_log_properties(replace(properties, config=config))


def _required(pairs: dict[str, str], name: str, path: str) -> str:
    if not pairs.get(name):
        raise CorruptFileError(path=path, reason=f"{name} is missing")
    return pairs[name]


def _compression(name: str) -> Compression:
    return {codec.name.lower(): codec for codec in Compression}[name]


def _flag(text: str) -> bool:
    return {"true": True, "false": False}[text.strip().lower()]


def _policy(text: str) -> CleanupPolicy:
    return CleanupPolicy(",".join(sorted(one.strip() for one in text.split(","))))


def _named(kind: Callable[[str], T], text: str, name: str, path: str) -> T:
    try:
        return kind(text)
    except (ValueError, KeyError):
        raise CorruptFileError(
            path=path, reason=f"{name} has the unknown value {text[:20]!r}"
        ) from None
