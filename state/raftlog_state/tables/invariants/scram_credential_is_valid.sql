-- A SCRAM credential has a known mechanism and at least 4096 iterations.
-- Kafka: ScramControlManager.validateUpsertion, ScramMechanism; KIP-554.
SELECT cluster_id, user, mechanism, iterations
FROM scram
WHERE mechanism NOT IN (1, 2) OR iterations < 4096
