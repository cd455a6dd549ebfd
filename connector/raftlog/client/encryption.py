"""Encryption of values by the client, with AES-256-GCM and data keys that a key service wraps.

Each value is encrypted by itself, so that it survives compaction, backup, restore and mirroring,
which copy records without reading values. Keys of records, headers, timestamps and sizes are not
encrypted; a record without a value stays without one: it deletes its key. Nodes and tools need no
keys. An encrypted value is

    magic            4 bytes: E5 52 4C and the version of the format, 01
    key id           1 byte: its length, then UTF-8
    wrapped data key 2 bytes, big-endian: its length, then the bytes of the key service
    nonce            12 random bytes
    ciphertext       as long as the value
    tag              16 bytes

Additional authenticated data are all bytes before the nonce, the length of the context (4 bytes,
big-endian) and the context in UTF-8, then 00 for a record without a key, or 01 and the key. So a
value that is moved to another key or log is refused. Offsets are not bound, since a restored or
mirrored log may have others: a value can be replaced by an older one of the same key and log.

Invariants:

1. A data key encrypts at most ``DATA_KEY_VALUES_MAX`` values, each with a random nonce (NIST SP
   800-38D, 8.3: at most 2^32), and is used for ``DATA_KEY_MS_MAX`` at most.
2. An unwrapped data key is cached for as long, so that a deleted key is soon without effect.

Source: NIST SP 800-38D; envelope encryption as in KIP-317 and the AWS Encryption SDK.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from raftlog.errors import OptionError
from raftlog.log.reading.transactions import ValueKind
from raftlog.records.encoding import RecordToAppend
from raftlog.records.record import NewRecord

from .errors import (
    EncryptedValueError,
    EncryptionKeyDeletedError,
    EncryptionKeyError,
    KeyServiceUnavailableError,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

K = TypeVar("K")
T = TypeVar("T")

MAGIC: Final = b"\xe5RL\x01"
"""Not UTF-8, and no MessagePack of a record; the last byte is the version of the format."""
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
KEY_ID_BYTES_MAX: Final = 255
WRAPPED_BYTES_MAX: Final = 2**16 - 1
DATA_KEY_VALUES_MAX: Final = 2**20
DATA_KEY_MS_MAX: Final = 5 * 60 * 1000
DATA_KEYS_MAX: Final = 1_024
"""Data keys in memory, of writes and of reads each; the ones used least recently are dropped."""
_EXTRA: Final = "it needs the package cryptography: pip install 'raftlog[encryption]'"


class KeyService(Protocol):
    """Service that wraps data keys with keys that do not leave it, or a file (``KeyFile``).

    Several threads can call it at the same time. It is called once per data key, not per value;
    if it does not answer, only the values that need this data key wait. The methods raise
    ``EncryptionKeyError`` for an unknown key id, ``EncryptionKeyDeletedError`` if the key was
    deleted, and ``OSError`` if the service cannot be reached.
    """

    def current_key_id(self) -> str:
        """Return the id of the key that wraps new data keys."""

    def wrap(self, key_id: str, data_key: bytes) -> bytes:
        """Return a data key of 32 bytes, encrypted and authenticated with a key."""

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the data key that was wrapped with a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """Encryption of a log's values, for ``raftlog.open``, ``connect`` and ``table``.

    ``context`` is the name of the log to which values are bound: all writers and readers of the log
    and of its copies need the same. ``key_id`` returns the id of the encryption key for a record's
    key, so that deleting the encryption key makes the values of a subject unreadable; None: the
    current key of the service. ``deleted_keys``: whether a value whose key was deleted is an error
    or null. ``allow_plaintext``: whether values that are not encrypted are returned, for instance
    during a migration. Then any writer of the log can replace an encrypted value with another one.

    Appends also raise ``EncryptionKeyError`` and ``KeyServiceUnavailableError``, and reads raise
    the errors of ``ValueCipher.decrypt``.
    """

    keys: KeyService
    context: str
    key_id: Callable[[bytes | None], str] | None = field(default=None, repr=False)
    deleted_keys: Literal["error", "null"] = "error"
    allow_plaintext: bool = False

    def __post_init__(self) -> None:
        if not _utf8(self.context):
            raise OptionError(option="encryption", reason="context must be the name of the log")
        if self.deleted_keys not in ("error", "null"):
            raise OptionError(option="encryption", reason="deleted_keys must be error or null")


def _utf8(text: object) -> bytes:
    """Return a text in UTF-8, empty if it is no text or has half of a surrogate pair."""
    try:
        return text.encode() if isinstance(text, str) else b""
    except UnicodeEncodeError:
        return b""


def is_encrypted(value: bytes) -> bool:
    """Return whether a value has the form of an encrypted one."""
    return value.startswith(MAGIC)


def new_aes_gcm(key: bytes) -> AESGCM:
    """Return AES-GCM with a key. Raises ``OptionError`` without the package for it."""
    if find_spec("cryptography") is None:
        raise OptionError(option="encryption", reason=_EXTRA)
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


# --- Data keys ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry(Generic[T]):
    """Value of a cache, until when it may be used, and how often."""

    value: T
    until_ms: float
    uses_left: int


class _KeyCache(Generic[K, T]):
    """Answers of a key service by key, each for ``DATA_KEY_MS_MAX`` and ``uses_max`` uses.

    One thread requests a missing answer, without the lock; the others that need it wait for it, and
    get its error. So a service that does not answer delays no use of another key. A forked child
    has neither the thread of a request nor that of the lock's owner, so it begins without answers.
    """

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self.begin()
        _CACHES.add(self)

    def begin(self) -> None:
        """Begin without answers, requests and threads, as after a fork."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, _Entry[T]] = OrderedDict()
        """The one that was used last at the end."""
        self._requests: dict[K, Future[None]] = {}

    def use(self, key: K, request: Callable[[], T], uses_max: int = sys.maxsize) -> T:
        """Return the answer for a key, of ``request`` if no kept one may be used."""
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is not None and entry.uses_left and self._now_ms() < entry.until_ms:
                    entry.uses_left -= 1
                    self._entries.move_to_end(key)
                    return entry.value
                requested = self._requests.get(key)
                if requested is None:
                    own = self._requests[key] = Future()
            if requested is None:
                return self._answered(key, request, uses_max, own)
            requested.result()

    def _answered(self, key: K, request: Callable[[], T], uses_max: int, own: Future[None]) -> T:
        """Return the answer of a request that this thread makes, after its first use."""
        error: Exception | None = None
        try:
            value = request()
            with self._lock:
                until_ms = self._now_ms() + DATA_KEY_MS_MAX
                self._entries[key] = _Entry(value, until_ms, uses_max - 1)
                self._entries.move_to_end(key)
                if len(self._entries) > DATA_KEYS_MAX:
                    self._entries.popitem(last=False)
            return value
        except Exception as raised:
            error = raised  # the waiting threads raise it, too
            raise
        finally:  # after a KeyboardInterrupt, too: then one of them requests it again
            with self._lock:
                self._requests.pop(key, None)  # missing if it was forked meanwhile
            if error is None:
                own.set_result(None)
            else:
                own.set_exception(error)


_CACHES: Final[weakref.WeakSet[_KeyCache[Any, Any]]] = weakref.WeakSet()


def _begin_all_in_child() -> None:
    for cache in list(_CACHES):
        cache.begin()


os.register_at_fork(after_in_child=_begin_all_in_child)


class ValueCipher:
    """Encryption and decryption of the values of one log. Thread-safe.

    ``now_ms`` is monotonic; ``random_bytes`` returns unpredictable bytes.
    """

    def __init__(
        self,
        encryption: Encryption,
        now_ms: Callable[[], float],
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._encryption = encryption
        self._random = random_bytes
        context = encryption.context.encode()
        self._context = struct.pack(">I", len(context)) + context
        self._current: _KeyCache[None, str] = _KeyCache(now_ms)
        """The id of the key that wraps new data keys."""
        self._to_write: _KeyCache[str, tuple[bytes, AESGCM]] = _KeyCache(now_ms)
        """What precedes the nonce of a value, and its data key, by key id."""
        self._to_read: _KeyCache[bytes, AESGCM | None] = _KeyCache(now_ms)
        """None if the key that wraps the data key was deleted."""

    def encrypt_records(self, records: Sequence[RecordToAppend]) -> tuple[RecordToAppend, ...]:
        """Return records with encrypted values.

        Raises ``EncryptionKeyError``, ``KeyServiceUnavailableError`` and ``OptionError``.
        """
        return tuple([self._encrypted_record(record) for record in records])

    def _encrypted_record(self, record: RecordToAppend) -> RecordToAppend:
        if isinstance(record, bytes):
            return self.encrypt(None, record)
        if record.value is None:
            return record
        value = self.encrypt(record.key, record.value)
        return NewRecord(record.key, value, record.timestamp_ms, record.headers)

    def encrypt(self, key: bytes | None, value: bytes) -> bytes:
        """Return the encrypted value of a record with a key. Raises as ``encrypt_records``."""
        head, cipher = self._data_key_for(key)
        nonce = self._random(NONCE_BYTES)
        return b"".join((head, nonce, cipher.encrypt(nonce, value, self._authenticated(head, key))))

    def decrypt(
        self, key: bytes | None, value: bytes | None, *, path: str, offset: int | None = None
    ) -> bytes | None:
        """Return the value of a record with a key as it was before ``encrypt``.

        Null stays null, and a value whose key was deleted is null if the encryption says so.
        ``path`` and ``offset`` are for errors.

        Raises:
            EncryptedValueError: the value was changed, is of another key or log, or not encrypted.
            EncryptionKeyError, EncryptionKeyDeletedError: its key is unknown, or was deleted.
            KeyServiceUnavailableError: the key service cannot be reached.
        """
        if value is None:
            return None
        parsed = _parse(value)
        if parsed is None:
            if self._encryption.allow_plaintext and not is_encrypted(value):
                return value
            reason, remedy = "is damaged", _CHECK
            if not is_encrypted(value):
                reason = "is not encrypted"
                remedy = "allow_plaintext=True returns such values, in Spark encryption.plaintext"
            raise EncryptedValueError(path=path, offset=offset, reason=reason, remedy=remedy)
        head, key_id, wrapped = parsed
        try:
            cipher = self._cipher_of(head, key_id, wrapped)
        except EncryptionKeyDeletedError:
            if self._encryption.deleted_keys == "null":
                return None
            raise
        from cryptography.exceptions import InvalidTag

        nonce_end = len(head) + NONCE_BYTES
        try:
            data = self._authenticated(head, key)
            return cipher.decrypt(value[len(head) : nonce_end], value[nonce_end:], data)
        except InvalidTag:
            reason = "is not authentic: it was changed, or is of another record key or log"
            raise EncryptedValueError(
                path=path, offset=offset, reason=reason, remedy=_CHECK
            ) from None

    def _authenticated(self, head: bytes, key: bytes | None) -> bytes:
        return b"".join((head, self._context, b"\0" if key is None else b"\1" + key))

    def _data_key_for(self, key: bytes | None) -> tuple[bytes, AESGCM]:
        """Return what precedes the nonce of the next value of a record key, and its data key."""
        choose, keys = self._encryption.key_id, self._encryption.keys
        if choose is None:
            key_id = self._current.use(None, lambda: _asked("the current one", keys.current_key_id))
        else:
            key_id = choose(key)
        return self._to_write.use(key_id, lambda: self._new_data_key(key_id), DATA_KEY_VALUES_MAX)

    def _new_data_key(self, key_id: str) -> tuple[bytes, AESGCM]:
        name = _utf8(key_id)
        if not 0 < len(name) <= KEY_ID_BYTES_MAX:
            reason = f"a key id must be text of 1 to {KEY_ID_BYTES_MAX} bytes"
            raise OptionError(option="encryption", reason=reason)
        data_key = self._random(KEY_BYTES)
        wrapped = _asked(key_id, lambda: self._encryption.keys.wrap(key_id, data_key))
        if not 0 < len(wrapped) <= WRAPPED_BYTES_MAX:
            raise EncryptionKeyError(key_id=key_id, reason="wrapped a data key to an invalid size")
        head = b"".join(
            (MAGIC, bytes((len(name),)), name, struct.pack(">H", len(wrapped)), wrapped)
        )
        return head, new_aes_gcm(data_key)

    def _cipher_of(self, head: bytes, key_id: str, wrapped: bytes) -> AESGCM:
        """Return AES-GCM with the data key of a value."""
        found = self._to_read.use(head, lambda: self._unwrapped(key_id, wrapped))
        if found is None:
            raise EncryptionKeyDeletedError(key_id=key_id, reason="was deleted")
        return found

    def _unwrapped(self, key_id: str, wrapped: bytes) -> AESGCM | None:
        try:
            data_key = _asked(key_id, lambda: self._encryption.keys.unwrap(key_id, wrapped))
        except EncryptionKeyDeletedError:
            return None
        if len(data_key) != KEY_BYTES:
            reason = f"unwrapped a data key that has not {KEY_BYTES} bytes"
            raise EncryptionKeyError(key_id=key_id, reason=reason)
        return new_aes_gcm(data_key)


_CHECK: Final = "check that context and keys are those of its writer"


def _asked(key_id: str, ask: Callable[[], T]) -> T:
    """Return what a key service answers. The text of an ``OSError`` is not shown."""
    try:
        return ask()
    except OSError as error:
        reason = type(error).__name__
        raise KeyServiceUnavailableError(key_id=key_id, reason=reason) from None


def _parse(value: bytes) -> tuple[bytes, str, bytes] | None:
    """Return what precedes the nonce, the key id and the wrapped data key; None if damaged."""
    if not value.startswith(MAGIC) or len(value) < len(MAGIC) + 1:
        return None
    at = len(MAGIC) + 1
    id_end = at + value[at - 1]
    head_end = id_end + 2 + int.from_bytes(value[id_end : id_end + 2], "big")
    if len(value) < head_end + NONCE_BYTES + TAG_BYTES:
        return None
    try:
        key_id = value[at:id_end].decode()
    except UnicodeDecodeError:
        return None
    return value[:head_end], key_id, value[id_end + 2 : head_end]


def new_cipher(
    encryption: Encryption | None, values: ValueKind, now_ms: Callable[[], float]
) -> ValueCipher | None:
    """Return the cipher of a log's values, None without encryption.

    Raises ``OptionError`` for a log whose values the log itself reads.
    """
    if encryption is None:
        return None
    if not isinstance(encryption, Encryption):
        raise OptionError(option="encryption", reason="it must be a raftlog.Encryption, or None")
    if values is not ValueKind.BYTES:
        reason = f"requires a log with bytes values: {values.value} values are read by the log"
        raise OptionError(option="encryption", reason=reason)
    return ValueCipher(encryption, now_ms)
