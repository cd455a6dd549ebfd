-- An ACL has a resource type and an operation that are neither UNKNOWN (0) nor ANY (1), a pattern
-- that is LITERAL (3) or PREFIXED (4), allows (3) or denies (2), and names a resource.
-- Kafka: AclControlManager.validateNewAcl.
SELECT cluster_id, acl_id, resource_type, resource_name, pattern_type, operation, permission
FROM acls
WHERE resource_type < 2 OR operation < 2 OR pattern_type NOT IN (3, 4) OR permission NOT IN (2, 3)
  OR resource_name IS NULL OR resource_name = ''
