-- The leader of a partition is a registered broker, which loses leadership before its registration.
-- Replicas may be unregistered, and so may the last one in sync without ELR.
-- Kafka: ReplicationControlManager.handleBrokerUnregistered.
SELECT topic_id, partition_id, topic_name, leader
FROM partitions LEFT ANTI JOIN brokers ON leader = broker_id
WHERE leader >= 0
