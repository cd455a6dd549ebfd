import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Cleans copies of a log's segments with Kafka's own cleaner. Prints for each of several rounds the
 * processor time of the process in nanoseconds, compilers and garbage collector included, and the
 * number of records that are retained below the active segment.
 */
public class KafkaCleaner {
    private static final int MAP_BYTES = 128 * 1024 * 1024;
    private static final int IO_BYTES = 512 * 1024;
    private static final int MESSAGE_BYTES_MAX = 8 * 1024 * 1024;

    public static void main(String[] arguments) throws Exception {
        OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int round = 0; round < Integer.parseInt(arguments[2]); round++) {
            File directory = copied(Path.of(arguments[0]), Path.of(arguments[1], "round-" + round));
            KafkaScheduler scheduler = new KafkaScheduler(1);
            scheduler.startup();
            UnifiedLog log = opened(directory, scheduler);
            long end = log.activeSegment().baseOffset();
            Cleaner cleaner = new Cleaner(
                0, new SkimpyOffsetMap(MAP_BYTES), IO_BYTES, MESSAGE_BYTES_MAX, 0.9,
                new Throttler(Double.MAX_VALUE, 300, "throttler", "bytes", Time.SYSTEM),
                Time.SYSTEM, partition -> { });
            long begun = system.getProcessCpuTime();
            cleaner.clean(new LogToClean(log, log.logStartOffset(), end, true));
            long spent = system.getProcessCpuTime() - begun;
            System.out.println(spent + " " + retained(log.logSegments(), end));
            log.close();
            scheduler.shutdown();
        }
    }

    private static UnifiedLog opened(File directory, KafkaScheduler scheduler) throws Exception {
        Map<String, String> config = Map.of(
            "cleanup.policy", "compact", "max.message.bytes", String.valueOf(MESSAGE_BYTES_MAX),
            "segment.bytes", String.valueOf(Integer.MAX_VALUE));
        UnifiedLog log = UnifiedLog.create(
            directory, new LogConfig(config), 0, 0, scheduler, new BrokerTopicStats(), Time.SYSTEM,
            300_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
            new LogDirFailureChannel(1), true, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        return log;
    }

    private static File copied(Path source, Path parent) throws Exception {
        Path directory = Files.createDirectories(parent.resolve("state-0"));
        try (Stream<Path> files = Files.list(source)) {
            List<Path> segments = files.filter(one -> one.toString().endsWith(".log"))
                .sorted(Comparator.naturalOrder()).toList();
            for (Path one : segments) {
                Path target = directory.resolve(one.getFileName());
                Files.copy(one, target, StandardCopyOption.REPLACE_EXISTING);
            }
        }
        return directory.toFile();
    }

    private static long retained(List<LogSegment> segments, long end) throws Exception {
        long count = 0;
        for (LogSegment segment : segments) {
            for (RecordBatch batch : segment.log().batches()) {
                Integer records = batch.countOrNull();
                if (batch.lastOffset() < end && !batch.isControlBatch() && records != null) {
                    count += records;
                }
            }
        }
        return count;
    }
}
