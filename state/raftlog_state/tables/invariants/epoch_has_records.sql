-- The leader change of a leader epoch is its first record.
-- Kafka: KafkaRaftClient.onBecomeLeader, LeaderEpochFileCache; KIP-595.
SELECT cluster_id, leader_epoch, start_offset, end_offset
FROM epochs
WHERE end_offset <= start_offset OR start_offset < 0 OR leader_epoch < 0
