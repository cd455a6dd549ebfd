"""Typed columns have what ``serde`` decodes and ``redaction`` shows, row by row."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.metadata_values import (
    EVERY_VERSION,
    golden_vectors,
    metadata_logs,
    payloads_of,
    structs,
    values_of,
    version_name,
)

from raftlog_state.errors import MetadataParseError
from raftlog_state.records import (
    NO_OP_VALUE,
    RECORD_TYPES,
    ConfigRecord,
    DecodedRecord,
    FieldSchema,
    MetadataRecord,
    PartitionChangeRecord,
    Redactor,
    Struct,
    TopicRecord,
    UnknownTag,
    UserScramCredentialRecord,
    decode,
    encode,
)
from raftlog_state.records.declare import Array, Scalar
from raftlog_state.records.typed_columns import (
    TypedColumns,
    arrow_type,
    struct_type,
    typed_columns,
)

LOGS = metadata_logs()
SHOWN = Redactor(reveal=True)
REDACTORS = (Redactor(), Redactor(key=b"0123456789abcdef"), SHOWN)


def columns_of(
    values: Sequence[bytes | None], redactor: Redactor
) -> dict[type[MetadataRecord], TypedColumns]:
    column = pa.array([b"x", *values, b"y"], pa.binary())[1:-1]  # a column inside another one
    return typed_columns(column, RECORD_TYPES, redactor)


def plain(value: Any) -> Any:
    """Return a record or a value of one as Arrow returns it in Python."""
    if isinstance(value, Struct):
        return {one.attribute: plain(getattr(value, one.attribute)) for one in value.fields_schema}
    return [plain(one) for one in value] if isinstance(value, tuple) else value


def assert_decoded(values: Sequence[bytes | None], redactor: Redactor) -> int:
    """Compare the columns with the decoded values; return the number of their records."""
    expected: dict[type, list[tuple[int, int, Any]]] = {kind: [] for kind in RECORD_TYPES}
    for row, value in enumerate(values):
        decoded = None if value is None else redactor.redact(decode(value))
        if decoded is not None and isinstance(decoded.record, MetadataRecord):
            entry = row, decoded.version, plain(decoded.record)
            expected[type(decoded.record)].append(entry)
    count = 0
    for kind, found in columns_of(values, redactor).items():
        found.fields.validate(full=True)
        assert found.fields.type == struct_type(kind)
        assert found.fields.null_count == 0
        structs = found.fields.to_pylist()
        rows = zip(found.rows.tolist(), found.versions.tolist(), structs, strict=True)
        assert list(rows) == expected[kind]
        count += len(structs)
    return count


@pytest.mark.parametrize("redactor", REDACTORS)
def test_records_of_real_logs_and_golden_ones_have_what_is_decoded(redactor: Redactor) -> None:
    values = [value for log in LOGS[:8] for value in values_of(log)]
    values += [value for _, _, value, _ in golden_vectors()]
    assert assert_decoded([None, *values, None], redactor) > 0.95 * len(values)


def test_records_of_real_logs_have_what_kafka_dump_log_prints() -> None:
    for log in LOGS:
        payloads = [json.loads(payload) for payload in payloads_of(log)]
        for kind, found in columns_of(values_of(log), SHOWN).items():
            structs = zip(found.rows.tolist(), found.fields.to_pylist(), strict=True)
            for row, columns in structs:
                payload = payloads[row]
                assert payload["type"] == kind.schema.json_type
                printed = {
                    field.attribute: printed_value(field, payload["data"])
                    for field in kind.fields_schema
                }
                assert columns == printed


def printed_value(field: FieldSchema, data: dict[str, Any]) -> Any:
    if field.json_name not in data:
        return plain(field.default)
    value = data[field.json_name]
    if field.kind is Scalar.BYTES:
        return base64.b64decode(value)
    if isinstance(field.kind, Array) and not isinstance(field.kind.element, Scalar):
        schemas = field.kind.element.fields_schema
        return [{one.attribute: printed_value(one, each) for one in schemas} for each in value]
    return value


@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION, ids=version_name)
@settings(max_examples=8)
@given(data=st.data())
def test_random_records_of_every_version_have_what_is_decoded(
    kind: type[MetadataRecord], version: int, data: st.DataObject
) -> None:
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
    found = columns_of(values, SHOWN)
    column = found[TopicRecord].column(5)
    column.validate(full=True)
    names = [row and row["name"] for row in column.to_pylist()]
    assert names == [None, "orders", None, "orders", None]
    assert found[PartitionChangeRecord].column(5).null_count == 5
    assert columns_of([topic], SHOWN)[TopicRecord].column(1).null_count == 0


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
