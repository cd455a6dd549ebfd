-- An id is that of one topic.
-- Kafka: ReplicationControlManager.createTopic; KIP-516.
SELECT cluster_id, topic_id, array_sort(collect_list(name)) AS names
FROM topics
GROUP BY cluster_id, topic_id
HAVING count(*) > 1
