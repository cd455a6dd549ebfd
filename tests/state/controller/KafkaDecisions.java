import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.HashSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.internals.Topic;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * What Kafka's own classes decide. Input: a file of questions, a JSON object a line; output: an
 * answer a line. A change of a partition: the record's value in hex, or "none". A config or the name
 * of a topic: "taken" or "refused". A password: both keys in hex.
 */
public class KafkaDecisions {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            JsonNode question = json.readTree(line);
            System.out.println(switch (question.get("kind").asText()) {
                case "partition" -> partition(question);
                case "config" -> config(question);
                case "topic" -> Topic.isValid(question.get("name").asText()) ? "taken" : "refused";
                case "scram" -> scram(question);
                default -> throw new IllegalArgumentException(line);
            });
        }
    }

    static List<Integer> ints(JsonNode node) {
        List<Integer> found = new ArrayList<>();
        node.forEach(one -> found.add(one.asInt()));
        return found;
    }

    static int[] array(JsonNode node) {
        return ints(node).stream().mapToInt(Integer::intValue).toArray();
    }

    static Uuid[] uuids(JsonNode node) {
        List<Uuid> found = new ArrayList<>();
        node.forEach(one -> found.add(Uuid.fromString(one.asText())));
        return found.toArray(new Uuid[0]);
    }

    static String partition(JsonNode question) {
        JsonNode row = question.get("row");
        JsonNode target = question.get("target");
        PartitionRegistration partition = new PartitionRegistration.Builder()
            .setReplicas(array(row.get("replicas"))).setIsr(array(row.get("isr")))
            .setAddingReplicas(array(row.get("adding_replicas")))
            .setRemovingReplicas(array(row.get("removing_replicas")))
            .setElr(array(row.get("elr"))).setLastKnownElr(array(row.get("last_known_elr")))
            .setDirectories(uuids(row.get("directories"))).setLeader(row.get("leader").asInt())
            .setLeaderRecoveryState(LeaderRecoveryState.of((byte) row.get("leader_recovery_state").asInt()))
            .setLeaderEpoch(row.get("leader_epoch").asInt())
            .setPartitionEpoch(row.get("partition_epoch").asInt()).build();
        Set<Integer> alive = new HashSet<>(ints(question.get("alive")));
        JsonNode directories = question.get("directories");
        PartitionChangeBuilder builder = new PartitionChangeBuilder(
            partition, Uuid.fromString(row.get("topic_id").asText()), row.get("partition_id").asInt(),
            alive::contains, MetadataVersion.fromFeatureLevel((short) question.get("level").asInt()),
            question.get("min_isr").asInt(), question.get("elr_enabled").asBoolean());
        builder.setDefaultDirProvider(id -> Uuid.fromString(directories.get("" + id).asText()));
        builder.setElection(PartitionChangeBuilder.Election.valueOf(target.get("election").asText().toUpperCase()));
        if (target.has("isr")) builder.setTargetIsr(ints(target.get("isr")));
        if (target.has("replicas")) builder.setTargetReplicas(ints(target.get("replicas")));
        if (target.has("removing")) builder.setTargetRemoving(ints(target.get("removing")));
        if (target.has("adding")) builder.setTargetAdding(ints(target.get("adding")));
        if (target.has("recovery"))
            builder.setTargetLeaderRecoveryState(LeaderRecoveryState.of((byte) target.get("recovery").asInt()));
        if (target.has("unclean_shutdown")) builder.setUncleanShutdownReplicas(ints(target.get("unclean_shutdown")));
        Optional<ApiMessageAndVersion> record = builder.build();
        if (record.isEmpty()) return "none";
        ObjectSerializationCache cache = new ObjectSerializationCache();
        int size = MetadataRecordSerde.INSTANCE.recordSize(record.get(), cache);
        ByteBuffer buffer = ByteBuffer.allocate(size);
        MetadataRecordSerde.INSTANCE.write(record.get(), cache, new ByteBufferAccessor(buffer));
        return HexFormat.of().formatHex(buffer.array());
    }

    static final ConfigDef GROUPS = groups();

    static ConfigDef groups() {
        try {
            Field field = GroupConfig.class.getDeclaredField("CONFIG_DEF");
            field.setAccessible(true);
            return (ConfigDef) field.get(null);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(e);
        }
    }

    static String config(JsonNode question) {
        Map<String, String> given = Map.of(question.get("name").asText(), question.get("value").asText());
        try {
            switch (question.get("resource_type").asInt()) {
                case 2 -> LogConfig.validate(given);
                case 16 -> ClientMetricsConfigs.validate("subscription", given);
                case 32 -> {
                    if (!GROUPS.names().containsAll(given.keySet())) return "refused";
                    GROUPS.parse(given);
                }
                default -> throw new IllegalStateException();
            }
            return "taken";
        } catch (org.apache.kafka.common.KafkaException refused) {
            return "refused";
        }
    }

    static String scram(JsonNode question) throws Exception {
        ScramFormatter formatter = new ScramFormatter(
            ScramMechanism.forMechanismName(question.get("mechanism").asText()));
        byte[] salt = HexFormat.of().parseHex(question.get("salt").asText());
        byte[] salted = formatter.saltedPassword(
            question.get("password").asText(), salt, question.get("iterations").asInt());
        HexFormat hex = HexFormat.of();
        return hex.formatHex(formatter.storedKey(formatter.clientKey(salted)))
            + " " + hex.formatHex(formatter.serverKey(salted));
    }
}
