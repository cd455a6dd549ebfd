// Drives a running Kafka through its own admin client and prints JSON: java Admin.java HOST:PORT ACTION...
// Actions: wait | create | change | describe. The last action's answer is the last line of the output.
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;

public class Admin {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", args[0]);
        config.put("default.api.timeout.ms", 120000);
        config.put("request.timeout.ms", 20000);
        try (org.apache.kafka.clients.admin.Admin admin = org.apache.kafka.clients.admin.Admin.create(config)) {
            Object answer = null;
            for (String action : Arrays.asList(args).subList(1, args.length)) {
                answer = switch (action) {
                    case "wait" -> admin.describeCluster().clusterId().get(120, TimeUnit.SECONDS);
                    case "create" -> create(admin);
                    case "change" -> change(admin);
                    case "describe" -> describe(admin);
                    default -> throw new IllegalArgumentException(action);
                };
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    static AclBinding acl(String principal, String topic, PatternType pattern, AclOperation operation) {
        return new AclBinding(new ResourcePattern(ResourceType.TOPIC, topic, pattern),
            new AccessControlEntry(principal, "*", operation, AclPermissionType.ALLOW));
    }

    static Object create(org.apache.kafka.clients.admin.Admin admin) throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            topics.add(new NewTopic("orders-" + i, 1 + i % 4, (short) 1).configs(Map.of("retention.ms", "" + (60000 + i))));
        }
        admin.createTopics(topics).all().get();
        admin.createAcls(List.of(
            acl("User:ana", "orders-", PatternType.PREFIXED, AclOperation.READ),
            acl("User:ana", "orders-1", PatternType.LITERAL, AclOperation.WRITE),
            acl("User:bo", "*", PatternType.LITERAL, AclOperation.DESCRIBE))).all().get();
        admin.alterClientQuotas(List.of(
            quota(Map.of("user", "ana"), "producer_byte_rate", 1048576.0),
            quota(Map.of("user", "bo", "client-id", "app"), "request_percentage", 12.5),
            quota(Collections.singletonMap("user", null), "consumer_byte_rate", 2097152.0))).all().get();
        if (hasScram(admin)) {
            admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("ana",
                new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), "opensesame"))).all().get();
        }
        return "created";
    }

    /** Return whether the controller has SCRAM credentials: KRaft has them since 3.5 (KIP-900). */
    static boolean hasScram(org.apache.kafka.clients.admin.Admin admin) throws Exception {
        var metadata = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("metadata.version");
        return metadata.maxVersionLevel() >= 11;  // 3.5-IV2
    }

    static ClientQuotaAlteration quota(Map<String, String> entity, String name, Double value) {
        return new ClientQuotaAlteration(new ClientQuotaEntity(entity),
            List.of(new ClientQuotaAlteration.Op(name, value)));
    }

    static Object change(org.apache.kafka.clients.admin.Admin admin) throws Exception {
        admin.deleteTopics(List.of("orders-3", "orders-7")).all().get();
        admin.createPartitions(Map.of("orders-0", NewPartitions.increaseTo(5))).all().get();
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "orders-2");
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        ConfigResource brokers = new ConfigResource(ConfigResource.Type.BROKER, "");
        admin.incrementalAlterConfigs(Map.of(
            topic, List.of(set("cleanup.policy", "compact"), delete("retention.ms")),
            broker, List.of(set("log.cleaner.threads", "2")),
            brokers, List.of(set("message.max.bytes", "2000000")))).all().get();
        admin.deleteAcls(List.of(acl("User:ana", "orders-1", PatternType.LITERAL, AclOperation.WRITE).toFilter())).all().get();
        admin.alterClientQuotas(List.of(quota(Map.of("user", "ana"), "producer_byte_rate", null))).all().get();
        return "changed";
    }

    static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    static AlterConfigOp delete(String name) {
        return new AlterConfigOp(new ConfigEntry(name, null), AlterConfigOp.OpType.DELETE);
    }

    static Object describe(org.apache.kafka.clients.admin.Admin admin) throws Exception {
        Map<String, Object> answer = new TreeMap<>();
        answer.put("cluster_id", admin.describeCluster().clusterId().get());
        answer.put("high_watermark", admin.describeMetadataQuorum().quorumInfo().get().highWatermark());
        List<Object> partitions = new ArrayList<>();
        Set<String> names = admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
        admin.describeTopics(names).allTopicNames().get().forEach((name, topic) ->
            topic.partitions().forEach(p -> partitions.add(List.of(name, topic.topicId().toString(), p.partition(),
                p.leader().id(), p.replicas().stream().map(n -> n.id()).toList(), p.isr().stream().map(n -> n.id()).toList()))));
        answer.put("partitions", partitions);
        answer.put("configs", configs(admin, names));
        List<Object> acls = new ArrayList<>();
        for (AclBinding one : admin.describeAcls(AclBindingFilter.ANY).values().get()) {
            acls.add(List.of(one.pattern().resourceType().code(), one.pattern().name(), one.pattern().patternType().code(),
                one.entry().principal(), one.entry().host(), one.entry().operation().code(), one.entry().permissionType().code()));
        }
        answer.put("acls", acls);
        List<Object> quotas = new ArrayList<>();
        admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().forEach((entity, values) ->
            values.forEach((name, value) -> quotas.add(List.of(new TreeMap<>(entity.entries()), name, value))));
        answer.put("quotas", quotas);
        List<Object> scram = new ArrayList<>();
        if (hasScram(admin)) {
            admin.describeUserScramCredentials().all().get().forEach((user, d) -> d.credentialInfos().forEach(
                info -> scram.add(List.of(user, info.mechanism().type(), info.iterations()))));
        }
        answer.put("scram", scram);
        Map<String, Object> features = new TreeMap<>();
        admin.describeFeatures().featureMetadata().get().finalizedFeatures().forEach((name, range) ->
            features.put(name, range.maxVersionLevel()));
        answer.put("features", features);
        return answer;
    }

    static Object configs(org.apache.kafka.clients.admin.Admin admin, Set<String> topics) throws Exception {
        List<ConfigResource> resources = new ArrayList<>();
        topics.forEach(name -> resources.add(new ConfigResource(ConfigResource.Type.TOPIC, name)));
        resources.add(new ConfigResource(ConfigResource.Type.BROKER, "1"));
        resources.add(new ConfigResource(ConfigResource.Type.BROKER, ""));
        Map<ConfigResource.Type, ConfigEntry.ConfigSource> own = Map.of(
            ConfigResource.Type.TOPIC, ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG,
            ConfigResource.Type.BROKER, ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG);
        List<Object> rows = new ArrayList<>();
        admin.describeConfigs(resources).all().get().forEach((resource, config) -> config.entries().forEach(entry -> {
            boolean dynamic = resource.name().isEmpty()
                ? entry.source() == ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
                : entry.source() == own.get(resource.type());
            if (dynamic) {
                rows.add(List.of((int) resource.type().id(), resource.name(), entry.name(), String.valueOf(entry.value())));
            }
        }));
        return rows;
    }
}
