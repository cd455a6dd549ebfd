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
    """Spark data source of a replicated log, for batch and streaming reads and writes.

    ::

        spark.read.format("raftlog").load("/var/lib/kafka/metadata")
        spark.readStream.format("raftlog").load("/var/lib/kafka/metadata")
        frame.write.format("raftlog").mode("append").save("/logs/decisions-0")
        frame.writeStream.format("raftlog").option("checkpointLocation", ...).start("/logs/ids-0")

    Spark finds the source by name if raftlog is installed on the driver and the executors.
    Otherwise, call ``spark.dataSource.register(RaftlogDataSource)`` first. Small batches are about
    40 ms faster with ``spark.python.unix.domain.socket.enabled=true`` (off by default).

    A DataFrame, or a temporary view ``USING raftlog``, is planned once: later actions and queries
    read the same range, even if the log has grown. Call ``load()`` again, or CREATE OR REPLACE the
    view, to read newer records.

    Warnings (missing history, accepted data loss) and the end offset of a read are logged to the
    Python logger ``pyspark_raftlog``.

    **Paths.** The path must be readable on every executor. Files are neither locked nor changed, so
    the node can be running. ``load`` accepts:

    - a metadata directory, or the log directory of a broker or controller that contains one
    - a partition directory, a ``.log`` segment, or a snapshot (a ``.checkpoint`` file)
    - the directories of several replicas: ``load([one, two, three])``, comma-separated, or a
      pattern with ``*``. Voters of one cluster are read up to the offset that a majority of the
      voters has reached, replicas of an ordinary partition up to the offset that all of them have
      reached
    - a pattern of the partitions of an internal log, such as
      ``/var/lib/kafka/__consumer_offsets-*``. These partitions are one source: each row contains
      its ``partition``, limits are shared, and a stream's checkpoint contains the offset of each
      partition. Partitions that appear later are read after a restart
    - a directory to which Kafka's ``LocalTieredStorage`` has copied the segments of a partition
      (``tiered-0-LWgrMmVrT0a__7a4SasuPA``), or the backups of a log (``raftlog backup``), whose
      segments have the same names. They are read up to the last complete segment
    - a URI in an object store (``s3://bucket/path?region=eu-central-1``, ``gs://``, ``abfss://``),
      which pyarrow reads with the credentials of each process

    **Nodes.** Instead of a path, ``bootstrap.servers`` names nodes as ``host:port,host:port``: the
    nodes of a raftlog quorum, to read or to write, or the controllers of a running Kafka cluster,
    to read its metadata. Nodes report the committed end, so nothing is held back. Executors fetch
    their ranges from the leader. ``bootstrap.servers`` and the options for TLS and SASL can also be
    written with the prefix ``kafka.``, as for Spark's Kafka source.

    ``security.protocol`` is the same as for Kafka's clients.

    The options for TLS are:

    - ``ssl.ca.location`` (or its content in ``ssl.ca.pem`` or ``ssl.truststore.certificates``)
      verifies the nodes.
    - ``ssl.crl.location`` is a certificate revocation list of their issuer. Nodes with a revoked
      certificate are refused; if the list has expired, all nodes are refused.
    - ``ssl.certificate.location``, ``ssl.key.location`` and ``ssl.key.password`` configure the
      client certificate.
    - ``ssl.endpoint.identification.algorithm=none`` disables the verification of host names.
    - ``ssl.truststore.location`` and ``ssl.keystore.location`` require ``ssl.truststore.type=PEM``
      and ``ssl.keystore.type=PEM``, and do not allow ``ssl.truststore.password`` and
      ``ssl.keystore.password``.

    All files are in PEM format and at the same path on the driver and on every executor. A key
    cannot be passed as an option by its content: ``ssl.key.pem``, ``ssl.certificate.pem``,
    ``ssl.keystore.key`` and ``ssl.keystore.certificate.chain`` are refused.

    The options for SASL are ``sasl.mechanism`` (or ``sasl.mechanisms``), which is
    ``SCRAM-SHA-512``, ``SCRAM-SHA-256``, ``PLAIN`` or ``OAUTHBEARER``; and ``sasl.username`` and
    ``sasl.password``, or ``sasl.jaas.config``. ``OAUTHBEARER`` uses the token in
    ``sasl.oauthbearer.token``, or reads one from ``sasl.oauthbearer.token.endpoint.url``, a
    ``file:`` or ``https:`` URL. An ``https:`` URL is verified with ``https.ca.location`` and
    requires ``sasl.oauthbearer.client.credentials.client.id`` and
    ``sasl.oauthbearer.client.credentials.client.secret`` (or ``sasl.oauthbearer.client.id`` and
    ``sasl.oauthbearer.client.secret``). ``sasl.oauthbearer.scope`` and
    ``sasl.oauthbearer.extensions`` are optional.

    A secret can be a reference: ``${env:NAME}``, ``${file:PATH:KEY}`` or
    ``${directory:PATH:NAME}``. The driver and the executors resolve it when they connect. In SQL,
    use one of the latter two: Spark itself replaces ``${env:NAME}`` in the text of a statement,
    which it logs.

    ::

        spark.read.format("raftlog").options(**{
            "kafka.bootstrap.servers": "controller-1:9093,controller-2:9093",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": "/etc/kafka/ca.pem",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.username": "auditor",
            "kafka.sasl.password": "${file:/etc/kafka/auditor.properties:password}",
        }).load()

    **Several logs.** Instead of a path, ``sources`` names several logs of different clusters that
    one query reads together, as a JSON array with one object per log. An object contains the
    location of its log: ``path``, or ``bootstrap.servers`` with its security options. It can
    override ``startingOffset``, ``startingTimestamp``, ``startingTimestampStrategy``,
    ``endingOffset``, ``endingTimestamp``, ``failOnDataLoss``, ``isolationLevel``, ``tailHoldback``,
    ``maxDecompressedBytes`` and ``values``. All other options are shared. ``clusterId`` is required
    in an object if the log does not contain its cluster id; otherwise it is checked.

    ::

        sources = [{"path": "/logs/one"}, {"bootstrap.servers": "two:9093", "tailHoldback": "0"}]
        spark.readStream.format("raftlog").option("sources", json.dumps(sources)).load()

    A stream's checkpoint contains an offset for each cluster id. After a restart with other
    ``sources``, an added log begins at its starting offset, and the offset of a removed log is kept
    in case it is added again. A stream of several logs continues the checkpoint of a stream of one
    log if that log's cluster is one of the sources. The reverse is not supported.

    A batch read requires all logs. A stream skips logs that are unavailable (a missing directory,
    nodes that do not answer, missing permission), with one warning for each, reads the others, and
    retries every second; ``latestOffset`` in the query's progress lists them as ``unavailable``.
    The stream fails if all logs are unavailable when it starts. With ``Trigger.AvailableNow``,
    unavailable logs are left to the next run. Data loss, divergence and damage end the stream,
    unless ``failOnDataLoss`` is false for that log. A log that turns out to belong to another
    cluster always ends it. The records of a micro-batch are fixed once it is planned. If their log
    becomes unavailable, the batch fails, even after a restart. If the log was deleted or removed
    from ``sources``, ``failOnDataLoss=false`` skips these records.

    ``maxOffsetsPerTrigger`` and ``maxBytesPerTrigger`` are divided in proportion to the new records
    of each log, but each log advances by at least one record batch. While one of them is set, at
    most 16 logs begin with their snapshots in one micro-batch. ``minOffsetsPerTrigger`` counts the
    records of all logs. One task reads small ranges of several logs: there are about
    ``minPartitions`` tasks, by default as many as the driver has cores.

    **Columns.** The columns of Spark's Kafka source, followed by columns for metadata logs:

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
    recordKey        STRING    the key's fields as JSON, as kafka-dump-log prints them; null outside
                               the internal logs whose records have keys
    record           STRING    the fields of the record, or of its value, as JSON, as kafka-dump-log
                               prints them; null outside internal logs, and for a tombstone; not
                               with ``columns=typed``
    topic_record ... STRUCT    with ``columns=typed``, one column per record type: the fields of its
                               latest version; null for records of other types
    snapshotPosition INT       position of a record in its snapshot; null for a record of the log.
                               All records of a snapshot have the last offset that the snapshot
                               contains, and the log's timestamp at that offset
    headers          ARRAY     of STRUCT<key: STRING, value: BINARY>; with ``includeHeaders``
    controlType      STRING    e.g. leader_change; with ``includeControlRecords``
    producerId       BIGINT    producer of the transaction that contains the record, or that a
                               marker ends; null outside transactions; with
                               ``includeControlRecords``
    ================ ========= ================================================================

    A schema with a subset of the columns, in any order, is a projection: other columns are not
    decoded. ``spark.read.format("raftlog").schema("offset BIGINT, record STRING").load(path)``
    Without a schema, all columns are read, and decoding ``record`` takes most of the time.
    ``load(path).select(...)`` is a projection, too.

    **Start and end of a read.** End offsets are exclusive.

    startingOffset (alias startingOffsets)
        ``earliest``, the log start offset, with a warning if earlier records were deleted;
        ``latest`` (streams only); ``snapshot``, the newest snapshot and then the log from its end
        offset, or ``earliest`` if there is no snapshot; an offset; or a time, an age or a leader
        epoch, such as ``2026-11-21T03:12:00Z``, ``-15m`` or ``epoch:5``
        (``raftlog.client.offset_spec`` lists all forms). Applies to new queries only. Default:
        ``earliest`` in a batch; in a stream, ``snapshot`` for metadata logs and ``latest`` for
        others.
    startingTimestamp
        Starts at the first record whose timestamp is >= this: milliseconds since 1970, or ISO 8601
        (UTC without a time zone). Takes precedence over ``startingOffset``.
    startingTimestampStrategy (alias startingOffsetsByTimestampStrategy)
        If there is no such record: ``error`` (default), or ``latest``.
    endingOffset (alias endingOffsets)
        Batch only. ``latest`` (default), an offset (exclusive), or any other form that
        ``startingOffset`` accepts.
    endingTimestamp
        Batch only. Ends before the first record whose timestamp is >= this. Takes precedence over
        ``endingOffset``.
    isolationLevel
        ``read_committed`` (default): skips aborted transactions, and ends before the first open
        one. ``read_uncommitted`` (alias ``high_watermark``): returns all records.
    tailHoldback
        Minimum age of the records at the end of a single directory: milliseconds, or e.g. ``5s``.
        The cluster may still truncate uncommitted records, and a single directory does not show
        which records are committed. Default: 5 s for streams, 0 for batch reads. Ignored for
        several replicas.
    failOnDataLoss
        ``true`` (default): missing records fail the query with ``RAFTLOG_DATA_LOSS.<condition>``.
        ``false``: logs a warning and continues. If records were deleted, it continues at the newest
        snapshot (if the stream began with one) or at the log start offset; if the log was
        truncated, at the offset where the histories diverge; if it was deleted and created again in
        a directory, at the start of the new one.

    **Rows.**

    includeHeaders
        Adds the column ``headers``. Default ``false``. In logs written by raftlog, headers whose
        key begins with ``raftlog.`` are reserved and not returned.
    includeControlRecords
        Adds the columns ``controlType`` and ``producerId``, and rows for control records, with
        their bytes in ``key`` and ``value`` and their JSON in ``record``. Default ``false``.
    includeAbortedRecords
        With ``read_committed``: also returns the records of aborted transactions, with a null
        ``visibleOffset``. Default ``false``.
    columns
        ``json`` (default): the column ``record``. ``typed``: instead of it, a nullable struct for
        each record type that has fields (``topic_record``, ``partition_change_record``, ...), with
        the names and types declared in ``raftlog_state.records``. A field that a record lacks has
        Kafka's default. Unknown fields are omitted. Metadata logs only.
    redact
        ``true`` (default): redacts the secrets of metadata records (SCRAM credentials, sensitive
        configs, unknown records and fields) in ``value``, ``record`` and typed columns. ``false``
        returns them. Other internal logs contain no secrets. ``full`` also hides the data that
        clients send to these logs (hosts, metadata of offset commits, user data of subscriptions
        and assignments, unknown records and fields) in ``key``, ``value``, ``recordKey`` and
        ``record``.
    redactSecret, redactKey
        Secret of at least 16 bytes, or a reference as described above. Replaces each secret with a
        keyed hash instead of a fixed mask, so that changes are visible. In SQL, use
        ``redactSecret``: Spark shows the value of ``redactKey`` in plans and event logs, unless it
        is a reference.
    values
        Kind of the records, if the read fails because it cannot be detected from the files:
        ``kraft`` for cluster metadata; ``bytes`` (or ``msgpack``) for other records, whose values
        are returned unchanged. Not allowed for ``__cluster_metadata`` itself.
    encryption.key.file, encryption.context
        Encrypt the values that are written to a log with ``bytes`` values, and decrypt those that
        are read from it (docs/encryption.md). The keys are only in the file, never in an option.
    encryption.deleted.keys
        ``error`` (default), or ``null``: values whose key was deleted are read as null.
    encryption.plaintext
        ``true``: also reads values that are not encrypted.

    **Batch sizes.**

    maxOffsetsPerTrigger
        Streams. Maximum number of records in a micro-batch. A single record batch, a metadata
        transaction and the records of a snapshot are not split, even if they are larger.
    maxBytesPerTrigger
        Streams. Maximum size of a micro-batch in bytes of the log, e.g. ``64m``.
    minOffsetsPerTrigger, maxTriggerDelay
        Streams, not with AvailableNow. Waits for this number of records, for at most the delay:
        milliseconds, or e.g. ``5m``; default ``15m``.
    pollWaitMs
        Streams. How long to wait for new records before an empty trigger. Default 100.
    minPartitions
        Minimum number of tasks, as far as record batches can be split. Default 1.
    maxRecordsPerPartition
        Maximum number of records in a task, as far as record batches can be split. Default 250000.
    recordBatchRows
        Maximum number of rows in an Arrow batch. Default 32768.
    maxDecompressedBytes
        Maximum decompressed size of a record batch, e.g. ``256m``; a larger one is an error. A task
        may need a multiple of it as memory. Default ``128m``, at most ``512m``.

    **Writing** appends to a log created by ``raftlog.open(path)``, on the driver's host, or to the
    log of a raftlog quorum. The mode must be ``append``. Each write is a single record batch, in
    the order of partitions and then of rows: after any failure, the log contains either all of its
    records or none. The log's ``max.message.bytes`` therefore limits the size of a write and of a
    micro-batch; set ``maxOffsetsPerTrigger`` of the stream's source accordingly.

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
    that Kafka can read. Without the column ``recordVersion``, versions are chosen for the log's
    metadata.version, and the log is read to find it when the write is planned.

    requiredBaseOffset
        Batch only. The end offset up to which the caller has read the log. If other records were
        appended since, the write fails without effect, and ``pyspark_raftlog.conflict(error)``
        returns the current end offset. Checked even if there are no rows.
    requiredEndOffset
        Batch only. The same check, with the offset of the last record to write.
    requiredEpoch
        Fails the write if another writer has claimed the log since (a newer leader epoch).
    txnAppId, txnVersion
        Idempotent writes: the versions of a ``txnAppId`` increase, and each version is written at
        most once. In a stream, ``txnVersion`` is the batch id, and ``txnAppId`` defaults to the id
        of the query. Each query (each checkpoint) needs its own ``txnAppId``.
    txnTakeOverFrom
        Query id. Lets this query continue a ``txnAppId`` that was last written by that query, which
        must have ended permanently.
    maxBytesPerCommit
        Fails larger writes before anything is written. Default: the log's limit (``raftlog
        configure PATH max.message.bytes=...``).
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Validate the options. No ``repr`` of them contains secrets.

        Raises:
            OptionError: an option is unknown, or its value is invalid.
        """
        from .options import has_location, has_write_option, without_table_properties

        self._given = without_table_properties(options)
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
        """Add the options of a catalog's table, which Spark reads without options.

        Not those of a write: rows that were read from a table have them too, and would be appended
        to the log of that table if the path is missing.
        """
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
        from .options import is_catalog_table
        from .schema import source_schema, with_table_options

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

    parts = [path] if os.path.exists(path.removeprefix("file:")) else path.split(",")
    plain = [part.strip().removeprefix("file:") for part in parts if part.strip()]
    return ",".join(part if is_object_uri(part) else os.path.abspath(part) for part in plain)
