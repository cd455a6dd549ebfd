"""What a node answers to clients."""
