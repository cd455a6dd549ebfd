-- Configs of a topic (resource type 2) are deleted with it.
-- Kafka: ReplicationControlManager.replay(RemoveTopicRecord), TopicsDelta, ConfigurationsDelta.
SELECT c.cluster_id, c.resource_name, c.name
FROM configs c LEFT ANTI JOIN topics t ON c.cluster_id = t.cluster_id AND c.resource_name = t.name
WHERE c.resource_type = 2
