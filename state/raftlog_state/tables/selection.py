"""Selection of a published state by offset, time or name, for the readers of all engines."""

from __future__ import annotations

import abc
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, SupportsIndex, TypeAlias

from raftlog.client.offset_spec import OffsetSpec, OffsetSpecKind, parse_word
from raftlog.errors import OptionError
from raftlog_state.errors import TablesError
from raftlog_state.image.delta import key_json

from .convert import US_PER_MS
from .pinning import PinnedVersions
from .progress import NOTHING, Progress
from .schema import BY_NAME, TypedTable
from .stores.protocol import TableStore

_MILLISECONDS: Final = re.compile(r"[0-9]{10,15}")
"""A time in milliseconds, as in options of the source; fewer digits are a year or a date."""

OffsetOrTime: TypeAlias = int | datetime | str
"""Offset (inclusive) or time of a state; text may also be an age, an epoch, ``start`` or ``end``.
"""
ToMicros: TypeAlias = Callable[[datetime | str], int | None]
"""Conversion of a time to microseconds since 1970; None if the text is no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(abc.ABC):
    """Versions of the tables that a reader sees together, and a cluster's rows in them."""

    store: TableStore
    versions: PinnedVersions

    @property
    def place(self) -> str:
        """Where the tables are."""
        return self.store.place

    @property
    def cluster_id(self) -> str:
        """The cluster."""
        return self.versions.cluster_id

    @property
    def progress(self) -> Progress:
        """The end of the cluster's tables."""
        return self.versions.progress

    @abc.abstractmethod
    def first_offset_not_earlier(self, time_us: int) -> int | None:
        """Return the first offset with a time >= ``time_us`` in ``log`` or ``changes``, or None."""

    @abc.abstractmethod
    def epoch_start(self, leader_epoch: int) -> int | None:
        """Return the start offset of a leader epoch; None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatus:
    """Offsets that the tables have reached, inclusive; -1 or None if there is nothing yet.

    ``offset``: the offset of ``latest()``. ``log_offset``: the last record in ``log``, if that
    table exists. ``oldest_offset``: the first offset for ``at()``. ``gaps``: first and last offsets
    without history, because a later state was loaded instead. ``group``: the group of clusters that
    writes this one; None for a writer of its own.
    """

    place: str
    cluster_id: str | None
    group: str | None
    incarnation: int
    offset: int
    log_offset: int
    oldest_offset: int | None
    leader_epoch: int | None
    metadata_version: int | None
    row_counts: Mapping[str, int]
    gaps: tuple[tuple[int, int], ...]


def status_of(
    place: str, cluster_id: str | None, published: Published | None, log_offset: int
) -> ClusterStatus:
    """Return the status of a cluster, or of the only one; None if nothing of it was published."""
    progress = Progress(cluster_id=cluster_id) if published is None else published.progress
    is_empty = published is None
    return ClusterStatus(
        place=place,
        cluster_id=progress.cluster_id,
        group=progress.group,
        incarnation=progress.incarnation,
        offset=progress.offset,
        log_offset=log_offset,
        oldest_offset=None if is_empty else progress.oldest_offset,
        leader_epoch=None if is_empty else progress.leader_epoch,
        metadata_version=progress.metadata_version,
        row_counts=progress.row_counts,
        gaps=progress.gaps,
    )


def nothing_published(place: str, cluster_id: str | None) -> TablesError:
    """Return the error of tables before the first publication of a cluster; None: of any."""
    of_cluster = "" if cluster_id is None else f" of cluster {cluster_id}"
    return TablesError(
        place=place,
        reason=f"nothing{of_cluster} was published yet",
        remedy="call materialize, bootstrap or apply first, run `raftlog tables follow`, or "
        "correct the location",
    )


def checked_offset(published: Published, wanted: SupportsIndex | None, option: str) -> int:
    """Return an offset whose state can be read; None: the newest one."""
    progress = published.progress
    if wanted is None:
        return progress.offset
    offset = whole_offset(wanted, option)
    progress.check_readable(published.place, offset)
    if progress.is_in_gap(offset):
        raise TablesError(
            place=published.place,
            reason=f"no history at offset {offset}: a later state was loaded instead",
            remedy="use an offset outside of the gaps that status() lists",
        )
    return offset


def whole_offset(value: SupportsIndex, option: str) -> int:
    """Return an integer of any kind, such as numpy's."""
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(option=option, reason="an offset must be an integer") from None


def offset_of_state(
    published: Published, offset: int | None, time: datetime | str | None, to_micros: ToMicros
) -> int:
    """Return the offset of the state that the arguments of ``at`` name."""
    if time is None and offset is not None:
        return checked_offset(published, offset, "offset")
    if offset is None and time is not None:
        found = _offset_at(published, time, "time", to_micros)
        return checked_offset(published, found, "time")
    raise OptionError(option="offset, time", reason="exactly one of them must be given")


def offset_or_time(
    published: Published, wanted: OffsetOrTime | None, option: str, to_micros: ToMicros
) -> int:
    """Return the offset of a state that can be read; None: the newest one."""
    if isinstance(wanted, str | datetime):
        wanted = _offset_at(published, wanted, option, to_micros)
    return checked_offset(published, wanted, option)


def offsets_between(
    published: Published,
    since: OffsetOrTime | None,
    until: OffsetOrTime | None,
    to_micros: ToMicros,
) -> tuple[int, int]:
    """Return the offsets of the states before and after a range of changes."""
    first = NOTHING if since is None else offset_or_time(published, since, "since", to_micros)
    last = offset_or_time(published, until, "until", to_micros)
    if first > last:
        raise OptionError(option="since", reason=f"offset {first} is after offset {last}")
    return first, last


def _offset_at(published: Published, time: datetime | str, option: str, to_micros: ToMicros) -> int:
    """Return the last offset of the state at a time: that before the first record not earlier.

    The rule is the one of ``raftlog.client.offset_spec``. Without the table ``log``, only the last
    of an append's records without changes is known.
    """
    if not isinstance(time, str | datetime):
        raise OptionError(option=option, reason="must be a datetime or text")
    spec = parse_word(time) if isinstance(time, str) else None
    if spec is not None and spec.kind not in (OffsetSpecKind.TIME, OffsetSpecKind.AGE):
        return _offset_of_word(published, spec, option)
    is_ms = isinstance(time, str) and _MILLISECONDS.fullmatch(time.strip()) is not None
    if spec is not None and spec.kind is OffsetSpecKind.TIME:
        micros: int | None = spec.number * US_PER_MS
    else:
        micros = int(str(time)) * US_PER_MS if is_ms else to_micros(time)
    if micros is None:
        reason = (
            "must be a time such as 2026-11-21T03:12:00Z, milliseconds since 1970, an age (-15m, "
            "-2h, -1d), epoch:N, start or end"
        )
        raise OptionError(option=option, reason=reason)
    expired_time_us = published.progress.expired_time_us
    if expired_time_us is not None and micros <= expired_time_us:
        raise TablesError(
            place=published.place,
            reason="the changes at that time have expired",
            remedy="use a later time, or an offset from that of status().oldest_offset on",
        )
    first = published.first_offset_not_earlier(micros)
    offset = published.progress.offset if first is None else first - 1
    if offset < published.progress.oldest_offset:
        raise TablesError(
            place=published.place,
            reason="none of their records is earlier than the time",
            remedy="use a later time, or an offset from that of status().oldest_offset on",
        )
    return offset


def _offset_of_word(published: Published, spec: OffsetSpec, option: str) -> int:
    """Return the last offset of the state before an epoch, or at the start or end."""
    match spec.kind:
        case OffsetSpecKind.EARLIEST:
            return published.progress.oldest_offset
        case OffsetSpecKind.LATEST:
            return published.progress.offset
        case OffsetSpecKind.EPOCH:
            start = published.epoch_start(spec.number)
            if start is not None:
                return start - 1
            raise TablesError(
                place=published.place,
                reason=f"the start of {spec} is unknown",
                remedy="use an epoch whose start_offset the table epochs has",
            )
    raise OptionError(option=option, reason="tables have no snapshots: use an offset or a time")


def key_text(key: str | int | Sequence[str | int]) -> str:
    """Return a key in the form of the column ``key``; text may be the JSON array of a key."""
    array = _json_array(key) if isinstance(key, str) else None
    if array is not None:
        return key_json(array)
    return key_json([key] if isinstance(key, str | int) else key)


def _json_array(text: str) -> list[str | int] | None:
    """Return a JSON array; None for other text, such as the name of a group ``[eu] orders``."""
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def typed_table(name: str, place: str, others: tuple[str, ...] = ()) -> TypedTable:
    """Return a typed table by its name. Raises ``TablesError``, which also lists ``others``."""
    found = BY_NAME.get(name)
    if found is None:
        raise TablesError(
            place=place,
            reason=f"unknown table {name}",
            remedy=f"tables are {', '.join((*BY_NAME, *others))}",
        )
    return found


def no_log(place: str) -> TablesError:
    """Return the error of tables without the table ``log``."""
    return TablesError(
        place=place,
        reason="they have no table log",
        remedy="create tables at another location with open_cluster(..., log=True)",
    )
