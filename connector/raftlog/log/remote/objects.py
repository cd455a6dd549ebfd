"""Reading of objects, checked against the size and the CRC in the manifest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from raftlog.limits import MIB
from raftlog.storage.errors import CorruptRemoteObjectError
from raftlog.storage.objects import ObjectStore
from raftlog.storage.protocol import ReadableFile

from .inventory import (
    INVENTORY_BYTES_MAX,
    INVENTORY_SUFFIX,
    BackupInventory,
    InvalidInventoryError,
    parse_inventory,
)
from .segment_metadata import BackupEntry

_CHUNK_BYTES: Final = 1 * MIB


def read_range(file: ReadableFile, position: int, end_position: int) -> Iterator[bytes]:
    """Yield the bytes [position, end_position) of a file; fewer if it ends before."""
    while position < end_position:
        chunk = file.read_at(position, min(_CHUNK_BYTES, end_position - position))
        if not chunk:
            return
        yield chunk
        position += len(chunk)


def read_object(store: ObjectStore, name: str, *, byte_count: int, crc: int) -> Iterator[bytes]:
    """Yield an object in chunks.

    Raises ``CorruptRemoteObjectError``: before the first chunk if the size differs, and after the
    last one if the CRC differs.
    """
    with store.open_object(name) as file:
        actual_count = file.byte_count()
        actual_crc, left = 0, byte_count
        if actual_count == byte_count:
            for chunk in read_range(file, 0, byte_count):
                actual_crc = crc32c(chunk, actual_crc)
                left -= len(chunk)
                yield chunk
    reason = None
    if actual_count != byte_count or left:
        actual_count = min(actual_count, byte_count - left) if left < byte_count else actual_count
        reason = f"it has {actual_count} bytes, and {byte_count} in the manifest"
    elif actual_crc != crc:
        reason = f"its CRC is {actual_crc}, and {crc} in the manifest"
    if reason is not None:
        raise CorruptRemoteObjectError(location=store.location, name=name, reason=reason)


def read_inventory(store: ObjectStore, backup: BackupEntry) -> BackupInventory:
    """Return the inventory of a backup. Raises ``CorruptRemoteObjectError``."""
    metadata = backup.metadata
    name, byte_count = metadata.object_name(INVENTORY_SUFFIX), metadata.byte_count
    reason = f"it has {byte_count} bytes, more than {INVENTORY_BYTES_MAX}"
    if byte_count <= INVENTORY_BYTES_MAX:
        chunks = read_object(store, name, byte_count=byte_count, crc=backup.crc32c)
        try:
            inventory = parse_inventory(b"".join(chunks))
        except InvalidInventoryError as error:
            reason = str(error)
        else:
            identity = (inventory.topic_partition, inventory.topic_id)
            if identity == (metadata.topic_partition, metadata.topic_id):
                return inventory
            reason = "it is of another partition than its entry"
    raise CorruptRemoteObjectError(location=store.location, name=name, reason=reason)
