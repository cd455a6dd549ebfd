-- A topic has partitions. They follow its record and its configs in the same batch, so a topic is
-- exempt until a later record writes a topic or a partition.
-- Kafka: ReplicationControlManager.createTopic.
WITH ends AS (
  SELECT cluster_id, max(_offset) AS last_offset
  FROM (SELECT cluster_id, _offset FROM topics UNION ALL SELECT cluster_id, _offset FROM partitions)
  GROUP BY cluster_id
)
SELECT t.cluster_id, t.topic_id, t.name
FROM topics t JOIN ends e ON t.cluster_id = e.cluster_id
LEFT ANTI JOIN partitions p ON t.cluster_id = p.cluster_id AND t.topic_id = p.topic_id
WHERE t._offset < e.last_offset
