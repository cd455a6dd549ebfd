import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.lang.management.ManagementFactory;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.image.TopicImage;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.raft.Batch;
import org.apache.kafka.raft.internals.RecordsIterator;
import org.apache.kafka.server.common.ApiMessageAndVersion;

/**
 * Replays a segment of a metadata log into an image with Kafka's own classes, as a broker does that
 * starts: one delta, applied once. Prints for each of several rounds the processor time of the
 * process in nanoseconds, compilers and garbage collector included, then records and partitions.
 */
public class KafkaLoader {
    private static final int BATCH_BYTES_MAX = 8 * 1024 * 1024;

    public static void main(String[] arguments) throws Exception {
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int round = 0; round < Integer.parseInt(arguments[1]); round++) {
            long begun = system.getProcessCpuTime();
            String found = load(new File(arguments[0]));
            System.out.println((system.getProcessCpuTime() - begun) + " " + found);
        }
    }

    private static String load(File segment) throws Exception {
        MetadataDelta delta = new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
        long records = 0, last = -1;
        int epoch = 0;
        try (FileRecords file = FileRecords.open(segment, false);
             RecordsIterator<ApiMessageAndVersion> batches = new RecordsIterator<>(
                 file, MetadataRecordSerde.INSTANCE, BufferSupplier.create(), BATCH_BYTES_MAX, true,
                 new LogContext())) {
            while (batches.hasNext()) {
                Batch<ApiMessageAndVersion> batch = batches.next();
                for (ApiMessageAndVersion record : batch.records()) {
                    delta.replay(record.message());
                    records++;
                }
                last = batch.lastOffset();
                epoch = batch.epoch();
            }
        }
        MetadataImage image = delta.apply(new MetadataProvenance(last, epoch, 0, true));
        int partitions = 0;
        for (TopicImage topic : image.topics().topicsById().values()) {
            partitions += topic.partitions().size();
        }
        return records + " " + partitions;
    }
}
