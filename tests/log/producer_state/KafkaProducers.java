// Asks Kafka's own ProducerStateManager: java -cp 'JARS/*' KafkaProducers.java STEPS DIRECTORY
//
// A line of the file STEPS, numbers apart by spaces:
//   data PRODUCER EPOCH SEQUENCE COUNT IS_TRANSACTIONAL   as a client appends it
//   end PRODUCER EPOCH IS_COMMIT COORDINATOR_EPOCH        as a transaction coordinator appends it
// A line of the answer: "appended OFFSET", "duplicate FIRST LAST", the name of the exception, or
// "ended", then "FIRST LAST STABLE" if something was aborted; last of all "snapshot HEX".
// What is refused or a duplicate takes no offset. A step at offset N has timestamp 1000 + N.

import java.io.File;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.CompletedTxn;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.ProducerAppendInfo;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

public class KafkaProducers {
    static final short TRANSACTION_VERSION = 1; // a marker may have the epoch of its producer
    static ProducerStateManager manager;
    static long endOffset = 0;

    static MemoryRecords data(long producer, short epoch, int sequence, int count, boolean inTransaction) {
        SimpleRecord[] records = new SimpleRecord[count];
        for (int at = 0; at < count; at++) records[at] = new SimpleRecord(1000 + endOffset, new byte[0]);
        return inTransaction
            ? MemoryRecords.withTransactionalRecords(
                endOffset, Compression.NONE, producer, epoch, sequence, 1, records)
            : MemoryRecords.withIdempotentRecords(
                endOffset, Compression.NONE, producer, epoch, sequence, 1, records);
    }

    @SuppressWarnings("unchecked")
    static Optional<BatchMetadata> duplicate(RecordBatch batch) throws Exception {
        Optional<ProducerStateEntry> entry = manager.lastEntry(batch.producerId());
        if (entry.isEmpty()) return Optional.empty();
        Method find = ProducerStateEntry.class.getDeclaredMethod("findDuplicateBatch", RecordBatch.class);
        find.setAccessible(true);
        return (Optional<BatchMetadata>) find.invoke(entry.get(), batch);
    }

    static String append(RecordBatch batch, AppendOrigin origin) throws Exception {
        if (origin == AppendOrigin.CLIENT) {
            Optional<BatchMetadata> found = duplicate(batch);
            if (found.isPresent()) {
                return "duplicate " + found.get().firstOffset() + " " + found.get().lastOffset();
            }
        }
        String answer = origin == AppendOrigin.CLIENT ? "appended " + endOffset : "ended";
        Optional<CompletedTxn> completed;
        try {
            ProducerAppendInfo info = manager.prepareUpdate(batch.producerId(), origin);
            completed = info.append(
                batch, Optional.of(new LogOffsetMetadata(batch.baseOffset())), TRANSACTION_VERSION);
            manager.update(info);
        } catch (ApiException refused) {
            return refused.getClass().getSimpleName();
        }
        if (completed.isPresent()) {
            CompletedTxn transaction = completed.get();
            if (transaction.isAborted()) {
                answer += " " + transaction.firstOffset() + " " + transaction.lastOffset()
                    + " " + manager.lastStableOffset(transaction);
            }
            manager.completeTxn(transaction);
        }
        endOffset = batch.nextOffset();
        manager.updateMapEndOffset(endOffset);
        return answer;
    }

    static String step(String[] words) throws Exception {
        long producer = Long.parseLong(words[1]);
        short epoch = Short.parseShort(words[2]);
        if (words[0].equals("data")) {
            int sequence = Integer.parseInt(words[3]);
            int count = Integer.parseInt(words[4]);
            MemoryRecords records = data(producer, epoch, sequence, count, words[5].equals("1"));
            return append(records.firstBatch(), AppendOrigin.CLIENT);
        }
        ControlRecordType type = words[3].equals("1") ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        EndTransactionMarker marker = new EndTransactionMarker(type, Integer.parseInt(words[4]));
        MemoryRecords records =
            MemoryRecords.withEndTransactionMarker(endOffset, 1000 + endOffset, 1, producer, epoch, marker);
        return append(records.firstBatch(), AppendOrigin.COORDINATOR);
    }

    public static void main(String[] arguments) throws Exception {
        File directory = new File(arguments[1]);
        manager = new ProducerStateManager(
            new TopicPartition("orders", 0), directory, 900_000,
            new ProducerStateManagerConfig(86_400_000, false), Time.SYSTEM);
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            out.append(step(line.split(" "))).append('\n');
        }
        File snapshot = manager.takeSnapshot(false).orElseThrow();
        out.append("snapshot ").append(HexFormat.of().formatHex(Files.readAllBytes(snapshot.toPath())));
        System.out.println(out);
    }
}
