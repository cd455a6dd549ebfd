"""A long log into tables by parallel tasks, against batches in one process; CPU time of one core.

The log is a generated one of a busy cluster, written by raftlog's encoders.

The mix is that of rolling restarts: most records change partitions (leaders and in-sync replicas),
many are the controller's NoOps, some create and delete topics, change configs and brokers. Batches
have the sizes of ``decode``'s mix.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchmarks.decode import batch_counts
from benchmarks.run import Row, print_row, row
from tests.support.small_logs import TIME_MS, write_epochs

from raftlog.client import open_path
from raftlog.records.builder import BatchBuilder
from raftlog_state.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Redactor,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode,
)
from raftlog_state.records.typed_columns import frames
from raftlog_state.replay.row_versions import TOPIC_RECORDS
from raftlog_state.replay.topics import LEADER_UNCHANGED
from raftlog_state.tables.bucket_parts import (
    BucketRecords,
    LoaderPart,
    Part,
    PartSettings,
    TopicsPart,
)
from raftlog_state.tables.bucket_replay import replay_bucket
from raftlog_state.tables.bulk_load import BulkLoad, LoadSettings
from raftlog_state.tables.columnar_replay import RecordColumns
from raftlog_state.tables.log_follower import FollowSettings, LogFollower
from raftlog_state.tables.progress import Progress
from raftlog_state.tables.schema import STATE_TABLE
from raftlog_state.tables.stored_rows import split_state
from raftlog_state.tables.stores.delta_rs import DeltaRsStore

RECORDS = 300_000
BUCKETS = 8
BROKERS = 50
TOPICS_AT_START = 400
TOPICS_MIN = 200
PARTITIONS_OF_A_TOPIC = 20
METADATA_VERSION_LEVEL = 25
RECORDS_PER_S = 50
_TOPIC = 2
_SHARED = {
    "cluster_id": "busy",
    "topic": "__cluster_metadata",
    "partition": 0,
    "incarnation": 0,
    "committed_at": 0,
}
_CONFIGS = ("retention.ms", "segment.bytes", "cleanup.policy")


def write_log(directory: Path, record_count: int, cluster_id: str = "busy") -> Path:
    """Write about as many records as one segment; return the partition's directory."""
    log = directory / "__cluster_metadata-0"
    log.mkdir(parents=True)
    (directory / "meta.properties").write_text(f"version=1\ncluster.id={cluster_id}\nnode.id=1\n")
    values = mixed_values(record_count)
    offset, epoch = 0, 1
    with (log / f"{0:020d}.log").open("wb") as file:
        for count in batch_counts("mix", record_count):
            batch = BatchBuilder(base_timestamp_ms=TIME_MS + offset * 1_000 // RECORDS_PER_S)
            batch.append([value for _, value in zip(range(count), values, strict=False)])
            file.write(batch.build(offset, epoch).data)
            offset += count
    write_epochs(log, [(epoch, 0)])
    return log


def mixed_values(record_count: int) -> Iterator[bytes]:
    """Yield the encoded records, always the same for a count."""
    return map(encode, _records(record_count))


class _Topics:
    """Topics of the generated cluster."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._number = 0
        self.ids: list[str] = []
        self.names: dict[str, str] = {}

    def create(self) -> Iterator[MetadataRecord]:
        self._number += 1
        topic_id = base64.urlsafe_b64encode(uuid.UUID(int=self._number << 64).bytes).decode()[:22]
        self.ids.append(topic_id)
        self.names[topic_id] = f"orders-{self._number}"
        yield TopicRecord(name=self.names[topic_id], topic_id=topic_id)
        for number in range(PARTITIONS_OF_A_TOPIC):
            first = self._chance.randrange(BROKERS)
            replicas = tuple((first + step) % BROKERS for step in range(3))
            yield PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=replicas,
                isr=replicas,
                leader=first,
                directories=("AAAAAAAAAAAAAAAAAAAAAQ",) * 3,
            )

    def delete(self) -> Iterator[MetadataRecord]:
        at = self._chance.randrange(len(self.ids))
        self.ids[at], topic_id = self.ids[-1], self.ids[at]
        self.ids.pop()
        yield RemoveTopicRecord(topic_id=topic_id)

    def change(self) -> MetadataRecord:
        first = self._chance.randrange(BROKERS)
        isr = tuple((first + step) % BROKERS for step in range(self._chance.randint(1, 3)))
        leader = first if self._chance.random() < 0.5 else LEADER_UNCHANGED
        return PartitionChangeRecord(
            partition_id=self._chance.randrange(PARTITIONS_OF_A_TOPIC),
            topic_id=self._chance.choice(self.ids),
            isr=isr,
            leader=leader,
        )


def _records(record_count: int) -> Iterator[MetadataRecord]:
    chance = random.Random(record_count)
    topics = _Topics(chance)
    yield FeatureLevelRecord(name="metadata.version", feature_level=METADATA_VERSION_LEVEL)
    for number in range(BROKERS):
        yield RegisterBrokerRecord(broker_id=number, broker_epoch=number, incarnation_id="A" * 22)
    for _ in range(TOPICS_AT_START):
        yield from topics.create()
    no_op = NoOpRecord()
    producer_id = 0
    while True:
        roll = chance.random()
        if roll < 0.15:
            yield no_op
        elif roll < 0.95:
            yield topics.change()
        elif roll < 0.955:
            yield from topics.create()
        elif roll < 0.96:
            # Without a minimum, a log of ten million records runs out of topics.
            yield from topics.delete() if len(topics.ids) > TOPICS_MIN else topics.create()
        elif roll < 0.98:
            name = topics.names[chance.choice(topics.ids)]
            value = str(chance.randrange(10**9))
            yield ConfigRecord(
                resource_type=_TOPIC, resource_name=name, name=chance.choice(_CONFIGS), value=value
            )
        elif roll < 0.99:
            broker = chance.randrange(BROKERS)
            fenced = chance.choice((-1, 1))
            yield BrokerRegistrationChangeRecord(
                broker_id=broker, broker_epoch=broker, fenced=fenced
            )
        else:
            producer_id += 1_000
            yield ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=producer_id)


def measure(directory: Path, record_count: int) -> Iterator[Row]:
    yield _replayed(record_count)
    log = write_log(directory, record_count)
    settings = FollowSettings(redactor=Redactor(), writes_log=False, is_once=True, holdback_ms=0)
    follower = LogFollower(
        lambda: open_path(str(log)),
        DeltaRsStore(str(directory / "followed")),
        settings,
        log_event=lambda event: None,
    )
    load = BulkLoad(
        DeltaRsStore(str(directory / "loaded")),
        settings,
        LoadSettings(
            options={"path": str(log)}, staging=str(directory / "staging"), bucket_count=BUCKETS
        ),
        lambda task, buckets: [replay_bucket(task, bucket) for bucket in buckets],
        log_event=lambda event: None,
    )
    followed_us, loaded_us = (_cpu_us(run.run) / record_count for run in (follower, load))
    title = f"records of a log of {record_count} into tables, {BUCKETS} buckets one after another"
    yield row(f"{title}, CPU of a record", loaded_us, "us", followed_us, "batches in one process")


def _replayed(record_count: int) -> Row:
    """Measure the replay of the topics' records into change rows as Arrow, without files."""
    values = pa.array(itertools.islice(mixed_values(record_count), record_count), pa.binary())
    of_topics = np.isin(frames(values)[0], [kind.schema.api_key for kind in TOPIC_RECORDS])
    offsets = np.flatnonzero(of_topics)
    columns = RecordColumns(
        offsets=offsets,
        leader_epochs=np.ones_like(offsets),
        times_ms=TIME_MS + offsets,
        values=values.filter(pa.array(of_topics)),
    )
    records = BucketRecords(columns, {}, 0, (record_count - 1, 1, TIME_MS + record_count))
    settings = PartSettings(Progress(), Redactor(), _SHARED, lambda rows: None)
    nothing = split_state(STATE_TABLE.no_rows)
    by_columns, by_loader = (
        _cpu_us(partial(_replay, part, records)) / len(offsets)
        for part in (TopicsPart(settings, nothing), LoaderPart(settings, nothing))
    )
    title = f"{len(offsets)} records of topics into change rows by columns, CPU of a record"
    return row(title, by_columns, "us", by_loader, "a loader")


def _replay(part: Part, records: BucketRecords) -> None:
    part.append(records)
    part.complete()


def _cpu_us(run: Callable[[], object]) -> float:
    begun = time.process_time()
    run()
    return (time.process_time() - begun) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for found in measure(Path(directory), options.records):
            print_row(found, as_json=options.json, decimals=2)


if __name__ == "__main__":
    main()
