-- A replica in sync is not among the eligible leader replicas, which are distinct.
-- A reassignment may leave former replicas in the ELR and in the last known ELR.
-- Kafka: PartitionChangeBuilder.maybePopulateTargetElr and tryElection; KIP-966.
SELECT cluster_id, topic_id, partition_id, topic_name, isr, elr
FROM partitions
WHERE size(array_intersect(isr, elr)) > 0 OR size(array_distinct(elr)) <> size(elr)
