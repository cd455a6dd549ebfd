"""Requests from plain values: only the fields that a test is about."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from kio import index as kio_index

from raftlog.wire import APIS, CONTROLLER_APIS, ApiKey, latest_schemas
from raftlog.wire.log_identity import uuid_or_none
from raftlog.wire.schema import FieldPlan, StructPlan, message_plan

TIMEOUT_MS = 30_000


def request_class(key: ApiKey) -> type[Any]:
    """Return the class of the requests of an API, with the fields of all versions."""
    kind = kio_index.load_request_schema(key, newest(key))
    found: type[Any] = getattr(latest_schemas, kind.__name__, kind)
    return found


def response_class(key: ApiKey) -> type[Any]:
    kind = kio_index.load_response_schema(key, newest(key))
    found: type[Any] = getattr(latest_schemas, kind.__name__, kind)
    return found


def newest(key: ApiKey) -> int:
    return {**APIS, **CONTROLLER_APIS}[key].versions.last


def request(key: ApiKey, **values: Any) -> Any:
    """Return a request of the newest version.

    Structures are mappings, times are milliseconds, uuids Kafka's text; other fields have their
    defaults, a timeout half a minute.
    """
    plan = message_plan(request_class(key), newest(key))
    if any(field.name == "timeout" for field in plan.fields):
        values = {"timeout": TIMEOUT_MS} | values
    return _struct(plan, values)


def _struct(plan: StructPlan, values: Mapping[str, Any]) -> Any:
    fields = {field.name: field for field in (*plan.fields, *plan.tagged)}
    found = dict(plan.absent) | {name: field.default for name, field in fields.items()}
    for name, value in values.items():
        assert name in found, f"{plan.target.__name__} has no {name}"
        found[name] = _field(fields[name], value) if name in fields else tuple(value)
    return plan.target(**found)


def _field(field: FieldPlan, value: Any) -> Any:
    if value is None:
        return None
    return tuple(_value(field, one) for one in value) if field.is_array else _value(field, value)


def _value(field: FieldPlan, value: Any) -> Any:
    if field.struct is not None:
        return _struct(field.struct, value)
    if field.kind == "timedelta_i32":
        return timedelta(milliseconds=value)
    if field.kind == "uuid" and not isinstance(value, uuid.UUID):
        return uuid_or_none(value)
    return value
