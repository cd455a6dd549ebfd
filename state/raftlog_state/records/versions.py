"""Checks of a record against a version of its type, and the field path in their errors.

A field that is set but that the version lacks is an error. Kafka drops fields marked "ignorable".
No metadata record has such fields. Of the other internal records, only those that are written in
their latest version have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raftlog_state.errors import InvalidRecordError, UnsupportedVersionError

from .declare import VERSION_MAX, Message, Struct


@dataclass(frozen=True, slots=True)
class FieldPath:
    """Path of a field in a record of one version, in Kafka's names, for error messages."""

    record: str
    version: int
    field: str = ""

    def within(self, name: str) -> FieldPath:
        return FieldPath(self.record, self.version, f"{self.field}.{name}" if self.field else name)

    def invalid(self, reason: str) -> InvalidRecordError:
        return InvalidRecordError(
            record=self.record, version=self.version, field=self.field, reason=reason
        )


def check_version(kind: type[Message], version: int) -> None:
    """Raise ``UnsupportedVersionError`` if the type has no such version."""
    schema = kind.schema
    if not schema.lowest_version <= version <= schema.latest_version:
        raise UnsupportedVersionError(
            record=schema.name,
            version=version,
            reason=f"supported versions are {schema.lowest_version} to {schema.latest_version}",
        )


def absence_check(cls: type[Struct], record: str, version: int) -> Callable[[Any], None] | None:
    """Compile the check that each field that ``version`` lacks is at its default.

    Return None if the version has all fields. The check raises ``UnsupportedVersionError`` with the
    name of the field.
    """
    absent = tuple(field for field in cls.fields_schema if not field.is_in(version))
    if not absent:
        return None

    def check(value: Struct) -> None:
        for field in absent:
            if getattr(value, field.attribute) != field.default:
                versions = f"since version {field.since}"
                if field.until < VERSION_MAX:
                    versions = f"in versions {field.since} to {field.until}"
                raise UnsupportedVersionError(
                    record=record,
                    version=version,
                    reason=f"field {field.json_name} is set, which exists {versions}",
                )

    return check
