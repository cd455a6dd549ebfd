"""Redaction of secrets in metadata records. No other module decides what is secret.

Secret are:

1. Salt, stored key and server key of a SCRAM credential; not name, mechanism and iterations.
2. The value of a config of type PASSWORD or of unknown name (see ``config_types``); not its
   removal (null).
3. The payload of a record of unknown type or version, and the data of every unknown tagged field;
   not their numbers.
4. Nothing of a delegation token: its HMAC, the password, is never in the log, since Kafka computes
   it from the cluster's secret key; the id is public, as in ``describeTokens``.

A secret is replaced by a fixed mask or, with a key, by text such as ``hmac:0f3a..``: 128 bits of
HMAC-SHA256, which are equal for equal secrets. The hash covers the field and the config's name, so
that equal secrets of different fields have different hashes. In fields of type bytes the text is
stored as bytes, whose JSON is base64. An unknown payload becomes empty. A redacted record keeps its
type and version.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raftlog.errors import OptionError
from raftlog.limits import REDACTION_KEY_BYTES_MIN

from .config_types import is_secret_config, public_config_names
from .declare import MetadataRecord, Struct, UnknownTag
from .decoded import DecodedRecord, UnknownRecord
from .schema_access import ConfigRecord, UserScramCredentialRecord
from .serde import decode, to_json_text

MASK: Final = "[redacted]"
"""Replacement of a secret without a redaction key."""

HASH_PREFIX: Final = "hmac:"
_HASH_BYTES: Final = 16
_REPLACEMENT: Final = re.compile(f"{re.escape(MASK)}|{HASH_PREFIX}[0-9a-f]{{{2 * _HASH_BYTES}}}")
_ANY_TEXT: Final = ("utf-8", "surrogatepass")


def is_redacted(text: str) -> bool:
    """Return whether a value is the replacement of a secret."""
    return _REPLACEMENT.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Redactor:
    """Redactor of records. Immutable and picklable; its key is not in ``repr``.

    Args:
        key: at least 16 bytes; secrets become keyed hashes. None: a fixed mask.
        reveal: turn redaction off.

    Raises:
        OptionError: the key is shorter than 16 bytes.
    """

    key: bytes | None = field(default=None, repr=False)
    reveal: bool = False

    def __post_init__(self) -> None:
        if self.key is not None and len(self.key) < REDACTION_KEY_BYTES_MIN:
            reason = f"it must have at least {REDACTION_KEY_BYTES_MIN} bytes"
            raise OptionError(option="redaction key", reason=reason)

    def redact(self, decoded: DecodedRecord) -> DecodedRecord:
        """Return the record with its secrets replaced; the same object if it has none."""
        if self.reveal:
            return decoded
        record = decoded.record
        if isinstance(record, UnknownRecord):
            return DecodedRecord(decoded.version, replace(record, payload=b""))
        hidden = self._hide_tags(record)
        if isinstance(record, ConfigRecord):
            hidden = hidden | self._hide_config(record)
        elif isinstance(record, UserScramCredentialRecord):
            hidden = hidden | self._hide_scram(record)
        return DecodedRecord(decoded.version, replace(record, **hidden)) if hidden else decoded

    def record_json(self, value: bytes) -> str:
        """Return the JSON text of the redacted record, as kafka-dump-log prints it.

        Raises:
            MetadataParseError: the bytes are damaged.
        """
        return to_json_text(self.redact(decode(value)))

    def mask(self, secret: bytes, label: str) -> str:
        """Return the replacement of ``secret``. ``label`` is its field and part of the hash."""
        if self.key is None:
            return MASK
        salted = f"{len(label)} {label} ".encode(*_ANY_TEXT) + secret
        return HASH_PREFIX + hmac.digest(self.key, salted, hashlib.sha256)[:_HASH_BYTES].hex()

    def _hide_config(self, record: ConfigRecord) -> dict[str, Any]:
        if record.value is None or not is_secret_config(record.resource_type, record.name):
            return {}
        return {"value": self.mask(record.value.encode(*_ANY_TEXT), f"config {record.name}")}

    def _hide_scram(self, record: UserScramCredentialRecord) -> dict[str, Any]:
        return {
            name: self.mask(getattr(record, name), f"scram {name}").encode()
            for name in ("salt", "stored_key", "server_key")
        }

    def _hide_tags(self, record: Struct) -> dict[str, Any]:
        """Return replacements of the unknown tagged fields of a record and of its structs."""
        hidden: dict[str, Any] = {}
        if record.unknown_tags:
            hidden["unknown_tags"] = tuple(
                UnknownTag(one.tag, self.mask(one.data, f"tag {one.tag}").encode())
                for one in record.unknown_tags
            )
        for name in record.struct_arrays:
            elements: tuple[Struct, ...] = getattr(record, name)
            redacted = [self._hide_tags(element) for element in elements]
            if any(redacted):
                hidden[name] = tuple(map(_replaced, elements, redacted))
        return hidden


def _replaced(element: Struct, hidden: dict[str, Any]) -> Struct:
    return replace(element, **hidden) if hidden else element


# --- What the compiled core may show --------------------------------------------------------------
# It shows a field that is declared as ``shown=False`` only if it is null, or the value of a config
# in the list below. Everything else is decided above.


@dataclass(frozen=True, slots=True)
class Guard:
    """Record type, and its fields that decide whether the one that may be secret is public."""

    record: type[MetadataRecord]
    resource_type: str
    name: str


CONFIG_GUARD: Final = Guard(ConfigRecord, "resource_type", "name")


def public_configs() -> list[tuple[int, bytes]]:
    """Return resource type and name of all configs whose values are shown."""
    return [(resource_type, name.encode()) for resource_type, name in public_config_names()]
