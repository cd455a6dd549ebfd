"""Remote segments of the surviving copy of a tiered log, for the quorum that continues it.

The lost quorum's leaders copied only committed records, and possibly some that the survivor does
not have. So the store is one more copy for the choice in ``survivor``: if its last epoch is
greater, or its end for the same epoch, the survivor's records that diverge from it are dropped, as
after an election, and the store's records follow::

    survivor  |  local segments              | not committed |
    store     |  remote segments             |  committed, not in the survivor  |
                                        agreed end                        end of both

Otherwise the survivor has all records in the store (Raft's log matching property), or the store
belongs to another log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raftlog.errors import CorruptFileError
from raftlog.log.format.epoch_cache import EpochCache, EpochValidation
from raftlog.log.format.remote_chain import RemoteChain
from raftlog.log.reading.remote_tier import OpenStore
from raftlog.log.remote.manifest import RemoteLogManifest
from raftlog.log.remote.objects import read_object
from raftlog.log.remote.segment_metadata import SegmentRange
from raftlog.log.remote.tiering import as_remote_segment, contiguous_ranges
from raftlog.log.writing.segments import LogDirectory
from raftlog.records.batch import RecordBatch, TornTail, read_batch
from raftlog.storage.errors import CorruptRemoteObjectError, WrongBackupError
from raftlog.storage.objects import ObjectStore
from raftlog.types import Diverging


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTail:
    """Remote segments of a log; the records from ``agreed_offset`` on follow the survivor.

    There are no such records if ``end_offset`` equals ``agreed_offset``.
    """

    store: ObjectStore
    ranges: tuple[SegmentRange, ...]
    chain: RemoteChain
    agreed_offset: int
    end_offset: int
    last_epoch: int

    def chunks(self) -> Iterator[bytes]:
        """Yield the batches that follow the survivor, several at a time.

        Raises ``RemoteObjectNotFoundError``, ``CorruptRemoteObjectError``, ``CorruptBatchError``
        and the errors of the store.
        """
        if self.agreed_offset < self.end_offset:
            for one in self.ranges:
                if one.metadata.last_offset >= self.agreed_offset:
                    yield from self._chunks_of(one)

    def batches(self) -> Iterator[RecordBatch]:
        """Yield these batches. Raises like ``chunks``."""
        for chunk in self.chunks():
            position = 0
            while not isinstance(batch := read_batch(chunk, position), TornTail):
                yield batch
                position += batch.byte_count

    def _chunks_of(self, one: SegmentRange) -> Iterator[bytes]:
        name, left, position = one.metadata.object_name(), b"", 0
        data = read_object(self.store, name, byte_count=one.metadata.byte_count, crc=one.crc32c)
        for chunk in data:
            left += chunk
            start = end = 0
            while not isinstance(
                batch := read_batch(left, end, path=name, file_position=position), TornTail
            ):
                end += batch.byte_count
                if batch.base_offset < self.agreed_offset:
                    start = end
            if start < end:
                yield left[start:end]
            left, position = left[end:], position + end
        if left:
            reason = f"it ends with {len(left)} bytes that are no batch"
            raise CorruptRemoteObjectError(location=self.store.location, name=name, reason=reason)


def find_remote_tail(
    directory: LogDirectory,
    open_store: OpenStore,
    *,
    epochs: EpochCache,
    end_offset: int,
    last_epoch: int,
) -> RemoteTail | None:
    """Return a survivor's remote segments; None if there are none or its log does not use remote
    storage.

    Raises ``WrongBackupError`` if they belong to another log, ``CorruptRemoteObjectError`` for a
    damaged manifest, ``CorruptFileError`` for a damaged list of a log that no longer uses its
    store, and the errors of the store.
    """
    properties = directory.read_properties()
    if properties is None or not properties.config.remote_storage_enable:
        _check_list(directory)
        return None
    uri = properties.config.remote_storage_uri
    store = open_store(uri)
    log = directory.partition, properties.topic_id
    ranges = contiguous_ranges(
        [
            one
            for one in RemoteLogManifest(store).ranges.values()
            if (one.metadata.topic_partition, one.metadata.topic_id) == log
        ]
    )
    if not ranges:
        return None
    known = None
    with contextlib.suppress(CorruptFileError):  # written again, as by a run of remote storage
        known = directory.read_remote_chain()
    end, epoch = ranges[-1].metadata.last_offset + 1, _epochs_of(ranges).latest_epoch or 0
    chain = RemoteChain(
        uri=uri,
        directory=ranges[-1].metadata.directory,
        log_start_offset=0 if known is None else known.log_start_offset,
        copied_end_offset=end,
        segments=tuple(map(as_remote_segment, ranges)),
    ).starting_at(0)
    is_ahead = (epoch, end) > (last_epoch, end_offset)
    agreed = end_offset
    if not is_ahead and epochs.epoch_at(end - 1) not in (None, epoch):
        reason = f"its last record, at offset {end - 1}, has epoch {epoch} there"
        raise WrongBackupError(location=store.location, path=directory.path, reason=reason)
    if is_ahead:
        agreed = _agreed_end(ranges, epochs, end_offset, last_epoch)
        if agreed < ranges[0].metadata.first_offset:
            reason = f"its records begin at offset {ranges[0].metadata.first_offset}, and the log "
            reason += f"agrees with them up to offset {agreed} only"
            raise WrongBackupError(location=store.location, path=directory.path, reason=reason)
    return RemoteTail(
        store=store,
        ranges=tuple(ranges),
        chain=chain,
        agreed_offset=agreed,
        end_offset=end if is_ahead else agreed,
        last_epoch=epoch if is_ahead else last_epoch,
    )


def _check_list(directory: LogDirectory) -> None:
    """Raise ``CorruptFileError`` if the list of remote segments is damaged and remote storage is
    disabled, because then it is unknown which segments there are."""
    try:
        directory.read_remote_chain()
    except CorruptFileError as error:
        reason = (
            f"{error.reason}, and remote.storage.enable is false, so that the list is not read "
            "from the store: enable it there with the remote.storage.uri of the segments (`raftlog "
            "configure`), or delete the file if the log has none"
        )
        raise CorruptFileError(path=error.path, reason=reason) from None


def _epochs_of(ranges: Sequence[SegmentRange]) -> EpochCache:
    return EpochCache().assign_all(
        (entry.epoch, entry.start_offset) for one in ranges for entry in one.metadata.leader_epochs
    )


def _agreed_end(
    ranges: Sequence[SegmentRange], epochs: EpochCache, end_offset: int, last_epoch: int
) -> int:
    """Return the offset up to which the survivor has the store's records: the offset to which it
    would truncate as a follower of a leader with these records."""
    leader = EpochValidation(
        log_start_offset=ranges[0].metadata.first_offset,
        log_end_offset=ranges[-1].metadata.last_offset + 1,
        epochs=_epochs_of(ranges),
        snapshots=(),
    )
    end, epoch = end_offset, last_epoch
    while isinstance(answer := leader.validate(offset=end, epoch=epoch), Diverging):
        own = epochs.without_from(end)
        follower = EpochValidation(log_start_offset=0, log_end_offset=end, epochs=own, snapshots=())
        end = follower.truncation_offset(answer.end)
        epoch = epochs.epoch_at(end - 1) or 0
    return end
