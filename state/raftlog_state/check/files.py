"""Check that the metadata files of a log can be parsed, and selection of a segment's indexes."""

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
"""Bytes of an index that are checked; Kafka's ``segment.index.bytes`` is 10 MiB."""

_REASON_CHARACTERS_MAX: Final = 400

_Parser = Callable[[bytes, str], object]


def epochs_path(files: LogFiles) -> str:
    """Return the path of ``leader-epoch-checkpoint``."""
    return files.storage.join(files.directory, EPOCH_CHECKPOINT_NAME)


def read_epochs(files: LogFiles) -> EpochCache | None:
    """Read ``leader-epoch-checkpoint``; None if it is missing or corrupt."""
    path = epochs_path(files)
    try:
        data = read_small_file(files.storage, path)
        return None if data is None else parse_epoch_checkpoint(data, path)
    except CorruptFileError:
        return None


def small_files(files: LogFiles) -> Iterator[Finding]:
    """Yield a finding for each metadata file that cannot be parsed."""
    join, directory = files.storage.join, files.directory
    above, _ = files.storage.split(directory)
    parsers: list[tuple[str, _Parser]] = [
        (join(above, META_PROPERTIES_NAME), parse_meta_properties),
        (join(directory, META_PROPERTIES_NAME), parse_meta_properties),
        (join(directory, QUORUM_STATE_NAME), parse_quorum_state),
        (epochs_path(files), parse_epoch_checkpoint),
        (join(directory, PARTITION_METADATA_NAME), parse_partition_metadata),
        (join(directory, OUT_OF_ELECTION_NAME), _out_of_election),
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


def _out_of_election(data: bytes, path: str) -> NoReturn:
    """Raise ``CorruptFileError``: the file exists only while the replica lacks acknowledged
    records."""
    letters = data.decode("utf-8", errors="replace")
    text = "".join(letter for letter in letters if letter.isprintable())
    raise CorruptFileError(
        path=path,
        reason=f"{text[:_REASON_CHARACTERS_MAX]}; this node does not vote until it has fetched the "
        "committed records from a leader (if no leader can be elected, see "
        "`raftlog node recover --help`)",
    )


def index_checks(files: LogFiles, base_offset: int) -> list[IndexCheck]:
    """Return a check for each index file of a segment."""
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
