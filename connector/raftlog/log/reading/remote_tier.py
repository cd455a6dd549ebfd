"""Remote segments of a tiered log, for readers: its older segments are objects in a store.

Readers get the list of remote segments from ``remote-log-segments`` in the log's directory, never
from the manifest, and read objects in ranges. If a segment exists locally too, the local file is
read.

Invariants:

1. Remote segments are part of the log only if they reach the local ones without a gap.
2. A missing object is a ``RemoteObjectNotFoundError`` if the log still has its segment. After a
   deletion by retention it is a ``LogNotFoundError``, as for a local file.
3. An object whose size differs from its segment's is a ``CorruptRemoteObjectError``. The CRCs of
   its batches are verified like those of local ones.

Kafka: ``RemoteLogManager.read``, ``RemoteIndexCache``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias

from raftlog.errors import LogNotFoundError
from raftlog.limits import KIB, MIB
from raftlog.log.format.directory import (
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    REMOTE_SEGMENTS_NAME,
    Listing,
)
from raftlog.log.format.remote_chain import (
    CHAIN_BYTES_MAX,
    HEAD_BYTES,
    RemoteChain,
    RemoteSegment,
    parse_remote_chain,
    read_remote_chain,
)
from raftlog.storage.errors import CorruptRemoteObjectError, RemoteObjectNotFoundError
from raftlog.storage.objects import ObjectStore, ReadAheadFile
from raftlog.storage.protocol import ReadableFile, Storage

OpenStore: TypeAlias = Callable[[str], ObjectStore]
"""Opens the object store at a URI."""

_READ_BYTES: Final = 64 * KIB
"""Size of a request, unless it continues the last one."""
_SEQUENTIAL_BYTES: Final = 4 * MIB


class RemoteTier:
    """Remote segments of one log's directory, as of its last listing. Not thread-safe."""

    def __init__(self, storage: Storage, directory: str, open_store: OpenStore) -> None:
        self._storage = storage
        self._directory = directory
        self._open_store = open_store
        self.local_start_offset = 0
        """First offset of the local files, as of the last listing."""
        self._head = b""
        self._chain: RemoteChain | None = None
        self._stores: dict[str, ObjectStore] = {}
        self._remote: dict[int, RemoteSegment] = {}
        self._paths: dict[str, tuple[RemoteSegment, str]] = {}

    def merge(self, local: Listing) -> Listing:
        """Return a listing with the segments that only the store has; ``local`` without any."""
        chain = self._read_chain()
        first = self.local_start_offset = local.start_offset
        self._remote, self._paths = {}, {}
        if chain is None or not local.is_embedded or chain.start_at(first) is None:
            return local
        self._remote = {one.first_offset: one for one in chain.segments if one.first_offset < first}
        return replace(local, segments=(*self._remote, *local.segments))

    def start_at(self, local_start_offset: int) -> int | None:
        """Return the log start if it is below the start of the local files, else None."""
        return None if self._chain is None else self._chain.start_at(local_start_offset)

    def is_remote(self, base_offset: int) -> bool:
        """Return whether a listed segment is read from the store."""
        return base_offset in self._remote

    @property
    def end_offsets(self) -> list[int]:
        """The end of each listed remote segment, at which the store has the producers' state."""
        return [one.end_offset for one in self._remote.values()]

    def producers_path(self, end_offset: int) -> str:
        """Return the path of the object with the producers' state at one of ``end_offsets``."""
        found = (base for base, one in self._remote.items() if one.end_offset == end_offset)
        return self.path(next(found), PRODUCER_SNAPSHOT_SUFFIX)

    def byte_count(self, base_offset: int) -> int:
        """Return the size of a remote segment."""
        return self._remote[base_offset].byte_count

    def path(self, base_offset: int, suffix: str) -> str:
        """Return the path of a remote segment's object, as shown in messages."""
        assert self._chain is not None, "the segment is listed"
        segment = self._remote[base_offset]
        name = segment.object_name(self._chain.directory, suffix)
        path = f"{self._store(self._chain).location}/{name}"
        self._paths[path] = segment, suffix
        return path

    def open(self, path: str) -> ReadableFile | None:
        """Open an object by its path; None for the path of a local file.

        Raises ``LogNotFoundError`` and the errors above.
        """
        if path not in self._paths:
            return None
        segment, suffix = self._paths[path]
        chain = self._chain
        assert chain is not None, "the segment was listed"
        name = segment.object_name(chain.directory, suffix)
        store = self._store(chain)
        try:
            opened = store.open_object(name)
        except RemoteObjectNotFoundError:
            if suffix != LOG_SUFFIX:
                raise LogNotFoundError(path=path) from None
            now = read_remote_chain(self._storage, self._directory)
            if now is not None and segment in now.segments:
                raise
            raise LogNotFoundError(path=path) from None
        if suffix == LOG_SUFFIX and opened.byte_count() != segment.byte_count:
            actual = opened.byte_count()
            opened.close()
            reason = f"it has {actual} bytes, and its segment has {segment.byte_count}"
            raise CorruptRemoteObjectError(location=store.location, name=name, reason=reason)
        return ReadAheadFile(opened, byte_count_min=_READ_BYTES, sequential_bytes=_SEQUENTIAL_BYTES)

    def _read_chain(self) -> RemoteChain | None:
        path = self._storage.join(self._directory, REMOTE_SEGMENTS_NAME)
        try:
            with self._storage.open_file(path) as file:
                if file.read_at(0, HEAD_BYTES) != self._head or self._chain is None:
                    data = file.read_at(0, CHAIN_BYTES_MAX)
                    self._chain, self._head = parse_remote_chain(data, path), data[:HEAD_BYTES]
        except LogNotFoundError:
            self._chain, self._head = None, b""
        return self._chain

    def _store(self, chain: RemoteChain) -> ObjectStore:
        if chain.uri not in self._stores:
            self._stores[chain.uri] = self._open_store(chain.uri)
        return self._stores[chain.uri]
