"""Redaction of secrets in internal records. No other module decides what is secret.

These are secret:

1. Salt, stored key and server key of a SCRAM credential. Its name, mechanism and iterations are not
   secret.
2. The value of a config whose type is PASSWORD or whose name is unknown (see ``config_types``). Its
   removal (null) is not secret.
3. The payload of a record of unknown type or version, and the data of every unknown tagged field.
   Their numbers are not secret.
4. Nothing of a delegation token. Its HMAC, the password, is never in the log, because Kafka
   computes it from the cluster's secret key. Its id is public, as in ``describeTokens``.

The records of Kafka's coordinators and of remote storage contain no secrets. Full redaction also
hides data that clients send: their hosts, the metadata of offset commits, the user data of
subscriptions and assignments, endpoints and tags, and unknown data. Such fields are declared as
``of_client``.

A secret is replaced with a fixed mask or, with a key, with text such as ``hmac:5c01a9d2:0f3a..``:
the id of the key, and 128 bits of HMAC-SHA256, which are equal for equal secrets. The hash covers
the field and the config's name, so that equal secrets of different fields have different hashes.
The id is 32 bits of a hash with the same key, and distinguishes hashes of a key from those of a
later key. In fields of type bytes, the text is stored as bytes, whose JSON is base64. An unknown
payload becomes empty. A redacted record keeps its type and version.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from raftlog.errors import OptionError
from raftlog.limits import REDACTION_KEY_BYTES_MIN, REDACTION_KEY_DISTINCT_MIN

from .config_types import is_secret_config, public_config_names
from .declare import FieldSchema, Message, MetadataRecord, Struct, UnknownTag
from .schema_access import ConfigRecord, UserScramCredentialRecord
from .serde import DecodedRecord, UnknownRecord, decode, to_json_text

if TYPE_CHECKING:
    from .keyed_serde import KeyedRecord

MASK: Final = "[redacted]"
"""Replacement of a secret without a redaction key."""

HASH_PREFIX: Final = "hmac:"
_HASH_BYTES: Final = 16
_KEY_ID_BYTES: Final = 4
_KEY_ID_TEXT: Final = b"raftlog redaction key id"
"""Hashed for the id of a key. No secret is hashed as this text: theirs begin with a digit."""
_REPLACEMENT: Final = re.compile(
    rf"{re.escape(MASK)}|{HASH_PREFIX}"
    rf"([0-9a-f]{{{2 * _KEY_ID_BYTES}}}:)?[0-9a-f]{{{2 * _HASH_BYTES}}}"
)
"""The key's id is optional: tables of earlier releases have hashes without it."""
_K = TypeVar("_K", bound=Message | UnknownRecord | None)
_ANY_TEXT: Final = ("utf-8", "surrogatepass")


def _key_id(key: bytes) -> str:
    return hmac.digest(key, _KEY_ID_TEXT, hashlib.sha256)[:_KEY_ID_BYTES].hex()


def is_redacted(text: str) -> bool:
    """Return whether a value is the replacement of a secret."""
    return _REPLACEMENT.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Redactor:
    """Redactor of records. Immutable and picklable; its key is not in ``repr``.

    Args:
        key: at least 16 bytes, 6 of them different: secrets become keyed hashes. None: a mask.
        reveal: turn redaction off.
        full: also hide the data that clients send.

    Raises:
        OptionError: the key is too short or too uniform, or redaction is both off and full.
    """

    key: bytes | None = field(default=None, repr=False)
    reveal: bool = False
    full: bool = False

    def __post_init__(self) -> None:
        if self.key is not None and len(self.key) < REDACTION_KEY_BYTES_MIN:
            reason = f"it must have at least {REDACTION_KEY_BYTES_MIN} bytes"
            raise OptionError(option="redaction key", reason=reason)
        if self.key is not None and len(set(self.key)) < REDACTION_KEY_DISTINCT_MIN:
            reason = f"it must have at least {REDACTION_KEY_DISTINCT_MIN} different characters"
            raise OptionError(option="redaction key", reason=reason)
        if self.reveal and self.full:
            raise OptionError(option="full redaction", reason="cannot be used with clear text")

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

    def redact_keyed(self, record: KeyedRecord) -> KeyedRecord:
        """Return a coordinator's record; under full redaction, without data about its client.

        The same object is returned if it has no such data.
        """
        if not self.full:
            return record
        key, value = self._without_client(record.key), self._without_client(record.value)
        if key is record.key and value is record.value:
            return record
        return replace(record, key=key, value=value)

    def _without_client(self, record: _K) -> _K:
        if record is None:
            return record
        if isinstance(record, UnknownRecord):
            return replace(record, payload=b"")
        from .keyed_serde import is_consumer_group  # at the start of `cat`, no record has a key

        hidden = self._hide_client(record, is_consumer_group(record))
        return replace(record, **hidden) if hidden else record

    def _hide_client(self, record: Struct, has_protocol: bool) -> dict[str, Any]:
        """Return replacements of unknown tags and ``of_client`` fields, inner structs' included.

        ``has_protocol``: subscriptions and assignments are those of consumers, and only their user
        data is hidden.
        """
        hidden = self._hide_own_tags(record)
        for one in record.fields_schema:
            value = getattr(record, one.attribute)
            if one.of_client and value:
                hidden[one.attribute] = self._hide_value(one, value, has_protocol)
        return hidden | _within(record, lambda part: self._hide_client(part, has_protocol))

    def _hide_value(self, one: FieldSchema, value: str | bytes, has_protocol: bool) -> str | bytes:
        from .consumer_protocol import PROTOCOL_FIELDS, parse_protocol, protocol_bytes

        label = f"client {one.json_name}"
        if isinstance(value, str):
            return self.mask(value.encode(*_ANY_TEXT), label)
        name = one.attribute
        parsed = None
        if has_protocol and name in PROTOCOL_FIELDS:
            parsed = parse_protocol(name, value)
        if parsed is None:
            return self.mask(value, label).encode()
        version, protocol = parsed
        protocol = replace(protocol, **self._hide_client(protocol, False))
        return protocol_bytes(name, version, protocol)

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
        found = hmac.digest(self.key, salted, hashlib.sha256)[:_HASH_BYTES].hex()
        return f"{HASH_PREFIX}{_key_id(self.key)}:{found}"

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
        return self._hide_own_tags(record) | _within(record, self._hide_tags)

    def _hide_own_tags(self, record: Struct) -> dict[str, Any]:
        if not record.unknown_tags:
            return {}
        return {
            "unknown_tags": tuple(
                UnknownTag(one.tag, self.mask(one.data, f"tag {one.tag}").encode())
                for one in record.unknown_tags
            )
        }


def _within(record: Struct, hide: Callable[[Struct], dict[str, Any]]) -> dict[str, Any]:
    """Return replacements of those structs in a record in which ``hide`` replaces something."""
    hidden: dict[str, Any] = {}
    for name in record.struct_fields:
        value: Struct | tuple[Struct, ...] | None = getattr(record, name)
        parts = (value,) if isinstance(value, Struct) else value or ()
        redacted = [hide(part) for part in parts]
        if any(redacted):
            replaced = tuple(map(_replaced, parts, redacted))
            hidden[name] = replaced[0] if isinstance(value, Struct) else replaced
    return hidden


def _replaced(element: Struct, hidden: dict[str, Any]) -> Struct:
    return replace(element, **hidden) if hidden else element


# --- What the compiled core may show --------------------------------------------------------------
# It shows a field that is declared as ``shown=False`` only if it is null, or the value of a config
# in the list below. Everything else is decided above.


@dataclass(frozen=True, slots=True)
class Guard:
    """Record type with the fields that decide whether a field that may be secret is public."""

    record: type[MetadataRecord]
    resource_type: str
    name: str


CONFIG_GUARD: Final = Guard(ConfigRecord, "resource_type", "name")


def public_configs() -> list[tuple[int, bytes]]:
    """Return resource type and name of all configs whose values are shown."""
    return [(resource_type, name.encode()) for resource_type, name in public_config_names()]
