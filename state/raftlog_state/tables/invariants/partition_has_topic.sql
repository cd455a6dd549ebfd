-- The topic of a partition exists, with its id and name.
-- Kafka: ReplicationControlManager.replay(PartitionRecord), TopicsDelta.replay.
SELECT p.cluster_id, p.topic_id, p.partition_id, p.topic_name, t.name AS name_of_topic
FROM partitions p LEFT JOIN topics t ON p.cluster_id = t.cluster_id AND p.topic_id = t.topic_id
WHERE NOT (p.topic_name <=> t.name)
