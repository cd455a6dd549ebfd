// Drives a quorum of controllers through Kafka's own admin client: java ControllerAdmin.java PROPERTY ADDRESSES,
// where PROPERTY is bootstrap.controllers or bootstrap.servers. Brokers 1 and 2 must be registered and unfenced.
// The last line of the output is a JSON object: for each call, in order, its response or the class of its error.
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.*;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;

public class ControllerAdmin {
    static final Map<String, Object> ANSWERS = new LinkedHashMap<>();

    static void call(String name, Callable<Object> action) throws Exception {
        try {
            ANSWERS.put(name, action.call());
        } catch (ExecutionException failed) {
            ANSWERS.put(name, failed.getCause().getClass().getSimpleName());
        } catch (KafkaException failed) {
            ANSWERS.put(name, failed.getClass().getSimpleName());
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> config = new HashMap<>();
        config.put(args[0], args[1]);
        config.put("default.api.timeout.ms", 120000);
        config.put("request.timeout.ms", 60000);
        TopicPartition first = new TopicPartition("orders", 0);
        ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "orders");
        AclBinding acl = new AclBinding(new ResourcePattern(ResourceType.TOPIC, "orders", PatternType.LITERAL),
            new AccessControlEntry("User:ana", "*", AclOperation.READ, AclPermissionType.ALLOW));
        ClientQuotaEntity ana = new ClientQuotaEntity(Map.of("user", "ana"));
        try (Admin admin = Admin.create(config)) {
            call("describeCluster", () -> List.of(admin.describeCluster().clusterId().get(),
                admin.describeCluster().nodes().get().stream().map(Node::id).sorted().toList()));
            call("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo().get().voters().stream()
                .map(QuorumInfo.ReplicaState::replicaId).sorted().toList());
            call("createTopics", () -> admin.createTopics(List.of(new NewTopic("orders", Map.of(0, List.of(1, 2), 1, List.of(2, 1)))))
                .numPartitions("orders").get());
            call("createTopicsAgain", () -> admin.createTopics(List.of(new NewTopic("orders", 1, (short) 1))).all().get());
            call("createTopicsValidateOnly", () -> admin.createTopics(List.of(new NewTopic("dry", 1, (short) 1)),
                new CreateTopicsOptions().validateOnly(true)).numPartitions("dry").get());
            call("createPartitions", () -> { admin.createPartitions(Map.of("orders", NewPartitions.increaseTo(4))).all().get(); return "done"; });
            call("incrementalAlterConfigs", () -> { admin.incrementalAlterConfigs(Map.of(topic, List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "77"), AlterConfigOp.OpType.SET)))).all().get(); return "done"; });
            call("describeConfigs", () -> admin.describeConfigs(List.of(topic)).all().get().get(topic).get("retention.ms").value());
            call("alterPartitionReassignments", () -> { admin.alterPartitionReassignments(Map.of(first,
                Optional.of(new NewPartitionReassignment(List.of(2))))).all().get(); return "done"; });
            call("listPartitionReassignments", () -> admin.listPartitionReassignments().reassignments().get().size());
            call("electLeaders", () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(new TopicPartition("orders", 1))).partitions().get()
                .values().stream().map(error -> error.map(one -> one.getClass().getSimpleName()).orElse("elected")).toList());
            call("createAcls", () -> { admin.createAcls(List.of(acl)).all().get(); return "done"; });
            call("describeAcls", () -> admin.describeAcls(AclBindingFilter.ANY).values().get().size());
            call("deleteAcls", () -> admin.deleteAcls(List.of(acl.toFilter())).all().get().size());
            call("alterClientQuotas", () -> { admin.alterClientQuotas(List.of(new ClientQuotaAlteration(ana,
                List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1024.0))))).all().get(); return "done"; });
            call("describeClientQuotas", () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().get(ana).get("producer_byte_rate"));
            call("alterUserScramCredentials", () -> { admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion("ana",
                new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192), "opensesame"))).all().get(); return "done"; });
            call("describeUserScramCredentials", () -> admin.describeUserScramCredentials().all().get().get("ana").credentialInfos().get(0).iterations());
            call("updateFeatures", () -> { admin.updateFeatures(Map.of("group.version",
                new FeatureUpdate((short) 0, FeatureUpdate.UpgradeType.SAFE_DOWNGRADE)), new UpdateFeaturesOptions()).all().get(); return "done"; });
            call("describeFeatures", () -> admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("group.version"));
            call("unregisterBroker", () -> { admin.unregisterBroker(2).all().get(); return "done"; });
            call("deleteTopics", () -> { admin.deleteTopics(List.of("orders")).all().get(); return "done"; });
        }
        System.out.println(new ObjectMapper().writeValueAsString(ANSWERS));
    }
}
