-- Replicas that a reassignment removes are replicas until it completes.
-- Kafka: PartitionReassignmentReplicas; KIP-455.
SELECT cluster_id, topic_id, partition_id, topic_name, removing_replicas, replicas
FROM partitions
WHERE size(array_except(removing_replicas, replicas)) > 0
