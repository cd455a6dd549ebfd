"""An image with merged changes of partitions is that of all records one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from tests.support.metadata_logs import CLUSTERS, LOGS
from tests.support.random_metadata import RandomLog

from raftlog.client import open_path
from raftlog.errors import CorruptBatchError
from raftlog.records.batch_columns import Scan
from raftlog.records.builder import BatchBuilder
from raftlog.records.scan import scan
from raftlog_state.errors import OffsetGapError, ReplayError
from raftlog_state.loader import merged_changes, scans
from raftlog_state.loader.merged_changes import merge
from raftlog_state.loader.metadata_loader import MetadataLoader
from raftlog_state.loader.scans import LOADER_COLUMNS, advance, append_scan, load_snapshot
from raftlog_state.records import (
    ClearElrRecord,
    ConfigRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)

IDS = [f"{number:021d}A" for number in range(1, 8)]
PARTITIONS = 4
DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER_DIRECTORY = "AAAAAAAAAAAAAAAAAAAAGQ"


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_changes, "RECORDS_MIN", 2)
    monkeypatch.setattr(scans, "WINDOW_BYTES", 6_000)


def created(topic_id: str) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=f"topic-{topic_id}", topic_id=topic_id)
    for number in range(PARTITIONS):
        yield PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=(1, 2, 3),
            isr=(1, 2, 3),
            leader=1,
            directories=(DIRECTORY,) * 3,
        )


def change(chance: random.Random, topic_id: str) -> PartitionChangeRecord:
    """Return a change of some fields; one in fifty reassigns the partition."""

    def some(*values: int) -> tuple[int, ...] | None:
        return chance.choice([None, None, (), values])

    moved = chance.random() < 0.02
    replicas = tuple(chance.sample(range(1, 6), 3)) if moved else None
    return PartitionChangeRecord(
        partition_id=chance.randrange(PARTITIONS),
        topic_id=topic_id,
        isr=chance.choice([None, (1,), (1, 2), (3, 1, 2), ()]),
        leader=chance.choice([-2, -2, -1, 1, 2]),
        replicas=replicas,
        directories=(OTHER_DIRECTORY,) * 3 if moved else None,
        removing_replicas=some(2),
        adding_replicas=some(4, 5),
        leader_recovery_state=chance.choice([-1, -1, 0, 1]),
        eligible_leader_replicas=some(3),
        last_known_elr=some(2, 3),
    )


def random_records(seed: int, record_count: int) -> list[MetadataRecord]:
    """Return records of a log: nearly all change partitions, some create and remove topics."""
    chance = random.Random(seed)
    living, unused = IDS[:4], IDS[4:]
    records = [record for topic_id in living for record in created(topic_id)]
    while len(records) < record_count:
        roll = chance.random()
        if roll < 0.01 and len(living) > 1:
            records.append(RemoveTopicRecord(topic_id=living.pop(chance.randrange(len(living)))))
        elif roll < 0.02 and unused:
            living.append(unused.pop())
            records += created(living[-1])
        elif roll < 0.03:
            records.append(list(created(chance.choice(living)))[1])
        elif roll < 0.035:
            records.append(ClearElrRecord())
        elif roll < 0.1:
            records.append(NoOpRecord())
        elif roll < 0.15:
            value = str(chance.random())
            name = f"topic-{chance.choice(living)}"
            config = ConfigRecord(resource_type=2, resource_name=name, name="a", value=value)
            records.append(config)
        else:
            records.append(change(chance, chance.choice(living)))
    return records


def scans_of(values: Sequence[bytes], chance: random.Random, offset: int = 0) -> Iterator[Scan]:
    """Yield scans of a few batches each."""
    at = 0
    while at < len(values):
        data = bytearray()
        for _ in range(chance.randint(1, 3)):
            part = values[at : at + chance.randint(1, 30)]
            if part:
                batch = BatchBuilder(base_timestamp_ms=1_000 + at)
                batch.append(list(part))
                data += batch.build(offset + at, 3 + at // 400).data
                at += len(part)
        yield scan(bytes(data), columns=LOADER_COLUMNS)


def assert_same(found: MetadataLoader, expected: MetadataLoader) -> None:
    assert found.next_offset == expected.next_offset
    assert found.leader_epoch == expected.leader_epoch
    assert found.skipped == expected.skipped
    assert found.open_transaction_offset == expected.open_transaction_offset
    assert found.image == expected.image
    assert found.image.timestamp_ms == expected.image.timestamp_ms


def assert_advanced(values: Sequence[bytes], seed: int) -> None:
    expected, found = MetadataLoader(), MetadataLoader()
    for one in scans_of(values, random.Random(seed)):
        append_scan(expected, one.records)
    ends = list(advance(found, scans_of(values, random.Random(seed))))
    assert ends[-1] == len(values)
    assert_same(found, expected)


@pytest.mark.parametrize("seed", range(8))
def test_partitions_after_many_changes_are_those_of_all_records(seed: int) -> None:
    assert_advanced([encode(record) for record in random_records(seed, 1_500)], seed)


@pytest.mark.parametrize("level", [7, 17, 23, 30])
def test_random_logs_of_all_record_types_have_the_same_state(level: int) -> None:
    log = RandomLog(level, level)
    log.grow(400)
    assert_advanced([encode(record) for record in log.records], level)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_bundled_logs_have_the_same_state(cluster: str) -> None:
    log = open_path(str(LOGS / cluster / "__cluster_metadata-0"))
    start = log.log_start_offset
    expected, found = MetadataLoader(), MetadataLoader()
    if start:
        snapshot_id = log.newest_snapshot()
        assert snapshot_id is not None
        start = snapshot_id.end_offset
        for loader in (expected, found):
            load_snapshot(loader, log.read_snapshot(snapshot_id))
    for one in log.scan(start, log.log_end_offset, columns=LOADER_COLUMNS):
        append_scan(expected, one.records)
    for _ in advance(found, log.scan(start, log.log_end_offset, columns=LOADER_COLUMNS)):
        pass
    assert_same(found, expected)


def test_most_changes_of_partitions_are_merged() -> None:
    chance = random.Random(1)
    others = [change(chance, chance.choice(IDS)) for _ in range(600)]
    kept = [number for number, record in enumerate(others) if record.replicas is not None]
    keys = {(record.topic_id, record.partition_id) for record in others}
    moved = {(others[number].topic_id, others[number].partition_id) for number in kept}
    found = merge(pa.array(map(encode, others), pa.binary()))
    assert found is not None
    changes = found.changes.values()
    merged = [(one.record.topic_id, one.record.partition_id) for one in changes]
    assert sorted(merged) == sorted(keys - moved) != []
    counts = sum(one.change_count for one in changes)
    assert counts + len(found.remaining) == 600
    assert [others[n] for n in found.remaining] == [
        record for record in others if (record.topic_id, record.partition_id) in moved
    ]


WRONG = {
    "a change of a partition that is not there": PartitionChangeRecord(
        topic_id=IDS[0], partition_id=PARTITIONS
    ),
    "a change of a topic that is not there": PartitionChangeRecord(topic_id=DIRECTORY),
    "an unknown recovery state": PartitionChangeRecord(topic_id=IDS[0], leader_recovery_state=9),
    "replicas without directories": PartitionChangeRecord(
        topic_id=IDS[0], replicas=(1, 2), directories=(OTHER_DIRECTORY,) * 3
    ),
}


@pytest.mark.parametrize("record", WRONG.values(), ids=WRONG.keys())
def test_a_record_that_contradicts_the_state_has_the_same_error(record: MetadataRecord) -> None:
    records = [*random_records(5, 100), record, *created(IDS[-1])]
    values = [encode(one) for one in records]
    errors = []
    for replay in (
        lambda loader: [append_scan(loader, one.records) for one in scans_of(values, chance())],
        lambda loader: list(advance(loader, scans_of(values, chance()))),
    ):
        with pytest.raises(ReplayError) as raised:
            replay(MetadataLoader())
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def chance() -> random.Random:
    return random.Random(2)


def test_a_damaged_value_and_a_gap_have_the_loaders_errors() -> None:
    values = [encode(record) for record in random_records(6, 200)]
    damaged = [*values[:150], encode(change(random.Random(1), IDS[0]))[:-1], *values[150:]]
    with pytest.raises(ReplayError, match="150"):
        list(advance(MetadataLoader(), scans_of(damaged, random.Random(3))))
    with pytest.raises(OffsetGapError):
        list(advance(MetadataLoader(), scans_of(values, random.Random(3), offset=7)))


def test_records_before_damage_of_the_log_are_replayed_first() -> None:
    values = [encode(record) for record in random_records(7, 120)]

    def damaged() -> Iterator[Scan]:
        yield from scans_of(values, random.Random(3))
        raise CorruptBatchError(path="0.log", position=9, reason="the CRC does not match")

    loader = MetadataLoader()
    with pytest.raises(CorruptBatchError):
        list(advance(loader, damaged()))
    assert loader.next_offset == len(values)
