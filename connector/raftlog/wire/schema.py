"""Layout of each version of a message, derived from kio's classes.

1. kio has one class per version. Here one class, the *target*, is used for all versions, as in
   Kafka's generated classes. It is kio's newest class, or one of ``latest_schemas``. A field of the
   target that a version lacks has its default; a field of a version that the target lacks is
   skipped.
2. Only kio's classes are used, not its decoder, which allocates as many bytes as a length field
   states and aborts the process if that fails (in 0.6.5, a message of five bytes suffices).
   ``codec`` replaces it.

3. A tagged field of the target that is marked ``OF_RAFTLOG`` is in all flexible versions. Kafka
   skips it.

Kafka: ``MessageDataGenerator``; KIP-482 for tagged fields, KIP-893 for nullable structures.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio import index as kio_index
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

STRUCT: Final = "struct"
OF_RAFTLOG: Final = "of_raftlog"
"""Metadata key of a tagged field that no class of kio has."""
SIZED: Final = ("string", "bytes", "records")
"""Types with a length prefix."""
_WIDTHS: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "int64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_ZEROS: Final[dict[str, object]] = {
    "bool": False,
    "string": "",
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": None,
    "float64": 0.0,
    "uuid": None,
    "bytes": b"",
    "records": None,
}


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field in one version. ``kind`` is Kafka's name of its type, or ``STRUCT``.

    ``struct`` is the layout of a structure, or of the structures in an array. ``default`` is the
    schema's default, otherwise the type's; ``has_default`` is True if the schema has one or the
    field is tagged. ``is_kept`` is False if the target lacks the field.
    """

    name: str
    kind: str
    is_array: bool
    is_nullable: bool
    tag: int | None
    struct: StructPlan | None
    default: object
    has_default: bool
    is_kept: bool

    @property
    def byte_count_min(self) -> int:
        """Minimum size in bytes in the flexible encoding, which is the smaller one."""
        if self.is_array or self.kind in SIZED:
            return 1
        if self.struct is not None:
            return 1 if self.is_nullable else self.struct.byte_count_min
        return _WIDTHS[self.kind]


@dataclass(frozen=True, slots=True)
class StructPlan:
    """One structure in one version, and the class that it is decoded to."""

    target: type[Any]
    is_flexible: bool
    fields: tuple[FieldPlan, ...]
    tagged: tuple[FieldPlan, ...]
    absent: dict[str, object]
    """Fields of the target that this version lacks, with their defaults."""

    @property
    def byte_count_min(self) -> int:
        return sum(field.byte_count_min for field in self.fields) + self.is_flexible


_PLANS: Final[dict[tuple[type[Any], int], StructPlan]] = {}


def message_plan(target: type[Any], version: int) -> StructPlan:
    """Return the layout of a version of a request or response, cached.

    ``target`` is kio's class for the newest version, or a class derived from it.
    """
    plan = _PLANS.get((target, version))
    if plan is None:
        plan = _PLANS[target, version] = _plan(target, version)
    return plan


def with_target(plan: StructPlan, target: type[Any]) -> StructPlan:
    """Return the layout with this class for every structure."""

    def changed(field: FieldPlan) -> FieldPlan:
        if field.struct is None:
            return field
        return dataclasses.replace(field, struct=with_target(field.struct, target))

    fields, tagged = tuple(map(changed, plan.fields)), tuple(map(changed, plan.tagged))
    return dataclasses.replace(plan, target=target, fields=fields, tagged=tagged)


def _plan(target: type[Any], version: int) -> StructPlan:
    kind = target.__type__
    assert kind in (EntityType.request, EntityType.response), "not a request or response"
    load = (
        kio_index.load_request_schema
        if kind is EntityType.request
        else kio_index.load_response_schema
    )
    return _struct_plan(load(target.__api_key__, version), target)


def _struct_plan(source: type[Any], target: type[Any]) -> StructPlan:
    """Return the layout of ``source``, kio's class for one version, decoded to ``target``."""
    target_field = {field.name: (field, hint) for field, hint in _fields_with_hints(target)}
    plans = [
        _field_plan(field, hint, target_field.get(field.name))
        for field, hint in _fields_with_hints(source)
    ]
    if source.__flexible__:
        plans += [
            _field_plan(field, hint, (field, hint))
            for field, hint in target_field.values()
            if OF_RAFTLOG in field.metadata
        ]
    here = {plan.name for plan in plans}
    absent = {
        name: _default(field, hint)[0]
        for name, (field, hint) in target_field.items()
        if name not in here
    }
    return StructPlan(
        target=target,
        is_flexible=source.__flexible__,
        fields=tuple(plan for plan in plans if plan.tag is None),
        tagged=tuple(
            sorted((plan for plan in plans if plan.tag is not None), key=lambda plan: plan.tag or 0)
        ),
        absent=absent,
    )


def _field_plan(
    field: dataclasses.Field[Any],
    hint: Any,
    target_field: tuple[dataclasses.Field[Any], Any] | None,
) -> FieldPlan:
    """Return the plan of a field; ``target_field`` is the target's field of that name, if any.

    The default has the type of the target's field.
    """
    inner, is_array, is_nullable = _shape(hint)
    is_struct = isinstance(inner, type) and dataclasses.is_dataclass(inner)
    target = inner if target_field is None else _shape(target_field[1])[0]
    has_default = _default(field, hint)[1]
    return FieldPlan(
        name=field.name,
        kind=STRUCT if is_struct else field.metadata["kafka_type"],
        is_array=is_array,
        is_nullable=is_nullable,
        tag=field.metadata.get("tag"),
        struct=_struct_plan(inner, target) if is_struct else None,
        default=_default(*(target_field or (field, hint)))[0],
        has_default=has_default or field.metadata.get("tag") is not None,
        is_kept=target_field is not None,
    )


def _shape(hint: Any) -> tuple[Any, bool, bool]:
    """Return a type hint's element type, whether it is an array and whether it is nullable."""
    is_nullable = False
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        is_nullable = True
    if typing.get_origin(hint) is tuple:
        element = typing.get_args(hint)[0]
        return _shape(element)[0], True, is_nullable
    return hint, False, is_nullable


def _default(field: dataclasses.Field[Any], hint: Any) -> tuple[object, bool]:
    """Return a field's default, and whether it is Kafka's schema's rather than the type's."""
    if field.default is not dataclasses.MISSING:
        return field.default, True
    inner, is_array, is_nullable = _shape(hint)
    if is_array:
        return (), False
    if dataclasses.is_dataclass(inner):
        assert isinstance(inner, type)
        return (None if is_nullable else _default_struct(inner)), False
    return _ZEROS.get(field.metadata["kafka_type"], 0), False


def _default_struct(kind: type[Any]) -> object:
    values = {field.name: _default(field, hint)[0] for field, hint in _fields_with_hints(kind)}
    return kind(**values)


def _fields_with_hints(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]
