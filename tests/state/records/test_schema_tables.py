"""The declared schema, compared with tables generated from Kafka's own message files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from raftlog_state.records import RECORD_TYPES, FieldSchema
from raftlog_state.records.declare import Array, Scalar

KAFKA_DEFAULTS = {
    "empty-array": (),
    "empty-bytes": b"",
    '""': "",
    "null": None,
    "true": True,
    "false": False,
    "AAAAAAAAAAAAAAAAAAAAAA": "AAAAAAAAAAAAAAAAAAAAAA",
    "0.0": 0.0,
}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))


def kafka_type(field: FieldSchema) -> str:
    kind = field.flat_kind
    if isinstance(kind, Scalar):
        return kind.value
    element = kind.element
    return "[]" + (element.value if isinstance(element, Scalar) else element.__name__)


def described(record: str, api_key: int, prefix: str, field: FieldSchema) -> list[dict[str, Any]]:
    """Return the rows of the table for a declared field and its nested fields."""
    since = f"{field.since}+"
    own = {
        "record": record,
        "apiKey": str(api_key),
        "fieldPath": prefix + field.json_name[0].upper() + field.json_name[1:],
        "type": kafka_type(field),
        "versions": since,
        "taggedVersions": since if field.tag is not None else "",
        "tag": "" if field.tag is None else str(field.tag),
        "nullableVersions": since if field.nullable else "",
        "default": field.default,
    }
    described_rows = [own]
    if isinstance(field.kind, Array) and not isinstance(field.kind.element, Scalar):
        for inner in field.kind.element.fields_schema:
            described_rows += described(record, api_key, own["fieldPath"] + "[].", inner)
    return described_rows


def parsed_default(text: str) -> object:
    word = text.removesuffix(" (implicit)")
    return KAFKA_DEFAULTS[word] if word in KAFKA_DEFAULTS else int(word)


def test_every_field_is_declared_as_in_kafkas_message_files(data: Path) -> None:
    declared: list[dict[str, Any]] = []
    for kind in RECORD_TYPES:
        schema = kind.schema
        for field in schema.fields:
            declared += described(schema.name, schema.api_key, "", field)
    expected: list[dict[str, Any]] = [
        {**row, "default": parsed_default(row["default"])}
        for row in rows(data / "metadata-records.tsv")
        if row["fieldPath"] != "(no fields)"
    ]
    assert declared == expected
    kinds_of_default = [type(row["default"]) for row in declared]
    assert kinds_of_default == [type(row["default"]) for row in expected]


def test_every_type_and_its_versions_are_declared_as_in_kafkas_message_files(data: Path) -> None:
    expected = rows(data / "metadata-records-versions.tsv")
    assert len(expected) == len(RECORD_TYPES) == 27
    for kind, row in zip(RECORD_TYPES, expected, strict=True):
        schema = kind.schema
        assert row["record"] == schema.name == kind.__name__
        assert int(row["apiKey"]) == schema.api_key
        assert int(row["lowestVersion"]) == schema.lowest_version
        assert int(row["latestVersion"]) == schema.latest_version
        assert row["flexibleVersions"] == "0+"
        assert int(row["topLevelFields"]) == len(schema.fields)


@pytest.mark.parametrize("kind", RECORD_TYPES, ids=lambda kind: kind.schema.name)
def test_a_record_is_immutable_and_slotted(kind: Any) -> None:
    record = kind()
    with pytest.raises(AttributeError):
        record.unknown_tags = ()
    assert not hasattr(record, "__dict__")
    assert hash(record) == hash(kind())
