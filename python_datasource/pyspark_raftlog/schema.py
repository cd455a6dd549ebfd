"""Columns of the source with their Spark types, and projection to a user's schema.

All columns are nullable, as their Arrow types. A user's schema with a subset of the columns, in any
order, is a projection: other columns are not decoded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from raftlog.client.location import PATH, PREFIX
from raftlog.client.remote.security import SECRET_OPTIONS, is_reference
from raftlog.errors import OptionError
from raftlog.printable import did_you_mean
from raftlog_state.records.typed_columns import TYPED_COLUMNS
from raftlog_state.source_rows.columns import COLUMNS as ARROW_COLUMNS

from .options import is_spark_option, source_list

if TYPE_CHECKING:
    from .options import RaftlogOptions

COLUMNS: Final[Mapping[str, DataType]] = {
    name: from_arrow_type(kind) for name, kind in ARROW_COLUMNS.items()
}
"""Name to Spark type."""


def available_columns(options: RaftlogOptions) -> tuple[str, ...]:
    """Return the columns that ``options`` enable, in order."""
    typed = dict.fromkeys(TYPED_COLUMNS, options.has_typed_columns)
    asked = {
        **typed,
        "record": not options.has_typed_columns,
        "clusterId": options.has_cluster_ids,
        "headers": options.include_headers,
        "controlType": options.include_control_records,
        "producerId": options.include_control_records,
    }
    return tuple(name for name in COLUMNS if asked.get(name, True))


def source_schema(options: RaftlogOptions) -> StructType:
    """Return the schema of ``load()`` without a user's schema."""
    return StructType([StructField(name, COLUMNS[name]) for name in available_columns(options)])


def project(schema: StructType, options: RaftlogOptions) -> tuple[str, ...]:
    """Return the columns of a user's schema, in its order.

    Raises:
        OptionError: a column is unknown, requires an option that is not set, is duplicated, or has
            another type or ``NOT NULL``; or the schema is empty.
    """
    if not schema.fields:
        raise _refused("has no columns")
    offered = available_columns(options)
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        if field.name not in offered:
            raise _refused(_why_not_offered(field.name))
        if names.count(field.name) > 1:
            raise _refused(f"has column {field.name} twice")
        wanted = COLUMNS[field.name]
        if field.dataType != wanted:
            kind, other = wanted.simpleString(), field.dataType.simpleString()
            reason = f"column {field.name} must be {kind}, but is {other}; cast it in the query"
            raise _refused(reason)
        if not field.nullable:
            raise _refused(f"column {field.name} must be nullable")
    return tuple(names)


# --- Options of a catalog's table -----------------------------------------------------------------
# Spark creates a table with the options of CREATE TABLE, but reads it without any. The columns that
# the source returned are stored with the table, so the first column carries the options as
# metadata.

_OPTIONS_KEY: Final = "raftlog.options"
_SECRETS: Final = SECRET_OPTIONS | {"redactkey", "redactsecret"}


def with_table_options(schema: StructType, given: Mapping[str, str]) -> StructType:
    """Return the columns of a new table, with its options. Raises ``OptionError`` for a secret."""
    kept = {name: value for name, value in given.items() if not is_spark_option(name)}
    refuse_secrets(kept, "CREATE TABLE: the catalog stores it in clear text")
    first, *others = schema.fields
    metadata = {_OPTIONS_KEY: json.dumps(kept)}
    return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])


def refuse_secrets(given: Mapping[str, str], where: str) -> None:
    """Raise ``OptionError`` for a secret that is no reference; ``where`` it is, and why not."""
    for name, value in [pair for option in given.items() for pair in _pairs_of(*option)]:
        is_secret = name.rpartition("].")[2].lower().removeprefix(PREFIX) in _SECRETS
        if is_secret and not is_reference(value):
            remedy = "use a reference such as ${file:PATH:NAME}, or load()"
            raise OptionError(option=name, reason=f"is not allowed in {where}; {remedy}")


def _pairs_of(name: str, value: str) -> list[tuple[str, str]]:
    """Return name and value of an option, and those of the options in ``sources``."""
    if name.lower() != "sources":
        return [(name, value)]
    sources = enumerate(source_list(name, value))
    return [(f"{name}[{at}].{inner}", text) for at, options in sources for inner, text in options]


def table_options(schema: StructType) -> dict[str, str]:
    """Return the options stored in a table's columns. Raises ``OptionError`` if there are none."""
    for field in schema.fields:
        if _OPTIONS_KEY in field.metadata:
            found: dict[str, str] = json.loads(field.metadata[_OPTIONS_KEY])
            return found
    raise OptionError(
        option=PATH,
        reason="is missing: call load(path), or give bootstrap.servers; a table with declared "
        "columns has lost its options, as Spark does not pass them: create it without columns, or "
        "create a temporary view",
    )


def _why_not_offered(name: str) -> str:
    match name:
        case "clusterId":
            return "column clusterId requires option sources"
        case "headers":
            return "column headers requires option includeHeaders=true"
        case "record":
            return "column record requires option columns=json, the default"
        case _ if name in TYPED_COLUMNS:
            return f"column {name} requires option columns=typed"
        case "controlType" | "producerId":
            return f"column {name} requires option includeControlRecords=true"
        case _:
            shown = [column for column in COLUMNS if column not in TYPED_COLUMNS]
            hint = did_you_mean(name, COLUMNS) or "columns are " + ", ".join(shown)
            return f"column {name} is unknown; {hint}"


def _refused(reason: str) -> OptionError:
    return OptionError(option="schema", reason=reason)
