"""Voters and their endpoints, voter sets, and the history of voter sets in a log.

A voter set takes effect when it is appended, whether committed or not, and truncation undoes it
(KIP-853). With kraft.version 0 the voters are static: they are from the configuration, and only the
node id identifies a voter. From kraft.version 1 on, node id and directory id together identify a
voter, and a replica without a directory id is not that voter.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from raftlog.limits import VOTER_ENDPOINTS_MAX
from raftlog.types import ReplicaKey

NO_OFFSET: Final = -1
"""Offset of a voter set from the configuration or from the bootstrap snapshot."""

_LISTENER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?\.?")
_ZONE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Zone of an IPv6 address: the name or number of an interface, as in ``fe80::1%eth0``."""
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Listener name, host and port of a voter."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def is_host(text: str) -> bool:
    """Return whether ``text`` is a host name or an IP address, without brackets."""
    if _HOST.fullmatch(text) is not None:
        return True
    address, percent, zone = text.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not percent or _ZONE.fullmatch(zone) is not None


def endpoints_problem(endpoints: tuple[Endpoint, ...]) -> str | None:
    """Return what is wrong with the endpoints that a peer sent; None if they are valid."""
    if len(endpoints) > VOTER_ENDPOINTS_MAX:
        return f"more than {VOTER_ENDPOINTS_MAX} listeners"
    if len({endpoint.name for endpoint in endpoints}) < len(endpoints):
        return "duplicate listener name"
    for endpoint in endpoints:
        if _LISTENER_NAME.fullmatch(endpoint.name) is None:
            return f"invalid listener name {endpoint.name[:80]!r}"
        if not is_host(endpoint.host):
            return f"{endpoint.host[:80]!r} is not a host name or an IP address"
        if not 0 < endpoint.port <= _PORT_MAX:
            return f"invalid port {endpoint.port}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """Voter with its key, its endpoints and the range of kraft.version that it supports."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    kraft_version_min: int = 0
    kraft_version_max: int = 1


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters with unique node ids, ascending by node id."""

    voters: tuple[Voter, ...]
    _by_id: dict[int, Voter] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        by_id = {voter.key.node_id: voter for voter in self.voters}
        object.__setattr__(self, "_by_id", by_id)

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> VoterSet:
        ordered = tuple(sorted(voters, key=lambda voter: voter.key.node_id))
        assert len({voter.key.node_id for voter in ordered}) == len(ordered), "duplicate node id"
        return cls(ordered)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def majority_count(self) -> int:
        """Smallest number of voters that is more than half."""
        return len(self.voters) // 2 + 1

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(voter.key.node_id for voter in self.voters)

    def find(self, node_id: int) -> Voter | None:
        """Return the voter with this node id; None if there is no such voter."""
        return self._by_id.get(node_id)

    def has(self, key: ReplicaKey) -> bool:
        """Return whether the replica with this node id and directory id is a voter."""
        found = self.find(key.node_id)
        return found is not None and found.key.matches(key)

    def with_voter(self, voter: Voter) -> VoterSet:
        """Return a set with this voter added, or in place of the one with the same node id."""
        others = (other for other in self.voters if other.key.node_id != voter.key.node_id)
        return VoterSet.of((*others, voter))

    def describe_change(self, new: VoterSet) -> str:
        """Return how ``new`` differs from this set, as text for a log line."""
        parts = []
        for voter in new:
            old, listeners = self.find(voter.key.node_id), ", ".join(map(str, voter.endpoints))
            if old is None or old.key != voter.key:
                parts.append(f"added voter {voter.key.node_id}, directory {voter.key.directory_id}")
            elif old.endpoints != voter.endpoints:
                before = ", ".join(map(str, old.endpoints))
                parts.append(
                    f"voter {voter.key.node_id} listens at {listeners}, before at {before}"
                )
            elif old != voter:
                versions = f"{voter.kraft_version_min} to {voter.kraft_version_max}"
                parts.append(f"voter {voter.key.node_id} supports kraft.version {versions}")
        parts += [
            f"removed voter {node_id}" for node_id in self.node_ids if new.find(node_id) is None
        ]
        return "; ".join(parts) or "no change"

    def without(self, node_id: int) -> VoterSet:
        return VoterSet.of(voter for voter in self.voters if voter.key.node_id != node_id)


@dataclass(frozen=True, slots=True)
class OwnVoterSet:
    """Voter set as one replica sees it."""

    voter_set: VoterSet
    node_id: int | None
    """The replica's node id if it is a voter, otherwise None."""
    is_voter: bool
    is_outdated: bool
    """Whether the set contains this voter's key, but with other endpoints or versions."""
    others: tuple[Voter, ...]
    other_keys: frozenset[ReplicaKey]
    majority_count: int
    other_majority_count: int
    """Number of other voters that are needed for a majority."""

    @classmethod
    def of(cls, voter_set: VoterSet, own: Voter) -> OwnVoterSet:
        key = own.key
        is_voter, found = voter_set.has(key), voter_set.find(key.node_id)
        is_outdated = found is not None and found.key == key and found != own
        others = tuple(voter for voter in voter_set if voter.key.node_id != key.node_id)
        keys = frozenset(voter.key for voter in others)
        majority_count = voter_set.majority_count
        return cls(
            voter_set=voter_set,
            node_id=key.node_id if is_voter else None,
            is_voter=is_voter,
            is_outdated=is_outdated,
            others=others,
            other_keys=keys,
            majority_count=majority_count,
            other_majority_count=majority_count - is_voter,
        )


class VoterSetHistory:
    """Voter sets and kraft.versions of a log, each valid from its offset on.

    The first set, at offset -1, is from the configuration or the bootstrap snapshot.

    Kafka: ``VoterSetHistory``, ``KRaftControlRecordStateMachine``.
    """

    def __init__(self, voters: VoterSet, kraft_version: int = 0) -> None:
        self._sets: list[tuple[int, VoterSet]] = [(NO_OFFSET, voters)]
        self._versions: list[tuple[int, int]] = [(NO_OFFSET, kraft_version)]
        self.latest = voters
        """The last of the sets."""

    @property
    def latest_offset(self) -> int:
        """Offset of the latest set; -1 if it is not in the log."""
        return self._sets[-1][0]

    @property
    def previous(self) -> VoterSet | None:
        """The set before the latest; None if there is no such set in the history."""
        return self._sets[-2][1] if len(self._sets) > 1 else None

    def contains(self, key: ReplicaKey) -> bool:
        """Return whether a replica is a voter of any of the sets."""
        return any(voters.has(key) for _, voters in self._sets)

    def contains_id(self, node_id: int) -> bool:
        """Return whether a voter of any of the sets has this node id."""
        return any(voters.find(node_id) is not None for _, voters in self._sets)

    @property
    def kraft_version(self) -> int:
        return self._versions[-1][1]

    def add_voters(self, offset: int, voters: VoterSet) -> None:
        assert offset > self._sets[-1][0], "offsets of voter sets increase"
        self._sets.append((offset, voters))
        self.latest = voters

    def add_kraft_version(self, offset: int, version: int) -> None:
        assert offset > self._versions[-1][0], "offsets of versions increase"
        self._versions.append((offset, version))

    def truncate_new_entries(self, end_offset: int) -> None:
        """Remove the entries at ``end_offset`` and later."""
        while len(self._sets) > 1 and self._sets[-1][0] >= end_offset:
            self._sets.pop()
            self.latest = self._sets[-1][1]
        while len(self._versions) > 1 and self._versions[-1][0] >= end_offset:
            self._versions.pop()

    def reset(self, offset: int, voters: VoterSet | None, kraft_version: int | None) -> None:
        """Replace the history with a snapshot's values; None keeps the current history."""
        if voters is not None:
            self._sets = [(offset, voters)]
            self.latest = voters
        if kraft_version is not None:
            self._versions = [(offset, kraft_version)]

    def at(self, end_offset: int) -> tuple[VoterSet, int] | None:
        """Return the voters and the kraft.version of the log below ``end_offset``.

        None if the history no longer covers that offset because a newer snapshot replaced it.
        """
        end_offset = max(end_offset, 0)
        voters = next((value for at, value in reversed(self._sets) if at < end_offset), None)
        version = next((value for at, value in reversed(self._versions) if at < end_offset), None)
        return None if voters is None or version is None else (voters, version)
