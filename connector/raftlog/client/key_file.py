"""File of keys that wrap data keys: a key service without a server.

The file has Java's property format, in UTF-8, and is readable by its owner only:

    current=2026-11
    key.2026-11=<32 random bytes in base64>
    key.subject-7=deleted

``current`` is the id of the key that wraps new data keys: rotation adds a key and changes it. Older
keys stay for the values that they have encrypted. A deleted key keeps its id, so that its values
are known to be deleted, and no key gets its id again. The file is read again when it has changed.

A wrapped data key is a nonce of 12 random bytes, the encrypted data key and its tag (AES-256-GCM),
with the key id as additional authenticated data: 60 bytes. One key wraps at most 2^32 data keys
(NIST SP 800-38D, 8.3), each of which is for up to ``DATA_KEY_VALUES_MAX`` values.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from raftlog.errors import OptionError
from raftlog.limits import CREDENTIALS_BYTES_MAX
from raftlog.storage.file_rights import change_by_others, read_by_others

from .encryption import KEY_BYTES, NONCE_BYTES, new_aes_gcm
from .errors import EncryptionKeyDeletedError, EncryptionKeyError
from .remote.security import read_properties
from .watching import FileStatus, file_status

OPTION: Final = "encryption.key.file"
_CURRENT: Final = "current"
_PREFIX: Final = "key."
_DELETED: Final = "deleted"
_KEY_ID: Final = re.compile(r"[A-Za-z0-9._/@+-]{1,200}")
_CHANGE_SUFFIX: Final = ".changing"


@dataclass(frozen=True, slots=True)
class _Keys:
    """Content of a key file: None in place of a key that was deleted."""

    current: str | None
    keys: Mapping[str, bytes | None]


class KeyFile:
    """Keys in a file that is read when they are needed. Thread-safe; pickled as its path.

    All methods raise ``OptionError`` if the file cannot be used, and ``EncryptionKeyError`` for a
    key id that the file does not contain.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Final = os.path.abspath(os.fspath(path))
        self._lock = threading.Lock()
        _FILES.add(self)
        self._read: tuple[FileStatus, _Keys] | None = None

    def __repr__(self) -> str:
        return f"KeyFile({self.path!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyFile, (self.path,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyFile) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    # --- key service ------------------------------------------------------------------------------

    def current_key_id(self) -> str:
        """Return the id of the key that wraps new data keys."""
        current = self._keys().current
        if current is None:
            raise OptionError(option=OPTION, reason=f"{self.path} has no property {_CURRENT}")
        return current

    def wrap(self, key_id: str, data_key: bytes) -> bytes:
        """Return a data key encrypted with a key."""
        nonce = os.urandom(NONCE_BYTES)
        cipher = new_aes_gcm(self._key(key_id))
        return nonce + cipher.encrypt(nonce, data_key, key_id.encode())

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the data key that was wrapped with a key."""
        cipher = new_aes_gcm(self._key(key_id))
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], key_id.encode())
        except (InvalidTag, ValueError):
            reason = f"in {self.path} is not the one that was used"
            raise EncryptionKeyError(key_id=key_id, reason=reason) from None

    def _key(self, key_id: str) -> bytes:
        keys = self._keys().keys
        if key_id not in keys:
            raise EncryptionKeyError(key_id=key_id, reason=f"is not in {self.path}")
        key = keys[key_id]
        if key is None:
            raise EncryptionKeyDeletedError(key_id=key_id, reason=f"was deleted in {self.path}")
        return key

    # --- changes of the file ----------------------------------------------------------------------

    def key_ids(self) -> Mapping[str, bool]:
        """Return the ids of all keys, and whether each one was deleted."""
        return {key_id: key is None for key_id, key in self._keys().keys.items()}

    def create(self, key_id: str, *, is_current: bool = False, exist_ok: bool = True) -> None:
        """Add a key, and create the file if it does not exist. An existing key is not changed.

        ``is_current``: whether it wraps new data keys from now on. ``exist_ok``: whether the key
        may already exist. Raises ``EncryptionKeyDeletedError`` if a key with this id was deleted.
        """
        if not _KEY_ID.fullmatch(key_id):
            reason = "a key id has 1 to 200 letters, digits and characters of . _ / @ + -"
            raise OptionError(option=OPTION, reason=reason)
        with _Change(self.path) as change:
            found = self._keys() if os.path.exists(self.path) else _Keys(None, {})
            keys = dict(found.keys)
            if not exist_ok and keys.get(key_id) is not None:
                reason = f"key {key_id!r} exists in {self.path}: choose another id"
                raise OptionError(option=OPTION, reason=reason)
            if keys.setdefault(key_id, os.urandom(KEY_BYTES)) is None:
                raise EncryptionKeyDeletedError(key_id=key_id, reason=f"was deleted in {self.path}")
            current = key_id if is_current or found.current is None else found.current
            change.replace(_Keys(current, keys))

    def delete(self, key_id: str) -> None:
        """Delete a key permanently: values that were encrypted with it can never be read again.

        Copies of the file, and traces of it on the disk, still contain the key. Processes use data
        keys that they have unwrapped for up to ``DATA_KEY_MS_MAX``. Raises ``OptionError`` for the
        current key.
        """
        with _Change(self.path) as change:
            self.check_deletable(key_id)
            found = self._keys()
            change.replace(_Keys(found.current, {**found.keys, key_id: None}))

    def check_deletable(self, key_id: str) -> None:
        """Raise the errors of ``delete`` without changing anything."""
        found = self._keys()
        if key_id not in found.keys:
            raise EncryptionKeyError(key_id=key_id, reason=f"is not in {self.path}")
        if key_id == found.current:
            reason = f"key {key_id!r} is the current one: create another current key first"
            raise OptionError(option=OPTION, reason=reason)

    # --- the file ---------------------------------------------------------------------------------

    def _keys(self) -> _Keys:
        """Return the content of the file, which is read again if it has changed."""
        with self._lock:
            try:
                status = file_status(self.path)
                reason = change_by_others(self.path) or read_by_others(self.path)
            except OSError as error:
                reason = f"{self.path} cannot be read: {error.strerror or type(error).__name__}"
            if reason is not None:
                raise OptionError(option=OPTION, reason=reason)
            if self._read is None or self._read[0] != status:
                self._read = status, _parse(self.path)
            return self._read[1]

    def replace_lock(self) -> None:
        """Replace the lock in a forked child: it may be that of another thread of the parent."""
        self._lock = threading.Lock()


_FILES: Final[weakref.WeakSet[KeyFile]] = weakref.WeakSet()


def _replace_locks_in_child() -> None:
    for file in list(_FILES):
        file.replace_lock()


os.register_at_fork(after_in_child=_replace_locks_in_child)


def _parse(path: str) -> _Keys:
    current = None
    keys: dict[str, bytes | None] = {}
    for name, value in read_properties(OPTION, path):
        key_id = name.removeprefix(_PREFIX)
        if name == _CURRENT:
            current = value.strip()
        elif key_id == name or not key_id:
            reason = f"{path} has a property that is neither {_CURRENT} nor {_PREFIX}ID"
            raise OptionError(option=OPTION, reason=reason)
        elif key_id in keys:
            raise OptionError(option=OPTION, reason=f"{path} has key {key_id!r} twice")
        else:
            keys[key_id] = None if value.strip() == _DELETED else _decoded(path, key_id, value)
    if current is not None and keys.get(current) is None:
        reason = f"{path} has no key with the id of {_CURRENT}, or it was deleted"
        raise OptionError(option=OPTION, reason=reason)
    return _Keys(current, keys)


def _decoded(path: str, key_id: str, value: str) -> bytes:
    try:
        key = base64.b64decode(value.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        reason = f"key {key_id!r} in {path} is not {KEY_BYTES} bytes in base64"
        raise OptionError(option=OPTION, reason=reason)
    return key


class _Change:
    """Change of a key file: a new file, created exclusively, that replaces it durably."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)  # a link to the file stays one
        self._new_path = self._path + _CHANGE_SUFFIX
        self._is_replaced = False

    def __enter__(self) -> _Change:
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            self._file = os.open(self._new_path, flags, 0o600)
        except FileExistsError:
            reason = (
                f"{self._new_path} exists: another process changes the keys, or one has died while "
                "it did; then delete this file"
            )
            raise OptionError(option=OPTION, reason=reason) from None
        except OSError as error:
            reason = f"{self._new_path} cannot be written: {error.strerror}"
            raise OptionError(option=OPTION, reason=reason) from None
        return self

    def replace(self, keys: _Keys) -> None:
        """Write the keys, sync them, and replace the file."""
        lines = [] if keys.current is None else [f"{_CURRENT}={keys.current}"]
        for key_id, key in keys.keys.items():
            value = _DELETED if key is None else base64.b64encode(key).decode()
            lines.append(f"{_PREFIX}{key_id}={value}")
        data = "".join(f"{line}\n" for line in lines).encode()
        if len(data) > CREDENTIALS_BYTES_MAX:
            reason = f"{self._path} would exceed {CREDENTIALS_BYTES_MAX} bytes; use a key service"
            raise OptionError(option=OPTION, reason=reason)
        try:
            with contextlib.suppress(FileNotFoundError):
                before = os.stat(self._path)  # root changes the file that its user reads
                os.fchown(self._file, before.st_uid, before.st_gid)
            with open(self._file, "wb", closefd=False) as file:
                file.write(data)
            os.fsync(self._file)
            os.rename(self._new_path, self._path)
            self._is_replaced = True
            directory = os.open(os.path.dirname(self._path), os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            reason = f"{self._path} cannot be written: {error.strerror}"
            raise OptionError(option=OPTION, reason=reason) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        if not self._is_replaced:
            os.unlink(self._new_path)
