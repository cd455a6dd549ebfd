"""A process of a quorum: a replica with its log, and what drives it."""
