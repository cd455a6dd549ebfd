-- The partitions of a topic are numbered from 0, without gaps.
-- Kafka: ReplicationControlManager.createTopic and createPartitions.
SELECT cluster_id, topic_id,
  count(*) AS partition_count, min(partition_id) AS first, max(partition_id) AS last
FROM partitions
GROUP BY cluster_id, topic_id
HAVING min(partition_id) <> 0 OR max(partition_id) <> count(*) - 1
