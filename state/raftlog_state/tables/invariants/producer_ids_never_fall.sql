-- Blocks of producer ids are allocated in increasing order. A snapshot may repeat the last one.
-- Kafka: ProducerIdControlManager.generateNextProducerId and replay; KIP-730.
WITH versions AS (
  SELECT cluster_id, valid_from, next_producer_id,
    lag(next_producer_id) OVER earlier AS earlier_next_producer_id
  FROM producer_ids_history
  WINDOW earlier AS (PARTITION BY cluster_id ORDER BY valid_from)
)
SELECT * FROM versions
WHERE next_producer_id < coalesce(earlier_next_producer_id, 0)
