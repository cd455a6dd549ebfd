-- metadata.version is the first feature that is finalized, and is not removed.
-- Kafka: BootstrapMetadata.records, FeatureControlManager.replay, MetadataVersion.
SELECT count(*) AS feature_count
FROM features
HAVING count(*) > 0 AND count_if(name = 'metadata.version') = 0
