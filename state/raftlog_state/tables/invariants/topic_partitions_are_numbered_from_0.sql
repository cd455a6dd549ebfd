-- The partitions of a topic are numbered from 0, without gaps.
-- Kafka: ReplicationControlManager.createTopic and createPartitions.
SELECT topic_id, count(*) AS partition_count, min(partition_id) AS first, max(partition_id) AS last
FROM partitions
GROUP BY topic_id
HAVING min(partition_id) <> 0 OR max(partition_id) <> count(*) - 1
