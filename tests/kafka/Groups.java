import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Groups, offset commits and transactions of a running Kafka: java Groups.java HOST:PORT RELEASE.
 *
 * Kafka 3 has no share groups, and no regular expressions of the new consumer groups.
 * Makes them, prints the admin client's view of them as JSON while the members are alive, then waits
 * for a line of its input and ends without closing the clients.
 */
public class Groups {
    private static final String TOPIC = "orders";
    private static String bootstrap;
    private static boolean isKafka3;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        isKafka3 = args[1].startsWith("3.");
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(TOPIC, 3, (short) 1), new NewTopic("bills", 1, (short) 1))).all().get();
            try (KafkaProducer<byte[], byte[]> producer = producer(Map.of())) {
                for (int at = 0; at < 30; at++) producer.send(new ProducerRecord<>(TOPIC, at % 3, null, new byte[] {(byte) at})).get();
            }
            List<AutoCloseable> alive = new ArrayList<>();
            alive.add(member("classic", Map.of("group.instance.id", "static-1", "client.id", "one")));
            alive.add(member("modern", Map.of("group.protocol", "consumer", "client.id", "two", "client.rack", "r1")));
            if (!isKafka3) alive.add(pattern());
            committed("gone", 3);
            committed("simple", 7);
            admin.deleteConsumerGroupOffsets("simple", Set.of(new TopicPartition(TOPIC, 1))).all().get();
            admin.deleteConsumerGroups(List.of("gone")).all().get();
            transactions(alive);
            if (!isKafka3) {
                alive.add(share(admin, "shared", Map.of()));
                alive.add(picky(admin));
            }
            System.out.println(new ObjectMapper().writeValueAsString(described(admin)));
            System.in.read();
        }
        Runtime.getRuntime().halt(0);
    }

    private static KafkaProducer<byte[], byte[]> producer(Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        config.putAll(more);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static Map<String, Object> config(String group, Map<String, Object> more) {
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", group));
        config.put("enable.auto.commit", "false");
        config.put("auto.offset.reset", "earliest");
        config.putAll(more);
        return config;
    }

    private static Consumer<byte[], byte[]> consumer(String group, Map<String, Object> more) {
        return new KafkaConsumer<>(config(group, more), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** A member that has read all records and committed their offsets. */
    private static Consumer<byte[], byte[]> member(String group, Map<String, Object> more) {
        Consumer<byte[], byte[]> consumer = consumer(group, more);
        consumer.subscribe(List.of(TOPIC));
        readAll(consumer);
        return consumer;
    }

    private static void readAll(Consumer<byte[], byte[]> consumer) {
        for (int seen = 0; seen < 30; ) seen += consumer.poll(Duration.ofMillis(500)).count();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (TopicPartition one : consumer.assignment()) {
            offsets.put(one, new OffsetAndMetadata(consumer.position(one), java.util.Optional.of(0), "note of " + one));
        }
        consumer.commitSync(offsets);
        consumer.poll(Duration.ofMillis(100));
    }

    private static Consumer<byte[], byte[]> pattern() {
        Consumer<byte[], byte[]> consumer = consumer("pattern", Map.of("group.protocol", "consumer", "client.id", "three"));
        consumer.subscribe(new SubscriptionPattern("ord.*"));
        readAll(consumer);
        return consumer;
    }

    /** Commits of a consumer that assigns partitions itself. */
    private static void committed(String group, long offset) {
        try (Consumer<byte[], byte[]> consumer = consumer(group, Map.of())) {
            TopicPartition zero = new TopicPartition(TOPIC, 0), one = new TopicPartition(TOPIC, 1);
            consumer.assign(List.of(zero, one));
            consumer.commitSync(Map.of(zero, new OffsetAndMetadata(offset), one, new OffsetAndMetadata(offset)));
            consumer.commitSync(Map.of(zero, new OffsetAndMetadata(offset + 1, "later")));
        }
    }

    /** Another group whose offsets are in the same partition of __consumer_offsets, which has 4. */
    private static String besides(String group) {
        for (int at = 0; ; at++) {
            String other = "after-" + at;
            if (Math.floorMod(other.hashCode() & 0x7fffffff, 4) == Math.floorMod(group.hashCode() & 0x7fffffff, 4)) return other;
        }
    }

    /** Commits in transactions: committed, aborted, and one that stays open. */
    private static void transactions(List<AutoCloseable> alive) throws Exception {
        TopicPartition zero = new TopicPartition(TOPIC, 0);
        ConsumerGroupMetadata group = new ConsumerGroupMetadata("atomic");
        KafkaProducer<byte[], byte[]> producer = producer(Map.of("transactional.id", "t-ended"));
        producer.initTransactions();
        for (long offset = 1; offset <= 4; offset++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>("bills", new byte[] {1}));
            producer.sendOffsetsToTransaction(Map.of(zero, new OffsetAndMetadata(offset, "t")), group);
            producer.flush();
            if (offset % 2 == 1) producer.commitTransaction();
            else producer.abortTransaction();
        }
        alive.add(producer);
        KafkaProducer<byte[], byte[]> open = producer(Map.of("transactional.id", "t-open", "transaction.timeout.ms", 600000));
        open.initTransactions();
        open.beginTransaction();
        open.send(new ProducerRecord<>("bills", new byte[] {2})).get();
        open.sendOffsetsToTransaction(Map.of(zero, new OffsetAndMetadata(99, "never")), group);
        open.flush();
        alive.add(open);
        committed(besides("atomic"), 5);
        try (Consumer<byte[], byte[]> consumer = consumer("atomic", Map.of())) {
            consumer.commitSync(Map.of(new TopicPartition(TOPIC, 2), new OffsetAndMetadata(6, "plain")));
        }
    }

    /** A member of a share group that has received all records. */
    private static KafkaShareConsumer<byte[], byte[]> share(Admin admin, String name, Map<String, Object> more) throws Exception {
        ConfigResource group = new ConfigResource(ConfigResource.Type.GROUP, name);
        admin.incrementalAlterConfigs(Map.of(group, List.of(
            new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET)))).all().get();
        Map<String, Object> config = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "group.id", name, "client.id", "four"));
        config.putAll(more);
        KafkaShareConsumer<byte[], byte[]> consumer =
            new KafkaShareConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(TOPIC));
        for (int seen = 0; seen < 30; ) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                if (!more.isEmpty()) consumer.acknowledge(record, picked(record));
                seen++;
            }
            consumer.commitSync();
        }
        consumer.poll(Duration.ofMillis(500));
        return consumer;
    }

    /** A share group that rejects some records and releases others, and has left: it gets them no more. */
    private static AutoCloseable picky(Admin admin) throws Exception {
        share(admin, "picky", Map.of("share.acknowledgement.mode", "explicit", "max.poll.records", "30")).close();
        return () -> { };
    }

    private static AcknowledgeType picked(ConsumerRecord<byte[], byte[]> record) {
        if (record.partition() == 2 || record.offset() < 3) return AcknowledgeType.ACCEPT;
        return record.offset() < 6 ? AcknowledgeType.RELEASE : record.offset() < 8 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
    }

    private static Object described(Admin admin) throws Exception {
        Map<String, Object> offsets = new TreeMap<>();
        for (String group : List.of("classic", "modern", "pattern", "simple", "atomic", besides("atomic"))) {
            if (isKafka3 && group.equals("pattern")) continue;
            List<Object> rows = new ArrayList<>();
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get(60, TimeUnit.SECONDS)
                .forEach((partition, offset) -> {
                    if (offset != null) rows.add(List.of(partition.topic(), partition.partition(), offset.offset(), offset.metadata()));
                });
            offsets.put(group, rows);
        }
        Map<String, Object> answer = new TreeMap<>();
        answer.put("offsets", offsets);
        Map<String, Object> groups = new TreeMap<>();
        admin.listGroups().all().get().forEach(one -> groups.put(one.groupId(),
            List.of(one.type().map(Object::toString).orElse(""), one.protocol(), one.groupState().map(Object::toString).orElse(""))));
        answer.put("groups", groups);
        Map<String, Object> members = new TreeMap<>();
        admin.describeConsumerGroups(isKafka3 ? List.of("classic", "modern") : List.of("classic", "modern", "pattern")).all().get().forEach((group, description) -> {
            List<Object> rows = new ArrayList<>();
            description.members().forEach(member -> rows.add(List.of(member.consumerId(), member.groupInstanceId().orElse(""),
                member.clientId(), member.host(), member.assignment().topicPartitions().stream()
                    .map(TopicPartition::toString).sorted().toList())));
            members.put(group, rows);
        });
        answer.put("members", members);
        Map<String, Object> transactions = new TreeMap<>();
        admin.listTransactions().all().get().forEach(one ->
            transactions.put(one.transactionalId(), List.of(one.producerId(), one.state().toString())));
        answer.put("transactions", transactions);
        return answer;
    }
}
