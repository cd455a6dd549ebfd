"""Damage to the files of a dead node's log: the effects of a disk on durable data.

Invariants:

1. Each function damages one file and returns a description, or None if there is nothing to damage.
2. ``number`` selects the file and the position: the same number on the same disk is the same
   damage.
3. Only files are damaged whose content the other nodes have, or that can be rebuilt from the
   segments. A lost vote cannot be detected, so ``quorum-state`` is not damaged.
"""

from __future__ import annotations

from typing import Final

from tests.simulated_disk.simulated_disk import SimulatedDisk

from .driven_node import DIRECTORY

CHUNK_BYTES: Final = 512
_DERIVED: Final = (".index", ".timeindex", ".txnindex", ".snapshot")
"""Files that can be rebuilt from the segments, besides ``leader-epoch-checkpoint``."""


def flip_bit_of_any_segment(disk: SimulatedDisk, number: int) -> str | None:
    """Flip one bit of one segment."""
    path = _chosen(disk, number, (".log",))
    if path is None:
        return None
    bit = number // 7 % (8 * len(disk.files()[path]))
    disk.flip_bit(path, bit)
    return f"bit {bit} of {path} flips"


def truncate_file(disk: SimulatedDisk, number: int) -> str | None:
    """Truncate one segment, or one file that can be rebuilt from the segments."""
    suffixes = (".log",) if number % 2 else (*_DERIVED, "leader-epoch-checkpoint")
    path = _chosen(disk, number // 2, suffixes)
    if path is None:
        return None
    data = disk.files()[path]
    byte_count = number // 7 % len(data)
    disk.put(path, data[:byte_count])
    return f"{path} is truncated from {len(data)} to {byte_count} bytes"


def restore_older_chunk(disk: SimulatedDisk, older: dict[str, bytes], number: int) -> str | None:
    """Replace one chunk of one segment by its earlier content; by zeros where it had none."""
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
    """Return one of the log's non-empty files with these suffixes."""
    paths = sorted(
        path
        for path, data in disk.files().items()
        if data and path.startswith(f"{DIRECTORY}/") and path.endswith(suffixes)
    )
    return paths[number % len(paths)] if paths else None
