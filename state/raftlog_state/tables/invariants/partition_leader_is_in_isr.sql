-- The leader of a partition is in sync; -1 is no leader.
-- An election from the ELR or an unclean one replaces the ISR by the leader.
-- Kafka: PartitionChangeBuilder.tryElection, ReplicationControlManager.validateAlterPartitionData.
SELECT cluster_id, topic_id, partition_id, topic_name, leader, isr
FROM partitions
WHERE leader <> -1 AND NOT array_contains(isr, leader)
