"""Parsing of rows of a table of changes, from a DataFrame or JSON.

``change`` is the kind. Columns that the kind does not have must be null. A column that no kind has
is rejected even if it is null, so that no misspelled or misplaced value is ignored.

Lists can be any iterable, maps a mapping or a list of pairs (Arrow's form), numbers any integral
type; strings are not converted to numbers or vice versa. Errors do not contain values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from .api_exception import ApiException
from .change_requests import CHANGE_TYPES, ChangeRequest

KIND: Final = "change"


def parse_change(row: Mapping[str, Any]) -> ChangeRequest:
    """Parse a row into a change. Raises ``ApiException``."""
    kind = row.get(KIND)
    if not isinstance(kind, str) or kind.lower() not in CHANGE_TYPES:
        known = ", ".join(CHANGE_TYPES)
        reason = "column 'change' is missing" if kind is None else f"unknown change {kind!r}"
        raise ApiException("the row", reason, f"use one of {known}")
    cls = CHANGE_TYPES[kind.lower()]
    known_columns = {entry.name: entry for entry in dataclasses.fields(cls)}
    given: dict[str, Any] = {}
    for name, value in row.items():
        if name == KIND:
            continue
        if name not in _CONVERTERS:
            raise ApiException(
                f"column {name!r}", "no change has this column", "correct its name, or drop it"
            )
        if value is None:
            continue
        if name not in known_columns:
            columns = ", ".join(known_columns)
            reason = f"{kind} has no such column"
            raise ApiException(f"column {name!r}", reason, f"its columns are {columns}")
        given[name] = _CONVERTERS[name](name, value)
    for name, entry in known_columns.items():
        is_optional = (
            entry.default is not dataclasses.MISSING
            or entry.default_factory is not dataclasses.MISSING
        )
        if name not in given and not is_optional:
            reason = f"{kind} requires it, and it is null"
            raise ApiException(f"column {name!r}", reason, "set a value")
    constructor: Callable[..., ChangeRequest] = cls
    return constructor(**given)


# --- values ---------------------------------------------------------------------------------------


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(name, "text in Unicode", value)
    return value


def _number(name: str, value: Any, bits: int = 32) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        _refuse(name, "a whole number", value)
    number = int(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        _refuse(name, f"a number of {bits} bits", value)
    return number


def _long(name: str, value: Any) -> int:
    return _number(name, value, 64)


def _fraction(name: str, value: Any) -> float:
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        _refuse(name, "a number", value)
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        _refuse(name, "true or false", value)
    return value


def _data(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        _refuse(name, "binary", value)
    return bytes(value)


def _word(name: str, value: Any) -> str | int:
    return value if isinstance(value, str) else _number(name, value)


def _list(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        _refuse(name, "a list", value)
    return tuple(value)


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    return tuple(_number(name, one) for one in _list(name, value))


def _assignment(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(_numbers(name, one) for one in _list(name, value))


def _texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(_text(name, one) for one in _list(name, value))


def _pairs(name: str, value: Any) -> list[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, Mapping) else _list(name, value)
    found: list[tuple[str, Any]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            _refuse(name, "a map", value)
        found.append((_text(name, pair[0]), pair[1]))
    if len(dict(found)) != len(found):
        raise ApiException(f"column {name!r}", "a key occurs twice", "set each key once")
    return found


def _text_map(name: str, value: Any) -> dict[str, str]:
    return {key: _text(name, one) for key, one in _pairs(name, value)}


def _entity(name: str, value: Any) -> dict[str, str | None]:
    return {key: None if one is None else _text(name, one) for key, one in _pairs(name, value)}


def _ranges(name: str, value: Any) -> dict[str, tuple[int, ...]]:
    return {key: _numbers(name, one) for key, one in _pairs(name, value)}


def _refuse(name: str, wanted: str, value: object) -> NoReturn:
    found = type(value).__name__
    raise ApiException(f"column {name!r}", f"its value is {found}, not {wanted}", "cast it")


_CONVERTERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "acl_id": _text,
    "allow_downgrade": _flag,
    "allow_replication_factor_change": _flag,
    "assignment": _assignment,
    "broker_epoch": _long,
    "broker_id": _number,
    "configs": _text_map,
    "election": _text,
    "endpoints": _text_map,
    "entity": _entity,
    "expiration_timestamp_ms": _long,
    "feature": _text,
    "features": _ranges,
    "host": _text,
    "incarnation_id": _text,
    "isr": _numbers,
    "issue_timestamp_ms": _long,
    "iterations": _number,
    "level": _number,
    "limit": _fraction,
    "log_dirs": _texts,
    "max_timestamp_ms": _long,
    "mechanism": _word,
    "name": _text,
    "operation": _word,
    "owner": _text,
    "partition": _number,
    "partition_epoch": _number,
    "partitions": _number,
    "password": _text,
    "pattern_type": _word,
    "permission": _word,
    "previous_broker_epoch": _long,
    "principal": _text,
    "quota": _text,
    "rack": _text,
    "renewers": _texts,
    "replicas": _numbers,
    "replication_factor": _number,
    "requester": _text,
    "resource_name": _text,
    "resource_type": _word,
    "salt": _data,
    "salted_password": _data,
    "token_id": _text,
    "topic": _text,
    "topic_id": _text,
    "user": _text,
    "value": _text,
}
assert set(_CONVERTERS) == {
    entry.name for cls in CHANGE_TYPES.values() for entry in dataclasses.fields(cls)
}, "every column has a converter"
