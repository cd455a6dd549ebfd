// Makes batches-4.3.1.tsv with Kafka's own classes: java -cp 'JARS/*' MakeBatches.java > batches-4.3.1.tsv
// A line: name, the bytes of the batch in hex, and what Kafka's own iterator reads out of them as JSON:
// [offset, timestamp, key, value, [[header key, header value], ...]] a record, bytes in hex.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.LeaderChangeMessage;
import org.apache.kafka.common.message.LeaderChangeMessage.Voter;
import org.apache.kafka.common.message.LeaderChangeMessageJsonConverter;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;

public class MakeBatches {
    static final long TIME = 1_700_000_000_000L;
    static final long APPEND_TIME = TIME + 9_999;
    static final int BYTES = 1 << 20;

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null) return null;
        byte[] copy = new byte[buffer.remaining()];
        buffer.duplicate().get(copy);
        return copy;
    }

    static String hex(byte[] data) {
        return data == null ? "null" : '"' + HexFormat.of().formatHex(data) + '"';
    }

    static Header header(String key, String value) {
        return new RecordHeader(key, bytes(value));
    }

    static void line(String name, byte[] data, String told) {
        System.out.println(name + "\t" + HexFormat.of().formatHex(data) + "\t" + told);
    }

    static void show(String name, ByteBuffer buffer) {
        byte[] data = bytes(buffer);
        StringBuilder told = new StringBuilder("[");
        for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                told.append(told.length() > 1 ? "," : "").append("[").append(record.offset()).append(",")
                    .append(record.timestamp()).append(",").append(hex(bytes(record.key()))).append(",")
                    .append(hex(bytes(record.value()))).append(",[");
                String comma = "";
                for (Header header : record.headers()) {
                    told.append(comma).append("[\"").append(header.key()).append("\",").append(hex(header.value())).append("]");
                    comma = ",";
                }
                told.append("]]");
            }
        }
        line(name, data, told.append("]").toString());
    }

    static MemoryRecordsBuilder builder(Compression codec, TimestampType type, long baseOffset) {
        return builder(codec, type, baseOffset, -1L, (short) -1, -1, false);
    }

    static MemoryRecordsBuilder builder(Compression codec, TimestampType type, long baseOffset, long producerId,
                                        short producerEpoch, int sequence, boolean transactional) {
        long appendTime = type == TimestampType.LOG_APPEND_TIME ? APPEND_TIME : -1L;
        return new MemoryRecordsBuilder(ByteBuffer.allocate(BYTES), (byte) 2, codec, type, baseOffset, appendTime,
            producerId, producerEpoch, sequence, transactional, false, 5, BYTES);
    }

    static void compressed(String name) {
        Compression codec = Compression.of(name).build();
        MemoryRecordsBuilder small = builder(codec, TimestampType.CREATE_TIME, 40);
        small.append(TIME + 500, bytes("k"), bytes("v"), new Header[]{
            header("a", "1"), header("a", null), header("", ""), header("ключ", "значение")});
        small.append(TIME, null, (byte[]) null, new Header[0]);
        small.append(TIME - 1_000_000, bytes(""), bytes(""), new Header[]{header("only", "x".repeat(200))});
        show("headers-" + name, small.build().buffer());
        if (name.equals("none")) return;
        MemoryRecordsBuilder large = builder(codec, TimestampType.CREATE_TIME, 0);
        for (int i = 0; i < 120; i++)
            large.append(TIME + i, bytes("key-" + i), bytes(("value-" + i % 3).repeat(140)), new Header[0]);
        // The test makes the same records: they are too long to be told here.
        line("several-blocks-" + name, bytes(large.build().buffer()), "[]");
    }

    static void compacted(String name, MemoryRecords records, boolean horizon, long... kept) {
        ByteBuffer out = ByteBuffer.allocate(BYTES);
        records.filterTo(new MemoryRecords.RecordFilter(TIME + 100_000, 86_400_000L) {
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(BatchRetention.RETAIN_EMPTY, horizon);
            }

            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                for (long offset : kept) if (offset == record.offset()) return true;
                return false;
            }
        }, out, BufferSupplier.NO_CACHING);
        out.flip();
        show(name, out.slice());
    }

    public static void main(String[] arguments) {
        for (String name : new String[]{"none", "gzip", "snappy", "lz4", "zstd"}) compressed(name);

        MemoryRecordsBuilder appended = builder(Compression.NONE, TimestampType.LOG_APPEND_TIME, 7);
        appended.append(TIME, bytes("k"), bytes("v"));
        appended.append(TIME + 1, bytes("k"), bytes("w"));
        show("log-append-time", appended.build().buffer());

        MemoryRecordsBuilder created = builder(Compression.NONE, TimestampType.CREATE_TIME, 7);
        created.append(TIME, bytes("k"), bytes("v"));
        created.append(TIME + 111, bytes("k"), bytes("w"));
        ByteBuffer stamped = created.build().buffer();
        MemoryRecords.readableRecords(stamped).batches().iterator().next()
            .setMaxTimestamp(TimestampType.LOG_APPEND_TIME, APPEND_TIME);
        show("log-append-time-by-broker", stamped);

        MemoryRecordsBuilder producer =
            builder(Compression.NONE, TimestampType.CREATE_TIME, 100, 4_000_000_000L, (short) 3, 17, true);
        producer.append(TIME, bytes("k"), bytes("v"));
        producer.append(TIME + 1, bytes("l"), (byte[]) null);
        producer.append(TIME + 2, bytes("m"), bytes("x"));
        producer.append(TIME + 3, bytes("n"), bytes("y"));
        MemoryRecords transactional = producer.build();
        show("transactional", transactional.buffer());
        compacted("compacted-with-delete-horizon", transactional, true, 101, 102);
        compacted("emptied-by-compaction", transactional, false);

        show("commit-marker", MemoryRecords.withEndTransactionMarker(50L, TIME, 5, 77L, (short) 2,
            new EndTransactionMarker(ControlRecordType.COMMIT, 9)).buffer());
        show("abort-marker", MemoryRecords.withEndTransactionMarker(51L, TIME, 5, 77L, (short) 2,
            new EndTransactionMarker(ControlRecordType.ABORT, 10)).buffer());

        Voter leader = new Voter().setVoterId(3).setVoterDirectoryId(new Uuid(1, 2));
        LeaderChangeMessage change = new LeaderChangeMessage().setVersion((short) 1).setLeaderId(3)
            .setVoters(List.of(leader, new Voter().setVoterId(4))).setGrantingVoters(List.of(leader.duplicate()));
        line("leader-change-version-1", bytes(MessageUtil.toByteBufferAccessor(change, (short) 1).buffer()),
            LeaderChangeMessageJsonConverter.write(change, (short) 1).toString());

        for (byte magic = 0; magic < 2; magic++) {
            MemoryRecordsBuilder old = new MemoryRecordsBuilder(ByteBuffer.allocate(4096), magic, Compression.NONE,
                TimestampType.CREATE_TIME, 3L, -1L, -1L, (short) -1, -1, false, false, -1, 4096);
            old.append(TIME, bytes("k"), bytes("v".repeat(100)));
            line("magic-" + magic, bytes(old.build().buffer()), "[]");
        }
    }
}
