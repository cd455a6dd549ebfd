"""Model checker of a small quorum: three replicas, few elections, appends and restarts.

1. The core is the real one; logs are lists in memory, durable on append. Time advances only when an
   action expires a timeout, so that the successors of a state depend on the state alone; there is
   no backoff after a failure.
2. An action is a request and its response between two replicas, or a local action of one replica;
   a lost message is an exchange that does not happen. A request stays in flight until it is
   delivered or replaced by another one to the same node. States with equal ``key`` (``state_key``)
   are one state.
3. The search is exhaustive within the bounds.
"""

from __future__ import annotations

import json
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final, TypeAlias

from raftlog.log.format.epoch_cache import EpochCache, EpochValidation
from raftlog.quorum.config import QuorumConfig
from raftlog.quorum.core import QuorumCore
from raftlog.quorum.effects import (
    AdvanceHighWatermark,
    AppendAsFollower,
    AppendLeaderChange,
    Effect,
    ElectionState,
    PersistElection,
    Reply,
    ReplyWithRecords,
    Send,
    StartSync,
    TruncateToEndOfEpoch,
)
from raftlog.quorum.events import (
    Appended,
    Event,
    RequestDropped,
    RequestReceived,
    ResponseReceived,
    SendFailed,
    SyncCompleted,
    TimePassed,
    Truncated,
)
from raftlog.quorum.messages import Request, Response
from raftlog.quorum.roles import Leader
from raftlog.quorum.state import InitialState
from raftlog.quorum.voters import Voter, VoterSet, VoterSetHistory
from raftlog.types import ReplicaKey, SnapshotId, ValidOffsetAndEpoch

from .state_key import Key, Names, Reader, least_key

NODES: Final = (0, 1, 2)
VOTERS: Final = VoterSet.of(Voter(key=ReplicaKey(node_id)) for node_id in NODES)
CONFIG: Final = QuorumConfig(fetch_max_bytes=1, retry_backoff_ms=0)
EXCHANGES_MAX: Final = 6


def no_jitter_ms(_bound_ms: int) -> int:
    return 0


Record: TypeAlias = tuple[int, int]
"""Epoch and value; above 0 a user's, else a leader change, -1 minus the leader's id."""


class ModelLog:
    """Log of one-record batches in memory."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    @property
    def log_start_offset(self) -> int:
        return 0

    @property
    def earliest_offset(self) -> int:
        return 0

    @property
    def end_offset(self) -> int:
        return len(self.records)

    @property
    def synced_end_offset(self) -> int:
        return len(self.records)

    @property
    def last_fetched_epoch(self) -> int:
        return self.records[-1][0] if self.records else 0

    @property
    def snapshots(self) -> tuple[SnapshotId, ...]:
        return ()

    @property
    def remote_store_id(self) -> int:
        return 0

    def misses_tombstones(self, tombstone_start_offset: int) -> bool:
        return False

    def snapshot_byte_count(self, snapshot_id: SnapshotId) -> int | None:
        return None

    def validate_offset_and_epoch(self, *, offset: int, epoch: int) -> ValidOffsetAndEpoch:
        return self.lineage().validate(offset=offset, epoch=epoch)

    def lineage(self) -> EpochValidation:
        cache = EpochCache()
        for offset, (epoch, _) in enumerate(self.records):
            cache = cache.assign(epoch, offset)
        return EpochValidation(
            log_start_offset=0, log_end_offset=self.end_offset, epochs=cache, snapshots=()
        )


class ModelNode:
    """Replica with its durable state."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.log = ModelLog()
        self.election = ElectionState(epoch=0)
        self.now_ms = 0
        self.sent: dict[int, Send] = {}
        self.replies: list[Reply] = []
        self.committed: int = 0
        self.start()

    def start(self) -> None:
        """Restart from the durable state."""
        self.sent, self.replies, self.committed = {}, [], 0
        initial_state = InitialState(
            local_voter=Voter(key=ReplicaKey(self.node_id)),
            log=self.log,
            election=self.election,
            voters=VoterSetHistory(VOTERS),
            config=CONFIG,
            jitter_ms=no_jitter_ms,
        )
        self.core = QuorumCore(initial_state, now_ms=self.now_ms)
        self.handle(TimePassed())

    def handle(self, event: Event) -> None:
        """Handle an event, and the events that follow from its effects in this replica."""
        events = deque([event])
        while events:
            for effect in self.core.step(events.popleft(), now_ms=self.now_ms):
                answer = self._execute(effect)
                if answer is not None:
                    events.append(answer)

    def _execute(self, effect: Effect) -> Event | None:
        records = self.log.records
        match effect:
            case PersistElection(state):
                self.election = state
            case Send(node_id=target):
                self.sent[target] = effect
            case Reply():
                self.replies.append(effect)
            case ReplyWithRecords(request_id, response, start):
                data = (
                    json.dumps(records[start : start + 1]).encode() if start < len(records) else b""
                )
                self.replies.append(Reply(request_id, replace(response, records=data)))
            case AppendLeaderChange():
                records.append((effect.epoch, -1 - self.node_id))
                return Appended()
            case AppendAsFollower(records=data):
                records.extend((epoch, value) for epoch, value in json.loads(data))
            case StartSync():
                return SyncCompleted()
            case TruncateToEndOfEpoch(diverging):
                del records[self.log.lineage().truncation_offset(diverging) :]
                return Truncated()
            case AdvanceHighWatermark(offset):
                self.committed = offset
            case _:
                pass
        return None

    def append(self, value: int) -> None:
        role = self.core.role
        assert isinstance(role, Leader)
        self.log.records.append((role.epoch, value))
        self.handle(Appended())
        self.handle(SyncCompleted())

    def key(self, names: Names) -> Key:
        """Return all state that affects this replica's behaviour, with replicas renamed."""
        reader = Reader(names, self.now_ms)
        return (
            reader.core(self.core),
            reader.sent(self.sent, self.core),
            reader.value(self.election),
            _renamed(self.log.records, names),
            self.committed,
        )


def _renamed(records: Iterable[Record], names: Names) -> tuple[Record, ...]:
    return tuple(
        (epoch, value if value > 0 else -1 - names[-1 - value]) for epoch, value in records
    )


@dataclass(slots=True)
class ModelState:
    """State of the quorum. ``history`` has the records that any replica considered committed."""

    nodes: tuple[ModelNode, ...]
    history: tuple[Record, ...] = ()
    value_count: int = 0
    restart_count: int = 0
    path: tuple[str, ...] = field(default=())

    def key(self) -> bytes:
        """Key that is equal if and only if states differ in the names of replicas only."""
        found = least_key(
            lambda one, names: self.nodes[one].key(names),
            lambda names: _renamed(self.history, names),
            len(NODES),
        )
        text = repr((found, self.value_count, self.restart_count))
        return blake2b(text.encode(), digest_size=16).digest()

    def changed(self, action: str, *node_ids: int) -> ModelState:
        """Return a copy in which these nodes may be modified."""
        nodes = tuple(
            pickle.loads(pickle.dumps(node)) if node.node_id in node_ids else node
            for node in self.nodes
        )
        return ModelState(
            nodes, self.history, self.value_count, self.restart_count, (*self.path, action)
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    epoch_max: int = 4
    value_count_max: int = 2
    restart_count_max: int = 2


class BrokenModelError(AssertionError):
    """A history that loses a committed record."""


def next_states(state: ModelState, bounds: Bounds) -> Iterator[ModelState]:
    """Return all possible actions and their successor states."""
    for node in state.nodes:
        me = node.node_id
        role = node.core.role
        if isinstance(role, Leader):
            if state.value_count < bounds.value_count_max:
                after = state.changed(f"append {me}", me)
                after.value_count += 1
                after.nodes[me].append(after.value_count)
                yield after
        elif node.core.epoch < bounds.epoch_max:
            for other in NODES:
                if other != me:
                    after = state.changed(f"elect {me} by {other}", me, other)
                    _elect(after.nodes[me], after.nodes[other])
                    yield after
        for other in node.sent:
            after = state.changed(f"exchange {me} with {other}", me, other)
            _exchange(after.nodes[me], after.nodes[other])
            yield after
        if state.restart_count < bounds.restart_count_max:
            after = state.changed(f"restart {me}", me)
            after.restart_count += 1
            after.nodes[me].start()
            yield after


def _elect(me: ModelNode, other: ModelNode) -> None:
    """Expire a replica's election timeout, with one other replica reachable."""
    deadline_ms = me.core.next_deadline_ms
    me.now_ms = max(me.now_ms, deadline_ms or 0) + 2 * CONFIG.election_timeout_ms
    me.now_ms += 2 * CONFIG.fetch_timeout_ms
    me.sent = {}
    me.handle(TimePassed())
    for _ in range(EXCHANGES_MAX):
        if me.core.is_leader or other.node_id not in me.sent:
            break
        _exchange(me, other)


def _exchange(me: ModelNode, other: ModelNode) -> None:
    """Deliver a request and its response."""
    send = me.sent.pop(other.node_id)
    response = _asked(other, send.request)
    if response is None:
        me.handle(SendFailed(send.correlation_id))
    else:
        me.handle(ResponseReceived(send.correlation_id, response))
    me.handle(TimePassed())


def _asked(node: ModelNode, request: Request) -> Response | None:
    """Return a replica's immediate response; None if it is delayed."""
    request_id = 1 + len(node.replies)
    node.replies = []
    node.handle(RequestReceived(request_id, request))
    found = [reply.response for reply in node.replies if reply.request_id == request_id]
    node.replies = []
    if not found:
        node.handle(RequestDropped(request_id))
        return None
    return found[0]


def check(state: ModelState) -> None:
    """Check that committed records are kept, and that a leader has all of them."""
    history = list(state.history)
    for node in state.nodes:
        records = node.log.records[: node.committed]
        shared = min(len(records), len(history))
        if records[:shared] != history[:shared]:
            raise BrokenModelError(f"{history} was committed, now {records}: {list(state.path)}")
        history += records[shared:]
    state.history = tuple(history)
    for node in state.nodes:
        if node.core.is_leader and node.core.epoch == max(n.core.epoch for n in state.nodes):
            held = node.log.records[: len(history)]
            if held != history:
                raise BrokenModelError(f"the leader lacks {history}: {list(state.path)}")


def beginning() -> ModelState:
    """Return the initial state."""
    return ModelState(tuple(ModelNode(node_id) for node_id in NODES))


def after_actions(*actions: str) -> ModelState:
    """Return the state after these actions."""
    state = beginning()
    bounds = Bounds()
    for action in actions:
        found = [one for one in next_states(state, bounds) if one.path[-1] == action]
        assert found, f"{action} cannot happen after {list(state.path)}"
        state = found[0]
        check(state)
    return state


def explore(first: ModelState, bounds: Bounds, state_count_max: int | None = None) -> int:
    """Check every state reachable from one, within the bounds; return their number.

    Raises ``BrokenModelError`` with the shortest history that violates an invariant.
    """
    seen = {first.key()}
    waiting = deque([first])
    while waiting:
        for after in next_states(waiting.popleft(), bounds):
            check(after)
            key = after.key()
            if key not in seen:
                seen.add(key)
                waiting.append(after)
                if state_count_max is not None and len(seen) >= state_count_max:
                    return len(seen)
    return len(seen)
