"""A leader's view of the others: how far each replica's log is durable, and what that commits.

Rules of this file:

1. A replica's end offset is what it said last, not the most that it ever said: one that lost its
   disk comes back behind.
2. Only voters commit, each by its node id and directory id; observers are looked at for people.

Kafka: ``LeaderState``.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.types import ReplicaKey

from .voters import VoterSet


@dataclass(slots=True, kw_only=True)
class ReplicaProgress:
    """One replica. Times are those of the steps in which it fetched; None before the first.

    ``caught_up_ms``: when it had everything that the leader had at an earlier fetch, or now.
    """

    key: ReplicaKey
    end_offset: int | None = None
    fetched_ms: int | None = None
    caught_up_ms: int | None = None
    leader_end_offset: int = 0
    """The leader's end offset at its last fetch."""


class Progress:
    """All replicas but the leader itself."""

    def __init__(self) -> None:
        self._replicas: dict[ReplicaKey, ReplicaProgress] = {}

    def record_fetch(
        self, key: ReplicaKey, end_offset: int, *, leader_end_offset: int, now_ms: int
    ) -> None:
        """A replica fetched from ``end_offset``: everything below it is durable there."""
        replica = self._replicas.setdefault(key, ReplicaProgress(key=key))
        if end_offset >= leader_end_offset:
            replica.caught_up_ms = now_ms
        elif replica.fetched_ms is not None and end_offset >= replica.leader_end_offset:
            replica.caught_up_ms = replica.fetched_ms
        replica.end_offset, replica.fetched_ms = end_offset, now_ms
        replica.leader_end_offset = leader_end_offset

    @property
    def replicas(self) -> tuple[ReplicaProgress, ...]:
        """Everybody who has fetched and is remembered, voters and observers."""
        return tuple(self._replicas.values())

    def find(self, key: ReplicaKey) -> ReplicaProgress | None:
        return self._replicas.get(key)

    def voter(self, voters: VoterSet, node_id: int) -> ReplicaProgress | None:
        """What is known of a voter: the newest of what came under its name."""
        found = [
            replica
            for key, replica in self._replicas.items()
            if key.node_id == node_id and voters.has(key)
        ]
        return max(found, key=lambda replica: replica.fetched_ms or 0, default=None)

    def observers(self, voters: VoterSet) -> list[ReplicaProgress]:
        return [replica for key, replica in self._replicas.items() if not voters.has(key)]

    def clear_inactive_observers(self, voters: VoterSet, *, before_ms: int, count_max: int) -> None:
        """Forget who has not fetched since ``before_ms``, and the longest silent of too many."""
        observers = sorted(self.observers(voters), key=lambda one: one.fetched_ms or 0)
        excess = max(len(observers) - count_max, 0)
        for at, replica in enumerate(observers):
            if at < excess or (replica.fetched_ms or 0) < before_ms:
                del self._replicas[replica.key]

    def majority_end_offset(self, voters: VoterSet, own: ReplicaKey, own_end_offset: int) -> int:
        """Below this a majority of the voters holds everything durably; 0 if there is none."""
        ends = []
        for voter in voters:
            if voter.key.node_id == own.node_id and voters.has(own):
                ends.append(own_end_offset)
            else:
                replica = self.voter(voters, voter.key.node_id)
                ends.append(0 if replica is None else replica.end_offset or 0)
        ends.sort(reverse=True)
        return ends[voters.majority_count - 1] if ends else 0
