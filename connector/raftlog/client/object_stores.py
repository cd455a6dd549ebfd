"""Object stores by URI, and the time and randomness of what is written to them."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable
from typing import Final

from raftlog.limits import REMOTE_READ_TIMEOUT_MS
from raftlog.log.remote.manifest import Surroundings
from raftlog.storage.bounded_reads import BoundedReads
from raftlog.storage.local import PrivateLocalStorage
from raftlog.storage.objects import ObjectStore, StorageObjects
from raftlog.storage.protocol import WritableStorage

from .embedded.directory import random_id
from .log_handle import without_scheme

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def open_object_store(uri: str | os.PathLike[str]) -> ObjectStore:
    """Open the objects at a path, whose parent exists, or at a URI of ``pyarrow.fs``.

    Files are accessible to their owner only. Raises ``OptionError``.
    """
    text = os.fspath(uri)
    if is_path(text):
        return StorageObjects(PrivateLocalStorage(), os.path.abspath(without_scheme(text)))
    from raftlog.storage.arrow_objects import ArrowObjects

    return ArrowObjects.of_uri(text)


def stores_of(storage: WritableStorage | None) -> Callable[[str], ObjectStore]:
    """Return what opens object stores, with paths in a storage; None: the local one."""

    def open_store(uri: str) -> ObjectStore:
        if storage is not None and is_path(uri):
            return StorageObjects(storage, without_scheme(uri))
        return open_object_store(uri)

    return open_store


def readers_of(open_store: Callable[[str], ObjectStore]) -> Callable[[str], ObjectStore]:
    """Return what opens object stores for readers, whose reads end within a time limit."""

    def open_bounded(uri: str) -> ObjectStore:
        return BoundedReads(open_store(uri), REMOTE_READ_TIMEOUT_MS)

    return open_bounded


def is_path(uri: str) -> bool:
    """Return whether objects are files of a directory."""
    scheme = _SCHEME.match(uri)
    return scheme is None or scheme[1].lower() == "file"


def surroundings() -> Surroundings:
    """Return the time and the random numbers of this process."""
    return Surroundings(
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_id=random_id,
        new_partition=lambda: secrets.randbelow(2**31),
    )
