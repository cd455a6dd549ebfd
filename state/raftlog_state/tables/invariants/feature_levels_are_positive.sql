-- A finalized feature has a level greater than 0: level 0 removes it.
-- Kafka: FeaturesDelta.replay, FeatureControlManager.replay; KIP-584.
SELECT cluster_id, name, level
FROM features
WHERE level < 1
