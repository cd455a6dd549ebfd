"""Records of a key that are merged to one have the last value of each field, and their numbers.

``RAFTLOG_MERGED_SEEDS=500`` sets the number of random histories.
"""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.exhausted_memory import outcomes
from tests.support.metadata_values import mutated_values

from raftlog import compiled
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import (
    DecodedRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    UnknownTag,
    decode,
    encode,
    peek,
)
from raftlog_state.records.merged_records import MergedRecords, merged_records
from raftlog_state.replay.topic_records import MERGED_FIELDS

SEEDS = int(os.environ.get("RAFTLOG_MERGED_SEEDS", "20"))
IDS = [f"{number:021d}A" for number in range(3)]
DIRECTORY = f"{1:021d}Q"
CHANGE = PartitionChangeRecord.schema
needs_core = pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")


def merged(values: Sequence[bytes | None]) -> MergedRecords | None:
    column = pa.array([b"x", *values, b"y"], pa.binary())[1:-1]  # a column inside another one
    rows = [row for row, value in enumerate(values) if value is not None]
    return merged_records(column, np.array(rows, np.int32), PartitionChangeRecord, MERGED_FIELDS)


def change(chance: random.Random) -> MetadataRecord:
    """Return a new partition, or a change of one of a few; one in ten is not merged."""

    def some() -> tuple[int, ...] | None:
        return chance.choice([None, None, (), (1,), (3, 1, 2), (-1,) * 70])

    topic_id, partition_id = chance.choice(IDS), chance.randrange(2)
    if chance.random() < 0.05:
        return PartitionRecord(topic_id=topic_id, partition_id=partition_id)
    is_other = chance.random() < 0.1
    return PartitionChangeRecord(
        topic_id=topic_id,
        partition_id=partition_id,
        isr=some(),
        leader=chance.choice([-2, -2, -1, 0, 2**31 - 1, -(2**31)]),
        replicas=some() if is_other else None,
        removing_replicas=some(),
        adding_replicas=some(),
        leader_recovery_state=chance.choice([-1, -1, 0, 1, 7 if is_other else 1]),
        directories=chance.choice([(), (DIRECTORY,)]) if is_other else None,
        eligible_leader_replicas=some(),
        last_known_elr=some(),
        unknown_tags=(UnknownTag(9, b"x"),) if is_other else (),
    )


def with_version(record: MetadataRecord, chance: random.Random) -> bytes:
    """Encode a record, in an older version if that has all of its fields."""
    if isinstance(record, PartitionChangeRecord) and not record.unknown_tags:
        is_old = record.eligible_leader_replicas is None and record.last_known_elr is None
        if is_old and chance.random() < 0.5:
            return encode(DecodedRecord(0 if record.directories is None else 1, record))
    return encode(record)


def effects(values: Iterable[bytes], numbers: Iterable[tuple[int, int, int]]) -> dict[Any, Any]:
    """Return what the changes of each partition set, and their numbers, between its creations.

    ``numbers`` are the first row, the number of records, and of those that elect a leader.
    """
    found: dict[Any, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for value, (row, count, election_count) in zip(values, numbers, strict=True):
        record = decode(value).record
        assert isinstance(record, (PartitionChangeRecord, PartitionRecord))
        of_partition = found[record.topic_id, record.partition_id]
        if isinstance(record, PartitionRecord):
            of_partition.append((row, {}))
            continue
        if not of_partition:
            of_partition.append((-1, {}))
        total = of_partition[-1][1]
        total["changes"] = total.get("changes", 0) + count
        elections = election_count if count > 1 else int(record.leader != -2)
        total["elections"] = total.get("elections", 0) + elections
        for field in PartitionChangeRecord.fields_schema:
            own = getattr(record, field.attribute)
            if field.tag is not None and own != field.default:
                total[field.attribute] = own
    return found


def assert_same_effects(values: Sequence[bytes | None]) -> int:
    """Compare the effects after a merge with those of all records; return what the merge saved."""
    found = merged(values)
    assert found is not None
    given = [(row, value) for row, value in enumerate(values) if value is not None]
    expected = effects([value for _, value in given], [(row, 1, 0) for row, _ in given])
    columns = (found.first_rows, found.counts, found.set_counts)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    created = [(row, value) for row, value in given if peek(value)[0] != CHANGE.api_key]
    in_order = [
        *zip(rows, found.values.to_pylist(), strict=True),
        *(((row, 1, 0), value) for row, value in created),
    ]
    in_order.sort(key=lambda entry: entry[0][0])
    assert effects([value for _, value in in_order], [row for row, _ in in_order]) == expected
    assert np.all(found.first_rows <= found.last_rows)
    assert np.array_equal(found.first_rows == found.last_rows, found.counts == 1)
    assert int(found.counts.sum()) == len(given) - len(created)
    return len(given) - len(created) - len(found.values)


@needs_core
def test_changes_of_a_partition_are_one_with_the_last_value_of_each_field() -> None:
    first, second = (
        partial(PartitionChangeRecord, topic_id=IDS[0], partition_id=number) for number in (3, 4)
    )
    records = [
        first(isr=(1, 2)),
        first(leader=2),
        second(isr=(7,)),
        first(isr=(1,)),
        PartitionRecord(topic_id=IDS[0], partition_id=3),
        first(isr=()),
        first(replicas=(1, 2)),
        first(leader=-1),
    ]
    found = merged([*map(encode, records)])
    assert found is not None
    assert found.first_rows.tolist() == [0, 2, 5, 6, 7]
    assert found.last_rows.tolist() == [3, 2, 5, 6, 7]
    assert found.counts.tolist() == [3, 1, 1, 1, 1]
    assert found.set_counts.tolist()[0] == 1, "one of the three elects a leader"
    assert decode(found.values[0].as_py()).record == first(isr=(1,), leader=2)


@needs_core
@pytest.mark.parametrize("seed", range(SEEDS))
def test_merged_changes_have_the_effects_of_all(seed: int) -> None:
    chance = random.Random(seed)
    values: list[bytes | None] = [with_version(change(chance), chance) for _ in range(300)]
    for row in range(0, 300, 50):
        values[row] = None  # a control record
    assert assert_same_effects(values) > 100


def mutated(seeds: range) -> list[bytes]:
    """Return mutated changes, and those of golden vectors, that are valid."""
    chance = random.Random(seeds.start)
    values = [value for value in mutated_values(seeds) if value[1:2] == bytes((CHANGE.api_key,))]
    for _ in seeds:
        changed = bytearray(encode(change(chance)))
        for _ in range(chance.randrange(3)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 2, 5, 0x7F, 0x80, 0xFF))
        values.append(bytes(changed))
    valid = []
    for value in values:
        try:
            record = decode(value).record
        except MetadataParseError:
            continue
        if isinstance(record, (PartitionChangeRecord, PartitionRecord)):
            valid.append(value)
    return valid


@needs_core
def test_mutated_changes_are_merged_with_the_effects_of_all_or_given_back() -> None:
    merged_count = 0
    for start in range(0, 4_000, 40):
        values = mutated(range(start, start + 40))
        if merged(values) is not None:
            merged_count += assert_same_effects(values) > 0
    assert merged_count > 50


@needs_core
def test_a_list_that_is_null_is_as_an_absent_one() -> None:
    """Kafka writes no field that is at its default."""
    change_of = partial(PartitionChangeRecord, topic_id=IDS[0], partition_id=1)
    plain, empty = encode(change_of(isr=(1, 2))), encode(change_of(isr=()))
    null = empty[:-1] + b"\0"
    assert decode(null).record == change_of()
    assert assert_same_effects([plain, null, plain]) == 0
    assert assert_same_effects([plain, empty, plain]) == 2


@needs_core
def test_what_the_core_cannot_read_is_given_back() -> None:
    plain = encode(PartitionChangeRecord(topic_id=IDS[0], partition_id=1, isr=(1,)))
    padded_frame = plain[:1] + b"\x85\x00" + plain[2:]
    for other in (b"", b"\x01", plain[:10], padded_frame, plain[:2] + b"\x09" + plain[3:]):
        assert merged([plain, other]) is None
    for damaged in (plain[:-1], plain + b"x"):  # left to Python, which names the reason
        found = merged([plain, damaged, plain])
        assert found is not None
        assert found.values.to_pylist() == [plain, damaged, plain]


CALLS = """
from array import array
from raftlog_state.records import PartitionChangeRecord, encode
from raftlog_state.records.native_program import program

def prepared(data):
    byte_count = len(encode(PartitionChangeRecord(isr=(1, 2))))
    count = len(data) // byte_count
    offsets = array("i", range(0, len(data) + 1, byte_count))
    rows = array("i", range(count))
    return program(), *(memoryview(one).cast("B") for one in (offsets, data, rows))

def call(program, offsets, data, rows):
    fields = [(3, -2**31, 2**31 - 1), (2, 0, 0)]
    return program.merged(offsets, data, rows, 5, 20, fields) is not None
"""


@pytest.mark.nightly
@needs_core
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
def test_an_exhausted_memory_is_given_back_and_ends_no_process(tmp_path: Path) -> None:
    """``make test`` has such a process in ``test_distinct_values.py``."""
    change_of = partial(PartitionChangeRecord, topic_id=IDS[0], isr=(1, 2))
    values = tmp_path / "values"
    values.write_bytes(b"".join(encode(change_of(partition_id=one)) for one in range(30_000)))
    (counted,) = outcomes(CALLS, [values])
    assert set(counted) <= {"done", "given back", "MemoryError"}
    assert counted["done"] > 0
    assert counted.get("given back", 0) > 2
