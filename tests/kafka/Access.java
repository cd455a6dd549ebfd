import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RaftVoterEndpoint;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What Kafka's clients may do. Each line of the input is the path of a client's properties; the
 * answer has the outcome of each operation: "ok", or the name of the first cause. A client of
 * bootstrap.controllers has the operations of an admin client only.
 */
public class Access {
    static final TopicPartition PARTITION = new TopicPartition("raftlog", 0);

    interface AdminRequest {
        Object ask(Admin admin) throws Exception;
    }

    static String outcome(Callable<?> work) {
        try {
            work.call();
            return "ok";
        } catch (Exception error) {
            Throwable first = error;
            while (first.getCause() != null) {
                first = first.getCause();
            }
            return first.getClass().getSimpleName();
        }
    }

    static Object produce(Properties config) throws Exception {
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, text, text)) {
            return producer.send(new ProducerRecord<>("raftlog", 0, null, "by Java")).get();
        }
    }

    static Object consume(Properties config) throws Exception {
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config, text, text)) {
            consumer.assign(List.of(PARTITION));
            consumer.seek(PARTITION, 0);
            for (int turn = 0; turn < 100; turn++) {
                if (!consumer.poll(Duration.ofMillis(500)).isEmpty()) {
                    return true;
                }
            }
        }
        throw new IllegalStateException("no records");
    }

    /** Requests of an admin client, by name. */
    static Map<String, AdminRequest> requests() {
        String group = "a-group";
        Set<TopicPartition> partitions = Set.of(PARTITION);
        Map<String, AdminRequest> found = new LinkedHashMap<>();
        found.put("offsets", admin ->
            admin.listOffsets(Map.of(PARTITION, OffsetSpec.latest())).all().get());
        found.put("delete", admin ->
            admin.deleteRecords(Map.of(PARTITION, RecordsToDelete.beforeOffset(0))).all().get());
        found.put("topics", admin ->
            admin.describeTopics(List.of(PARTITION.topic())).allTopicNames().get());
        found.put("configs", admin -> admin.describeConfigs(
            List.of(new ConfigResource(ConfigResource.Type.TOPIC, PARTITION.topic()))).all().get());
        found.put("cluster", admin -> admin.describeCluster().nodes().get());
        found.put("quorum", admin -> admin.describeMetadataQuorum().quorumInfo().get());
        found.put("groups", admin -> admin.listGroups().all().get());
        found.put("group", admin -> admin.describeClassicGroups(List.of(group)).all().get());
        found.put("commit", admin -> admin.alterConsumerGroupOffsets(
            group, Map.of(PARTITION, new OffsetAndMetadata(0))).all().get());
        found.put("committed", admin ->
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get());
        found.put("delete offsets", admin ->
            admin.deleteConsumerGroupOffsets("no-group", partitions).all().get());
        found.put("delete group", admin ->
            admin.deleteConsumerGroups(List.of("no-group")).all().get());
        found.put("features", admin -> admin.updateFeatures(
            Map.of("kraft.version", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE)),
            new UpdateFeaturesOptions().validateOnly(true)).all().get());
        found.put("add voter", admin -> admin.addRaftVoter(
            1, Uuid.randomUuid(), Set.of(new RaftVoterEndpoint("CONTROLLER", "localhost", 9))).all().get());
        found.put("remove voter", admin -> admin.removeRaftVoter(77, Uuid.randomUuid()).all().get());
        return found;
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String path = in.readLine(); path != null; path = in.readLine()) {
            Properties config = new Properties();
            try (FileReader file = new FileReader(path)) {
                config.load(file);
            }
            String url = config.getProperty("sasl.oauthbearer.token.endpoint.url");
            if (url != null) {
                System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", url);
            }
            List<String> outcomes = new ArrayList<>();
            if (config.containsKey("bootstrap.servers")) {
                outcomes.add("produce=" + outcome(() -> produce(config)));
                outcomes.add("consume=" + outcome(() -> consume(config)));
            }
            try (Admin admin = Admin.create(config)) {
                for (Map.Entry<String, AdminRequest> one : requests().entrySet()) {
                    outcomes.add(one.getKey() + "=" + outcome(() -> one.getValue().ask(admin)));
                }
            }
            System.out.println(String.join("\t", outcomes));
        }
    }
}
