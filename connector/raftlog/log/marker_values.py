"""The values of the three records that frame a metadata transaction, both ways.

Rules of this file:

1. A value is one of them if it begins with frame version 1 and their api key; nothing else of it is
   asked. Whoever decodes the record says what is wrong with the rest.
2. Only the name is read. It is an ornament to the log: a name that does not parse is none.
3. What is written is version 0, as Kafka writes it (KIP-868: ``BeginTransactionRecord``,
   ``EndTransactionRecord``, ``AbortTransactionRecord``).
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import CorruptBatchError
from raftlog.records.fields import FieldReader, TaggedField, string_bytes, tagged_bytes

from .transactions import Marker

FRAME_VERSION: Final = 1
assert max(Marker) < 0x80, "an api key of one byte, as an unsigned varint"

_FRAME_BYTES: Final = 3
"""Frame version, api key and version."""
_TEXT_TAG: Final = 0
"""The one field that Begin (its name) and Abort (its reason) have: a tagged compact string."""


def marker_of(value: bytes | None) -> Marker | None:
    """Which marker a record's value is, or None."""
    if value is None or len(value) < 2 or value[0] != FRAME_VERSION:
        return None
    api_key = value[1]
    return Marker(api_key) if Marker.BEGIN <= api_key <= Marker.ABORT else None


def transaction_name(value: bytes) -> str | None:
    """The name in a Begin record, or None."""
    reader = FieldReader(value[_FRAME_BYTES:])
    try:
        for tagged in reader.tagged_fields():
            if tagged.tag == _TEXT_TAG:
                return FieldReader(tagged.data).string()
    except CorruptBatchError:
        return None
    return None


def marker_value(marker: Marker, text: str | None = None) -> bytes:
    """The value of a marker. ``text``: a Begin's name, or an Abort's reason."""
    assert text is None or marker is not Marker.END, "the end of a transaction says nothing"
    fields = () if text is None else (TaggedField(_TEXT_TAG, string_bytes(text)),)
    return bytes((FRAME_VERSION, marker, 0)) + tagged_bytes(fields)
