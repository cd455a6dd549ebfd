-- Until the leader of an unclean election has recovered (state 1), no other replica is in sync.
-- Kafka: PartitionChangeBuilder.tryElection; KIP-704.
SELECT cluster_id, topic_id, partition_id, topic_name, leader_recovery_state, isr
FROM partitions
WHERE leader_recovery_state NOT IN (0, 1) OR (leader_recovery_state = 1 AND size(isr) > 1)
