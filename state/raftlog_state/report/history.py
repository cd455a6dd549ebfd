"""History of a cluster between two states, aggregated so that its size is bounded.

Time is the records' time and never decreases: a record whose timestamp is earlier than a previous
one's gets that later time. It is divided into at most ``BUCKETS_MAX`` buckets of equal width. When
a record is later than the last bucket, the width doubles and neighbors are merged:

    width 1 s   | 3 | 0 | 1 | 2 |
    width 2 s   |   3   |   3   |       |       |   counts are added; of gauges, the maximum remains

In addition to the buckets, there are intervals (which node led, when a broker was fenced), of which
the longest are kept, and the first events of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from raftlog_state.image import (
    BrokerRow,
    ConfigRow,
    EpochRow,
    MetadataImage,
    PartitionRow,
    Row,
    TopicRow,
)
from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.image.entity_names import name_of

BUCKETS_MAX: Final = 240
WIDTH_MS_MIN: Final = 125
INTERVALS_MAX: Final = 1000
EVENTS_MAX: Final = 300
TOPICS_TRACKED_MAX: Final = 2000
"""Topics whose under-replicated partitions are counted over time: those with the longest times."""
VALUE_CHARACTERS_MAX: Final = 200

ACTIVE: Final = "active"
FENCED: Final = "fenced"
SHUTTING_DOWN: Final = "controlled shutdown"

QUORUM_ELECTIONS: Final = "quorum leaders elected"
ELECTIONS: Final = "partition leaders elected"
ISR_SHRINKS: Final = "ISR shrinks"
ISR_EXPANDS: Final = "ISR expands"
TOPICS_CREATED: Final = "topics created"
TOPICS_DELETED: Final = "topics deleted"
CONFIGS_CHANGED: Final = "configs changed"
COUNTS: Final = (
    QUORUM_ELECTIONS,
    ELECTIONS,
    ISR_SHRINKS,
    ISR_EXPANDS,
    TOPICS_CREATED,
    TOPICS_DELETED,
    CONFIGS_CHANGED,
)


@dataclass(frozen=True, slots=True)
class Interval:
    """Time during which a lane (a node) had a state. ``offset``: the record with which it began."""

    lane: int
    state: str
    start_ms: int
    end_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class Event:
    """Change of an entity. ``text`` is what changed."""

    time_ms: int
    offset: int
    name: str
    text: str


class Counter:
    """Counts of one kind of event, by bucket."""

    def __init__(self) -> None:
        self.by_bucket: dict[int, int] = {}

    def add(self, bucket: int) -> None:
        self.by_bucket[bucket] = self.by_bucket.get(bucket, 0) + 1

    def merge_pairs(self) -> None:
        """Merge adjacent buckets, because the width has doubled."""
        merged: dict[int, int] = {}
        for bucket, count in self.by_bucket.items():
            merged[bucket // 2] = merged.get(bucket // 2, 0) + count
        self.by_bucket = merged

    @property
    def total(self) -> int:
        return sum(self.by_bucket.values())


class Gauge:
    """Number that changes over time: its maximum in each bucket."""

    def __init__(self, value: int, since_ms: int) -> None:
        self.value = self._first = value
        self._weight_ms = 0
        self._since_ms = since_ms
        self._peaks: dict[int, int] = {}
        self._ends: dict[int, int] = {}

    def add(self, change: int, bucket: int, now_ms: int) -> None:
        """Change the number, which is never negative: the start of a topic may be unknown."""
        self._weight_ms = self.weight_ms(now_ms)
        self._since_ms = now_ms
        peak = self._peaks.get(bucket, self.value)
        self.value = max(self.value + change, 0)
        self._peaks[bucket] = max(peak, self.value)
        self._ends[bucket] = self.value

    def weight_ms(self, now_ms: int) -> int:
        """Return its sum over time."""
        return self._weight_ms + self.value * (now_ms - self._since_ms)

    def merge_pairs(self) -> None:
        """Merge adjacent buckets, because the width has doubled.

        A bucket without a change has the value before or after its neighbor's changes. The
        neighbor's maximum includes both.
        """
        peaks: dict[int, int] = {}
        ends: dict[int, int] = {}
        for bucket in sorted(self._peaks):
            peaks[bucket // 2] = max(peaks.get(bucket // 2, 0), self._peaks[bucket])
            ends[bucket // 2] = self._ends[bucket]
        self._peaks, self._ends = peaks, ends

    def by_bucket(self, count: int) -> Iterator[int]:
        """Yield the maximum in each of ``count`` buckets."""
        carried = self._first
        for bucket in range(count):
            yield self._peaks.get(bucket, carried)
            carried = self._ends.get(bucket, carried)


@dataclass(slots=True)
class Lanes:
    """Intervals of several nodes. If there are too many, the longest are kept."""

    intervals: list[Interval] = field(default_factory=list)
    omitted_count: int = 0
    _open: dict[int, tuple[str, int, int]] = field(default_factory=dict)

    def set(self, lane: int, state: str | None, now_ms: int, offset: int) -> None:
        """Begin a state of a lane; None only ends the previous one."""
        found = self._open.get(lane)
        if found is not None and found[0] == state:
            return
        if found is not None:
            self._close(lane, now_ms)
        if state is not None:
            self._open[lane] = (state, now_ms, offset)

    def _close(self, lane: int, now_ms: int) -> None:
        state, start_ms, offset = self._open.pop(lane)
        self.intervals.append(Interval(lane, state, start_ms, now_ms, offset))
        if len(self.intervals) >= 2 * INTERVALS_MAX:
            self._retain_longest()

    def _retain_longest(self) -> None:
        ranked = sorted(self.intervals, key=lambda one: one.start_ms - one.end_ms)
        self.omitted_count += max(len(ranked) - INTERVALS_MAX, 0)
        self.intervals = sorted(
            ranked[:INTERVALS_MAX], key=lambda one: (one.start_ms, one.lane, one.offset)
        )

    def finish(self, now_ms: int) -> None:
        """End all states at the end of the history."""
        for lane in list(self._open):
            self._close(lane, now_ms)
        self._retain_longest()


@dataclass(slots=True)
class Events:
    """First events of a kind, and the number of all events."""

    first: list[Event] = field(default_factory=list)
    count: int = 0

    def add(self, event: Event) -> None:
        self.count += 1
        if self.count <= EVENTS_MAX:
            self.first.append(event)


class ClusterHistory:
    """History of a cluster after a state. ``add`` the changes in order, then ``finish``."""

    def __init__(self, before: MetadataImage, start_ms: int) -> None:
        """``start_ms``: the time of the first record, if the state before has none."""
        self.start_ms = self.now_ms = before.timestamp_ms if before.timestamp_ms >= 0 else start_ms
        self.width_ms = WIDTH_MS_MIN
        self.counters = {name: Counter() for name in COUNTS}
        self.leaders, self.brokers = Lanes(), Lanes()
        self.topics, self.configs = Events(), Events()
        self.by_topic: dict[str, Gauge] = {}
        self._leader: tuple[int, int | None] = (before.leader_epoch, None)
        self._bucket = 0
        self._read_state(before)

    def _read_state(self, before: MetadataImage) -> None:
        """Begin with the brokers, the partitions and the leader of the state before."""
        short: dict[str, int] = {}
        leaderless = 0
        for row in before.rows_of(PartitionRow):
            leaderless += row.leader < 0
            if _is_short(row):
                short[row.topic_name] = short.get(row.topic_name, 0) + 1
        self.under_replicated = Gauge(sum(short.values()), self.start_ms)
        self.leaderless = Gauge(leaderless, self.start_ms)
        for topic, count in short.items():
            self._gauge_of(topic, count)
        for broker in before.rows_of(BrokerRow):
            self.brokers.set(broker.broker_id, _state_of(broker), self.start_ms, before.offset)
        for epoch in before.rows_of(EpochRow):
            if epoch.leader_epoch == before.leader_epoch and epoch.leader_id is not None:
                self._lead(epoch.leader_epoch, epoch.leader_id, before.offset)

    @property
    def bucket_count(self) -> int:
        return (self.now_ms - self.start_ms) // self.width_ms + 1

    def add(self, record: RecordChanges) -> None:
        """Add the changes of one record."""
        self._advance(record.timestamp_ms)
        for change in record.changes:
            row = change.after or change.before
            match row:
                case PartitionRow():
                    self._partition(change)
                case BrokerRow():
                    state = None if change.after is None else _state_of(row)
                    self.brokers.set(row.broker_id, state, self.now_ms, record.offset)
                case TopicRow():
                    self._topic(row, change, record.offset)
                case ConfigRow():
                    self._config(row, change, record.offset)
                case EpochRow() if change.after is not None:
                    self._elect(row, record.offset)

    def finish(self, end_ms: int) -> None:
        """End the history at a time."""
        self._advance(end_ms)
        self.leaders.finish(self.now_ms)
        self.brokers.finish(self.now_ms)

    def most_under_replicated(self, count: int) -> list[tuple[str, Gauge]]:
        """Return the topics that were under-replicated for the longest time, sorted by name."""
        ranked = sorted(
            self.by_topic.items(), key=lambda one: (-one[1].weight_ms(self.now_ms), one[0])
        )
        return sorted(ranked[:count])

    def _advance(self, time_ms: int) -> None:
        """Set the time, which never decreases, and its bucket."""
        self.now_ms = max(self.now_ms, time_ms)
        while self.bucket_count > BUCKETS_MAX:
            self.width_ms *= 2
            for counter in self.counters.values():
                counter.merge_pairs()
            for gauge in (self.under_replicated, self.leaderless, *self.by_topic.values()):
                gauge.merge_pairs()
        self._bucket = self.bucket_count - 1

    def _count(self, name: str) -> None:
        self.counters[name].add(self._bucket)

    def _partition(self, change: RowChange) -> None:
        before, after = change.before, change.after
        assert before is None or isinstance(before, PartitionRow)
        assert after is None or isinstance(after, PartitionRow)
        short = _is_short(after) - _is_short(before)
        row = after or before
        if short and row is not None:
            self.under_replicated.add(short, self._bucket, self.now_ms)
            self._gauge_of(row.topic_name, 0).add(short, self._bucket, self.now_ms)
        leaderless = _is_leaderless(after) - _is_leaderless(before)
        if leaderless:
            self.leaderless.add(leaderless, self._bucket, self.now_ms)
        if before is None or after is None:
            return
        if after.leader not in (before.leader, -1):
            self._count(ELECTIONS)
        isr_change = len(after.isr) - len(before.isr)
        if isr_change:
            self._count(ISR_EXPANDS if isr_change > 0 else ISR_SHRINKS)

    def _gauge_of(self, topic: str, value: int) -> Gauge:
        """Return the gauge of a topic; a new one begins at ``value``."""
        gauge = self.by_topic.get(topic)
        if gauge is None:
            if len(self.by_topic) >= TOPICS_TRACKED_MAX:
                self._drop_topics()
            gauge = self.by_topic[topic] = Gauge(value, self.now_ms)
        return gauge

    def _drop_topics(self) -> None:
        """Drop the half of the topics that were under-replicated for the shortest time.

        Topics that are under-replicated now are dropped last. A topic that is counted again begins
        at 0.
        """
        ranked = sorted(
            self.by_topic.items(),
            key=lambda one: (one[1].value > 0, one[1].weight_ms(self.now_ms)),
        )
        self.by_topic = dict(ranked[len(ranked) // 2 :])

    def _topic(self, row: TopicRow, change: RowChange, offset: int) -> None:
        if change.op is Op.UPDATE:
            return
        is_new = change.after is not None
        self._count(TOPICS_CREATED if is_new else TOPICS_DELETED)
        text = "created" if is_new else "deleted"
        self.topics.add(Event(self.now_ms, offset, row.name, text))

    def _config(self, row: ConfigRow, change: RowChange, offset: int) -> None:
        self._count(CONFIGS_CHANGED)
        text = f"{_value(change.before)} → {_value(change.after)}"
        self.configs.add(Event(self.now_ms, offset, name_of(row), text))

    def _elect(self, row: EpochRow, offset: int) -> None:
        """Begin a leader's time, unless the row's epoch is already known."""
        epoch, leader_id = self._leader
        if row.leader_id is None or (row.leader_epoch <= epoch and leader_id is not None):
            return
        if leader_id is not None:
            self.leaders.set(leader_id, None, self.now_ms, offset)
        self._count(QUORUM_ELECTIONS)
        self._lead(row.leader_epoch, row.leader_id, offset)

    def _lead(self, epoch: int, leader_id: int, offset: int) -> None:
        self._leader = (epoch, leader_id)
        self.leaders.set(leader_id, f"epoch {epoch}", self.now_ms, offset)


def _is_short(row: PartitionRow | None) -> bool:
    return row is not None and len(row.isr) < len(row.replicas)


def _is_leaderless(row: PartitionRow | None) -> bool:
    return row is not None and row.leader < 0


def _state_of(row: BrokerRow) -> str:
    if row.fenced:
        return FENCED
    return SHUTTING_DOWN if row.in_controlled_shutdown else ACTIVE


def _value(row: Row | None) -> str:
    if not isinstance(row, ConfigRow):
        return "(not set)"
    if len(row.value) > VALUE_CHARACTERS_MAX:
        return f"{row.value[:VALUE_CHARACTERS_MAX]}..."
    return row.value
