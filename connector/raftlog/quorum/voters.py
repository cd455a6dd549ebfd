"""Who votes: sets of voters, their majority, and the history of sets that a log holds.

Rules of this file:

1. A set holds from where it is appended, committed or not, and is taken back with its record
   (KIP-853). Sets are values; a change makes another one.
2. With kraft.version 0 voters come from configuration and have no directory id: the node id names
   the voter. From 1 on a voter is its node id and its directory id together, and a replica without
   a directory id is not that voter.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from raftlog.limits import VOTER_ENDPOINTS_MAX
from raftlog.types import ReplicaKey

NO_OFFSET: Final = -1
"""Where a set "lies" that comes from configuration or from the bootstrap's checkpoint."""


_LISTENER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?\.?")
_ZONE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Of an IPv6 address: the name or the number of an interface, as in ``fe80::1%eth0``."""
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a voter listens, by listener name."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def is_host(text: str) -> bool:
    """Return whether a text is a host name or an IP address, without brackets."""
    if _HOST.fullmatch(text) is not None:
        return True
    address, percent, zone = text.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return not percent or _ZONE.fullmatch(zone) is not None


def endpoints_problem(endpoints: tuple[Endpoint, ...]) -> str | None:
    """Return what is wrong with the endpoints that a peer names; None if a node can be there."""
    if len(endpoints) > VOTER_ENDPOINTS_MAX:
        return f"more than {VOTER_ENDPOINTS_MAX} listeners are named"
    if len({one.name for one in endpoints}) < len(endpoints):
        return "a listener is named twice"
    for one in endpoints:
        if _LISTENER_NAME.fullmatch(one.name) is None:
            return f"{one.name[:80]!r} is not a listener name"
        if not is_host(one.host):
            return f"{one.host[:80]!r} is not a host name or an IP address"
        if not 0 < one.port <= _PORT_MAX:
            return f"{one.port} is not a port"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A member of the quorum, where it is reached, and the versions of KRaft that it speaks."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    kraft_version_min: int = 0
    kraft_version_max: int = 1


@dataclass(frozen=True, slots=True)
class VoterSet:
    """Voters, ascending by node id; no id twice."""

    voters: tuple[Voter, ...]

    @classmethod
    def of(cls, voters: Iterable[Voter]) -> VoterSet:
        ordered = tuple(sorted(voters, key=lambda voter: voter.key.node_id))
        assert len({voter.key.node_id for voter in ordered}) == len(ordered), "an id twice"
        return cls(ordered)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def majority_count(self) -> int:
        """How many are more than half."""
        return len(self.voters) // 2 + 1

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(voter.key.node_id for voter in self.voters)

    def find(self, node_id: int) -> Voter | None:
        """The voter of this node id."""
        return next((one for one in self.voters if one.key.node_id == node_id), None)

    def has(self, key: ReplicaKey) -> bool:
        """Return whether this replica is a voter: the one that the set's key of its id names."""
        found = self.find(key.node_id)
        return found is not None and found.key.matches(key)

    def with_voter(self, voter: Voter) -> VoterSet:
        """The same with this one, in the place of another of its node id."""
        others = (one for one in self.voters if one.key.node_id != voter.key.node_id)
        return VoterSet.of((*others, voter))

    def describe_change(self, new: VoterSet) -> str:
        """Return a line for the operator: what is different in ``new``."""
        parts = []
        for voter in new:
            old, where = self.find(voter.key.node_id), ", ".join(map(str, voter.endpoints))
            if old is None or old.key != voter.key:
                parts.append(f"voter {voter.key.node_id} of {voter.key.directory_id} is added")
            elif old.endpoints != voter.endpoints:
                before = ", ".join(map(str, old.endpoints))
                parts.append(f"voter {voter.key.node_id} listens at {where}, before at {before}")
            elif old != voter:
                versions = f"{voter.kraft_version_min} to {voter.kraft_version_max}"
                parts.append(f"voter {voter.key.node_id} supports kraft.version {versions}")
        parts += [f"voter {one} is removed" for one in self.node_ids if new.find(one) is None]
        return "; ".join(parts) or "nothing changes"

    def without(self, node_id: int) -> VoterSet:
        return VoterSet.of(one for one in self.voters if one.key.node_id != node_id)


class VoterSetHistory:
    """The sets that a log holds, and its kraft.version, each from its offset on.

    1. The first set is what configuration or the bootstrap's checkpoint says; its offset is -1.
    2. ``truncate_new_entries`` takes back what the log no longer holds; ``reset`` is a snapshot's.
    """

    def __init__(self, voters: VoterSet, kraft_version: int = 0) -> None:
        self._sets: list[tuple[int, VoterSet]] = [(NO_OFFSET, voters)]
        self._versions: list[tuple[int, int]] = [(NO_OFFSET, kraft_version)]

    @property
    def latest(self) -> VoterSet:
        return self._sets[-1][1]

    @property
    def latest_offset(self) -> int:
        """Where the latest set was appended; -1 if no log holds it."""
        return self._sets[-1][0]

    @property
    def previous(self) -> VoterSet | None:
        """The set before the latest; None if it is not known any more, or there was none."""
        return self._sets[-2][1] if len(self._sets) > 1 else None

    def contains(self, key: ReplicaKey) -> bool:
        """Return whether a replica is a voter in any of the sets."""
        return any(voters.has(key) for _, voters in self._sets)

    def contains_id(self, node_id: int) -> bool:
        """Return whether a voter of any of the sets has this node id."""
        return any(voters.find(node_id) is not None for _, voters in self._sets)

    @property
    def kraft_version(self) -> int:
        return self._versions[-1][1]

    def add_voters(self, offset: int, voters: VoterSet) -> None:
        assert offset > self._sets[-1][0], "sets are appended in order"
        self._sets.append((offset, voters))

    def add_kraft_version(self, offset: int, version: int) -> None:
        assert offset > self._versions[-1][0], "versions are appended in order"
        self._versions.append((offset, version))

    def truncate_new_entries(self, end_offset: int) -> None:
        """Forget what was appended at ``end_offset`` or behind it."""
        while len(self._sets) > 1 and self._sets[-1][0] >= end_offset:
            self._sets.pop()
        while len(self._versions) > 1 and self._versions[-1][0] >= end_offset:
            self._versions.pop()

    def reset(self, offset: int, voters: VoterSet | None, kraft_version: int | None) -> None:
        """Begin again with what a snapshot says; what it does not say stays as it is."""
        if voters is not None:
            self._sets = [(offset, voters)]
        if kraft_version is not None:
            self._versions = [(offset, kraft_version)]

    def at(self, end_offset: int) -> tuple[VoterSet, int] | None:
        """Voters and kraft.version of the log below ``end_offset`` (a snapshot's).

        None if that lies before what is known: there is a newer snapshot.
        """
        end_offset = max(end_offset, 0)
        voters = next((found for at, found in reversed(self._sets) if at < end_offset), None)
        version = next((found for at, found in reversed(self._versions) if at < end_offset), None)
        return None if voters is None or version is None else (voters, version)
