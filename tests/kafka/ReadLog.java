// Opens a partition's directory with Kafka's own log:
//   java -cp 'JARS/*' ReadLog.java DIRECTORY HOW INDEX_INTERVAL_BYTES
//
// HOW is "clean", from the recovery point on, or "unclean", from the start: then Kafka reads every
// batch, and writes indexes, epochs and producers anew. It writes into the directory: give a copy.
// What Kafka warns of is printed, too.
//
// Prints, values apart by spaces, bytes in hex, "-" for null:
//   topic ID / offset-file NAME TOPIC PARTITION OFFSET
//   start OFFSET / end OFFSET / stable OFFSET
//   epoch EPOCH START / producer ID EPOCH LAST_SEQUENCE / aborted ID FIRST LAST
//   control OFFSET EPOCH
//   record OFFSET EPOCH TIMESTAMP KEY VALUE [HEADER_NAME=VALUE ...]

import java.io.File;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.PartitionMetadataFile;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class ReadLog {
    static final int DAY_MS = 24 * 60 * 60 * 1000;
    static final int READ_BYTES = 1 << 20;
    static {
        System.setProperty("org.slf4j.simpleLogger.logFile", "System.out");
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "warn");
    }
    static final LogDirFailureChannel FAILURES = new LogDirFailureChannel(10);

    static long offsetIn(File directory, String name) throws Exception {
        File file = new File(directory, name);
        if (!file.exists()) return 0;
        Map<TopicPartition, Long> read = new OffsetCheckpointFile(file, FAILURES).read();
        for (var entry : read.entrySet()) {
            TopicPartition partition = entry.getKey();
            System.out.println("offset-file " + name + " " + partition.topic() + " "
                + partition.partition() + " " + entry.getValue());
        }
        return read.values().iterator().next();
    }

    static String hex(java.nio.ByteBuffer bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(Utils.toArray(bytes));
    }

    static String header(Header header) {
        String value = header.value() == null ? "-" : HexFormat.of().formatHex(header.value());
        return " " + header.key() + "=" + value;
    }

    static void print(RecordBatch batch, Record record) {
        if (batch.isControlBatch()) {
            System.out.println("control " + record.offset() + " " + batch.partitionLeaderEpoch());
            return;
        }
        StringBuilder line = new StringBuilder("record " + record.offset() + " "
            + batch.partitionLeaderEpoch() + " " + record.timestamp() + " " + hex(record.key())
            + " " + hex(record.value()));
        for (Header header : record.headers()) line.append(header(header));
        System.out.println(line);
    }

    static void printAll(UnifiedLog log) throws Exception {
        long offset = log.logStartOffset();
        while (offset < log.logEndOffset()) {
            var read = log.read(offset, READ_BYTES, FetchIsolation.LOG_END, true);
            for (RecordBatch batch : read.records.batches()) {
                batch.ensureValid();
                for (Record record : batch) print(batch, record);
                if (offset != batch.baseOffset()) throw new Exception("a gap at " + offset);
                offset = batch.nextOffset();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        File directory = new File(arguments[0]);
        boolean isClean = arguments[1].equals("clean");
        var topicId = new PartitionMetadataFile(PartitionMetadataFile.newFile(directory), FAILURES)
            .read().topicId();
        System.out.println("topic " + topicId);
        long startOffset = offsetIn(directory, "log-start-offset-checkpoint");
        long recoveryPoint = offsetIn(directory, "recovery-point-offset-checkpoint");
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(
            directory, new LogConfig(Map.of("index.interval.bytes", arguments[2])), startOffset,
            isClean ? recoveryPoint : 0, scheduler,
            new BrokerTopicStats(), Time.SYSTEM, DAY_MS,
            new ProducerStateManagerConfig(7 * DAY_MS, false), DAY_MS, FAILURES, isClean,
            Optional.of(topicId));
        log.updateHighWatermark(log.logEndOffset());
        System.out.println("start " + log.logStartOffset());
        System.out.println("end " + log.logEndOffset());
        System.out.println("stable " + log.lastStableOffset());
        for (var entry : log.leaderEpochCache().epochEntries())
            System.out.println("epoch " + entry.epoch() + " " + entry.startOffset());
        for (var producer : log.activeProducers())
            System.out.println("producer " + producer.producerId() + " "
                + producer.producerEpoch() + " " + producer.lastSequence());
        for (var aborted : log.collectAbortedTransactions(0, log.logEndOffset()))
            System.out.println("aborted " + aborted.producerId() + " " + aborted.firstOffset() + " "
                + aborted.lastOffset());
        printAll(log);
        log.close();
        scheduler.shutdown();
        System.out.println("closed");
    }
}
