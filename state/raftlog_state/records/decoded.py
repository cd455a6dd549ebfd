"""Result of decoding a value: a typed record with its version, or an unknown record, raw."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .declare import MetadataRecord


class UnknownReason(enum.Enum):
    """Reason why a record was not decoded: its api key or its version is unknown."""

    API_KEY = "api key"
    VERSION = "version"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord:
    """Record of unknown type or version.

    ``payload``: the bytes after the frame version, api key and version; empty if redacted (a real
    payload has at least a tag count).
    """

    api_key: int
    version: int
    reason: UnknownReason
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """Record and its version on the wire."""

    version: int
    record: MetadataRecord | UnknownRecord
