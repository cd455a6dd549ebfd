"""An image whose topics are replayed by columns is that of all records one by one; so are changes.

``RAFTLOG_TOPIC_ROWS_SEEDS=500`` sets the number of random histories.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.support.log_builder import begin, control_batch
from tests.support.metadata_logs import CLUSTERS, LOGS
from tests.support.random_metadata import RandomLog
from tests.support.random_topics import Topics
from tests.support.small_logs import END_TRANSACTION
from tests.support.sweep_size import nightly_except

from raftlog.client import SnapshotReader, open_path
from raftlog.errors import CorruptBatchError
from raftlog.records.batch_columns import RecordColumns, Scan
from raftlog.records.builder import BatchBuilder
from raftlog.records.control import LeaderChange, SnapshotFooter, SnapshotHeader
from raftlog.records.scan import scan
from raftlog.types import SnapshotId
from raftlog_state.errors import OffsetGapError, ReplayError
from raftlog_state.image import Entity, MetadataImage, TopicRow
from raftlog_state.image.delta import RecordChanges
from raftlog_state.image.differences import diff
from raftlog_state.image.entity_names import RowFilter, matching, row_filters
from raftlog_state.image.image_writer import image_records
from raftlog_state.image.metadata_image import METADATA_VERSION
from raftlog_state.image.record_versions import ELR_FEATURE, LEVEL_MAX
from raftlog_state.loader import scans, topic_rows
from raftlog_state.loader.metadata_loader import LogRecord, MetadataLoader
from raftlog_state.loader.scans import (
    LOADER_COLUMNS,
    Replay,
    advance,
    append_scan,
    changes_of_scans,
    load_snapshot,
)
from raftlog_state.records import (
    NO_OP_VALUE,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ConfigRecord,
    DecodedRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Redactor,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    decode,
    encode,
)
from raftlog_state.snapshots import encoded_batches

IDS = [f"{number:021d}A" for number in range(1, 8)]
PARTITIONS = 4
DIRECTORY = "AAAAAAAAAAAAAAAAAAAAAQ"
OTHER_DIRECTORY = "AAAAAAAAAAAAAAAAAAAAGQ"
REVEALED = Redactor(reveal=True)
SEEDS = int(os.environ.get("RAFTLOG_TOPIC_ROWS_SEEDS", "8"))


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "RECORDS_MIN", 2)
    monkeypatch.setattr(scans, "WINDOW_BYTES", 6_000)
    monkeypatch.setattr(scans, "SNAPSHOT_WINDOW_BYTES", 6_000)


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
    assert_same_groups(found.image, expected.image)
    assert found.image.timestamp_ms == expected.image.timestamp_ms


def assert_same_groups(found: MetadataImage, expected: MetadataImage) -> None:
    """Assert that the indexes of rows are equal, in any order."""
    of_found, of_expected = (
        {group: sorted(keys) for group, keys in image.groups().items()}
        for image in (found, expected)
    )
    assert of_found == of_expected


def loader_of(redactor: Redactor) -> MetadataLoader:
    return MetadataLoader(decode=lambda value: redactor.redact(decode(value)))


def assert_advanced(values: Sequence[bytes], seed: int, redactor: Redactor = REVEALED) -> None:
    expected, found = loader_of(redactor), loader_of(redactor)
    for one in scans_of(values, random.Random(seed)):
        append_scan(expected, one.records)
    ends = list(advance(found, scans_of(values, random.Random(seed)), redactor))
    assert ends[-1] == len(values)
    assert_same(found, expected)


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
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
    rest = log.scan(start, log.log_end_offset, columns=LOADER_COLUMNS)
    for _ in advance(found, rest, REVEALED):
        pass
    assert_same(found, expected)


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_topics_in_transactions_and_with_secrets_have_the_same_state(seed: int) -> None:
    """Also where the rows of a window are those of many before it, and names are used again."""
    redactor = Redactor(key=b"a redaction key of 30 characters")
    assert_advanced(list(Topics(random.Random(seed)).values(600)), seed, redactor)


def strange_record(chance: random.Random) -> MetadataRecord:
    """Return a record of few topics with values at the bounds of their types.

    Kafka writes none with a negative partition id, an empty name or an epoch that overflows.
    """
    topic_id, name = chance.choice(IDS[:3]), chance.choice(["a", "b", ""])
    number = chance.choice([0, 1, 2**31 - 1, -1, -(2**31)])

    def some() -> tuple[int, ...]:
        return tuple(chance.randrange(-1, 4) for _ in range(chance.randrange(3)))

    kinds: dict[type[MetadataRecord], MetadataRecord] = {
        TopicRecord: TopicRecord(name=name, topic_id=topic_id),
        RemoveTopicRecord: RemoveTopicRecord(topic_id=topic_id),
        PartitionRecord: PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=some(),
            isr=some(),
            leader=chance.choice([-2, -1, 1]),
            leader_epoch=chance.choice([0, 0, 0, -1, 2**31 - 1]),
            directories=(OTHER_DIRECTORY,) * chance.randrange(3),
            eligible_leader_replicas=chance.choice([None, some()]),
        ),
        PartitionChangeRecord: PartitionChangeRecord(
            partition_id=number,
            topic_id=topic_id,
            leader=chance.choice([-2, -2, -1, 1]),
            replicas=chance.choice([None, some()]),
            directories=chance.choice([None, (OTHER_DIRECTORY,) * chance.randrange(3)]),
            eligible_leader_replicas=chance.choice([None, some()]),
        ),
        ClearElrRecord: ClearElrRecord(topic_name=name),
        ConfigRecord: ConfigRecord(
            resource_type=chance.choice([2, 4]),
            resource_name=name,
            name=chance.choice(["x", ""]),
            value=chance.choice([None, "", "1"]),
        ),
    }
    return kinds[chance.choices(list(kinds), [3, 1, 4, 8, 1, 2])[0]]


def with_elr(topic_id: str, number: int = 0, leader_epoch: int = 0) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=(1,),
        leader_epoch=leader_epoch,
        eligible_leader_replicas=(3,),
    )


ELECTION = PartitionChangeRecord(topic_id=IDS[0], partition_id=0, leader=1)
STRANGE: dict[str, list[MetadataRecord]] = {
    "a negative partition id": [
        TopicRecord(name="a", topic_id=IDS[0]),
        TopicRecord(name="b", topic_id=IDS[1]),
        with_elr(IDS[0]),
        with_elr(IDS[1], -1),
        ClearElrRecord(topic_name="a"),
    ],
    "a topic without a name": [
        TopicRecord(name="", topic_id=IDS[0]),
        TopicRecord(name="a", topic_id=IDS[1]),
        with_elr(IDS[0]),
        with_elr(IDS[1]),
        ClearElrRecord(),
    ],
    "an epoch of 33 bits in the state": [
        TopicRecord(name="a", topic_id=IDS[0]),
        with_elr(IDS[0], leader_epoch=2**31 - 1),
        ELECTION,
        *[NoOpRecord()] * 200,
        ELECTION,
        *[NoOpRecord()] * 5,
    ],
}


@pytest.mark.parametrize("records", STRANGE.values(), ids=STRANGE.keys())
def test_records_that_kafka_does_not_write_have_the_same_state(
    records: Sequence[MetadataRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "WINDOW_BYTES", 600)
    assert_advanced([encode(record) for record in records], seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_strange_records_that_a_loader_accepts_have_the_same_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "WINDOW_BYTES", 400)
    chance, loader = random.Random(seed), MetadataLoader()
    values: list[bytes] = []
    while len(values) < 200:
        value = encode(strange_record(chance))
        with contextlib.suppress(ReplayError):
            loader.append([LogRecord(len(values), 1, 0, value)])
            values.append(value)
    assert_advanced(values, seed)


def assert_left_out(values: Sequence[bytes], seed: int) -> None:
    """Assert that a loader that continues after contradictions has the same ones, and state."""
    left_out: tuple[list[ReplayError], list[ReplayError]] = [], []
    expected, found = (MetadataLoader(on_rejected=errors.append) for errors in left_out)
    for one in scans_of(values, random.Random(seed)):
        append_scan(expected, one.records)
    assert list(advance(found, scans_of(values, random.Random(seed)), REVEALED))
    assert_same(found, expected)
    errors_of_found, errors_of_expected = ([*map(str, errors)] for errors in left_out)
    assert errors_of_found == errors_of_expected != []


def cluster_records(chance: random.Random, count: int, *, is_strange: bool) -> list[MetadataRecord]:
    """Return allocations of producer ids and changes of brokers' registrations, in any order.

    Without ``is_strange`` none contradicts another, and most windows have no registration.
    """
    found: list[MetadataRecord] = [
        RegisterBrokerRecord(broker_id=broker, broker_epoch=broker + 5) for broker in range(3)
    ]
    while len(found) < count:
        broker, roll = chance.randrange(4 if is_strange else 3), chance.random()
        epoch = broker + 5 + (is_strange and chance.random() < 0.02)
        if roll < 0.3:
            found.append(ProducerIdsRecord(broker_id=broker, next_producer_id=len(found)))
        elif roll < 0.9:
            found.append(
                BrokerRegistrationChangeRecord(
                    broker_id=broker,
                    broker_epoch=epoch,
                    fenced=chance.choice((-1, 0, 1, 1, 2 if is_strange else 1)),
                    in_controlled_shutdown=chance.choice([0] * 19 + [2 if is_strange else 1]),
                    log_dirs=(DIRECTORY,) * (chance.random() < 0.05),
                    cordoned_log_dirs=chance.choice([None] * 9 + [(), (DIRECTORY,)]),
                )
            )
        elif roll < 0.91:
            kind = chance.choice((FenceBrokerRecord, UnfenceBrokerRecord))
            found.append(kind(id=broker, epoch=epoch))
        else:
            found.append(NoOpRecord())
    return found


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_changes_of_registrations_have_the_same_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "WINDOW_BYTES", 600)
    chance = random.Random(seed)
    values = [encode(one) for one in cluster_records(chance, 300, is_strange=False)]
    assert_advanced(values, seed)


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_changes_of_registrations_that_are_left_out_are_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that contradict the state, by a loader that continues after them."""
    monkeypatch.setattr(scans, "WINDOW_BYTES", 600)
    chance = random.Random(seed)
    assert_left_out([encode(one) for one in cluster_records(chance, 300, is_strange=True)], seed)


def test_only_the_last_changes_of_a_window_are_replayed() -> None:
    loader = MetadataLoader()
    registered = [RegisterBrokerRecord(broker_id=broker, broker_epoch=5) for broker in (1, 2)]
    loader.append([LogRecord(at, 1, 0, encode(one)) for at, one in enumerate(registered)])
    changes: list[MetadataRecord] = []
    for number in range(500):
        broker = 1 + number % 2
        changes += [
            ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=number),
            BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=5, fenced=1),
            BrokerRegistrationChangeRecord(broker_id=broker, broker_epoch=5, fenced=-1),
        ]

    def kept(*more: MetadataRecord) -> list[int]:
        values = pa.array([encode(one) for one in (*changes, *more)], pa.binary())
        found = scans._effective(loader.rows, values, np.arange(len(values)), REVEALED)
        return [int(at) for at in found]

    assert kept() == [1496, 1497, 1499]
    of_another_epoch = BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=6, fenced=1)
    assert len(kept(of_another_epoch)) == 1_002, "all changes, and the last producer ids"
    assert len(kept(registered[0])) == len(changes) + 1


def window_of(values: Sequence[bytes], *, control: bytes | None = None) -> list[RecordColumns]:
    """Return the records of scans as one window."""
    found = [one.records for one in scans_of(values, random.Random(4))]
    return found if control is None else [*found, scan(control, columns=LOADER_COLUMNS).records]


def test_records_of_a_window_are_replayed_by_columns() -> None:
    """With control records, transactions, and records that are not of topics."""
    values = list(Topics(random.Random(3)).values(400))
    values += [encode(NoOpRecord()), encode(RegisterBrokerRecord(broker_id=1))]
    control = control_batch([LeaderChange(leader_id=7)], base_offset=len(values), epoch=9)
    window = window_of(values, control=control)
    expected, found = MetadataLoader(), MetadataLoader()
    for records in window:
        append_scan(expected, records)
    assert scans._append_window(found, window, REVEALED)
    assert_same(found, expected)
    assert found.image.rows(Entity.EPOCH)
    assert found.image.rows(Entity.TRANSACTION) == expected.image.rows(Entity.TRANSACTION) != []


def test_a_window_that_ends_in_a_transaction_is_replayed_record_by_record() -> None:
    records = [encode(record) for record in created(IDS[0])]
    values = [*records, begin("t"), *map(encode, created(IDS[1])), END_TRANSACTION]
    assert not scans._append_window(MetadataLoader(), window_of(values[:-1]), REVEALED)
    assert scans._append_window(MetadataLoader(), window_of(values), REVEALED)


def replayed_by_columns(*parts: Sequence[bytes]) -> MetadataImage:
    """Return the image after values, each part a window, asserted to be that of all records."""
    expected, found = MetadataLoader(), MetadataLoader()
    for part in parts:
        window = [one.records for one in scans_of(part, chance(), found.next_offset)]
        for records in window:
            append_scan(expected, records)
        assert scans._append_window(found, window, REVEALED)
    assert_same(found, expected)
    return found.image


def test_configs_before_a_window_are_deleted_with_a_topic_that_it_creates_and_removes() -> None:
    config = ConfigRecord(resource_type=2, resource_name="later", name="a", value="1")
    topic, removal = TopicRecord(name="later", topic_id=IDS[0]), RemoveTopicRecord(topic_id=IDS[0])
    image = replayed_by_columns([encode(config), NO_OP_VALUE], [encode(topic), encode(removal)])
    assert not image.rows(Entity.CONFIG)


def test_partitions_before_a_window_are_deleted_with_a_topic_that_it_removes() -> None:
    """Also those that no record of the window names."""
    removal = encode(RemoveTopicRecord(topic_id=IDS[0]))
    image = replayed_by_columns([encode(one) for one in created(IDS[0])], [removal, NO_OP_VALUE])
    assert not image.rows(Entity.PARTITION)


def columns_after(found: MetadataLoader, *parts: Sequence[bytes]) -> MetadataLoader:
    """Replay parts after the state, each a window after the columns of the one before.

    Asserts that the image is that of all records. Returns the loader.
    """
    expected = MetadataLoader(found.image)
    replay = Replay(found, REVEALED)
    for part in parts:
        window = [one.records for one in scans_of(part, chance(), found.next_offset)]
        for records in window:
            append_scan(expected, records)
        replay.append(window)
        assert replay.topics is not None
    replay.write()
    assert_same(found, expected)
    return found


def test_rows_of_topics_are_columns_between_windows() -> None:
    plain = (one for one in random_records(8, 600) if not isinstance(one, ClearElrRecord))
    records = [encode(record) for record in plain]
    found = MetadataLoader()
    replay = Replay(found, REVEALED)
    replay.append(window_of(records))
    assert replay.topics is not None
    assert not found.image.rows(Entity.TOPIC)  # the rows of all windows are written once
    columns_after(MetadataLoader(), records[:200], records[200:400], records[400:])


def test_topics_of_the_state_are_changed_deleted_and_created_with_other_names() -> None:
    """By windows whose columns are written together."""
    kept, removed, renamed, untouched = IDS[:4]
    configs = [
        ConfigRecord(resource_type=kind, resource_name=f"topic-{one}", name="a", value="1")
        for one in IDS[:4]
        for kind in (2, 4)
    ]
    before = [record for one in IDS[:4] for record in created(one)] + configs
    later: list[list[MetadataRecord]] = [
        [
            PartitionChangeRecord(topic_id=kept, partition_id=1, leader=2),
            RemoveTopicRecord(topic_id=removed),
            RemoveTopicRecord(topic_id=renamed),
        ],
        [TopicRecord(name="another", topic_id=renamed), with_elr(renamed, 7)],
        [PartitionChangeRecord(topic_id=renamed, partition_id=7, leader=3)],
    ]
    found = replayed([LogRecord(at, 1, 0, encode(one)) for at, one in enumerate(before)])
    fill = [NO_OP_VALUE] * len(before)  # a window has at least as many records as the state rows
    columns_after(found, *([*map(encode, part), *fill] for part in later))
    names = [found.image.find(TopicRow, one) for one in (kept, removed, renamed, untouched)]
    expected = [f"topic-{kept}", None, "another", f"topic-{untouched}"]
    assert [row and row.name for row in names] == expected
    assert not found.image.group((Entity.TOPIC, f"topic-{renamed}", ""))


def replayed(records: Sequence[LogRecord]) -> MetadataLoader:
    loader = MetadataLoader()
    loader.append(records)
    return loader


def test_rows_are_in_the_loader_after_an_error() -> None:
    wrong = encode(WRONG["a change of a topic that is not there"])
    values = [*(encode(record) for record in random_records(9, 400)), wrong]
    found, expected = MetadataLoader(), MetadataLoader()
    with pytest.raises(ReplayError):
        list(advance(found, scans_of(values, chance()), REVEALED))
    for one in scans_of(values[: found.next_offset], chance()):
        append_scan(expected, one.records)
    assert found.next_offset > 300
    assert_same(found, expected)


def test_a_state_of_more_rows_than_a_window_has_records_is_not_converted() -> None:
    records = [record for topic_id in IDS for record in created(topic_id)]
    found = replayed([LogRecord(at, 1, 0, encode(one)) for at, one in enumerate(records)])
    window = [one.records for one in scans_of([NO_OP_VALUE] * 5, chance(), found.next_offset)]
    replay = Replay(found, REVEALED)
    replay.append(window)
    assert replay.topics is None
    assert found.next_offset == len(records) + 5


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
        lambda loader: list(advance(loader, scans_of(values, chance()), REVEALED)),
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
        list(advance(MetadataLoader(), scans_of(damaged, random.Random(3)), REVEALED))
    with pytest.raises(OffsetGapError):
        list(advance(MetadataLoader(), scans_of(values, random.Random(3), offset=7), REVEALED))


def test_records_before_damage_of_the_log_are_replayed_first() -> None:
    values = [encode(record) for record in random_records(7, 120)]

    def damaged() -> Iterator[Scan]:
        yield from scans_of(values, random.Random(3))
        raise CorruptBatchError(path="0.log", position=9, reason="the CRC does not match")

    loader = MetadataLoader()
    with pytest.raises(CorruptBatchError):
        list(advance(loader, damaged(), REVEALED))
    assert loader.next_offset == len(values)


# --- snapshots ------------------------------------------------------------------------------------


def topics_of_a_cluster(seed: int, count: int) -> list[bytes]:
    """Return records of topics after the features that a snapshot of them needs."""
    features = (METADATA_VERSION, LEVEL_MAX), (ELR_FEATURE, 1)
    records = [FeatureLevelRecord(name=name, feature_level=level) for name, level in features]
    return [*map(encode, records), *Topics(random.Random(seed)).values(count)]


def snapshot_file(
    directory: Path, snapshot_id: SnapshotId, values: Iterable[bytes]
) -> SnapshotReader:
    batches = encoded_batches(
        values,
        head=[SnapshotHeader(last_contained_log_timestamp_ms=77)],
        tail=[SnapshotFooter()],
        base_offset=0,
        leader_epoch=snapshot_id.epoch,
        written_ms=9,
        batch_bytes_max=1_500,
    )
    path = directory / f"{snapshot_id}.checkpoint"
    path.write_bytes(b"".join(batch.data for batch in batches))
    return open_path(str(path)).read_snapshot(snapshot_id)


def snapshot_of(image: MetadataImage, directory: Path) -> SnapshotReader:
    values = (encode(record) for record in image_records(image))
    return snapshot_file(directory, image.snapshot_id, values)


def loaded(snapshot: SnapshotReader, redactor: Redactor = REVEALED) -> Replay:
    """Return the state of a snapshot, of which the rows of topics are columns."""
    found = Replay(loader_of(redactor), redactor, is_compared=True)
    found.load(snapshot)
    assert found.topics is not None
    assert not found.loader.image.rows(Entity.TOPIC)
    return found


def assert_loaded(snapshot: SnapshotReader, redactor: Redactor = REVEALED) -> None:
    expected = loader_of(redactor)
    load_snapshot(expected, snapshot)
    found = loaded(snapshot, redactor)
    found.write()
    assert_same(found.loader, expected)


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_a_snapshot_of_topics_is_loaded_by_columns(seed: int, tmp_path: Path) -> None:
    loader = MetadataLoader()
    for one in scans_of(topics_of_a_cluster(seed, 400), random.Random(seed)):
        append_scan(loader, one.records)
    assert loader.image.rows(Entity.PARTITION)
    snapshot = snapshot_of(loader.image, tmp_path)
    assert_loaded(snapshot, Redactor(key=b"a redaction key of 30 characters"))
    assert loaded(snapshot).image.same_rows(loader.image)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_snapshots_that_kafka_wrote_are_loaded_by_columns(cluster: str) -> None:
    log = open_path(str(LOGS / cluster / "__cluster_metadata-0"))
    for snapshot_id in log.snapshots:
        assert_loaded(log.read_snapshot(snapshot_id))


@pytest.mark.parametrize("level", [7, 17, 30])
def test_snapshots_of_all_record_types_have_the_same_state(level: int, tmp_path: Path) -> None:
    log = RandomLog(level, level)
    log.grow(400)
    loader = MetadataLoader()
    for one in scans_of([encode(record) for record in log.records], chance()):
        append_scan(loader, one.records)
    assert_loaded(snapshot_of(loader.image, tmp_path))


TOPIC = TopicRecord(name="a", topic_id=IDS[0])
NOT_OF_SNAPSHOTS = {
    "a removal": [encode(TOPIC), encode(RemoveTopicRecord(topic_id=IDS[0]))],
    "a config that is deleted": [
        encode(ConfigRecord(resource_type=2, resource_name="a", name="x", value="1")),
        encode(ConfigRecord(resource_type=2, resource_name="a", name="x", value=None)),
    ],
    "a topic twice": [encode(TOPIC), encode(TOPIC)],
    "a partition without a topic": [encode(PartitionRecord(topic_id=IDS[0]))],
    "a damaged value": [encode(TOPIC)[:-1]],
    "a damaged value of another type": [encode(TOPIC), b"\x01\x1b\x00\x7f"],
    "a transaction": [begin("t"), encode(TOPIC), END_TRANSACTION],
}


@pytest.mark.parametrize("values", NOT_OF_SNAPSHOTS.values(), ids=NOT_OF_SNAPSHOTS.keys())
def test_what_no_snapshot_has_is_loaded_record_by_record(
    values: list[bytes], tmp_path: Path
) -> None:
    snapshot = snapshot_file(tmp_path, SnapshotId(epoch=3, end_offset=900), values)
    outcomes: list[object] = []
    for load in (load_snapshot, lambda loader, snapshot: Replay(loader, REVEALED).load(snapshot)):
        loader = MetadataLoader()
        try:
            load(loader, snapshot)
        except ReplayError as error:
            outcomes.append(str(error))
        else:
            outcomes.append(loader.image.to_json())
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("seed", nightly_except(range(3), range(SEEDS)))
def test_differences_of_columns_are_those_of_images(seed: int, tmp_path: Path) -> None:
    """A log is compared with snapshots of its state at the same and at the next offset."""
    values = topics_of_a_cluster(seed, 300)
    parts = list(scans_of(values, random.Random(seed)))
    objects, columns = MetadataLoader(), Replay(MetadataLoader(), REVEALED, is_compared=True)
    before = objects.image
    equal_count = different_count = 0
    for part in parts:
        append_scan(objects, part.records)
        list(columns.advance([part]))
        state = objects.image
        assert loaded(snapshot_of(state, tmp_path)).differences(columns) == []
        equal_count += columns.topics is not None
        if before.offset >= 0:
            expected = diff(before, state)
            assert loaded(snapshot_of(before, tmp_path)).differences(columns) == expected
            different_count += bool(expected)
        before = state
    assert equal_count > len(parts) / 2
    assert different_count


# --- changes --------------------------------------------------------------------------------------

NAMED: list[tuple[str | None, str | None, bool]] = [
    (None, None, True),
    ("topic", None, False),
    ("topic", f"topic-{IDS[0]}", True),
    ("topic", "not there", True),
    ("topic", "\udcff", True),
    ("partition", f"topic-{IDS[1]}/2", True),
    ("partition", f"topic-{IDS[1]}/{10**17}", True),
    ("config", "topic", False),
    ("config", f"topic/topic-{IDS[0]}/a", False),
    ("broker", "1", False),
]
FILTERS: list[Sequence[RowFilter] | None] = [
    None,
    (),
    *(row_filters(entity, name, partitions=all_of) for entity, name, all_of in NAMED),
]


def changes_by_columns(
    values: Sequence[bytes], seed: int, redactor: Redactor, filters: Sequence[RowFilter] | None
) -> list[RecordChanges]:
    parts = scans_of(values, random.Random(seed))
    found = changes_of_scans(loader_of(redactor), parts, redactor, filters)
    return [record for part in found for record in part]


def assert_same_changes(values: Sequence[bytes], seed: int, redactor: Redactor = REVEALED) -> None:
    """Assert that changes by columns are those of a loader, for each of the filters."""
    loader = loader_of(redactor)
    parts = scans_of(values, random.Random(seed))
    expected = [record for one in parts for record in append_scan(loader, one.records)]
    assert expected
    for filters in FILTERS:
        found = changes_by_columns(values, seed, redactor, filters)
        assert found == list(matching(expected, filters)), filters


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has changes of several slices."""
    monkeypatch.setattr(topic_rows, "SLICE_CHANGES", 3)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("seed", nightly_except(range(2), range(min(SEEDS, 4))))
def test_changes_by_columns_are_those_of_a_loader(seed: int) -> None:
    """Of records of the types in a cluster's log, in their order."""
    records = [*random_records(seed, 400), RegisterBrokerRecord(broker_id=1)]
    records.insert(200, RegisterBrokerRecord(broker_id=1, broker_epoch=2))
    assert_same_changes([encode(record) for record in records], seed)


@pytest.mark.parametrize("seed", nightly_except(range(2), range(min(SEEDS, 4))))
def test_changes_in_transactions_and_with_secrets_are_those_of_a_loader(seed: int) -> None:
    redactor = Redactor(key=b"a redaction key of 30 characters")
    assert_same_changes(list(Topics(random.Random(seed)).values(400)), seed, redactor)


def test_changes_of_random_logs_of_all_record_types_are_those_of_a_loader() -> None:
    log = RandomLog(5, 23)
    log.grow(300)
    assert_same_changes([encode(record) for record in log.records], 5)


def test_changes_of_other_records_are_between_those_of_topics() -> None:
    """In one window, whose records are replayed by two."""
    topic, broker = list(created(IDS[0])), RegisterBrokerRecord(broker_id=1)
    values = [encode(one) for one in (*topic[:2], broker, *topic[2:])]
    window = window_of(values)
    replayed = scans._append_window(MetadataLoader(), window, REVEALED)
    assert replayed is not None
    assert [record.offset for record in replayed.changes(None)] == list(range(len(values)))


def test_records_of_topics_that_no_filter_names_are_not_decoded() -> None:
    def decode_other(value: bytes) -> DecodedRecord:
        decoded = decode(value)
        assert not isinstance(decoded.record, PartitionRecord | PartitionChangeRecord)
        return decoded

    records = [one for one in random_records(3, 300) if not isinstance(one, ClearElrRecord)]
    values = [encode(one) for one in records]
    filters = row_filters("topic", f"topic-{IDS[0]}")
    parts = changes_of_scans(
        MetadataLoader(decode=decode_other), scans_of(values, chance()), REVEALED, filters
    )
    found = [record for part in parts for record in part]
    assert found
    assert found == changes_by_columns(values, 2, REVEALED, filters)


def test_changes_before_an_error_are_returned_first() -> None:
    values = [encode(record) for record in random_records(6, 200)]
    wrong = [*values, encode(WRONG["a change of a topic that is not there"]), *values[:20]]
    found: list[RecordChanges] = []
    parts = changes_of_scans(MetadataLoader(), scans_of(wrong, chance()), REVEALED, None)
    with pytest.raises(ReplayError):
        found.extend(record for part in parts for record in part)
    expected = changes_by_columns(values, 2, REVEALED, None)
    assert found == expected[: len(found)]
    assert len(found) > 100
