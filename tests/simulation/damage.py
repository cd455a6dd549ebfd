"""Damage to the files of a dead node's log: what a disk may do to what was durable.

Rules of this file:

1. Each function damages one file and returns what it did, or None if there is nothing to damage.
2. ``number`` selects the file and the place in it: the same number on the same disk is the same
   damage.
3. Only files are damaged whose content the other nodes hold, or that follow from the segments. A
   vote that is forgotten cannot be noticed, so ``quorum-state`` is left alone.
"""

from __future__ import annotations

from typing import Final

from tests.simulated_disk.simulated_disk import SimulatedDisk

from .driven_node import DIRECTORY

CHUNK_BYTES: Final = 512
_DERIVED: Final = (".index", ".timeindex", ".txnindex", ".snapshot")
"""Files that follow from the segments, besides ``leader-epoch-checkpoint``."""


def flip_bit_of_any_segment(disk: SimulatedDisk, number: int) -> str | None:
    """Flip one bit of one segment."""
    path = _chosen(disk, number, (".log",))
    if path is None:
        return None
    bit = number // 7 % (8 * len(disk.files()[path]))
    disk.flip_bit(path, bit)
    return f"bit {bit} of {path} flips"


def truncate_file(disk: SimulatedDisk, number: int) -> str | None:
    """Truncate one segment, or one file that follows from the segments."""
    suffixes = (".log",) if number % 2 else (*_DERIVED, "leader-epoch-checkpoint")
    path = _chosen(disk, number // 2, suffixes)
    if path is None:
        return None
    data = disk.files()[path]
    byte_count = number // 7 % len(data)
    disk.put(path, data[:byte_count])
    return f"{path} is truncated from {len(data)} to {byte_count} bytes"


def restore_older_chunk(disk: SimulatedDisk, older: dict[str, bytes], number: int) -> str | None:
    """Give one chunk of one segment the content that it had earlier; zeros where it had none."""
    path = _chosen(disk, number, (".log",))
    if path is None:
        return None
    data = disk.files()[path]
    start = number // 7 % (len(data) // CHUNK_BYTES + 1) * CHUNK_BYTES
    chunk = data[start : start + CHUNK_BYTES]
    before = older.get(path, b"")[start : start + CHUNK_BYTES]
    content = before[: len(chunk)].ljust(len(chunk), b"\0")
    if content == chunk:
        return None
    disk.put(path, data[:start] + content + data[start + len(chunk) :])
    return f"{len(chunk)} bytes of {path} from {start} on are as they were"


def _chosen(disk: SimulatedDisk, number: int, suffixes: tuple[str, ...]) -> str | None:
    """Return one of the log's files with these endings that hold anything."""
    paths = sorted(
        path
        for path, data in disk.files().items()
        if data and path.startswith(f"{DIRECTORY}/") and path.endswith(suffixes)
    )
    return paths[number % len(paths)] if paths else None
