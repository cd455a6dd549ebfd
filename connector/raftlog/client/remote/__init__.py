"""The client of a quorum: it finds the leader, appends and reads over Kafka's protocol."""
