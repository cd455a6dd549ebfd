"""Every limit, its unit in its name, checked against its neighbours at import."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

BATCH_HEADER_BYTES: Final = 61
"""A magic-2 header up to the first record (kraft-format: DefaultRecordBatch)."""

LOG_OVERHEAD_BYTES: Final = 12
"""Base offset and length: what a batch's own length does not count."""

BATCH_BYTES_MAX: Final = 8 * MIB
"""KRaft's MAX_BATCH_SIZE_BYTES: what one batch may hold when it is written."""

LOG_BATCH_BYTES_MAX: Final = 64 * MIB
"""What a log of our own may raise its batch limit to."""

BACKUPS_MAX: Final = 64
BACKUP_BYTES_MAX: Final = 1024 * MIB
"""How many saved copies of what recovery and repair cut off a log keeps, and of how many bytes."""

READ_BATCH_BYTES_MAX: Final = 256 * MIB
"""A batch on disk that says it is larger is damage: Kafka's ordinary topics allow more than KRaft
does (`max.message.bytes`), and nobody raises it this far."""

RAW_BATCH_BYTES_MAX: Final = 64 * MIB
"""Bytes of one batch before compression, its header included, that any writer may append: every
reader's limit is higher, so that what was acknowledged can be read."""

DECOMPRESSED_BYTES_MAX: Final = 128 * MIB
"""Bytes that the records of one compressed batch may expand to, unless a reader is given another
limit: more than any batch of raftlog's own, or of a topic whose limits are Kafka's defaults."""

DECOMPRESSED_BYTES_OPTION_MAX: Final = 512 * MIB
"""The largest limit that a reader may be given instead."""

HEADERS_PER_RECORD_MAX: Final = 10_000
"""Headers of one record, the log's own included. Two bytes may be a header, and each becomes an
object of a hundred."""

HEADERS_PER_BATCH_MAX: Final = 1_000_000
"""Headers of all records of one batch, and of one scan of several."""

PRODUCED_RECORDS_MAX: Final = 1_048_576
"""Records of one produced batch: as many as the smallest records of an uncompressed one."""

PRODUCED_OBJECTS_MAX: Final = 200_000
"""Records of one produced batch that must be decoded one by one, as those of a ``kraft`` log."""

SCAN_BYTES_MAX: Final = 1024 * MIB
"""How much of a buffer one scan decodes: Arrow's offsets into it are 32-bit."""

SCAN_DECOMPRESSED_BYTES_MAX: Final = 64 * MIB
"""A scan ends with the batch that takes what it decompressed beyond this, or before it."""

READ_CHUNK_BYTES: Final = 1 * MIB
"""How much of a segment is read at once: bounds memory, and fits a cache."""

ARROW_ROWS_DEFAULT: Final = 16_384
ARROW_ROWS_MAX: Final = 1_048_576

VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10
STRING_BYTES_MAX: Final = 32_767
"""Kafka refuses longer strings in messages."""

WIRE_FRAME_BYTES_MAX: Final = 100 * MIB
"""What one frame may hold (Kafka: `socket.request.max.bytes`); a stranger is allowed less."""

WIRE_ELEMENTS_MAX: Final = 4096
"""How many elements all arrays of one message may hold together: a node serves one topic, and an
element of three bytes becomes an object of hundreds."""

EPOCH_MAX: Final = 2**31 - 1
"""The newest leader epoch that a batch can hold."""

EPOCH_RESERVED_FROM: Final = 2**31 - 2**20
"""Leader epochs from here on are reached one election at a time only: no message jumps to them."""

EPOCH_STEP_MAX: Final = 2**16
"""How far ahead of the newest epoch with a proven leader a request may be. Elections that elect no
leader would take most of a day to get there."""

VOTER_ENDPOINTS_MAX: Final = 16
"""How many listeners a node may name: they are stored in the log, and told to every client."""

SMALL_FILE_BYTES_MAX: Final = 16 * MIB
"""Text files beside a log (epochs, quorum-state, properties): larger is damage."""

SEGMENT_BYTES_MAX: Final = 2**31 - 1
"""What one segment holds at most: positions in an offset index are 32-bit (Kafka:
`LogSegments`, `segment.bytes`). No batch is looked for after them, in a sparse file say."""

IDENTIFY_BATCHES_MAX: Final = 8
IDENTIFY_RECORDS_MAX: Final = 64
"""How many batches and data records of a file are looked at to find out what its records are."""

IDENTIFY_BYTES_MAX: Final = 16 * MIB
"""What one of these batches may expand to, and how far after damage the next one is looked for
(Kafka: a metadata batch has at most 8 MiB, `KafkaRaftClient.MAX_BATCH_SIZE_BYTES`)."""

PRODUCER_BATCHES_KEPT: Final = 5
"""How many batches of a producer a log remembers (Kafka: NUM_BATCHES_TO_RETAIN)."""

PRODUCERS_MAX: Final = 10_000
"""How many producers a log remembers; the one that has been silent longest is forgotten first."""

COMMITS_MAX: Final = 10_000
"""How many application ids a log remembers the last commit of."""

COMMITS_PER_PRINCIPAL_MAX: Final = 1_000
"""How many of these one principal may have, where application ids have owners: a tenth, so that one
cannot make the log forget those of others."""

WAITING_FETCHES_MAX: Final = 256
"""How many fetches of one principal are answered as soon as there are records; more are answered
when their time is up."""

COMMIT_ID_BYTES_MAX: Final = 256
"""An application id or a query id, as UTF-8: all that a log remembers fits into one batch."""

REDACTION_KEY_BYTES_MIN: Final = 16
"""A shorter key could be found by trying, and with it the secrets that it hides."""

TAIL_HOLDBACK_MS_DEFAULT: Final = 5_000
"""How young the tail of a single directory may be before a stream reads it (a heuristic)."""

TIMESTAMP_AFTER_MS_MAX: Final = 60 * 60 * 1000
"""How far a record's timestamp may be ahead of the clock of the log's writer (Kafka:
``message.timestamp.after.max.ms``)."""

CLOCK_AHEAD_MS_MAX: Final = 10 * 60 * 1000
"""A record that claims to be younger than this says nothing of its age: clocks of nodes are not so
far apart, and a producer may write any time that it likes."""

assert BATCH_HEADER_BYTES < BATCH_BYTES_MAX <= LOG_BATCH_BYTES_MAX <= READ_BATCH_BYTES_MAX
assert LOG_BATCH_BYTES_MAX <= RAW_BATCH_BYTES_MAX < DECOMPRESSED_BYTES_MAX
assert DECOMPRESSED_BYTES_MAX <= DECOMPRESSED_BYTES_OPTION_MAX
assert LOG_BATCH_BYTES_MAX < WIRE_FRAME_BYTES_MAX < 2**31
assert SCAN_BYTES_MAX + SCAN_DECOMPRESSED_BYTES_MAX + DECOMPRESSED_BYTES_OPTION_MAX < 2**31
assert HEADERS_PER_RECORD_MAX <= HEADERS_PER_BATCH_MAX
assert ARROW_ROWS_DEFAULT <= ARROW_ROWS_MAX
