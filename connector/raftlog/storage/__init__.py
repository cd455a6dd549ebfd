"""Where files are: the protocol that the log uses, real files, and a simulated disk for tests."""
