"""Producer state compared with Kafka's classes: equal answers, and readable snapshots."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.batch_encoding import NewRecordBatch, encode_batch
from tests.support.batch_feeder import BatchFeeder
from tests.support.kafka import kafka_jars, run_java

from raftlog.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from raftlog.log.format.directory import (
    ProducerState,
    checkpoint_name,
    offset_name,
    parse_producer_snapshot,
)
from raftlog.log.reading.transactions import CommitName, Marker
from raftlog.log.writing.producer_state import ProducerEntry, ProducerStateManager
from raftlog.records.batch import NewRecord
from raftlog.records.builder import incremented
from raftlog.records.control import ControlRecord, SnapshotFooter, SnapshotHeader, encode_control
from raftlog.types import SnapshotId

pytestmark = pytest.mark.kafka
STEPS = 4000
WRAPS = 2**31 - 6
DUMP = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture(scope="module")
def jars() -> Path:
    return kafka_jars()


# --- the same appends ---


def entry_of(producer_state: ProducerStateManager, producer: int) -> ProducerEntry:
    known = {entry.producer_id: entry for entry in producer_state.producers}
    return known.get(producer) or ProducerEntry(producer_id=producer, producer_epoch=0)


def random_append(
    rng: random.Random, producer_state: ProducerStateManager, producer: int
) -> tuple[int, int, int]:
    """Return epoch, sequence and count: mostly the next, else a repeat, a gap or another epoch."""
    entry = entry_of(producer_state, producer)
    count = rng.randint(1, 3)
    if not entry.batches and entry.producer_epoch == 0:
        return 0, WRAPS if producer % 2 else 0, count
    match rng.choice(["next", "next", "next", "again", "gap", "older", "newer"]):
        case "next":
            return entry.producer_epoch, incremented(entry.last_sequence, 1), count
        case "again" if entry.batches:
            batch = rng.choice(entry.batches)
            shift = rng.choice([0, 0, 0, 1])
            return (
                entry.producer_epoch,
                incremented(batch.base_sequence, shift),
                batch.offset_delta + 1,
            )
        case "older" if entry.producer_epoch > 0:
            return entry.producer_epoch - 1, 0, count
        case "newer":
            return entry.producer_epoch + rng.randint(1, 2), rng.choice([0, 0, 5]), count
        case _:
            return (
                entry.producer_epoch,
                incremented(entry.last_sequence, rng.choice([2, 9, 2**30])),
                count,
            )


def feed_data(
    feeder: BatchFeeder, producer: int, step: tuple[int, int, int], *, open_: bool
) -> str:
    epoch, sequence, count = step
    producer_state, base = feeder.producer_state, feeder.end
    try:
        duplicate = producer_state.check_producer(producer, epoch, sequence, count)
    except OutOfOrderSequenceError:
        return "OutOfOrderSequenceException"
    except InvalidProducerEpochError:
        return "InvalidProducerEpochException"
    if duplicate is not None:
        return f"duplicate {duplicate.base_offset} {duplicate.last_offset}"
    feeder.data(
        count,
        producer=producer,
        epoch=epoch,
        sequence=sequence,
        in_transaction=open_,
        time_ms=1000 + base,
    )
    return f"appended {base}"


def conversation(seed: int) -> Iterator[tuple[str, str, ProducerStateManager]]:
    """Return steps for Kafka, and raftlog's answers. Producers from 10 on use transactions."""
    rng = random.Random(seed)
    feeder = BatchFeeder()
    coordinator_epoch = 0
    for _ in range(STEPS):
        producer = rng.choice([1, 2, 3, 10, 11, 12])
        is_open = producer >= 10
        if is_open and rng.random() < 0.3:
            epoch = entry_of(feeder.producer_state, producer).producer_epoch + rng.choice([0, 0, 1])
            coordinator_epoch += rng.choice([0, 0, 0, 1])
            commit = rng.random() < 0.5
            base = feeder.end
            aborted = feeder.end_transaction(
                producer,
                commit=commit,
                epoch=epoch,
                coordinator_epoch=coordinator_epoch,
                time_ms=1000 + base,
            )
            words = [
                str(number)
                for one in aborted
                for number in (one.first_offset, one.last_offset, one.last_stable_offset)
            ]
            answer = " ".join(["ended", *words])
            yield (
                f"end {producer} {epoch} {commit:d} {coordinator_epoch}",
                answer,
                feeder.producer_state,
            )
        else:
            step = random_append(rng, feeder.producer_state, producer)
            line = f"data {producer} {step[0]} {step[1]} {step[2]} {is_open:d}"
            yield line, feed_data(feeder, producer, step, open_=is_open), feeder.producer_state


def by_id(states: tuple[ProducerState, ...]) -> list[ProducerState]:
    return sorted(states, key=lambda state: state.producer_id)


@pytest.mark.parametrize("seed", [1, 2])
def test_kafka_answers_every_append_alike(seed: int, jars: Path, tmp_path: Path) -> None:
    steps = list(conversation(seed))
    questions = tmp_path / "steps"
    questions.write_text("".join(f"{line}\n" for line, _, _ in steps))
    program = Path(__file__).parent / "KafkaProducers.java"
    *theirs, snapshot = run_java(jars, str(program), str(questions), str(tmp_path)).splitlines()
    ours = [answer for _, answer, _ in steps]
    assert theirs == ours
    producer_state = steps[-1][2]
    states = parse_producer_snapshot(bytes.fromhex(snapshot.split()[1]), "/theirs")
    assert by_id(states) == by_id(
        parse_producer_snapshot(producer_state.encode_snapshot(), "/ours")
    )
    kinds = Counter(answer.split()[0] for answer in ours)
    assert min(kinds.values()) > 50, kinds  # every kind of answer occurred
    assert len(kinds) == 5
    assert any(len(answer.split()) == 4 for answer in ours if answer.startswith("ended"))


# --- the same bytes ---


def sample_state() -> ProducerStateManager:
    feeder = BatchFeeder()
    for sequence in range(0, 14, 2):
        feeder.data(2, producer=7, sequence=sequence)
    feeder.data(3, producer=2**40, epoch=3, in_transaction=True)
    feeder.end_transaction(9, commit=True, epoch=1, coordinator_epoch=4)
    feeder.data(5, commit=CommitName("app", "q", 12))
    feeder.data(3, markers={1: Marker.BEGIN}, name="open")
    return feeder.producer_state


def test_kafka_dump_log_reads_a_producer_snapshot_with_raftlogs_trailer(
    jars: Path, tmp_path: Path
) -> None:
    producer_state = sample_state()
    path = tmp_path / offset_name(producer_state.end_offset, ".snapshot")
    path.write_bytes(producer_state.encode_snapshot())
    dump = run_java(jars, DUMP, "--files", str(path)).splitlines()[1:]
    assert [line.split(" lastTimestamp")[0] for line in dump] == [
        "producerId: 7 producerEpoch: 0 coordinatorEpoch: -1 "
        "currentTxnFirstOffset: OptionalLong.empty",
        "producerId: 1099511627776 producerEpoch: 3 coordinatorEpoch: -1 "
        "currentTxnFirstOffset: OptionalLong[14]",
        "producerId: 9 producerEpoch: 1 coordinatorEpoch: 4 "
        "currentTxnFirstOffset: OptionalLong.empty",
    ]
    assert "firstSequence: 12 lastSequence: 13 lastOffset: 13 offsetDelta: 1" in dump[0]


def test_kafka_dump_log_reads_a_snapshot_with_producer_state_in_its_header(
    jars: Path, tmp_path: Path
) -> None:
    producer_state = sample_state()
    path = tmp_path / checkpoint_name(SnapshotId(epoch=1, end_offset=producer_state.end_offset))
    header = SnapshotHeader(
        last_contained_log_timestamp_ms=5, tagged_fields=(producer_state.to_header_field(),)
    )
    path.write_bytes(control_batch(header, 0) + control_batch(SnapshotFooter(), 1))
    dump = run_java(jars, DUMP, "--cluster-metadata-decoder", "--files", str(path)).splitlines()
    assert [line.split("headerKeys: [] ")[1] for line in dump if line.startswith("|")] == [
        'SnapshotHeader {"version":0,"lastContainedLogTimestamp":5}',
        'SnapshotFooter {"version":0}',
    ]
    assert sum("isvalid: true" in line for line in dump) == 2


def control_batch(record: ControlRecord, base_offset: int) -> bytes:
    new = NewRecordBatch(
        records=(NewRecord(*encode_control(record)),), base_timestamp_ms=5, is_control=True
    )
    return encode_batch(new, base_offset=base_offset, leader_epoch=1)
