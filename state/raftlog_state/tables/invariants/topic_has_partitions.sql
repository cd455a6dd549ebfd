-- A topic has partitions. They follow its record and its configs in the same batch, so a topic is
-- exempt until a later record writes a topic or a partition.
-- Kafka: ReplicationControlManager.createTopic.
SELECT t.topic_id, t.name
FROM topics t LEFT ANTI JOIN partitions p ON t.topic_id = p.topic_id
WHERE t._offset < (SELECT max(_offset) FROM topics)
  OR t._offset < (SELECT max(_offset) FROM partitions)
