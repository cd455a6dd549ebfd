-- One metadata transaction is open at a time.
-- Kafka: OffsetControlManager.replay(BeginTransactionRecord); KIP-868.
WITH following AS (
  SELECT begin_offset, end_offset,
    lead(begin_offset) OVER (ORDER BY begin_offset) AS next_begin_offset
  FROM transactions
)
SELECT * FROM following
WHERE next_begin_offset < end_offset
