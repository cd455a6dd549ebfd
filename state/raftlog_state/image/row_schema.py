"""Declaration of the fields of state rows, and the conversions that derive from it.

A field is declared once, in ``rows``::

    elr: tuple[int, ...] = column(record="eligible_leader_replicas", empty_is_null=True)

is a field of ``PartitionRow``, the field ``eligible_leader_replicas`` of ``PartitionRow.RECORD``,
and a column ``elr`` of the tables with the type of the record's field. From it derive

- record -> row (``row_reader``), and row + record of a partial update -> row (``row_updater``),
- row -> record (``row_writer``),
- the columns of the tables and their conversion (``raftlog_state.tables``).

What a declaration cannot express (checks, epochs, removals) is in ``replay`` and ``image_writer``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, dataclass_transform, overload

from raftlog.fast_dataclass import compile_constructor, positional_constructor
from raftlog_state.records.declare import Array, FieldSchema, Scalar, Struct

R = TypeVar("R")
S = TypeVar("S", bound=Struct)
T = TypeVar("T")

Convert: TypeAlias = Callable[[Any], Any]


class Special(enum.Enum):
    """Types of fields whose form differs in records or tables."""

    TIMESTAMP_MS = "timestamp"
    """Milliseconds since 1970. In a table, a TIMESTAMP whose name lacks the suffix ``_ms``."""
    TEXT_PAIRS = "pairs"
    """Sorted pairs of text. In a record, an array of structs of two fields; in a table, a map."""


TIMESTAMP_MS = Special.TIMESTAMP_MS
TEXT_PAIRS = Special.TEXT_PAIRS


class Parts(NamedTuple):
    """Tuple of dataclasses that are declared like rows. In a record, it is an array of structs.

    In a table, it is an array of structs or, with ``by_name``, a map from the first field to the
    other fields.
    """

    part: type
    by_name: bool = False


Kind: TypeAlias = Scalar | Array | Parts | Special | type[enum.StrEnum]
"""Type of a field."""


class ColumnSchema(NamedTuple):
    """Declared field of a row or of a part."""

    name: str
    kind: Kind
    record_field: str | None
    """Name in the record; None if the record does not have the field."""
    empty_is_null: bool
    sort: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None
    has_enum_name: bool
    """Whether the row has a property ``<name>_name``, which has its own column."""
    is_secret: bool
    comment: str
    """Comment of the table's column."""

    @property
    def column(self) -> str:
        """Name of the table's column."""
        return self.name.removesuffix("_ms") if self.kind is Special.TIMESTAMP_MS else self.name


def column(
    kind: Kind | None = None,
    *,
    record: str | None = None,
    default: Any = dataclasses.MISSING,
    compare: bool = True,
    empty_is_null: bool = False,
    sort: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None,
    comment: str = "",
) -> Any:
    """Declare a field of a row or of a part.

    Args:
        kind: the field's type; default: the type of the record's field.
        record: name of the record's field; default: the same name, if the record has it.
        compare: False: not in a snapshot, and therefore not part of equality and digest.
        empty_is_null: null in the record means an empty tuple.
        sort: order of a tuple whose order in the record has no meaning.
        comment: comment of the table's column; a part's fields are not columns.
    """
    declared = {
        "kind": kind,
        "record": record,
        "empty_is_null": empty_is_null,
        "sort": sort,
        "comment": comment,
    }
    return dataclasses.field(default=default, compare=compare, metadata=declared)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(column,))
def row(cls: type[T]) -> type[T]:
    """Declare a row. Its ``repr`` omits fields that its record's omits, which may be secret."""
    record = getattr(cls, "RECORD", None)
    fields = () if record is None else dataclasses.fields(record)
    secret = {entry.name for entry in fields if not entry.repr}
    for name, entry in vars(cls).items():
        if isinstance(entry, dataclasses.Field):
            entry.repr = (entry.metadata["record"] or name) not in secret
    return _declared(dataclass(frozen=True, slots=True, kw_only=True)(cls))


@dataclass_transform(frozen_default=True, field_specifiers=(column,))
def part(cls: type[T]) -> type[T]:
    """Declare a part of a row: the element of a tuple (see ``Parts``)."""
    return _declared(dataclass(frozen=True, slots=True)(cls))


def row_schema(kind: type) -> tuple[ColumnSchema, ...]:
    """Return the declared fields of a row or of a part, in order."""
    return _SCHEMAS[kind]


_SCHEMAS: Final[dict[type, tuple[ColumnSchema, ...]]] = {}


def _declared(cls: type[T]) -> type[T]:
    record: type[Struct] | None = getattr(cls, "RECORD", None)
    known = {} if record is None else _fields_of(record)
    declared: Any = cls
    entries = dataclasses.fields(declared)
    _SCHEMAS[cls] = tuple(_column_schema(cls, entry, known) for entry in entries)
    return cls


def _column_schema(
    kind: type, entry: dataclasses.Field[Any], known: Mapping[str, FieldSchema]
) -> ColumnSchema:
    declared = entry.metadata
    in_record = known.get(declared["record"] or entry.name)
    where = f"{kind.__name__}.{entry.name}"
    assert in_record or not declared["record"], f"{where}: its record has no such field"
    column_kind: Kind | None = declared["kind"]
    if column_kind is None:
        assert in_record is not None, f"{where}: it has no type, and its record has no such field"
        column_kind = in_record.flat_kind
    return ColumnSchema(
        name=entry.name,
        kind=column_kind,
        record_field=None if in_record is None else in_record.attribute,
        empty_is_null=declared["empty_is_null"],
        sort=declared["sort"],
        has_enum_name=isinstance(getattr(kind, f"{entry.name}_name", None), property),
        is_secret=not entry.repr,
        comment=declared["comment"],
    )


# --- conversions ----------------------------------------------------------------------------------


@overload
def row_reader(kind: type[R], record: type[S]) -> Callable[[S], R]: ...


@overload
def row_reader(kind: type[R], record: type[S], *given: str) -> Callable[..., R]: ...


def row_reader(kind: type[R], record: type[S], *given: str) -> Callable[..., R]:
    """Compile the function that returns the row of a record.

    ``given``: fields of the row that are not taken from the record. The function has a positional
    argument for each of them, after the record.
    """
    fields = _fields_of(record)
    values = {name: name for name in given}
    names: dict[str, object] = {}
    for entry in row_schema(kind):
        if entry.name not in given:
            assert entry.record_field is not None, f"{kind.__name__}.{entry.name} is not given"
            value = f"_record.{entry.record_field}"
            values[entry.name] = _reading(entry, fields[entry.record_field], value, names)
    return compile_constructor(kind, ("_record", *given), values, names)


def row_updater(kind: type[R], record: type[Struct], *given: str) -> Callable[..., R]:
    """Compile the function that returns a row after a record of a partial update.

    The function's arguments are the row, the record, and the values of the fields ``given``. The
    record's tagged fields are the update, and their default means "no change"; its other fields
    identify the row. One line of a compiled function::

        _made.leader = _row.leader if (_value := _record.leader) == _same_leader else _value
    """
    columns = {entry.record_field: entry for entry in row_schema(kind)}
    values = {entry.name: f"_row.{entry.name}" for entry in row_schema(kind)}
    names: dict[str, object] = {}
    for field in record.fields_schema:
        if field.tag is not None:
            entry = columns[field.attribute]
            names[f"_same_{entry.name}"] = field.default
            is_same = "is None" if field.default is None else f"== _same_{entry.name}"
            after = _reading(entry, field, "_value", names)
            values[entry.name] = (
                f"_row.{entry.name} if (_value := _record.{field.attribute}) {is_same} else {after}"
            )
    values |= {name: name for name in given}
    return compile_constructor(kind, ("_row", "_record", *given), values, names)


@overload
def row_writer(kind: type[R], record: type[S]) -> Callable[[R], S]: ...


@overload
def row_writer(kind: type[R], record: type[S], *given: str) -> Callable[..., S]: ...


def row_writer(kind: type[R], record: type[S], *given: str) -> Callable[..., S]:
    """Compile the function that returns the record of a row: the inverse of ``row_reader``.

    ``given``: fields of the record that are not taken from the row, as in ``row_reader``. Other
    fields that the row lacks have Kafka's defaults.
    """
    columns = {entry.record_field: entry for entry in row_schema(kind)}
    values = {name: name for name in given} | {"unknown_tags": "()"}
    names: dict[str, object] = {}
    for field in record.fields_schema:
        name = field.attribute
        if name in columns and name not in given:
            values[name] = _writing(columns[name], field, f"_row.{columns[name].name}", names)
        elif name not in given:
            names[f"_default_{name}"] = field.default
            values[name] = f"_default_{name}"
    return compile_constructor(record, ("_row", *given), values, names)


def _reading(column: ColumnSchema, field: FieldSchema, value: str, names: dict[str, object]) -> str:
    """Return the expression of a row's value; ``value`` is the expression of the record's value.

    A function that it uses is added to ``names``.
    """
    if column.empty_is_null:
        return f"{value} or ()"
    if column.kind is Scalar.BOOL and field.kind is Scalar.INT8:
        return f"{value} > 0"  # of a partial update: 1 sets the flag, -1 unsets it
    convert: Convert | None = column.sort
    if isinstance(column.kind, Parts):
        convert = _parts_reading(column.kind.part, _element(field))
    elif column.kind is TEXT_PAIRS:
        convert = _pairs_reading(_element(field))
    return _call(f"_read_{column.name}", convert, value, names)


def _writing(column: ColumnSchema, field: FieldSchema, value: str, names: dict[str, object]) -> str:
    """Return the expression of a record's value; ``value`` is the expression of the row's value."""
    if column.empty_is_null:
        return f"{value} or None"
    convert: Convert | None = None
    if isinstance(column.kind, Parts):
        convert = _parts_writing(column.kind.part, _element(field))
    elif column.kind is TEXT_PAIRS:
        convert = _pairs_writing(_element(field))
    return _call(f"_write_{column.name}", convert, value, names)


def _call(name: str, convert: Convert | None, value: str, names: dict[str, object]) -> str:
    if convert is None:
        return value
    names[name] = convert
    return f"{name}({value})"


def _parts_reading(part: type, struct: type[Struct]) -> Convert:
    """Return a function that sorts by the first field.

    Like Kafka's map, it keeps the last of equal values.
    """
    read: Convert = row_reader(part, struct)
    name = attrgetter(row_schema(part)[0].name)

    def convert(structs: tuple[Struct, ...]) -> tuple[Any, ...]:
        found = {name(one): one for one in map(read, structs)}
        return tuple(found[key] for key in sorted(found))

    return convert


def _parts_writing(part: type, struct: type[Struct]) -> Convert:
    write: Convert = row_writer(part, struct)
    return lambda parts: tuple(map(write, parts))


def _pairs_reading(struct: type[Struct]) -> Convert:
    pair = attrgetter(*_fields_of(struct))
    return lambda structs: tuple(sorted(dict(map(pair, structs)).items()))


def _pairs_writing(struct: type[Struct]) -> Convert:
    write = positional_constructor(struct, (*_fields_of(struct), "unknown_tags"))
    return lambda pairs: tuple(write(*pair, ()) for pair in pairs)


def _element(field: FieldSchema) -> type[Struct]:
    """Return the struct of an array field's elements."""
    assert isinstance(field.kind, Array)
    assert not isinstance(field.kind.element, Scalar)
    return field.kind.element


def _fields_of(record: type[Struct]) -> dict[str, FieldSchema]:
    return {entry.attribute: entry for entry in record.fields_schema}
