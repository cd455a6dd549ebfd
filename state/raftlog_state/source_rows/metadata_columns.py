"""Columns of metadata records: type, version, JSON, typed fields, and the redacted value.

Type and version are read from the frames of all values. Every value is redacted, because any record
may have a secret in an unknown tagged field. The compiled core writes the JSON of plain records,
whose values have no secret; the others are decoded in Python. Values and JSON share one decoding,
and equal values are decoded once: most records of an idle cluster are the same four bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog import compiled
from raftlog_state.records import (
    RECORD_TYPES,
    UNKNOWN_TYPE,
    DecodedRecord,
    MetadataRecord,
    Redactor,
    data_json,
    decode,
    encode,
)
from raftlog_state.records.native_json import NativeJson, write_json
from raftlog_state.records.native_program import value_buffers
from raftlog_state.records.typed_columns import Int32s, frames, spread_columns

_NONE: Final = -1

_UNKNOWN_KEY: Final = max(kind.schema.api_key for kind in RECORD_TYPES) + 1
_LATEST_VERSION: Final = np.full(_UNKNOWN_KEY + 1, _NONE, dtype=np.int32)
_NAMES = [UNKNOWN_TYPE] * (_UNKNOWN_KEY + 1)
for _kind in RECORD_TYPES:
    _LATEST_VERSION[_kind.schema.api_key] = _kind.schema.latest_version
    _NAMES[_kind.schema.api_key] = _kind.schema.json_type
_TYPE_NAMES: Final = pa.array(_NAMES, pa.string())
"""Names by api key; the last one is for unknown types."""


_NATIVE_NAMES: Final = (
    compiled.core.distinct_values(*value_buffers(_TYPE_NAMES), 1) if compiled.is_native else None
)


def _names_of(ordinals: Int32s) -> pa.StringArray:
    """Return the name of the type at each ordinal, null for -1."""
    found = None
    if _NATIVE_NAMES is not None:
        found = _NATIVE_NAMES.gather(ordinals.view(np.uint8).data)
    if found is None:
        return _TYPE_NAMES.take(pa.array(ordinals, mask=ordinals == _NONE))
    buffers = [None if one is None else pa.py_buffer(one) for one in found]
    return pa.Array.from_buffers(pa.string(), len(ordinals), buffers)


class MetadataColumns:
    """Columns of the metadata records ``values``; null where a value is null.

    Every property may raise ``MetadataParseError``, if it parses a damaged value.
    """

    def __init__(
        self,
        values: pa.BinaryArray,
        redactor: Redactor,
        decoded: dict[bytes, DecodedRecord] | None = None,
        kinds: Sequence[type[MetadataRecord]] = (),
    ) -> None:
        """``decoded`` receives the records that are decoded here, by their redacted bytes.

        ``kinds`` are the record types with a typed column.
        """
        self._values = values
        self._redactor = redactor
        self._decoded_values = decoded
        self._kinds = kinds

    @cached_property
    def record_type(self) -> pa.StringArray:
        """Kafka's name of the type, e.g. ``TOPIC_RECORD``."""
        api_keys, versions = self._frames
        latest = _LATEST_VERSION.take(api_keys, mode="clip")
        ordinals = np.where(versions <= latest, api_keys, _UNKNOWN_KEY)
        return _names_of(ordinals)

    @cached_property
    def record_version(self) -> pa.Int32Array:
        """Version of the record."""
        versions = self._frames[1]
        return pa.array(versions, mask=versions == _NONE)

    @cached_property
    def record(self) -> pa.StringArray:
        """Redacted fields as JSON."""
        texts = [data_json(redacted) for _, _, redacted in self._decoded]
        in_python = pa.array(texts, pa.string()).take(self._encoded.indices)
        if self._native is None:
            return in_python
        count = len(self._values)
        buffers = [None, pa.py_buffer(self._native.ends), pa.py_buffer(self._native.text)]
        plain = pa.Array.from_buffers(pa.string(), count, buffers)
        return self._merged(plain, in_python)

    @cached_property
    def value(self) -> pa.BinaryArray:
        """Value bytes, encoded again if they contain a secret."""
        if self._redactor.reveal:
            return self._values
        encoded = [
            value if redacted is decoded else encode(redacted)
            for value, decoded, redacted in self._decoded
        ]
        if self._decoded_values is not None:
            records = (redacted for _, _, redacted in self._decoded)
            self._decoded_values.update(zip(encoded, records, strict=True))
        in_python = pa.array(encoded, pa.binary()).take(self._encoded.indices)
        return in_python if self._native is None else self._merged(self._values, in_python)

    def fields(self, kind: type[MetadataRecord]) -> pa.StructArray:
        """Return the redacted fields of the records of one type, which is one of ``kinds``."""
        return self._typed[kind]

    @cached_property
    def _typed(self) -> dict[type[MetadataRecord], pa.StructArray]:
        return spread_columns(self._values, self._kinds, self._redactor, self._frames)

    @cached_property
    def _frames(self) -> tuple[Int32s, Int32s]:
        return frames(self._values)

    @cached_property
    def _native(self) -> NativeJson | None:
        """JSON of the plain records; None if all are decoded in Python."""
        if not compiled.is_native or self._decoded_values is not None or not len(self._values):
            return None
        given = self._values.is_null().to_numpy(zero_copy_only=False)
        return write_json(self._values, given, reveal=self._redactor.reveal)

    def _merged(self, plain: pa.Array, in_python: pa.Array) -> pa.Array:
        """Return ``plain`` with the rows that are decoded in Python replaced."""
        assert self._native is not None
        rows = self._native.rows
        if not len(rows):
            return plain
        mask = np.zeros(len(self._values), np.bool_)
        mask[rows] = True
        return pc.replace_with_mask(plain, pa.array(mask), in_python)

    @cached_property
    def _encoded(self) -> pa.DictionaryArray:
        """The values that are decoded in Python: all, or those that the core returned undecoded."""
        values = self._values
        if self._native is not None:
            values = values.take(pa.array(self._native.rows))
        return values.dictionary_encode()

    @cached_property
    def _decoded(self) -> list[tuple[bytes, DecodedRecord, DecodedRecord]]:
        """Distinct values: the bytes, the record, and the redacted record."""
        values: list[bytes] = self._encoded.dictionary.to_pylist()
        records = [(value, decode(value)) for value in values]
        if self._decoded_values is not None and self._redactor.reveal:
            self._decoded_values.update(records)
        return [(value, record, self._redactor.redact(record)) for value, record in records]
