"""The bootstrap checkpoint: who votes in a dynamic quorum before its log says so (KIP-853).

Rules of this file:

1. It is read whole or not at all: whoever believes in half a set of voters may elect itself.
2. It says nothing of a log's records, and is none of its snapshots.
"""

from __future__ import annotations

from raftlog.errors import CorruptFileError, CorruptSnapshotError, SegmentDeletedError
from raftlog.log.files import LogFiles
from raftlog.log.names import BOOTSTRAP_ID, checkpoint_name
from raftlog.log.snapshot import SnapshotReader
from raftlog.records.control import KRaftVoters
from raftlog.storage.protocol import Storage


def bootstrap_voters(storage: Storage, directory: str) -> tuple[KRaftVoters, int] | None:
    """The voters and the kraft.version that a partition's directory was formatted with.

    None if it names none: then configuration does. Raises ``CorruptFileError``.
    """
    path = storage.join(directory, checkpoint_name(BOOTSTRAP_ID))
    try:
        reader = SnapshotReader(LogFiles.of_checkpoint(storage, path, BOOTSTRAP_ID), BOOTSTRAP_ID)
        for _ in reader.batches():
            pass
    except SegmentDeletedError:  # there is none
        return None
    except CorruptSnapshotError as error:
        reason = f"{error.reason}; it says who voted at first: take the copy of another node"
        raise CorruptFileError(path=path, reason=reason, position=error.position) from None
    if reader.voters is None or not reader.kraft_version:
        return None
    return reader.voters, reader.kraft_version
