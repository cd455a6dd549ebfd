"""Columns of keyed records of Kafka's internal logs: type, version, key and value as JSON.

Each record is decoded once, in Python. Bytes are as in the log, except under full redaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from raftlog_state.errors import MetadataParseError
from raftlog_state.records import Redactor
from raftlog_state.records.internal_logs import InternalLog, RecordText


@dataclass(frozen=True, slots=True)
class InternalFormat:
    """Format of an internal log's records, and which parts of them are hidden."""

    log: InternalLog
    redactor: Redactor


class InternalColumns:
    """Columns of an internal log's records, null where ``is_control`` is true.

    Every property may raise ``MetadataParseError``, if a record is damaged.
    """

    def __init__(
        self,
        keys: pa.BinaryArray,
        values: pa.BinaryArray,
        is_control: list[bool],
        form: InternalFormat,
    ) -> None:
        self._keys = keys
        self._values = values
        self._is_control = is_control
        self._form = form

    @cached_property
    def record_type(self) -> pa.StringArray:
        """Kafka's name of the type, e.g. ``OFFSET_COMMIT``."""
        return pa.array([text and text.type_name for text in self._texts], pa.string())

    @cached_property
    def record_version(self) -> pa.Int32Array:
        """Version of the value; null for a tombstone."""
        return pa.array([text and text.version for text in self._texts], pa.int32())

    @cached_property
    def record_key(self) -> pa.StringArray:
        """Fields of the key as JSON; null if records of the log have no keys."""
        return pa.array([text and text.key for text in self._texts], pa.string())

    @cached_property
    def record(self) -> pa.StringArray:
        """Fields of the value as JSON; null for a tombstone."""
        return pa.array([text and text.value for text in self._texts], pa.string())

    @cached_property
    def key(self) -> pa.BinaryArray:
        """Key bytes."""
        return self._keys if not self._form.redactor.full else self._redacted[0]

    @cached_property
    def value(self) -> pa.BinaryArray:
        """Value bytes."""
        return self._values if not self._form.redactor.full else self._redacted[1]

    def damaged_row(self) -> int | None:
        """Return the first row whose record cannot be parsed."""
        for at, (key, value, is_control) in enumerate(self._records()):
            try:
                if not is_control:
                    self._form.log.text(key, value, self._form.redactor)
            except MetadataParseError:
                return at
        return None

    def _records(self) -> list[tuple[bytes | None, bytes | None, bool]]:
        keys, values = self._keys.to_pylist(), self._values.to_pylist()
        return list(zip(keys, values, self._is_control, strict=True))

    @cached_property
    def _texts(self) -> list[RecordText | None]:
        log, redactor = self._form.log, self._form.redactor
        return [
            None if is_control else log.text(key, value, redactor)
            for key, value, is_control in self._records()
        ]

    @cached_property
    def _redacted(self) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        log, redactor = self._form.log, self._form.redactor
        pairs = [
            (key, value) if is_control else log.redacted(key, value, redactor)
            for key, value, is_control in self._records()
        ]
        return tuple(pa.array([pair[at] for pair in pairs], pa.binary()) for at in (0, 1))
