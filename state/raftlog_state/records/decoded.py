"""What a value decodes to: a record of a known type with its version, or an unknown one, raw."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from .declare import MetadataRecord


class UnknownReason(enum.Enum):
    """Why a record was not decoded: this schema is older than the log."""

    API_KEY = "api key"
    VERSION = "version"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord:
    """A record type, or a version of one, that this schema does not know. Never an error.

    ``payload`` is what follows the frame version, api key and version; empty where it was hidden
    (no real record is that short: every one of them ends with a tag count).
    """

    api_key: int
    version: int
    reason: UnknownReason
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A record and the version that it was, or is to be, written in."""

    version: int
    record: MetadataRecord | UnknownRecord
