"""Bytes of Kafka's classes: decode gives what Kafka's toString prints, encode the same bytes."""

from __future__ import annotations

import pytest
from tests.support.metadata_values import golden_vectors

from raftlog_state.records import (
    RECORD_TYPES,
    MetadataRecord,
    Struct,
    decode,
    encode,
    from_json,
    peek,
    to_json,
)
from raftlog_state.records.declare import Array, FieldSchema, Scalar

VECTORS = list(golden_vectors())


def to_string(struct: Struct) -> str:
    """Return Kafka's ``toString`` of a message."""
    fields = [
        f"{field.json_name}={value_string(field, getattr(struct, field.attribute))}"
        for field in struct.fields_schema
    ]
    return f"{type(struct).__name__}({', '.join(fields)})"


def value_string(field: FieldSchema, value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{', '.join(element_string(element) for element in value)}]"
    if field.kind is Scalar.STRING:
        return f"'{value}'"
    if isinstance(value, bytes):
        return str([byte - 256 if byte > 127 else byte for byte in value])
    if isinstance(value, bool):
        return str(value).lower()
    assert not isinstance(field.kind, Array)
    return str(value)


def element_string(element: object) -> str:
    return to_string(element) if isinstance(element, Struct) else str(element)


def test_the_vectors_have_every_record_type() -> None:
    assert len(VECTORS) == 84
    api_keys = {peek(value)[0] for _, _, value, _ in VECTORS}
    assert api_keys == {kind.schema.api_key for kind in RECORD_TYPES}


@pytest.mark.parametrize(
    ("name", "version", "value", "content"), VECTORS, ids=[f"{v[0]}-{v[1]}" for v in VECTORS]
)
def test_a_golden_record_is_decoded_and_encoded_as_by_kafka(
    name: str, version: int, value: bytes, content: str
) -> None:
    decoded = decode(value)
    assert isinstance(decoded.record, MetadataRecord)
    assert decoded.version == version
    assert to_string(decoded.record) == content
    assert encode(decoded) == value
    assert encode(decoded.record, version) == value
    assert from_json(to_json(decoded)) == decoded
    assert peek(value) == (decoded.record.schema.api_key, version)


@pytest.mark.parametrize("kind", RECORD_TYPES, ids=lambda kind: kind.schema.name)
def test_a_new_record_has_kafkas_defaults(kind: type[MetadataRecord]) -> None:
    assert to_string(kind()) in {content for *_, content in VECTORS}
