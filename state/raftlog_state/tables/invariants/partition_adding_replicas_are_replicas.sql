-- Replicas that a reassignment adds are replicas until it completes.
-- Kafka: PartitionReassignmentReplicas; KIP-455.
SELECT cluster_id, topic_id, partition_id, topic_name, adding_replicas, replicas
FROM partitions
WHERE size(array_except(adding_replicas, replicas)) > 0
