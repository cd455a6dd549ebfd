"""The bootstrap checkpoint: who votes in a dynamic quorum before its log says so (KIP-853).

Rules of this file:

1. It is read whole or not at all: whoever believes in half a set of voters may elect itself.
2. It says nothing of a log's records, and is none of its snapshots.
"""

from __future__ import annotations

from raftlog.errors import CorruptBatchError, CorruptFileError, LogNotFoundError
from raftlog.log.names import BOOTSTRAP_ID, checkpoint_name
from raftlog.records.control import KRaftVoters
from raftlog.storage.protocol import Storage

from .located import read_batches
from .snapshot_receiver import snapshot_voters


def bootstrap_voters(storage: Storage, directory: str) -> tuple[KRaftVoters, int] | None:
    """The voters and the kraft.version that a partition's directory was formatted with.

    None if it names none: then configuration does. Raises ``CorruptFileError``.
    """
    path = storage.join(directory, checkpoint_name(BOOTSTRAP_ID))
    try:
        with storage.open_file(path) as file:
            batches = list(read_batches(file, 0, file.byte_count()))
        if not batches or not all(batch.is_control for batch in (batches[0], batches[-1])):
            raise CorruptFileError(path=path, reason="it is not whole")
        voters, version = snapshot_voters(batches[0])
    except LogNotFoundError:
        return None
    except CorruptBatchError as error:
        reason = f"{error.reason}; it says who voted at first: take the copy of another node"
        raise CorruptFileError(path=path, reason=reason, position=error.position) from None
    if voters is None or version is None:
        return None
    return voters, version
