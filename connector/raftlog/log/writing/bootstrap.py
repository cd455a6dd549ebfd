"""Read the bootstrap checkpoint: the initial voters of a dynamic quorum (KIP-853).

``00000000000000000000-0000000000.checkpoint`` is read whole or not at all: a replica that used a
partial voter set could elect itself. It holds no records of the log and is not one of its
snapshots.
"""

from __future__ import annotations

from raftlog.errors import CorruptFileError, CorruptSnapshotError, SegmentDeletedError
from raftlog.log.files import LogFiles
from raftlog.log.names import BOOTSTRAP_ID, checkpoint_name
from raftlog.log.snapshot import SnapshotReader
from raftlog.records.control import KRaftVoters
from raftlog.storage.protocol import Storage


def bootstrap_voters(storage: Storage, directory: str) -> tuple[KRaftVoters, int] | None:
    """Return the voters and the kraft.version that a partition's directory was formatted with.

    None if there is no bootstrap checkpoint or it holds no voters: then they are configured. Raises
    ``CorruptFileError``.
    """
    path = storage.join(directory, checkpoint_name(BOOTSTRAP_ID))
    try:
        reader = SnapshotReader(LogFiles.of_checkpoint(storage, path, BOOTSTRAP_ID), BOOTSTRAP_ID)
        for _ in reader.batches():
            pass
    except SegmentDeletedError:  # no bootstrap checkpoint
        return None
    except CorruptSnapshotError as error:
        reason = f"{error.reason}; it holds the initial voters: copy this file from another node"
        raise CorruptFileError(path=path, reason=reason, position=error.position) from None
    if reader.voters is None or not reader.kraft_version:
        return None
    return reader.voters, reader.kraft_version
