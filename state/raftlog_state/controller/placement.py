"""Which brokers get the replicas of new partitions: striped over racks, beginning anywhere.

Rules of this file:

1. Racks take turns, and in each its brokers; the first replica of a partition, who will lead, is
   on a broker that lives. Brokers that are fenced get replicas where no other is left in the rack.
2. Where to begin is drawn. Once as many partitions as live brokers are placed, all is shuffled, so
   that the same sets do not come again.

Source: Kafka ``StripedReplicaPlacer``; KIP-1066 for brokers whose directories are all cordoned.
"""

from __future__ import annotations

from raftlog_state.image import BrokerRow

from .api_exception import INVALID_REPLICATION_FACTOR, ApiException
from .pending_state import PendingState, Random

_NONE = -1


def place_partitions(
    state: PendingState, what: str, partition_count: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """The replicas of each of ``partition_count`` new partitions. Raises ``ApiException``."""
    brokers = [row for row in state.rows_of(BrokerRow) if _is_usable(row)]
    racks = _RackList(brokers, state.rng)
    reason = None
    if racks.live_count == 0:
        reason = "no broker is there that is neither fenced nor shutting down"
    elif replication_factor > len(brokers):
        reason = (
            f"a replication factor of {replication_factor} cannot be reached with "
            f"{len(brokers)} brokers"
        )
    if reason is not None:
        remedy = "register or unfence brokers, or ask for fewer replicas"
        raise ApiException(what, reason, remedy, INVALID_REPLICATION_FACTOR)
    return [racks.place(replication_factor) for _ in range(partition_count)]


def _is_usable(row: BrokerRow) -> bool:
    if row.in_controlled_shutdown:
        return False
    if not row.log_dirs or row.cordoned_log_dirs is None:
        return True
    return bool(set(row.log_dirs) - set(row.cordoned_log_dirs))


class _BrokerList:
    """Brokers that are handed out in turn, each once a round; every round begins one later."""

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
        """The replicas of one more partition. There are enough brokers, one of them alive."""
        if self._round == self.live_count > 1:
            self._shuffle()
            self._round = 0
        self._offset %= len(self._racks)
        first = self._offset
        while (leader := self._racks[first].live.next(self._round)) == _NONE:
            first = (first + 1) % len(self._racks)
        found = [leader]
        at: int = self._offset
        skip: int | None = first  # the rack that the leader came from has had its turn
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
