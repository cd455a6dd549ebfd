-- A metadata transaction ends with a marker after its begin, and its records are between them.
-- Kafka: OffsetControlManager, MetadataBatchLoader.replay; KIP-868.
SELECT cluster_id, begin_offset, end_offset, outcome, record_count
FROM transactions
WHERE record_count < 0 OR record_count > end_offset - begin_offset - 2
  OR outcome NOT IN ('committed', 'aborted')
