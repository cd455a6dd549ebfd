"""State of a metadata log, or of another internal log, as Arrow tables, without Spark or Java.

``read_state`` is what ``open_tables(path).at(...)`` is of tables: the same columns and types, but
for the origin of each row, which is in the history of a log and not in its state.
"""

from __future__ import annotations

import os

import pyarrow as pa

from raftlog.client import Isolation, LogReader, open_path
from raftlog.client.offset_spec import LATEST, OffsetSpec, Resolved, resolve
from raftlog.clock import Clock
from raftlog.errors import OptionError
from raftlog.printable import did_you_mean

from .image import MetadataImage
from .image.column_types import STRING
from .internal.loader import InternalState
from .loader.image_reader import ImageReader
from .loader.payload import SkippedRecords
from .log_changes import Offset, offset_spec
from .records import Redactor
from .records.internal_logs import INTERNAL_LOGS
from .tables.convert import columns_of
from .tables.named_tables import NamedTables
from .tables.schema import BY_NAME, CLUSTER_ID, METADATA_TABLES


class LogState(NamedTables[pa.Table]):
    """State of a log below ``end_offset``. Every method returns an Arrow table.

    DuckDB, Polars and pandas accept these tables. Secrets are redacted. ``cluster_id`` is null if
    the log does not contain it. ``reason`` explains how ``at`` was resolved. The state does not
    contain records that this release does not support (``skipped``), nor those of a transaction
    that is open at the end, which begin at ``open_transaction_offset``; None if there is no such
    transaction.
    """

    def __init__(
        self, log: LogReader, image: MetadataImage, found: Resolved, images: ImageReader | None
    ) -> None:
        self.path = log.path
        self.end_offset = found.offset
        self.cluster_id = log.cluster_id
        self.reason = found.reason
        self.skipped: tuple[SkippedRecords, ...] = () if images is None else images.skipped
        self.open_transaction_offset = None if images is None else images.open_transaction_offset
        self._image = image
        self._is_metadata = images is not None

    def __repr__(self) -> str:
        return f"LogState({self.path!r}, end_offset={self.end_offset})"

    def table(self, name: str) -> pa.Table:
        """Return a typed table by name, such as ``topics``, with rows in the order of their keys.

        Raises:
            OptionError: there is no such table, or this log does not have it.
        """
        typed = BY_NAME.get(name)
        if typed is None:
            hint = did_you_mean(name, BY_NAME) or f"tables are {', '.join(BY_NAME)}"
            raise OptionError(option="name", reason=f"unknown table {name!r}; {hint}")
        if (typed in METADATA_TABLES) != self._is_metadata:
            of_log = "a partition of its internal log" if self._is_metadata else "the metadata log"
            reason = f"{self.path} has no table {name}; read the state of {of_log}"
            raise OptionError(option="name", reason=reason)
        rows = self._image.rows(typed.entity)
        cluster_ids = pa.array([self.cluster_id] * len(rows), STRING)
        columns = {CLUSTER_ID: cluster_ids, **columns_of(typed.entity, rows)}
        return pa.table(columns, schema=pa.schema({CLUSTER_ID: STRING, **typed.columns}))


def read_state(
    source: str | os.PathLike[str] | LogReader,
    *,
    at: Offset | None = None,
    from_oldest: bool = False,
    redactor: Redactor | None = None,
) -> LogState:
    """Return the state of a metadata log, as ``raftlog state`` prints it.

    Also reads a partition of another internal log, such as ``__consumer_offsets-12``. Its tables
    are ``consumer_offsets``, ``pending_offsets``, ``groups`` and ``group_members``,
    ``transactions_of_producers``, ``share_partitions`` or ``remote_segments``. Offsets that
    open transactions commit are in ``pending_offsets``; later commits of other clients are in
    ``consumer_offsets``.

    Args:
        source: the log, or an argument of ``raftlog.client.open_path``. For a live controller, use
            ``raftlog.follow("host:9093")``.
        at: the end offset, exclusive; or a time, an age or a name, as for ``--at``; None: the
            committed end.
        from_oldest: whether ``epochs`` and ``transactions``, which are not in snapshots, begin at
            the start of the log. The whole log is replayed then.
        redactor: hides secrets; None hides all of them.

    Raises:
        OptionError: ``at`` is invalid. NotALogError: the log is not an internal one. Also the
        errors of ``ImageReader.image_at``.
    """
    spec = offset_spec("at", at) or LATEST
    log = source if isinstance(source, LogReader) else open_path(os.fspath(source))
    if log.topic in INTERNAL_LOGS:
        return _internal_state(log, spec, redactor)
    images = ImageReader(log, redactor or Redactor(), from_oldest=from_oldest)
    now_ms = Clock().wall_ms()
    found = resolve(spec, log, now_ms=now_ms, read_end=images.end_offset, is_state=True)
    image = images.image_at(found.offset)
    return LogState(log, image, found, images)


def _internal_state(log: LogReader, spec: OffsetSpec, redactor: Redactor | None) -> LogState:
    """Return the state of a partition of an internal log other than that of the metadata."""
    found = resolve(
        spec,
        log,
        now_ms=Clock().wall_ms(),
        read_end=lambda: log.read_end(isolation=Isolation.READ_UNCOMMITTED).offset,
        is_state=True,
    )
    state = InternalState(log.topic, redactor)
    state.read(log, found.offset)
    return LogState(log, state.image(), found, None)
