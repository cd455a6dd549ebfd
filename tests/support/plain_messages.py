"""Requests from nested dictionaries, with defaults for missing fields; error codes of responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from kio import index as kio_index
from kio.schema.errors import ErrorCode

from raftlog.wire import ApiKey, decode, encode, latest_schemas
from raftlog.wire.apis import APIS
from raftlog.wire.schema import FieldPlan, StructPlan, message_plan

from .wire_messages import newest_version


def request_body(key: ApiKey, version: int, values: Mapping[str, Any]) -> bytes:
    """Return the body of a request."""
    plan = message_plan(_kind(key, is_request=True), version)
    return encode(_struct(plan, values), version)


def answered(key: ApiKey, version: int, body: bytes) -> Any:
    """Return the content of a response."""
    return decode(_kind(key, is_request=False), version, body)


def error_codes(answer: object) -> set[int]:
    """Return every error code in a response, at any depth."""
    return set(_error_codes(answer)) - {0}


def _kind(key: ApiKey, *, is_request: bool) -> type[Any]:
    load = kio_index.load_request_schema if is_request else kio_index.load_response_schema
    newest = load(key, newest_version(APIS[key]))
    found: type[Any] = getattr(latest_schemas, newest.__name__, newest)
    return found


def _struct(plan: StructPlan, values: Mapping[str, Any]) -> Any:
    fields = {field.name: field for field in (*plan.fields, *plan.tagged) if field.is_kept}
    assert values.keys() <= fields.keys(), f"{sorted(fields)} are there"
    found = {
        name: _value(field, values[name]) if name in values else _default(field)
        for name, field in fields.items()
    }
    return plan.target(**plan.absent, **found)


def _default(field: FieldPlan) -> Any:
    is_needed = field.struct is not None and not (field.is_nullable or field.is_array)
    if is_needed and not field.has_default and field.struct is not None:
        return _struct(field.struct, {})
    return field.default


def _value(field: FieldPlan, value: Any) -> Any:
    if field.struct is None or value is None:
        return tuple(value) if field.is_array and value is not None else value
    if field.is_array:
        return tuple(_struct(field.struct, one) for one in value)
    return _struct(field.struct, value)


def _error_codes(value: object) -> Iterator[int]:
    if isinstance(value, ErrorCode):
        yield int(value)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _error_codes(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _error_codes(getattr(value, field.name))
