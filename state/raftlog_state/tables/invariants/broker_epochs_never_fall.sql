-- Each incarnation of a broker has a greater broker epoch, the offset of its registration.
-- Kafka: ClusterControlManager.registerBroker; KIP-631.
WITH versions AS (
  SELECT cluster_id, broker_id, valid_from, incarnation_id, broker_epoch,
    lag(broker_epoch) OVER earlier AS earlier_broker_epoch,
    lag(incarnation_id) OVER earlier AS earlier_incarnation_id
  FROM brokers_history
  WINDOW earlier AS (PARTITION BY cluster_id, broker_id ORDER BY valid_from)
)
SELECT * FROM versions
WHERE broker_epoch < earlier_broker_epoch
  OR (broker_epoch = earlier_broker_epoch AND incarnation_id <> earlier_incarnation_id)
