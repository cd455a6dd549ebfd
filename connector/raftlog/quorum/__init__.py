"""Raft by pull as a pure function: events and the time go in, effects come out (Kafka: KRaft)."""
