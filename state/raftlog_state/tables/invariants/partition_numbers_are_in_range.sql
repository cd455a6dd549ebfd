-- Partitions, leaders and epochs have numbers from 0 on; leader -1 is no leader.
-- Kafka: ReplicationControlManager.createTopic, PartitionRegistration.merge, LeaderConstants.
SELECT cluster_id, topic_id, partition_id, topic_name, leader, leader_epoch, partition_epoch
FROM partitions
WHERE partition_id < 0 OR leader < -1 OR leader_epoch < 0 OR partition_epoch < 0
