"""The one place that decides what is secret, and what stands in its place.

What is secret:

1. Of a SCRAM credential: salt, stored key and server key. Name, mechanism and iterations are not.
2. The value of a config of Kafka's type PASSWORD, or of a name that Kafka does not know (see
   ``config_types``). That a config was removed (null) is not.
3. The payload of a record whose type or version is not known, and the content of every tagged field
   that is not known: they may hold anything. Their numbers stay.
4. Nothing of a delegation token: its HMAC, the password, is never in the log, since Kafka computes
   it from the cluster's secret key; the id is its public name, as in ``describeTokens``.

What stands in its place: without a key a fixed mask; with one a text such as ``hmac:0f3a..``, 128
bits of HMAC-SHA256 under the user's key, which answers "did it change?" and "is it the same on all
brokers?". The hash covers the field and the config's name, so that equal secrets of two kinds do
not look equal. In fields of bytes the same text stands as bytes: its JSON is base64. An unknown
payload leaves nothing. A redacted value decodes as the type and version that it was.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raftlog.errors import OptionError
from raftlog.limits import REDACTION_KEY_BYTES_MIN

from .config_types import is_secret_config
from .declare import Struct, UnknownTag
from .decoded import DecodedRecord, UnknownRecord
from .schema_access import ConfigRecord, UserScramCredentialRecord
from .serde import decode, to_json_text

MASK: Final = "[redacted]"
"""What stands for a secret where no key was given."""

HASH_PREFIX: Final = "hmac:"
_HASH_BYTES: Final = 16
_ANY_TEXT: Final = ("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Redactor:
    """Hides secrets of records. Immutable; may be pickled to executors; never shows its key.

    Args:
        key: the user's, at least 16 bytes; secrets become keyed hashes. None: a fixed mask.
        reveal: True turns redaction off; it must be asked for.

    Raises:
        OptionError: the key is too short to keep guesses out.
    """

    key: bytes | None = field(default=None, repr=False)
    reveal: bool = False

    def __post_init__(self) -> None:
        if self.key is not None and len(self.key) < REDACTION_KEY_BYTES_MIN:
            reason = f"it must have at least {REDACTION_KEY_BYTES_MIN} bytes"
            raise OptionError(option="redaction key", reason=reason)

    def redact(self, decoded: DecodedRecord) -> DecodedRecord:
        """The same record with its secrets replaced; the same object where it holds none."""
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
        """The JSON text of the redacted record, as kafka-dump-log prints it.

        Raises:
            MetadataParseError: the bytes are damaged.
        """
        return to_json_text(self.redact(decode(value)))

    def mask(self, secret: bytes, label: str) -> str:
        """What is shown for ``secret``. ``label`` names its field: hashes of two labels differ."""
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
        """Stand-ins for the unknown tagged fields of a record and of the structs in its arrays."""
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
