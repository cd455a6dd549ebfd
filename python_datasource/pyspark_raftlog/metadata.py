"""Columns about metadata records: type, version, JSON, and the value without its secrets.

Rules of this file:

1. Type and version are read from the frames of all values at once, by numpy; only a frame that is
   longer than usual is taken apart alone.
2. Secrets may hide in any record (in a tagged field that is not known yet), so every value goes
   through the redactor, the one place that knows them. Values and JSON share one decoding.
3. Equal values are decoded once: most records of an idle cluster are the same four bytes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raftlog_state.records import (
    RECORD_TYPES,
    DecodedRecord,
    Redactor,
    decode,
    encode,
    peek,
    to_json_text,
)

Int32s = npt.NDArray[np.int32]

FRAME_BYTES: Final = 3
"""Frame version, api key and version, where each is a varint of one byte."""
_FRAME_VERSION: Final = 1
_ONE_BYTE_MAX: Final = 0x7F
_NONE: Final = -1

UNKNOWN_TYPE: Final = "UNKNOWN"
"""What the JSON of a record says whose type or version is not known."""

_UNKNOWN_KEY: Final = max(kind.schema.api_key for kind in RECORD_TYPES) + 1
_LATEST_VERSION: Final = np.full(_UNKNOWN_KEY + 1, _NONE, dtype=np.int32)
_TYPE_NAMES: Final = [UNKNOWN_TYPE] * (_UNKNOWN_KEY + 1)
for _kind in RECORD_TYPES:
    _LATEST_VERSION[_kind.schema.api_key] = _kind.schema.latest_version
    _TYPE_NAMES[_kind.schema.api_key] = _kind.schema.json_type


def frames(values: pa.BinaryArray) -> tuple[Int32s, Int32s]:
    """Api keys and versions of metadata records; -1 in both for a null.

    Raises:
        MetadataParseError: a value has no frame.
    """
    api_keys = np.full(len(values), _NONE, dtype=np.int32)
    versions = np.full(len(values), _NONE, dtype=np.int32)
    if not len(values):
        return api_keys, versions
    _, offsets_buffer, data_buffer = values.buffers()
    bounds = np.frombuffer(offsets_buffer, dtype=np.int32)[values.offset :][: len(values) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    is_there = np.asarray(values.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    plain = np.flatnonzero(is_there & (np.diff(bounds) >= FRAME_BYTES))
    begins = bounds[plain]
    keys, their_versions = data[begins + 1], data[begins + 2]
    short = (
        (data[begins] == _FRAME_VERSION)
        & (keys <= _ONE_BYTE_MAX)
        & (their_versions <= _ONE_BYTE_MAX)
    )
    rows = plain[short]
    api_keys[rows], versions[rows] = keys[short], their_versions[short]
    for row in np.flatnonzero(is_there & (api_keys == _NONE)).tolist():
        api_keys[row], versions[row] = peek(values[row].as_py())
    return api_keys, versions


class MetadataColumns:
    """The columns about the metadata records ``values``; null where a value is null.

    Every property may raise ``MetadataParseError``: a value is damaged, and the column needs to
    look into it.
    """

    def __init__(self, values: pa.BinaryArray, redactor: Redactor) -> None:
        self._values = values
        self._redactor = redactor

    @cached_property
    def record_type(self) -> pa.StringArray:
        """Kafka's name of the type, such as ``TOPIC_RECORD``."""
        api_keys, versions = self._frames
        latest = _LATEST_VERSION[np.clip(api_keys, 0, _UNKNOWN_KEY)]
        ordinals = np.where(versions <= latest, api_keys, _UNKNOWN_KEY)
        return pa.array(_TYPE_NAMES, pa.string()).take(pa.array(ordinals, mask=api_keys == _NONE))

    @cached_property
    def record_version(self) -> pa.Int32Array:
        """The version that the record was written in."""
        versions = self._frames[1]
        return pa.array(versions, mask=versions == _NONE)

    @cached_property
    def record(self) -> pa.StringArray:
        """The fields as JSON, without secrets."""
        texts = [_data_of(to_json_text(redacted)) for _, _, redacted in self._decoded]
        return pa.array(texts, pa.string()).take(self._encoded.indices)

    @cached_property
    def value(self) -> pa.BinaryArray:
        """The value bytes, written again where they held a secret."""
        if self._redactor.reveal:
            return self._values
        made = [
            value if redacted is decoded else encode(redacted)
            for value, decoded, redacted in self._decoded
        ]
        return pa.array(made, pa.binary()).take(self._encoded.indices)

    @cached_property
    def _frames(self) -> tuple[Int32s, Int32s]:
        return frames(self._values)

    @cached_property
    def _encoded(self) -> pa.DictionaryArray:
        return self._values.dictionary_encode()

    @cached_property
    def _decoded(self) -> list[tuple[bytes, DecodedRecord, DecodedRecord]]:
        """Each different value: its bytes, the record, and the record without secrets."""
        values: list[bytes] = self._encoded.dictionary.to_pylist()
        records = [(value, decode(value)) for value in values]
        return [(value, record, self._redactor.redact(record)) for value, record in records]


_DATA: Final = '"data":'


def _data_of(text: str) -> str:
    """``{..}`` of ``{"type":..,"version":..,"data":{..}}``; what comes before holds no ``data``."""
    return text[text.index(_DATA) + len(_DATA) : -1]
