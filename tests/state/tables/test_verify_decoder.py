"""The second decoder reads what Kafka's dump tool reads, and what the first decoder writes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dumps import dumped_logs, read_dump
from tests.support.metadata_values import (
    DATA,
    EVERY_VERSION,
    golden_vectors,
    metadata_logs,
    payloads_of,
    structs,
    values_of,
    version_name,
)

from raftlog.records import iter_batches
from raftlog.records.control import control_json, decode_control
from raftlog_state.records import MetadataRecord, encode, to_json
from raftlog_state.records import decode as first_decode
from raftlog_state.tables.verify_decoder import (
    CONTROL_LAYOUTS,
    METADATA_LAYOUTS,
    UNKNOWN,
    decode,
)

TABLE = DATA / "metadata-records.tsv"
NEWER_THAN_431 = {"UNREGISTER_CONTROLLER_RECORD"}
TOPIC = bytes.fromhex("0102000573686f70") + bytes(16) + b"\0"


def json_of(value: bytes) -> dict[str, Any]:
    found = decode(None, value)
    assert found.damage is None
    assert found.data is not None
    return {"type": found.record_type, "data": json.loads(found.data)}


def declared(fields: Any, path: str = "") -> Iterator[tuple[str, str, int, int | None, bool]]:
    """Yield name, type, first version, tag and nullability of each field, as Kafka's files."""
    for name, since, tag, kind, is_array, is_nullable in fields:
        here = path + name[0].upper() + name[1:]
        scalar = kind if isinstance(kind, str) else "struct"
        yield here, "[]" * is_array + scalar, since, tag, is_nullable
        if not isinstance(kind, str):
            yield from declared(kind, f"{here}[].")


def test_the_layouts_are_those_of_kafkas_message_files() -> None:
    """Kafka's are in a table, which a program extracted from Kafka 4.3.1's classes."""
    expected: dict[str, list[tuple[str, str, int, int | None, bool]]] = {}
    keys = {}
    with TABLE.open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table, delimiter="\t"):
            fields = expected.setdefault(row["record"], [])
            keys[row["record"]] = int(row["apiKey"])
            if not row["versions"]:
                continue
            kind = "[]struct" if re.match(r"\[\][A-Z]", row["type"]) else row["type"]
            tag = int(row["tag"]) if row["tag"] else None
            since = int(row["versions"].rstrip("+"))
            fields.append((row["fieldPath"], kind, since, tag, bool(row["nullableVersions"])))
    assert len(expected) > 20
    for name, fields in expected.items():
        assert list(declared(METADATA_LAYOUTS[keys[name]].fields)) == fields, name


@pytest.mark.parametrize("log", metadata_logs(), ids=lambda log: "/".join(log.parts[-4:]))
def test_records_of_real_logs_are_those_that_kafka_prints(log: Path) -> None:
    for value, payload in zip(values_of(log), payloads_of(log), strict=True):
        printed = json.loads(payload)
        assert json_of(value) == {"type": printed["type"], "data": printed["data"]}


def test_real_logs_have_every_type_and_version() -> None:
    seen = {(value[1], value[2]) for log in metadata_logs() for value in values_of(log)}
    for api_key, layout in METADATA_LAYOUTS.items():
        if layout.record_type not in NEWER_THAN_431:
            assert {version for key, version in seen if key == api_key} == set(
                range(layout.newest_version + 1)
            ), layout.record_type


def test_control_records_of_real_logs_are_those_that_kafka_prints() -> None:
    seen = set()
    for log in dumped_logs(DATA / "kraft-logs"):
        printed = [record for batch in read_dump(log) for record in batch.records]
        records = [record for batch in iter_batches(log.read_bytes()) for record in batch.records()]
        if "__cluster_metadata" not in str(log):
            continue
        for record, dump in zip(records, printed, strict=True):
            if record.key is None or "controlType" in dump.text:  # the type alone, by 3.9.2
                continue
            found = decode(record.key, record.value)
            assert found.record_type is not None
            name, _, text = dump.text.partition("{")
            assert name.strip(" :").upper() == found.record_type.replace("_", "")
            assert found.data is not None
            assert json.loads(found.data) == json.loads("{" + text)
            seen.add(found.record_type)
    assert seen == {layout.record_type for layout in CONTROL_LAYOUTS.values()}


def test_golden_records_of_kafkas_classes_are_read() -> None:
    """They have values that the logs lack, such as lists that are empty and not null."""
    for _, _, value, _ in golden_vectors():
        found = json_of(value)
        first = to_json(first_decode(value))
        assert found == {"type": first["type"], "data": first["data"]}


@settings(max_examples=60)
@given(data=st.data())
def test_both_decoders_agree_on_random_records(data: st.DataObject) -> None:
    assert_decoders_agree(data, *data.draw(st.sampled_from(EVERY_VERSION)))


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "version"), EVERY_VERSION, ids=version_name)
@settings(max_examples=20)
@given(data=st.data())
def test_both_decoders_agree_on_random_records_of_every_version(
    kind: type[MetadataRecord], version: int, data: st.DataObject
) -> None:
    assert_decoders_agree(data, kind, version)


def assert_decoders_agree(data: st.DataObject, kind: type[MetadataRecord], version: int) -> None:
    record = data.draw(structs(kind, version))
    assert isinstance(record, MetadataRecord)
    first = to_json(record, version)
    first["data"].pop("unknownTaggedFields", None)
    second = json_of(encode(record, version))
    assert second["type"] == first["type"]
    assert second["data"] == without_unknown_tags(first["data"])


def without_unknown_tags(value: Any) -> Any:
    if isinstance(value, list):
        return [without_unknown_tags(element) for element in value]
    if isinstance(value, dict):
        return {
            name: without_unknown_tags(element)
            for name, element in value.items()
            if name != "unknownTaggedFields"
        }
    return value


@pytest.mark.parametrize(
    ("value", "damage"),
    [
        (None, "it has no value"),
        (b"", "it ends inside a field"),
        (TOPIC[:-1], "it ends inside a field"),
        (TOPIC[:12], "a field of 16 bytes in 4 bytes"),
        (TOPIC + b"\0", "1 bytes after TOPIC_RECORD"),
        (b"\2" + TOPIC[1:], "frame version 2"),
        (TOPIC[:3] + b"\0" + bytes(17), "name is null"),
        (TOPIC[:3] + b"\xff\xff\xff\xff\xff\1", "a number of more than 5 bytes"),
        (b"\1\x0a\0\1\1\x7f", "an array of 126 elements in 0 bytes"),
        (bytes.fromhex("01170001000302610000"), "1 bytes after name"),
    ],
)
def test_damage_is_described(value: bytes | None, damage: str) -> None:
    found = decode(None, value)
    assert (found.damage, found.record_type, found.data) == (damage, None, None)


@settings(max_examples=300)
@given(key=st.none() | st.binary(max_size=6), value=st.none() | st.binary(max_size=40))
def test_no_bytes_raise_an_exception(key: bytes | None, value: bytes | None) -> None:
    found = decode(key, value)
    assert found.is_control == (key is not None)
    assert (found.damage is None) == (found.record_type is not None)


def test_each_cut_of_real_records_is_damaged_or_unknown() -> None:
    for log in metadata_logs()[:1]:
        for value in dict.fromkeys(values_of(log)):
            for end in range(len(value)):
                assert decode(None, value[:end]).damage is not None, value[:end].hex()


def test_unknown_records_are_skipped() -> None:
    assert decode(None, b"\1\x06\0\0").record_type == UNKNOWN
    assert decode(None, b"\1\x02\1\0").record_type == UNKNOWN
    assert decode(b"\0\0\0\x2a", b"").record_type == UNKNOWN
    assert decode(b"\0\0\0\5", b"\0\1\0\1\0").record_type == UNKNOWN
    assert decode(b"\0\0", b"").damage == "it ends inside a field"


def test_the_first_decoder_of_control_records_agrees() -> None:
    for log in metadata_logs():
        for batch in iter_batches(log.read_bytes()):
            for record in batch.records():
                if batch.is_control:
                    found = decode(record.key, record.value)
                    assert found.data is not None
                    first = control_json(decode_control(record.key, record.value))
                    assert json.loads(found.data) == first
