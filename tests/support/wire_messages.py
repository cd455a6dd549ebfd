"""Messages of every supported request and response with random content, in every version."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from kio import index as kio_index
from kio.schema.errors import ErrorCode

from raftlog.wire import latest_schemas
from raftlog.wire.apis import APIS, CONTROLLER_APIS, Api
from raftlog.wire.schema import FieldPlan, StructPlan, message_plan

_NUMBER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_ERRORS = list(ErrorCode)


def message_kinds() -> Iterator[tuple[Api, type[Any], int]]:
    """Return every request and response class with each supported version."""
    for api in (*APIS.values(), *CONTROLLER_APIS.values()):
        for load in (kio_index.load_request_schema, kio_index.load_response_schema):
            newest = load(api.key, newest_version(api))
            kind = getattr(latest_schemas, newest.__name__, newest)
            for version in range(api.versions.first, api.versions.last + 1):
                yield api, kind, version


def newest_version(api: Api) -> int:
    """Return kio's newest version of a request, supported or not."""
    name = kio_index.api_key_map[api.key]
    return max(kio_index.schema_name_map[name])


def random_message(kind: type[Any], version: int, rng: random.Random) -> Any:
    """Return a message with random values in the fields of this version, defaults in the others."""
    return _struct(message_plan(kind, version), rng)


def with_values(
    message: Any,
    value_of: Callable[[str, Any, random.Random], Any],
    rng: random.Random,
    *,
    share: float,
) -> Any:
    """Return a message in which ``value_of`` has replaced this share of the fields, by their names
    and values; those of structs, too."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = with_values(value, value_of, rng, share=share)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            changes[field.name] = tuple(
                with_values(one, value_of, rng, share=share) for one in value
            )
        elif rng.random() < share:
            changes[field.name] = value_of(field.name, value, rng)
    return dataclasses.replace(message, **changes)


def _struct(plan: StructPlan, rng: random.Random) -> Any:
    values = dict(plan.absent)
    for field in (*plan.fields, *plan.tagged):
        if field.is_kept:
            keeps_default = field.tag is not None and rng.random() < 0.4
            values[field.name] = field.default if keeps_default else _field(field, rng)
    return plan.target(**values)


def _field(field: FieldPlan, rng: random.Random) -> Any:
    is_null = field.is_nullable and field.kind != "uuid" and rng.random() < 0.2
    if is_null and not (field.tag is not None and field.struct is not None):
        return None
    if field.is_array:
        return tuple(_value(field, rng) for _ in range(rng.randrange(3)))
    return _value(field, rng)


def _value(field: FieldPlan, rng: random.Random) -> Any:
    if field.struct is not None:
        return _struct(field.struct, rng)
    match field.kind:
        case "bool":
            return rng.random() < 0.5
        case "string":
            return "".join(rng.choices("abzé\u0416\U0001f40d", k=rng.randrange(6)))
        case "bytes" | "records":
            return rng.randbytes(rng.randrange(200))
        case "error_code":
            return rng.choice(_ERRORS)
        case "uuid":
            return None if rng.random() < 0.2 else uuid.UUID(bytes=rng.randbytes(16))
        case "timedelta_i32":
            return timedelta(milliseconds=_number(32, rng))
        case "datetime_i64":
            milliseconds = rng.randrange(253_402_300_799_000)
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
        case "timedelta_i64":
            return timedelta(milliseconds=_number(56, rng))
        case "float64":
            return rng.choice((0.0, -1.5, 1e300, 2.0**40, rng.random()))
        case "uint16":
            return rng.randrange(2**16)
        case _:
            return _number(_NUMBER_BITS[field.kind], rng)


def _number(bits: int, rng: random.Random) -> int:
    """Return a small number, an extreme one, or any other."""
    ends = (0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))
    return rng.choice(ends) if rng.random() < 0.5 else rng.getrandbits(bits) - 2 ** (bits - 1)


def as_dictionary(message: Any) -> Any:
    """Return nested dictionaries, equal for equal content of different classes."""
    return dataclasses.asdict(message)
