-- A partition has a directory for each replica.
-- Kafka: PartitionRegistration (its constructor, checkDirectories, defaultToMigrating); KIP-858.
SELECT cluster_id, topic_id, partition_id, topic_name, directories, replicas
FROM partitions
WHERE size(directories) <> size(replicas)
