-- The leader of a partition is a registered broker, which loses leadership before its registration.
-- Replicas may be unregistered, and so may the last one in sync without ELR.
-- Kafka: ReplicationControlManager.handleBrokerUnregistered.
SELECT p.cluster_id, topic_id, partition_id, topic_name, leader
FROM partitions p LEFT ANTI JOIN brokers b ON p.cluster_id = b.cluster_id AND leader = broker_id
WHERE leader >= 0
