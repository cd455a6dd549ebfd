-- One metadata transaction is open at a time.
-- Kafka: OffsetControlManager.replay(BeginTransactionRecord); KIP-868.
WITH following AS (
  SELECT cluster_id, begin_offset, end_offset,
    lead(begin_offset) OVER (PARTITION BY cluster_id ORDER BY begin_offset) AS next_begin_offset
  FROM transactions
)
SELECT * FROM following
WHERE next_begin_offset < end_offset
