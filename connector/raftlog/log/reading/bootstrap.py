"""Reader of the bootstrap checkpoint: the initial voters of a dynamic quorum (KIP-853).

``00000000000000000000-0000000000.checkpoint`` is read completely or not at all, because a replica
that used a partial voter set could elect itself. It contains no records of the log and does not
count as one of its snapshots. Every node reads it at its start, so unlike ``SnapshotReader`` this
module does not import numpy.
"""

from __future__ import annotations

from raftlog.errors import (
    CorruptBatchError,
    CorruptFileError,
    CorruptSnapshotError,
    LogNotFoundError,
)
from raftlog.log.format.directory import BOOTSTRAP_ID, checkpoint_name
from raftlog.log.segment import ends_with_footer, read_batches, read_snapshot_head
from raftlog.records.control import ControlRecord, KRaftVersion, KRaftVoters
from raftlog.storage.protocol import ReadableFile, Storage


def bootstrap_voters(storage: Storage, directory: str) -> tuple[KRaftVoters, int] | None:
    """Return the voters and the kraft.version that a partition's directory was formatted with.

    Returns None without a bootstrap checkpoint, or if it contains no voters; then they are
    configured. Raises ``CorruptFileError``.
    """
    path = storage.join(directory, checkpoint_name(BOOTSTRAP_ID))
    try:
        with storage.open_file(path) as file:
            records = _read(file)
    except LogNotFoundError:  # no bootstrap checkpoint
        return None
    except (CorruptBatchError, CorruptSnapshotError) as error:
        reason = f"{error.reason}; it holds the initial voters: copy this file from another node"
        raise CorruptFileError(path=path, reason=reason, position=error.position) from None
    voters = next((one for one in records if isinstance(one, KRaftVoters)), None)
    versions = (one.kraft_version for one in records if isinstance(one, KRaftVersion))
    kraft_version = max(versions, default=0)
    return (voters, kraft_version) if voters is not None and kraft_version else None


def _read(file: ReadableFile) -> tuple[ControlRecord, ...]:
    """Return the records of the first batch, after the header, of a valid and complete file."""
    _, records = read_snapshot_head(file)
    last = None
    for last in read_batches(file, 0, file.byte_count(), next_offset=0):
        if last.leader_epoch != BOOTSTRAP_ID.epoch:
            reason = f"its batch is of epoch {last.leader_epoch}"
            raise CorruptBatchError(reason=reason, path=file.path)
    if last is None or not ends_with_footer(last):
        raise CorruptBatchError(
            reason="it does not end with a SnapshotFooter record", path=file.path
        )
    return records
