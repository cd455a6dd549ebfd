"""Assignment of replicas of new partitions to brokers, striped over racks from a random offset.

Consecutive replicas are on consecutive racks, and on consecutive brokers of each rack. The first
replica of a partition, its leader, is on an unfenced broker. A fenced broker gets a replica only if
its rack has no unfenced broker left. After as many partitions as unfenced brokers, racks and
brokers are shuffled, so that the same replica sets do not repeat::

    racks  a: 1 2   b: 3 4   c: 5 6         offsets 0
    partition 0   1 3 5                     round 0 starts at rack a
    partition 1   4 6 2                     round 1 starts at rack b; each rack's next broker
    partition 2   5 1 3                     round 2 starts at rack c

Source: Kafka ``StripedReplicaPlacer``; KIP-1066 for brokers whose directories are all cordoned.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftlog_state.image import BrokerRow

from .api_exception import INVALID_REPLICATION_FACTOR, ApiException
from .pending_state import PendingState, Random

_NONE = -1


def place_partitions(
    state: PendingState, what: str, partition_count: int, replication_factor: int
) -> Iterator[tuple[int, ...]]:
    """Return the replicas of ``partition_count`` new partitions. Raises ``ApiException``.

    Each one is computed when the iterator is advanced.
    """
    brokers = [row for row in state.current.rows_of(BrokerRow) if _is_usable(row)]
    racks = _RackList(brokers, state.rng)
    reason = None
    if racks.live_count == 0:
        reason = "All brokers are currently fenced or in controlled shutdown"
    elif replication_factor > len(brokers):
        reason = (
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered"
        )
    if reason is not None:
        reason = f"Unable to replicate the partition {replication_factor} time(s): {reason}"
        remedy = "register or unfence brokers, or lower the replication factor"
        raise ApiException(what, reason, remedy, INVALID_REPLICATION_FACTOR)
    return (racks.place(replication_factor) for _ in range(partition_count))


def _is_usable(row: BrokerRow) -> bool:
    if row.in_controlled_shutdown:
        return False
    if not row.log_dirs or row.cordoned_log_dirs is None:
        return True
    return bool(set(row.log_dirs) - set(row.cordoned_log_dirs))


class _BrokerList:
    """Brokers in cyclic order, each at most once a round; every round starts one broker later."""

    def __init__(self, brokers: list[int], rng: Random) -> None:
        self.brokers = sorted(brokers)
        self._offset = rng.randrange(len(brokers)) if brokers else 0
        self._index = 0
        self._round = 0

    def next(self, number: int) -> int:
        if not self.brokers:
            return _NONE
        if self._round != number:
            self._round = number
            self._index = 0
            self._offset = (self._offset + 1) % len(self.brokers)
        if self._index >= len(self.brokers):
            return _NONE
        self._index += 1
        return self.brokers[(self._index - 1 + self._offset) % len(self.brokers)]


class _Rack:
    def __init__(self, brokers: list[BrokerRow], rng: Random) -> None:
        self.fenced = _BrokerList([row.broker_id for row in brokers if row.fenced], rng)
        self.live = _BrokerList([row.broker_id for row in brokers if not row.fenced], rng)

    def next(self, number: int) -> int:
        found = self.live.next(number)
        return self.fenced.next(number) if found == _NONE else found


class _RackList:
    def __init__(self, brokers: list[BrokerRow], rng: Random) -> None:
        names = sorted({(row.rack is not None, row.rack or "") for row in brokers})
        self._racks = [
            _Rack([b for b in brokers if (b.rack is not None, b.rack or "") == name], rng)
            for name in names
        ]
        self._rng = rng
        self._round = 0
        self._offset = rng.randrange(len(self._racks)) if self._racks else 0
        self.live_count = sum(len(rack.live.brokers) for rack in self._racks)

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """Return the replicas of the next partition. At least one broker must be unfenced."""
        if self._round == self.live_count > 1:
            self._shuffle()
            self._round = 0
        self._offset %= len(self._racks)
        first = self._offset
        while (leader := self._racks[first].live.next(self._round)) == _NONE:
            first = (first + 1) % len(self._racks)
        found = [leader]
        at: int = self._offset
        skip: int | None = first  # the leader's rack is skipped once
        while len(found) < replication_factor:
            if at == skip:
                skip = None
            else:
                replica = self._racks[at].next(self._round)
                if replica != _NONE:
                    found.append(replica)
            at = (at + 1) % len(self._racks)
        self._round += 1
        self._offset += 1
        return tuple(found)

    def _shuffle(self) -> None:
        self._rng.shuffle(self._racks)
        for rack in self._racks:
            self._rng.shuffle(rack.fenced.brokers)
            self._rng.shuffle(rack.live.brokers)
