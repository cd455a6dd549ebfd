-- A topic has a name and an id other than zero.
-- Kafka: Topic.validate, Uuid.ZERO_UUID; KIP-516.
SELECT cluster_id, topic_id, name
FROM topics
WHERE topic_id IS NULL OR topic_id = 'AAAAAAAAAAAAAAAAAAAAAA' OR name IS NULL OR name = ''
