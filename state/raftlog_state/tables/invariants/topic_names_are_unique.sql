-- A name is that of one topic.
-- Kafka: ReplicationControlManager.replay(TopicRecord).
SELECT cluster_id, name, array_sort(collect_list(topic_id)) AS topic_ids
FROM topics
GROUP BY cluster_id, name
HAVING count(DISTINCT topic_id) > 1
