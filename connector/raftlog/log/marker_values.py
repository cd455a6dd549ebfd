"""Values of the three metadata records that delimit a transaction: recognition and encoding.

A value is one of them if it begins with frame version 1 and their api key; the rest is validated by
the decoder of metadata records. Only a Begin's name is read here, and a name that cannot be parsed
is ignored. Values are written in version 0, as by Kafka (KIP-868: ``BeginTransactionRecord``,
``EndTransactionRecord``, ``AbortTransactionRecord``).
"""

from __future__ import annotations

from typing import Final

from raftlog.errors import CorruptBatchError
from raftlog.records.control import FieldReader, TaggedField, string_bytes, tagged_bytes

from .transactions import Marker

FRAME_VERSION: Final = 1
assert max(Marker) < 0x80, "an api key of one byte, as an unsigned varint"

_FRAME_BYTES: Final = 3
"""Frame version, api key and version."""
_TEXT_TAG: Final = 0
"""Tag of the one field of Begin (its name) and Abort (its reason): a compact string."""


def marker_of(value: bytes | None) -> Marker | None:
    """Return the marker that a record's value encodes; None if it is another record."""
    if value is None or len(value) < 2 or value[0] != FRAME_VERSION:
        return None
    api_key = value[1]
    return Marker(api_key) if Marker.BEGIN <= api_key <= Marker.ABORT else None


def transaction_name(value: bytes) -> str | None:
    """Return the name in a Begin record; None if it has none."""
    reader = FieldReader(value[_FRAME_BYTES:])
    try:
        for tagged in reader.tagged_fields():
            if tagged.tag == _TEXT_TAG:
                return FieldReader(tagged.data).string()
    except CorruptBatchError:
        return None
    return None


def marker_value(marker: Marker, text: str | None = None) -> bytes:
    """Encode a marker. ``text`` is a Begin's name or an Abort's reason."""
    assert text is None or marker is not Marker.END, "an End has neither name nor reason"
    fields = () if text is None else (TaggedField(_TEXT_TAG, string_bytes(text)),)
    return bytes((FRAME_VERSION, marker, 0)) + tagged_bytes(fields)
