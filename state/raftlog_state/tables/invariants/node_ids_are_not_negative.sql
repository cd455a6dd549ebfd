-- Brokers and controllers have ids from 0 on.
-- Kafka: BrokerRegistration, ControllerRegistration, KRaftConfigs (node.id).
SELECT cluster_id, 'broker' AS node, broker_id AS id
FROM brokers
WHERE broker_id < 0
UNION ALL
SELECT cluster_id, 'controller' AS node, controller_id AS id
FROM controllers
WHERE controller_id < 0
