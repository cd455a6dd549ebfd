"""All limits. Each has its unit in its name; relations between them are asserted at import."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

INT16_MAX: Final = 2**15 - 1
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
"""Largest values of Kafka's integer types, which are signed."""

BATCH_HEADER_BYTES: Final = 61
"""Size of a magic-2 batch header (Kafka: ``DefaultRecordBatch.RECORD_BATCH_OVERHEAD``)."""

LOG_OVERHEAD_BYTES: Final = 12
"""Size of base offset and batch length, which the batch length does not include (Kafka:
``Records.LOG_OVERHEAD``)."""

BATCH_BYTES_MAX: Final = 8 * MIB
"""Largest batch that is written (Kafka: ``KafkaRaftClient.MAX_BATCH_SIZE_BYTES``)."""

LOG_BATCH_BYTES_MAX: Final = 64 * MIB
"""Largest `max.message.bytes` of a log that raftlog writes."""

BACKUPS_MAX: Final = 64
BACKUP_BYTES_MAX: Final = 1024 * MIB
"""Backups of truncated bytes (from recovery and repair) that a log keeps: count and total bytes."""

OFFSET_MAP_BYTES_MAX: Final = 128 * MIB
"""Memory for the keys of one compaction (Kafka: `log.cleaner.dedupe.buffer.size`). A log with more
distinct keys is compacted in several runs."""

READ_BATCH_BYTES_MAX: Final = 256 * MIB
"""A larger batch length on disk is corruption. Topics of Kafka may have batches larger than KRaft's
limit (`max.message.bytes`), but hardly this large."""

RAW_BATCH_BYTES_MAX: Final = 64 * MIB
"""Largest batch before compression, including its header, that any writer may append. It is lower
than every reader's limit, so that each acknowledged batch can be read."""

DECOMPRESSED_BYTES_MAX: Final = 128 * MIB
"""A reader's default decompression limit per batch. Neither a batch written by raftlog nor one of a
topic with Kafka's default limits expands to more."""

DECOMPRESSED_BYTES_OPTION_MAX: Final = 512 * MIB
"""Largest decompression limit that a reader accepts."""

HEADERS_PER_RECORD_MAX: Final = 10_000
"""Headers of one record, including those added by the log. A header of two bytes becomes an object
of about 100 bytes."""

HEADERS_PER_BATCH_MAX: Final = 1_000_000
"""Headers of all records of one batch, and of all batches of one scan."""

PRODUCED_RECORDS_MAX: Final = 1_048_576
"""Records of one produced batch: as many of the smallest size as fit uncompressed into 8 MiB."""

PRODUCED_OBJECTS_MAX: Final = 200_000
"""Records of one produced batch if each one is decoded to an object, as in a ``kraft`` log."""

REMOTE_READ_TIMEOUT_MS: Final = 60_000
"""Time limit of a reader's request to an object store, including retries by the store's client."""

SCAN_BYTES_MAX: Final = 1024 * MIB
"""Bytes of a buffer that one scan decodes, because Arrow's offsets are 32-bit."""

SCAN_DECOMPRESSED_BYTES_MAX: Final = 64 * MIB
"""Decompressed bytes after which a scan stops at the next batch boundary."""

READ_CHUNK_BYTES: Final = 1 * MIB
"""Bytes of a segment per read. This bounds memory and fits into a CPU cache."""

ARROW_ROWS_DEFAULT: Final = 32_768
ARROW_ROWS_MAX: Final = 1_048_576

VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10
STRING_BYTES_MAX: Final = 32_767
"""Longest string in a Kafka message, whose length is an int16."""

SNAPSHOT_BYTES_DEFAULT: Final = 20 * MIB
"""Bytes of a metadata log after which a node writes the next snapshot (Kafka:
`metadata.log.max.record.bytes.between.snapshots`)."""

SNAPSHOT_INTERVAL_MS_DEFAULT: Final = 3_600_000
"""Age of the last snapshot at which a node writes another one, if there are new records (Kafka:
`metadata.log.max.snapshot.interval.ms`)."""

WIRE_FRAME_BYTES_MAX: Final = 100 * MIB
"""Largest frame (Kafka: `socket.request.max.bytes`). Before authentication the limit is lower."""

WIRE_ELEMENTS_MAX: Final = 4096
"""Total elements of all arrays of one message. A node serves one topic, and an element of three
bytes becomes an object of several hundred."""

EPOCH_MAX: Final = INT32_MAX
"""Largest leader epoch that fits into a batch header."""

EPOCH_RESERVED_FROM: Final = 2**31 - 2**20
"""Only elections reach leader epochs from here on, one at a time: a message with such an epoch does
not raise the current epoch."""

EPOCH_STEP_MAX: Final = 2**16
"""Largest distance between a request's epoch and the last epoch with an established leader. Failed
elections alone would take most of a day to cover it."""

VOTER_ENDPOINTS_MAX: Final = 16
"""Listeners of one voter, which are stored in the log and sent to every client."""

SMALL_FILE_BYTES_MAX: Final = 16 * MIB
"""Largest text file of a log (epoch checkpoint, quorum-state, properties). A larger one is
corrupt."""

SEGMENT_BYTES_MAX: Final = 2**31 - 1
"""Largest segment, since positions in an offset index are 32-bit (Kafka: `segment.bytes`). The
search for a valid batch also ends here, for example in a sparse file."""

IDENTIFY_BATCHES_MAX: Final = 8
IDENTIFY_RECORDS_MAX: Final = 64
"""Batches and data records of a file that are examined to identify the kind of its records."""

IDENTIFY_BYTES_MAX: Final = 16 * MIB
"""Decompression limit of each of these batches, and maximum length of the search for the next batch
after corrupt bytes (Kafka: a metadata batch has at most 8 MiB,
`KafkaRaftClient.MAX_BATCH_SIZE_BYTES`)."""

PRODUCER_BATCHES_KEPT: Final = 5
"""Batches per producer in the producer state (Kafka:
``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``)."""

PRODUCERS_MAX: Final = 10_000
"""Producers in the producer state. The one with the oldest last batch is evicted first."""

COMMITS_MAX: Final = 10_000
"""Application ids whose last commit a log stores."""

COMMITS_PER_PRINCIPAL_MAX: Final = 1_000
"""Application ids of one principal, if they have owners. This is a tenth of the total, so that no
principal can evict the ids of all others."""

UNCHANGED_KEYS_MAX: Final = 1_000
"""Keys in the condition of one append."""

KEY_OFFSETS_BYTES_MAX: Final = 8 * MIB
"""Memory for the keys' last offsets, with which a log checks such conditions. It holds 28,000 keys
of 30 bytes. The least recently written ones are evicted first."""

KEY_SCAN_BYTES_MAX: Final = 1 * MIB
"""Decompressed bytes that a log reads to check one condition. If more was appended since the last
check, a writer that has not read these records is refused once."""

GROUP_OFFSETS_BYTES_MAX: Final = 1 * MIB
"""Committed offsets of consumer groups in the producer state, enough for 15,000 groups with ids of
30 bytes and no metadata. The least recently written ones are evicted first."""

GROUPS_PER_PRINCIPAL_MAX: Final = 1_000
"""Consumer groups with offsets that one principal may create, so that it cannot evict the groups of
others."""

GROUP_ID_BYTES_MAX: Final = 256
"""Longest id, in UTF-8, of a consumer group that commits offsets."""

OFFSET_METADATA_BYTES_MAX: Final = 4 * KIB
"""Longest metadata, in UTF-8, of a committed offset (Kafka: `offset.metadata.max.bytes`)."""

GROUP_OFFSET_REWRITE_MS: Final = 24 * 60 * 60 * 1000
"""Age at which an unchanged offset is committed again, so that its group is not evicted."""

WAITING_FETCHES_MAX: Final = 256
"""Delayed fetches of one principal that complete when records arrive. Further ones complete at
their timeout."""

COMMIT_ID_BYTES_MAX: Final = 256
"""Longest application id or query id in UTF-8. All commits of a log fit into one batch."""

SCRAM_ITERATIONS_MIN: Final = 4_096
SCRAM_ITERATIONS_MAX: Final = 131_072
"""Iterations that a server may request from a client (Kafka's tools: 4,096 to 16,384). Fewer weaken
the password's protection. More would keep the client busy: 50 ms of CPU time at this limit."""

CREDENTIALS_BYTES_MAX: Final = 256 * KIB
"""Longest response of a token endpoint, and largest file of secrets, properties or a token."""

REDACTION_KEY_BYTES_MIN: Final = 16
REDACTION_KEY_DISTINCT_MIN: Final = 6
"""Distinct bytes that a key must have: a repeated word can be guessed."""
"""Shortest key of keyed redaction: a shorter key could be found by brute force, and with it the
redacted secrets."""

TABLE_FUNCTION_ROWS_MAX: Final = 250_000
"""Rows that a table function returns per call, since one Spark task has all of them in memory."""

TAIL_HOLDBACK_MS_DEFAULT: Final = 5_000
"""Age that records of a single directory must have before a stream reads them (a heuristic to
exclude records that are not committed yet)."""

TIMESTAMP_AFTER_MS_MAX: Final = 60 * 60 * 1000
"""How far a record's timestamp may be ahead of the clock of the log's writer (Kafka:
`message.timestamp.after.max.ms`)."""

CLOCK_AHEAD_MS_MAX: Final = 10 * 60 * 1000
"""A timestamp further ahead of this machine's clock does not count as the record's age. Nodes'
clocks do not differ that much, but a producer may set any timestamp."""

assert BATCH_HEADER_BYTES < BATCH_BYTES_MAX <= LOG_BATCH_BYTES_MAX <= READ_BATCH_BYTES_MAX
assert LOG_BATCH_BYTES_MAX <= RAW_BATCH_BYTES_MAX < DECOMPRESSED_BYTES_MAX
assert DECOMPRESSED_BYTES_MAX <= DECOMPRESSED_BYTES_OPTION_MAX
assert LOG_BATCH_BYTES_MAX < WIRE_FRAME_BYTES_MAX < 2**31
assert SCAN_BYTES_MAX + SCAN_DECOMPRESSED_BYTES_MAX + DECOMPRESSED_BYTES_OPTION_MAX < 2**31
assert HEADERS_PER_RECORD_MAX <= HEADERS_PER_BATCH_MAX
assert ARROW_ROWS_DEFAULT <= ARROW_ROWS_MAX
