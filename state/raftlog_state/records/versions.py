"""What a version of a record can hold, and where in it something is wrong.

Kafka drops fields in silence where its message files say so ("ignorable"); no metadata record has
such a field, so whatever a version cannot hold is an error that names the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raftlog.errors import InvalidRecordError, UnsupportedVersionError

from .declare import MetadataRecord, Struct


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A field of a record in a version, by Kafka's names: what errors about it say."""

    record: str
    version: int
    field: str = ""

    def within(self, name: str) -> FieldPath:
        return FieldPath(self.record, self.version, f"{self.field}.{name}" if self.field else name)

    def invalid(self, reason: str) -> InvalidRecordError:
        return InvalidRecordError(
            record=self.record, version=self.version, field=self.field, reason=reason
        )


def check_version(kind: type[MetadataRecord], version: int) -> None:
    """Raise ``UnsupportedVersionError`` unless this schema knows ``version`` of the type."""
    schema = kind.schema
    if not schema.lowest_version <= version <= schema.latest_version:
        raise UnsupportedVersionError(
            record=schema.name,
            version=version,
            reason=f"known are {schema.lowest_version} to {schema.latest_version}",
        )


def absence_check(cls: type[Struct], record: str, version: int) -> Callable[[Any], None] | None:
    """Compile the check that each field which ``version`` lacks is at its default; None: none is.

    Raises (the check): ``UnsupportedVersionError`` with the name of the field that is not.
    """
    absent = tuple(field for field in cls.fields_schema if field.since > version)
    if not absent:
        return None

    def check(value: Struct) -> None:
        for field in absent:
            if getattr(value, field.attribute) != field.default:
                raise UnsupportedVersionError(
                    record=record,
                    version=version,
                    reason=f"{field.json_name} is set, and exists since version {field.since}",
                )

    return check
