"""A leader's view of the other replicas: their durable end offsets, and what is committed.

A replica's end offset is the offset of its last fetch, not the highest one so far: a replica that
lost its disk returns with a shorter log. Only voters, identified by node id and directory id, count
towards the high watermark; observers are tracked for DescribeQuorum.

Kafka: ``LeaderState``; etcd: ``tracker.Progress``.
"""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.types import ReplicaKey

from .voters import OwnVoterSet, VoterSet


@dataclass(slots=True, kw_only=True)
class ReplicaProgress:
    """Progress of one replica. Times are when it fetched; None before its first fetch.

    ``caught_up_ms`` is the time up to which it has had every record (Kafka:
    ``lastCaughtUpTimestamp``).
    """

    key: ReplicaKey
    end_offset: int | None = None
    fetched_ms: int | None = None
    caught_up_ms: int | None = None
    leader_end_offset: int = 0
    """The leader's end offset at the replica's last fetch."""
    log_start_offset: int | None = None
    is_lost: bool = False
    """Whether the connection of its last fetch was lost while the fetch was delayed."""


class Progress:
    """Progress of all replicas except the leader itself."""

    def __init__(self) -> None:
        self._replicas: dict[ReplicaKey, ReplicaProgress] = {}
        self._voters: VoterSet | None = None
        self._by_voter: dict[int, ReplicaProgress] = {}
        """By node id: the replica that matches a voter of the last voter set, if only one does."""

    def record_fetch(
        self,
        key: ReplicaKey,
        end_offset: int,
        *,
        leader_end_offset: int,
        now_ms: int,
        log_start_offset: int | None = None,
    ) -> None:
        """Record a fetch from ``end_offset``: everything below it is durable on the replica."""
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = ReplicaProgress(key=key)
            self._by_voter.clear()
        if end_offset >= leader_end_offset:
            replica.caught_up_ms = now_ms
        elif replica.fetched_ms is not None and end_offset >= replica.leader_end_offset:
            replica.caught_up_ms = replica.fetched_ms
        replica.end_offset, replica.fetched_ms = end_offset, now_ms
        replica.leader_end_offset = leader_end_offset
        replica.log_start_offset = log_start_offset
        replica.is_lost = False

    def record_lost(self, key: ReplicaKey) -> None:
        """Record that a replica's connection was lost while its last fetch was delayed."""
        replica = self._replicas.get(key)
        if replica is not None:
            replica.is_lost = True

    @property
    def replicas(self) -> tuple[ReplicaProgress, ...]:
        """All voters and observers that have fetched, except removed observers."""
        return tuple(self._replicas.values())

    def find(self, key: ReplicaKey) -> ReplicaProgress | None:
        return self._replicas.get(key)

    def voter(self, voters: VoterSet, node_id: int) -> ReplicaProgress | None:
        """Return a voter's progress; the most recent one if several directory ids match it."""
        known = self._known_voters(voters).get(node_id)
        if known is not None:
            return known
        found = [
            replica
            for key, replica in self._replicas.items()
            if key.node_id == node_id and voters.has(key)
        ]
        if len(found) == 1:
            self._by_voter[node_id] = found[0]
        return max(found, key=lambda replica: replica.fetched_ms or 0, default=None)

    def _known_voters(self, voters: VoterSet) -> dict[int, ReplicaProgress]:
        """Return ``_by_voter``, emptied first if it belongs to another voter set."""
        if voters is not self._voters:
            self._voters = voters
            self._by_voter.clear()
        return self._by_voter

    def observers(self, voters: VoterSet) -> list[ReplicaProgress]:
        return [replica for key, replica in self._replicas.items() if not voters.has(key)]

    def clear_inactive_observers(self, voters: VoterSet, *, before_ms: int, count_max: int) -> None:
        """Remove observers without a fetch since ``before_ms``, and the oldest over the limit."""
        observers = sorted(self.observers(voters), key=lambda replica: replica.fetched_ms or 0)
        excess = max(len(observers) - count_max, 0)
        for index, replica in enumerate(observers):
            if index < excess or (replica.fetched_ms or 0) < before_ms:
                del self._replicas[replica.key]
                self._by_voter.clear()

    def majority_end_offset(self, own: OwnVoterSet, own_end_offset: int) -> int:
        """Return the end offset below which a majority of the voters has every record durably.

        Example: if the durable ends of three voters are 9, 7 and 4, the result is 7. Without voters
        it is zero. ``own`` is the voter set as the leader sees it; the leader may not be in it.
        """
        voters = own.voter_set
        ends, known = [], self._known_voters(voters)
        for voter in voters.voters:
            node_id = voter.key.node_id
            if node_id == own.node_id:
                ends.append(own_end_offset)
            else:
                replica = known.get(node_id) or self.voter(voters, node_id)
                ends.append(0 if replica is None else replica.end_offset or 0)
        ends.sort(reverse=True)
        return ends[own.majority_count - 1] if ends else 0
