-- A leader epoch begins where the one before it ended. After a snapshot the start may be unknown.
-- Kafka: LeaderEpochFileCache, KafkaRaftClient.onBecomeLeader; KIP-595.
WITH following AS (
  SELECT cluster_id, leader_epoch, start_offset, end_offset,
    lead(leader_epoch) OVER (PARTITION BY cluster_id ORDER BY leader_epoch) AS next_epoch,
    lead(start_offset) OVER (PARTITION BY cluster_id ORDER BY leader_epoch) AS next_start_offset
  FROM epochs
)
SELECT * FROM following
WHERE (next_start_offset IS NOT NULL AND NOT (end_offset <=> next_start_offset))
  OR (next_epoch IS NULL AND end_offset IS NOT NULL)
