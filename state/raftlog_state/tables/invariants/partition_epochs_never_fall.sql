-- Each change of a partition increases its partition epoch, and some its leader epoch.
-- A snapshot may repeat both.
-- Kafka: PartitionRegistration.merge.
WITH versions AS (
  SELECT cluster_id, topic_id, partition_id, topic_name, valid_from, leader_epoch, partition_epoch,
    lag(leader_epoch) OVER earlier AS earlier_leader_epoch,
    lag(partition_epoch) OVER earlier AS earlier_partition_epoch
  FROM partitions_history
  WINDOW earlier AS (PARTITION BY cluster_id, topic_id, partition_id ORDER BY valid_from)
)
SELECT * FROM versions
WHERE leader_epoch < earlier_leader_epoch OR partition_epoch < earlier_partition_epoch
