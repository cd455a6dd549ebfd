import java.util.List;
import java.util.Map;
import java.util.Random;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A compacted topic of a running Kafka: java Compacted.java HOST:PORT create|produce SEED CODEC|transact SEED|clean|wait. */
public class Compacted {
    static final String TOPIC = "compacted";
    static final String LAG = "min.compaction.lag.ms";

    public static void main(String[] args) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", args[0]);
        switch (args[1]) {
            case "create" -> {
                try (Admin admin = Admin.create(config)) {
                    Map<String, String> settings = Map.of(
                        "cleanup.policy", "compact", "segment.bytes", "1048576", "delete.retention.ms", "1",
                        "min.cleanable.dirty.ratio", "0.0", LAG, "3600000");
                    admin.createTopics(List.of(new NewTopic(TOPIC, 1, (short) 1).configs(settings))).all().get();
                }
            }
            case "produce" -> produce(config, Long.parseLong(args[2]), args[3]);
            case "transact" -> transact(config, Long.parseLong(args[2]));
            case "clean" -> lag(config, "0");
            case "wait" -> lag(config, "3600000");
        }
    }

    static void produce(Map<String, Object> config, long seed, String codec) throws Exception {
        Map<String, Object> settings = new java.util.HashMap<>(config);
        settings.put("compression.type", codec);
        settings.put("linger.ms", "5");
        Random random = new Random(seed);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int at = 0; at < 9000; at++) {
                byte[] key = ("key " + random.nextInt(300)).getBytes();
                byte[] value = new byte[random.nextInt(800)];
                random.nextBytes(value);
                producer.send(new ProducerRecord<>(TOPIC, key, random.nextInt(5) == 0 ? null : value));
            }
        }
    }

    /** Two producers with transactions of up to 30 records, a third of which are aborted, one after another. */
    static void transact(Map<String, Object> config, long seed) throws Exception {
        Random random = new Random(seed);
        for (String id : List.of("first", "second")) {
            Map<String, Object> settings = new java.util.HashMap<>(config);
            settings.put("transactional.id", id);
            try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                producer.initTransactions();
                for (int ordinal = 0; ordinal < 60; ordinal++) {
                    producer.beginTransaction();
                    for (int at = random.nextInt(30); at >= 0; at--) {
                        byte[] key = ("key " + random.nextInt(300)).getBytes();
                        byte[] value = new byte[random.nextInt(3000)];
                        random.nextBytes(value);
                        producer.send(new ProducerRecord<>(TOPIC, key, random.nextInt(5) == 0 ? null : value));
                    }
                    if (random.nextInt(3) == 0) {
                        producer.flush();
                        producer.abortTransaction();
                    } else {
                        producer.commitTransaction();
                    }
                }
            }
        }
    }

    static void lag(Map<String, Object> config, String lagMs) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, TOPIC);
        var op = new AlterConfigOp(new ConfigEntry(LAG, lagMs), AlterConfigOp.OpType.SET);
        try (Admin admin = Admin.create(config)) {
            admin.incrementalAlterConfigs(Map.of(resource, List.of(op))).all().get();
        }
    }
}
