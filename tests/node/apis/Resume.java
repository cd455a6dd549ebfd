import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads COUNT records from the committed offset of a group on, prints them, and commits. */
public class Resume {
    public static void main(String[] args) {
        String bootstrap = args[0], group = args[1];
        int count = Integer.parseInt(args[2]);
        TopicPartition partition = new TopicPartition("raftlog", 0);
        Properties config = new Properties();
        config.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(ConsumerConfig.GROUP_ID_CONFIG, group);
        config.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
        config.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        config.put(ConsumerConfig.MAX_POLL_RECORDS_CONFIG, "1");
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config, text, text)) {
            consumer.assign(Set.of(partition));
            long end = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            int found = 0;
            while (found < count && System.nanoTime() < end) {
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println(record.value());
                    found++;
                }
            }
            long position = consumer.position(partition);
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(position, "by Java")));
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            System.out.println("committed " + (committed.offset() >= position) + " " + committed.metadata());
        }
    }
}
