"""``WritableStorage`` in memory with a crash model: a seed decides what a power loss leaves."""
