-- The in-sync replicas of a partition are replicas, each once.
-- Kafka: ReplicationControlManager.validateAlterPartitionData, Replicas.validateIsr; KIP-497.
SELECT cluster_id, topic_id, partition_id, topic_name, isr, replicas
FROM partitions
WHERE size(array_except(isr, replicas)) > 0 OR size(array_distinct(isr)) <> size(isr)
