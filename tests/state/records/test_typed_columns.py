"""Typed columns have what ``serde`` decodes and ``redaction`` shows, row by row, in the compiled
core and in Python; what the core does not decode it gives back."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.both_implementations import pure_python
from tests.support.exhausted_memory import outcomes
from tests.support.metadata_values import (
    EVERY_VERSION,
    as_columns,
    golden_vectors,
    metadata_logs,
    mutated_values,
    payloads_of,
    structs,
    typed_fields,
    values_of,
    version_name,
)

from raftlog import compiled
from raftlog_state.errors import MetadataParseError
from raftlog_state.records import (
    NO_OP_VALUE,
    RECORD_TYPES,
    ConfigRecord,
    DecodedRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RecordSchema,
    Redactor,
    TopicRecord,
    UnknownTag,
    UserScramCredentialRecord,
    decode,
    encode,
    is_secret_config,
    peek,
)
from raftlog_state.records.declare import Array, Scalar
from raftlog_state.records.native_program import program, value_buffers
from raftlog_state.records.typed_columns import (
    TypedColumns,
    arrow_type,
    frames,
    no_ops,
    spread_columns,
    struct_type,
    typed_columns,
)

LOGS = metadata_logs()
SHOWN = Redactor(reveal=True)
REDACTORS = (Redactor(), Redactor(key=b"0123456789abcdef"), SHOWN)


def columns_of(
    values: Sequence[bytes | None], redactor: Redactor
) -> dict[type[MetadataRecord], TypedColumns]:
    """Return the columns, after comparing them with those that have a row for each value."""
    column = pa.array([b"x", *values, b"y"], pa.binary())[1:-1]  # a column inside another one
    found = typed_columns(column, RECORD_TYPES, redactor)
    for kind, spread in spread_columns(column, RECORD_TYPES, redactor).items():
        assert len(spread) == len(values)
        spread.validate(full=True)
        is_own = np.isin(np.arange(len(values)), found[kind].rows)
        assert np.array_equal(spread.is_valid().to_numpy(zero_copy_only=False), is_own)
        assert repr(spread.drop_null().to_pylist()) == repr(found[kind].fields.to_pylist())
    return found


def assert_decoded(values: Sequence[bytes | None], redactor: Redactor) -> int:
    """Compare the columns with the decoded values; return the number of their records."""
    expected: dict[type, list[tuple[int, int, Any]]] = {kind: [] for kind in RECORD_TYPES}
    for row, value in enumerate(values):
        decoded = None if value is None else redactor.redact(decode(value))
        if decoded is not None and isinstance(decoded.record, MetadataRecord):
            entry = row, decoded.version, as_columns(decoded.record)
            expected[type(decoded.record)].append(entry)
    assert_columns(columns_of(values, redactor), expected)
    if compiled.is_native:
        with pure_python():
            assert_columns(columns_of(values, redactor), expected)
    return sum(map(len, expected.values()))


def assert_columns(
    columns: dict[type[MetadataRecord], TypedColumns],
    expected: dict[type, list[tuple[int, int, Any]]],
) -> None:
    for kind, found in columns.items():
        found.fields.validate(full=True)
        assert found.fields.type == struct_type(kind)
        assert found.fields.null_count == 0
        structs = found.fields.to_pylist()
        rows = zip(found.rows.tolist(), found.versions.tolist(), structs, strict=True)
        assert repr(list(rows)) == repr(expected[kind])  # NaN is not equal to itself


def given_back(values: Sequence[bytes], kind: type[MetadataRecord], *, reveal: bool) -> list[int]:
    """Return which of the values, all of one type, the core gives back."""
    rows = np.arange(len(values), dtype=np.int32)
    found = by_core(pa.array(values, pa.binary()), rows, kind.schema, reveal=reveal)
    return rows.tolist() if found is None else found


def by_core(
    column: pa.BinaryArray, rows: npt.NDArray[np.int32], schema: RecordSchema, *, reveal: bool
) -> list[int] | None:
    wanted = rows.view(np.uint8).data, schema.api_key, schema.latest_version
    found = program().columns(*value_buffers(column), [wanted], reveal, False)
    assert found is not None
    if found[0] is None:
        return None
    return [int(row) for row in np.frombuffer(memoryview(found[0][2]), np.int32)]


@pytest.mark.parametrize(
    "redactor",
    [REDACTORS[0], *(pytest.param(other, marks=pytest.mark.slow) for other in REDACTORS[1:])],
)
def test_records_of_real_logs_and_golden_ones_have_what_is_decoded(redactor: Redactor) -> None:
    values = [value for log in LOGS[:8] for value in values_of(log)]
    values += [value for _, _, value, _ in golden_vectors()]
    assert assert_decoded([None, *values, None], redactor) > 0.95 * len(values)


@pytest.mark.slow
def test_records_of_real_logs_have_what_kafka_dump_log_prints() -> None:
    for log in LOGS:
        payloads = [json.loads(payload) for payload in payloads_of(log)]
        for kind, found in columns_of(values_of(log), SHOWN).items():
            structs = zip(found.rows.tolist(), found.fields.to_pylist(), strict=True)
            for row, columns in structs:
                payload = payloads[row]
                assert payload["type"] == kind.schema.json_type
                assert columns == typed_fields(kind, payload["data"])


@pytest.mark.slow
@settings(max_examples=40)
@given(data=st.data())
def test_random_records_have_what_is_decoded(data: st.DataObject) -> None:
    assert_random_decoded(data, *data.draw(st.sampled_from(EVERY_VERSION)))


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION, ids=version_name)
@settings(max_examples=8)
@given(data=st.data())
def test_random_records_of_every_version_have_what_is_decoded(
    kind: type[MetadataRecord], version: int, data: st.DataObject
) -> None:
    assert_random_decoded(data, kind, version)


def assert_random_decoded(data: st.DataObject, kind: type[MetadataRecord], version: int) -> None:
    records = data.draw(st.lists(structs(kind, version), min_size=1, max_size=4))
    values = [encode(DecodedRecord(version, record)) for record in records]
    for redactor in REDACTORS:
        assert assert_decoded(values, redactor) == len(values)


def test_types_derive_from_the_declaration_and_every_field_is_nullable() -> None:
    kind = pa.struct(
        [
            ("partition_id", pa.int32()),
            ("topic_id", pa.string()),
            ("isr", pa.list_(pa.field("element", pa.int32()))),
            ("leader", pa.int32()),
        ]
    )
    found = struct_type(PartitionChangeRecord)
    assert [found.field(n) for n in range(4)] == [kind.field(n) for n in range(4)]
    assert {arrow_type(kind) for kind in Scalar} >= {pa.bool_(), pa.float64(), pa.binary()}
    for record in RECORD_TYPES:
        assert all(field.nullable for field in struct_type(record))


def test_a_column_of_all_rows_is_null_where_another_type_is() -> None:
    topic = encode(TopicRecord(name="orders"))
    values = [None, topic, NO_OP_VALUE, topic, encode(ConfigRecord(name="a"))]
    kinds = TopicRecord, PartitionChangeRecord
    found = spread_columns(pa.array(values, pa.binary()), kinds, SHOWN)
    names = [row and row["name"] for row in found[TopicRecord].to_pylist()]
    assert names == [None, "orders", None, "orders", None]
    assert found[PartitionChangeRecord].null_count == 5
    alone = spread_columns(pa.array([topic], pa.binary()), kinds, SHOWN)
    assert alone[TopicRecord].null_count == 0


def test_frames_are_those_that_are_parsed_one_by_one() -> None:
    values = [value for _, _, value, _ in golden_vectors()]
    values += [b"\x01\x82\x00\x00\x02a", b"\x01\x02\x80\x00\x02a", b"\x01\x7f\x7f"]
    column = pa.array([b"x", None, *values, None, b"y"], pa.binary())[1:-1]
    for is_python in (False, True):
        with pure_python() if is_python else nullcontext():
            api_keys, versions = frames(column)
        found = list(zip(api_keys.tolist(), versions.tolist(), strict=True))
        assert found == [(-1, -1), *map(peek, values), (-1, -1)]


def test_only_the_types_asked_for_are_decoded() -> None:
    damaged = encode(TopicRecord(name="orders"))[:-3]
    column = pa.array([damaged, NO_OP_VALUE], pa.binary())
    others = [kind for kind in RECORD_TYPES if kind is not TopicRecord]
    assert TopicRecord not in typed_columns(column, others, SHOWN)
    with pytest.raises(MetadataParseError, match="TopicRecord"):
        typed_columns(column, [TopicRecord], SHOWN)
    with pytest.raises(MetadataParseError, match="frame"):
        typed_columns(pa.array([b"\x02"], pa.binary()), [], SHOWN)


def test_records_of_unknown_type_or_version_are_in_no_column() -> None:
    values = [b"\x01\x7f\x00\x00", b"\x01\x02\x07\x00", b"\x01\x82\x00\x00\x02a" + bytes(17)]
    found = columns_of(values, SHOWN)
    rows = {kind: columns.rows.tolist() for kind, columns in found.items() if len(columns.rows)}
    assert rows == {TopicRecord: [2]}  # its API key is padded with zero bits


def test_no_secret_is_in_the_columns_unless_it_is_shown() -> None:
    secret = "s3cret-of-a-test"
    raw = secret.encode()
    values = [
        encode(ConfigRecord(resource_type=4, name="ssl.key.password", value=secret)),
        encode(ConfigRecord(resource_type=2, name="of.a.plugin", value=secret)),
        encode(UserScramCredentialRecord(name="u", salt=raw, stored_key=raw, server_key=raw)),
        encode(TopicRecord(name="orders", unknown_tags=(UnknownTag(9, raw),))),
        b"\x01\x7f\x00" + raw,
    ]
    for redactor in REDACTORS:
        found = columns_of(values, redactor)
        text = repr([columns.fields.to_pylist() for columns in found.values()])
        assert (secret in text) == redactor.reveal
        assert assert_decoded(values, redactor) == 4


needs_core = pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")


@needs_core
def test_the_core_decodes_nearly_all_records_of_real_logs() -> None:
    values = [value for log in LOGS for value in values_of(log)]
    for kind in RECORD_TYPES:
        own = [value for value in values if value[1] == kind.schema.api_key]
        if kind is UserScramCredentialRecord:
            assert given_back(own, kind, reveal=True) == list(range(len(own)))
        else:
            assert len(given_back(own, kind, reveal=True)) <= 0.05 * len(own)


def assert_alike(candidates: Sequence[bytes]) -> int:
    """Compare the values that are valid, and see that the core gives back all others."""
    valid: list[bytes] = []
    damaged: dict[type[MetadataRecord], list[bytes]] = {kind: [] for kind in RECORD_TYPES}
    for value in candidates:
        try:
            decode(value)
        except MetadataParseError:
            for kind, values in damaged.items():
                if value[1:2] == bytes((kind.schema.api_key,)):
                    values.append(value)
        else:
            valid.append(value)
    for redactor in (Redactor(), SHOWN):
        assert_decoded(valid, redactor)
        if compiled.is_native:
            for kind, values in damaged.items():
                found = given_back(values, kind, reveal=redactor.reveal)
                assert found == list(range(len(values)))
    return min(len(valid), sum(map(len, damaged.values())))


@pytest.mark.slow
def test_mutated_values_are_decoded_alike_or_given_back() -> None:
    assert assert_alike(mutated_values(range(4_000))) > 400


def tagged_parts(kind: type[MetadataRecord], version: int) -> tuple[bytes, list[bytes]]:
    """Return a record's bytes before the tagged fields, and each of these with tag and length."""
    samples = {Scalar.STRING: "orders", Scalar.UUID: "I9iQnKeLSA2lyZwVZic7Xg"}
    head, fields = encode(DecodedRecord(version, kind()))[:-1], []
    for field in kind.fields_schema:
        if field.tag is not None and field.since <= version:
            is_array = isinstance(field.kind, Array)
            scalar = field.kind.element if isinstance(field.kind, Array) else field.kind
            assert isinstance(scalar, Scalar)
            sample = samples.get(scalar, 3)
            given: dict[str, Any] = {field.attribute: (sample, sample) if is_array else sample}
            record = kind(**given)
            fields.append(encode(DecodedRecord(version, record))[len(head) + 1 :])
    return head, fields


def values_of_tags(seeds: range) -> list[bytes]:
    """Return records with tagged fields in any order, repeated, absent, unknown, or miscounted."""
    cases = [tagged_parts(kind, version) for kind, version in EVERY_VERSION]
    cases = [(head, fields) for head, fields in cases if fields]
    unknown = [b"\x63\x01x", b"\x7f\x00", b"\x80\x01\x00"]
    values = []
    for seed in seeds:
        rng = random.Random(seed)
        head, fields = rng.choice(cases)
        chosen = [field for field in fields if rng.random() < 0.6]
        change = rng.randrange(7)
        if change == 1:
            rng.shuffle(chosen)
        elif change == 2:
            chosen.insert(rng.randrange(len(chosen) + 1), rng.choice(fields))
        elif change == 3:
            chosen.insert(rng.choice((0, len(chosen))), rng.choice(unknown))
        elif change == 4:
            lengthened = rng.choice(fields)
            chosen.append(bytes((lengthened[0], lengthened[1] + 1)) + lengthened[2:] + b"\0")
        if change != 1:
            chosen.sort(key=lambda field: field[0])
        count = len(chosen) + (change == 5) - (change == 6 and len(chosen) > 0)
        values.append(head + bytes((count,)) + b"".join(chosen))
    return values


def test_tagged_fields_in_any_order_are_decoded_alike_or_given_back() -> None:
    assert assert_alike(values_of_tags(range(600))) > 150


@needs_core
def test_the_core_decodes_tagged_fields_that_are_declared_in_another_order() -> None:
    directory = "I9iQnKeLSA2lyZwVZic7Xg"
    record = PartitionChangeRecord(directories=(directory,), last_known_elr=(1,))
    assert given_back([encode(record)], PartitionChangeRecord, reveal=True) == []


def test_lists_that_are_null_in_all_or_many_rows_are_decoded_alike() -> None:
    change, value = PartitionChangeRecord, (1, 2)
    nulls = [change(), change(), change()]
    for others in (
        [],
        [change(isr=value)],
        [change(isr=())],
        [change(isr=None), change(isr=value)],
    ):
        for records in (nulls + others + nulls, others + nulls, others):
            values = [encode(record) for record in records]
            assert assert_decoded([None, *values, NO_OP_VALUE], SHOWN) == len(values) + 1


@needs_core
def test_a_column_that_is_null_in_all_rows_has_no_memory() -> None:
    rows = np.arange(1000, dtype=np.int32)
    values = pa.array([encode(PartitionChangeRecord(isr=(1,)))] * len(rows), pa.binary())
    schema = PartitionChangeRecord.schema
    wanted = rows.view(np.uint8).data, schema.api_key, schema.latest_version
    found = program().columns(*value_buffers(values), [wanted], True, False)
    assert found is not None
    assert found[0] is not None
    names = ["id", "topic", "isr", "of isr", "leader", "replicas", "removing", "adding"]
    names += ["state", "directories", "eligible", "elr"]
    absent = [name for name, part in zip(names, found[0][0], strict=True) if part is None]
    assert absent == ["replicas", "removing", "adding", "directories", "eligible", "elr"]


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(2 * 10**6, 3 * 10**6, 10**5))
def test_a_million_mutated_values_are_decoded_alike_or_given_back(first: int) -> None:
    for start in range(first, first + 10**5, 10**4):
        assert_alike(mutated_values(range(start, start + 10**4)))


@needs_core
def test_the_core_gives_back_secrets_and_unknown_tags() -> None:
    configs = [(2, "retention.ms", "1"), (4, "ssl.key.password", "p"), (2, "of.a.plugin", "x")]
    configs += [(8, "root", "x"), (2, "RETENTION.MS", "1"), (4, "log.retention.ms", "1")]
    values = [
        encode(ConfigRecord(resource_type=kind, name=name, value=value))
        for kind, name, value in configs
    ]
    secret = [n for n, (kind, name, _) in enumerate(configs) if is_secret_config(kind, name)]
    assert given_back(values, ConfigRecord, reveal=False) == secret != []
    assert given_back(values, ConfigRecord, reveal=True) == []
    tagged = encode(TopicRecord(name="a", unknown_tags=(UnknownTag(9, b"x"),)))
    assert given_back([tagged, encode(TopicRecord(name="a"))], TopicRecord, reveal=True) == [0]


@needs_core
def test_the_core_refuses_rows_that_are_not_in_the_column() -> None:
    values = pa.array([encode(TopicRecord(name="a"))], pa.binary())
    offsets, data = value_buffers(values)

    def columns(row: int, api_key: int, version: int, data: memoryview) -> object:
        which = np.array([row], np.int32).view(np.uint8).data
        spread = program().columns(offsets, data, [(which, api_key, version)], True, True)
        found = program().columns(offsets, data, [(which, api_key, version)], True, False)
        assert found is not None
        assert spread is not None
        assert (spread[0] is None) == (found[0] is None)
        return found[0]

    assert columns(0, 2, 0, data) is not None
    assert [columns(row, 2, 0, data) for row in (1, -1, 2**31 - 1)] == [None] * 3
    assert columns(0, 2, 0, data[:-1]) is None
    assert columns(0, 2, 9, data) is None
    of_another_type = columns(0, 9, 0, data)
    assert isinstance(of_another_type, tuple)
    assert len(of_another_type[2]) == 4


CALLS = """
from array import array
from raftlog import compiled
from raftlog_state.records import TopicRecord, encode
from raftlog_state.records.native_program import program

def prepared(data):
    byte_count = len(encode(TopicRecord(name="orders")))
    count = len(data) // byte_count
    offsets = array("i", range(0, len(data) + 1, byte_count))
    rows, given = array("i", range(count)), bytes(count)
    return program(), *(memoryview(one).cast("B") for one in (offsets, data, rows, given))

def call(program, offsets, data, rows, given):
    text = program.json(offsets, data, given, False, None, True, None)
    columns = program.columns(offsets, data, [(rows, 2, 0)], False, True)
    keys = compiled.core.frames(offsets, data)
    if text is None or columns is None or columns[0] is None or keys is None:
        return False
    return not len(text[2]) and not len(columns[0][2])
"""


@pytest.mark.nightly
@needs_core
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
def test_an_exhausted_memory_is_given_back_and_ends_no_process(tmp_path: Path) -> None:
    """``make test`` has such a process in ``test_distinct_values.py``."""
    values = tmp_path / "values"
    values.write_bytes(60_000 * encode(TopicRecord(name="orders")))
    (counted,) = outcomes(CALLS, [values])
    assert set(counted) <= {"done", "given back", "MemoryError"}
    assert counted["done"] > 0
    assert counted.get("given back", 0) > 2


def test_no_ops_are_the_values_of_exactly_their_bytes() -> None:
    later_version, unknown = b"\x01\x14\x01\x00", b"\x01\x63\x00\x00"
    for values in ([], [unknown], [None, NO_OP_VALUE, later_version, unknown, NO_OP_VALUE]):
        column = pa.array(values, pa.binary())
        found = no_ops(column, frames(column)[0]).tolist()
        assert found == [value == NO_OP_VALUE for value in values]
