"""What a node answers to clients: Kafka's requests, on one log."""
