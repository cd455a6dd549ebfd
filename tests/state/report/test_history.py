"""History of a cluster: its buckets, gauges, intervals and events against direct computations."""

from __future__ import annotations

from collections import Counter as Counts
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cli import rows

from raftlog_state.image import BrokerRow, Entity, MetadataImage, PartitionRow, TopicRow
from raftlog_state.image.delta import Op, RecordChanges, RowChange
from raftlog_state.loader.image_reader import ImageReader
from raftlog_state.records import Redactor
from raftlog_state.report.history import (
    BUCKETS_MAX,
    ELECTIONS,
    EVENTS_MAX,
    FENCED,
    INTERVALS_MAX,
    ISR_EXPANDS,
    ISR_SHRINKS,
    TOPICS_CREATED,
    TOPICS_DELETED,
    TOPICS_TRACKED_MAX,
    ClusterHistory,
    Interval,
)

NODE = Path(__file__).parents[2] / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
START_MS = 1_700_000_000_000


def partition(topic: int, number: int, *, isr: int, leader: int = 1) -> PartitionRow:
    return PartitionRow(
        topic_id=f"id-{topic}",
        partition_id=number,
        topic_name=f"topic-{topic}",
        replicas=(1, 2, 3),
        isr=(1, 2, 3)[:isr],
        directories=(),
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
    )


def changed(
    at_ms: int, offset: int, before: PartitionRow | None, after: PartitionRow | None
) -> RecordChanges:
    row = after or before
    assert row is not None
    op = Op.CREATE if before is None else Op.DELETE if after is None else Op.UPDATE
    change = RowChange(Entity.PARTITION, row.key, op, before, after)
    return RecordChanges(offset, offset, 1, at_ms, "PARTITION_CHANGE_RECORD", (change,))


def history_of(path: Path) -> tuple[ClusterHistory, MetadataImage]:
    images = ImageReader(str(path), Redactor())
    history = ClusterHistory(images.image_at(0), 0)
    end = images.log_end_offset
    for record in images.changes(end):
        history.add(record)
    after = images.image_at(end)
    history.finish(after.timestamp_ms)
    return history, after


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 2), st.integers(1, 3)), max_size=40)
)
def test_a_bucket_has_the_maximum_of_the_time_that_it_covers(
    steps: list[tuple[int, int, int]],
) -> None:
    """The oracle has the value at every moment, and no buckets."""
    history = ClusterHistory(MetadataImage(timestamp_ms=START_MS), 0)
    isrs: dict[int, int] = {}
    moments = [(START_MS, 0)]
    now_ms = START_MS
    for offset, (wait_ms, number, isr) in enumerate(steps):
        now_ms += wait_ms
        known = isrs.get(number)
        before = None if known is None else partition(0, number, isr=known)
        history.add(changed(now_ms, offset, before, partition(0, number, isr=isr)))
        isrs[number] = isr
        moments.append((now_ms, sum(one < 3 for one in isrs.values())))
    history.finish(now_ms + 1)
    count, width = history.bucket_count, history.width_ms
    assert count <= BUCKETS_MAX
    expected = [0] * count
    for (since_ms, value), (until_ms, _) in pairwise([*moments, (now_ms + 1, 0)]):
        first, last = (since_ms - START_MS) // width, (until_ms - START_MS) // width
        for bucket in range(first, min(last, count - 1) + 1):
            expected[bucket] = max(expected[bucket], value)
    assert list(history.under_replicated.by_bucket(count)) == expected
    gauge = history.by_topic.get("topic-0")
    assert gauge is None or list(gauge.by_bucket(count)) == expected


def test_counts_are_those_of_the_changes_that_raftlog_log_prints() -> None:
    history, _ = history_of(NODE)
    expected: Counts[str] = Counts()
    for row in rows("log", "--quiet", "--json", "--partitions", NODE):
        change = row.get("changed", {})
        if row["entity"] == "topic":
            expected[TOPICS_CREATED if row["op"] == "c" else TOPICS_DELETED] += 1
        elif row["entity"] == "partition" and change:
            expected[ELECTIONS] += change.get("leader", {"after": -1})["after"] >= 0
            sizes = [len(change.get("isr", {}).get(side, ())) for side in ("before", "after")]
            expected[ISR_SHRINKS] += sizes[1] < sizes[0]
            expected[ISR_EXPANDS] += sizes[1] > sizes[0]
    found = {name: history.counters[name].total for name in expected}
    assert found == expected
    assert expected[TOPICS_DELETED] == 3


def test_the_last_values_are_those_of_the_state_at_the_end() -> None:
    history, after = history_of(NODE)
    partitions = after.rows_of(PartitionRow)
    assert history.under_replicated.value == sum(
        len(row.isr) < len(row.replicas) for row in partitions
    )
    assert history.leaderless.value == sum(row.leader < 0 for row in partitions)
    by_topic = Counts(row.topic_name for row in partitions if len(row.isr) < len(row.replicas))
    assert {topic: one.value for topic, one in history.by_topic.items() if one.value} == by_topic
    fenced = {one.lane for one in history.brokers.intervals if one.end_ms == history.now_ms}
    assert fenced == {row.broker_id for row in after.rows_of(BrokerRow) if row.fenced}


def test_brokers_have_the_times_at_which_kafka_fenced_and_unregistered_them() -> None:
    history, _ = history_of(NODE)
    broker_3 = [one for one in history.brokers.intervals if one.lane == 3]
    fenced = Interval(3, FENCED, 1_795_248_258_007, 1_795_248_265_680, 1231)
    assert broker_3[-1] == fenced, "as kafka-dump-log prints offsets 1231 and 1270"


def test_a_clock_that_goes_back_does_not_move_the_time_back() -> None:
    history = ClusterHistory(MetadataImage(timestamp_ms=START_MS), 0)
    history.add(changed(START_MS + 5_000, 0, None, partition(0, 0, isr=2)))
    history.add(changed(START_MS + 1_000, 1, partition(0, 0, isr=2), partition(0, 0, isr=3)))
    history.finish(START_MS)
    assert history.now_ms == START_MS + 5_000
    assert list(history.under_replicated.by_bucket(41)) == [*[0] * 40, 1]
    assert history.counters[ISR_EXPANDS].by_bucket == {40: 1}


def test_a_topic_that_was_under_replicated_for_long_is_retained_among_many() -> None:
    history = ClusterHistory(MetadataImage(timestamp_ms=START_MS), 0)
    history.add(changed(START_MS, 0, None, partition(0, 0, isr=1)))
    offset = 1
    for topic in range(1, TOPICS_TRACKED_MAX + 500):
        at_ms = START_MS + topic * 100
        history.add(changed(at_ms, offset, None, partition(topic, 0, isr=2)))
        history.add(changed(at_ms + 50, offset + 1, partition(topic, 0, isr=2), None))
        offset += 2
    history.finish(START_MS + 10**6)
    assert len(history.by_topic) <= TOPICS_TRACKED_MAX
    (first, _), *_ = history.most_under_replicated(1)
    assert first == "topic-0"


def test_the_longest_intervals_are_retained() -> None:
    history = ClusterHistory(MetadataImage(timestamp_ms=START_MS), 0)
    lanes = history.brokers
    flaps = 5 * INTERVALS_MAX
    for at in range(flaps):
        lanes.set(at % 7, "active" if at % 2 else FENCED, START_MS + at * 10, at)
    lanes.set(9, "active", START_MS, 0)
    history.finish(START_MS + flaps * 10)
    assert len(lanes.intervals) <= INTERVALS_MAX
    assert lanes.omitted_count > 0
    assert max(lanes.intervals, key=lambda one: one.end_ms - one.start_ms).lane == 9


def test_events_are_counted_beyond_those_that_are_listed() -> None:
    history = ClusterHistory(MetadataImage(timestamp_ms=START_MS), 0)
    for offset in range(EVENTS_MAX + 7):
        row = TopicRow(topic_id=f"id-{offset}", name=f"topic-{offset}")
        change = RowChange(Entity.TOPIC, row.key, Op.CREATE, None, row)
        history.add(RecordChanges(offset, offset, 1, START_MS, "TOPIC_RECORD", (change,)))
    assert history.topics.count == EVENTS_MAX + 7
    assert len(history.topics.first) == EVENTS_MAX
