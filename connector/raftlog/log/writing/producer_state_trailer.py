"""Trailer of a producer snapshot: the producer state that Kafka's format does not cover.

Layout after Kafka's entries, in the encoding of Kafka's flexible messages:

    "raftlog", int8 version = 1, int64 log time
    array: per producer, in the order of the entries, its batches but the last one
    array: the last commits
    array: the open metadata transaction, if there is one
    tagged fields

Kafka ignores the trailer, since its CRC covers it. Trailing bytes that do not start with
``raftlog`` are no trailer. A trailer that does not parse or has another version is
``CorruptFileError``. Entries and trailer fit into one batch, since a checkpoint holds them in its
SnapshotHeader record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from raftlog.errors import CorruptBatchError, CorruptFileError, OptionError
from raftlog.limits import (
    BATCH_BYTES_MAX,
    COMMIT_ID_BYTES_MAX,
    COMMITS_MAX,
    PRODUCER_BATCHES_KEPT,
    PRODUCERS_MAX,
)
from raftlog.records.control import FieldReader, array_bytes, string_bytes, tagged_bytes

from .batch_metadata import CommitName
from .commits import LastCommit
from .producers import ProducerBatch

_MAGIC: Final = b"raftlog"
_VERSION: Final = 1
_BATCH: Final = struct.Struct(
    ">"
    "i"  # last_sequence
    "q"  # last_offset
    "i"  # offset_delta
)
_COMMIT: Final = struct.Struct(
    ">"
    "q"  # version
    "q"  # base_offset
    "q"  # last_offset
    "q"  # timestamp_ms
)
_TRANSACTION: Final = struct.Struct(
    ">"
    "q"  # first_offset
    "q"  # batch_base_offset
)
_COMMIT_BYTES_MAX: Final = _COMMIT.size + 2 * (COMMIT_ID_BYTES_MAX + 2)
_PRODUCER_BYTES_MAX: Final = 46 + 1 + (PRODUCER_BATCHES_KEPT - 1) * _BATCH.size
assert COMMITS_MAX * _COMMIT_BYTES_MAX + PRODUCERS_MAX * _PRODUCER_BYTES_MAX < BATCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open metadata transaction.

    ``batch_base_offset`` is the last batch boundary outside every transaction: that of the batch
    with the Begin record, or an earlier one if another transaction is open where that batch begins.
    """

    first_offset: int
    batch_base_offset: int
    name: str | None


@dataclass(frozen=True, slots=True)
class ProducerStateTrailer:
    """The fields of a trailer.

    ``older_batches``: one tuple for each producer of the snapshot, oldest batch first.
    """

    log_time_ms: int
    older_batches: tuple[tuple[ProducerBatch, ...], ...]
    commits: tuple[LastCommit, ...]
    open_transaction: OpenTransaction | None


def encode_trailer(trailer: ProducerStateTrailer) -> bytes:
    """Return the bytes that follow the entries of a producer snapshot."""
    opened = trailer.open_transaction
    return b"".join(
        (
            _MAGIC,
            bytes((_VERSION,)),
            struct.pack(">q", trailer.log_time_ms),
            array_bytes(tuple(map(_batches_bytes, trailer.older_batches))),
            array_bytes(tuple(map(_commit_bytes, trailer.commits))),
            array_bytes(() if opened is None else (_transaction_bytes(opened),)),
            tagged_bytes(()),
        )
    )


def parse_trailer(data: bytes, path: str, producer_count: int) -> ProducerStateTrailer | None:
    """Parse the bytes after ``producer_count`` entries; None if there is no trailer.

    Raises ``CorruptFileError``.
    """
    if not data.startswith(_MAGIC):
        return None
    version = data[len(_MAGIC) : len(_MAGIC) + 1]
    if version != bytes((_VERSION,)):
        raise CorruptFileError(
            path=path, reason=f"unsupported trailer version 0x{version.hex()}, expected {_VERSION}"
        )
    reader = FieldReader(data[len(_MAGIC) + 1 :])
    try:
        log_time_ms = reader.int64()
        older_batches = reader.array(_read_batches)
        commits = reader.array(_read_commit)
        opened = reader.array(_read_transaction)
        reader.tagged_fields()
    except CorruptBatchError as error:
        raise CorruptFileError(path=path, reason=f"invalid trailer: {error.reason}") from None
    except OptionError as error:
        reason = f"invalid trailer: a commit's {error.option}: {error.reason}"
        raise CorruptFileError(path=path, reason=reason) from None
    if len(older_batches) != producer_count or len(opened) > 1:
        raise CorruptFileError(
            path=path,
            reason=f"invalid trailer: {len(older_batches)} producers instead of {producer_count}, "
            f"{len(opened)} open transactions",
        )
    return ProducerStateTrailer(log_time_ms, older_batches, commits, opened[0] if opened else None)


def _batches_bytes(batches: Iterable[ProducerBatch]) -> bytes:
    return array_bytes(
        tuple(
            _BATCH.pack(batch.last_sequence, batch.last_offset, batch.offset_delta)
            for batch in batches
        )
    )


def _commit_bytes(commit: LastCommit) -> bytes:
    name = commit.name
    return (
        string_bytes(name.application_id)
        + string_bytes(name.query_id)
        + _COMMIT.pack(name.version, commit.base_offset, commit.last_offset, commit.timestamp_ms)
    )


def _transaction_bytes(opened: OpenTransaction) -> bytes:
    name = () if opened.name is None else (string_bytes(opened.name),)
    return _TRANSACTION.pack(opened.first_offset, opened.batch_base_offset) + array_bytes(name)


def _read_batches(reader: FieldReader) -> tuple[ProducerBatch, ...]:
    return reader.array(
        lambda fields: ProducerBatch(fields.int32(), fields.int64(), fields.int32())
    )


def _read_commit(reader: FieldReader) -> LastCommit:
    application_id, query_id = reader.string(), reader.string()
    name = CommitName(application_id, query_id, reader.int64())
    return LastCommit(name, reader.int64(), reader.int64(), reader.int64())


def _read_transaction(reader: FieldReader) -> OpenTransaction:
    first_offset, batch_base_offset = reader.int64(), reader.int64()
    name = reader.array(lambda fields: fields.string())
    return OpenTransaction(first_offset, batch_base_offset, name[0] if name else None)
