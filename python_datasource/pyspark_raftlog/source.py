"""The data source that Spark finds under the name ``raftlog``; its docstring is the manual.

Rules of this file: what is not needed to find the source by its name is imported inside methods,
since Spark imports every ``pyspark_*`` module to look for names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

    from raftlog.errors import AppendOnlyError

    from .options import RaftlogOptions
    from .write_options import WriteOptions


class RaftlogDataSource(DataSource):
    """Reads a replicated log from its files or from its nodes, and appends to one of raftlog's own:
    in a batch, or as a stream.

    ::

        spark.read.format("raftlog").load("/var/lib/kafka/metadata")
        spark.readStream.format("raftlog").load("/var/lib/kafka/metadata")
        frame.write.format("raftlog").mode("append").save("/logs/decisions-0")
        frame.writeStream.format("raftlog").option("checkpointLocation", ...).start("/logs/ids-0")

    ``load`` takes the directory of a metadata log, a node's log directory that holds one, the
    directory of an ordinary partition, one ``.log`` segment, or one ``.checkpoint``. Several
    directories of voters of one cluster (``load([one, two, three])``, separated by commas, or as a
    pattern with ``*``) are read up to what a majority of the voters holds; several replicas of an
    ordinary partition up to what all of them hold. Nothing is locked or changed, so a running node
    is not disturbed. The path must be visible to every executor.

    Instead of a path, ``bootstrap.servers`` names nodes, as ``host:port,host:port``: those of a
    quorum of raftlog's, to read or to write; or the live controllers of a Kafka cluster, whose
    metadata is read from there. All else is the same. What is committed is known there, so nothing
    is held back. Executors fetch their ranges from the leader themselves. With ``ssl.ca.location``
    connections are encrypted; ``ssl.certificate.location``, ``ssl.key.location`` and
    ``ssl.key.password`` prove this client, ``ssl.endpoint.identification.algorithm=none`` lets a
    node be certified for another host. They are files in PEM form, at the same path everywhere.
    The prefix ``kafka.``, as Spark's Kafka source has it, is allowed before these names.

    ::

        spark.read.format("raftlog").option("bootstrap.servers", "log-1:9092,log-2:9092").load()

    Spark finds the name if raftlog is installed where the driver and the executors run; elsewhere
    call ``spark.dataSource.register(RaftlogDataSource)`` first. Small batches are some 40 ms faster
    with ``spark.python.unix.domain.socket.enabled=true`` (off by default).

    What is worth knowing and no error (history that is missing, loss that was accepted, which end
    was taken) goes to Python's logger ``pyspark_raftlog``.

    A DataFrame is planned once: later actions on it read the same range, even if the log has
    grown. ``load()`` again to see more.

    **Columns.** Those of Spark's Kafka source, then what a metadata log adds:

    ================ ========= ================================================================
    key, value       BINARY    as in the log; secrets in metadata records are replaced
    topic            STRING    from the directory's name
    partition        INT
    offset           BIGINT    with gaps: control records have offsets and yield no rows
    timestamp        TIMESTAMP
    timestampType    INT       0 create time, 1 log append time
    leaderEpoch      INT       of the record's batch
    visibleOffset    BIGINT    from where on it counts: its own offset, or in a metadata log that of
                               the end of its transaction; null if that was aborted or is open
    recordType       STRING    such as PARTITION_CHANGE_RECORD; null outside metadata logs
    recordVersion    INT       the same
    record           STRING    the record's fields as kafka-dump-log prints them, as JSON; the same
    snapshotPosition INT       null for a row of the log. For a row of a checkpoint its place there;
                               all of a checkpoint's rows have the last offset that it stands for,
                               and the log's time at that offset
    headers          ARRAY     of STRUCT<key: STRING, value: BINARY>; with ``includeHeaders``
    controlType      STRING    such as leader_change; with ``includeControlRecords``
    ================ ========= ================================================================

    A schema that names some of them, in any order, is a projection: what it leaves out is not even
    decoded. ``spark.read.format("raftlog").schema("offset BIGINT, record STRING").load(path)``
    Without a schema every column is read, and the JSON of ``record`` is what takes the time.

    **Where a read begins and ends.** Offsets are record numbers, ends are exclusive.

    startingOffset (alias startingOffsets)
        ``earliest``, the oldest offset on disk, with a warning if history before it is gone;
        ``latest`` (streams); ``snapshot``, the newest checkpoint's rows and then the log from
        there, or ``earliest`` if there is no checkpoint; or a number. Only for new queries.
        Default: batch ``earliest``; stream ``snapshot`` on a metadata log, else ``latest``.
    startingTimestamp
        The first record that is not older: milliseconds since 1970, or ISO 8601 (UTC if it names no
        zone). Wins over ``startingOffset``.
    startingTimestampStrategy (alias startingOffsetsByTimestampStrategy)
        If no record is that young: ``error`` (default), or ``latest``.
    endingOffset (alias endingOffsets)
        Batch only. ``latest`` (default), or a number.
    endingTimestamp
        Batch only. The first record that is not older ends the read. Wins over ``endingOffset``.
    isolationLevel
        ``read_committed`` (default): nothing of aborted transactions, and the end lies before any
        open one. ``high_watermark`` (alias ``read_uncommitted``): everything.
    tailHoldback
        Milliseconds, or such as ``5s``: how old the tail of a single directory must be before it is
        read. What a node wrote last may be taken back by its cluster, and one directory cannot
        tell. Default: 5 s for streams, 0 for batch reads. Several copies need none.
    failOnDataLoss
        ``true`` (default): records that are gone end the query with a
        ``RAFTLOG_DATA_LOSS.<condition>`` error. ``false``: a warning, and the read goes on: where
        records were deleted, at the newest checkpoint (if the stream begins with one) or at the
        oldest offset; where history was rewritten, at the point where it parts.

    **What is shown.**

    includeHeaders
        Adds the column ``headers``. Default ``false``. In logs that raftlog itself writes, headers
        whose names begin with ``raftlog.`` are its own and not shown.
    includeControlRecords
        Adds the column ``controlType``, and rows for control records: ``key`` and ``value`` raw,
        ``record`` their JSON. Default ``false``.
    includeAbortedRecords
        With ``read_committed``: rows of aborted transactions too, with a null ``visibleOffset``.
        Default ``false``.
    redact
        ``true`` (default): secrets in metadata records (SCRAM, sensitive configs, whatever is
        unknown) are replaced, in ``value`` and in ``record``. ``false`` shows them.
    redactKey
        A secret of yours, 16 bytes or more. Then a keyed hash stands for each secret and tells
        whether it changed; without it, a fixed mask.
    values
        What the records of a path are, where its files do not tell and the read is refused:
        ``kraft`` for cluster metadata, ``bytes`` (or ``msgpack``) for records of another kind,
        whose values are shown as they are. Not for ``__cluster_metadata`` itself.

    **How much at a time.**

    maxOffsetsPerTrigger
        Streams. Records a micro-batch at most; a record batch or a metadata transaction that is
        larger is taken whole, as are the rows of a checkpoint.
    maxBytesPerTrigger
        Streams. The same in bytes of the log, such as ``64m``.
    minOffsetsPerTrigger, maxTriggerDelay
        Streams, not AvailableNow. Wait for this many records, but no longer than that: milliseconds
        or such as ``5m``; default ``15m``.
    pollWaitMs
        Streams. How long to wait for news before Spark is told that there is none. Default 100.
    minPartitions
        Tasks at least, as far as record batches allow. Default 1.
    maxRecordsPerPartition
        Records a task at most, as far as record batches allow. Default 250000.
    recordBatchRows
        Rows of one Arrow batch. Default 16384.
    maxDecompressedBytes
        Bytes that a compressed record batch may expand to, such as ``256m``; a larger one is an
        error, and a task may need a few times as much memory. Default ``128m``, at most ``512m``.

    **Writing.** Into a log that ``raftlog.open(path)`` has made, on the host of the driver, or into
    that of a quorum's nodes. A write is one record batch: all of it is in the log or nothing,
    whatever fails in between, in the order of partitions and then of rows. So the log's batch limit
    bounds a write, and a micro-batch: see ``maxOffsetsPerTrigger`` of its source. The mode is
    ``append``, and must be said.

    ============= ==================== =============================================================
    value         BINARY or STRING     null is a tombstone; only BINARY in msgpack and kraft logs
    key           BINARY or STRING
    headers       ARRAY as above       names that begin with ``raftlog.`` are refused
    timestamp     TIMESTAMP            to the millisecond; null, or no such column: the append's own
    recordType    STRING, or a number  instead of ``value``, in logs of typed records: the type ...
    recordVersion INT                  ... its version (a kraft log's frames may go without) ...
    record        STRUCT, or STRING    ... and its fields, as a struct or as JSON
    ============= ==================== =============================================================

    Any other column is an error. A kraft log takes no key, headers or timestamp, and records only
    that Kafka's readers would take. Without a column ``recordVersion`` they are written as the
    log's metadata.version says, and planning the write reads the log to learn it.

    requiredBaseOffset
        Batch only. The end offset of the log that the caller has read: if somebody has appended
        since, nothing is written, and ``pyspark_raftlog.conflict(error)`` says where the log ended.
        A frame without rows checks it too.
    requiredEndOffset
        Batch only. The same, as the offset that the last record must get.
    requiredEpoch
        Refuses if somebody has claimed the log since that epoch.
    txnAppId, txnVersion
        Name the write: under one ``txnAppId`` versions rise, and the same one again is not written
        twice. A stream's version is its batch id, and its ``txnAppId`` the query's id unless one is
        given; each query (each checkpoint) needs one of its own.
    txnTakeOverFrom
        Lets this query go on under a ``txnAppId`` whose last write is of the query that is named
        here, which is gone for good.
    maxBytesPerCommit
        Refuses larger writes than that before anything is written. Default: what the log allows
        (``raftlog configure PATH max.message.bytes=...`` changes it).
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options; what Spark keeps of them holds no secret in any ``repr``.

        Raises:
            OptionError: an option is unknown, or its value is not allowed.
        """
        from .options import RaftlogOptions, has_write_option

        self._given = dict(options)
        self._is_for_writing = has_write_option(options)
        if self._is_for_writing:
            from .typed_errors import as_spark_error

            with as_spark_error():
                self._write_options()
        else:
            parsed = RaftlogOptions.parse(options)
            is_path = parsed.nodes is None
            self._options = parsed.at(_absolute(parsed.path)) if is_path else parsed

    def __repr__(self) -> str:
        if self._is_for_writing:
            return f"RaftlogDataSource({self._write_options()!r})"
        return f"RaftlogDataSource({self._options!r})"

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "raftlog"

    def schema(self) -> StructType:
        """All columns that the options give."""
        from .schema import source_schema

        return source_schema(self._read_options())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read in a batch; ``schema`` may name a subset of the columns.

        Raises:
            OptionError: the schema names something else.
        """
        from .reader import RaftlogReader
        from .schema import project

        options = self._read_options()
        return RaftlogReader(options, project(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Read as a stream; ``schema`` may name a subset of the columns.

        Raises:
            OptionError: the schema names something else, or an end was given.
        """
        from .schema import project
        from .stream_reader import RaftlogStreamReader

        options = self._read_options()
        options.check_no_end()
        return RaftlogStreamReader(options, project(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Append in a batch.

        Raises (as a text that ``pyspark_raftlog.typed_error`` reads):
            AppendOnlyError: the log was to be overwritten.
            OptionError: an option is for reading, or two contradict each other.
            WriteSchemaError: the columns are not those of a record.
            LogNotFoundError, NotALogError: there is no log of raftlog's own.
        """
        from .typed_errors import as_spark_error
        from .write_plan import plan_write
        from .writer import RaftlogWriter

        with as_spark_error():
            if overwrite:
                raise _append_only("overwriting", 'use mode("append"), or INSERT INTO')
            options = self._write_options()
            options.check_batch()
            return RaftlogWriter(plan_write(options, schema))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Append each micro-batch of a stream, once.

        Raises the same as ``writer``.
        """
        from .stream_writer import RaftlogStreamWriter
        from .typed_errors import as_spark_error
        from .write_plan import plan_write

        with as_spark_error():
            if overwrite:
                remedy = 'use outputMode("append"), or "update" by way of foreachBatch'
                raise _append_only('outputMode("complete")', remedy)
            options = self._write_options()
            options.check_stream()
            return RaftlogStreamWriter(plan_write(options, schema))

    def _read_options(self) -> RaftlogOptions:
        if self._is_for_writing:
            from .options import RaftlogOptions

            return RaftlogOptions.parse(self._given)  # raises: it names what is for writing
        return self._options

    def _write_options(self) -> WriteOptions:
        from .write_options import WriteOptions

        return WriteOptions.parse(self._given)


def _append_only(what: str, remedy: str) -> AppendOnlyError:
    from raftlog.errors import AppendOnlyError

    return AppendOnlyError(what=what, remedy=remedy)


def _absolute(path: str) -> str:
    """The path for processes that may work in another directory; commas separate several."""
    import os

    parts = [path] if os.path.exists(path) else path.split(",")
    plain = [part.strip().removeprefix("file:") for part in parts if part.strip()]
    return ",".join(os.path.abspath(part) for part in plain)
