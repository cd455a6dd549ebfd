-- A partition has replicas, each once.
-- Kafka: ReplicationControlManager.validateManualPartitionAssignment, Replicas.validate.
SELECT cluster_id, topic_id, partition_id, topic_name, replicas
FROM partitions
WHERE size(replicas) = 0 OR size(array_distinct(replicas)) <> size(replicas)
