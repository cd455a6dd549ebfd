"""Where files are: the protocol that the log reads through, and the one module of real files."""
