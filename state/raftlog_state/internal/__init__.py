"""State of Kafka's coordinators: replay of their logs by latest key, and the resulting rows."""
