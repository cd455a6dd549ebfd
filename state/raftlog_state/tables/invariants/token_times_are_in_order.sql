-- A delegation token is issued and expires no later than its end.
-- Kafka: DelegationTokenControlManager.createDelegationToken and renewDelegationToken; KIP-900.
SELECT cluster_id, token_id, issue_timestamp, expiration_timestamp, max_timestamp
FROM tokens
WHERE issue_timestamp > max_timestamp OR expiration_timestamp > max_timestamp
