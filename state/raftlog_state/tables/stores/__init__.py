"""Delta tables as a store: the protocol, and its implementations."""
