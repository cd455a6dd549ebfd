"""The data source ``raftlog``; the docstring of ``RaftlogDataSource`` is its manual.

Modules are imported inside methods, since Spark imports every ``pyspark_*`` package when it looks
up the name of a data source.
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

    from pyspark_raftlog.errors import AppendOnlyError

    from .options import RaftlogOptions, WriteOptions


class RaftlogDataSource(DataSource):
    """Spark data source of a replicated log: batch and stream reads, batch and stream writes.

    ::

        spark.read.format("raftlog").load("/var/lib/kafka/metadata")
        spark.readStream.format("raftlog").load("/var/lib/kafka/metadata")
        frame.write.format("raftlog").mode("append").save("/logs/decisions-0")
        frame.writeStream.format("raftlog").option("checkpointLocation", ...).start("/logs/ids-0")

    ``load`` accepts a metadata directory, the log directory of a broker or controller that contains
    one, a partition directory, a ``.log`` segment, or a snapshot (a ``.checkpoint`` file). The
    directories of several voters of one cluster (``load([one, two, three])``, comma-separated, or a
    pattern with ``*``) are read up to the offset that a majority of the voters has; several
    replicas of an ordinary partition up to the offset that all of them have. Files are neither
    locked nor changed, so the node can be running. The path must be readable on every executor. It
    may be a URI in an object store (``s3://bucket/path?region=eu-central-1``, ``gs://``,
    ``abfss://``), which pyarrow reads with the credentials of each process.

    A partition of a tiered topic is also read from remote storage, where Kafka's
    ``LocalTieredStorage`` has copied its segments (``tiered-0-LWgrMmVrT0a__7a4SasuPA``), up to the
    last one that is complete, and a log from the segments of its backups (``raftlog backup``),
    which have the same names.

    ``bootstrap.servers`` replaces the path, as ``host:port,host:port``: the nodes of a raftlog
    quorum, to read or to write, or the controllers of a running Kafka cluster, to read its
    metadata. The committed end is known there, so that nothing is held back. Executors fetch their
    ranges from the leader. The prefix ``kafka.`` of Spark's Kafka source is accepted before all
    names of this paragraph and the next two.

    ``security.protocol`` is that of Kafka's clients. ``ssl.ca.location`` (or its content as
    ``ssl.ca.pem`` or ``ssl.truststore.certificates``) verifies the nodes; with
    ``ssl.crl.location``, a list of their issuer, nodes whose certificate is revoked are refused,
    and all of them if the list has expired. ``ssl.certificate.location``, ``ssl.key.location`` and
    ``ssl.key.password`` configure the client certificate;
    ``ssl.endpoint.identification.algorithm=none`` disables the check of host names. Files are in
    PEM format, at the same path on the driver and on every executor, also those of
    ``ssl.truststore.location`` and ``ssl.keystore.location``, which require
    ``ssl.truststore.type=PEM`` and ``ssl.keystore.type=PEM`` and have neither
    ``ssl.truststore.password`` nor ``ssl.keystore.password``. The content of a key is refused as an
    option: ``ssl.key.pem``, ``ssl.certificate.pem``, ``ssl.keystore.key``,
    ``ssl.keystore.certificate.chain``.

    ``sasl.mechanism`` (or ``sasl.mechanisms``) is ``SCRAM-SHA-512``, ``SCRAM-SHA-256``, ``PLAIN``
    or ``OAUTHBEARER``, with ``sasl.username`` and ``sasl.password``, or ``sasl.jaas.config``. A
    token is ``sasl.oauthbearer.token``, or is read from ``sasl.oauthbearer.token.endpoint.url``, a
    URL of ``file:`` or ``https:``. The latter is verified with ``https.ca.location`` and requires
    ``sasl.oauthbearer.client.credentials.client.id`` and
    ``sasl.oauthbearer.client.credentials.client.secret`` (or ``sasl.oauthbearer.client.id`` and
    ``sasl.oauthbearer.client.secret``); ``sasl.oauthbearer.scope`` and
    ``sasl.oauthbearer.extensions`` are optional.

    A secret may be a reference, ``${env:NAME}``, ``${file:PATH:KEY}`` or
    ``${directory:PATH:NAME}``, which driver and executors resolve when they connect. In SQL use the
    latter two: Spark itself replaces ``${env:NAME}`` in the text of a statement, which it logs.

    ::

        spark.read.format("raftlog").options(**{
            "kafka.bootstrap.servers": "controller-1:9093,controller-2:9093",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": "/etc/kafka/ca.pem",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": "auditor",
            "kafka.sasl.password": "${file:/etc/kafka/auditor.properties:password}",
        }).load()

    ``encryption.key.file`` and ``encryption.context`` encrypt the values that are written, and
    decrypt those that are read, of a log with ``bytes`` values (docs/encryption.md). The file has
    keys; no option has one. ``encryption.deleted.keys=null`` reads values whose key was deleted as
    null (default ``error``), ``encryption.plaintext=true`` also reads values that are not
    encrypted.

    A pattern of the partitions of an internal log, such as ``/var/lib/kafka/__consumer_offsets-*``,
    is one source of all these partitions: ``partition`` is in each row, limits are shared, and a
    stream's checkpoint has the offset of each partition. Partitions that appear later are read
    after a restart.

    ``sources`` replaces the path too: a JSON array of objects, one for each of several logs of
    different clusters, which one query reads together. An object has the log's location (``path``,
    or ``bootstrap.servers`` with its security options), and its own value of ``startingOffset``,
    ``startingTimestamp``, ``startingTimestampStrategy``, ``endingOffset``, ``endingTimestamp``,
    ``failOnDataLoss``, ``isolationLevel``, ``tailHoldback``, ``maxDecompressedBytes`` or
    ``values``, if it differs from the option beside ``sources``. All other options are shared.
    ``clusterId`` of an object is required if the log does not contain its cluster id, and otherwise
    checked.

    ::

        sources = [{"path": "/logs/one"}, {"bootstrap.servers": "two:9093", "tailHoldback": "0"}]
        spark.readStream.format("raftlog").option("sources", json.dumps(sources)).load()

    Spark finds the source by name if raftlog is installed on the driver and the executors;
    otherwise call ``spark.dataSource.register(RaftlogDataSource)`` first. Small batches are about
    40 ms faster with ``spark.python.unix.domain.socket.enabled=true`` (off by default).

    Warnings (missing history, accepted data loss) and the end offset of a read are logged to the
    Python logger ``pyspark_raftlog``.

    A DataFrame is planned once: later actions read the same range, even if the log has grown. Call
    ``load()`` again to read newer records.

    **Columns.** The columns of Spark's Kafka source, then those of metadata logs:

    ================ ========= ================================================================
    clusterId        STRING    cluster id of the log; only with ``sources``
    key, value       BINARY    as in the log; secrets in metadata records are redacted
    topic            STRING    from the directory's name
    partition        INT
    offset           BIGINT    with gaps: control records have offsets, but yield no rows
    timestamp        TIMESTAMP
    timestampType    INT       0 create time, 1 log append time
    leaderEpoch      INT       of the record's batch
    visibleOffset    BIGINT    offset at which the record takes effect: its own, or in a metadata
                               log the end of its transaction; null if that is aborted or open
    recordType       STRING    e.g. PARTITION_CHANGE_RECORD, OFFSET_COMMIT; null outside internal
                               logs: metadata, ``__consumer_offsets``, ``__transaction_state``,
                               ``__share_group_state`` and ``__remote_log_metadata``
    recordVersion    INT       version of the record, or of its value; null outside internal logs,
                               and for a tombstone
    recordKey        STRING    JSON of the key's fields, as kafka-dump-log prints them; null outside
                               the internal logs whose records have keys
    record           STRING    JSON of the fields of the record, or of its value, as kafka-dump-log
                               prints them; null outside internal logs, and for a tombstone; not
                               with ``columns=typed``
    topic_record ... STRUCT    with ``columns=typed``, for each record type: the fields of its
                               latest version; null for records of other types
    snapshotPosition INT       null for a record of the log; for a record of a snapshot its position
                               there: all records of a snapshot have the last contained offset of
                               the snapshot, and the log's timestamp at that offset
    headers          ARRAY     of STRUCT<key: STRING, value: BINARY>; with ``includeHeaders``
    controlType      STRING    e.g. leader_change; with ``includeControlRecords``
    producerId       BIGINT    producer of the record's transaction, or of that which a marker ends;
                               null outside of transactions; with ``includeControlRecords``
    ================ ========= ================================================================

    A schema with a subset of the columns, in any order, is a projection: other columns are not
    decoded. ``spark.read.format("raftlog").schema("offset BIGINT, record STRING").load(path)``
    Without a schema all columns are read; decoding ``record`` takes most of the time. The schema of
    ``load(path).select(...)`` is such a schema, too.

    **Start and end of a read.** End offsets are exclusive.

    startingOffset (alias startingOffsets)
        ``earliest``, the log start offset, with a warning if earlier records were deleted;
        ``latest`` (streams only); ``snapshot``, the newest snapshot and then the log from its end
        offset, or ``earliest`` if there is no snapshot; an offset; or a time, an age or a leader
        epoch, as ``2026-11-21T03:12:00Z``, ``-15m`` or ``epoch:5`` (``raftlog.client.offset_spec``
        has all forms). Applies to new queries only. Default: ``earliest`` in a batch; in a stream
        ``snapshot`` for metadata logs, otherwise ``latest``.
    startingTimestamp
        Starts at the first record whose timestamp is >= this: milliseconds since 1970, or ISO 8601
        (UTC without a time zone). Takes precedence over ``startingOffset``.
    startingTimestampStrategy (alias startingOffsetsByTimestampStrategy)
        If there is no such record: ``error`` (default), or ``latest``.
    endingOffset (alias endingOffsets)
        Batch only. ``latest`` (default), or an offset, exclusive, or what ``startingOffset`` has.
    endingTimestamp
        Batch only. Ends before the first record whose timestamp is >= this. Takes precedence over
        ``endingOffset``.
    isolationLevel
        ``read_committed`` (default): skips aborted transactions, and ends before the first open
        one. ``read_uncommitted`` (alias ``high_watermark``): returns all records.
    tailHoldback
        Minimum age of the records at the end of a single directory: milliseconds, or e.g. ``5s``.
        The cluster may still truncate uncommitted records, and one directory does not show which
        are committed. Default: 5 s for streams, 0 for batch reads. Ignored for several replicas.
    failOnDataLoss
        ``true`` (default): missing records fail the query with
        ``RAFTLOG_DATA_LOSS.<condition>``. ``false``: logs a warning and continues: after deleted
        records at the newest snapshot (if the stream began with one) or at the log start offset;
        after a truncation at the offset where the histories diverge.

    **Rows.**

    includeHeaders
        Adds the column ``headers``. Default ``false``. In logs written by raftlog, headers whose
        key begins with ``raftlog.`` are reserved and not returned.
    includeControlRecords
        Adds the columns ``controlType`` and ``producerId``, and rows for control records, with
        their bytes in ``key`` and ``value`` and their JSON in ``record``. Default ``false``.
    includeAbortedRecords
        With ``read_committed``: also returns records of aborted transactions, with a null
        ``visibleOffset``. Default ``false``.
    columns
        ``json`` (default): the column ``record``. ``typed``: in its place a nullable struct for
        each record type that has fields, ``topic_record``, ``partition_change_record``, ..., with
        the names and types of the declarations in ``raftlog_state.records``. A field that a record
        lacks has Kafka's default. Unknown fields are left out. Metadata logs only.
    redact
        ``true`` (default): redacts secrets of metadata records (SCRAM credentials, sensitive
        configs, unknown records and fields) in ``value``, ``record`` and typed columns. ``false``
        returns them. Other internal logs have no secrets: ``full`` also hides the data that clients
        send there: hosts, metadata of offset commits, user data of subscriptions and
        assignments, unknown records and fields; in ``key``, ``value``, ``recordKey``, ``record``.
    redactSecret, redactKey
        Secret of at least 16 bytes, or a reference as above. Replaces each secret by a keyed hash,
        so that changes are visible, instead of a fixed mask. In SQL use ``redactSecret``: Spark
        shows the value of ``redactKey`` in plans and event logs, unless it is a reference.
    values
        Kind of the records, if it cannot be detected from the files and the read fails therefore:
        ``kraft`` for cluster metadata, ``bytes`` (or ``msgpack``) for other records, whose values
        are returned unchanged. Not allowed for ``__cluster_metadata`` itself.

    **Batch sizes.**

    maxOffsetsPerTrigger
        Streams. Maximum number of records in a micro-batch. A larger record batch or metadata
        transaction is not split, nor are the records of a snapshot.
    maxBytesPerTrigger
        Streams. Maximum size of a micro-batch in bytes of the log, e.g. ``64m``.
    minOffsetsPerTrigger, maxTriggerDelay
        Streams, not with AvailableNow. Waits for this number of records, at most for the delay:
        milliseconds, or e.g. ``5m``; default ``15m``.
    pollWaitMs
        Streams. How long to wait for new records before an empty trigger. Default 100.
    minPartitions
        Minimum number of tasks, as far as record batches can be split. Default 1.
    maxRecordsPerPartition
        Maximum number of records in a task, as far as record batches can be split. Default 250000.
    recordBatchRows
        Rows in an Arrow batch, at most. Default 32768.
    maxDecompressedBytes
        Maximum decompressed size of a record batch, e.g. ``256m``; a larger one is an error. A task
        may need a multiple of it as memory. Default ``128m``, at most ``512m``.

    **Several logs.** A stream's checkpoint has an offset for each cluster id. After a restart with
    other ``sources``, an added log begins at its starting offset, and the offset of a removed log
    is kept in case it is added again. The checkpoint of a stream of one log is continued if its
    cluster is one of the sources; one of several logs is not continued by a stream of one.

    A batch read requires all logs. A stream skips logs that cannot be reached (a missing directory,
    nodes that do not answer, missing permission), with one warning for each, reads the others, and
    tries again every second; ``latestOffset`` in the query's progress names them as
    ``unavailable``. It fails if no log can be reached when it starts. With
    ``Trigger.AvailableNow`` such logs belong to the next run. Data loss, divergence and damage end
    the stream, unless ``failOnDataLoss`` is false for that log; a log that is that of another
    cluster always does. A micro-batch that is already planned has fixed records: if their log is
    not reachable then, the batch fails, also after a restart; if the log was deleted or removed
    from ``sources``, ``failOnDataLoss=false`` skips them.

    ``maxOffsetsPerTrigger`` and ``maxBytesPerTrigger`` are divided in proportion to the new records
    of each log, but each advances by at least one record batch; while one of them is set, at most
    16 logs begin with their snapshots in one micro-batch. ``minOffsetsPerTrigger`` counts the
    records of all logs. Small ranges of several logs are read by one task: there are about
    ``minPartitions`` tasks, by default as many as the driver has cores.

    **Writing** appends to a log created by ``raftlog.open(path)``, on the driver's host, or to the
    log of a raftlog quorum. A write is one record batch, in the order of partitions and then of
    rows: after any failure, all of its records are in the log or none. So the log's
    ``max.message.bytes`` limits the size of a write and of a micro-batch; set
    ``maxOffsetsPerTrigger`` of the stream's source accordingly. The mode must be ``append``.

    ============= ==================== =============================================================
    value         BINARY or STRING     null is a tombstone; only BINARY in msgpack and kraft logs
    key           BINARY or STRING
    headers       ARRAY as above       keys that begin with ``raftlog.`` are rejected
    timestamp     TIMESTAMP            milliseconds; without it or if null, the time of the append
    recordType    STRING or integer    instead of ``value``, in msgpack and kraft logs: the type ...
    recordVersion INT                  ... its version (optional in kraft logs) ...
    record        STRUCT or STRING     ... and its fields, as a struct or as JSON
    ============= ==================== =============================================================

    Other columns are an error. A kraft log accepts no key, headers or timestamp, and only records
    that Kafka can read. Without the column ``recordVersion``, versions are those of the log's
    metadata.version, and the log is read to find it when the write is planned.

    requiredBaseOffset
        Batch only. The end offset up to which the caller has read the log. If other records were
        appended since, the write fails without effect, and ``pyspark_raftlog.conflict(error)``
        returns the current end offset. Also checked if there are no rows.
    requiredEndOffset
        Batch only. The same check, by the offset of the last record to write.
    requiredEpoch
        Fails the write if another writer has claimed the log (a newer leader epoch) since.
    txnAppId, txnVersion
        Idempotent writes: versions of a ``txnAppId`` increase, and a version is written at most
        once. In a stream ``txnVersion`` is the batch id, and ``txnAppId`` defaults to the id of the
        query; each query (each checkpoint) needs a ``txnAppId`` of its own.
    txnTakeOverFrom
        Query id. Lets this query continue a ``txnAppId`` whose last write is from that query, which
        must have ended for good.
    maxBytesPerCommit
        Fails larger writes before anything is written. Default: the limit of the log
        (``raftlog configure PATH max.message.bytes=...``).
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Validate the options. No ``repr`` of them contains secrets.

        Raises:
            OptionError: an option is unknown, or its value is invalid.
        """
        from .options import has_location, has_write_option

        self._given = dict(options)
        self._is_for_writing = has_write_option(options)
        self._options: RaftlogOptions | None = None  # of a catalog's table: in its columns
        if self._is_for_writing:
            from .errors import as_spark_error

            with as_spark_error():
                self._write_options()
        elif has_location(options):
            self._options = self._parsed()

    def __repr__(self) -> str:
        if self._is_for_writing:
            return f"RaftlogDataSource({self._write_options()!r})"
        return f"RaftlogDataSource({self._options!r})"

    def _parsed(self) -> RaftlogOptions:
        from .options import RaftlogOptions

        return RaftlogOptions.parse(self._given).with_paths(absolute_paths)

    def _take_table_options(self, schema: StructType) -> None:
        """Add the options of a catalog's table, which Spark reads and writes without options."""
        from .options import has_location
        from .schema import table_options

        if not has_location(self._given):
            self._given = table_options(schema) | self._given

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "raftlog"

    def schema(self) -> StructType:
        """Return all columns that the options enable."""
        from .schema import is_catalog_table, source_schema, with_table_options

        columns = source_schema(self._read_options())
        return (
            with_table_options(columns, self._given) if is_catalog_table(self._given) else columns
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader; ``schema`` may be a subset of the columns.

        Raises:
            OptionError: the schema has other columns.
        """
        from .reader import RaftlogReader
        from .schema import project
        from .sources_reader import RaftlogSourcesReader

        self._take_table_options(schema)
        options = self._read_options()
        kind = RaftlogSourcesReader if options.sources else RaftlogReader
        return kind(options, project(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the stream reader; ``schema`` may be a subset of the columns.

        Raises:
            OptionError: the schema has other columns, or an end offset is set.
        """
        from .schema import project
        from .sources_reader import RaftlogSourcesStreamReader
        from .stream_reader import RaftlogStreamReader

        self._take_table_options(schema)
        options = self._read_options()
        options.check_no_end()
        columns = project(schema, options)
        if options.sources:
            return RaftlogSourcesStreamReader(options, columns)
        return RaftlogStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the batch writer.

        Raises (as a text that ``pyspark_raftlog.typed_error`` parses):
            AppendOnlyError: the mode is overwrite.
            OptionError: an option is for reads only, or two contradict each other.
            WriteSchemaError: the columns are not those of a record.
            LogNotFoundError, NotALogError: there is no log created by raftlog.
        """
        from .commit import plan_write
        from .errors import as_spark_error
        from .sink import RaftlogWriter

        with as_spark_error():
            if overwrite:
                raise _append_only("overwrite", 'use mode("append"), or INSERT INTO')
            self._take_table_options(schema)
            options = self._write_options()
            options.check_batch()
            return RaftlogWriter(plan_write(options, schema))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the stream writer, which appends each micro-batch exactly once.

        Raises the errors of ``writer``.
        """
        from .commit import plan_write
        from .errors import as_spark_error
        from .sink import RaftlogStreamWriter

        with as_spark_error():
            if overwrite:
                remedy = 'use outputMode("append"), or "update" with foreachBatch'
                raise _append_only('outputMode("complete")', remedy)
            options = self._write_options()
            options.check_stream()
            return RaftlogStreamWriter(plan_write(options, schema))

    def _read_options(self) -> RaftlogOptions:
        if self._options is None:
            self._options = self._parsed()  # raises OptionError for an option of the sink
        return self._options

    def _write_options(self) -> WriteOptions:
        from .options import WriteOptions

        return WriteOptions.parse(self._given)


def _append_only(what: str, remedy: str) -> AppendOnlyError:
    from pyspark_raftlog.errors import AppendOnlyError

    return AppendOnlyError(what=what, remedy=remedy)


def absolute_paths(path: str) -> str:
    """Make comma-separated paths absolute: executors may have another working directory."""
    import os

    from raftlog.client.log_handle import is_object_uri

    parts = [path] if os.path.exists(path) else path.split(",")
    plain = [part.strip().removeprefix("file:") for part in parts if part.strip()]
    return ",".join(part if is_object_uri(part) else os.path.abspath(part) for part in plain)
