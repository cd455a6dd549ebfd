"""The small files beside a log: do they parse, and do they belong to anything?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from raftlog.client import EpochCache
from raftlog.client.inspection import (
    EPOCH_CHECKPOINT_NAME,
    INDEX_SUFFIX,
    META_PROPERTIES_NAME,
    OUT_OF_ELECTION_NAME,
    PARTITION_METADATA_NAME,
    PRODUCER_SNAPSHOT_SUFFIX,
    QUORUM_STATE_NAME,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    LogFiles,
    parse_epoch_checkpoint,
    parse_meta_properties,
    parse_partition_metadata,
    parse_producer_snapshot,
    parse_quorum_state,
    read_small_file,
)
from raftlog.errors import CorruptFileError, LogNotFoundError, SegmentDeletedError
from raftlog.limits import MIB

from .findings import Finding, of_error
from .indexes import IndexCheck, OffsetIndexCheck, TimeIndexCheck, TxnIndexCheck

_INDEX_BYTES_MAX: Final = 64 * MIB
"""Far above Kafka's ``segment.index.bytes`` (10 MiB); what lies behind is not looked at."""

_WITHDRAWN_LETTERS_MAX: Final = 400

_Parser = Callable[[bytes, str], object]


def epochs_path(files: LogFiles) -> str:
    """Where ``leader-epoch-checkpoint`` lies, if it is there."""
    return files.storage.join(files.directory, EPOCH_CHECKPOINT_NAME)


def read_epochs(files: LogFiles) -> EpochCache | None:
    """What ``leader-epoch-checkpoint`` says; None if it is not there or does not parse."""
    path = epochs_path(files)
    try:
        data = read_small_file(files.storage, path)
        return None if data is None else parse_epoch_checkpoint(data, path)
    except CorruptFileError:
        return None


def small_files(files: LogFiles) -> Iterator[Finding]:
    """What of the small files does not parse."""
    join, directory = files.storage.join, files.directory
    above, _ = files.storage.split(directory)
    parsers: list[tuple[str, _Parser]] = [
        (join(above, META_PROPERTIES_NAME), parse_meta_properties),
        (join(directory, META_PROPERTIES_NAME), parse_meta_properties),
        (join(directory, QUORUM_STATE_NAME), parse_quorum_state),
        (epochs_path(files), parse_epoch_checkpoint),
        (join(directory, PARTITION_METADATA_NAME), parse_partition_metadata),
        (join(directory, OUT_OF_ELECTION_NAME), _withdrawn),
    ]
    for offset in files.listing.producer_snapshots:
        path = files.segment_path(offset, PRODUCER_SNAPSHOT_SUFFIX)
        parsers.append((path, parse_producer_snapshot))
    for path, parse in parsers:
        try:
            data = read_small_file(files.storage, path)
            if data is not None:
                parse(data, path)
        except CorruptFileError as error:
            yield of_error(error, path)


def _withdrawn(data: bytes, path: str) -> NoReturn:
    """The file is there only while a replica has less than it acknowledged."""
    text = "".join(one for one in data.decode("utf-8", errors="replace") if one.isprintable())
    raise CorruptFileError(
        path=path,
        reason=f"{text[:_WITHDRAWN_LETTERS_MAX]}; this node does not vote until it has fetched "
        "from a leader what is committed (`raftlog node recover --help`, if no leader comes)",
    )


def index_checks(files: LogFiles, base_offset: int) -> list[IndexCheck]:
    """Checks of the index files that lie beside a segment."""
    found: list[IndexCheck] = []
    path = files.segment_path(base_offset, INDEX_SUFFIX)
    data = _index_bytes(files, path)
    if data is not None:
        found.append(OffsetIndexCheck(path, data, base_offset))
    path = files.segment_path(base_offset, TIME_INDEX_SUFFIX)
    data = _index_bytes(files, path)
    if data is not None:
        found.append(TimeIndexCheck(path, data, base_offset))
    path = files.segment_path(base_offset, TXN_INDEX_SUFFIX)
    data = _index_bytes(files, path)
    if data is not None:
        found.append(TxnIndexCheck(path, data))
    return found


def _index_bytes(files: LogFiles, path: str) -> bytes | None:
    try:
        with files.storage.open_file(path) as file:
            return file.read_at(0, min(file.byte_count(), _INDEX_BYTES_MAX))
    except (LogNotFoundError, SegmentDeletedError):
        return None
