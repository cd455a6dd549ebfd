package org.apache.kafka.controller;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.FeatureUpdate.UpgradeType;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData;
import org.apache.kafka.common.message.AlterPartitionRequestData;
import org.apache.kafka.common.message.AlterUserScramCredentialsRequestData;
import org.apache.kafka.common.message.CreatePartitionsRequestData;
import org.apache.kafka.common.message.ElectLeadersRequestData;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.metadata.AccessControlEntryRecord;
import org.apache.kafka.common.metadata.BrokerRegistrationChangeRecord;
import org.apache.kafka.common.metadata.ClearElrRecord;
import org.apache.kafka.common.metadata.ClientQuotaRecord;
import org.apache.kafka.common.metadata.ConfigRecord;
import org.apache.kafka.common.metadata.FeatureLevelRecord;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.metadata.RemoveAccessControlEntryRecord;
import org.apache.kafka.common.metadata.RemoveTopicRecord;
import org.apache.kafka.common.metadata.RemoveUserScramCredentialRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.metadata.UnregisterBrokerRecord;
import org.apache.kafka.common.metadata.UserScramCredentialRecord;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.timeline.SnapshotRegistry;
import org.apache.kafka.common.utils.LogContext;

/**
 * Kafka's own control managers. Input, a line each: "replay HEX" puts a record into their state; a
 * JSON object asks what records they would write, answered by their values in hex, "!" and a reason
 * if they refuse.
 */
public class KafkaManagers {
    final SnapshotRegistry registry = new SnapshotRegistry(new LogContext());
    final FeatureControlManager features = new FeatureControlManager.Builder()
        .setSnapshotRegistry(registry)
        .setQuorumFeatures(new QuorumFeatures(0, QuorumFeatures.defaultSupportedFeatureMap(true), List.of(0)))
        .build();
    final ConfigurationControlManager configs = new ConfigurationControlManager.Builder()
        .setSnapshotRegistry(registry).setFeatureControl(features)
        .setKafkaConfigSchema(kafka.server.KafkaRaftServer.configSchema()).build();
    final ClusterControlManager cluster = new ClusterControlManager.Builder()
        .setTime(Time.SYSTEM).setSnapshotRegistry(registry).setFeatureControlManager(features)
        .setBrokerShutdownHandler((id, isClean, records) -> { }).build();
    final ReplicationControlManager replication = new ReplicationControlManager.Builder()
        .setSnapshotRegistry(registry).setConfigurationControl(configs).setClusterControl(cluster)
        .setFeatureControl(features).build();
    final AclControlManager acls = new AclControlManager.Builder().setSnapshotRegistry(registry).build();
    final ClientQuotaControlManager quotas =
        new ClientQuotaControlManager.Builder().setSnapshotRegistry(registry).build();
    final ScramControlManager scram = new ScramControlManager.Builder().setSnapshotRegistry(registry).build();
    long offset = 0;

    public static void main(String[] arguments) throws Exception {
        KafkaManagers managers = new KafkaManagers();
        ObjectMapper json = new ObjectMapper();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            if (line.startsWith("replay ")) {
                managers.replay(HexFormat.of().parseHex(line.substring(7)));
            } else {
                System.out.println(managers.answer(json.readTree(line)));
            }
        }
    }

    void replay(byte[] value) {
        Object message = MetadataRecordSerde.INSTANCE.read(
            new ByteBufferAccessor(ByteBuffer.wrap(value)), value.length).message();
        if (message instanceof RegisterBrokerRecord r) cluster.replay(r, offset);
        else if (message instanceof UnregisterBrokerRecord r) cluster.replay(r);
        else if (message instanceof BrokerRegistrationChangeRecord r) cluster.replay(r);
        else if (message instanceof TopicRecord r) replication.replay(r);
        else if (message instanceof RemoveTopicRecord r) replication.replay(r);
        else if (message instanceof PartitionRecord r) replication.replay(r);
        else if (message instanceof PartitionChangeRecord r) replication.replay(r);
        else if (message instanceof ClearElrRecord r) replication.replay(r);
        else if (message instanceof ConfigRecord r) configs.replay(r);
        else if (message instanceof FeatureLevelRecord r) features.replay(r);
        else if (message instanceof AccessControlEntryRecord r) acls.replay(r);
        else if (message instanceof RemoveAccessControlEntryRecord r) acls.replay(r);
        else if (message instanceof ClientQuotaRecord r) quotas.replay(r);
        else if (message instanceof UserScramCredentialRecord r) scram.replay(r);
        else if (message instanceof RemoveUserScramCredentialRecord r) scram.replay(r);
        offset++;
    }

    static ControllerRequestContext context() {
        return new ControllerRequestContext(
            new RequestHeaderData().setRequestApiVersion((short) 3), KafkaPrincipal.ANONYMOUS, OptionalLong.empty());
    }

    static List<Integer> ints(JsonNode node) {
        List<Integer> found = new ArrayList<>();
        node.forEach(one -> found.add(one.asInt()));
        return found;
    }

    String answer(JsonNode question) {
        try {
            return hex(records(question));
        } catch (org.apache.kafka.common.errors.ApiException refused) {
            return "!" + refused.getMessage();
        } catch (RuntimeException e) {
            // Clearing eligible leader replicas leaves them in the manager's index of brokers: it fails
            // over them once their topic is deleted. It also fails if the last known leader of a
            // partition has no replica any more.
            if (e.getMessage().contains("existed in isrMembers")) return "?";
            if (e.getMessage().contains("is not assigned to this partition")) return "?";
            throw e;
        }
    }

    List<ApiMessageAndVersion> records(JsonNode question) {
        List<ApiMessageAndVersion> records = new ArrayList<>();
        String topic = question.path("topic").asText();
        int partition = question.path("partition").asInt();
        int broker = question.path("broker_id").asInt();
        switch (question.get("change").asText()) {
            case "fence_broker" -> replication.handleBrokerFenced(broker, records);
            case "unfence_broker" -> replication.handleBrokerUnfenced(broker, epoch(broker), records);
            case "unregister_broker" -> replication.handleBrokerUnregistered(broker, epoch(broker), records);
            case "reassign_partition" -> {
                var part = new AlterPartitionReassignmentsRequestData.ReassignablePartition().setPartitionIndex(partition)
                    .setReplicas(question.get("replicas").isNull() ? null : ints(question.get("replicas")));
                var result = replication.alterPartitionReassignments(new AlterPartitionReassignmentsRequestData().setTopics(List.of(
                    new AlterPartitionReassignmentsRequestData.ReassignableTopic().setName(topic).setPartitions(List.of(part)))));
                short code = result.response().responses().get(0).partitions().get(0).errorCode();
                // Of an exception it has the code, without the text: a partition without a leader, as above.
                if (code == Errors.UNKNOWN_SERVER_ERROR.code() && replication.getPartition(replication.getTopicId(topic), partition).leader < 0)
                    throw new IllegalStateException("the last known leader is not assigned to this partition");
                return result.records();
            }
            case "elect_leader" -> {
                var topics = new ElectLeadersRequestData.TopicPartitionsCollection();
                topics.add(new ElectLeadersRequestData.TopicPartitions().setTopic(topic).setPartitions(List.of(partition)));
                byte type = (byte) (question.get("election").asText().equals("unclean") ? 1 : 0);
                return replication.electLeaders(new ElectLeadersRequestData().setElectionType(type).setTopicPartitions(topics)).records();
            }
            case "set_isr" -> {
                Uuid id = replication.getTopicId(topic);
                var row = replication.getPartition(id, partition);
                List<AlterPartitionRequestData.BrokerState> isr = ints(question.get("isr")).stream()
                    .map(one -> new AlterPartitionRequestData.BrokerState().setBrokerId(one)).toList();
                var part = new AlterPartitionRequestData.PartitionData().setPartitionIndex(partition)
                    .setLeaderEpoch(row.leaderEpoch).setPartitionEpoch(row.partitionEpoch).setNewIsrWithEpochs(isr);
                return replication.alterPartition(context(), new AlterPartitionRequestData().setBrokerId(row.leader)
                    .setBrokerEpoch(epoch(row.leader)).setTopics(List.of(
                        new AlterPartitionRequestData.TopicData().setTopicId(id).setPartitions(List.of(part))))).records();
            }
            case "add_partitions" -> {
                var wanted = new CreatePartitionsRequestData.CreatePartitionsTopic().setName(topic)
                    .setCount(question.get("partitions").asInt());
                List<CreatePartitionsRequestData.CreatePartitionsAssignment> assignments = new ArrayList<>();
                question.get("assignment").forEach(one -> assignments.add(
                    new CreatePartitionsRequestData.CreatePartitionsAssignment().setBrokerIds(ints(one))));
                var result = replication.createPartitions(context(), List.of(wanted.setAssignments(assignments)));
                if (result.records().isEmpty())
                    throw new org.apache.kafka.common.errors.ApiException(result.response().toString());
                return result.records();
            }
            case "set_config", "delete_config", "append_config", "subtract_config" -> {
                var type = ConfigResource.Type.forId((byte) question.get("resource_type").asInt());
                var resource = new ConfigResource(type, question.get("resource_name").asText());
                String change = question.get("change").asText();
                OpType operation = OpType.valueOf(change.substring(0, change.indexOf('_')).toUpperCase());
                String value = question.has("value") ? question.get("value").asText() : null;
                return configs.incrementalAlterConfigs(Map.of(resource, Map.of(question.get("name").asText(),
                    new java.util.AbstractMap.SimpleImmutableEntry<>(operation, value))), false, true).records();
            }
            case "add_acl" -> {
                var pattern = new ResourcePattern(ResourceType.fromCode((byte) question.get("resource_type").asInt()),
                    question.get("resource_name").asText(),
                    PatternType.fromCode((byte) question.get("pattern_type").asInt()));
                var entry = new AccessControlEntry(question.get("principal").asText(), question.get("host").asText(),
                    AclOperation.fromCode((byte) question.get("operation").asInt()),
                    AclPermissionType.fromCode((byte) question.get("permission").asInt()));
                return acls.createAcls(List.of(new AclBinding(pattern, entry))).records();
            }
            case "remove_acl" -> {
                var entry = new AccessControlEntryFilter(question.get("principal").asText(), null,
                    AclOperation.fromCode((byte) question.get("operation").asInt()), AclPermissionType.ANY);
                return acls.deleteAcls(List.of(new AclBindingFilter(ResourcePatternFilter.ANY, entry))).records();
            }
            case "set_quota", "remove_quota" -> {
                Map<String, String> entity = new java.util.HashMap<>();
                question.get("entity").properties().forEach(one ->
                    entity.put(one.getKey(), one.getValue().isNull() ? null : one.getValue().asText()));
                Double limit = question.has("limit") ? question.get("limit").asDouble() : null;
                var op = new ClientQuotaAlteration.Op(question.get("quota").asText(), limit);
                return quotas.alterClientQuotas(
                    List.of(new ClientQuotaAlteration(new ClientQuotaEntity(entity), List.of(op)))).records();
            }
            case "set_scram", "remove_scram" -> {
                var request = new AlterUserScramCredentialsRequestData();
                String user = question.get("user").asText();
                byte mechanism = (byte) question.get("mechanism").asInt();
                if (question.has("salt"))
                    request.upsertions().add(new AlterUserScramCredentialsRequestData.ScramCredentialUpsertion()
                        .setName(user).setMechanism(mechanism).setIterations(question.get("iterations").asInt())
                        .setSalt(HexFormat.of().parseHex(question.get("salt").asText()))
                        .setSaltedPassword(HexFormat.of().parseHex(question.get("salted_password").asText())));
                else
                    request.deletions().add(new AlterUserScramCredentialsRequestData.ScramCredentialDeletion()
                        .setName(user).setMechanism(mechanism));
                return scram.alterCredentials(request, features.metadataVersionOrThrow()).records();
            }
            case "set_feature" -> {
                String name = question.get("feature").asText();
                short level = (short) question.get("level").asInt();
                short current = features.finalizedFeatures(Long.MAX_VALUE).versionOrDefault(name, (short) 0);
                var type = level < current ? UpgradeType.SAFE_DOWNGRADE : UpgradeType.UPGRADE;
                return configs.updateFeatures(Map.of(name, level), Map.of(name, type), false, 0).records();
            }
            default -> throw new IllegalArgumentException(question.toString());
        }
        return records;
    }

    long epoch(int broker) {
        return cluster.registration(broker).epoch();
    }

    static String hex(List<ApiMessageAndVersion> records) {
        List<String> found = new ArrayList<>();
        for (ApiMessageAndVersion record : records) {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
            MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
            found.add(HexFormat.of().formatHex(buffer.array()));
        }
        return String.join(" ", found);
    }
}
