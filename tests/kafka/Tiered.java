import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Segments of a tiered topic that a running Kafka copies to remote storage: java Tiered.java HOST:PORT. */
public class Tiered {
    public static void main(String[] args) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", args[0]);
        TopicPartition partition = new TopicPartition("tiered", 0);
        try (Admin admin = Admin.create(config)) {
            Map<String, String> tiered = Map.of("remote.storage.enable", "true", "segment.bytes", "1048576", "local.retention.bytes", "1048576");
            admin.createTopics(List.of(new NewTopic("tiered", 1, (short) 1).configs(tiered))).all().get();
            try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
                for (int at = 0; at < 40; at++) producer.send(new ProducerRecord<>("tiered", new byte[100_000])).get();
            }
            long copied = -1;
            while (copied < 20) {
                copied = admin.listOffsets(Map.of(partition, OffsetSpec.latestTiered())).partitionResult(partition).get().offset();
            }
            long local = 0;
            while (local == 0) {
                local = admin.listOffsets(Map.of(partition, OffsetSpec.earliestLocal())).partitionResult(partition).get().offset();
            }
            System.out.println(copied + " " + local);
        }
    }
}
