-- A quota is that of a user, a client id or both, or of an IP address alone.
-- Kafka: ClientQuotaControlManager.validateEntity and configKeysForEntityType; KIP-546.
SELECT cluster_id, entity_key, quota
FROM quotas
WHERE size(array_except(map_keys(entity), array('user', 'client-id', 'ip'))) > 0
  OR size(entity) = 0 OR (array_contains(map_keys(entity), 'ip') AND size(entity) > 1)
