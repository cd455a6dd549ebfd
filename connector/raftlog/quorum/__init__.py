"""KRaft's Raft as a pure state machine: events and the current time in, effects out."""
