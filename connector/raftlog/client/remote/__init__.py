"""Client of a quorum over Kafka's protocol: leader discovery, appends and reads."""
