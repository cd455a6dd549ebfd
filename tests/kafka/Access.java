import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What Kafka's clients may do. Each line of the input is the path of a client's properties; the
 * answer has the outcome of each operation: "ok", or the name of the first cause.
 */
public class Access {
    static final TopicPartition PARTITION = new TopicPartition("raftlog", 0);

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

    static Object offsets(Properties config) throws Exception {
        try (Admin admin = Admin.create(config)) {
            return admin.listOffsets(Map.of(PARTITION, OffsetSpec.latest())).all().get();
        }
    }

    static Object delete(Properties config) throws Exception {
        try (Admin admin = Admin.create(config)) {
            return admin.deleteRecords(Map.of(PARTITION, RecordsToDelete.beforeOffset(0))).all().get();
        }
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
            System.out.println(String.join("\t",
                outcome(() -> produce(config)), outcome(() -> consume(config)),
                outcome(() -> offsets(config)), outcome(() -> delete(config))));
        }
    }
}
