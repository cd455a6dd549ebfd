-- metadata.version is the first feature that is finalized, and is not removed.
-- Kafka: BootstrapMetadata.records, FeatureControlManager.replay, MetadataVersion.
SELECT cluster_id, count(*) AS feature_count
FROM features
GROUP BY cluster_id
HAVING count_if(name = 'metadata.version') = 0
