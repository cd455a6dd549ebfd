"""Key of a state of the small model: everything that determines its successors.

1. Two states have the same key only if they are equal up to the names of the replicas. Only
   redundant fields are omitted (3).
2. Every field is declared here with its kind. An undeclared field is an error: a new field of the
   core must not merge states that differ in it.
3. A key has no correlation ids, but whether a request is still in flight. Times are relative to the
   replica's clock.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby, permutations, product
from typing import Any, Final, TypeAlias

from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import Send
from raftlog.types import ReplicaKey

Names: TypeAlias = tuple[int, ...]
"""By replica: its name in a key."""
Key: TypeAlias = tuple[Any, ...]
ANONYMOUS: Final = -7
"""One name for all replicas."""


class Kind(enum.Enum):
    """Kind of a field."""

    VALUE = enum.auto()
    NAME = enum.auto()
    """Id of a replica, or None."""
    NAMES = enum.auto()
    """Set of ids or keys of replicas."""
    BY_NAME = enum.auto()
    """Dictionary by id or key."""
    TIME = enum.auto()
    IGNORED = enum.auto()
    """Constant or redundant (3)."""


_KINDS: Final[dict[Kind, frozenset[str]]] = {
    Kind.VALUE: frozenset(
        (
            "epoch",
            "high_watermark",
            "is_shutting_down",
            "is_recovering",
            "voted_key",
            "voter",
            "candidate",
            "replica",
            "role",
            "key",
            "_persisted",
            "_proven_epoch",
            "_effects",
            "requests",
            "votes",
            "has_fetched_from_leader",
            "fetch_timeout_ms",
            "is_appending",
            "leader_high_watermark",
            "leader_log_start_offset",
            "is_deleting",
            "log_start_offset",
            "snapshot",
            "epoch_start_offset",
            "progress",
            "has_committed_in_epoch",
            "is_resign_requested",
            "voter_change",
            "pending_reads",
            "preferred_successors",
            "end_offset",
            "leader_end_offset",
            "last_offset",
            "last_epoch",
            "is_pre_vote",
            "fetch_offset",
            "last_fetched_epoch",
            "max_bytes",
            "max_wait_ms",
            "request",
            "_next_target",
            "directory_id",
            "kraft_version_min",
            "kraft_version_max",
            "has_updated_leader",
            "has_other_remote_store",
        )
    ),
    Kind.NAME: frozenset(
        (
            "node_id",
            "leader_id",
        )
    ),
    Kind.NAMES: frozenset(
        (
            "granted",
            "rejected",
            "outdated",
            "fetched_voters",
            "acknowledged_voters",
            "damaged_voters",
        )
    ),
    Kind.BY_NAME: frozenset(
        (
            "sent_reads",
            "acknowledged_reads",
            "_in_flight",
            "reported_voters",
        )
    ),
    Kind.TIME: frozenset(
        (
            "election_deadline_ms",
            "fetch_deadline_ms",
            "update_after_ms",
            "check_quorum_deadline_ms",
            "begin_epoch_deadline_ms",
            "fetched_ms",
            "caught_up_ms",
            "deadline_ms",
        )
    ),
    Kind.IGNORED: frozenset(
        (
            "local_voter",
            "log",
            "voters",
            "config",
            "now_ms",
            "_jitter_ms",
            "_next_id",
            "committed_at_start",
            "correlation_id",
            "endpoints",
            "leader_endpoints",
            "_bootstrap",
            "_state",
            "_checked_high_watermark",  # after a step that of the state
            "_last_own_voter_set",  # derived from the voters
            "_last_role",  # that of the next
            "_last_leader_and_epoch",  # derived from the role
            "_voters",  # those of the next
            "_by_voter",  # derived from ``_replicas``
            "all_acknowledged",  # derived from ``acknowledged_voters``
            "is_lost",  # no step depends on it
            "refusing_voters",  # no step depends on it
        )
    ),
}
KIND_OF: Final = {name: kind for kind, names in _KINDS.items() for name in names}
SPECIAL: Final = ("_replicas", "_not_before_ms", "delayed_fetches")


@functools.cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


class Reader:
    """Builder of the keys of one replica's state, with replicas renamed."""

    def __init__(self, names: Names, now_ms: int) -> None:
        self._names = names
        self._now_ms = now_ms

    def core(self, core: QuorumCore) -> Key:
        """Return the key of a core; of its parts only ``ReplicaState`` and ``Following`` count."""
        following = self._object(core._following)
        for part in (core._elections, core._leadership, core._membership):
            assert not self._object(part)[1:], "a field with state"
        return (self._object(core._state), following)

    def sent(self, sent: Mapping[int, Send], core: QuorumCore) -> Key:
        """Return the key of the messages in flight, and whether their responses are accepted."""
        awaited = {one.correlation_id for one in core._state.requests._in_flight.values()}
        return tuple(
            sorted(
                (self.name(other), one.correlation_id in awaited, self.value(one.request))
                for other, one in sent.items()
            )
        )

    def name(self, node_id: int | None) -> int:
        return -1 if node_id is None else self._names[node_id]

    def _replica_name(self, replica: int | ReplicaKey) -> Key:
        key = replica if isinstance(replica, ReplicaKey) else ReplicaKey(replica)
        return (self.name(key.node_id), key.directory_id)

    def value(self, value: Any) -> Any:
        """Return the key of a value of any declared kind."""
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, bool | int | str | bytes):
            return (value,)
        if value is None:
            return ()
        if isinstance(value, list | tuple):
            return tuple(self.value(one) for one in value)
        if isinstance(value, ReplicaKey):
            return self._replica_name(value)
        return self._object(value)

    def _object(self, value: Any) -> Key:
        kind = type(value)
        names = _field_names(kind) if is_dataclass(kind) else vars(value)
        found = (self._field(name, getattr(value, name)) for name in names)
        return (type(value).__name__, *(one for one in found if one is not None))

    def _field(self, name: str, value: Any) -> Any:
        if name in SPECIAL:
            return self._special(name, value)
        assert name in KIND_OF, f"{name} is remembered and not in the key: declare what it is"
        match KIND_OF[name]:
            case Kind.NAME:
                return self.name(value)
            case Kind.NAMES:
                return tuple(sorted(map(self._replica_name, value)))
            case Kind.BY_NAME:
                return tuple(
                    sorted((self._replica_name(at), self.value(one)) for at, one in value.items())
                )
            case Kind.TIME:
                return () if value is None else (value - self._now_ms,)
            case Kind.IGNORED:
                return None
            case _:
                return self.value(value)

    def _special(self, name: str, value: Any) -> Any:
        if name == "_replicas":
            return tuple(
                sorted((self._replica_name(key), self.value(one)) for key, one in value.items())
            )
        if name == "_not_before_ms":
            assert all(at <= self._now_ms for at in value.values()), "no backoff is running"
            return None
        assert not value, "delayed fetches are dropped immediately"
        return None


def least_key(
    keys_of: Callable[[int, Names], Any], shared: Callable[[Names], Any], count: int
) -> tuple[Any, ...]:
    """Return a key that is equal for states that differ in the names of ``count`` replicas only.

    ``keys_of(replica, names)`` is the key of one replica, ``shared(names)`` that of the rest. Only
    replicas with equal keys without names are permuted.
    """
    anonymous = (ANONYMOUS,) * count
    alike = {one: repr(keys_of(one, anonymous)) for one in range(count)}
    ordered = sorted(range(count), key=alike.__getitem__)
    groups = [list(group) for _, group in groupby(ordered, key=alike.__getitem__)]
    found: Iterable[tuple[Any, ...]] = (
        _renamed([one for group in choice for one in group], keys_of, shared)
        for choice in product(*(permutations(group) for group in groups))
    )
    return min(found, key=repr)


def _renamed(
    order: Sequence[int], keys_of: Callable[[int, Names], Any], shared: Callable[[Names], Any]
) -> tuple[Any, ...]:
    names = [0] * len(order)
    for place, one in enumerate(order):
        names[one] = place
    found = tuple(names)
    return (*(keys_of(one, found) for one in order), shared(found))
