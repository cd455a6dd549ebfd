"""Metadata records of real Kafka with Kafka's results, and generated ones of every type."""

from __future__ import annotations

import base64
import csv
import gzip
import random
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from raftlog.records import iter_batches
from raftlog_state.records import (
    RECORD_TYPES,
    FieldSchema,
    MetadataRecord,
    Struct,
    UnknownTag,
)
from raftlog_state.records.declare import Array, Scalar
from raftlog_state.records.scalars import uuid_text

DATA = Path(__file__).parents[1] / "data"
PAYLOAD = re.compile(r"^\| offset: (\d+) .*? payload: (\{.*\})$")
EVERY_VERSION = [
    (kind, version) for kind in RECORD_TYPES for version in range(kind.schema.latest_version + 1)
]


def version_name(case: type[MetadataRecord] | int) -> str:
    """Return a test id for a value of EVERY_VERSION."""
    return str(case) if isinstance(case, int) else case.schema.name


def metadata_logs() -> list[Path]:
    """Return every segment and snapshot of a metadata log that has a Kafka dump."""
    dumps = DATA.glob("kraft-logs/**/__cluster_metadata-0/*.dump.gz")
    return sorted(path.with_name(path.name.removesuffix(".dump.gz")) for path in dumps)


def values_in(content: bytes) -> tuple[bytes, ...]:
    """Return the values of all metadata records in the bytes of a segment or snapshot, in order."""
    return tuple(
        record.value
        for batch in iter_batches(content)
        if not batch.is_control
        for record in batch.records()
        if record.value is not None
    )


@cache
def values_of(log: Path) -> tuple[bytes, ...]:
    """Return the values of all metadata records in a file, in order."""
    return values_in(log.read_bytes())


@cache
def payloads_of(log: Path) -> tuple[str, ...]:
    """Return what kafka-dump-log printed for the same records, in order."""
    with gzip.open(f"{log}.dump.gz", "rt", encoding="utf-8") as lines:
        return tuple(match[2] for line in lines if (match := PAYLOAD.match(line.rstrip("\n"))))


def golden_vectors() -> Iterator[tuple[str, int, bytes, str]]:
    """Return (name, version, value, Kafka's toString) of every golden metadata record."""
    with (DATA / "kraft-golden-vectors.tsv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["kind"].startswith("metadata record value"):
                yield row["name"], int(row["version"]), bytes.fromhex(row["hex"]), row["content"]


def mutated_values(seeds: Iterable[int]) -> list[bytes]:
    """Return a real or golden value for each seed, with bytes removed, inserted or changed."""
    known = sorted({value for log in metadata_logs() for value in values_of(log)})
    known += [value for _, _, value, _ in golden_vectors()]
    values = []
    for seed in seeds:
        chance = random.Random(seed)
        value = bytearray(chance.choice(known))
        for _ in range(chance.choice((1, 1, 2, 3))):
            at = chance.randrange(len(value)) if value else 0
            kind = chance.randrange(4)
            if kind == 0:
                del value[at : at + chance.choice((1, 1, 4))]
            elif kind == 1:
                value[at:at] = chance.choice((b"\0", b"\1", b"\x80\0", b"\xff\xff\xff\xff\x0f"))
            else:
                value[at : at + 1] = chance.choice((b"\0", b"\1", b"\2", b"\x7f", b"\x80", b"\xff"))
        values.append(bytes(value))
    return values


def as_columns(value: Any) -> Any:
    """Return a decoded record, or a value of one, as its typed column has it."""
    if isinstance(value, Struct):
        return {
            field.attribute: as_columns(getattr(value, field.attribute))
            for field in value.fields_schema
        }
    return [as_columns(one) for one in value] if isinstance(value, tuple) else value


def typed_fields(cls: type[Struct], data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a record in Kafka's JSON as its typed column has them."""
    return {field.attribute: _typed_field(field, data) for field in cls.fields_schema}


def _typed_field(field: FieldSchema, data: dict[str, Any]) -> Any:
    if field.json_name not in data:
        return as_columns(field.default)
    value = data[field.json_name]
    if field.kind is Scalar.BYTES:
        return base64.b64decode(value)
    if isinstance(field.kind, Array) and not isinstance(field.kind.element, Scalar):
        return [typed_fields(field.kind.element, each) for each in value]
    return value


INTEGERS = {
    Scalar.INT8: st.integers(-(2**7), 2**7 - 1),
    Scalar.INT16: st.integers(-(2**15), 2**15 - 1),
    Scalar.UINT16: st.integers(0, 2**16 - 1),
    Scalar.INT32: st.integers(-(2**31), 2**31 - 1),
    Scalar.INT64: st.integers(-(2**63), 2**63 - 1),
}
SCALARS: dict[Scalar, st.SearchStrategy[Any]] = {
    **INTEGERS,
    Scalar.BOOL: st.booleans(),
    Scalar.FLOAT64: st.floats(allow_nan=False),
    Scalar.UUID: st.binary(min_size=16, max_size=16).map(uuid_text),
    Scalar.STRING: st.text(max_size=30),
    Scalar.BYTES: st.binary(max_size=30),
}
UNKNOWN_TAGS = st.dictionaries(st.integers(100, 2**31 - 2), st.binary(max_size=20), max_size=2).map(
    lambda tags: tuple(UnknownTag(tag, tags[tag]) for tag in sorted(tags))
)


def values(field: FieldSchema, version: int) -> st.SearchStrategy[Any]:
    if isinstance(field.kind, Array):
        element = field.kind.element
        strategy = SCALARS[element] if isinstance(element, Scalar) else structs(element, version)
        some: st.SearchStrategy[Any] = st.lists(strategy, max_size=3).map(tuple)
    else:
        assert isinstance(field.kind, Scalar)
        some = SCALARS[field.kind]
    choices = [st.just(field.default), some]
    return st.one_of(*choices, st.none()) if field.nullable else st.one_of(*choices)


def structs(cls: type[Struct], version: int) -> st.SearchStrategy[Any]:
    """Strategy for instances of a record type, or of a struct in one, valid in ``version``."""
    present = {
        field.attribute: values(field, version)
        for field in cls.fields_schema
        if field.since <= version
    }
    return st.builds(cls, **present, unknown_tags=st.just(()) | UNKNOWN_TAGS)
