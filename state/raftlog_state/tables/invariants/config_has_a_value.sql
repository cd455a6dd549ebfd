-- A config has a name and a value: null removes it.
-- Kafka: ConfigurationDelta.replay, ConfigurationControlManager.replay.
SELECT cluster_id, resource_type, resource_name, name
FROM configs
WHERE name IS NULL OR name = '' OR value IS NULL
