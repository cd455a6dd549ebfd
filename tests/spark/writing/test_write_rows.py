"""Rows become records: values of every kind, other fields, and invalid rows."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ddl import schema_of

from pyspark_raftlog.errors import InvalidRowError
from pyspark_raftlog.sink_rows import (
    RowConverter,
    input_columns,
    message_schema,
    min_byte_count,
    records_of,
)
from raftlog import ValueKind
from raftlog.records.encoding import RecordToAppend, encode_records
from raftlog.records.record import Header, NewRecord
from raftlog_state.image.record_versions import RecordVersions
from raftlog_state.records import (
    BeginTransactionRecord,
    ConfigRecord,
    DecodedRecord,
    RegisterBrokerRecord,
    TopicRecord,
    decode,
    encode,
    to_json,
)

BYTES, MSGPACK, KRAFT = ValueKind.BYTES, ValueKind.MSGPACK, ValueKind.KRAFT
TOPIC = TopicRecord(name="ids", topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
MASKED = ConfigRecord(resource_type=2, resource_name="ids", name="x", value="[redacted]")
TYPED = "recordType string, recordVersion int, record string"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def convert(ddl: str, values: ValueKind, *batches: pa.RecordBatch, level: int = 7) -> pa.Table:
    columns = input_columns(schema_of(ddl), values)
    versions = None if "recordVersion" in columns.names else RecordVersions(level, False)
    converter = RowConverter(columns, values, 3, versions)
    return pa.Table.from_batches(map(converter.convert, batches), message_schema(columns))


def records(ddl: str, values: ValueKind, **columns: Any) -> list[RecordToAppend]:
    return records_of(convert(ddl, values, pa.RecordBatch.from_pydict(columns)))


def refusal(ddl: str, values: ValueKind, **columns: Any) -> InvalidRowError:
    with pytest.raises(InvalidRowError) as caught:
        records(ddl, values, **columns)
    assert caught.value.partition == 3
    return caught.value


def test_binary_values_are_unchanged() -> None:
    assert records("value binary", BYTES, value=[b"a", b""]) == [b"a", b""]
    assert records("value string", BYTES, value=["ä", ""]) == ["ä".encode(), b""]
    large = pa.array(["x"], pa.large_string())
    assert records("value string", BYTES, value=large) == [b"x"]


def test_a_null_value_is_a_tombstone() -> None:
    written = records("key string, value string", BYTES, key=["k", None], value=[None, "v"])
    assert written == [NewRecord(b"k", None), b"v"]
    assert records("value binary", BYTES, value=pa.array([None], pa.binary())) == [
        NewRecord(None, None)
    ]


def test_keys_are_written_with_the_values() -> None:
    written = records("key binary, value binary", BYTES, key=[b"k", b""], value=[b"v", None])
    assert written == [NewRecord(b"k", b"v"), NewRecord(b"", None)]


def test_key_timestamp_and_headers_are_written_with_the_value() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([[("h", b"1"), ("h", None)], None, []], HEADERS),
            pa.array([b"a", b"b", b"c"]),
            pa.array([1_700_000_000_000_999, None, 0], pa.timestamp("us", "Europe/Berlin")),
        ],
        ["headers", "value", "timestamp"],
    )
    ddl = "headers array<struct<key:string,value:binary>>, value binary, timestamp timestamp"
    assert records_of(convert(ddl, BYTES, batch, batch.slice(1, 1))) == [
        NewRecord(None, b"a", 1_700_000_000_000, (Header("h", b"1"), Header("h", None))),
        b"b",
        NewRecord(None, b"c", 0),
        b"b",
    ]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(min_size=1), st.integers(0, 2**31 - 1), JSON), min_size=1))
def test_json_becomes_messagepack(rows: list[tuple[str, int, Any]]) -> None:
    kinds, versions, fields = zip(*rows, strict=True)
    written = records(
        TYPED,
        MSGPACK,
        recordType=list(kinds),
        recordVersion=list(versions),
        record=[json.dumps(one) for one in fields],
    )
    read = [msgpack.unpackb(value, strict_map_key=False) for value in written]
    assert read == [list(row) for row in rows]


def test_a_struct_becomes_messagepack() -> None:
    kind = pa.struct(
        [
            ("name", pa.string()),
            ("more", pa.map_(pa.string(), pa.list_(pa.map_(pa.string(), pa.int8())))),
            ("raw", pa.binary()),
            ("inner", pa.struct([("n", pa.float64()), ("m", pa.map_(pa.string(), pa.bool_()))])),
        ]
    )
    row = {
        "name": None,
        "more": [("k", [[("x", 1)], None]), ("l", None)],
        "raw": b"\0\1",
        "inner": {"n": 0.5, "m": [("t", True)]},
    }
    written = records(
        "recordType int, recordVersion int, record struct<name:string,"
        "more:map<string,array<map<string,tinyint>>>,raw:binary,"
        "inner:struct<n:double,m:map<string,boolean>>>",
        MSGPACK,
        recordType=[7],
        recordVersion=[0],
        record=pa.array([row], kind),
    )
    fields = {
        "name": None,
        "more": {"k": [{"x": 1}, None], "l": None},
        "raw": b"\0\1",
        "inner": {"n": 0.5, "m": {"t": True}},
    }
    assert msgpack.unpackb(written[0]) == [7, 0, fields]


def test_kafkas_json_becomes_a_metadata_record() -> None:
    broker = RegisterBrokerRecord(broker_id=1, incarnation_id=TOPIC.topic_id, broker_epoch=9)
    given = [TOPIC, broker, ConfigRecord(resource_type=2, resource_name="ids", name="a", value="b")]
    texts = [to_json(record) for record in given]
    written = records(
        TYPED,
        KRAFT,
        recordType=[text["type"] for text in texts],
        recordVersion=pa.array([text["version"] for text in texts], pa.int32()),
        record=[json.dumps(text["data"]) for text in texts],
    )
    assert written == [encode(record) for record in given]
    assert records("value binary", KRAFT, value=written) == written


@pytest.mark.parametrize(("level", "version"), [(7, 1), (8, 2), (16, 2), (17, 3), (30, 4)])
def test_a_metadata_record_without_a_version_has_that_of_the_metadata_version(
    level: int, version: int
) -> None:
    broker = RegisterBrokerRecord(broker_id=1, incarnation_id=TOPIC.topic_id)
    data = to_json(broker, version)["data"]
    row = {"recordType": ["REGISTER_BROKER_RECORD"], "record": [json.dumps(data)]}
    ddl = "recordType string, record string"
    converted = convert(ddl, KRAFT, pa.RecordBatch.from_pydict(row), level=level)
    assert records_of(converted) == [encode(broker, version)]


def test_nulls_of_a_struct_are_omitted_from_its_metadata_record() -> None:
    """A frame has one struct for all rows: fields that a row omits are null in it."""
    kind = pa.struct(
        [
            ("resourceType", pa.int8()),
            ("resourceName", pa.string()),
            ("name", pa.string()),
            ("value", pa.string()),
            ("notOfThisType", pa.string()),
        ]
    )
    row = {"resourceType": 2, "resourceName": "ids", "name": "retention.ms"}
    (written,) = records(
        "recordType string, record struct<resourceType:tinyint,resourceName:string,name:string,"
        "value:string,notOfThisType:string>",
        KRAFT,
        recordType=["CONFIG_RECORD"],
        record=pa.array([row], kind),
    )
    assert isinstance(written, bytes)
    expected = ConfigRecord(resource_type=2, resource_name="ids", name="retention.ms", value=None)
    assert decode(written) == DecodedRecord(0, expected)


def test_a_binary_field_of_a_struct_is_bytes_in_kafkas_record_too() -> None:
    data = {"name": "u", "mechanism": 1, "salt": b"\1", "storedKey": b"", "serverKey": b"\xff"}
    kind = pa.struct(
        [("name", pa.string()), ("mechanism", pa.int8())]
        + [(name, pa.binary()) for name in ("salt", "storedKey", "serverKey")]
        + [("iterations", pa.int32())]
    )
    (written,) = records(
        "recordType string, record struct<name:string,mechanism:tinyint,salt:binary,"
        "storedKey:binary,serverKey:binary,iterations:int>",
        KRAFT,
        recordType=["USER_SCRAM_CREDENTIAL_RECORD"],
        record=pa.array([data | {"iterations": 4096}], kind),
    )
    assert isinstance(written, bytes)
    assert getattr(decode(written).record, "salt", None) == b"\1"


@pytest.mark.parametrize(
    ("values", "column", "given", "words"),
    [
        (MSGPACK, "value", None, "msgpack log must be [type, version, fields]"),
        (MSGPACK, "value", b"\xc1", "is not MessagePack"),
        (MSGPACK, "value", msgpack.packb([1, 2]), "must be [type, version, fields]"),
        (MSGPACK, "value", msgpack.packb(["", 1, 2]), "type must be a non-negative integer"),
        (KRAFT, "value", None, "is null"),
        (KRAFT, "value", b"", "is not a metadata record"),
        (KRAFT, "value", encode(TOPIC)[:-1], "is not a metadata record"),
        (KRAFT, "value", b"\x01\x7f\x00", "type 127, version 0, which is unknown"),
        (KRAFT, "value", encode(BeginTransactionRecord()), "remove such rows"),
        (KRAFT, "value", encode(MASKED), "redacted secret; read the source with redact=false"),
    ],
)
def test_an_invalid_value_is_reported_with_its_row(
    values: ValueKind, column: str, given: bytes | None, words: str
) -> None:
    valid = encode(TOPIC) if values is KRAFT else msgpack.packb(["t", 0, {}])
    error = refusal("value binary", values, value=pa.array([valid, valid, given], pa.binary()))
    assert (error.column, error.row) == (column, 2)
    assert words in error.reason


VALID = {
    "recordType": "TOPIC_RECORD",
    "recordVersion": 0,
    "record": json.dumps(to_json(TOPIC)["data"]),
}


@pytest.mark.parametrize(
    ("values", "column", "given", "words"),
    [
        (MSGPACK, "recordType", None, "neither a name nor a number"),
        (MSGPACK, "recordType", "", "neither a name nor a number"),
        (MSGPACK, "recordVersion", None, "not a number >= 0"),
        (MSGPACK, "recordVersion", -1, "not a number >= 0"),
        (MSGPACK, "record", None, "is null"),
        (MSGPACK, "record", "{", "is not JSON"),
        (MSGPACK, "record", "[" * 100_000, "is not JSON"),
        (MSGPACK, "record", "NaN", "is not JSON"),
        (MSGPACK, "record", str(2**70), "MessagePack cannot encode"),
        (MSGPACK, "record", r'"\ud800"', "MessagePack cannot encode"),
        (KRAFT, "recordType", None, "is not a type of metadata records"),
        (KRAFT, "recordType", "TOPIC", "is not a type of metadata records"),
        (KRAFT, "recordType", "UNKNOWN", "is not a type of metadata records"),
        (KRAFT, "recordType", "END_TRANSACTION_RECORD", "remove such rows"),
        (KRAFT, "recordVersion", None, "is null; set it, or drop the column"),
        (KRAFT, "recordVersion", 9, "supported versions are 0 to 0"),
        (KRAFT, "recordVersion", -1, "version: it is not a number"),
        (KRAFT, "record", None, "is null"),
        (KRAFT, "record", "[]", "it is not an object"),
        (KRAFT, "record", '{"name": "ids"}', "field topicId: the field is required and missing"),
        (KRAFT, "record", '{"name": 1, "topicId": "x"}', "field name: it is not a value"),
        (KRAFT, "record", '{"name": "a", "topicId": "?"}', "field topicId: it is not a value"),
    ],
)
def test_an_invalid_typed_record_is_reported_with_its_row(
    values: ValueKind, column: str, given: Any, words: str
) -> None:
    kinds = {"recordType": pa.string(), "recordVersion": pa.int32(), "record": pa.string()}
    rows = {name: pa.array([VALID[name]] * 2, kind) for name, kind in kinds.items()}
    rows[column] = pa.array([VALID[column], given], kinds[column])
    error = refusal(TYPED, values, **rows)
    assert (error.column, error.row) == (column, 1)
    assert words in error.reason
    assert "x" * 10 not in str(error)


@pytest.mark.parametrize(
    ("column", "kind", "valid", "given", "words"),
    [
        ("headers", HEADERS, [("h", b"")], [("raftlog.commit", b"")], "reserved prefix 'raftlog.'"),
        ("headers", HEADERS, None, [(None, b"")], "without a key"),
        ("headers", HEADERS, [], [None], "without a key"),
        ("timestamp", pa.timestamp("us", "UTC"), None, -1_000, "is before 1970"),
    ],
)
def test_invalid_fields_beside_the_value_are_refused(
    column: str, kind: pa.DataType, valid: Any, given: Any, words: str
) -> None:
    types = {
        "headers": "headers array<struct<key:string,value:binary>>",
        "timestamp": "timestamp timestamp",
    }
    rows = {"value": [b"a", b"b"], column: pa.array([valid, given], kind)}
    error = refusal(f"value binary, {types[column]}", BYTES, **rows)
    assert (error.column, error.row) == (column, 1)
    assert words in error.reason


def test_rows_are_numbered_over_all_batches_of_a_task() -> None:
    valid = pa.RecordBatch.from_pydict({"value": pa.array([encode(TOPIC)] * 5, pa.binary())})
    bad = pa.RecordBatch.from_pydict({"value": pa.array([encode(TOPIC), b""], pa.binary())})
    with pytest.raises(InvalidRowError) as caught:
        convert("value binary", KRAFT, valid, bad)
    assert caught.value.row == 6


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=40),
            st.none() | st.binary(max_size=40),
            st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
        )
    )
)
def test_the_lower_bound_of_the_size_is_never_above_the_size(rows: list[Any]) -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in rows], pa.binary()),
            pa.array([row[1] for row in rows], pa.binary()),
            pa.array([row[2] for row in rows], HEADERS),
        ],
        ["key", "value", "headers"],
    )
    ddl = "key binary, value binary, headers array<struct<key:string,value:binary>>"
    written = convert(ddl, BYTES, batch)
    least = sum(map(min_byte_count, written.to_batches()))
    taken = len(encode_records(records_of(written), 0, 0))
    assert least <= taken <= least + 12 * len(rows) + 2 * sum(len(row[2]) for row in rows)
